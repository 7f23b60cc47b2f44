"""What an operator sees of a filter at work on a real Apache Kafka: metrics, `doctor`,
refusals at start."""

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
# The contract's list, as far as the roles of this test move it; an aborted or evicted one has tests
# of its own.
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
            one.value
            for one in self._samples
            if one.name == f"stream_dedup_{name}" and labels.items() <= one.labels.items()
        ]
        return sum(found) if found else None


def reading(role: Role) -> RoleReading:
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


def test_a_filter_at_work_is_seen_by_its_operators(
    make_filter: MakeFilter,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every metric of the contract moves and in is out; doctor agrees with it; what
    endangers the log is refused."""
    crawl = make_filter(partitions=2, value_format="json")
    for name, value in crawl.environment.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    def states() -> dict[str, set[CheckState]]:
        found: dict[str, set[CheckState]] = {}
        for one in examine(load_settings()):
            found.setdefault(one.check, set()).add(one.state)
        return found

    # Before the first start: nothing is refused, and what is not there yet is not called well.
    shown = [one.sentence for one in examine(load_settings()) if one.state is CheckState.REFUSED]
    assert shown == []
    before = states()
    assert before["declaration"] == before["volume"] == {CheckState.NOT_CHECKED}
    assert before["topics"] == before["log"] == before["offsets"] == {CheckState.OK}

    index = crawl.start("index")
    index.says(
        "index started"
    )  # else the worker may ask what this new index leaves to others, and asks it once more
    worker = crawl.start("worker")
    total = crawl.produce(documents())
    crawl.wait_until_committed(total)

    # Metrics: read once they have settled, because they follow the commit.
    wait_until(
        lambda: reading(worker).total("records_total") == total,
        "the worker has counted all records",
    )
    wait_until(
        lambda: reading(index).total("index_entries") == OTHERS, "the index has set its gauges"
    )
    wait_until(lambda: reading(worker).total("consumer_lag_records") == 0, "the worker has no lag")
    ours, theirs = reading(worker), reading(index)
    assert {name: ours.total(name) for name in WORKER if not ours.total(name)} == {}
    assert {name: theirs.total(name) for name in INDEX if not theirs.total(name)} == {}
    for stage in ("prepare", "verdict", "transaction"):
        assert (ours.total("stage_duration_seconds_count", stage=stage) or 0) > 0, stage
    assert (theirs.total("stage_duration_seconds_count", stage="judge") or 0) > 0
    assert ours.total("documents_total", verdict="duplicate") == COPIES
    assert ours.total("dead_letters_total", stage="decode") == BROKEN
    assert (ours.total("documents_total") or 0) + BROKEN == total

    # A replica with an empty volume beside an answered log says so.
    second = crawl.start("index", STREAM_DEDUP_STATE_DIR=str(crawl.folder / "second"))
    wait_until(
        lambda: reading(second).total("index_restored_empty_total") == 1,
        "the second index says that it began empty",
    )
    assert theirs.total("index_restored_empty_total") == 0

    working = states()
    assert not any(CheckState.REFUSED in one for one in working.values()), working
    assert working["offsets"] == working["declaration"] == working["volume"] == {CheckState.OK}

    # What endangers documents: both roles refuse what doctor refuses, before they read anything.
    for role in (worker, second, index):
        role.stop()
    crawl.admin.set_config(crawl.names.fingerprints, {"retention.ms": "86400000"})
    assert states()["log"] == {CheckState.REFUSED}
    assert run("doctor")[0] == 78
    for name in ("index", "worker"):
        refused = crawl.start(name)
        assert refused.wait() == 78
        assert "retention.ms=86400000, and must have -1" in refused.log
