"""Records that no client can read: one each, after it is certain, and the partition goes on."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka import Message as RawMessage

from stream_dedup.ground.document import Unreadable
from stream_dedup.ground.errors import BrokerError, ConfigurationError
from stream_dedup.kafka import LogReader, SourceConsumer, readers, spans, taking
from stream_dedup.kafka import source as source_module
from stream_dedup.settings.settings import Settings
from tests.kafka.scripted import Scripted, record

BAD = KafkaError(KafkaError._BAD_MSG, "failed CRC32C check")


class Partition(Scripted):
    """A partition with batches that cannot be read, each a range of offsets; fetches like librdkafka."""

    def __init__(self, end: int, *bad: range) -> None:
        super().__init__()
        self._end, self._bad = end, bad
        self._at = 0
        self._position = -1001

    def consume(self, most: int, timeout: float) -> list[RawMessage]:
        del most, timeout
        for bad in self._bad:
            if self._at in bad:
                return [record(bad.start, error=BAD), record(bad.start, error=BAD)]  # the error comes again and again
        if self._at >= self._end:
            return []
        self._at += 1
        self._position = self._at
        return [record(self._at - 1)]

    def poll(self, timeout: float) -> None:
        """Give nothing: what is asked for committed offsets reads no records."""

    def position(self, _: Any) -> list[TopicPartition]:
        return [TopicPartition("documents", 0, self._position)]

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self._at, self._position = partitions[0].offset, -1001

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.incremental_assign(partitions)


def read(monkeypatch: pytest.MonkeyPatch, partition: Any, turns: int = 60) -> list[Any]:
    monkeypatch.setattr(source_module, "make_consumer", lambda _: partition)
    source = SourceConsumer(Settings(), "documents", "test", None)  # type: ignore[arg-type]
    source.restart_at({("documents", 0): 0})
    return [one for _ in range(turns) for one in source.take_messages(10, 0.0)]


@pytest.mark.parametrize("bad", [(range(3, 4),), (range(3, 7),), (range(1),), (range(9, 10),), (range(2, 4), range(4, 6))])
def test_every_offset_comes_once(monkeypatch: pytest.MonkeyPatch, bad: tuple[range, ...]) -> None:
    """Whether one record or several, first or last, or two batches in a row: every offset comes once and in order, and what
    could not be read is marked so, with the client's words. The reader of `audit` gives the same, and comes to its end."""
    monkeypatch.setattr(taking, "make_consumer", lambda _: Partition(10, *bad))
    reader = spans.SpanReader(Settings(), "documents", {0: spans.Bounds(0, 10)})
    lost = {offset for one in bad for offset in one}

    for found in (read(monkeypatch, Partition(10, *bad)), [one for some in reader.read_messages() for one in some]):
        assert [one.offset for one in found] == list(range(10))
        assert {one.offset for one in found if isinstance(one, Unreadable)} == lost
        assert {one.why for one in found if isinstance(one, Unreadable)} == {"failed CRC32C check"}
    assert reader.open_at == {}


def test_an_error_that_passes_skips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was damaged on the way, and is whole when it is fetched again, is read."""
    partition = Partition(5, range(2, 4))
    fetches = []
    consume = partition.consume

    def once(most: int, timeout: float) -> list[RawMessage]:
        fetches.append(partition._at)
        if fetches.count(2) > 1:
            partition._bad = ()
        return consume(most, timeout)[:1]

    partition.consume = once  # type: ignore[method-assign]

    assert [(one.offset, isinstance(one, Unreadable)) for one in read(monkeypatch, partition)] == [
        (offset, False) for offset in range(5)
    ]


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (KafkaError._NOT_IMPLEMENTED, ConfigurationError, "Nothing was skipped. Upgrade"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerError, "needs the ACL Read on topic documents"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, BrokerError, "needs the ACL Read on group stream-dedup"),
    ],
)
def test_what_must_not_be_skipped(monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception], says: str) -> None:
    """A format that the client does not know, and what it may not read, end the role with the remedy."""
    partition = Partition(1)
    monkeypatch.setattr(partition, "consume", lambda *_, **__: [record(0, error=KafkaError(code, "as the library says it"))])

    with pytest.raises(error, match=says):
        read(monkeypatch, partition)


def test_a_reader_by_assignment_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka looks for the coordinator of a group that a reader never joins; being denied that stops nothing."""
    partition = Partition(1)
    consume = partition.consume
    denied = [record(0, error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "as the library says it"))]
    monkeypatch.setattr(partition, "consume", lambda *_, **__: denied + consume(1, 0.0))
    monkeypatch.setattr(readers, "make_consumer", lambda _: partition)

    assert [one.offset for one in LogReader(Settings(), "fingerprints", "test").take_messages(10, 0.0)] == [0]
