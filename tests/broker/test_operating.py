"""What operators see of a running filter on a real Kafka: metrics, `doctor`, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream_dedup.__main__ import main
from stream_dedup.preflight.doctor import examine
from stream_dedup.preflight.finding import CheckState
from stream_dedup.settings.layers import load_settings
from tests.broker.harness import MakeFilter, Role
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

COPIES, OTHERS, BROKEN = 30, 40, 3
# The metrics of the contract that this test changes; aborts and evictions are tested elsewhere.
WORKER = (
    "build_info",
    "records_total",
    "documents_total",
    "bytes_total",
    "dead_letters_total",
    "distance_bits_count",
    "similarity_count",
    "verdict_latency_seconds_count",
    "transactions_total",
    "rebalances_total",
)
INDEX = (
    "build_info",
    "candidates_count",
    "index_entries",
    "index_size_bytes",
    "index_applied_offset",
)


class RoleReading:
    """The metrics of a role at one moment."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self._samples = [sample for family in families for sample in family.samples]

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples of that name with these labels; None if there is none."""
        found = [
            sample.value
            for sample in self._samples
            if sample.name == f"stream_dedup_{name}" and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None


def read_metrics(role: Role) -> RoleReading:
    return RoleReading(role.get("/metrics"))


def text(seed: int) -> str:
    return " ".join(f"word{(seed * 7919 + place * place * 31) % 5000}" for place in range(120))


def documents() -> Any:
    for number in range(OTHERS):
        yield number % 2, f"u{number}".encode(), json.dumps({"text": text(number)}).encode(), []
    for number in range(COPIES):
        yield (
            number % 2,
            f"c{number}".encode(),
            json.dumps({"text": text(number) + " more"}).encode(),
            [],
        )
    for _ in range(BROKEN):
        yield 0, b"b", b"{broken", []


def test_metrics_and_doctor_describe_a_running_filter(
    make_filter: MakeFilter,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every metric changes, doctor agrees, and settings that endanger the log are refused."""
    crawl = make_filter(partitions=2, value_format="json")
    for name, value in crawl.environment.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    def states() -> dict[str, set[CheckState]]:
        found: dict[str, set[CheckState]] = {}
        for finding in examine(load_settings()):
            found.setdefault(finding.check, set()).add(finding.state)
        return found

    # Before the first start: nothing is refused, and what does not exist yet is not reported as OK.
    shown = [
        finding.sentence
        for finding in examine(load_settings())
        if finding.state is CheckState.REFUSED
    ]
    assert shown == []
    before = states()
    assert before["declaration"] == before["volume"] == {CheckState.NOT_CHECKED}
    assert before["topics"] == before["log"] == before["offsets"] == {CheckState.OK}

    index = crawl.start("index")
    index.wait_for_log(
        "index started"
    )  # else the worker may have to repeat a question that a new index leaves to others
    worker = crawl.start("worker")
    total = crawl.produce(documents())
    crawl.wait_until_committed(total)

    # Metrics follow the commit, so wait until they have settled.
    wait_until(
        lambda: read_metrics(worker).total("records_total") == total,
        "the worker has counted all records",
    )
    wait_until(
        lambda: read_metrics(index).total("index_entries") == OTHERS, "the index has set its gauges"
    )
    wait_until(
        lambda: read_metrics(worker).total("consumer_lag_records") == 0, "the worker has no lag"
    )
    worker_metrics, index_metrics = read_metrics(worker), read_metrics(index)
    assert {
        name: worker_metrics.total(name) for name in WORKER if not worker_metrics.total(name)
    } == {}
    assert {
        name: index_metrics.total(name) for name in INDEX if not index_metrics.total(name)
    } == {}
    for stage in ("prepare", "verdict", "transaction"):
        assert (worker_metrics.total("stage_duration_seconds_count", stage=stage) or 0) > 0, stage
    assert (index_metrics.total("stage_duration_seconds_count", stage="judge") or 0) > 0
    assert worker_metrics.total("documents_total", verdict="duplicate") == COPIES
    assert worker_metrics.total("dead_letters_total", stage="decode") == BROKEN
    assert (worker_metrics.total("documents_total") or 0) + BROKEN == total

    # A replica with an empty volume reports that the log was already answered.
    second = crawl.start("index", STREAM_DEDUP_STATE_DIR=str(crawl.folder / "second"))
    wait_until(
        lambda: read_metrics(second).total("index_restored_empty_total") == 1,
        "the second index says that it began empty",
    )
    assert index_metrics.total("index_restored_empty_total") == 0

    working = states()
    assert not any(CheckState.REFUSED in of_check for of_check in working.values()), working
    assert working["offsets"] == working["declaration"] == working["volume"] == {CheckState.OK}

    # Both roles refuse what doctor refuses before they read anything.
    for role in (worker, second, index):
        role.stop()
    crawl.admin.set_config(crawl.names.fingerprints, {"retention.ms": "86400000"})
    assert states()["log"] == {CheckState.REFUSED}
    assert run("doctor")[0] == 78
    for name in ("index", "worker"):
        refused = crawl.start(name)
        assert refused.wait() == 78
        assert "retention.ms=86400000, and must have -1" in refused.log
