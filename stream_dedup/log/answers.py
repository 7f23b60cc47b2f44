"""Records on `verdicts`: the index's answers, in log order for each replica.

    record   := frame "SDAN", format 1, kind 1 (answer), 2 (rejected) or 3 (announce)
    answer   := log_offset(u64) nonce(16) number(u64) documents(u32)
                reason(u8) distance(u8) similarity(u8: of the two sketches in per cent, or 255 if
                none were compared) decided_offset(u64) decided_place(u32), each for all documents
                sources(u16) source* then, only for verdicts that name another document (duplicates,
                and new documents with a sibling): copies(u32) better(u8: the rule by which it beats
                the best so far, or 0) source(u16) offset(i64) time_ms(i64) id_bytes(u16), as
                columns; their ids, concatenated; at the end chain(8)
    source   := topic(str8) topic_id(16) partition(u32)
    rejected := log_offset(u64) nonce(16) number(u64) why(str16) chain(8)
    announce := answers_from(u64): this replica answers no log offset below

An answer is written in the format in force at its log record, so the worker sees which one that is.
`FORMATS` contains the reader and writer of each format ever released.

Invariants: the bytes of an answer are a function of the log's prefix alone (no replica, no clock,
no batch size), so two replicas send equal bytes; `chain` is a keyless BLAKE2b-64 of the previous
answer's chain and this answer's bytes, so two replicas that differ once differ in every later
answer; answers are stored as sent, and sent again rather than judged again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.better import BETTER_LABELS
from stream_dedup.domain.document import (
    NONCE_BYTES,
    TOPIC_ID_BYTES,
    LogPlace,
    Position,
    Reason,
    Representative,
    Verdict,
    maker_of,
)
from stream_dedup.domain.errors import UPGRADE, FormatError, OtherFormatError
from stream_dedup.domain.lazy import Ids, Lazy, sizes_of
from stream_dedup.domain.sketch import NOT_COMPARED
from stream_dedup.log.frame import FIRST_FORMAT, Reader, framed, records_of, table_of, unframed

MAGIC = b"SDAN"
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
_NOTHING = np.zeros(1, np.int64)
# The columns of `Verdicts` with one value for each document.
VERDICT_COLUMNS = (
    "reasons",
    "distances",
    "decided_offsets",
    "decided_places",
    "similarity",
    "copies",
    "better",
)
_REASONS = {int(reason): reason for reason in Reason}
_IS_REASON = np.isin(np.arange(256), sorted(_REASONS))
_IS_DUPLICATE = np.isin(
    np.arange(256), [reason for reason in Reason if reason.verdict is Verdict.DUPLICATE]
)
_IS_OUTCOME = np.isin(np.arange(256), [reason for reason in Reason if reason.verdict is not None])


class Head(NamedTuple):
    """The log record that an answer belongs to: its offset, its worker's nonce and its number."""

    log_offset: int
    nonce: bytes
    number: int


class Judgement(NamedTuple):
    """The verdict on one document: the reason, the log place that decided it, and for a duplicate
    its distance (bits) and its representative `of`.

    For a new document that is kept only because of its site or title, `of` is its sibling.
    `similarity` is that of the two sketches in per cent, for near duplicates and siblings; otherwise
    `NOT_COMPARED`. For a duplicate, `copies` is the number of copies of its representative so far,
    including this one (0: the log does not count them), and `better` is the number of the
    `BetterRule` by which it beats the representative and every earlier copy, or 0.
    """

    reason: Reason
    decided: LogPlace
    distance: int = 0
    of: Representative | None = None
    similarity: int = NOT_COMPARED
    copies: int = 0
    better: int = 0

    @property
    def sibling(self) -> Representative | None:
        """The earliest representative of its site that is similar enough to be the original, were it
        not for site or title; None for a duplicate.
        """
        return self.of if self.reason is Reason.NEW else None

    @property
    def alike(self) -> float | None:
        """Similarity of both texts, 0 to 1; None without a representative or sibling, and where no
        sketches were compared.
        """
        if self.reason.has_same_text:
            return 1.0
        return None if self.similarity == NOT_COMPARED else self.similarity / 100


def _name_another(reasons: NDArray[np.uint8], similarity: NDArray[np.uint8]) -> NDArray[np.bool_]:
    has_sibling = (reasons == Reason.NEW) & (similarity != NOT_COMPARED)
    has_named: NDArray[np.bool_] = _IS_DUPLICATE[reasons] | has_sibling
    return has_named


_judgement, _log_place = maker_of(Judgement), maker_of(LogPlace)
_representative, _position = maker_of(Representative), maker_of(Position)


