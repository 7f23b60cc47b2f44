"""When an index takes snapshots, by itself and when it is asked; and that no store and no process
beside it ends it."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from stream_dedup.domain.errors import ConfigurationError, StoreError
from stream_dedup.domain.plan import PLANS
from stream_dedup.index import snapshot
from stream_dedup.index.index import LogIndex
from stream_dedup.index.snapshot import complete_snapshots
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.indexer import snapshot_child
from stream_dedup.indexer import snapshots as module
from stream_dedup.indexer.metrics import IndexMetrics
from stream_dedup.indexer.snapshot_child import run_job
from stream_dedup.indexer.snapshots import Snapshots
from stream_dedup.inputs.storage import storage_at
from stream_dedup.settings.settings import Settings
from tests.index.logs import APPEND_MS, RandomLog
from tests.waiting import wait_until

SEED = int(os.environ["TEST_SEED"])
LOG = "cluster/topic"
HOUR = 3600.0


class Child:
    """A child process that does its job when `work` is called."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.output, self.returncode = job, b"", 0
        self.is_over = False

    def work(self) -> None:
        self.output, self.is_over = json.dumps(run_job(self.job)).encode(), True

    def poll(self) -> int | None:
        return 0 if self.is_over else None

    def communicate(self) -> tuple[bytes, None]:
        return self.output, None

    def kill(self) -> None:
        self.is_over = True

    def wait(self) -> None:
        pass


class Clock:
    """The clock of the schedule and of the snapshots, which a test can set forward."""

    def __init__(self) -> None:
        self.later = 0.0
        self._real = time.time

    def time(self) -> float:
        return self._real() + self.later


class Replica:
    """One index of those that share a place."""

    def __init__(self, folder: Path, host: str, place: Path) -> None:
        self.folder = folder / host
        self.index = LogIndex(RocksStore(self.folder))
        self.index.bind(LOG)
        records = RandomLog(SEED, PLANS["blocks"]).records(20)
        self.index.apply([(offset, APPEND_MS + offset, raw) for offset, raw in enumerate(records)])
        self.metrics = IndexMetrics()
        self.started: list[Child] = []
        self.host, self.place = host, place
        self.begin()

    def begin(self) -> None:
        settings = Settings(snapshots=str(self.place))
        self.snapshots = Snapshots(
            settings, self.folder, self.host, self.metrics, structlog.get_logger(), self._start
        )

    def _start(self, job: dict[str, Any]) -> Any:
        self.started.append(Child(job))
        return self.started[-1]

    def turn(self, *, has_caught_up: bool = True) -> list[str]:
        """Let a second pass, and all that is started end; return what was started."""
        before, found = len(self.started), []
        for _ in range(4):
            self.snapshots.advance(
                self.index, has_caught_up=has_caught_up, report_step=lambda _: None
            )
            for child in self.started[before:]:
                child.work()
                found.append(child.job["do"])
            before = len(self.started)
        return found

    def gauge(self, name: str) -> float:
        found = self.metrics.registry.get_sample_value(f"stream_dedup_snapshot_{name}")
        assert found is not None
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "EVERY_SECONDS", HOUR)
    monkeypatch.setattr(module.time, "time", clock.time)
    real = snapshot.dt.datetime

    class Shifted(real):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real.now(tz) + timedelta(seconds=clock.later)

    monkeypatch.setattr(snapshot.dt, "datetime", Shifted)
    return clock


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    found = (
        Replica(tmp_path, "index-0", tmp_path / "s"),
        Replica(tmp_path, "index-1", tmp_path / "s"),
    )
    yield found
    for replica in found:
        replica.snapshots.close()
        replica.index.close()


def test_one_of_two_replicas_takes_the_snapshots(
    replicas: tuple[Replica, Replica], clock: Clock, tmp_path: Path
) -> None:
    """The same again and again, the other when that one is late; while the log is read, none is
    taken."""
    first, second = replicas
    assert first.turn(has_caught_up=False) == []
    assert first.turn() == ["take"]
    assert second.turn() == ["take"]
    for _ in range(3):
        clock.later += HOUR
        assert second.turn() in ([], ["take"])  # it finds the recent one of the other replica
        assert first.turn() == ["take"]
    taken = [found.name for found in complete_snapshots(storage_at(tmp_path / "s"))]
    assert len(taken) == 2  # as many as are kept
    assert all(name.endswith("-index-0") for name in taken)
    first.begin()
    assert first.turn() == ["take"]
    clock.later += 1.3 * HOUR
    second.turn()
    assert [
        found.name.endswith("-index-1") for found in complete_snapshots(storage_at(tmp_path / "s"))
    ] == [
        True,
        False,
    ]


def test_a_snapshot_is_taken_on_request(
    replicas: tuple[Replica, Replica], clock: Clock, tmp_path: Path
) -> None:
    """Also while the log is read, and however young the last is; the file that asks is gone."""
    replica, _ = replicas
    replica.turn()
    for count in (2, 2):
        (replica.folder / snapshot.REQUEST_FILE).touch()
        assert replica.turn(has_caught_up=False) == ["take"]
        assert len(list(complete_snapshots(storage_at(tmp_path / "s")))) == count
    assert not (replica.folder / snapshot.REQUEST_FILE).exists()
    assert not list(replica.folder.glob("checkpoint*"))


