"""Build the output record of each decided record: topic, headers, and the counts for the metrics.

Invariants: key, value bytes, timestamp and foreign headers are passed on unchanged; the output
partition is the source partition, so order within a partition is kept; a record is written to
exactly one of the three topics. The one exception: a dead letter that is too large for its topic is
truncated (`fit`), and headers report the removed parts.

Nearly all records were judged by the index and have no foreign headers; these are written from
columns. The others are built one by one (`EmittedBatch.__getitem__`), which defines the result for
all; a test compares the two.

A dead letter that is too large is truncated in these steps. If there are more headers than can be
read together with ours (`headers.FOREIGN_HEADERS_MAX`), the largest are removed. If key and headers
alone are too large, the key is cut to a quarter of the space, and headers are removed, the largest
first, until key and headers take at most half of it. The value gets the remaining space. Sizes are
uncompressed (`headers.record_bytes`), so a dead letter fits with every codec.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import (
    DeadLetter,
    Headers,
    Message,
    Mode,
    Position,
    Reason,
    UnreadableHeaders,
    Verdict,
)
from stream_dedup.domain.errors import InvariantError
from stream_dedup.domain.lazy_sequences import Item, Lazy
from stream_dedup.domain.messages import NO_TIMESTAMP, Messages
from stream_dedup.domain.sketch import NOT_COMPARED
from stream_dedup.kafka import Output, PackedOutputs, RecordColumns, warm_up_writer
from stream_dedup.log import headers
from stream_dedup.log.header_columns import SourcePlaces, of_verdicts
from stream_dedup.log.schema import COLUMNS, Judgement, NamedRepresentatives, Verdicts
from stream_dedup.worker.prepare import Decision, InFlight


class Fitted(NamedTuple):
    """A truncated record, and our headers that report the removed parts."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    error_headers: Headers


