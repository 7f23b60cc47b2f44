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
