"""A Kafka that is away for longer than any time-out ends no role: its calls are made again until it is back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from stream_dedup.ground.errors import BrokerError, FencedError
from stream_dedup.kafka import (
    LogAppender,
    Patience,
    SourceConsumer,
    TransactionalOutput,
    VerdictWriter,
    append,
    source,
    transaction,
)
from stream_dedup.kafka.client import WENT_ON
from stream_dedup.kafka.transaction import Outcome
from stream_dedup.settings.settings import Settings
from tests.tiers import few

AWAY_QUESTIONS = 100


class Away:
    """A client whose questions time out until they were asked so often."""

    def __init__(self, questions: int, then: KafkaError | None = None) -> None:
        self.left = questions
        self.then = then

    def is_silent(self) -> bool:
        return self.left > 0

    def ask(self) -> None:
        if self.left:
            self.left -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "timed out", retriable=True))

    def init_transactions(self, _seconds: float) -> None:
        self.ask()

    def committed(self, wanted: list[TopicPartition], **_: Any) -> list[TopicPartition]:
        self.ask()
        return [TopicPartition(one.topic, one.partition, 7, "m") for one in wanted]

    def flush(self, _seconds: float) -> int:
        if self.left:
            self.left -= 1
            return 1  # a record that is not written yet
        if self.then is not None:
            error, self.then = self.then, None
            raise KafkaException(error)
        return 0

    def __getattr__(self, _: str) -> Callable[..., int]:
        return lambda *_, **__: 0


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Callable[[Away], Away]:
    def in_place(away: Away) -> Away:
        monkeypatch.setattr(source, "make_consumer", lambda *_, **__: away)
        monkeypatch.setattr(transaction, "make_producer", lambda *_, **__: away)
        monkeypatch.setattr(append, "make_producer", lambda *_, **__: away)
        return away

    return in_place


def committed(patience: Patience) -> Any:
    source = SourceConsumer(Settings(), "documents", "worker", None, patience)  # type: ignore[arg-type]
    return source.committed([("documents", 0)])["documents", 0].offset


def appended(patience: Patience) -> Any:
    LogAppender(Settings(), "fingerprints", "worker").flush(patience=patience)
    return "written"


def begun(patience: Patience) -> Any:
    return bool(TransactionalOutput(Settings(), "worker-0", "outputs", patience=patience))


@pytest.mark.parametrize(("ask", "answer"), [(committed, 7), (begun, True), (appended, "written")])
def test_a_question_is_asked_until_kafka_is_back(
    put: Callable[[Away], Away], ask: Callable[[Patience], Any], answer: Any
) -> None:
    """The loop is alive meanwhile, which the probe is told; a role that is to end does not wait."""
    away, beats = put(Away(AWAY_QUESTIONS)), []

    assert ask(Patience(away.is_silent, threading.Event(), lambda: beats.append(1))) == answer
    assert len(beats) == AWAY_QUESTIONS

    stop = threading.Event()
    stop.set()
    away.left = AWAY_QUESTIONS
    with pytest.raises(BrokerError):
        ask(Patience(away.is_silent, stop))
    assert away.left == AWAY_QUESTIONS - 1


@pytest.mark.parametrize("ask", [committed, begun])
def test_a_kafka_that_is_there_is_asked_some_times_only(put: Callable[[Away], Away], ask: Callable[[Patience], Any]) -> None:
    """Then something else is wrong, such as a transaction that never ends, and the role ends with its sentence."""
    away = put(Away(AWAY_QUESTIONS))

    with pytest.raises(BrokerError):
        ask(Patience(bool))
    assert AWAY_QUESTIONS - 10 < away.left < AWAY_QUESTIONS - 2


@pytest.mark.parametrize(("seconds", "is_ours"), [(29.0, False), (31.0, True)])
def test_a_fence_after_the_transactions_own_time_out_is_no_other_worker(
    put: Callable[[Away], Away], seconds: float, is_ours: bool
) -> None:
    """Kafka ended the transaction while it was away for us: the worker goes on with a new producer, from what is committed."""
    now = iter([0.0])
    put(Away(0, KafkaError(KafkaError._FENCED, "fenced by a newer instance", fatal=True)))
    transactions = TransactionalOutput(Settings(), "worker-0", "outputs", monotonic=lambda: next(now, seconds))

    if is_ours:
        assert transactions.run([], [], b"").outcome is Outcome.UNKNOWN
    else:
        with pytest.raises(FencedError):
            transactions.run([], [], b"")


@pytest.mark.parametrize("appender", [LogAppender, VerdictWriter])
def test_what_was_appended_waits_for_kafka(monkeypatch: pytest.MonkeyPatch, appender: Any) -> None:
    """An append that gave up after a minute ended every worker and index that had asked just before Kafka went away."""
    configs: list[dict[str, Any]] = []
    monkeypatch.setattr(append, "make_producer", configs.append)
    appender(Settings(), "topic", "client")

    assert configs[0]["message.timeout.ms"] == 0


class Beginning:
    """A consumer that commits once it was asked so often; before that it raises what it is given."""

    def __init__(self, code: int, times: int) -> None:
        self._code, self.left = code, times

    def is_silent(self) -> bool:
        return self.left > 0

    def commit(self, **_: Any) -> list[TopicPartition]:
        return [TopicPartition(one.topic, one.partition, 7) for one in self._answer([TopicPartition("documents", 0)])]

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return tuple(self._answer((3, 9)))

    def _answer(self, answer: Any) -> Any:
        if self.left:
            self.left -= 1
            raise KafkaException(KafkaError(self._code))
        return answer

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


@pytest.mark.parametrize("code", few([KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.UNKNOWN_TOPIC_OR_PART]))
def test_a_partition_is_begun_once_kafka_is_back(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as it is away, the first offset is asked for and committed again and again."""
    for question, expected in (("low_watermark", 3), ("commit_start", True)):
        client = Beginning(code, AWAY_QUESTIONS)
        monkeypatch.setattr(source, "make_consumer", lambda *_, found=client, **__: found)
        reader = SourceConsumer(Settings(), "documents", "worker", None, Patience(client.is_silent))  # type: ignore[arg-type]
        given: Any = ("documents", 0) if question == "low_watermark" else {("documents", 0): (7, "")}

        assert getattr(reader, question)(given) == expected
        assert client.left == 0


@pytest.mark.parametrize("code", sorted(WENT_ON))
def test_a_beginning_is_not_committed_where_the_group_went_on(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody ends for it: it is asked for anew."""
    client = Beginning(code, 1)
    monkeypatch.setattr(source, "make_consumer", lambda *_, **__: client)
    reader = SourceConsumer(Settings(), "documents", "worker", None)  # type: ignore[arg-type]

    assert not reader.commit_start({("documents", 0): (7, "")})
    assert reader.commit_start({("documents", 0): (7, "")})
