"""Commands on a real Apache Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stream_dedup.domain import topics
from tests.cli.running import Run
from tests.waiting import wait_until

pytestmark = pytest.mark.broker


@pytest.fixture
def prefix(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The topic prefix of a new filter on the shared broker, set in the environment."""
    name = f"c{uuid.uuid4().hex[:10]}"
    monkeypatch.setenv("STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS", bootstrap)
    monkeypatch.setenv("STREAM_DEDUP_TOPIC_PREFIX", name)
    monkeypatch.setenv("STREAM_DEDUP_GROUP", name)
    monkeypatch.setenv("STREAM_DEDUP_HTTP_PORT", "0")
    return name


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start commands as child processes with their output in a file; what is left is killed with
    its children."""
    started: list[subprocess.Popen[bytes]] = []

    def start_command(*arguments: str, out: Path, err: Path) -> subprocess.Popen[bytes]:
        with out.open("wb") as stdout, err.open("wb") as stderr:
            command = [sys.executable, "-m", "stream_dedup", *arguments]
            started.append(
                subprocess.Popen(command, stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL)
            )
        return started[-1]

    yield start_command
    for process in started:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.wait(30)


def load_some(run: Run, tmp_path: Path) -> Any:
    path = tmp_path / "pages.jsonl"
    words = " ".join(f"word{number}" for number in range(100))
    lines = [json.dumps({"url": f"http://h/{number}", "text": words}) for number in range(3)]
    path.write_text("\n".join([*lines, "{broken", '{"id": "\\u001b[31mevil"}']) + "\n")
    return run("load", path, "--json", "--set", "value_format=json")


def test_topics_are_planned_created_and_then_correct(run: Run, prefix: str) -> None:
    """Plan shows what is missing and changes nothing; apply creates it; then there is nothing to
    do; growing works."""

    def actions(*arguments: str) -> set[str]:
        return {row["action"] for row in run("topics", *arguments, "--fit-brokers", "--json").json}

    assert actions("plan") == {"create"}
    assert actions("plan") == {"create"}
    assert actions("apply", "--partitions", "2") == {"create"}
    assert actions("plan", "--partitions", "2") == {"none"}
    assert (
        run("topics", "plan", "--fit-brokers").out.splitlines()[1].startswith(f"{prefix}.documents")
    )


def test_load_refuses_a_missing_topic(run: Run, prefix: str, tmp_path: Path) -> None:
    """Loading never creates a topic."""
    ended = load_some(run, tmp_path)

    assert ended.code == 78
    assert f"The topic {prefix}.documents does not exist" in ended.err
    assert f"{prefix}.documents does not exist" in run("topics", "plan", "--fit-brokers").out


def test_load_run_all_and_tap(
    run: Run,
    start: Callable[..., subprocess.Popen[bytes]],
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Documents loaded from a file come out of the filter and are seen in tap; SIGTERM ends
    everything with 0."""
    monkeypatch.setenv("STREAM_DEDUP_VALUE_FORMAT", "json")
    run("topics", "apply", "--fit-brokers", "--partitions", "1")
    loaded = load_some(run, tmp_path)
    assert loaded.code == 0
    totals = loaded.json
    assert (totals["documents"], totals["broken_lines"], totals["failed"]) == (5, 1, 0)
    assert "pages.jsonl:4 is not JSON" in loaded.err
    out, err = tmp_path / "out", tmp_path / "err"
    filtering = start("run", "all", out=out, err=err)

    tapped = run("tap", "--from-beginning", "--limit", "5", "--json")
    filtering.send_signal(signal.SIGTERM)

    found = tapped.rows
    assert sorted(
        (row["id"], row["verdict"], row["reason"], row["of_id"]) for row in found if row["id"]
    ) == [
        ("\x1b[31mevil", "dead-letter", "field", None),
        ("http://h/0", "unique", "new", None),
        ("http://h/1", "duplicate", "exact", "http://h/0"),
        ("http://h/2", "duplicate", "exact", "http://h/0"),
    ]
    assert [row["reason"] for row in found if row["id"] is None] == ["decode"]
    shown = run("tap", "--from-beginning", "--limit", "2", "--only", "dead-letters")
    assert "\\x1b[31mevil" in shown.out
    assert "\x1b" not in shown.out
    assert filtering.wait(60) == 0, err.read_text()
    roles = {json.loads(line)["role"] for line in err.read_text().splitlines()}
    assert roles == {"index", "worker", "search"}


@pytest.mark.thorough
def test_children_end_with_a_killed_parent(
    run: Run,
    start: Callable[..., subprocess.Popen[bytes]],
    prefix: str,
    tmp_path: Path,
) -> None:
    run("topics", "apply", "--fit-brokers", "--partitions", "1")
    err = tmp_path / "err"
    parent = start("run", "all", out=tmp_path / "out", err=err)
    roles = ("worker", "index", "search")
    wait_until(lambda: all(f"{role} started" in err.read_text() for role in roles), "all roles run")
    children = psutil.Process(parent.pid).children(recursive=True)
    assert len(children) == 3

    parent.kill()
    parent.wait(30)

    gone, alive = psutil.wait_procs(children, timeout=60)
    assert (len(gone), alive) == (3, [])


@pytest.mark.thorough
@pytest.mark.skipif("BROKER" in os.environ, reason="no broker of our own: BROKER names another")
def test_broker_runs_until_ctrl_c_and_deletes_its_data(
    bootstrap: str,
    run: Run,
    start: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    """`broker` starts one, creates the topics, says how to use it, and leaves nothing behind after
    Ctrl-C."""
    del bootstrap  # skips this test where no broker can be started
    out, err = tmp_path / "out", tmp_path / "err"
    broker = start("broker", "--partitions", "2", out=out, err=err)
    wait_until(
        lambda: "runs until Ctrl-C" in err.read_text() or broker.poll() is not None,
        "the broker runs",
    )
    line = out.read_text().splitlines()[0]
    address = line.removeprefix("export STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS=")

    planned = run("topics", "plan", "--fit-brokers", "--partitions", "2", "--json", "-b", address)
    broker.send_signal(signal.SIGINT)

    found = [(row["topic"], row["action"]) for row in planned.json]
    assert found == [(kind, "none") for kind in topics.ALL]
    assert broker.wait(60) == 0, err.read_text()
    folder = err.read_text().split("Its data in ")[1].split(" is deleted")[0]
    assert not Path(folder).exists()