def test_age_and_size_are_those_of_the_last_snapshot(
    replicas: tuple[Replica, Replica], clock: Clock
) -> None:
    """Of any replica, over a restart too; before there is one the age grows from the start on, so
    that its alert comes."""
    first, second = replicas
    clock.later += HOUR
    assert HOUR <= first.gauge("age_seconds") < HOUR + 60
    assert math.isnan(
        IndexMetrics().registry.get_sample_value("stream_dedup_snapshot_age_seconds") or 0
    )
    first.turn()
    assert first.gauge("age_seconds") < 60
    clock.later += HOUR / 2
    assert second.turn() == ["take"]
    assert HOUR / 2 - 2 <= second.gauge("age_seconds") < HOUR / 2 + 60
    assert second.gauge("size_bytes") == first.gauge("size_bytes") > 10_000


def test_a_failed_snapshot_is_tried_again(
    replicas: tuple[Replica, Replica], clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is away, a process that was killed, a checkpoint that finds no room: the index
    goes on with its log."""
    replica, _ = replicas
    (tmp_path / "s").write_text("no folder")
    assert replica.turn() == ["take"]
    assert replica.turn() == []
    (tmp_path / "s").unlink()
    clock.later += 301
    assert replica.turn() == ["take"]
    clock.later += HOUR

    def full(_: Path) -> None:
        raise StoreError("The index volume could not be copied: the disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(replica.index, "checkpoint", full)
        assert replica.turn() == []
    clock.later += 301
    monkeypatch.setattr(Child, "work", lambda self: None)
    assert replica.turn() == ["take"]
    assert list(replica.folder.glob("checkpoint*"))
    clock.later += 25 * HOUR  # it hangs
    assert replica.turn() == []
    assert not list(replica.folder.glob("checkpoint*"))
    monkeypatch.undo()
    assert replica.index.applied == 20


@pytest.mark.thorough
def test_the_child_takes_a_snapshot_and_ends_with_its_parent(
    replicas: tuple[Replica, Replica], tmp_path: Path
) -> None:
    """A real process and checkpoint; a child without its parent leaves no complete snapshot."""
    replica, _ = replicas
    replica.index.flush()
    replica.index.checkpoint(replica.folder / "checkpoint")
    snapshot.clear_unfinished(replica.folder)  # as an index does that starts after a kill
    assert not (replica.folder / "checkpoint").exists()
    assert (replica.folder / "CURRENT").exists()
    replica.index.checkpoint(replica.folder / "checkpoint")
    job = {
        "do": "take",
        "place": str(tmp_path / "s"),
        "volume": str(replica.folder / "checkpoint"),
        "by": "x",
        "keep": 1,
        "every_seconds": 0,
    }
    child = module._start_child(job)
    wait_until(lambda: child.poll() is not None, "the child ends")
    found = module._read_result(child)
    assert (found["applied"], found["is_new"]) == (20, True)
    orphan = module._start_child(job)
    os.kill(orphan.pid, signal.SIGSTOP)
    assert orphan.stdin is not None
    orphan.stdin.close()
    os.kill(orphan.pid, signal.SIGCONT)
    wait_until(lambda: orphan.poll() is not None, "the orphan ends")
    assert orphan.stdout is not None
    assert orphan.stdout.read() == b""


def test_an_empty_volume_is_restored_from_the_newest_snapshot(
    replicas: tuple[Replica, Replica], tmp_path: Path
) -> None:
    """Only a snapshot of this log is restored; without one the log is read."""
    replica, _ = replicas
    replica.turn()
    new = Replica(tmp_path, "index-2", tmp_path / "s")
    new.index.close()
    for log, name in (("another/topic", "a"), (LOG, "b")):
        new.folder = tmp_path / name
        new.begin()
        asked: list[int] = []

        def turn(size: int, asked: list[int] = asked, new: Replica = new) -> None:
            asked.append(size)
            new.started[-1].work()

        new.snapshots.restore(log, turn)
        assert asked == [0]
    assert not (tmp_path / "a" / "CURRENT").exists()
    index = LogIndex(RocksStore(tmp_path / "b"))
    assert (index.applied, index.restored) == (20, True)
    index.close()


class NoCredentialsError(Exception):
    """What botocore raises; the name is all that the libraries' errors have in common."""


@pytest.mark.parametrize(
    ("cause", "ends"),
    [
        (NoCredentialsError("Unable to locate credentials"), True),
        (PermissionError("Forbidden"), True),
        (ConnectionError("no route to host"), False),
    ],
)
def test_missing_credentials_are_a_configuration_error(
    replicas: tuple[Replica, Replica],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cause: Exception,
    ends: bool,
) -> None:
    """Missing credentials are to be given, and no rebuild begins; a store that is away keeps nobody
    from the log, and nobody says that it holds no snapshot."""

    def storage(_: str) -> object:
        raise StoreError(f"s3://bucket cannot be read: {cause}.") from cause

    for target in (snapshot_child, snapshot):
        monkeypatch.setattr(target, "storage_at", storage)
    new = Replica(tmp_path, "index-2", tmp_path / "s")
    new.index.close()
    new.folder = tmp_path / "new"
    new.begin()

    with (
        pytest.raises(
            ConfigurationError,
            match=r"SNAPSHOTS cannot be used: s3://bucket .* Set the credentials",
        )
        if ends
        else nullcontext(),
        capture_logs() as logged,
    ):
        new.snapshots.restore(LOG, lambda _: new.started[-1].work())

    events = [line["event"] for line in logged]
    assert ("no snapshot can be used; the log is read from its beginning" in events) == (not ends)
    assert not any("there is no snapshot" in event for event in events)
