"""Readers by assignment (log, verdicts, whole partitions), for roles that store their own offsets.

Invariant: these readers never join a group or commit.

librdkafka cannot read damaged batches, or batches that expand beyond its limit. A transmission error
disappears when the batch is fetched again, damage does not: so a record is skipped only after the
third failure at its offset. Each offset of such a batch is reported once, in order, and reading
continues after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Message as RawMessage

from stream_dedup.domain.document import Message, TopicPartitionKey, Unreadable
from stream_dedup.domain.errors import BrokerError, ConfigurationError, GoneError
from stream_dedup.kafka.admin import Admin
from stream_dedup.kafka.client import (
    GROUP_MOVED,
    LEADER_MOVES,
    NO_ANSWER,
    TOPIC_GONE,
    Acl,
    consumer_config,
    make_consumer,
    to_message,
    translate,
)
from stream_dedup.kafka.retries import ANSWER_SECONDS, request
from stream_dedup.kafka.topic_ids import require_topics
from stream_dedup.settings.settings import Settings

# Errors from which the client recovers. A new partition of a topic is unknown for a moment.
_TRANSIENT = (
    LEADER_MOVES
    | NO_ANSWER
    | GROUP_MOVED
    | {KafkaError._MAX_POLL_EXCEEDED, KafkaError._UNKNOWN_PARTITION}
)
DAMAGED = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError.INVALID_MSG})
_FAILURES_MAX = 3
_SKIPPED = -1  # stands for the count of failures at an offset that was reported as unreadable


@contextlib.contextmanager
def open_consumer(
    settings: Settings, client: str, doing: str, fixed: Mapping[str, Any] | None = None
) -> Iterator[Consumer]:
    """Yield a consumer that reads by assignment, and translate the library's errors meanwhile."""
    consumer = make_consumer(consumer_config(settings, client, f"{settings.group}-{client}", fixed))
    try:
        yield consumer
    except KafkaException as error:
        raise translate(error, doing) from error
    finally:
        consumer.close()


def take_raw(
    consumer: Consumer, records_max: int, timeout_seconds: float, topic: str
) -> list[RawMessage]:
    """Return the available records and errors; if there are none, wait for the first one and return
    those that arrived with it.
    """
    try:
        raws = consumer.consume(records_max, timeout=0)
        if not raws and timeout_seconds > 0:
            first = consumer.poll(timeout_seconds)
            if first is None:
                return []
            raws = (
                [first, *consumer.consume(records_max - 1, timeout=0)]
                if records_max > 1
                else [first]
            )
    except KafkaException as error:
        raise translate(error, f"reading {topic}", f"Read on topic {topic}") from error
    return raws


def messages_of(raws: Iterable[RawMessage], topic: str) -> list[Message]:
    """Return the records among `raws`; raise an error that must stop the reader."""
    messages = []
    for raw in raws:
        error = raw.error()
        if error is None:
            messages.append(to_message(raw))
        elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            # librdkafka looks for a group's coordinator even for readers that join no group.
            raise_unless_transient(error, topic)
    return messages


def raise_unless_transient(error: KafkaError, topic: str, acls: Acl = "") -> None:
    """Raise an error that must stop the role; ignore those from which the client recovers.

    Raises:
        GoneError: the topic or the offset does not exist.
        ConfigurationError: a batch has an unknown format.
        BrokerError: another error, such as a missing ACL in `acls`.
    """
    code = error.code()
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise GoneError(
            f"An offset to read from is not in {topic} any more ({error.str()}): retention "
            "deleted records, or the topic was created again. Nothing was skipped. Restore the "
            "topic, or set the offset with: stream-dedup rewind"
        )
    if code in TOPIC_GONE:
        raise GoneError(
            f"The topic {topic} does not exist: it was deleted, or never created. Restore it if "
            "you need its records; otherwise create it with: stream-dedup topics apply"
        )
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise translate(error, f"reading {topic}", f"Read on topic {topic}")
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        raise translate(error, f"reading {topic} as a member of a group", acls)
    if code == KafkaError._NOT_IMPLEMENTED:
        raise ConfigurationError(
            f"A batch in {topic} has a format that this client does not know ({error.str()}): it "
            "is damaged, or newer than the client. Nothing was skipped. Upgrade confluent-kafka, "
            "or set the offset after the batch with: stream-dedup rewind"
        )
    if code in _TRANSIENT or (error.retriable() and not error.fatal()):
        return
    raise BrokerError(
        f"{topic} cannot be read further: {error.str()} ({error.name()}). A restart continues at "
        "the same offset."
    )