@dataclass(eq=False, repr=False, slots=True)
class NamedRepresentatives(Lazy[Representative]):
    """The representatives that an answer names, stored as columns; values are created on access.

    `partitions` are (topic, topic id, partition) in the order of their first use, and `sources` (n,)
    are indices into them. `offsets` and `times_ms` are (n,); the id of representative i is
    `ids[stops[i - 1] : stops[i]]`.
    """

    partitions: Sequence[tuple[str, bytes, int]]
    sources: NDArray[np.uint16] | NDArray[np.uint32]
    offsets: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    stops: NDArray[np.int64]
    ids: bytes

    @classmethod
    def of(cls, representatives: Sequence[Representative]) -> NamedRepresentatives:
        """Return representatives as columns."""
        if isinstance(representatives, NamedRepresentatives):
            return representatives
        table: dict[tuple[str, bytes, int], int] = {}
        count = len(representatives)
        sources = np.fromiter(
            (
                table.setdefault(representative.position[:3], len(table))
                for representative in representatives
            ),
            np.uint16,
            count,
        )
        offsets = np.fromiter(
            (representative.position.offset for representative in representatives), np.int64, count
        )
        times_ms = np.fromiter(
            (representative.time_ms for representative in representatives), np.int64, count
        )
        ids = [representative.id for representative in representatives]
        return cls(
            list(table),
            sources,
            offsets,
            times_ms,
            np.cumsum(list(map(len, ids)), dtype=np.int64),
            b"".join(ids),
        )

    @classmethod
    def joined(cls, parts: Sequence[NamedRepresentatives]) -> NamedRepresentatives:
        """Return the concatenation of `parts`; partitions are not merged."""
        if len(parts) == 1:
            return parts[0]
        partitions: list[tuple[str, bytes, int]] = []
        sources, stops, id_bytes = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)], 0
        for part in parts:
            sources.append(part.sources.astype(np.uint32) + np.uint32(len(partitions)))
            stops.append(part.stops + id_bytes)
            partitions += part.partitions
            id_bytes += len(part.ids)
        offsets = np.concatenate([np.zeros(0, np.int64), *(part.offsets for part in parts)])
        times_ms = np.concatenate([np.zeros(0, np.int64), *(part.times_ms for part in parts)])
        ids = b"".join(part.ids for part in parts)
        return cls(
            partitions, np.concatenate(sources), offsets, times_ms, np.concatenate(stops), ids
        )

    def part(self, first: int, end: int) -> NamedRepresentatives:
        """Return the representatives from `first` to before `end`, with their partitions only."""
        listed, sources = table_of(self.sources[first:end])
        first_byte, end_byte = (
            int(self.stops[first - 1]) if first else 0,
            int(self.stops[end - 1]) if end else 0,
        )
        return NamedRepresentatives(
            [self.partitions[number] for number in listed.tolist()],
            sources.astype(np.uint16),
            self.offsets[first:end],
            self.times_ms[first:end],
            self.stops[first:end] - first_byte,
            self.ids[first_byte:end_byte],
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def _item(self, place: int) -> Representative:
        position = Position(*self.partitions[int(self.sources[place])], int(self.offsets[place]))
        identifier = self.ids[self.stops[place - 1] if place else 0 : self.stops[place]]
        return Representative(position, identifier, int(self.times_ms[place]))

    def __iter__(self) -> Iterator[Representative]:  # by column, which is faster than by item
        partitions, offsets = (
            map(self.partitions.__getitem__, self.sources.tolist()),
            self.offsets.tolist(),
        )
        positions = map(
            _position,
            [(*partition, offset) for partition, offset in zip(partitions, offsets, strict=True)],
        )
        return map(
            _representative,
            zip(positions, Ids(self.ids, self.stops), self.times_ms.tolist(), strict=True),
        )


@dataclass(eq=False, repr=False, slots=True)
class Verdicts(Sequence[Judgement]):
    """The judgements on one log record as columns, (n,) each; `named` are the representatives of the
    duplicates and the siblings of new documents, in their order.

    The index judges in columns, and the worker writes from them: an object for each document would
    cost more than judging. The objects are created together on the first access.
    """

    reasons: NDArray[np.uint8]
    distances: NDArray[np.uint8]
    decided_offsets: NDArray[np.uint64]
    decided_places: NDArray[np.uint32]
    named: Sequence[Representative]
    similarity: NDArray[np.uint8]
    copies: NDArray[np.uint32]
    better: NDArray[np.uint8]
    _judgements: list[Judgement] | None = field(default=None, init=False)

    @classmethod
    def of_nothing(cls, count: int) -> Verdicts:
        """Return `count` empty verdicts: reason 0, no sketches compared, no copies counted."""
        small, compared = np.zeros(count, np.uint8), np.full(count, NOT_COMPARED, np.uint8)
        offsets, places = np.zeros(count, np.uint64), np.zeros(count, np.uint32)
        return cls(small, small.copy(), offsets, places, [], compared, places.copy(), small.copy())

    @classmethod
    def of(cls, judgements: Sequence[Judgement]) -> Verdicts:
        """Return judgements as columns."""
        if isinstance(judgements, Verdicts):
            return judgements
        count = len(judgements)
        return cls(
            np.fromiter((judgement.reason for judgement in judgements), np.uint8, count),
            np.fromiter((judgement.distance for judgement in judgements), np.uint8, count),
            np.fromiter((judgement.decided.offset for judgement in judgements), np.uint64, count),
            np.fromiter((judgement.decided.place for judgement in judgements), np.uint32, count),
            [judgement.of for judgement in judgements if judgement.of is not None],
            np.fromiter((judgement.similarity for judgement in judgements), np.uint8, count),
            np.fromiter((judgement.copies for judgement in judgements), np.uint32, count),
            np.fromiter((judgement.better for judgement in judgements), np.uint8, count),
        )

    @classmethod
    def joined(cls, parts: Sequence[Verdicts]) -> Verdicts:
        """Return the concatenation of the verdicts on some log records."""
        named = NamedRepresentatives.joined([NamedRepresentatives.of(part.named) for part in parts])
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in VERDICT_COLUMNS
        }
        return cls(named=named, **columns)

    def part(self, first: int, end: int) -> Verdicts:
        """Return the verdicts from `first` to before `end`."""
        names_another = self.names_another
        named_first, named_end = (
            int(np.count_nonzero(names_another[:first])),
            int(np.count_nonzero(names_another[:end])),
        )
        columns: dict[str, Any] = {name: getattr(self, name)[first:end] for name in VERDICT_COLUMNS}
        return Verdicts(
            named=NamedRepresentatives.of(self.named).part(named_first, named_end), **columns
        )

    @property
    def are_outcomes(self) -> NDArray[np.bool_]:
        """Mask of the verdicts that readers of the outputs see, (n,)."""
        return _IS_OUTCOME[self.reasons]

    @property
    def are_duplicates(self) -> NDArray[np.bool_]:
        """Mask of duplicates, (n,)."""
        return _IS_DUPLICATE[self.reasons]

    @property
    def names_another(self) -> NDArray[np.bool_]:
        """Mask of the verdicts that name another document, (n,): duplicates, and new documents with
        a sibling.
        """
        return _name_another(self.reasons, self.similarity)

    def judgements(self) -> list[Judgement]:
        """Return the judgements as objects."""
        if self._judgements is None:
            of = iter(self.named)
            reasons = self.reasons.tolist()
            names_another = self.names_another.tolist()
            named_or_none = [next(of) if is_naming else None for is_naming in names_another]
            decided = map(
                _log_place,
                zip(self.decided_offsets.tolist(), self.decided_places.tolist(), strict=True),
            )
            columns = (
                map(_REASONS.__getitem__, reasons),
                decided,
                self.distances.tolist(),
                named_or_none,
                self.similarity.tolist(),
                self.copies.tolist(),
                self.better.tolist(),
            )
            self._judgements = list(map(_judgement, zip(*columns, strict=True)))
        return self._judgements

    def __len__(self) -> int:
        return len(self.reasons)

    @overload
    def __getitem__(self, index: int) -> Judgement: ...
    @overload
    def __getitem__(self, index: slice) -> list[Judgement]: ...
    def __getitem__(self, index: int | slice) -> Judgement | list[Judgement]:
        return self.judgements()[index]

    def __iter__(self) -> Iterator[Judgement]:
        return iter(self.judgements())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.judgements() == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """The judgements on one log record, in the order of its documents."""

    log_offset: int
    nonce: bytes
    number: int
    judgements: Sequence[Judgement]
    chain: bytes = CHAIN_START


