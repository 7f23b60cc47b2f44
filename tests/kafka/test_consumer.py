"""How a consumer converts records, and handles a coordinator's refusals."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    TopicPartition,
)
from confluent_kafka import Message as RawMessage

from stream_dedup.domain.errors import BrokerError
from stream_dedup.kafka import SourceConsumer, client, transaction
from stream_dedup.kafka import source as source_module
from stream_dedup.settings.settings import Settings
from tests.kafka.scripted import Scripted, record, refusal


def make_source(
    monkeypatch: pytest.MonkeyPatch, raw: Any, listener: Any = None, **named: Any
) -> SourceConsumer:
    """Return a source with the client `raw`; its client for committed offsets returns nothing."""
    made = [raw, Scripted()]
    monkeypatch.setattr(source_module, "make_consumer", lambda *_, **__: made.pop(0))
    return SourceConsumer(Settings(**named), "documents", "worker", listener)


@pytest.mark.parametrize(
    ("code", "acl"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "the ACL Read on topic documents"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "the ACL Read on group crawl"),
    ],
)
def test_the_acl_that_a_coordinator_misses_is_named(
    monkeypatch: pytest.MonkeyPatch, code: int, acl: str
) -> None:
    """Committed offsets belong to the group and to the topic, and either may be denied."""
    error = refusal(code, "authorization failed")
    made = Scripted(commit=error, committed=error)
    monkeypatch.setattr(source_module, "make_consumer", lambda *_, **__: made)
    source = SourceConsumer(Settings(group="crawl"), "documents", "worker", None)  # type: ignore[arg-type]

    with pytest.raises(BrokerError, match=acl):
        source.commit_start({("documents", 0): (0, "")})
    with pytest.raises(BrokerError, match=acl):
        source.committed([("documents", 0)])


def test_columns_equal_the_records_converted_one_by_one() -> None:
    """All fields are equal; an unknown time, and one of 0 or below, is None."""
    times = [
        (TIMESTAMP_NOT_AVAILABLE, 0),
        (TIMESTAMP_CREATE_TIME, 0),
        (TIMESTAMP_LOG_APPEND_TIME, 1_700_000_000_000),
        (TIMESTAMP_CREATE_TIME, -1),
        (TIMESTAMP_CREATE_TIME, -5),
        (TIMESTAMP_CREATE_TIME, 1),
    ]
    raws = [
        RawMessage(
            topic="documents",
            partition=index % 3,
            offset=index,
            key=None if index % 2 else b"k",
            value=None if index % 5 == 0 else b"v",
            timestamp=times[index % 6],
            headers=[("a", b"1")] if index % 4 == 0 else None,
        )
        for index in range(12)
    ]

    assert list(client.to_messages("documents", raws)) == [client.to_message(raw) for raw in raws]
    found = [message.timestamp_ms for message in client.to_messages("documents", raws[:6])]
    assert found == [None, None, 1_700_000_000_000, None, None, 1]
    assert list(client.to_messages("documents", [])) == []


def test_partitions_assigned_while_leaving_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error in the callback would hide why the role ended, and a request for committed offsets
    would delay the end."""
    closing = refusal(KafkaError._STATE, "the consumer is closing")
    assign_callbacks: list[Any] = []
    leaving = Scripted(
        subscribe=lambda _, on_assign, **__: assign_callbacks.append(on_assign),
        consumer_group_metadata=closing,
        incremental_assign=closing,
        close=lambda: assign_callbacks[0](leaving, [TopicPartition("documents", 0)]),
    )
    listener = mock.Mock(
        assigned=mock.Mock(side_effect=AssertionError("a worker that leaves was given a partition"))
    )

    make_source(monkeypatch, leaving, listener).close()


class Rebalancing(Scripted):
    """A consumer that revokes and assigns partitions within the call that returns their records."""

    def __init__(self, away: list[int], back: list[int]) -> None:
        super().__init__(consumer_group_metadata=b"stamp", poll=record(10))
        self.away, self.back = away, back
        self.restarted: list[tuple[int, int]] = []

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, **_: Any) -> None:
        self.on_assign, self.on_revoke = on_assign, on_revoke

    def consume(self, most: int, timeout: float) -> list[RawMessage]:
        del timeout
        if most == 100:
            return []  # so that the first record is waited for
        found = [record(20, 1)]
        self.on_revoke(self, [TopicPartition("documents", part) for part in self.away])
        if self.back:
            self.on_assign(self, [TopicPartition("documents", part) for part in self.back])
        return [*found, *(record(7, part) for part in self.back), record(21, 1)]

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.restarted += [(partition.partition, partition.offset) for partition in partitions]


@pytest.mark.parametrize(
    ("back", "kept", "restarted"),
    [([], [(1, 20), (1, 21)], []), ([0], [(1, 20), (1, 21)], [(0, 7), (0, 7)])],
)
def test_records_of_a_partition_revoked_in_the_same_call_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
    back: list[int],
    kept: list[tuple[int, int]],
    restarted: list[tuple[int, int]],
) -> None:
    """A partition that is assigned again in the same call is read again from its start offset."""
    raw = Rebalancing([0], back)
    listener = mock.Mock(assigned=lambda keys: dict.fromkeys(keys, 7))
    source = make_source(monkeypatch, raw, listener)

    found = source.take_messages(100, 1.0)

    assert [(message.partition, message.offset) for message in found] == kept
    assert raw.restarted == restarted


def test_a_group_waits_for_a_dead_member_no_longer_than_a_callback_may_take() -> None:
    """A killed worker's transaction holds its offsets back for its time-out, and Kafka looks every
    ten seconds; with more than twice that the whole group would stop for it. The operator's own
    value comes first.
    """
    holds_back_ms = 1000 * (transaction._TRANSACTION_SECONDS + 10)

    assert (
        holds_back_ms
        < client.consumer_config(Settings(), "worker", "group")["max.poll.interval.ms"]
        < 2 * holds_back_ms
    )
    long_session = Settings(kafka={"session.timeout.ms": "60000"})
    found = client.consumer_config(long_session, "worker", "group")["max.poll.interval.ms"]
    assert found == 60_000
    operator_settings = Settings(kafka={"max.poll.interval.ms": "7000"})
    assert (
        client.consumer_config(operator_settings, "worker", "group")["max.poll.interval.ms"]
        == "7000"
    )
