"""Records on `decisions`: what the index decided on each log record with documents, so that another
need not look it up.

    record   := frame "SDDC", format 1, kind 1 (decided)
    decided  := log_offset(u64) chain(8) documents(u32) made(a bit for each document, the lowest first)
                reason(u8) of each that is not made: as in answers, if it was found to be a
                duplicate here; 0 where nothing was looked for: it had its verdict before, is stale,
                or is of a seed then, for those found to be duplicates: of(u64) distance(u8)
                similarity(u8) copies(u32) better(u8), as columns

`made` documents became representatives. `of` is the number of the representative: how many had been
made before it, in the order of the log, seeds and released ones too; one that a window renews is
made anew, behind all others. The other columns are those of the answer. `chain` is that of the
answer to this log record; a seed, which gets none, has a BLAKE2b-64 of the chain before, of its log
offset (u64) and of the bits.

Invariants: the bytes are a function of the log's prefix alone, so two replicas write equal bytes,
and a reader skips what it has; each batch that was judged and each seed that was carried out has a
record, and nothing else; no ids are in here. Who applies a decision holds the answer that it leads
to against `chain`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.document import Reason, Verdict
from stream_dedup.ground.errors import UPGRADE, FormatError, OtherFormatError
from stream_dedup.log.frame import FIRST_FORMAT, Reader, framed, unframed
from stream_dedup.log.records import DOCUMENTS_MAX

MAGIC: Final = b"SDDC"
KIND_DECIDED: Final = 1
NOT_JUDGED: Final = 0
_HEAD: Final = struct.Struct("<Q8sI")
_KNOWN: Final = frozenset(
    [NOT_JUDGED, *(int(reason) for reason in Reason if reason.verdict is Verdict.DUPLICATE)]
)


@dataclass(frozen=True, slots=True, eq=False)
class LogDecision:
    """What was decided on one log record of n documents, d of which were found to be duplicates.

    Shapes: `made` (n,) bool; `reasons` (n,) uint8, `NOT_JUDGED` where it says nothing; of the
    duplicates, in their order, the numbers `of` (d,) int64 of the representatives, `distances` (d,)
    uint8, `similarity` (d,) uint8, `copies` (d,) uint32, `better` (d,) uint8.
    """

    log_offset: int
    chain: bytes
    made: NDArray[np.bool_]
    reasons: NDArray[np.uint8]
    of: NDArray[np.int64]
    distances: NDArray[np.uint8]
    similarity: NDArray[np.uint8]
    copies: NDArray[np.uint32]
    better: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.made)


def encode(decision: LogDecision, form: int = FIRST_FORMAT) -> bytes:
    """Return the record bytes of a decision, of the format `form`."""
    return framed(MAGIC, form, KIND_DECIDED, _encoded(decision))


def decode(raw: bytes | None, what: str = "A record of decisions") -> LogDecision:
    """Return the decision in `raw`.

    Raises:
        OtherFormatError: it is whole, and of a format or a kind that this program does not know.
        FormatError: not ours, or damaged.
    """
    form, kind, body = unframed(MAGIC, FORMATS, raw, what)
    decoder = FORMATS[form].get(kind)
    if decoder is None:
        raise OtherFormatError(
            f"{what} is of kind {kind}, which this program does not know: {UPGRADE}"
        )
    return decoder(Reader(body, what), what)


def log_offset_of(raw: bytes | None, what: str) -> int:
    """Return of which log record the decision in `raw` is; raises as `decode` does, but for what
    lies behind.
    """
    _, _, body = unframed(MAGIC, FORMATS, raw, what)
    return int(_HEAD.unpack(Reader(body, what).take(_HEAD.size))[0])


def _encoded(decision: LogDecision) -> bytes:
    return b"".join(
        (
            _HEAD.pack(decision.log_offset, decision.chain, len(decision)),
            np.packbits(decision.made, bitorder="little").tobytes(),
            decision.reasons[~decision.made].tobytes(),
            decision.of.astype("<u8").tobytes(),
            decision.distances.tobytes(),
            decision.similarity.tobytes(),
            decision.copies.astype("<u4").tobytes(),
            decision.better.tobytes(),
        )
    )


def _decoded(reader: Reader, what: str) -> LogDecision:
    log_offset, chain, count = _HEAD.unpack(reader.take(_HEAD.size))
    if not 0 < count <= DOCUMENTS_MAX:
        raise FormatError(
            f"{what} decides on {count} documents; a log record holds 1 to {DOCUMENTS_MAX}."
        )
    bits = np.frombuffer(reader.take(-(-count // 8)), np.uint8)
    made = np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)
    given = bytes(reader.take(count - int(np.count_nonzero(made))))
    reasons = np.zeros(count, np.uint8)
    reasons[~made] = np.frombuffer(given, np.uint8)
    if not _KNOWN.issuperset(given):
        raise OtherFormatError(f"{what} gives a reason that this program does not know: {UPGRADE}")
    found = reader.columns(_columns_of(len(given) - given.count(NOT_JUDGED)))
    reader.end()
    return LogDecision(
        *(log_offset, bytes(chain), made, reasons),
        *(found["of"], found["distance"], found["similarity"], found["copies"], found["better"]),
    )


@lru_cache(maxsize=DOCUMENTS_MAX)
def _columns_of(found: int) -> np.dtype[Any]:
    """Return how the columns of some duplicates lie in a record."""
    names = [
        ("of", "<i8"),
        ("distance", "u1"),
        ("similarity", "u1"),
        ("copies", "<u4"),
        ("better", "u1"),
    ]
    return np.dtype([(name, kind, (found,)) for name, kind in names])


FORMATS: Final[Mapping[int, Mapping[int, Callable[[Reader, str], LogDecision]]]] = {
    1: {KIND_DECIDED: _decoded}
}
"""How each released format is read, by its number and kind: the same numbers as those of the log's
records."""
