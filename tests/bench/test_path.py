"""The whole path compared with a plain copy: figures of readings, and tiny runs on Kafka."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.path import Bench, BenchCluster
from bench.path_peers import find_peers
from bench.path_report import (
    VARIANTS,
    PathOptions,
    PathReading,
    PathReport,
    Sample,
    alternate_order,
    timed_window,
)


def reading(seconds: float, committed: int) -> PathReading:
    return PathReading(seconds, committed, {"worker": seconds / 2})


def sample(variant: str, number: int, per_second: float | None, **balance: int) -> Sample:
    documents, seconds = (1000, 1000 / per_second) if per_second else (0, 0.0)
    return Sample(
        variant,
        number,
        documents,
        seconds,
        1.0,
        {"worker": 0.05},
        {},
        {"worker": 2.0},
        {"worker": 7},
        balance,
    )


STEADY = [reading(second, n) for second, n in ((1, 10), (2, 49), (3, 60), (4, 500), (5, 1000))]
EARLY = [replace(reading(1, 100), is_complete=False), reading(2, 300), reading(3, 1000)]
LATE = [replace(reading(n, n * 100), is_complete=False) for n in range(1, 7)]
LATE.append(reading(7, 1000))


@pytest.mark.parametrize(
    ("readings", "window"), [(STEADY, (3, 5)), (EARLY, (2, 3)), (LATE, (7, 7))]
)
def test_the_window_begins_at_5_percent_when_all_workers_have_joined(
    readings: list[PathReading], window: tuple[float, float]
) -> None:
    """It ends when everything is committed; it is empty if workers join too late."""
    assert tuple(bound.seconds for bound in timed_window(readings, 1000)) == window


def test_ratios_are_paired_by_round() -> None:
    """The median of paired ratios, not the ratio of medians; only of rounds with figures."""
    rounds: dict[str, list[float | None]] = {
        "copy": [100.0, 400.0, 50.0, None],
        "bands": [20.0, 30.0, 40.0, 50.0],
        "blocks": [50.0, 100.0, 40.0, 90.0],
        "classic": [None, None, None, None],
    }
    report = PathReport(PathOptions(), {})
    report.samples = [
        sample(variant, number, rounds[variant][number - 1])
        for number in (1, 2, 3, 4)
        for variant in alternate_order(number, VARIANTS)
    ]

    assert report.ratios("blocks") == pytest.approx([0.5, 0.25, 0.8])
    assert report.ratios("classic") == []
    assert report.documents_per_second("blocks") == pytest.approx(70.0)
    assert report.documents_per_second("classic") is None


def test_lost_or_doubled_documents_are_reported() -> None:
    """Every document that goes in must come out once, dead letters included."""
    fields = {"in": 10, "unique": 6, "duplicates": 3, "dead_letters": 1}
    report = PathReport(PathOptions(), {}, [sample("blocks", 1, 100.0, **fields)])

    assert report.complaints == []

    report.samples.append(sample("classic", 2, 100.0, **{**fields, "unique": 5}))

    assert len(report.complaints) == 1
    assert (
        "In round 2 of classic, 10 documents went in and 5 unique, 3 duplicates, 1 dead_letters"
        in report.complaints[0]
    )


@pytest.mark.broker
@pytest.mark.long
def test_a_tiny_run(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The copy copies all documents, and each plan judges all; a fifth are duplicates."""
    command = f"path --documents 2000 --rounds 1 --no-latency --broker {bootstrap} --json -"

    code = main(command.split())
    out, err = capsys.readouterr()

    assert code == 0, err
    result = json.loads(out)
    assert result["complaints"] == []
    assert result["documents"]["count"] == 2000
    assert result["machine"]["cores"] >= 1
    assert list(result["variants"]) == list(VARIANTS)
    found = [(entry["variant"], entry["round"]) for entry in result["samples"]]
    assert found == [(name, 1) for name in VARIANTS]
    copied, *judged = (entry["balance"] for entry in result["samples"])
    assert copied == {"in": 2000, "copies": 2000}
    for balance in judged:
        assert balance["unique"] + balance["duplicates"] == 2000
        assert balance["dead_letters"] == 0
        assert balance["duplicates"] > 400
    for entry in result["samples"]:
        roles = {"copy"} if entry["variant"] == "copy" else {"index", "worker"}
        assert set(entry["cpu_seconds_total"]) == set(entry["memory_bytes_max"]) == roles
        assert all(seconds > 0 for seconds in entry["cpu_seconds_total"].values())
        assert all(size > 1_000_000 for size in entry["memory_bytes_max"].values())
        assert 0 <= entry["window_documents"] <= 1900
    for heading in ("documents/s", "of the copy", "CPU per document", "worker prepare"):
        assert heading in err


@pytest.mark.broker
@pytest.mark.long
def test_peers_copy_all_documents_or_are_named(bootstrap: str, tmp_path: Path) -> None:
    """Each installed peer copies all documents without a process of ours."""
    found, missing = find_peers()
    bench = Bench(
        PathOptions(documents=2000), BenchCluster(bootstrap), tmp_path, lambda _: None, found
    )

    assert set(found) | set(missing) == {"plain", "quix"}
    assert "plain" in found
    for name, peer in found.items():
        measured = bench.throughput(name, 1)

        assert measured.balance == {"in": 2000, "copies": 2000}
        assert set(measured.cpu_seconds_total) == {name}
        assert peer.versions[peer.packages[0]]


@pytest.mark.broker
def test_a_tiny_latency_run(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record of the observed partition comes out once and is counted, however old."""
    monkeypatch.setattr("bench.latency._WARM_UP_DOCUMENTS", 50)
    bench = Bench(
        PathOptions(documents=2000, rates=(40.0, 400.0)),
        BenchCluster(bootstrap),
        tmp_path,
        lambda _: None,
    )

    found = bench.latency("blocks", seconds=0.5)

    shown = [(run.documents_per_second, len(run.ages_ms)) for run in found]
    assert shown == [(40.0, 5), (400.0, 50)]
    assert all(age > 0 for run in found for age in run.ages_ms)
