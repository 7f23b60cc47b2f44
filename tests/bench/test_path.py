"""The comparison of the whole path with a plain copy: what is computed from readings, and a tiny run on a real Kafka."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.children import MeasuredChild
from bench.path import Bench, BenchCluster
from bench.path_around import on_disk, over_loopback
from bench.path_peers import PEERS, CopyPeer, find_peers
from bench.path_report import VARIANTS, PathOptions, PathReading, PathReport, Sample, Start, order, window
from stream_dedup.ground.errors import StreamDedupError
from stream_dedup.settings.environment import child_environment
from tests.broker.harness import wait_until


def reading(seconds: float, committed: int) -> PathReading:
    return PathReading(seconds, committed, {"worker": seconds / 2})


def sample(variant: str, number: int, per_second: float | None, **balance: int) -> Sample:
    documents, seconds = (1000, 1000 / per_second) if per_second else (0, 0.0)
    return Sample(variant, number, documents, seconds, 1.0, {"worker": 0.05}, {}, {"worker": 2.0}, {"worker": 7}, balance)


def test_the_window_begins_at_5_percent_and_ends_when_all_is_committed() -> None:
    """What was committed before is start-up, and the window's first documents are those after its first reading."""
    readings = [reading(1, 10), reading(2, 49), reading(3, 60), reading(4, 500), reading(5, 1000)]

    first, last = window(readings, 1000)

    assert (first.seconds, last.seconds) == (3, 5)
    assert last.committed - first.committed == 940


def test_the_window_waits_for_all_workers() -> None:
    """What one worker did before the others had joined is start-up; if they joined too late there is no figure."""
    early = [replace(reading(1, 100), is_complete=False), reading(2, 300), reading(3, 1000)]
    late = [replace(reading(at, at * 100), is_complete=False) for at in range(1, 7)] + [reading(7, 1000)]

    assert [one.seconds for one in window(early, 1000)] == [2, 3]
    assert [one.seconds for one in window(late, 1000)] == [7, 7]


def test_a_start_is_over_when_all_have_joined_and_every_partition_has_moved_since() -> None:
    """One that a member gave away stands still until its new owner commits; one worker has nothing to wait for."""
    start = Start(workers=2, partitions=3)
    steps = [
        (1, {("d", 0): 5, ("d", 1): 5}),
        (2, {("d", 0): 6, ("d", 1): 6}),
        (2, {("d", 0): 9, ("d", 1): 6, ("d", 2): 4}),
        (2, {("d", 0): 9, ("d", 1): 7}),
    ]
    for members, committed in steps:
        start.see(members, committed)
        assert not start.is_over
        assert start.is_joined == (members == 2)

    start.see(0, {("d", 0): 9, ("d", 1): 7, ("d", 2): 4})
    assert start.is_over
    start.see(0, {})  # the coordinator moved: nothing is told, and nothing begins again
    assert start.is_over
    assert Start(workers=1, partitions=3).is_over


def test_a_ratio_is_of_two_measurements_of_one_round() -> None:
    """The median of paired ratios, not the ratio of medians; a round without a figure has no ratio."""
    rounds: dict[str, list[float | None]] = {
        "copy": [100.0, 400.0, 50.0, None],
        "bands": [20.0, 30.0, 40.0, 50.0],
        "blocks": [50.0, 100.0, 40.0, 90.0],
        "classic": [None, None, None, None],
    }
    report = PathReport(PathOptions(), {})
    report.samples = [
        sample(variant, number, rounds[variant][number - 1]) for number in (1, 2, 3, 4) for variant in order(number, VARIANTS)
    ]

    assert report.ratios("blocks") == pytest.approx([0.5, 0.25, 0.8])
    assert report.ratios("classic") == []
    assert report.documents_per_second("blocks") == pytest.approx(70.0)
    assert report.documents_per_second("classic") is None


def test_what_is_lost_or_doubled_is_a_complaint() -> None:
    """In must be out, to a document, dead letters included."""
    fields = {"in": 10, "unique": 6, "duplicates": 3, "dead_letters": 1}
    report = PathReport(PathOptions(), {}, [sample("blocks", 1, 100.0, **fields)])

    assert report.complaints == []

    report.samples.append(sample("classic", 2, 100.0, **{**fields, "unique": 5}))

    assert len(report.complaints) == 1
    assert "In round 2 of classic, 10 documents went in and 5 unique, 3 duplicates, 1 dead_letters" in report.complaints[0]


