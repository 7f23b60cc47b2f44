"""What the coordinator answers to a consumer that may not do what it asks for."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from stream_dedup.errors import BrokerError
from stream_dedup.log.kafka import SourceConsumer, consumer
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
