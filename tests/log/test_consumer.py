"""What a consumer makes of records, and of a coordinator's refusals."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Message as RawMessage

from stream_dedup.errors import BrokerError
from stream_dedup.log.kafka import SourceConsumer, client, consumer
from stream_dedup.settings import Settings


class Denied:
    """A consumer to which every question of the group's coordinator fails."""

    def __init__(self, code: int) -> None:
        self._code = code

    def subscribe(self, *_: Any, **__: Any) -> None: ...

    def commit(self, **_: Any) -> None:
        raise KafkaException(KafkaError(self._code, "authorization failed"))

    def committed(self, *_: Any, **__: Any) -> None:
        raise KafkaException(KafkaError(self._code, "authorization failed"))


@pytest.mark.parametrize(
    ("code", "acl"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "the ACL Read on topic documents"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "the ACL Read on group crawl"),
    ],
)
def test_the_acl_that_a_coordinator_misses_is_named(monkeypatch: pytest.MonkeyPatch, code: int, acl: str) -> None:
    """Committed offsets belong to the group and to the topic, and either may be denied."""
    monkeypatch.setattr(consumer, "make_consumer", lambda *_, **__: Denied(code))
    source = SourceConsumer(Settings(group="crawl"), "documents", "worker", None)  # type: ignore[arg-type]

    with pytest.raises(BrokerError, match=acl):
        source.commit_start({("documents", 0): (0, "")})
    with pytest.raises(BrokerError, match=acl):
        source.committed([("documents", 0)])


def test_columns_are_the_records_one_by_one() -> None:
    """Every field of what the client read; a time that it does not know is none."""
    times = [(TIMESTAMP_NOT_AVAILABLE, 0), (TIMESTAMP_CREATE_TIME, 0), (TIMESTAMP_LOG_APPEND_TIME, 1_700_000_000_000)]
    raws = [
        RawMessage(
            topic="documents", partition=at % 3, offset=at, key=None if at % 2 else b"k", value=None if at % 5 == 0 else b"v",
            timestamp=times[at % 3], headers=[("a", b"1")] if at % 4 == 0 else None,
        )
        for at in range(12)
    ]  # fmt: skip

    assert list(client.to_messages("documents", raws)) == [client.to_message(one) for one in raws]
    assert [one.timestamp_ms for one in client.to_messages("documents", raws[:3])] == [None, 0, 1_700_000_000_000]
    assert list(client.to_messages("documents", [])) == []


class Leaving:
    """A consumer to which the group gives a partition at the moment when it leaves, and which then takes none any more."""

    def subscribe(self, topics: list[str], on_assign: Any, **_: Any) -> None:
        self._on_assign, self._topic = on_assign, topics[0]

    def consumer_group_metadata(self) -> bytes:
        raise KafkaException(KafkaError(KafkaError._STATE, "the consumer is closed"))

    def incremental_assign(self, *_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE, "the consumer is closing"))

    def close(self) -> None:
        if hasattr(self, "_on_assign"):
            self._on_assign(self, [TopicPartition(self._topic, 0)])


class Nobody:
    def assigned(self, keys: Any) -> Any:
        raise AssertionError(f"a worker that leaves was given {keys}")


def test_partitions_that_come_while_leaving_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a callback raises in there would hide what ended the role, and asking for committed offsets would delay the end."""
    monkeypatch.setattr(consumer, "make_consumer", lambda *_, **__: Leaving())

    SourceConsumer(Settings(), "documents", "worker", Nobody()).close()  # type: ignore[arg-type]