def test_a_child_that_ends_by_itself_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    """It is not waited for as if it were slow."""
    command = [sys.executable, "-m", "stream_dedup", "no-such-command"]
    child = MeasuredChild("worker", command, child_environment({}), tmp_path)

    def complaint() -> str:
        try:
            child.check()
        except StreamDedupError as error:
            return str(error)
        return ""

    said = wait_until(complaint, "the child is known to have ended", 60)
    child.stop()

    assert said.startswith("The worker ended by itself with 2. It said last:\n")
    assert "no-such-command" in said


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells a process's own peak")
def test_memory_is_the_child_s_own(tmp_path: Path) -> None:
    """A small child of a large process is small; wait4 would count what its parent had when it forked."""
    heap = bytearray(b"x") * 300_000_000
    program = "import sys; print('here', flush=True); sys.stdin.read()"
    child = MeasuredChild("small", [sys.executable, "-S", "-c", program], {}, tmp_path)
    wait_until(lambda: child.log, "the child runs", 60)
    child.stop()

    assert child.usage is not None
    assert 1_000_000 < child.usage.memory_bytes_max < len(heap) / 2


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--documents", "1999"], 2, "2000"),
        (["--size", "10"], 1, "ask for 250 to 1000000."),
        (["--duplicates", "1"], 1, "leaves no originals"),
        (["--workers", "5"], 1, "Of 5 workers only 4 would have a partition; give --partitions 5"),
        (["--languages", "en,xx"], 1, "There are no texts in xx"),
        (["--json", "no/such/folder/x.json"], 1, "The results cannot be written to no/such/folder/x.json"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, sentence: str
) -> None:
    """A mistake is found before a broker is started, and said in a sentence."""
    assert main(["path", "--broker", "127.0.0.1:1", *arguments]) == code

    assert sentence in capsys.readouterr().err


def test_bytes_on_disk_are_those_of_the_logs_by_topic(tmp_path: Path) -> None:
    """Partitions are added up, names lose the run's prefix, other runs, index files and empty topics are left out."""
    for folder, size in (("b-1.documents-0", 7), ("b-1.documents-11", 5), ("b-1.dlq.documents-0", 0), ("b-11.unique-0", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "00.log").write_bytes(bytes(size))
        (tmp_path / folder / "00.index").write_bytes(bytes(1000))

    assert on_disk(tmp_path, "b-1.") == {"documents": 12}
    assert on_disk(None, "b-1.") == {}


def test_bytes_over_loopback_are_those_sent(tmp_path: Path) -> None:
    """The ninth number of the line; without such a list, or without the interface, there is none."""
    path = tmp_path / "dev"
    path.write_text("Inter-| Receive\n face |bytes\n  eth0: 1 2 3 4 5 6 7 8 9 10\n    lo: 11 12 13 14 15 16 17 18 19 20\n")

    assert over_loopback(path) == 19

    path.write_text("Inter-| Receive\n")

    assert over_loopback(path) is None
    assert over_loopback(tmp_path / "none") is None


def peer(name: str) -> CopyPeer:
    (found,) = [one for one in PEERS if one.name == name]
    return found


def test_a_copy_at_least_once_may_copy_twice_and_not_less() -> None:
    """Only what a peer promises is asked of it, and what it breaks is not ours to be told of."""
    report = PathReport(PathOptions(), {}, peers={name: peer(name) for name in ("quix", "plain")})
    report.samples = [
        sample("plain", 1, 100.0, **{"in": 10, "copies": 11}),
        sample("quix", 1, 100.0, **{"in": 10, "copies": 10}),
    ]

    assert report.complaints == []

    report.samples = [
        sample("plain", 1, 100.0, **{"in": 10, "copies": 9}),
        sample("quix", 1, 100.0, **{"in": 10, "copies": 11}),
    ]

    assert [one.partition("; ")[2] for one in report.complaints] == [
        "its figures do not count, ask confluent-kafka without transactions.",
        "its figures do not count, ask Quix Streams.",
    ]


def test_a_peer_that_is_not_here_is_named_with_the_remedy(tmp_path: Path) -> None:
    """No environment, an environment without it, and no source folder are told apart."""
    found, missing = find_peers(tmp_path)

    assert found == {}
    assert all("source folder" in sentence for sentence in missing.values())
    assert list(missing) == ["plain", "quix"]

    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "copy_quix.py").touch()

    assert "run `make peers`" in find_peers(tmp_path)[1]["quix"]

    python = tmp_path / ".venv-peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', encoding="utf-8")
    python.chmod(0o755)

    assert "No package metadata was found for quixstreams" in find_peers(tmp_path)[1]["quix"]