@dataclass(frozen=True, slots=True)
class Rejected:
    """The refusal to judge the log record at `log_offset`; `why` is a sentence for the worker's
    operator.
    """

    log_offset: int
    nonce: bytes
    number: int
    why: str
    chain: bytes = CHAIN_START


@dataclass(frozen=True, slots=True)
class Announce:
    """The lowest log offset that this replica answers; a worker that waits for an older one appends
    again.
    """

    answers_from: int


Answer: TypeAlias = LogAnswer | Rejected | Announce


def encode(
    answer: LogAnswer | Rejected, previous_chain: bytes, form: int = FIRST_FORMAT
) -> tuple[bytes, bytes]:
    """Return (record bytes in format `form`, chain) of an answer; `previous_chain` is the chain of
    the answer before it.
    """
    if isinstance(answer, LogAnswer):
        verdicts, head = (
            Verdicts.of(answer.judgements),
            Head(answer.log_offset, answer.nonce, answer.number),
        )
        return encode_verdicts([head], verdicts, [len(verdicts)], previous_chain, form)[0]
    body = FORMATS[form].rejected_body(answer)
    return _chained(form, KIND_REJECTED, body, previous_chain)


def encode_verdicts(
    heads: Sequence[Head],
    verdicts: Verdicts,
    ends: Sequence[int],
    previous_chain: bytes,
    form: int = FIRST_FORMAT,
) -> list[tuple[bytes, bytes]]:
    """Return (record bytes, chain) of the answers to consecutive log records, as `encode` does.

    `verdicts` are those on all their documents; `ends` (records,) are the ends of each record's
    verdicts.
    """
    encoded = []
    for body in FORMATS[form].answer_bodies(heads, verdicts, np.array(ends, np.int64)):
        encoded.append(_chained(form, KIND_ANSWER, body, previous_chain))
        previous_chain = encoded[-1][1]
    return encoded


