"""Whether Kafka keeps what a role needs: what is found, what is said of it, and when a role is not
ready."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from stream_dedup.domain.document import Message, TopicPartitionKey
from stream_dedup.domain.topics import TopicState, read_topics
from stream_dedup.kafka import Bounds, CommittedOffset
from stream_dedup.serving import retention
from stream_dedup.serving.health import Health
from stream_dedup.serving.metrics import RetentionMetrics, SourceRetentionMetrics
from stream_dedup.serving.retention import RetentionWatch
from stream_dedup.settings.settings import Settings

LOG = ("fingerprints", 0)
SETTINGS = Settings(group="g")


class Cluster:
    """A log, and `documents` with two partitions; the group has committed offset 7 of the first."""

    def __init__(self) -> None:
        self.config = dict(next(topic.config for topic in read_topics() if topic.kind == LOG[0]))
        self.source_config = {"retention.ms": "604800000", "cleanup.policy": "delete"}
        self.spans: dict[TopicPartitionKey, tuple[int, int]] = {
            LOG: (0, 40),
            ("documents", 0): (3, 7),
            ("documents", 1): (90, 95),
        }
        self.committed: dict[int, int | None] = {0: 7, 1: None}
        self.stamps: dict[TopicPartitionKey, list[int | None]] = {}

    def describe(self, names: list[str]) -> dict[str, TopicState]:
        both = {
            "fingerprints": TopicState("fingerprints", b"", 1, self.config, 1),
            "documents": TopicState("documents", b"", 2, self.source_config, 1),
        }
        return {name: both[name] for name in names}

    def bounds(self, keys: list[TopicPartitionKey]) -> dict[TopicPartitionKey, Bounds]:
        return {key: Bounds(*self.spans[key]) for key in keys}

    def offsets(self, *_: object, is_stable: bool) -> dict[int, CommittedOffset]:
        assert not is_stable, "an open transaction is no reason to wait"
        return {part: CommittedOffset(offset, "") for part, offset in self.committed.items()}

    def sample(self, _: Settings, spans: Any) -> Any:
        for key, [(first, last)] in spans.items():
            for offset, stamp in enumerate(self.stamps[key], self.committed[key[1]] or 0):
                if first <= offset < last and stamp is not None:
                    yield Message(*key, offset, None, None, stamp, [])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(retention, "group_offsets", cluster.offsets)
    monkeypatch.setattr(retention, "read_spans", cluster.sample)
    return cluster


def collect_errors(role: RetentionWatch, cluster: Cluster) -> list[str]:
    """Return the errors that one check logs."""
    with capture_logs() as logged:
        role.check_once(cluster)  # type: ignore[arg-type]
    return [line["event"] for line in logged if line["log_level"] == "error"]


def of_index(health: Health) -> tuple[RetentionWatch, RetentionMetrics]:
    metrics = RetentionMetrics()
    return RetentionWatch(SETTINGS, health, metrics, structlog.get_logger()), metrics


def of_worker(health: Health) -> tuple[RetentionWatch, SourceRetentionMetrics]:
    metrics = SourceRetentionMetrics()
    return RetentionWatch(SETTINGS, health, metrics, structlog.get_logger()), metrics


def is_unkept(metrics: RetentionMetrics, topic: str) -> float | None:
    return metrics.registry.get_sample_value("stream_dedup_topic_unkept", {"topic": topic})


def health() -> Health:
    state = Health()
    state.set_ready(True, "at work")
    return state


@pytest.mark.parametrize(
    ("setting", "value"),
    [("retention.ms", "1000"), ("retention.bytes", "1"), ("cleanup.policy", "compact")],
)
def test_a_log_that_loses_records_makes_a_role_unready(
    cluster: Cluster, setting: str, value: str
) -> None:
    """Settings that remove records of the log are an error with the command that mends them, logged
    when they come, and no more once they are gone."""
    state = health()
    role, metrics = of_index(state)
    assert collect_errors(role, cluster) == []
    assert is_unkept(metrics, "fingerprints") == 0

    cluster.config[setting], wanted = value, cluster.config[setting]
    [error] = collect_errors(role, cluster)

    assert error.startswith(f"The topic fingerprints has {setting}={value}, and must have {wanted}")
    assert error.endswith("Run `stream-dedup topics apply`.")
    assert (state.ready_state().ok, state.ready_state().sentence) == (False, error)
    assert is_unkept(metrics, "fingerprints") == 1
    assert collect_errors(role, cluster) == [], "it is logged once"

    cluster.config[setting] = wanted
    assert collect_errors(role, cluster) == []
    assert state.ready_state().ok
    assert is_unkept(metrics, "fingerprints") == 0


def test_records_missing_from_the_log_stay_an_error(cluster: Cluster) -> None:
    """Records that are gone do not come back: logged and counted, but a role that has applied them
    is ready, since its verdicts stay right."""
    state = health()
    role, metrics = of_worker(state)
    cluster.spans[LOG] = (12, 40)

    [error] = collect_errors(role, cluster)

    assert error.startswith("The log fingerprints begins at offset 12, so records of it were remov")
    assert state.ready_state().ok
    assert is_unkept(metrics, "fingerprints") == 1
    assert is_unkept(metrics, "documents") == 0


def test_records_removed_before_their_verdict(cluster: Cluster) -> None:
    """What Kafka removed of `documents` behind the committed offset has no verdict; what it removed
    before it, or of a partition that nobody began, is no loss."""
    state = health()
    role, metrics = of_worker(state)
    assert collect_errors(role, cluster) == []

    cluster.spans["documents", 0] = (9, 9)
    [error] = collect_errors(role, cluster)

    assert error.startswith(
        "documents-0 begins at offset 9, but the group g has committed only up to 7"
    )
    assert "Kafka deleted 2 records before they were judged" in error
    assert "stream-dedup rewind documents-0@9" in error
    assert state.ready_state().sentence == error
    assert is_unkept(metrics, "documents") == 1

    cluster.committed[0] = 9
    assert collect_errors(role, cluster) == []
    assert state.ready_state().ok


def test_the_age_of_the_oldest_unread_record(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the timestamp of the first record behind each committed offset, whatever comes later; 0
    where all is committed, or only markers are left."""
    monkeypatch.setattr(
        retention, "time", SimpleNamespace(time=lambda: 100.0, monotonic=time.monotonic)
    )
    role, metrics = of_worker(Health())
    age = metrics.oldest_unread

    def seconds() -> float:
        collect_errors(role, cluster)
        return float(age._value.get())

    assert seconds() == 0
    cluster.spans["documents", 0] = (3, 9)
    cluster.stamps["documents", 0] = [None, 60_000]
    assert seconds() == 40, "a marker comes first"
    cluster.committed[1] = 92
    cluster.stamps["documents", 1] = [90_000, 10_000]
    assert seconds() == 40, "records come in the order of their offsets"
    cluster.stamps["documents", 1][0] = 30_000
    assert seconds() == 70
    cluster.stamps["documents", 0] = cluster.stamps["documents", 1] = [None]
    assert seconds() == 0


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        ({"retention.ms": "604800000", "cleanup.policy": "delete"}, 604_800.0),
        ({"retention.ms": "3600000", "cleanup.policy": "compact,delete"}, 3_600.0),
        ({"retention.ms": "604800000", "cleanup.policy": "compact"}, math.nan),
        ({"retention.ms": "-1", "cleanup.policy": "delete"}, math.nan),
    ],
)
def test_the_retention_of_documents(
    cluster: Cluster, config: dict[str, str], seconds: float
) -> None:
    """What the age of the oldest unread record is compared with; read at each look, because an
    operator raises it when it matters."""
    role, metrics = of_worker(health())
    for partition in range(2):
        cluster.stamps["documents", partition] = []
    retention = metrics.retention
    assert math.isnan(retention._value.get())
    cluster.source_config = config

    collect_errors(role, cluster)

    assert retention._value.get() == pytest.approx(seconds, nan_ok=True)
