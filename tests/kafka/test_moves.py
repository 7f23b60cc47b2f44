"""Requests to leaders and coordinators that are not ready are retried; errors of a deleted topic
name the remedy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from stream_dedup.domain.errors import (
    AbortableError,
    BrokerError,
    GoneError,
    NoAnswerError,
    StreamDedupError,
)
from stream_dedup.kafka import (
    Admin,
    LogReader,
    SourceConsumer,
    admin,
    client,
    readers,
    retries,
    spans,
)
from stream_dedup.kafka import source as source_module
from stream_dedup.kafka.client import GROUP_MOVED, translate
from stream_dedup.kafka.retries import request
from stream_dedup.settings.settings import Settings
from tests.kafka.scripted import Scripted, future_of, refusal

SETTINGS = Settings(group="g", kafka_bootstrap_servers="127.0.0.1:1")


class Cluster(Scripted):
    """A consumer and administrator that refuses each request with the next code, while there is
    one."""

    def __init__(self, *refusals: int) -> None:
        super().__init__()
        self._refusals = list(refusals)
        self.asked = 0

    def _refuse(self) -> None:
        self.asked += 1
        if self._refusals:
            raise refusal(self._refusals.pop(0))

    def get_watermark_offsets(self, _: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        self._refuse()
        return 3, 9

    def committed(self, wanted: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout > 0
        self._refuse()
        return [
            TopicPartition(partition.topic, partition.partition, 7, "m") for partition in wanted
        ]

    def list_offsets(
        self, wanted: dict[TopicPartition, Any], **_: Any
    ) -> dict[TopicPartition, Future[Any]]:
        try:
            self._refuse()
        except KafkaException as error:
            return dict.fromkeys(wanted, future_of(error))
        return dict.fromkeys(wanted, future_of(SimpleNamespace(offset=5)))


def source() -> SourceConsumer:
    return SourceConsumer(SETTINGS, "documents", "worker", None)  # type: ignore[arg-type]


QUESTIONS: dict[str, tuple[Callable[[], Any], Any]] = {
    "ends of the log": (lambda: LogReader(SETTINGS, "log", "reader").watermarks(), (3, 9)),
    "first offset held": (lambda: source().low_watermark(("documents", 0)), 3),
    "committed, as a worker": (
        lambda: source().committed([("documents", 0)])["documents", 0].offset,
        7,
    ),
    "committed, as an audit": (
        lambda: spans.group_offsets(SETTINGS, "g", "documents", 1)[0].offset,
        7,
    ),
    "bounds of a topic": (
        lambda: spans.topic_bounds(SETTINGS, "documents", 1),
        {0: spans.Bounds(5, 5)},
    ),
    "ends of a partition": (
        lambda: Admin(SETTINGS).bounds([("documents", 0)]),
        {("documents", 0): (5, 5)},
    ),
    "end of a partition": (lambda: Admin(SETTINGS).end_offset("documents", 0), 5),
}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    """Return a function that replaces every client by a cluster with these refusals."""

    def replace_clients(*refusals: int) -> Cluster:
        found = Cluster(*refusals)
        monkeypatch.setattr(retries, "_PAUSE_SECONDS", 0.001)
        for module in (source_module, readers, spans):
            monkeypatch.setattr(module, "make_consumer", lambda *_, **__: found)
        monkeypatch.setattr(admin, "AdminClient", lambda *_, **__: found)
        return found

    return replace_clients


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("code", sorted(client.LEADER_MOVES))
def test_a_leader_or_coordinator_that_moves_is_asked_anew(
    cluster: Callable[..., Cluster], question: str, code: int
) -> None:
    """A broker reports this while it does not know the leader yet, as for a new topic."""
    refusing_cluster = cluster(code, code)
    ask, answer = QUESTIONS[question]

    assert ask() == answer
    assert refusing_cluster.asked >= 3


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_permanent_error_is_raised_at_once(
    cluster: Callable[..., Cluster], question: str
) -> None:
    """A missing right stays missing."""
    refusing_cluster = cluster(KafkaError.TOPIC_AUTHORIZATION_FAILED)

    with pytest.raises(BrokerError, match="needs the ACL"):
        QUESTIONS[question][0]()
    assert refusing_cluster.asked == 1


def test_the_retries_end(cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the request and Kafka's last reply."""
    monkeypatch.setattr(readers, "ANSWER_SECONDS", 0.05)
    refusing_cluster = cluster(*[KafkaError.NOT_LEADER_FOR_PARTITION] * 1_000_000)

    with pytest.raises(
        BrokerError,
        match=r"first and last offset of log, Kafka reported: .*NOT_LEADER_FOR_PARTITION",
    ):
        LogReader(SETTINGS, "log", "reader").watermarks()
    assert refusing_cluster.asked > 1


