"""Runs of records from the middle of partitions. librdkafka's mock cluster is enough here: nothing
is transactional."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.kafka import (
    Admin,
    ExistingTopic,
    count_records,
    follow_topics,
    read_spans,
    readers,
    spans,
    unread_spans,
)
from stream_dedup.settings.settings import Settings

_QUIET = logging.getLogger("tests.mock")
_QUIET.propagate = False


@pytest.fixture
def settings() -> Settings:
    producer = Producer({"bootstrap.servers": "mock:1", "test.mock.num.brokers": 1}, logger=_QUIET)
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    for number in range(120):
        producer.produce("t", str(number).encode(), b"k", 0)
    for number in range(10):
        producer.produce("t", str(number).encode(), b"k", 1)
    assert producer.flush(20) == 0
    _KEEP.append(producer)  # the cluster lives as long as its producer
    return Settings(kafka_bootstrap_servers=f"{broker.host}:{broker.port}")


_KEEP: list[Producer] = []


def test_a_sample_is_exactly_its_spans(settings: Settings) -> None:
    """Spans of several partitions are read in order, up to before their end; an empty span is
    skipped."""
    found = list(read_spans(settings, {("t", 0): [(30, 80)], ("t", 1): [(0, 10)]}))

    assert [message.offset for message in found if message.partition == 0] == list(range(30, 80))
    assert [message.value for message in found if message.partition == 1] == [
        str(number).encode() for number in range(10)
    ]
    assert list(read_spans(settings, {("t", 0): [(5, 5)]})) == []


def test_several_spans_of_a_partition_are_read(settings: Settings) -> None:
    """Each record is read once and in order, in adjacent and in distant spans, up to the end."""
    runs = [(3, 6), (6, 9), (40, 42), (100, 130), (140, 150)]
    found = [message.offset for message in read_spans(settings, {("t", 0): runs})]

    assert found == [*range(3, 9), 40, 41, *range(100, 120)]


def test_deleted_records_are_not_unread() -> None:
    """A partition without a commit is unread from its first stored record."""
    ends = {("t", 0): (5, 9), ("t", 1): (5, 9), ("t", 2): (5, 9)}
    committed = {("t", 0): (7, None), ("t", 1): (3, "epoch"), ("u", 2): (8, None)}

    assert unread_spans(ends, committed) == {("t", 0): (7, 9), ("t", 1): (5, 9), ("t", 2): (5, 9)}


def test_records_are_counted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a long span offsets are counted, in a short one records."""
    monkeypatch.setattr(spans, "_COUNTED_OFFSETS_MAX", 5)
    wanted = {("t", 0): (118, 122), ("t", 1): (4, 12)}
    assert count_records(settings, wanted) == {("t", 0): 2, ("t", 1): 8}
    assert count_records(settings, {("t", 0): (7, 7), ("t", 1): (9, 7)}) == {
        ("t", 0): 0,
        ("t", 1): 0,
    }


def test_bounds_returns_the_ends_of_partitions(settings: Settings) -> None:
    assert Admin(settings).bounds([("t", 0), ("t", 1)]) == {("t", 0): (0, 120), ("t", 1): (0, 10)}


def test_a_reader_follows_all_partitions(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader yields the stored records, None while there are none, and later records.

    It can read a single partition. A missing topic is named."""

    # The mock cluster describes no topics.
    known = SimpleNamespace(topic_ids=lambda _: {"t": ExistingTopic(b"", 2)})
    monkeypatch.setattr(readers, "Admin", lambda _: known)

    def until_quiet(messages: Iterator[Message | None]) -> list[Message]:
        found = []
        for message in messages:
            if message is not None:
                found.append(message)
            elif found:
                return found
        raise AssertionError("a reader that follows has no end")

    messages = follow_topics(settings, ["t"], from_beginning=True)
    found = until_quiet(messages)
    while len(found) < 130:
        found += until_quiet(messages)
    assert Counter(message.partition for message in found) == {0: 120, 1: 10}
    _KEEP[-1].produce("t", b"late", b"k", 1)
    assert [message.value for message in until_quiet(messages)] == [b"late"]

    assert {
        message.partition
        for message in until_quiet(follow_topics(settings, ["t"], from_beginning=True, partition=1))
    } == {1}
    with pytest.raises(ConfigurationError, match="topic missing does not exist; create it"):
        next(follow_topics(settings, ["missing"], from_beginning=True))
