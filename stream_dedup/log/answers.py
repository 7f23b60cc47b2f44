"""Records on `verdicts`: the index's answers, in log order for each replica.

    record   := frame "SDV1", version 1, kind 1 (answer), 2 (rejected) or 3 (announce)
    answer   := log_offset(u64) nonce(16) number(u64) documents(u32)
                reason(u8) distance(u8) decided_offset(u64) decided_place(u32), each for all documents
                sources(u16) source* then, for the duplicates only: source(u16) offset(i64) time_ms(i64) id_bytes(u16),
                as columns; their ids, one after another; at the very end chain(8)
    source   := topic(str8) topic_id(16) partition(u32)
    rejected := log_offset(u64) nonce(16) number(u64) why(str16) chain(8)
    announce := answers_from(u64): this replica answers log offsets from there on, and nothing older

Invariants: the bytes of an answer are a function of the log's prefix alone (no replica, no clock, no batch size), so
two replicas send equal bytes; `chain` is a keyless BLAKE2b-64 of the previous answer's chain and this answer's own
bytes, so two replicas that ever differed differ for ever after; answers are stored as sent, and re-sent rather than
judged again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.document import NONCE_BYTES, TOPIC_ID_BYTES, LogPlace, Position, Reason, Representative, Verdict, maker_of
from stream_dedup.errors import FormatError
from stream_dedup.log.frame import Reader, seal, unseal

MAGIC = b"SDV1"
VERSION = 1
KIND_ANSWER = 1
KIND_REJECTED = 2
KIND_ANNOUNCE = 3
CHAIN_BYTES = 8
CHAIN_START = bytes(CHAIN_BYTES)

_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_HEAD = struct.Struct("<Q16sQ")
_REASONS = {int(reason): reason for reason in Reason}
_NAMES_ANOTHER = frozenset(reason for reason in Reason if reason.verdict is Verdict.DUPLICATE)
_IS_DUPLICATE = np.isin(np.arange(256), sorted(_NAMES_ANOTHER))


class Judgement(NamedTuple):
    """The verdict on one document: why, which log place decided; of a duplicate, distance and representative."""

    reason: Reason
    decided: LogPlace
    distance: int = 0
    of: Representative | None = None


_judgement, _representative, _log_place = maker_of(Judgement), maker_of(Representative), maker_of(LogPlace)


class Verdicts(NamedTuple):
    """The judgements on one log record as columns, (n,) each; `named`: the representatives of its duplicates, in their order.

    The index judges in columns: a value for each document would cost it more than judging.
    """

    reasons: NDArray[np.uint8]
    distances: NDArray[np.uint8]
    decided_offsets: NDArray[np.uint64]
    decided_places: NDArray[np.uint32]
    named: list[Representative]

    @classmethod
    def of(cls, judgements: Sequence[Judgement]) -> Verdicts:
        """Return judgements as columns."""
        count = len(judgements)
        return cls(
            np.fromiter((judgement.reason for judgement in judgements), np.uint8, count),
            np.fromiter((judgement.distance for judgement in judgements), np.uint8, count),
            np.fromiter((judgement.decided.offset for judgement in judgements), np.uint64, count),
            np.fromiter((judgement.decided.place for judgement in judgements), np.uint32, count),
            [judgement.of for judgement in judgements if judgement.of is not None],
        )

    @property
    def names_another(self) -> NDArray[np.bool_]:
        """Which are on duplicates, (n,)."""
        return _IS_DUPLICATE[self.reasons]

    def judgements(self) -> list[Judgement]:
        """Return columns as judgements."""
        reasons = self.reasons.tolist()
        return _judgements(
            reasons, self.decided_offsets.tolist(), self.decided_places.tolist(), self.distances.tolist(), self.named
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The judgements on one log record, in the order of its documents."""

    log_offset: int
    nonce: bytes
    number: int
    judgements: tuple[Judgement, ...]
    chain: bytes = CHAIN_START


@dataclass(frozen=True, slots=True)
class Rejected:
    """The log record at `log_offset` was not judged; `why` is a sentence for its worker's operator."""

    log_offset: int
    nonce: bytes
    number: int
    why: str
    chain: bytes = CHAIN_START


@dataclass(frozen=True, slots=True)
class Announce:
    """This replica answers log offsets from `answers_from` on; a worker that waits for an older one appends again."""

    answers_from: int


def encode(answer: Answer | Rejected, previous_chain: bytes) -> tuple[bytes, bytes]:
    """Return (record bytes, chain) of an answer that follows the answer whose chain is `previous_chain`."""
    if isinstance(answer, Answer):
        return encode_verdicts(answer.log_offset, answer.nonce, answer.number, Verdicts.of(answer.judgements), previous_chain)
    why = answer.why.encode("utf-8")[:2000]
    return _chained(
        KIND_REJECTED, _HEAD.pack(answer.log_offset, answer.nonce, answer.number) + _U16.pack(len(why)) + why, previous_chain
    )


def encode_verdicts(
    log_offset: int, nonce: bytes, number: int, verdicts: Verdicts, previous_chain: bytes
) -> tuple[bytes, bytes]:
    """Return (record bytes, chain) of the answer that these verdicts are, as `encode` does."""
    return _chained(KIND_ANSWER, _HEAD.pack(log_offset, nonce, number) + _answer_body(verdicts), previous_chain)


