"""`top`: what is read, what becomes of it, and roles that do not answer."""

from __future__ import annotations

import io
import json
import math
import random
import socket
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from rich.console import Console

from stream_dedup.cli.top import RoleReading, TopRow, drawn, parse, quantile, row_of
from stream_dedup.ground.document import LogPlace, Reason
from stream_dedup.indexer.metrics import IndexMetrics
from stream_dedup.log.answers import Judgement
from stream_dedup.search.metrics import SearchMetrics
from stream_dedup.service.health import Health
from stream_dedup.service.metrics import RoleMetrics
from stream_dedup.worker.metrics import WorkerMetrics
from stream_dedup.worker.outputs import EmittedCounts
from tests.service.serving import serving
from tests.service.test_metrics import FIGURES, OF, leaving

NEW = Judgement(Reason.NEW, LogPlace(0, 0))
NEAR = Judgement(Reason.NEAR, LogPlace(0, 0), 3, OF)


def reading(metrics: RoleMetrics, seconds: float) -> RoleReading:
    return parse(generate_latest(metrics.registry).decode(), seconds)


def test_a_worker_s_row_is_what_happened_between_two_readings() -> None:
    metrics = WorkerMetrics("r")
    metrics.left(EmittedCounts.of([leaving(NEAR)] * 4))
    before = reading(metrics, 100.0)
    metrics.left(
        EmittedCounts.of([leaving(NEW, bytes(500_000))] * 3 + [leaving(NEAR, bytes(500_000))])
    )
    metrics.transactions.labels("committed").inc()
    metrics.transactions.labels("committed").inc()
    metrics.transactions.labels("aborted").inc()
    metrics.lag("documents", 0, 5)
    metrics.lag("documents", 1, 7)
    metrics.in_flight(1, 42, 4200)

    row = row_of("http://w:1", before, reading(metrics, 102.0))

    rates = {
        "documents_rate": 2.0,
        "bytes_rate": 1e6,
        "dead_letters_rate": 0.0,
        "latency_p50_seconds": None,
    }
    ratios = {"duplicate_ratio": 0.25, "duplicate_ratio_ever": 5 / 8, "aborted_ratio": 1 / 3}
    expected = {"role": "worker", "lag_records": 12, "in_flight_documents": 42, **rates, **ratios}
    assert row.to_fields().items() >= expected.items()
    assert "representatives" not in row.to_fields()


def test_an_index_s_row() -> None:
    metrics = IndexMetrics()
    state = FIGURES | {"applied": 70, "candidates": 0}
    metrics.state(state, (0,) * 33)
    before = reading(metrics, 0.0)
    metrics.state({**state, "applied": 80, "candidates": 30}, (0, 0, 0, 6, *(0,) * 29))

    row = row_of("http://i:1", before, reading(metrics, 4.0))

    expected = {
        "role": "index",
        "log_records_rate": 2.5,
        "applied_offset": 80,
        "representatives": 7,
        "index_bytes": 4096,
    }
    assert row.to_fields().items() >= (expected | {"candidates_mean": 5}).items()


def test_a_search_s_row() -> None:
    metrics = SearchMetrics()
    metrics.read.inc(10)
    metrics.answers.observe(9.0)
    before = reading(metrics, 0.0)
    metrics.read.inc(30)
    metrics.holds(40, 8_000_000)
    metrics.lag.set(5)
    metrics.answers.observe(0.02)

    row = row_of("http://s:1", before, reading(metrics, 2.0))

    assert (row.role, row.figures["search_records_rate"], row.figures["search_lag_records"]) == (
        "search",
        15,
        5,
    )
    assert (row.figures["search_documents"], row.figures["search_bytes"]) == (40, 8_000_000)
    assert row.figures["answer_p99_seconds"] is not None
    assert 0.01 < row.figures["answer_p99_seconds"] <= 0.025


def test_a_restart_or_a_first_reading_gives_no_rates() -> None:
    """Counters of another process are not compared; what needs one reading only is there."""
    metrics = WorkerMetrics("r")
    now = reading(metrics, 2.0)
    other = RoleReading(1.0, {**now.values, "process_start_time_seconds": {frozenset(): 1.0}})

    for before in ("connection refused", other):
        row = row_of("http://w:1", before, now)
        assert row.role == "worker"
        assert row.figures["documents_rate"] is None
        assert row.problem is None


def test_what_is_no_role_says_so() -> None:
    assert row_of("a", "", parse("go_threads 5\n", 1.0)).problem == "is no role of stream-dedup"
    assert row_of("a", "", "Connection refused").problem == "Connection refused"


SHOWN = {
    "worker": "12,345 123.4 33.3 % 0.5 1.2M 33 ms 119.0 s 12,000 100 %",
    "index": "80 123,456,789 1,234,567,890 4.5 40,000 MB",
    "insights": "3 5 1,000,000",
}
FULL = {
    "documents_rate": 12_345.0,
    "bytes_rate": 123.4e6,
    "dead_letters_rate": 0.5,
    "duplicate_ratio": 0.333,
}
FULL |= {
    "lag_records": 1.2e6,
    "latency_p50_seconds": 0.033,
    "latency_p99_seconds": 119.0,
    "in_flight_documents": 12_000.0,
}
FULL |= {
    "aborted_ratio": 1.0,
    "log_records_rate": 80.0,
    "applied_offset": 123_456_789.0,
    "representatives": 1_234_567_890.0,
}
FULL |= {
    "index_bytes": 40e9,
    "candidates_mean": 4.5,
    "insights_records_rate": 3.0,
    "insights_lag_records": 5.0,
    "hosts": 1e6,
}


