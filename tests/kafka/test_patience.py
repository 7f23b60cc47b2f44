"""A Kafka outage longer than any time-out ends no role: calls are retried until Kafka is back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from stream_dedup.domain.errors import BrokerError, FencedError
from stream_dedup.kafka import (
    LogAppender,
    RetryPolicy,
    SourceConsumer,
    TransactionalOutput,
    append,
    source,
    transaction,
)
from stream_dedup.kafka.client import GROUP_MOVED
from stream_dedup.kafka.transaction import Outcome
from stream_dedup.settings.settings import Settings
from tests.kafka.scripted import Scripted, patch_producers, refusal
from tests.tiers import few

REFUSED_REQUESTS = 100


class Away:
    """A Kafka that refuses the first requests with an error, and answers all later ones."""

    def __init__(self, questions: int, error: KafkaException | None = None) -> None:
        self.left = questions
        self._error = error or refusal(KafkaError._TIMED_OUT, "timed out", retriable=True)
        self.client = Scripted(
            init_transactions=lambda _: self._answer(None),
            committed=lambda wanted, **_: self._answer(
                [
                    TopicPartition(partition.topic, partition.partition, 7, "m")
                    for partition in wanted
                ]
            ),
            commit=lambda **_: self._answer([TopicPartition("documents", 0, 7)]),
            get_watermark_offsets=lambda *_, **__: self._answer((3, 9)),
            flush=lambda _: self._answer(0, meanwhile=1),  # a record that is not written yet
        )

    def is_silent(self) -> bool:
        return self.left > 0

    def _answer(self, answer: Any, meanwhile: Any = None) -> Any:
        if not self.left:
            return answer
        self.left -= 1
        if meanwhile is None:
            raise self._error
        return meanwhile


@pytest.fixture
def replace_clients(monkeypatch: pytest.MonkeyPatch) -> Callable[[Away], Away]:
    def replace(away: Away) -> Away:
        monkeypatch.setattr(source, "make_consumer", lambda *_, **__: away.client)
        monkeypatch.setattr(transaction, "make_producer", lambda *_, **__: away.client)
        monkeypatch.setattr(append, "make_producer", lambda *_, **__: away.client)
        return away

    return replace


def make_source_consumer(*retry_policy: RetryPolicy) -> SourceConsumer:
    return SourceConsumer(Settings(), "documents", "worker", None, *retry_policy)  # type: ignore[arg-type]


def read_committed(retry_policy: RetryPolicy) -> Any:
    return make_source_consumer(retry_policy).committed([("documents", 0)])["documents", 0].offset


def flush_appender(retry_policy: RetryPolicy) -> Any:
    LogAppender(Settings(), "fingerprints", "worker").flush(retry_policy=retry_policy)
    return "written"


def begin_output(retry_policy: RetryPolicy) -> Any:
    return bool(TransactionalOutput(Settings(), "worker-0", "outputs", retry_policy=retry_policy))


@pytest.mark.parametrize(
    ("ask", "answer"), [(read_committed, 7), (begin_output, True), (flush_appender, "written")]
)
def test_a_request_is_retried_until_kafka_is_back(
    replace_clients: Callable[[Away], Away], ask: Callable[[RetryPolicy], Any], answer: Any
) -> None:
    """The probe gets a heartbeat at each retry; a role that is to end does not wait."""
    away, beats = replace_clients(Away(REFUSED_REQUESTS)), []

    assert ask(RetryPolicy(away.is_silent, threading.Event(), lambda: beats.append(1))) == answer
    assert len(beats) == REFUSED_REQUESTS

    stop = threading.Event()
    stop.set()
    away.left = REFUSED_REQUESTS
    with pytest.raises(BrokerError):
        ask(RetryPolicy(away.is_silent, stop))
    assert away.left == REFUSED_REQUESTS - 1


@pytest.mark.parametrize("ask", [read_committed, begin_output])
def test_a_request_to_a_reachable_kafka_is_retried_only_some_times(
    replace_clients: Callable[[Away], Away], ask: Callable[[RetryPolicy], Any]
) -> None:
    """Then something else is wrong, such as an endless transaction, and the role ends with the
    error."""
    away = replace_clients(Away(REFUSED_REQUESTS))

    with pytest.raises(BrokerError):
        ask(RetryPolicy(bool))
    assert REFUSED_REQUESTS - 10 < away.left < REFUSED_REQUESTS - 2


@pytest.mark.parametrize(("seconds", "is_ours"), [(29.0, False), (31.0, True)])
def test_a_fence_after_the_transactions_own_time_out_is_no_other_worker(
    monkeypatch: pytest.MonkeyPatch, seconds: float, is_ours: bool
) -> None:
    """Kafka ended the transaction while it was away for us: the worker goes on with a new producer,
    from what is committed."""
    now = iter([0.0])
    fenced = Scripted(flush=refusal(KafkaError._FENCED, "fenced by a newer instance", fatal=True))
    patch_producers(monkeypatch, transaction, lambda _: fenced)
    transactions = TransactionalOutput(
        Settings(), "worker-0", "outputs", monotonic=lambda: next(now, seconds)
    )

    if is_ours:
        assert transactions.run([], [], b"").outcome is Outcome.UNKNOWN
    else:
        with pytest.raises(FencedError):
            transactions.run([], [], b"")


def test_appended_records_wait_for_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that gave up after a minute ended every worker and index that had asked just before
    Kafka went away."""
    configs: list[dict[str, Any]] = []
    monkeypatch.setattr(append, "make_producer", configs.append)
    LogAppender(Settings(), "topic", "client")

    assert configs[0]["message.timeout.ms"] == 0


@pytest.mark.parametrize(
    "code", few([KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.UNKNOWN_TOPIC_OR_PART])
)
def test_a_partition_is_begun_once_kafka_is_back(
    code: int, replace_clients: Callable[[Away], Away]
) -> None:
    """For as long as it is away, the first offset is asked for and committed again and again."""
    away = replace_clients(Away(REFUSED_REQUESTS, refusal(code)))
    assert make_source_consumer(RetryPolicy(away.is_silent)).low_watermark(("documents", 0)) == 3
    assert away.left == 0

    away = replace_clients(Away(REFUSED_REQUESTS, refusal(code)))
    assert make_source_consumer(RetryPolicy(away.is_silent)).commit_start(
        {("documents", 0): (7, "")}
    )
    assert away.left == 0


@pytest.mark.parametrize("code", sorted(GROUP_MOVED))
def test_a_beginning_is_not_committed_if_the_group_has_moved_on(
    code: int, replace_clients: Callable[[Away], Away]
) -> None:
    """No role ends, and the next attempt commits it."""
    replace_clients(Away(1, refusal(code)))
    source_consumer = make_source_consumer()

    assert not source_consumer.commit_start({("documents", 0): (7, "")})
    assert source_consumer.commit_start({("documents", 0): (7, "")})