@pytest.mark.broker
@pytest.mark.long
def test_a_tiny_run(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each variant is measured once and balanced: the copy copies all, and each plan judges all, a fifth at least twice."""
    arguments = ["--documents", "2000", "--rounds", "1", "--no-latency", "--broker", bootstrap, "--json", "-"]

    code = main(["path", *arguments])
    out, err = capsys.readouterr()

    assert code == 0, err
    result = json.loads(out)
    assert result["complaints"] == []
    assert result["documents"]["count"] == 2000
    assert result["machine"]["cores"] >= 1
    assert list(result["variants"]) == list(VARIANTS)
    assert [(one["variant"], one["round"]) for one in result["samples"]] == [
        ("copy", 1),
        ("bands", 1),
        ("blocks", 1),
        ("classic", 1),
    ]
    copied, *judged = (one["balance"] for one in result["samples"])
    assert copied == {"in": 2000, "copies": 2000}
    for balance in judged:
        assert balance["unique"] + balance["duplicates"] == 2000
        assert balance["dead_letters"] == 0
        assert balance["duplicates"] > 400
    for one in result["samples"]:
        roles = {"copy"} if one["variant"] == "copy" else {"index", "worker"}
        assert set(one["cpu_seconds_total"]) == set(one["memory_bytes_max"]) == roles
        assert all(seconds > 0 for seconds in one["cpu_seconds_total"].values())
        assert all(size > 1_000_000 for size in one["memory_bytes_max"].values())
        assert 0 <= one["window_documents"] <= 1900
    for heading in (
        "documents/s",
        "of the copy",
        "CPU per document",
        "worker prepare",
        "Bytes are known of a broker of our own only",
    ):
        assert heading in err


@pytest.mark.broker
@pytest.mark.long
def test_the_index_holds_entries_before_the_first_document(bootstrap: str, tmp_path: Path) -> None:
    """The roles take the log for one of their own, and each entry stands in the index as a representative."""
    bench = Bench(PathOptions(documents=2000, index_entries=3500), BenchCluster(bootstrap), tmp_path, lambda _: None)

    with bench._prepared("blocks") as (settings, _, folder), bench._running("blocks", settings, folder) as (index, worker):

        def entries() -> float:
            index.check()
            worker.check()
            try:
                return sum(one.value for one in index.metrics() if one.name == "stream_dedup_index_entries")
            except StreamDedupError:  # it has just started
                return 0.0

        assert wait_until(entries, "the index has entries", 60) <= 3500
        wait_until(lambda: entries() == 3500, "the index has all entries", 60)


@pytest.mark.broker
@pytest.mark.long
def test_several_copies_share_the_partitions(bootstrap: str, tmp_path: Path) -> None:
    """Partitions move while the copies start, and still each document is copied once."""
    bench = Bench(PathOptions(documents=2000, workers=2, partitions=3), BenchCluster(bootstrap), tmp_path, lambda _: None)

    measured = bench.throughput("copy", 1)

    assert measured.balance == {"in": 2000, "copies": 2000}
    assert set(measured.cpu_seconds_total) == set(measured.memory_bytes_max) == {"copy"}


@pytest.mark.broker
@pytest.mark.long
def test_peers_copy_all_documents_or_are_named(bootstrap: str, tmp_path: Path) -> None:
    """Each program that is here copies what it is given, from the first document to the last, with nothing of ours in it."""
    found, missing = find_peers()
    bench = Bench(PathOptions(documents=2000), BenchCluster(bootstrap), tmp_path, lambda _: None, found)

    assert set(found) | set(missing) == {"plain", "quix"}
    assert "plain" in found
    for name, one in found.items():
        measured = bench.throughput(name, 1)

        assert measured.balance == {"in": 2000, "copies": 2000}
        assert set(measured.cpu_seconds_total) == {name}
        assert one.versions[one.packages[0]]


@pytest.mark.broker
def test_a_tiny_latency_run(bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record that is sent to the observed one of four partitions comes out once and is counted, however old it is."""
    monkeypatch.setattr("bench.latency._WARM_UP_DOCUMENTS", 50)
    bench = Bench(PathOptions(documents=2000, rates=(40.0, 400.0)), BenchCluster(bootstrap), tmp_path, lambda _: None)

    found = bench.latency("blocks", seconds=0.5)

    assert [(one.documents_per_second, len(one.ages_ms)) for one in found] == [(40.0, 5), (400.0, 50)]
    assert all(age > 0 for one in found for age in one.ages_ms)