@pytest.mark.parametrize("width", [80, 100, 200])
def test_each_role_has_a_line_with_all_its_figures(width: int) -> None:
    """Among its own kind, and a silent one says why; at 80 columns too."""
    rows = [TopRow(f"http://{role}:8080", role, figures=FULL) for role in SHOWN]
    rows.append(TopRow("http://silent:8080", None, problem="Connection refused"))
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system=None).print(
        drawn(rows), crop=False
    )

    lines = [
        " ".join(line.split())
        for line in file.getvalue().splitlines()
        if len(line.rstrip()) <= width
    ]
    for role, figures in SHOWN.items():
        assert f"{role}:8080 {figures}" in lines
    assert "silent:8080 Connection refused" in lines


def test_quantiles_lie_in_the_bucket_of_the_true_one() -> None:
    """Against the values themselves, for random ones; nothing counted has no quantile, beyond the
    last edge is that edge."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    edges = [0.01, 0.1, 1.0, 10.0, math.inf]
    values = sorted(
        chance.choice([0.005, 0.05, 0.5, 5.0]) * chance.uniform(0.5, 1.5) for _ in range(200)
    )
    counts = {edge: float(sum(value <= edge for value in values)) for edge in edges}

    for share in (0.01, 0.5, 0.9, 0.99):
        true = values[math.ceil(share * len(values)) - 1]
        found = quantile(counts, share)
        assert found is not None
        assert bisect_left(edges, found) == bisect_left(edges, true)
    assert quantile({}, 0.5) is None
    assert quantile({1.0: 0.0, math.inf: 0.0}, 0.5) is None
    assert quantile({1.0: 0.0, math.inf: 3.0}, 0.5) == 1.0


@pytest.fixture
def served() -> Iterator[str]:
    metrics = WorkerMetrics("r")
    metrics.left(EmittedCounts.of([leaving(NEW), leaving(NEAR)]))
    with serving(registry=metrics.registry) as server:
        yield f"http://127.0.0.1:{server.port}"


def test_once_over_http(run: Callable[..., Any], served: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{held.getsockname()[1]}"

        ended = run("top", served + "/metrics", nobody, "--once", "--json", "--interval", "0.1")
        table = run("top", served, nobody, "--once", "--interval", "0.1")
        alone = run("top", nobody, "--once", "--interval", "0.1")

    first, second = json.loads(ended.out)["roles"]
    assert (ended.code, table.code, alone.code) == (0, 0, 1)
    assert (first["role"], first["documents_rate"], first["duplicate_ratio_ever"]) == (
        "worker",
        0.0,
        0.5,
    )
    assert (second["role"], second["problem"]) == (None, "Connection refused")
    assert "50.0 %" in table.out
    assert "Connection refused" in table.out


def test_stats_are_exact_since_the_start_of_each_worker(run: Callable[..., Any]) -> None:
    metrics = [WorkerMetrics("r"), WorkerMetrics("r"), IndexMetrics()]
    metrics[0].left(EmittedCounts.of([leaving(NEW, bytes(40)), leaving(NEAR, bytes(10))]))
    metrics[1].left(EmittedCounts.of([leaving(NEAR, bytes(50))] * 2))
    metrics[2].state(FIGURES, (0,) * 33)
    with ExitStack() as opened, socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        asked = [
            f"http://127.0.0.1:{opened.enter_context(serving(registry=one.registry)).port}"
            for one in metrics
        ]
        ended = run("stats", *asked, f"127.0.0.1:{held.getsockname()[1]}", "--json")
        table = run("stats", *asked)
        nobody = run("stats", asked[2])

    found = json.loads(ended.out)
    first, whole = found["workers"][0], found["total"]
    assert [row["worker"] for row in found["workers"]] == asked[:2]
    assert (
        first["documents"],
        first["duplicates"],
        first["bytes_saved"],
        first["share_saved"],
    ) == (2, 1, 10, 0.2)
    assert (whole["documents"], whole["duplicates"], whole["bytes"], whole["bytes_saved"]) == (
        4,
        3,
        150,
        110,
    )
    assert whole["reasons"] == {"near": 3, "new": 1}
    assert first["since"].startswith("20")
    assert "Connection refused; what it saved is not in these figures" in ended.err
    assert (
        f"saved 110B, 73.3 %, since {whole['since']}: 3 of 4 documents were duplicates" in table.out
    )
    assert (nobody.code, nobody.out) == (1, "")
    assert "No worker answers" in nobody.err


def test_what_is_not_ready_says_why(run: Callable[..., Any]) -> None:
    """With its figures, and the sentence of its probe below; one that is ready stands in no such
    table."""
    health = Health()
    health.ready(False, "waiting for an index: none has answered yet")
    with serving(health=health, registry=WorkerMetrics("r").registry) as server:
        address = f"http://127.0.0.1:{server.port}"
        waiting = json.loads(run("top", address, "--once", "--json", "--interval", "0.1").out)[
            "roles"
        ][0]
        table = run("top", address, "--once", "--interval", "0.1")
        health.ready(True, "documents flow")
        going = json.loads(run("top", address, "--once", "--json", "--interval", "0.1").out)[
            "roles"
        ][0]
        clean = run("top", address, "--once", "--interval", "0.1")

    assert (waiting["ready"], waiting["waits_for"]) == (
        False,
        "waiting for an index: none has answered yet",
    )
    assert "not ready" in table.out
    assert "none has answered yet" in table.out
    assert (going["ready"], going["waits_for"]) == (True, "")
    assert "not ready" not in clean.out


def test_an_address_that_cannot_be_is_a_sentence(run: Callable[..., Any]) -> None:
    for url in ("ftp://a:1", "http://", "http://a:99999999"):
        ended = run("top", url, "--once")
        assert ended.code == 1
        assert "is no address of a role" in ended.err