def _chained(form: int, kind: int, body: bytes, previous_chain: bytes) -> tuple[bytes, bytes]:
    chain = hashlib.blake2b(previous_chain + body, digest_size=CHAIN_BYTES).digest()
    return framed(MAGIC, form, kind, body + chain), chain


def encode_announce(announce: Announce, form: int = FIRST_FORMAT) -> bytes:
    """Return the record bytes of an announcement, of the format `form`."""
    return framed(MAGIC, form, KIND_ANNOUNCE, _U64.pack(announce.answers_from))


def decode(
    raw: bytes | None, what: str = "A record of verdicts", nonce: bytes | None = None
) -> Answer:
    """Return the answer in `raw`; `what` names the record in errors. With `nonce`, the judgements of
    answers to other workers are not decoded.

    Raises:
        OtherFormatError: the record is intact, but its format or kind is unknown; the role must
        stop.
        FormatError: not a record of stream_dedup, or damaged.
    """
    form, kind, body = unframed(MAGIC, FORMATS, raw, what)
    decoder = FORMATS[form].decoders.get(kind)
    if decoder is None:
        raise OtherFormatError(
            f"{what} is of kind {kind}, which this program does not know: {UPGRADE}"
        )
    if kind == KIND_ANSWER and nonce is not None and len(body) >= _HEAD.size + CHAIN_BYTES:
        log_offset, asked_by, number = _HEAD.unpack_from(body)
        if asked_by != nonce:
            return LogAnswer(log_offset, asked_by, number, (), bytes(body[-CHAIN_BYTES:]))
    return decoder(Reader(body, what), what)


def _decode_announce(reader: Reader, _: str) -> Announce:
    (answers_from,) = reader.unpack(_U64)
    reader.end()
    return Announce(answers_from)


def _rejected_body(answer: Rejected) -> bytes:
    why = answer.why.encode("utf-8")[:2000]
    return _HEAD.pack(answer.log_offset, answer.nonce, answer.number) + _U16.pack(len(why)) + why


def _decode_rejected(reader: Reader, _: str) -> Rejected:
    log_offset, nonce, number = _HEAD.unpack(reader.take(_HEAD.size))
    why = bytes(reader.take(reader.unpack(_U16)[0])).decode("utf-8", "replace")
    chain = bytes(reader.take(CHAIN_BYTES))
    reader.end()
    return Rejected(log_offset, nonce, number, why, chain)


