"""Read spans of offsets, in contrast to `readers`, which follow a topic without an end.

Invariants: only committed records are read; bounds include transactions that are open at the time of
the request, so a reader waits until those have ended, and reports those that stay open; no offset is
committed.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka import Message as RawMessage

from stream_dedup.domain.document import Message, TopicPartitionKey, Unreadable
from stream_dedup.domain.errors import BrokerError, ConfigurationError
from stream_dedup.kafka.admin import Admin, Bounds
from stream_dedup.kafka.client import consumer_config, make_consumer, to_message
from stream_dedup.kafka.readers import DAMAGED, ReadFailures, messages_of, open_consumer
from stream_dedup.kafka.retries import CommittedOffset, fetch_committed
from stream_dedup.log import records
from stream_dedup.log.record_frame import decode_unless_damaged
from stream_dedup.settings.settings import Settings

# Kafka ends a worker's transactions after 30 s, so a transaction open for longer is not a worker's.
_WAIT_SECONDS_MAX = 60.0
_GROUP_RECORDS = 64
_SHORT_SPAN_SECONDS = 30.0
_CALL_SECONDS = 0.2
_CALL_RECORDS_MAX = 2000
_SMALL_FETCHES = {
    "auto.offset.reset": "earliest",
    "max.partition.fetch.bytes": 65_536,
    "queued.min.messages": 10,
    "fetch.wait.max.ms": 10,
}
_COUNTED_OFFSETS_MAX = 10


def topic_bounds(settings: Settings, topic: str, partitions: int) -> dict[int, Bounds]:
    """Return the bounds of each partition of a topic, including open transactions.

    Raises:
        BrokerError: a leader did not answer.
    """
    bounds = Admin(settings).bounds(
        [(topic, partition) for partition in range(partitions)], IsolationLevel.READ_UNCOMMITTED
    )
    return {partition: partition_bounds for (_, partition), partition_bounds in bounds.items()}


def group_offsets(
    settings: Settings, group: str, topic: str, partitions: int, *, is_stable: bool = True
) -> dict[int, CommittedOffset]:
    """Return the committed offset and metadata of each partition: with `is_stable`, once no
    transaction that changes them is open; otherwise the last known one.

    Raises:
        BrokerError: such a transaction stays open, or the coordinator does not answer.
    """
    # Use a consumer that does not join the group: the admin client's request can crash librdkafka
    # when the group's coordinator moves (librdkafka #5040).
    fixed = {} if is_stable else {"isolation.level": "read_uncommitted"}
    config = consumer_config(settings, "offsets", group, fixed)
    with contextlib.closing(make_consumer(config)) as consumer:
        requested = [TopicPartition(topic, partition) for partition in range(partitions)]
        committed = fetch_committed(consumer, requested, f"of group {group}")
    return {partition: entry for (_, partition), entry in committed.items()}


class SpansReader:
    """Reads spans of offsets of some partitions.

    Afterwards `open_transactions` contains the partitions that could not be read to their end, with
    the offset of the transaction that stayed open.
    """

    def __init__(
        self,
        settings: Settings,
        spans: Mapping[TopicPartitionKey, Sequence[tuple[int, int]]],
        fixed: Mapping[str, Any] | None = None,
        wait_seconds_max: float = _WAIT_SECONDS_MAX,
        *,
        stops_at_partition_end: bool = False,
    ) -> None:
        """Create a reader of the spans (first offset, end offset) of each partition, in their order.
        It gives up after waiting for a record for `wait_seconds_max`.

        `fixed` are properties of its client. With `stops_at_partition_end`, a span that is longer
        than its partition ends there; otherwise the reader waits for more records.
        """
        self.open_transactions: dict[TopicPartitionKey, int] = {}
        self._settings = settings
        self._fixed = {"enable.partition.eof": True} | dict(fixed or {})
        self._stops_at_partition_end = stops_at_partition_end
        queues = {
            key: deque(span for span in key_spans if span[0] < span[1])
            for key, key_spans in spans.items()
        }
        self._remaining = {key: key_spans for key, key_spans in queues.items() if key_spans}
        self._topics = ", ".join(sorted({topic for topic, _ in self._remaining}))
        self._next_offsets = {key: key_spans[0][0] for key, key_spans in self._remaining.items()}
        self._at_end: set[TopicPartitionKey] = set()
        self._wait_seconds_max = wait_seconds_max
        self._idle_seconds = 0.0
        self._read_failures = ReadFailures()

    def read_messages(self) -> Iterator[list[Message]]:
        """Yield the records as they arrive, in order within each partition. Damaged ones are of the
        class `Unreadable`.

        Raises:
            BrokerError: a partition cannot be read.
        """
        if not self._remaining:
            return
        with open_consumer(
            self._settings, "span", f"reading {self._topics}", self._fixed
        ) as consumer:
            consumer.assign(
                [TopicPartition(*key, offset) for key, offset in self._next_offsets.items()]
            )
            while self._remaining:
                began = time.monotonic()
                raws = consumer.consume(_CALL_RECORDS_MAX, _CALL_SECONDS)
                # Count at most a second for each call: the process may be suspended inside one.
                self._idle_seconds += min(time.monotonic() - began, 5 * _CALL_SECONDS)
                messages = self._select_messages(consumer, raws)
                for key in list(self._remaining):
                    self._advance(consumer, key)
                if messages:
                    yield messages
                if self._remaining and self._idle_seconds > self._wait_seconds_max:
                    self._give_up()
                    return

    def _select_messages(self, consumer: Consumer, raws: Iterable[RawMessage]) -> list[Message]:
        """Return the records within the spans among `raws`; raise an error that must stop the
        reader.
        """
        messages: list[Message] = []
        restarted: set[TopicPartitionKey] = set()
        for raw in raws:
            key = (str(raw.topic()), int(raw.partition() or 0))
            error, offset = raw.error(), int(raw.offset() or 0)
            if key not in self._remaining or key in restarted:
                continue  # fetched before the partition was unassigned or restarted
            if error is None:
                self._at_end.discard(key)
                self._next_offsets[key] = max(self._next_offsets[key], offset + 1)
                if any(first <= offset < end for first, end in self._remaining[key]):
                    messages.append(to_message(raw))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add(key)
                self._next_offsets[key] = max(self._next_offsets[key], offset)
            elif error.code() in DAMAGED:
                unreadable = self._read_failures.record(key, offset, self._next_offsets[key], error)
                if unreadable is None:
                    continue
                restarted.add(key)
                messages.append(unreadable)
                _restart(consumer, key, unreadable.offset + 1)
                self._next_offsets[key] = unreadable.offset + 1
            else:
                messages_of([raw], self._topics)  # raises an error that must stop the reader
                continue
            self._idle_seconds = 0.0
        return messages

    def _advance(self, consumer: Consumer, key: TopicPartitionKey) -> None:
        """Remove the spans that were read, and seek to the next one."""
        queue, is_ended = self._remaining[key], self._stops_at_partition_end and key in self._at_end
        count = len(queue)
        while queue and (is_ended or queue[0][1] <= self._next_offsets[key]):
            queue.popleft()
        if not queue:
            del self._remaining[key]
            consumer.incremental_unassign([TopicPartition(*key)])
        elif len(queue) < count and self._next_offsets[key] < queue[0][0]:
            self._next_offsets[key] = queue[0][0]
            self._at_end.discard(key)
            _restart(consumer, key, queue[0][0])

    def _give_up(self) -> None:
        unfinished = sorted(self._remaining.keys() - self._at_end)
        if unfinished:
            key = unfinished[0]
            raise BrokerError(
                f"{key[0]}-{key[1]} could not be read beyond offset {self._next_offsets[key]} of "
                f"{self._remaining[key][-1][1]}: no record arrived for "
                f"{self._wait_seconds_max:.0f} s. Does the partition have a leader?"
            )
        self.open_transactions = {key: self._next_offsets[key] for key in sorted(self._remaining)}


def _restart(consumer: Consumer, key: TopicPartitionKey, offset: int) -> None:
    consumer.incremental_unassign([TopicPartition(*key)])
    consumer.incremental_assign([TopicPartition(*key, offset)])


class BoundsReader(SpansReader):
    """Reads partitions of one topic, each within its bounds."""

    def __init__(self, settings: Settings, topic: str, bounds: Mapping[int, Bounds]) -> None:
        super().__init__(
            settings, {(topic, partition): [span] for partition, span in bounds.items()}
        )


def read_log(
    settings: Settings, bounds: Bounds, advance: Callable[[int, int], None]
) -> Iterator[list[tuple[int, int, bytes | None]]]:
    """Yield the log records within the bounds as (log offset, LogAppendTime, bytes), in groups to
    apply in one call. Call `advance` with (0, bytes) after each group, to report progress.

    Raises:
        BrokerError: a record cannot be read, or none arrives.
    """
    for messages in BoundsReader(
        settings, settings.topic_names.fingerprints, {0: bounds}
    ).read_messages():
        for message in messages:
            if isinstance(message, Unreadable):
                raise BrokerError(
                    f"The record {message.position} of the log cannot be read: {message.why}. "
                    "Restore the topic from a backup."
                )
        for first in range(0, len(messages), _GROUP_RECORDS):
            group = messages[first : first + _GROUP_RECORDS]
            yield [(message.offset, message.timestamp_ms or 0, message.value) for message in group]
            advance(0, sum(len(message.value or b"") for message in group))


def read_spans(
    settings: Settings,
    spans: Mapping[TopicPartitionKey, Sequence[tuple[int, int]]],
    wait_seconds_max: float = _SHORT_SPAN_SECONDS,
) -> Iterator[Message]:
    """Yield the committed records of each partition's spans (first offset, end offset), in order
    within a partition.

    Fetches are small, because the spans are short. Offsets without a record (transaction markers,
    removed records) are skipped.

    Raises:
        BrokerError: no record arrived for `wait_seconds_max`.
    """
    yield from _yield_readable(
        SpansReader(settings, spans, _SMALL_FETCHES, wait_seconds_max, stops_at_partition_end=True)
    )


def unread_spans(
    bounds: Mapping[TopicPartitionKey, tuple[int, int]],
    committed: Mapping[TopicPartitionKey, tuple[int, str | None]],
) -> dict[TopicPartitionKey, tuple[int, int]]:
    """Return the span (first stored offset that is not committed, end) of each partition in
    `bounds`.
    """
    return {
        key: (max(low, committed.get(key, (low, None))[0]), end)
        for key, (low, end) in bounds.items()
    }


def count_records(
    settings: Settings, spans: Mapping[TopicPartitionKey, tuple[int, int]]
) -> dict[TopicPartitionKey, int]:
    """Return the number of records in the span (first offset, end offset) of each partition.

    The end marker of a transaction has an offset but is no record. So the records of short spans, of
    at most `_COUNTED_OFFSETS_MAX`, are read and counted; for longer ones the number of offsets counts.

    Raises:
        BrokerError: Kafka failed.
    """
    counts = {key: max(0, end - first) for key, (first, end) in spans.items()}
    short = {
        key: [spans[key]] for key, count in counts.items() if 0 < count <= _COUNTED_OFFSETS_MAX
    }
    counts |= dict.fromkeys(short, 0)
    reader = SpansReader(
        settings, short, _SMALL_FETCHES, _SHORT_SPAN_SECONDS, stops_at_partition_end=True
    )
    for messages in reader.read_messages():
        for message in messages:
            counts[message.topic, message.partition] += 1
    return counts


def read_partition(
    settings: Settings,
    topic: str,
    partition: int,
    start: int = 0,
    *,
    since_ms: int | None = None,
    until: int = 0,
) -> Iterator[Message]:
    """Yield the committed records of a partition from `start`, or the first one stored, to its
    current end.

    With `since_ms` it begins at the first record with that timestamp or a later one. If a transaction
    is open, the end is its first offset; with a higher `until` this waits for the transaction and
    reads up to that offset.

    Raises:
        ConfigurationError: the topic is missing.
        BrokerError: no record arrived for a while, a transaction stays open, or the consumer cannot
        continue.
    """
    key, admin = (topic, partition), Admin(settings)
    low, high = admin.bounds([key])[key]
    if since_ms is not None:
        start, _ = admin.offsets_at_time([key], since_ms)[key]
    spans_reader = SpansReader(settings, {key: [(max(low, start), max(high, until))]})
    yield from _yield_readable(spans_reader)
    for offset in spans_reader.open_transactions.values():
        raise BrokerError(
            f"{topic}-{partition} could not be read to its end at {max(high, until)}: a "
            f"transaction at offset {offset} has been open for {_WAIT_SECONDS_MAX:.0f} s."
        )


def read_stored(settings: Settings, topics: Sequence[str]) -> Iterator[Message]:
    """Yield the committed records that topics contain now, by partition; none of a missing topic.

    Raises:
        BrokerError: as `read_partition`.
    """
    admin = Admin(settings)
    for topic in topics:
        existing = admin.topic_ids([topic]).get(topic)
        for partition in range(0 if existing is None else existing.partitions):
            end = admin.end_offset(topic, partition)
            yield from read_partition(settings, topic, partition, until=end)


def _yield_readable(spans_reader: SpansReader) -> Iterator[Message]:
    """Yield the records of a reader one by one.

    Raises:
        BrokerError: a record cannot be read.
    """
    for messages in spans_reader.read_messages():
        for message in messages:
            if type(message) is Unreadable:
                raise BrokerError(f"{message.position} cannot be read: {message.why}.")
            yield message


def read_whole_log(
    settings: Settings,
    topic: str,
    advance: Callable[[int, int], None] = lambda _documents, _bytes: None,
    records_max: int | None = None,
) -> Iterator[tuple[int, records.LogRecord | None]]:
    """Yield (log offset, record) of the log, or of its first `records_max` records, up to its current
    end.

    A damaged record is None: the index answers `rejected` to it, and it has no effect. `advance` is
    called with (documents, bytes) after each record.

    Raises:
        ConfigurationError: the log's first records were removed.
        BrokerError: the log cannot be read to its end.
        OtherFormatError: a newer version wrote a record.
    """
    low, high = Admin(settings).bounds([(topic, 0)])[topic, 0]
    if low > 0:
        raise ConfigurationError(
            f"The log {topic} begins at offset {low}, so its first records were deleted. "
            "Restore it from a backup, or start a new log with another STREAM_DEDUP_TOPIC_PREFIX."
        )
    high = high if records_max is None else min(high, records_max)
    for message in read_partition(settings, topic, 0) if high else ():
        if message.offset < high:
            record = decode_unless_damaged(
                records.decode, message.value, f"The record {topic}-0@{message.offset}"
            )
            yield message.offset, record
            advance(
                len(record) if isinstance(record, records.Batch) else 0, len(message.value or b"")
            )
        if message.offset + 1 >= high:
            return


class GroupMetadataReader:
    """The metadata of a group without members, for a transaction that changes its committed
    offsets.
    """

    def __init__(self, settings: Settings, group: str) -> None:
        self._consumer = make_consumer(consumer_config(settings, "stamp", group))

    def read_metadata(self) -> bytes:
        """Return the group's metadata."""
        return bytes(self._consumer.consumer_group_metadata())

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()