class ReadFailures:
    """Counts read failures at the current offset of each partition."""

    def __init__(self) -> None:
        self._failures: dict[TopicPartitionKey, tuple[int, int]] = {}

    def record(
        self, key: TopicPartitionKey, batch_offset: int, position: int, error: KafkaError
    ) -> Unreadable | None:
        """Count a failure. Return the unreadable record after the third one; the caller then reads
        from the offset after it. Otherwise return None, and the caller reads the offset again.

        librdkafka reports the batch's first offset, not the `position` requested, and would fetch the
        batch for ever. The end of the batch is unknown, so each of its offsets is tried; directly
        after a skipped offset one failure is enough.
        """
        offset = max(batch_offset, position)
        last_offset, count = self._failures.get(key, (-1, 0))
        count = (
            count + 1
            if last_offset == offset
            else _FAILURES_MAX
            if last_offset == offset - 1 and count == _SKIPPED
            else 1
        )
        if count < _FAILURES_MAX:
            self._failures[key] = (offset, count)
            return None
        self._failures[key] = (offset, _SKIPPED)
        unreadable = Unreadable(*key, offset, None, None, None, [])
        unreadable.why = error.str()
        return unreadable


class PartitionsReader:
    """Reads partitions of several topics by assignment from given offsets."""

    def __init__(
        self, settings: Settings, client: str, fixed: Mapping[str, Any] | None = None
    ) -> None:
        config = consumer_config(
            settings,
            client,
            f"{settings.group}-{client}",
            {"enable.partition.eof": True} | dict(fixed or {}),
        )
        self._consumer = make_consumer(config)
        self._topics = ""
        self.next_offsets: dict[TopicPartitionKey, int] = {}
        """The offset to read next in each partition. At the end of a partition this is its end, which
        may be more than one after the last record: transaction markers have offsets too."""

    def start(self, next_offsets: Mapping[TopicPartitionKey, int]) -> None:
        """Start reading these partitions at their offsets, and stop reading all others."""
        self.next_offsets = dict(next_offsets)
        self._topics = ", ".join(sorted({topic for topic, _ in next_offsets}))
        self._consumer.assign(
            [
                TopicPartition(topic, partition, offset)
                for (topic, partition), offset in next_offsets.items()
            ]
        )

    def take_messages(self, records_max: int, timeout_seconds: float) -> list[Message]:
        """Return at most `records_max` records: the available ones, or the first within the timeout.

        Raises:
            ConfigurationError: an offset is not in its topic any more, or a topic is missing.
            BrokerError: the consumer cannot continue.
        """
        messages = []
        for raw in take_raw(self._consumer, records_max, timeout_seconds, self._topics):
            key = (str(raw.topic()), int(raw.partition() or 0))
            error, offset = raw.error(), int(raw.offset() or 0)
            if error is None:
                messages.append(to_message(raw))
                self.next_offsets[key] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self.next_offsets[key] = max(self.next_offsets.get(key, 0), offset)
            else:
                messages_of([raw], self._topics)  # raises an error that must stop the reader
        return messages

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


class LogReader(PartitionsReader):
    """Reads one partition by assignment from a given offset: the log, or any other."""

    def __init__(self, settings: Settings, topic: str, client: str, partition: int = 0) -> None:
        super().__init__(settings, client, {"enable.partition.eof": False})
        self._key = (topic, partition)

    def watermarks(self) -> tuple[int, int]:
        """Return (first stored offset, offset of the next record)."""
        topic, _ = self._key
        low, high = request(
            lambda seconds: self._consumer.get_watermark_offsets(
                TopicPartition(*self._key), timeout=seconds
            ),
            f"reading the first and last offset of {topic}",
            ANSWER_SECONDS,
            f"Describe on topic {topic}",
        )
        return int(low), int(high)

    def start_at(self, offset: int) -> None:
        """Start reading at `offset`."""
        self.start({self._key: offset})


class VerdictReader(LogReader):
    """Reads the verdicts that are appended after this reader was created."""

    def __init__(self, settings: Settings, topic: str, client: str) -> None:
        super().__init__(settings, topic, client)
        self.start_at(self.watermarks()[1])


def follow_topics(
    settings: Settings, topics: Sequence[str], *, from_beginning: bool, partition: int | None = None
) -> Iterator[Message | None]:
    """Yield the records of all partitions of some topics, or of one of each, as they arrive; None
    when no record arrived for 0.2 s.

    Raises:
        ConfigurationError: a topic is missing.
        BrokerError: the consumer cannot continue.
    """
    existing = require_topics(Admin(settings), topics)
    start = OFFSET_BEGINNING if from_beginning else OFFSET_END
    partitions_reader = PartitionsReader(settings, "reader", {"auto.offset.reset": "earliest"})
    with contextlib.closing(partitions_reader):
        partitions_reader.start(
            {
                (topic, number): start
                for topic in topics
                for number in (
                    range(existing[topic].partitions) if partition is None else [partition]
                )
            }
        )
        while True:
            messages = partitions_reader.take_messages(1000, 0.2)
            if not messages:
                yield None
            yield from messages