def fit(message: Message, bytes_max: int) -> Fitted:
    """Truncate a record to `bytes_max`, including our headers of a dead letter."""
    key, value = message.key, message.value
    foreign = _drop_largest(message.headers, sys.maxsize)
    error_headers: Headers = []
    if headers.record_bytes(key, None, foreign) > bytes_max:
        available_bytes = max(0, bytes_max - headers.record_bytes(None, None, []))
        if key is not None and len(key) > available_bytes // 4:
            error_headers.append((headers.ERROR_KEY_TRUNCATED, b"%d" % len(key)))
            key = key[: available_bytes // 4]
        foreign = _drop_largest(foreign, available_bytes // 2 - len(key or b""))
    if len(foreign) < len(message.headers):
        error_headers.append(
            (headers.ERROR_HEADERS_DROPPED, b"%d" % (len(message.headers) - len(foreign)))
        )
    excess_bytes = headers.record_bytes(key, value, foreign) - bytes_max
    if value and excess_bytes > 0:
        error_headers.append((headers.ERROR_TRUNCATED, b"%d" % len(value)))
        value = value[: max(0, len(value) - excess_bytes)]
    return Fitted(key, value, foreign, error_headers)


def _drop_largest(foreign: Headers, bytes_max: int) -> Headers:
    """Return the headers in their order without the largest, so that the others fit into
    `bytes_max` and can be read.
    """
    sizes = [headers.header_bytes(*header) for header in foreign]
    total = sum(sizes)
    dropped: set[int] = set()
    for index in sorted(range(len(foreign)), key=sizes.__getitem__, reverse=True):
        if total <= bytes_max and len(foreign) - len(dropped) <= headers.FOREIGN_HEADERS_MAX:
            break
        total -= sizes[index]
        dropped.add(index)
    return [header for index, header in enumerate(foreign) if index not in dropped]


_REFUSED = DeadLetter(
    "size",
    "Refused",
    "When this record was first judged, an output topic refused it, or reading its page took too "
    "long; it was retracted and represents no other document. See max.message.bytes and the timestamp "
    "bounds of the output topics.",
)


class EmittedRecord(NamedTuple):
    """An output record, its source record, and the decision on it."""

    output: Output
    message: Message
    decision: Decision

    @property
    def is_judged(self) -> bool:
        """Whether the index judged it, so that it can be retracted in the log."""
        return isinstance(self.decision, Judgement)


_REASON_COUNT = max(Reason) + 1


class EmittedCounts(NamedTuple):
    """Counts of the records written: documents and bytes of values by reason number; dead letters
    by stage.

    `distances` has one value per duplicate, `similarities` (0 to 1) one per duplicate whose sketches
    were compared, `timestamps_ms` one per record that has a timestamp; none of them is ordered.
    """

    documents: NDArray[np.int64]
    bytes: NDArray[np.int64]
    stages: Counter[str]
    distances: NDArray[np.int64]
    similarities: NDArray[np.float64]
    timestamps_ms: NDArray[np.int64]

    @classmethod
    def of(cls, emitted: Iterable[EmittedRecord]) -> EmittedCounts:
        """Count records one by one."""
        documents, sizes, stages = [0] * _REASON_COUNT, [0] * _REASON_COUNT, Counter[str]()
        distances, similarities_percent, timestamps_ms = [], [], []
        for _, message, decision in emitted:
            if message.timestamp_ms is not None:
                timestamps_ms.append(message.timestamp_ms)
            if isinstance(decision, DeadLetter):
                stages[decision.stage] += 1
                continue
            reason = decision.reason if isinstance(decision, Judgement) else decision
            if isinstance(decision, Judgement) and decision.reason.verdict is Verdict.DUPLICATE:
                distances.append(decision.distance)
                similarities_percent.append(decision.similarity)
            documents[reason] += 1
            sizes[reason] += len(message.value or b"")
        return cls(
            documents=np.array(documents),
            bytes=np.array(sizes),
            stages=stages,
            distances=np.array(distances, np.int64),
            similarities=_as_shares(np.array(similarities_percent, np.uint8)),
            timestamps_ms=np.array(timestamps_ms, np.int64),
        )


def _as_shares(percents: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return similarities from 0 to 1, without those of documents whose sketches were not
    compared.
    """
    shares: NDArray[np.float64] = percents[percents != NOT_COMPARED] / 100
    return shares


def warm_up() -> None:
    """Load the kernels that write records, so that the first records do not wait for them."""
    no_places = SourcePlaces("", np.zeros(0, np.int32), np.zeros(0, np.int64))
    no_fingerprints = np.zeros((0, 0), np.uint8)
    of_verdicts("", no_places, no_fingerprints, Verdicts.of([]), np.zeros(0, np.bool_))
    warm_up_writer()


class OutputWriter:
    """Builds the output records: topic and headers.

    `unique`, `duplicates` and `dead` are topic names. In mode `annotate` duplicates are written to
    `unique` too; in mode `shadow` the records are only counted.
    """

    def __init__(
        self,
        unique: str,
        duplicates: str,
        dead: str,
        group: str,
        recipe: str,
        dead_bytes_max: int,
        mode: Mode = Mode.ENFORCE,
    ) -> None:
        self._unique = unique
        self._duplicates = unique if mode is Mode.ANNOTATE else duplicates
        self._dead = dead
        self._group = group
        self._recipe = recipe
        self._dead_bytes_max = dead_bytes_max

    def of(self, *batches: InFlight) -> EmittedBatch:
        """Return the output records of batches whose records are all decided, in the order read.

        Raises:
            InvariantError: on access to a record without a verdict, or with one that is not an
            outcome.
        """
        topics = (self._unique, self._duplicates)
        return EmittedBatch(batches, self._emit, self._recipe, topics)

    def _emit(
        self, message: Message, decision: Decision | None, fingerprint: bytes | None
    ) -> EmittedRecord:
        output, outcome = self._build_output(message, decision, fingerprint)
        return EmittedRecord(output, message, outcome)

    def _build_output(
        self, message: Message, decision: Decision | None, fingerprint: bytes | None
    ) -> tuple[Output, Decision]:
        source_headers = headers.escape_source_headers(message.headers) if message.headers else []
        position = Position(message.topic, b"", message.partition, message.offset)
        if isinstance(decision, Judgement):
            if decision.reason is Reason.RETRACTED:
                return self._build_dead_letter(message, position, _REFUSED), _REFUSED
            output_headers = headers.of_verdict(position, self._recipe, fingerprint, decision)
            topic = (
                self._duplicates if decision.reason.verdict is Verdict.DUPLICATE else self._unique
            )
        elif isinstance(decision, Reason):
            output_headers = headers.of_verdict(position, self._recipe, None, decision)
            topic = self._unique
        elif decision is not None:
            return self._build_dead_letter(message, position, decision), decision
        else:
            raise InvariantError(
                f"The record {message.position} has no verdict, so it cannot be written."
            )
        if source_headers:
            output_headers = source_headers + output_headers
        return Output(
            topic,
            message.partition,
            message.key,
            message.value,
            message.timestamp_ms,
            output_headers,
        ), decision

    def _build_dead_letter(
        self, message: Message, position: Position, letter: DeadLetter
    ) -> Output:
        error_headers = headers.of_dead_letter(letter, position, self._group, message.timestamp_ms)
        if isinstance(message, UnreadableHeaders):
            error_headers.append((headers.ERROR_HEADERS_UNREADABLE, message.name.encode()))
        fitted = fit(message, self._dead_bytes_max)
        output_headers = (
            headers.escape_source_headers(fitted.headers) + error_headers + fitted.error_headers
        )
        return Output(
            self._dead,
            message.partition,
            fitted.key,
            fitted.value,
            message.timestamp_ms,
            output_headers,
        )


class _EmittedColumns(Lazy[Output], PackedOutputs):
    """The output records of an emitted batch."""

    def __init__(self, emitted: EmittedBatch) -> None:
        self._emitted = emitted

    def __len__(self) -> int:
        return len(self._emitted)

    def _item(self, place: int) -> Output:
        return self._emitted[place].output

    @property
    def columns(self) -> RecordColumns:
        return self._emitted.columns


class EmittedBatch(Lazy[EmittedRecord]):
    """The output records of some batches: `columns` for most of them, and single records that are
    built on access.

    `topics` are the topics of unique documents and of duplicates.
    """

    def __init__(
        self,
        batches: Sequence[InFlight],
        emit: Callable[[Message, Decision | None, bytes | None], EmittedRecord],
        recipe: str,
        topics: tuple[str, str],
    ) -> None:
        self._batches = batches
        self._emit = emit
        self._recipe = recipe
        self._topics = topics
        # The records of a partition that was lost meanwhile are not written.
        self._rows = [_live_rows(batch) for batch in batches]
        self._built: dict[int, EmittedRecord] = {}
        self._count = sum(map(len, self._rows))

    def __len__(self) -> int:
        return self._count

    @property
    def outputs(self) -> PackedOutputs:
        """The records to write."""
        return _EmittedColumns(self)

    @cached_property
    def columns(self) -> RecordColumns:
        """All records as columns, with headers for those that are `packed`: the index judged them,
        and they have no foreign headers.
        """
        messages, prints, verdicts = self._messages, self._prints, self._verdicts
        packed = verdicts.are_outcomes
        packed[list(messages.headers)] = False
        digit_count = next((len(fingerprint) for fingerprint in prints if fingerprint), 0)
        blank = bytes(digit_count)
        fingerprint_digits = np.frombuffer(
            b"".join([fingerprint or blank for fingerprint in prints]), np.uint8
        ).reshape(len(messages), digit_count)
        return RecordColumns(
            topics=self._topics,
            topic_numbers=verdicts.are_duplicates.astype(np.uint8),
            partitions=messages.partitions,
            keys=messages.keys,
            values=messages.values,
            timestamps_ms=messages.timestamps_ms,
            headers=of_verdicts(
                self._recipe,
                SourcePlaces(messages.topic, messages.partitions, messages.offsets),
                fingerprint_digits,
                verdicts,
                packed,
            ),
            packed=packed,
        )

    def counts(self) -> EmittedCounts:
        """Count the records by outcome."""
        columns, verdicts = self.columns, self._verdicts
        single = EmittedCounts.of(self[place] for place in np.flatnonzero(~columns.packed).tolist())
        reasons = verdicts.reasons[columns.packed]
        sizes = self._messages.value_bytes[columns.packed]
        duplicates = columns.packed & verdicts.are_duplicates
        similarities = _as_shares(verdicts.similarity[duplicates])
        times = self._messages.timestamps_ms
        return EmittedCounts(
            documents=single.documents + np.bincount(reasons, minlength=_REASON_COUNT),
            bytes=single.bytes + np.bincount(reasons, sizes, _REASON_COUNT).astype(np.int64),
            stages=single.stages,
            distances=np.concatenate([single.distances, verdicts.distances[duplicates]]),
            similarities=np.concatenate([single.similarities, similarities]),
            timestamps_ms=times[times != NO_TIMESTAMP],
        )

    @cached_property
    def _messages(self) -> Messages:
        return Messages.joined(
            [
                batch.messages
                if len(rows) == len(batch.messages)
                else Messages.of([batch.messages[row] for row in rows])
                for batch, rows in zip(self._batches, self._rows, strict=True)
            ]
        )

    @cached_property
    def _prints(self) -> list[bytes | None]:
        return self._collect_live(lambda batch: batch.prints)

    @cached_property
    def _decisions(self) -> list[Decision | None]:
        return self._collect_live(lambda batch: batch.decisions())

    def _collect_live(self, column_of: Callable[[InFlight], Sequence[Item]]) -> list[Item]:
        """Return a column of all batches, without the records of lost partitions."""
        collected: list[Item] = []
        for batch, rows in zip(self._batches, self._rows, strict=True):
            items = column_of(batch)
            collected += items if len(rows) == len(items) else [items[row] for row in rows]
        return collected

    @cached_property
    def _verdicts(self) -> Verdicts:
        """The index's verdicts on all records; the reason is 0 for a record without one."""
        verdicts = [
            _verdicts_of(batch, len(rows))
            for batch, rows in zip(self._batches, self._rows, strict=True)
        ]
        return verdicts[0] if len(verdicts) == 1 else Verdicts.joined(verdicts)

    def _item(self, place: int) -> EmittedRecord:
        record = self._built.get(place)
        if record is None:
            record = self._emit(self._messages[place], self._decisions[place], self._prints[place])
            self._built[place] = record
        return record


def _live_rows(batch: InFlight) -> Sequence[int]:
    """Return the rows of a batch whose partitions this worker still owns."""
    rows = range(len(batch.messages))
    return (
        rows
        if batch.is_whole
        else np.flatnonzero(batch.messages.are_from(batch.live_partitions)).tolist()
    )


def _verdicts_of(batch: InFlight, count: int) -> Verdicts:
    """Return the index's verdicts on a batch of which `count` records are written.

    If that is not the whole batch, return empty verdicts: its records are built one by one.
    """
    verdicts = Verdicts.of_nothing(count)
    if count < len(batch.messages):
        return verdicts
    parts = [(part.rows, part.verdicts) for part in batch.parts if part.verdicts is not None]
    for places, part_verdicts in parts:
        for column in COLUMNS:
            getattr(verdicts, column.name)[places] = getattr(part_verdicts, column.name)
    verdicts.named = NamedRepresentatives.joined(
        [NamedRepresentatives.of(part_verdicts.named) for _, part_verdicts in parts]
    )
    return verdicts