@pytest.mark.parametrize("question", ["committed, as a worker", "committed, as an audit"])
class TestCommittedOffsets:
    """After a broker's restart one question about them can hang while the next is answered."""

    def test_a_question_that_hangs_is_asked_again(
        self, cluster: Callable[..., Cluster], question: str
    ) -> None:
        refusing_cluster = cluster(KafkaError._TIMED_OUT)
        ask, answer = QUESTIONS[question]

        assert ask() == answer
        assert refusing_cluster.asked == 2

    def test_a_question_that_always_hangs_is_given_up(
        self, cluster: Callable[..., Cluster], question: str
    ) -> None:
        refusing_cluster = cluster(*[KafkaError._TIMED_OUT] * 1000)

        with pytest.raises(
            BrokerError, match=r"committed offsets of .*, Kafka reported: .*_TIMED_OUT"
        ):
            QUESTIONS[question][0]()
        assert refusing_cluster.asked == retries._ATTEMPTS_MAX


CODES = [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID, KafkaError._UNKNOWN_TOPIC]


def has_remedy(error: StreamDedupError) -> bool:
    return (
        "deleted" in str(error)
        and "restore it" in str(error).lower()
        and "stream-dedup topics apply" in str(error)
    )


@pytest.mark.parametrize("code", CODES)
def test_every_error_of_a_deleted_topic_names_the_remedy(code: int) -> None:
    """Readers, writers, transactions and requests report that the topic was deleted, and the
    remedy."""

    def fail(_: float) -> None:
        raise KafkaException(KafkaError(code))

    with pytest.raises(GoneError) as read:
        readers.raise_unless_transient(KafkaError(code), "documents")
    with pytest.raises(BrokerError) as asked:
        request(fail, "asking for the end of fingerprints")
    written = translate(KafkaError(code), "writing to unique")
    aborted = translate(KafkaError(code, "gone", txn_requires_abort=True), "committing")

    assert "documents" in str(read.value)
    assert type(written) is BrokerError
    assert isinstance(aborted, AbortableError)
    assert all(has_remedy(error) for error in (read.value, asked.value, written, aborted))


def test_a_partition_that_is_new_is_waited_for() -> None:
    """Nothing was deleted: a reader goes on, and a transaction is tried again."""
    readers.raise_unless_transient(KafkaError(KafkaError._UNKNOWN_PARTITION), "documents")
    written = translate(KafkaError(KafkaError._UNKNOWN_PARTITION), "writing to unique")

    assert isinstance(written, AbortableError)
    assert "Partitions were added" in str(written)
    assert "deleted" not in str(written)


@pytest.mark.parametrize("code", sorted(GROUP_MOVED))
def test_a_group_that_went_on_ends_no_reader(code: int) -> None:
    """The client joins it again by itself."""
    readers.raise_unless_transient(KafkaError(code), "documents")


@pytest.mark.parametrize(
    "code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN]
)
def test_a_broker_that_does_not_answer_is_not_called_a_missing_acl(code: int) -> None:
    """The type of the error tells the caller that it may wait."""
    error = translate(KafkaError(code), "reading the first and last offset of verdicts")
    readers.raise_unless_transient(KafkaError(code), "documents")

    assert isinstance(error, NoAnswerError)
    assert "Are its brokers running?" in str(error)
    assert "ACL" not in str(error)
