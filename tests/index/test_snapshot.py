"""Snapshots: taken beside a writer, restored only whole, and refused with a sentence for everything that can be wrong."""

from __future__ import annotations

import fcntl
import json
import math
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from stream_dedup.ground.errors import ConfigurationError, FormatError, InputError, OtherFormatError, StoreError
from stream_dedup.ground.plan import PLANS
from stream_dedup.index import snapshot
from stream_dedup.index.index import LogIndex
from stream_dedup.index.snapshot import MANIFEST, VOLUME, SnapshotDesk, read_manifest, restore, take
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.store import RocksStore
from stream_dedup.indexer.metrics import IndexMetrics
from tests.index.golden import NAME, SNAPSHOT, half_of_the_log
from tests.index.logs import APPEND_MS, RandomLog

SEED = int(os.environ["TEST_SEED"])
LOG = "cluster/0123"


def numbered(records: list[bytes | None], first: int, end: int) -> list[tuple[int, int, bytes | None]]:
    return [(offset, APPEND_MS + offset, records[offset]) for offset in range(first, end)]


@pytest.fixture(scope="module")
def records() -> list[bytes | None]:
    """A log with everything that can happen in one."""
    return RandomLog(SEED, PLANS["blocks"], plan_changes=True).records(90)


@pytest.fixture
def volume(tmp_path: Path, records: list[bytes | None]) -> Path:
    """An index that has applied 60 records and answered 20 of them, and does not run."""
    index = LogIndex(RocksStore(tmp_path / "volume"))
    index.bind(LOG)
    index.apply(numbered(records, 0, 60))
    index.answered(20)
    index.flush()
    index.close()
    return tmp_path / "volume"


def goes_on(volume: Path, records: list[bytes | None]) -> tuple[list[tuple[int, bytes]], str]:
    """Apply the rest of the log to a volume; return the answers and the state digest."""
    index = LogIndex(RocksStore(volume))
    index.bind(LOG)
    answers = index.apply(numbered(records, index.applied, 90))
    digest = index.state_digest().digest
    index.close()
    return answers, digest


def test_a_restored_index_goes_on_with_equal_answers(volume: Path, records: list[bytes | None], tmp_path: Path) -> None:
    """What a restored volume answers from the snapshot's offset on is byte for byte what the first one answers."""
    taken = take(volume, tmp_path / "s", wait_seconds=1)
    restored = restore(tmp_path / "s", tmp_path / "new", log=LOG)

    assert taken == restored
    assert (taken.log, taken.applied) == (LOG, 60)
    assert goes_on(tmp_path / "new", records) == goes_on(volume, records)


def test_a_restored_index_owes_no_old_answers(volume: Path, tmp_path: Path) -> None:
    """It says that it was restored until it announced from where it answers, over a restart too, and sends nothing old."""
    take(volume, tmp_path / "s", wait_seconds=1)
    restore(tmp_path / "s", tmp_path / "new", log=LOG)
    index = LogIndex(RocksStore(tmp_path / "new"))
    assert index.restored
    assert list(index.answers_since(0)) == []
    index.announced(75)
    index.close()
    index = LogIndex(RocksStore(tmp_path / "new"))

    assert (index.restored, index.answered_offset) == (False, 75)
    index.close()


HOLDER = """
import sys, time
from pathlib import Path
from stream_dedup.index.index import LogIndex
from stream_dedup.index.snapshot import SnapshotDesk
from stream_dedup.index.volume.store import RocksStore
from tests.index.logs import APPEND_MS, RandomLog
from stream_dedup.ground.plan import PLANS
index = LogIndex(RocksStore(sys.argv[1]))
desk = SnapshotDesk(Path(sys.argv[1]))
records = RandomLog(int(sys.argv[2]), PLANS["blocks"], plan_changes=True).records(int(sys.argv[3]))
print("open", index.applied, flush=True)
while True:
    offset = index.applied
    if offset < len(records):
        index.apply([(offset, APPEND_MS + offset, records[offset])])
    else:
        time.sleep(0.01)
    taken = desk.look(index)
    if taken is not None:
        print("taken", taken, flush=True)
"""


