"""A decided record becomes the record that leaves: topic, headers, and what the metrics count.

Invariants: key, value bytes, timestamp and foreign headers leave as they came; the output partition
is the source partition, so order within a partition is kept; a record leaves on exactly one of the
three topics. The one exception to "as they came": a dead letter that its topic could not hold is
cut (`fit`), and headers say what of it.

What the index judged and came without headers, nearly all there is, lies in columns and is written
from there; what leaves of it is by definition what the long way says of one record
(`Leavings.__getitem__`), and a test compares them.

What a dead letter holds when its topic cannot hold all of its record, in this order. Of more
headers than can be read with ours (`headers.FOREIGN_HEADERS_MAX`) the largest are left out. If key
and headers alone are too large, the key is cut to a quarter of the room, and headers are left out,
the largest first, until key and headers take no more than half of it. The value gets what is left.
Sizes are those of `headers.record_bytes`, uncompressed, so no codec or broker makes a letter
larger.
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
from stream_dedup.domain.lazy import Item, Lazy
from stream_dedup.domain.messages import NO_TIMESTAMP, Messages
from stream_dedup.domain.sketch import NOT_COMPARED
from stream_dedup.kafka import Output, PackedOutputs, RecordColumns, warm_up_writer
from stream_dedup.log import headers
from stream_dedup.log.answers import VERDICT_COLUMNS, Judgement, NamedRepresentatives, Verdicts
from stream_dedup.log.header_columns import SourcePlaces, of_verdicts
from stream_dedup.worker.prepare import Decided, InFlight


class Fitted(NamedTuple):
    """What is left of a record, and our headers that say what is not."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    said: Headers