def _answer_bodies(
    heads: Sequence[Head], verdicts: Verdicts, ends: NDArray[np.int64]
) -> list[bytes]:
    named, naming = NamedRepresentatives.of(verdicts.named), verdicts.names_another
    records = np.arange(len(ends))
    named_ends = _starts(naming)[ends]
    of_record = np.repeat(records, sizes_of(named_ends))
    # Each record has its own table of partitions, so (record, partition) pairs are numbered.
    partitions = max(1, len(named.partitions))
    listed, places = table_of(of_record * partitions + named.sources)
    table_ends = np.searchsorted(listed, (records + 1) * partitions)
    table_sizes = sizes_of(table_ends)
    names = list(map(_partition_name, named.partitions))
    tables = [names[source] for source in (listed % partitions).tolist()]
    document_columns = (
        verdicts.reasons,
        verdicts.distances,
        verdicts.similarity,
        verdicts.decided_offsets.astype("<u8"),
        verdicts.decided_places.astype("<u4"),
    )
    named_columns = (
        verdicts.copies[naming].astype("<u4"),
        verdicts.better[naming],
        (places - (table_ends - table_sizes)[of_record]).astype("<u2"),
        named.offsets.astype("<i8"),
        named.times_ms.astype("<i8"),
        sizes_of(named.stops).astype("<u2"),
    )
    counts = zip(heads, sizes_of(ends).tolist(), strict=True)
    return records_of(
        [
            (
                b"".join([_HEAD.pack(*head) + _U32.pack(count) for head, count in counts]),
                (records + 1) * (_HEAD.size + 4),
            ),
            *((column.tobytes(), ends * column.itemsize) for column in document_columns),
            (table_sizes.astype("<u2").tobytes(), (records + 1) * 2),
            (b"".join(tables), _starts(list(map(len, tables)))[table_ends]),
            *((column.tobytes(), named_ends * column.itemsize) for column in named_columns),
            (named.ids, np.concatenate([_NOTHING, named.stops])[named_ends]),
        ]
    )


def _partition_name(partition: tuple[str, bytes, int]) -> bytes:
    name = partition[0].encode("utf-8")
    return b"".join((_U8.pack(len(name)), name, partition[1], _U32.pack(partition[2])))


def _starts(sizes: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
    """Return the start of each of n parts and the end of the last, (n + 1,)."""
    return np.concatenate([_NOTHING, np.cumsum(sizes, dtype=np.int64)])


def _decode_answer(reader: Reader, what: str) -> LogAnswer:
    log_offset, nonce, number = _HEAD.unpack(reader.take(_HEAD.size))
    (count,) = reader.unpack(_U32)
    reasons = reader.column(np.uint8, count)
    distances = reader.column(np.uint8, count)
    similarity = reader.column(np.uint8, count)
    decided_offsets = reader.column(np.uint64, count)
    decided_places = reader.column(np.uint32, count)
    if not _IS_REASON[reasons].all():
        raise OtherFormatError(f"{what} gives a reason that this program does not know: {UPGRADE}")
    table = []
    for _ in range(reader.unpack(_U16)[0]):
        topic = reader.text(_U8)
        topic_id = bytes(reader.take(TOPIC_ID_BYTES))
        table.append((topic, topic_id, reader.unpack(_U32)[0]))
    is_naming = _name_another(reasons, similarity)
    named_count = int(is_naming.sum())
    copies, better = np.zeros(count, np.uint32), np.zeros(count, np.uint8)
    copies[is_naming] = reader.column(np.uint32, named_count)
    better[is_naming] = reader.column(np.uint8, named_count)
    if better.max(initial=0) >= len(BETTER_LABELS):
        raise OtherFormatError(
            f"{what} names a rule of what is better that this program does not know: {UPGRADE}"
        )
    sources = reader.column(np.uint16, named_count)
    offsets = reader.column(np.int64, named_count)
    times_ms = reader.column(np.int64, named_count)
    stops = np.cumsum(reader.column(np.uint16, named_count), dtype=np.int64)
    if named_count and sources.max() >= len(table):
        raise FormatError(f"{what} names a source partition that it does not list.")
    ids = bytes(reader.take(int(stops[-1]) if named_count else 0))
    chain = bytes(reader.take(CHAIN_BYTES))
    reader.end()
    assert len(nonce) == NONCE_BYTES  # noqa: S101 - the struct says so; this is for the reader of the code
    named = NamedRepresentatives(table, sources, offsets, times_ms, stops, ids)
    return LogAnswer(
        log_offset,
        nonce,
        number,
        Verdicts(
            reasons, distances, decided_offsets, decided_places, named, similarity, copies, better
        ),
        chain,
    )


class AnswerFormat(NamedTuple):
    """The decoders and encoders of one format. Once released they never change: a change is another
    format.
    """

    decoders: Mapping[int, Callable[[Reader, str], Answer]]
    answer_bodies: Callable[[Sequence[Head], Verdicts, NDArray[np.int64]], list[bytes]]
    rejected_body: Callable[[Rejected], bytes]


FORMATS: Final[dict[int, AnswerFormat]] = {
    1: AnswerFormat(
        {
            KIND_ANSWER: _decode_answer,
            KIND_REJECTED: _decode_rejected,
            KIND_ANNOUNCE: _decode_announce,
        },
        _answer_bodies,
        _rejected_body,
    ),
}
"""The released formats by number; the numbers are those of the log's records."""
