"""Records on `verdicts`: the index's answers, in log order for each replica.

    record   := frame "SDAN", format 1, kind 1 (answer), 2 (rejected) or 3 (announce)
    answer   := log_offset(u64) nonce(16) number(u64) documents(u32)
                reason(u8) distance(u8) similarity(u8: of the two sketches in per cent, or 255 if
                none were compared) decided_offset(u64) decided_place(u32), each for all documents
                sources(u16) source*
                then columns for only the verdicts that name another document (duplicates, and new
                documents with a sibling): copies(u32) better(u8: the rule by which it beats all
                earlier copies, or 0) source(u16) offset(i64) time_ms(i64) id_bytes(u16);
                the ids of these other documents, concatenated; at the end chain(8)
    source   := topic(str8) topic_id(16) partition(u32)
    rejected := log_offset(u64) nonce(16) number(u64) why(str16) chain(8)
    announce := first_answered_offset(u64): this replica answers no record of the log before it

An answer is written in the format in force at its log record; the worker learns the format from it.
`FORMATS` contains the reader and writer of each format ever released.

Invariants: the bytes of an answer are a function of the log's prefix alone (no replica, no clock,
no batch size), so two replicas of one version send equal bytes. `chain`, the running digest, is a
keyless BLAKE2b-64 of the previous answer's chain and this answer's bytes, without the sentence of a
rejected one, so two replicas that differ once differ in every later answer. Answers are stored as
sent; a replica that restarts sends the stored bytes and does not judge again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from stream_dedup.domain.better_copy import BETTER_LABELS
from stream_dedup.domain.document import (
    NONCE_BYTES,
    TOPIC_ID_BYTES,
)
from stream_dedup.domain.errors import UPGRADE, FormatError, OtherFormatError
from stream_dedup.domain.lazy_sequences import sizes_between
from stream_dedup.log.record_frame import FIRST_FORMAT, Reader, framed, index_distinct, unframed
from stream_dedup.log.schema import (
    COLUMNS,
    IS_REASON,
    Judgement,
    NamedRepresentatives,
    Verdicts,
    naming_mask,
)

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
_ORIGIN = struct.Struct("<Q16sQ")


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
    """The index refused to judge the log record at `log_offset`; `why` is a sentence for the worker's
    operator.
    """

    log_offset: int
    nonce: bytes
    number: int
    why: str
    chain: bytes = CHAIN_START


@dataclass(frozen=True, slots=True)
class Announce:
    """The lowest log offset that this replica answers. A worker that waits for the answer to an older
    record appends that record again.
    """

    first_answered_offset: int


Answer: TypeAlias = LogAnswer | Rejected | Announce


def encode(
    answer: LogAnswer | Rejected, previous_chain: bytes, form: int = FIRST_FORMAT
) -> tuple[bytes, bytes]:
    """Return (record bytes in format `form`, chain) of an answer; `previous_chain` is the chain of
    the answer before it.
    """
    if isinstance(answer, LogAnswer):
        kind, body = KIND_ANSWER, FORMATS[form].answer_body(answer)
        digested = body
    else:
        kind, body = KIND_REJECTED, FORMATS[form].rejected_body(answer)
        # A version may word the sentence differently; its replica must not count as diverged.
        digested = FORMATS[form].rejected_body(replace(answer, why=""))
    chain = hashlib.blake2b(previous_chain + digested, digest_size=CHAIN_BYTES).digest()
    return framed(MAGIC, form, kind, body + chain), chain


def encode_announce(announce: Announce, form: int = FIRST_FORMAT) -> bytes:
    """Return the record bytes of an announcement, of the format `form`."""
    return framed(MAGIC, form, KIND_ANNOUNCE, _U64.pack(announce.first_answered_offset))


def decode(
    raw: bytes | None, record_name: str = "A record of verdicts", nonce: bytes | None = None
) -> Answer:
    """Return the answer in `raw`; errors begin with `record_name`. With the `nonce` of a worker,
    the judgements in answers to other workers are not decoded.

    Raises:
        OtherFormatError: the record is intact, but its format or kind is unknown; the role must
        stop.
        FormatError: not a record of stream_dedup, or damaged.
    """
    form, kind, body = unframed(MAGIC, FORMATS, raw, record_name)
    decoder = FORMATS[form].decoders.get(kind)
    if decoder is None:
        raise OtherFormatError(
            f"{record_name} has the kind {kind}, which this version does not know: {UPGRADE}"
        )
    if kind == KIND_ANSWER and nonce is not None and len(body) >= _ORIGIN.size + CHAIN_BYTES:
        log_offset, worker_nonce, number = _ORIGIN.unpack_from(body)
        if worker_nonce != nonce:
            return LogAnswer(log_offset, worker_nonce, number, (), bytes(body[-CHAIN_BYTES:]))
    return decoder(Reader(body, record_name), record_name)


def _decode_announce(reader: Reader, _: str) -> Announce:
    (first_answered_offset,) = reader.unpack(_U64)
    reader.end()
    return Announce(first_answered_offset)


def _rejected_body(answer: Rejected) -> bytes:
    why = answer.why.encode("utf-8")[:2000]
    return _ORIGIN.pack(answer.log_offset, answer.nonce, answer.number) + _U16.pack(len(why)) + why


def _decode_rejected(reader: Reader, _: str) -> Rejected:
    log_offset, nonce, number = _ORIGIN.unpack(reader.take(_ORIGIN.size))
    why = bytes(reader.take(reader.unpack(_U16)[0])).decode("utf-8", "replace")
    chain = bytes(reader.take(CHAIN_BYTES))
    reader.end()
    return Rejected(log_offset, nonce, number, why, chain)


def _answer_body(answer: LogAnswer) -> bytes:
    """Return the body of an answer, without its chain."""
    verdicts = Verdicts.of(answer.judgements)
    named, names_another = NamedRepresentatives.of(verdicts.named), verdicts.names_another
    distinct_sources, source_numbers = index_distinct(named.sources)
    columns = [
        getattr(verdicts, column.name).astype(column.stored)
        for column in COLUMNS
        if not column.named_only
    ]
    named_columns = [
        *(
            getattr(verdicts, column.name)[names_another].astype(column.stored)
            for column in COLUMNS
            if column.named_only
        ),
        source_numbers.astype("<u2"),
        named.offsets.astype("<i8"),
        named.times_ms.astype("<i8"),
        sizes_between(named.stops).astype("<u2"),
    ]
    return b"".join(
        (
            _ORIGIN.pack(answer.log_offset, answer.nonce, answer.number),
            _U32.pack(len(verdicts)),
            *(column.tobytes() for column in columns),
            _U16.pack(len(distinct_sources)),
            *(_encode_partition(named.partitions[source]) for source in distinct_sources.tolist()),
            *(column.tobytes() for column in named_columns),
            named.ids,
        )
    )


def _encode_partition(partition: tuple[str, bytes, int]) -> bytes:
    """Return the bytes of a `source`: (topic, topic id, partition)."""
    name = partition[0].encode("utf-8")
    return b"".join((_U8.pack(len(name)), name, partition[1], _U32.pack(partition[2])))


def _decode_answer(reader: Reader, record_name: str) -> LogAnswer:
    log_offset, nonce, number = _ORIGIN.unpack(reader.take(_ORIGIN.size))
    (count,) = reader.unpack(_U32)
    columns = {
        column.name: reader.column(column.kind, count)
        for column in COLUMNS
        if not column.named_only
    }
    if not IS_REASON[columns["reasons"]].all():
        raise OtherFormatError(
            f"{record_name} contains a reason that this version does not know: {UPGRADE}"
        )
    partitions = []
    for _ in range(reader.unpack(_U16)[0]):
        topic = reader.text(_U8)
        topic_id = bytes(reader.take(TOPIC_ID_BYTES))
        partitions.append((topic, topic_id, reader.unpack(_U32)[0]))
    is_naming = naming_mask(columns["reasons"], columns["similarity"])
    named_count = int(is_naming.sum())
    for column in COLUMNS:
        if column.named_only:
            values = columns[column.name] = np.full(count, column.empty, column.kind)
            values[is_naming] = reader.column(column.kind, named_count)
    if columns["better"].max(initial=0) >= len(BETTER_LABELS):
        raise OtherFormatError(
            f"{record_name} contains a rule for better copies that this version does not know: "
            f"{UPGRADE}"
        )
    sources = reader.column(np.uint16, named_count)
    offsets = reader.column(np.int64, named_count)
    times_ms = reader.column(np.int64, named_count)
    stops = np.cumsum(reader.column(np.uint16, named_count), dtype=np.int64)
    if named_count and sources.max() >= len(partitions):
        raise FormatError(f"{record_name} refers to a source partition that it does not list.")
    ids = bytes(reader.take(int(stops[-1]) if named_count else 0))
    chain = bytes(reader.take(CHAIN_BYTES))
    reader.end()
    assert len(nonce) == NONCE_BYTES  # noqa: S101 - documents what `_ORIGIN` ensures
    named = NamedRepresentatives(partitions, sources, offsets, times_ms, stops, ids)
    return LogAnswer(log_offset, nonce, number, Verdicts(named=named, **columns), chain)


class AnswerFormat(NamedTuple):
    """The decoders and encoders of one format. Once released they never change: a change is another
    format.
    """

    decoders: Mapping[int, Callable[[Reader, str], Answer]]
    answer_body: Callable[[LogAnswer], bytes]
    rejected_body: Callable[[Rejected], bytes]


FORMATS: Final[dict[int, AnswerFormat]] = {
    1: AnswerFormat(
        {
            KIND_ANSWER: _decode_answer,
            KIND_REJECTED: _decode_rejected,
            KIND_ANNOUNCE: _decode_announce,
        },
        _answer_body,
        _rejected_body,
    ),
}
"""The released formats by number; the numbers are those of the log's records."""