SILENT_HOLDER = """
import sys
from stream_dedup.index.volume.store import RocksStore
store = RocksStore(sys.argv[1])
print("open", flush=True)
input()
"""


@pytest.fixture
def running(volume: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """An index in a process of its own that goes on applying a long log, and looks at its desk after each record."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(volume), str(SEED), "2000"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline().startswith("open")
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def test_a_snapshot_of_a_running_index_is_a_whole_step(
    volume: Path, running: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    """Taken in mid-stream it holds the state after exactly its log offset, proved by folding the log up to there."""
    child = running()
    manifest = take(volume, tmp_path / "s", wait_seconds=30)
    assert child.stdout is not None
    said = child.stdout.readline().split()
    fold = LogIndex(RocksStore(tmp_path / "fold"))
    fold.bind(LOG)
    log = RandomLog(SEED, PLANS["blocks"], plan_changes=True).records(2000)
    fold.apply(numbered(log, 0, manifest.applied))

    assert manifest.applied == int(said[1])
    assert fold.state_digest().digest == manifest.state_digest
    assert sorted(path.name for path in (volume / snapshot.REQUESTS).iterdir()) == ["last", "lock"]
    assert child.poll() is None
    fold.close()


def test_a_volume_is_read_beside_its_writer(volume: Path, running: Callable[[], subprocess.Popen[str]]) -> None:
    """A reading opening sees a whole step and leaves the writer alone; the writer's next steps are seen by the next one."""
    child = running()
    seen = []
    while len(seen) < 3:
        store = RocksStore(volume, read_only=True)
        index = LogIndex(store)
        digest = index.state_digest()
        assert digest.log_offset == index.applied
        with pytest.raises(StoreError, match="read only"):
            store.write({b"x": b""}, [])
        store.close()
        if index.applied not in seen:
            seen.append(index.applied)

    assert seen == sorted(seen)
    assert child.poll() is None


def test_a_writer_that_does_not_answer_is_named(volume: Path, tmp_path: Path) -> None:
    """A lock held by a process that never looks ends the wait with what to do, and leaves nothing behind."""
    command = [sys.executable, "-c", SILENT_HOLDER, str(volume)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(StoreError, match=r"did not answer within 0\.1 s.*livez.*--wait"):
            take(volume, tmp_path / "s", wait_seconds=0.1)
        child.communicate("\n")

    assert list((tmp_path / "s").iterdir()) == []
    assert [path.name for path in (volume / snapshot.REQUESTS).iterdir()] == ["lock"]


def test_a_whole_snapshot_is_remembered_by_its_volume(volume: Path, tmp_path: Path) -> None:
    """Its age is a metric: not a number before the first, and not younger for one that failed."""
    desk, metrics = SnapshotDesk(volume), IndexMetrics()

    def age() -> float:
        metrics.snapshot(desk.last())
        found = metrics.registry.get_sample_value("stream_dedup_snapshot_age_seconds")
        assert found is not None
        return found

    assert math.isnan(age())
    take(volume, tmp_path / "s", wait_seconds=1)
    assert 0 <= age() < 3600
    os.utime(volume / snapshot.REQUESTS / "last", (1000.0, 1000.0))
    with pytest.raises(InputError):
        take(volume, tmp_path / "s", wait_seconds=1)
    assert age() > 1e9
    index = LogIndex(RocksStore(volume))
    desk.look(index)
    index.close()
    assert desk.last() == 1000.0


def test_the_desk_clears_up_after_a_dead_command(volume: Path) -> None:
    """A checkpoint that nobody fetches is removed when its command is gone, and kept while it is there."""
    index = LogIndex(RocksStore(volume))
    desk = SnapshotDesk(volume)
    folder = volume / snapshot.REQUESTS
    with snapshot_lock(folder):
        (folder / "request").touch()
        assert desk.look(index) == 60
        assert desk.look(index) is None
        assert (folder / "taken" / "CURRENT").exists()
    assert desk.look(index) is None
    assert [path.name for path in folder.iterdir()] == ["lock"]
    index.close()


def snapshot_lock(folder: Path) -> IO[str]:
    folder.mkdir()
    lock = (folder / "lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def test_two_snapshots_at_once_wait_for_each_other(volume: Path, tmp_path: Path) -> None:
    """While one command is being served, another is told so."""
    lock = snapshot_lock(volume / snapshot.REQUESTS)
    with pytest.raises(StoreError, match="Another snapshot"), snapshot._asked(volume / snapshot.REQUESTS, 1):
        pass
    lock.close()


def test_a_failed_checkpoint_is_told_and_the_index_goes_on(volume: Path, records: list[bytes | None], tmp_path: Path) -> None:

    class Full(RocksStore):
        def checkpoint(self, directory: Path) -> None:
            raise StoreError("Could not copy the index volume: the disk is full.")

    index = LogIndex(Full(volume))
    desk = SnapshotDesk(volume)
    told: list[str] = []

    def command() -> None:
        try:
            with snapshot._asked(volume / snapshot.REQUESTS, 30):
                pass
        except StoreError as error:
            told.append(str(error))

    thread = threading.Thread(target=command)
    thread.start()
    while thread.is_alive():
        desk.look(index)
    thread.join()
    index.apply(numbered(records, 60, 61))

    assert told == ["Could not copy the index volume: the disk is full."]
    assert index.applied == 61
    index.close()


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def edit_manifest(taken: Path, **fields: object) -> None:
    """Change the manifest as somebody would who also corrects its checksum."""
    found = json.loads((taken / MANIFEST).read_text())
    found.pop("checksum")
    found.update(fields)
    (taken / MANIFEST).write_text(json.dumps({**found, "checksum": snapshot._checksum(found)}))


def some(taken: Path, pattern: str) -> Path:
    return next((taken / VOLUME).glob(pattern))


BAD = {
    "unfinished": (lambda s: (s / MANIFEST).unlink(), InputError, "no finished snapshot"),
    "manifest flipped": (lambda s: flip(s / MANIFEST), FormatError, "damaged|cannot be read|lacks"),
    "manifest edited": (lambda s: rewrite(s / MANIFEST, '"applied": 60', '"applied": 6'), FormatError, "match its checksum"),
    "manifest of nothing": (lambda s: (s / MANIFEST).write_text("{}"), FormatError, "damaged or edited"),
    "newer snapshot format": (lambda s: edit_manifest(s, format=99), OtherFormatError, "format 99.*newer"),
    "newer volume format": (lambda s: edit_manifest(s, volume_format=99), OtherFormatError, "format version 99.*read the log"),
    "older volume format": (lambda s: edit_manifest(s, volume_format=1), OtherFormatError, "format version 1,.*read the log"),
    "another log": (lambda s: edit_manifest(s, log="cluster/4567"), ConfigurationError, "the log 'cluster/4567'.*made anew"),
    "another state": (
        lambda s: edit_manifest(s, state_digest="0" * 32, program="0.0.1"),
        StoreError,
        "not the one that was taken",
    ),
    "a file missing": (lambda s: some(s, "*.sst").unlink(), FormatError, r"lacks its file \d+\.sst"),
    "a file too many": (lambda s: (s / VOLUME / "999999.sst").write_bytes(b"x"), FormatError, "no part of the snapshot"),
    "a file cut": (lambda s: cut(some(s, "*.sst")), FormatError, "was cut"),
    "a table flipped": (lambda s: flip(some(s, "*.sst")), FormatError, r"\.sst is not what it was"),
    "the manifest of RocksDB flipped": (lambda s: flip(some(s, "MANIFEST-*")), FormatError, "MANIFEST-.* is not what it was"),
    "CURRENT flipped": (lambda s: flip(some(s, "CURRENT")), FormatError, "CURRENT is not what it was"),
    "no files": (lambda s: [one.unlink() for one in (s / VOLUME).iterdir()], FormatError, "lacks its file"),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_a_bad_snapshot_is_refused_and_the_directory_left_empty(volume: Path, tmp_path: Path, what: str) -> None:
    """Each thing that can be wrong with a snapshot has its sentence; no part of it is left where the index would start."""
    spoil, error, sentence = BAD[what]
    # Tables and no write-ahead log, as a checkpoint of a running index has them.
    store = RocksStore(volume)
    store.checkpoint(tmp_path / "flushed")
    store.close()
    take(tmp_path / "flushed", tmp_path / "s", wait_seconds=1)
    spoil(tmp_path / "s")
    with pytest.raises(error, match=sentence):
        restore(tmp_path / "s", tmp_path / "new", log=LOG)

    assert not (tmp_path / "new").exists() or list((tmp_path / "new").iterdir()) == []


def test_a_snapshot_as_its_layout_was_released_goes_on(tmp_path: Path) -> None:
    """Taken by the first version that had the layout, it is restored, and answers the rest of its log as was recorded."""
    with tarfile.open(SNAPSHOT) as archive:
        archive.extractall(tmp_path / "s", filter="data")
    log, answers, half = half_of_the_log()
    restore(tmp_path / "s", tmp_path / "new", log=NAME)
    index = LogIndex(RocksStore(tmp_path / "new"))

    assert (index.applied, index.log) == (half, NAME)
    assert dict(index.apply(log[half:])) == {at: raw for at, raw in answers.items() if at >= half}


def test_nothing_is_put_where_something_is(volume: Path, tmp_path: Path) -> None:
    """Neither a snapshot nor an index goes into a directory that holds anything, and neither goes into a file."""
    take(volume, tmp_path / "s", wait_seconds=1)
    for target in (volume, tmp_path / "s"):
        with pytest.raises(InputError, match="only put into an empty directory"):
            take(volume, target, wait_seconds=1)
        with pytest.raises(InputError, match="only put into an empty directory"):
            restore(tmp_path / "s", target)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not a directory"):
        restore(tmp_path / "s", tmp_path / "file")
    with pytest.raises(InputError, match="no index volume"):
        take(tmp_path / "nothing", tmp_path / "t", wait_seconds=1)


def test_a_damaged_volume_makes_no_snapshot(volume: Path, tmp_path: Path) -> None:
    """A snapshot is read to its end before it is called one; damage ends it, and nothing of it is left."""
    store = RocksStore(volume)
    store.checkpoint(tmp_path / "flushed")
    store.close()
    flip(next((tmp_path / "flushed").glob("*.sst")))
    with pytest.raises(StoreError, match="damaged"):
        take(tmp_path / "flushed", tmp_path / "s", wait_seconds=1)

    assert list((tmp_path / "s").iterdir()) == []


def test_the_manifest_tells_what_it_is(volume: Path, tmp_path: Path) -> None:
    taken = take(volume, tmp_path / "s", wait_seconds=1)
    fields = json.loads((tmp_path / "s" / MANIFEST).read_text())

    assert read_manifest(tmp_path / "s") == taken
    assert set(fields) == {
        "format",
        "program",
        "taken",
        "log",
        "applied",
        "recipe",
        "plan",
        "volume_format",
        "chain",
        "state_digest",
        "files",
        "checksum",
    }
    assert fields["volume_format"] == layout.VERSION
    assert {one["name"]: one["bytes"] for one in fields["files"]} == {
        path.name: path.stat().st_size for path in (tmp_path / "s" / VOLUME).iterdir()
    }
    assert taken.bytes == sum(one["bytes"] for one in fields["files"])