def fit(message: Message, most: int) -> Fitted:
    """Return what of a record fits into `most` bytes with our headers of a dead letter."""
    key, value = message.key, message.value
    kept = _smallest(message.headers, sys.maxsize)
    said: Headers = []
    if headers.record_bytes(key, None, kept) > most:
        room = max(0, most - headers.record_bytes(None, None, []))
        if key is not None and len(key) > room // 4:
            said.append((headers.ERROR_KEY_TRUNCATED, b"%d" % len(key)))
            key = key[: room // 4]
        kept = _smallest(kept, room // 2 - len(key or b""))
    if len(kept) < len(message.headers):
        said.append((headers.ERROR_HEADERS_DROPPED, b"%d" % (len(message.headers) - len(kept))))
    over = headers.record_bytes(key, value, kept) - most
    if value and over > 0:
        said.append((headers.ERROR_TRUNCATED, b"%d" % len(value)))
        value = value[: max(0, len(value) - over)]
    return Fitted(key, value, kept, said)


def _smallest(given: Headers, room: int) -> Headers:
    """Return the headers that are left, in their order, when the largest are left out until the
    others fit and can be read.
    """
    sizes = [headers.header_bytes(*one) for one in given]
    total = sum(sizes)
    left_out: set[int] = set()
    for at in sorted(range(len(given)), key=sizes.__getitem__, reverse=True):
        if total <= room and len(given) - len(left_out) <= headers.FOREIGN_HEADERS_MAX:
            break
        total -= sizes[at]
        left_out.add(at)
    return [one for at, one in enumerate(given) if at not in left_out]


_REFUSED = DeadLetter(
    "size",
    "Refused",
    "When this record was first judged, an output topic refused it, or its page took too long; it "
    "was retracted and represents "
    "no other document. See max.message.bytes and the timestamp bounds of the output topics.",
)


class EmittedRecord(NamedTuple):
    """One record to write, the record it came from, and why it leaves the way it does."""

    output: Output
    message: Message
    decided: Decided

    @property
    def is_judged(self) -> bool:
        """Whether the log knows it, so that it can be retracted."""
        return isinstance(self.decided, Judgement)


_REASONS = max(Reason) + 1


class EmittedCounts(NamedTuple):
    """What left, in numbers: documents and bytes of values by number of the reason; dead letters by
    stage.

    `distances` (duplicates,), `similarities` (duplicates whose sketches were compared, 0 to 1) and
    `timestamps_ms` (records that have one,) are in no order.
    """

    documents: NDArray[np.int64]
    bytes: NDArray[np.int64]
    stages: Counter[str]
    distances: NDArray[np.int64]
    similarities: NDArray[np.float64]
    timestamps_ms: NDArray[np.int64]

    @classmethod
    def of(cls, leaving: Iterable[EmittedRecord]) -> EmittedCounts:
        """Count records one by one."""
        documents, sizes, stages = [0] * _REASONS, [0] * _REASONS, Counter[str]()
        distances, similarity, timestamps_ms = [], [], []
        for _, message, decided in leaving:
            if message.timestamp_ms is not None:
                timestamps_ms.append(message.timestamp_ms)
            if isinstance(decided, DeadLetter):
                stages[decided.stage] += 1
                continue
            reason = decided.reason if isinstance(decided, Judgement) else decided
            if isinstance(decided, Judgement) and decided.reason.verdict is Verdict.DUPLICATE:
                distances.append(decided.distance)
                similarity.append(decided.similarity)
            documents[reason] += 1
            sizes[reason] += len(message.value or b"")
        return cls(
            np.array(documents),
            np.array(sizes),
            stages,
            np.array(distances, np.int64),
            _similarities(np.array(similarity, np.uint8)),
            np.array(timestamps_ms, np.int64),
        )


def _similarities(similarity: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the similarities, as shares, of those whose sketches were compared, given in per
    cent.
    """
    similarities: NDArray[np.float64] = similarity[similarity != NOT_COMPARED] / 100
    return similarities


def warm_up() -> None:
    """Load what writes records, so that the first ones need not wait for it."""
    nowhere = SourcePlaces("", np.zeros(0, np.int32), np.zeros(0, np.int64))
    of_verdicts("", nowhere, np.zeros((0, 0), np.uint8), Verdicts.of([]), np.zeros(0, np.bool_))
    warm_up_writer()


class OutputWriter:
    """Writes the headers, and says where each record goes.

    `unique`, `duplicates` and `dead` are names of topics; in mode `annotate` duplicates go to
    `unique` too. What leaves in mode `shadow` is for the metrics: nobody writes it.
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
        """Return what leaves for batches whose records are all decided, in the order in which they
        were read.

        Raises:
            InvariantError: when it is asked for: a record has no verdict, or one that is no
            outcome.
        """
        topics = (self._unique, self._duplicates)
        return EmittedBatch(batches, self._leaving, self._recipe, topics)

    def _leaving(
        self, message: Message, decided: Decided | None, fingerprint: bytes | None
    ) -> EmittedRecord:
        output, outcome = self._output(message, decided, fingerprint)
        return EmittedRecord(output, message, outcome)

    def _output(
        self, message: Message, decided: Decided | None, fingerprint: bytes | None
    ) -> tuple[Output, Decided]:
        passed = headers.passed_on(message.headers) if message.headers else []
        position = Position(message.topic, b"", message.partition, message.offset)
        if isinstance(decided, Judgement):
            reason, place, distance, of, *told = decided
            if reason is Reason.RETRACTED:
                return self._dead_letter(message, position, _REFUSED), _REFUSED
            own = headers.of_verdict(
                position, reason, self._recipe, fingerprint, place, distance, of, *told
            )
            topic = self._duplicates if reason.verdict is Verdict.DUPLICATE else self._unique
        elif isinstance(decided, Reason):
            own = headers.of_verdict(position, decided, self._recipe, None, None)
            topic = self._unique
        elif decided is not None:
            return self._dead_letter(message, position, decided), decided
        else:
            raise InvariantError(f"The record {message.at} is to be written without a verdict.")
        if passed:
            own = passed + own
        return Output(
            topic, message.partition, message.key, message.value, message.timestamp_ms, own
        ), decided

    def _dead_letter(self, message: Message, position: Position, letter: DeadLetter) -> Output:
        own = headers.of_dead_letter(letter, position, self._group, message.timestamp_ms)
        if isinstance(message, UnreadableHeaders):
            own.append((headers.ERROR_HEADERS_UNREADABLE, message.name.encode()))
        fitted = fit(message, self._dead_bytes_max)
        written = headers.passed_on(fitted.headers) + own + fitted.said
        return Output(
            self._dead, message.partition, fitted.key, fitted.value, message.timestamp_ms, written
        )


class _EmittedColumns(Lazy[Output], PackedOutputs):
    """The outputs of what leaves."""

    def __init__(self, leavings: EmittedBatch) -> None:
        self._leavings = leavings

    def __len__(self) -> int:
        return len(self._leavings)

    def _item(self, place: int) -> Output:
        return self._leavings[place].output

    @property
    def columns(self) -> RecordColumns:
        return self._leavings.columns


class EmittedBatch(Lazy[EmittedRecord]):
    """What leaves for some batches: each record by itself, when it is asked for; in columns, most
    of all of them.

    `topics` are those for documents that are kept and for duplicates.
    """

    def __init__(
        self,
        batches: Sequence[InFlight],
        leaving: Callable[[Message, Decided | None, bytes | None], EmittedRecord],
        recipe: str,
        topics: tuple[str, str],
    ) -> None:
        self._batches = batches
        self._leaving = leaving
        self._recipe = recipe
        self._topics = topics
        # Of a batch that lost a partition only some leave; which, is asked once.
        self._rows = [_live_rows(batch) for batch in batches]
        self._made: dict[int, EmittedRecord] = {}
        self._count = sum(map(len, self._rows))

    def __len__(self) -> int:
        return self._count

    @property
    def outputs(self) -> PackedOutputs:
        """The records to write."""
        return _EmittedColumns(self)

    @cached_property
    def columns(self) -> RecordColumns:
        """All of them as columns, in which only those are packed that the index judged and that
        came without headers.
        """
        messages, prints, verdicts = self._messages, self._prints, self._verdicts
        packed = verdicts.are_outcomes
        packed[list(messages.headers)] = False
        digits = max((len(one) for one in prints[:1] if one), default=0) or max(
            (len(one or b"") for one in prints), default=0
        )
        nothing = bytes(digits)
        written = np.frombuffer(b"".join([one or nothing for one in prints]), np.uint8).reshape(
            len(messages), digits
        )
        return RecordColumns(
            topics=self._topics,
            topic=verdicts.are_duplicates.astype(np.uint8),
            partitions=messages.partitions,
            keys=messages.keys,
            values=messages.values,
            timestamps_ms=messages.timestamps_ms,
            headers=of_verdicts(
                self._recipe,
                SourcePlaces(messages.topic, messages.partitions, messages.offsets),
                written,
                verdicts,
                packed,
            ),
            packed=packed,
        )

    def left(self) -> EmittedCounts:
        """Count what left."""
        columns, verdicts = self.columns, self._verdicts
        rest = EmittedCounts.of(self[place] for place in np.flatnonzero(~columns.packed).tolist())
        packed = verdicts.reasons[columns.packed]
        sizes = self._messages.value_bytes[columns.packed]
        named = columns.packed & verdicts.are_duplicates
        times = self._messages.timestamps_ms
        return EmittedCounts(
            rest.documents + np.bincount(packed, minlength=_REASONS),
            rest.bytes + np.bincount(packed, sizes, _REASONS).astype(np.int64),
            rest.stages,
            np.concatenate([rest.distances, verdicts.distances[named]]),
            np.concatenate([rest.similarities, _similarities(verdicts.similarity[named])]),
            times[times != NO_TIMESTAMP],
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
        return self._chosen(lambda batch: batch.prints)

    @cached_property
    def _decisions(self) -> list[Decided | None]:
        return self._chosen(lambda batch: batch.decisions())

    def _chosen(self, column: Callable[[InFlight], Sequence[Item]]) -> list[Item]:
        chosen: list[Item] = []
        for batch, rows in zip(self._batches, self._rows, strict=True):
            items = column(batch)
            chosen += items if len(rows) == len(items) else [items[row] for row in rows]
        return chosen

    @cached_property
    def _verdicts(self) -> Verdicts:
        """The index's verdicts on all of them; where there is none the reason is 0."""
        found = [
            _verdicts_of(batch, len(rows))
            for batch, rows in zip(self._batches, self._rows, strict=True)
        ]
        return found[0] if len(found) == 1 else Verdicts.joined(found)

    def _item(self, place: int) -> EmittedRecord:
        made = self._made.get(place)
        if made is None:
            made = self._leaving(self._messages[place], self._decisions[place], self._prints[place])
            self._made[place] = made
        return made


def _live_rows(batch: InFlight) -> Sequence[int]:
    """Return which records of a batch may leave."""
    rows = range(len(batch.messages))
    return (
        rows
        if batch.is_whole
        else np.flatnonzero(batch.messages.of_partitions(batch.live)).tolist()
    )


def _verdicts_of(batch: InFlight, count: int) -> Verdicts:
    """Return the index's verdicts on a batch of which `count` records leave; if not all do, none:
    they go one by one.
    """
    verdicts = Verdicts.of_nothing(count)
    if count < len(batch.messages):
        return verdicts
    parts = [(part.places, part.verdicts) for part in batch.parts if part.verdicts is not None]
    for places, told in parts:
        for name in VERDICT_COLUMNS:
            getattr(verdicts, name)[places] = getattr(told, name)
    verdicts.named = NamedRepresentatives.joined(
        [NamedRepresentatives.of(told.named) for _, told in parts]
    )
    return verdicts