def _chained(kind: int, body: bytes, previous_chain: bytes) -> tuple[bytes, bytes]:
    chain = hashlib.blake2b(previous_chain + body, digest_size=CHAIN_BYTES).digest()
    return seal(MAGIC, VERSION, kind, body + chain), chain


def encode_announce(announce: Announce) -> bytes:
    """Return the record bytes of an announcement."""
    return seal(MAGIC, VERSION, KIND_ANNOUNCE, _U64.pack(announce.answers_from))


def decode(raw: bytes | None, what: str = "A record of verdicts") -> Answer | Rejected | Announce:
    """Return the answer in `raw`.

    Raises:
        FutureFormatError: written by a newer index.
        FormatError: not ours, or damaged.
    """
    kind, body = unseal(MAGIC, VERSION, raw, what)
    reader = Reader(body, what)
    if kind == KIND_ANNOUNCE:
        (answers_from,) = reader.unpack(_U64)
        reader.end()
        return Announce(answers_from)
    if kind == KIND_REJECTED:
        log_offset, nonce, number = _HEAD.unpack(reader.take(_HEAD.size))
        why = bytes(reader.take(reader.unpack(_U16)[0])).decode("utf-8", "replace")
        chain = bytes(reader.take(CHAIN_BYTES))
        reader.end()
        return Rejected(log_offset, nonce, number, why, chain)
    if kind == KIND_ANSWER:
        return _decode_answer(reader, what)
    raise FormatError(f"{what} is of kind {kind}, which no version of this program writes.")


def _answer_body(verdicts: Verdicts) -> bytes:
    named = verdicts.named
    parts = [
        _U32.pack(len(verdicts.reasons)),
        verdicts.reasons.tobytes(),
        verdicts.distances.tobytes(),
        verdicts.decided_offsets.astype("<u8").tobytes(),
        verdicts.decided_places.astype("<u4").tobytes(),
    ]
    table: dict[tuple[str, bytes, int], int] = {}
    sources = [table.setdefault(position[:3], len(table)) for position, _, _ in named]
    parts.append(_U16.pack(len(table)))
    for topic, topic_id, partition in table:
        name = topic.encode("utf-8")
        parts += (_U8.pack(len(name)), name, topic_id, _U32.pack(partition))
    size = len(named)
    parts += (
        np.fromiter(sources, "<u2", size).tobytes(),
        np.fromiter((position.offset for position, _, _ in named), "<i8", size).tobytes(),
        np.fromiter((time_ms for _, _, time_ms in named), "<i8", size).tobytes(),
        np.fromiter((len(identifier) for _, identifier, _ in named), "<u2", size).tobytes(),
    )
    parts += (identifier for _, identifier, _ in named)
    return b"".join(parts)


def _decode_answer(reader: Reader, what: str) -> Answer:
    log_offset, nonce, number = _HEAD.unpack(reader.take(_HEAD.size))
    (count,) = reader.unpack(_U32)
    reasons = bytes(reader.take(count))
    distances = bytes(reader.take(count))
    decided_offsets = _column(reader, "<u8", count)
    decided_places = _column(reader, "<u4", count)
    if not _REASONS.keys() >= set(reasons):
        raise FormatError(f"{what} holds a reason that no version of this program gives.")
    table = []
    for _ in range(reader.unpack(_U16)[0]):
        topic = reader.text(_U8)
        topic_id = bytes(reader.take(TOPIC_ID_BYTES))
        table.append((topic, topic_id, reader.unpack(_U32)[0]))
    named = sum(map(_NAMES_ANOTHER.__contains__, reasons))
    sources = _column(reader, "<u2", named)
    offsets = _column(reader, "<i8", named)
    times = _column(reader, "<i8", named)
    sizes = _column(reader, "<u2", named)
    if named and max(sources) >= len(table):
        raise FormatError(f"{what} names a source partition that it does not list.")
    ids = [bytes(reader.take(size)) for size in sizes]
    positions = [Position(*table[source], offset) for source, offset in zip(sources, offsets, strict=True)]
    representatives = map(_representative, zip(positions, ids, times, strict=True))
    judgements = tuple(_judgements(reasons, decided_offsets, decided_places, distances, representatives))
    chain = bytes(reader.take(CHAIN_BYTES))
    reader.end()
    assert len(nonce) == NONCE_BYTES  # noqa: S101 - the struct says so; this is for the reader of the code
    return Answer(log_offset, nonce, number, judgements, chain)


def _judgements(
    reasons: Iterable[int],
    decided_offsets: Iterable[int],
    decided_places: Iterable[int],
    distances: Iterable[int],
    named: Iterable[Representative],
) -> list[Judgement]:
    """Return columns as judgements; `named` are the representatives of the duplicates alone."""
    of = iter(named)
    named_or_none = [next(of) if reason in _NAMES_ANOTHER else None for reason in reasons]
    decided = map(_log_place, zip(decided_offsets, decided_places, strict=True))
    return list(map(_judgement, zip(map(_REASONS.__getitem__, reasons), decided, distances, named_or_none, strict=True)))


def _column(reader: Reader, form: str, count: int) -> list[int]:
    stored: np.dtype[np.generic] = np.dtype(form)
    column: NDArray[np.generic] = np.frombuffer(reader.take(stored.itemsize * count), dtype=stored)
    values: list[int] = column.tolist()
    return values
