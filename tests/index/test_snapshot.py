"""Snapshots: taken to a folder and to stores alike, restored only whole, unharmed by whatever ends
a writer."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import itertools
import json
import os
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from stream_dedup.domain.errors import (
    ConfigurationError,
    FormatError,
    InputError,
    OtherFormatError,
    StoreError,
    VolumeError,
)
from stream_dedup.domain.plan import PLANS
from stream_dedup.index import snapshot
from stream_dedup.index.digest import state_digest
from stream_dedup.index.index import LogIndex
from stream_dedup.index.snapshot import (
    MANIFEST,
    RESTORING,
    VOLUME,
    Snapshot,
    complete_snapshots,
    restore,
    restore_any,
    take,
)
from stream_dedup.index.storage import layout
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.inputs.storage import Storage, storage_at
from tests.index.damage import cut, flip
from tests.index.golden import NAME, SNAPSHOT, half_of_the_log
from tests.index.logs import RandomLog, number

SEED = int(os.environ["TEST_SEED"])
LOG = "cluster/0123"
DATETIME = dt.datetime


@pytest.fixture(scope="module")
def records() -> list[bytes | None]:
    """A random log with records of every kind."""
    return RandomLog(SEED, PLANS["blocks"], plan_changes=True).records(120)


@pytest.fixture(scope="module")
def stages(
    records: list[bytes | None], tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Path]:
    """Checkpoints of one index, by the log offset up to which it had applied; it had answered 20
    records."""
    folder = tmp_path_factory.mktemp("stages")
    index = LogIndex(RocksStore(folder / "volume"))
    index.bind(LOG)
    found = {}
    for end in (60, 75, 90):
        index.apply(number(records)[index.applied : end])
        index.mark_delivered(20)
        index.flush()
        index.checkpoint(folder / str(end))
        found[end] = folder / str(end)
    index.close()
    return found


@pytest.fixture
def volume(stages: dict[int, Path], tmp_path: Path) -> Path:
    """A volume of its own, which has applied 60 records and answered 20 of them, and does not
    run."""
    return Path(shutil.copytree(stages[60], tmp_path / "volume"))


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.thorough)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return str(tmp_path / "snapshots")
    if request.param == "s3":
        monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3_server"))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        with contextlib.suppress(FileExistsError):
            fsspec.filesystem("s3", skip_instance_cache=True).mkdir("backup")
        return f"s3://backup/{tmp_path.name}"
    return f"memory://{tmp_path.name}/snapshots"


def state_of(volume: Path) -> tuple[int, str]:
    """Return the log offset and the state digest of a volume."""
    store = RocksStore(volume, read_only=True)
    digest = state_digest(store)
    store.close()
    return digest.log_offset, digest.digest


def apply_rest(volume: Path, records: list[bytes | None]) -> tuple[list[tuple[int, bytes]], str]:
    """Apply the rest of the log to a volume; return the answers and the state digest."""
    index = LogIndex(RocksStore(volume))
    index.bind(LOG)
    answers = index.apply(number(records)[index.applied :])
    digest = index.state_digest().digest
    index.close()
    return answers, digest


def names(place: str) -> list[str]:
    return [taken.name for taken in complete_snapshots(storage_at(place))]


def is_empty(folder: Path) -> bool:
    return not folder.exists() or list(folder.iterdir()) == []


def shift_clock(days: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock that dates snapshots forward by `days` days."""

    class Later(DATETIME):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
            return DATETIME.now(tz) + dt.timedelta(days=days)

    monkeypatch.setattr(snapshot.dt, "datetime", Later)


# -- one contract for every place


def test_a_restored_index_goes_on_with_equal_answers(
    volume: Path, records: list[bytes | None], tmp_path: Path, place: str
) -> None:
    """What a restored volume answers from the snapshot's offset on is byte for byte what the first
    one answers."""
    taken = take(volume, place)
    restored = restore(place, tmp_path / "new", log=LOG)

    assert taken.manifest == restored.manifest
    assert (taken.manifest.log, taken.manifest.applied, taken.manifest.state_digest) == (
        LOG,
        *state_of(volume),
    )
    assert apply_rest(tmp_path / "new", records) == apply_rest(volume, records)


def test_old_snapshots_are_removed_and_shared_files_are_not_sent_again(
    stages: dict[int, Path], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table files are brought once; each snapshot is whole by itself; another log's, and folders of
    others, stay."""
    storage = storage_at(place)
    storage.write("1-of-others/file", b"x")
    taken = []
    for day, stage in enumerate(stages.values()):
        shift_clock(day, monkeypatch)
        taken.append(take(stage, place, keep=2))
    first, second, third = taken

    assert names(place) == [third.name, second.name]
    assert sorted(storage.folders()) == sorted(["1-of-others", second.name, third.name])
    tables = {
        file.blake2b: file.bytes for file in second.manifest.files if file.name.endswith(".sst")
    }
    shared = sum(tables.get(file.blake2b, 0) for file in third.manifest.files)
    assert first.sent_bytes == first.manifest.bytes
    assert third.sent_bytes == third.manifest.bytes - shared < third.manifest.bytes
    storage.remove(second.name)
    restore(place, tmp_path / "new", log=LOG)
    assert state_of(tmp_path / "new") == state_of(stages[90])


def test_a_young_snapshot_of_another_replica_is_enough(
    stages: dict[int, Path], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica takes its own snapshot once the other's is a quarter of the interval late."""
    first = take(stages[60], place, owner="index_0")
    assert snapshot.due_at(first, "index_0", 3600) == first.manifest.taken_at + 3600
    for hours, is_first in ((1.2, True), (1.3, False)):
        shift_clock(hours / 24, monkeypatch)
        assert (
            take(stages[75], place, owner="index-1", every_seconds=3600).name == first.name
        ) is is_first
    monkeypatch.setattr(layout, "VERSION", layout.VERSION + 1)


def test_an_unfinished_snapshot_is_removed_after_a_day(
    stages: dict[int, Path], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A younger one may still be being written."""
    storage = storage_at(place)
    unfinished = f"{dt.datetime.now(dt.UTC):{snapshot._NAME_TIME}}-index-0"
    storage.write(f"{unfinished}/{VOLUME}/000001.sst", b"half")
    for days, stays in ((0.5, True), (1.1, False)):
        shift_clock(days, monkeypatch)
        take(stages[60], place, keep=1)
        assert (unfinished in storage.folders()) is stays
        assert len(names(place)) == 1


# -- faults: at each step of taking and restoring


class KilledError(BaseException):
    """Simulates SIGKILL: nothing is cleaned up after it."""


class Faulty:
    """A store to which something happens at its call number `number`."""

    def __init__(
        self, place: str, number: int, happens: Callable[[Storage, str, tuple[Any, ...]], None]
    ) -> None:
        self._storage = storage_at(place)
        self._left = number
        self._happens = happens
        self._is_dead = False
        self._lock = threading.Lock()
        self.where = self._storage.where
        self.struck = ""

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            with self._lock:
                self._left -= 1
                strikes = self._left == 0
            if self._is_dead:
                raise KilledError
            if strikes:
                self.struck = name
                try:
                    self._happens(self._storage, name, given)
                except KilledError:
                    self._is_dead = True
                    raise
            return getattr(self._storage, name)(*given)

        return call


@contextlib.contextmanager
def faulty(
    monkeypatch: pytest.MonkeyPatch, place: str, number: int, happens: Callable[..., None]
) -> Iterator[Faulty]:
    """Replace the store of a place by a `Faulty` one."""
    store = Faulty(place, number, happens)
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "storage_at", lambda _: store)
        yield store


def fails(_: Storage, name: str, __: tuple[Any, ...]) -> None:
    raise StoreError(f"{name} failed")


def kills(_: Storage, name: str, __: tuple[Any, ...]) -> None:
    raise KilledError


def tears(storage: Storage, name: str, given: tuple[Any, ...]) -> None:
    """Write half of a file, and die."""
    if name == "put":
        storage.write(given[1], given[0].read_bytes()[: given[0].stat().st_size // 2])
    raise KilledError


@pytest.mark.parametrize(
    "happens",
    [tears, *(pytest.param(fault, marks=pytest.mark.thorough) for fault in (fails, kills))],
)
def test_a_writer_that_ends_at_any_step_harms_nothing(
    stages: dict[int, Path],
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[Storage, str, tuple[Any, ...]], None],
) -> None:
    """The snapshot before it is restored, or its own where it was whole by then; and the next one
    is taken."""
    if place.startswith("s3:"):
        pytest.skip("the steps are those of memory, and take minutes")
    monkeypatch.setattr(snapshot, "_COPIES_AT_ONCE", 1)
    struck, states = set(), {end: state_of(path) for end, path in stages.items()}
    for step in itertools.count(1):
        here, new, given_up = f"{place}-{step}", tmp_path / f"new-{step}", True
        take(stages[60], here)
        with (
            faulty(monkeypatch, here, step, happens) as store,
            contextlib.suppress(StoreError, KilledError),
        ):
            given_up = take(stages[75], here, keep=1) is None
        if not store.struck:
            break
        struck.add(store.struck)
        found = restore(here, new, log=LOG)
        assert state_of(new) == states[found.manifest.applied]
        assert given_up or found.manifest.applied == 75
        take(stages[90], here, keep=1)
        restore(here, tmp_path / f"next-{step}", log=LOG)
        assert state_of(tmp_path / f"next-{step}") == states[90]
        assert len(names(here)) == 1

    assert struck == {"folders", "parts", "copy", "put", "sizes", "write", "remove"}


def test_a_store_that_loses_bytes_is_detected(
    stages: dict[int, Path], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No snapshot is taken if the store truncates a file, and nothing of it is left."""

    class Half:
        def __init__(self, storage: Storage) -> None:
            self._storage = storage

        def __getattr__(self, name: str) -> Any:
            return getattr(self._storage, name)

        def put(self, source: Path, name: str) -> None:
            self._storage.write(name, source.read_bytes()[:-1])

    monkeypatch.setattr(snapshot, "storage_at", lambda where: Half(storage_at(where)))
    with pytest.raises(StoreError, match=r"were written; no snapshot was taken"):
        take(stages[60], place)
    assert storage_at(place).folders() == []


def test_two_writers_at_one_place(
    stages: dict[int, Path], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of one, the other takes its own and prunes all before it: what is left is whole,
    and the newest is there."""
    if place.startswith("s3:"):
        pytest.skip("the steps are those of memory, and take minutes")
    monkeypatch.setattr(snapshot, "_COPIES_AT_ONCE", 1)
    states = {end: state_of(path) for end, path in stages.items()}
    for step in itertools.count(1):
        here = f"{place}-{step}"
        take(stages[60], here)

        def other(*_: Any, here: str = here) -> None:
            with monkeypatch.context() as plain:
                plain.setattr(snapshot, "storage_at", storage_at)
                take(stages[90], here, owner="other", keep=1)

        with faulty(monkeypatch, here, step, other) as store:
            take(stages[75], here, owner="one", keep=2)
        if not store.struck:
            break
        assert {name.rpartition("-")[2] for name in names(here)} >= {"other"}
        for name in names(here):
            new = tmp_path / f"{step}-{name}"
            restore(here, new, name=name, log=LOG)
            assert state_of(new) == states[90 if name.endswith("other") else 75]


@pytest.mark.parametrize("steps", ["store", "move"])
def test_a_restore_that_is_killed_begins_again(
    stages: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    """After the kill the volume is whole, or nothing of it is left once the next start has
    looked."""
    place = str(tmp_path / "s")
    take(stages[60], place)
    rename = Path.rename
    for step in itertools.count(1):
        new, count, struck = tmp_path / f"new-{step}", iter(range(step)), False

        def move(self: Path, target: Path, count: Any = count) -> Path:
            if next(count, None) is None:
                raise KilledError
            return rename(self, target)

        with (
            monkeypatch.context() as killed,
            faulty(killed, place, step if steps == "store" else 0, tears),
        ):
            killed.setattr(snapshot, "_remove_contents", lambda _: None)
            if steps == "move":
                killed.setattr(Path, "rename", move)
            try:
                restore(place, new, log=LOG)
            except KilledError:
                struck = True
        snapshot.clear_unfinished(new)
        if not (new / "CURRENT").exists():
            assert is_empty(new)
            restore(place, new, log=LOG)
        assert not (new / RESTORING).exists()
        assert state_of(new) == state_of(stages[60])
        if not struck:
            break
    assert step > 2


# -- what is refused


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def edit_manifest(folder: Path, **fields: object) -> None:
    """Change the manifest as somebody would who also corrects its checksum."""
    found = json.loads((folder / MANIFEST).read_text())
    found.pop("checksum")
    found.update(fields)
    (folder / MANIFEST).write_text(json.dumps({**found, "checksum": snapshot._checksum(found)}))


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def find_file(taken: Path, pattern: str) -> Path:
    return next((taken / VOLUME).glob(pattern))


BAD = {
    "manifest flipped": (
        lambda s: flip(s / MANIFEST),
        FormatError,
        "damaged|cannot be read|invalid",
    ),
    "manifest edited": (
        lambda s: rewrite(s / MANIFEST, '"applied": 75', '"applied": 7'),
        FormatError,
        "match its checksum",
    ),
    "manifest of nothing": (
        lambda s: (s / MANIFEST).write_text("{}"),
        FormatError,
        "damaged or edited",
    ),
    "newer snapshot format": (
        lambda s: edit_manifest(s, format=99),
        OtherFormatError,
        "format 99.*newer",
    ),
    "newer volume format": (
        lambda s: edit_manifest(s, volume_format=99),
        OtherFormatError,
        "format 99.*rebuilt from the log",
    ),
    "older volume format": (
        lambda s: edit_manifest(s, volume_format=1),
        OtherFormatError,
        "format 1,.*rebuilt from the log",
    ),
    "another log": (
        lambda s: edit_manifest(s, log="cluster/4567"),
        ConfigurationError,
        "the log 'cluster/4567'.*created again",
    ),
    "another state": (
        lambda s: edit_manifest(s, state_digest="0" * 32),
        FormatError,
        "that of the manifest is",
    ),
    "another offset": (
        lambda s: edit_manifest(s, applied=7),
        FormatError,
        "that of the manifest is",
    ),
    "another state of another version": (
        lambda s: edit_manifest(s, state_digest="0" * 32, program="0.0.1"),
        OtherFormatError,
        "that of the manifest is.*Version 0.0.1",
    ),
    "another recipe": (
        lambda s: edit_manifest(s, recipe="words:64"),
        FormatError,
        "their recipe is .*words:64",
    ),
    "another plan": (
        lambda s: edit_manifest(s, plan=PLANS["bands"].to_fields()),
        FormatError,
        "their plan is",
    ),
    "a plan of nothing": (
        lambda s: edit_manifest(s, plan={"x" * 100_000: [[1]] * 10}),
        FormatError,
        "their plan is",
    ),
    "a nested plan": (
        lambda s: edit_manifest(s, plan={"bands": json.loads("[" * 700 + "]" * 700)}),
        FormatError,
        "missing or invalid field",
    ),
    "another chain": (
        lambda s: edit_manifest(s, chain="0" * 32),
        FormatError,
        "their chain is",
    ),
    "a long log": (
        lambda s: edit_manifest(s, log="x" * 1_000_000),
        FormatError,
        "missing or invalid field",
    ),
    "a log of escapes": (
        lambda s: edit_manifest(s, log="\x1b[2J\u202e" * 50),
        ConfigurationError,
        "belongs to the log",
    ),
    "a long program": (
        lambda s: edit_manifest(s, volume_format=1, program="x" * 1_000_000),
        FormatError,
        "missing or invalid field",
    ),
    "a long format": (lambda s: edit_manifest(s, format=10**4000), OtherFormatError, "newer"),
    "a long offset": (
        lambda s: edit_manifest(s, applied=10**4000),
        FormatError,
        "missing or invalid field",
    ),
    "no offset": (lambda s: edit_manifest(s, applied=-1), FormatError, "missing or invalid field"),
    "a time before time": (
        lambda s: edit_manifest(s, taken="0001-01-01T00:00:00"),
        FormatError,
        "missing or invalid field",
    ),
    "a file with a long name": (
        lambda s: edit_manifest(s, files=[{"name": "x" * 10**6, "bytes": 0, "blake2b": "0" * 64}]),
        FormatError,
        "is not a file name",
    ),
    "many values": (
        lambda s: (s / MANIFEST).write_text(f"[{'{},' * 2_000_000}0]"),
        FormatError,
        "more than",
    ),
    "no time": (
        lambda s: edit_manifest(s, taken="yesterday"),
        FormatError,
        "missing or invalid field",
    ),
    "a nested manifest": (
        lambda s: (s / MANIFEST).write_text("[" * 100_000),
        FormatError,
        "cannot be read",
    ),
    "a link instead of a file": (
        lambda s: replace_by_link(find_file(s, "*.sst")),
        FormatError,
        r"does not contain its file \d+\.sst",
    ),
    "a pipe instead of a file": (
        lambda s: replace_by_pipe(find_file(s, "OPTIONS-*")),
        FormatError,
        "does not contain its file OPTIONS-",
    ),
    "a file missing": (
        lambda s: find_file(s, "*.sst").unlink(),
        FormatError,
        r"does not contain its file \d+\.sst",
    ),
    "a file cut": (
        lambda s: cut(find_file(s, "*.sst"), 0.999),
        FormatError,
        r"\.sst has changed",
    ),
    "a table flipped": (lambda s: flip(find_file(s, "*.sst")), FormatError, r"\.sst has changed"),
    "the manifest of RocksDB flipped": (
        lambda s: flip(find_file(s, "MANIFEST-*")),
        FormatError,
        "MANIFEST-.* has changed",
    ),
    "CURRENT flipped": (
        lambda s: flip(find_file(s, "CURRENT")),
        FormatError,
        "CURRENT has changed",
    ),
    "no files": (lambda s: shutil.rmtree(s / VOLUME), FormatError, "does not contain its file"),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_a_bad_snapshot_is_refused_and_the_one_before_is_offered(
    stages: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Each thing that can be wrong has its sentence; nothing is left where the index would start,
    and takes the one before."""
    spoil, error, sentence = BAD[what]
    before = take(stages[60], tmp_path / "s")
    shift_clock(1, monkeypatch)
    spoilt = take(stages[75], tmp_path / "s")
    copied = tmp_path / "s" / spoilt.name
    for path in (copied / VOLUME).iterdir():  # a folder's snapshots share what is equal
        path.write_bytes((path.read_bytes(), path.unlink())[0])
    spoil(copied)
    with pytest.raises(error, match=f"(?s){sentence}.*--snapshot {before.name}"):
        restore(tmp_path / "s", tmp_path / "new", log=LOG)
    assert is_empty(tmp_path / "new")

    messages: list[str] = []
    found = restore_any(str(tmp_path / "s"), tmp_path / "new", LOG, messages.append)
    assert found is not None
    assert found.name == before.name
    assert state_of(tmp_path / "new") == state_of(stages[60])
    assert len(messages) == 1
    assert len(messages[0].replace(str(tmp_path), "")) < 600
    (tmp_path / "alone").mkdir()
    copied.rename(tmp_path / "alone" / spoilt.name)
    assert restore_any(str(tmp_path / "alone"), tmp_path / "empty", LOG, messages.append) is None
    assert is_empty(tmp_path / "empty")


def first(files: list[dict[str, Any]], **fields: object) -> list[dict[str, Any]]:
    """Return a list of files with other fields for the first one."""
    return [files[0] | fields, *files[1:]]


def without(files: list[dict[str, Any]], start: str) -> list[dict[str, Any]]:
    return [file for file in files if not file["name"].startswith(start)]


RUDE_NAMES = (
    *("/tmp/evil", "../evil", "..", ".", "", "..\\evil", "C:\\evil", "a/b.sst", "000001.sst\0"),
    *("x" * 300, "1" * 300 + ".sst", "current", "LOCK", "000001.SST", "\u0660" * 6 + ".sst"),
    *("000001.sst\n", "000001.sst ", "checkpoint", "snapshot-wanted", "\ud800"),
)
RUDE_LISTS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    **{repr(name[:20]): partial(first, name=name) for name in RUDE_NAMES},
    "a name twice": lambda files: [*files, files[0]],
    "no CURRENT": lambda files: without(files, "CURRENT"),
    "no MANIFEST": lambda files: without(files, "MANIFEST"),
    "no list": lambda files: None,
    "empty": lambda files: [],
    "two MANIFESTs": lambda files: [*files, files[0] | {"name": "MANIFEST-999999"}],
    "another CURRENT": lambda files: [
        file | {"blake2b": "0" * 64} if file["name"] == "CURRENT" else file for file in files
    ],
    "100,000 files": lambda files: [
        *files,
        *(files[0] | {"name": f"{number:06}.sst"} for number in range(500_000, 600_000)),
    ],
    "a file that is not there": lambda files: [*files, files[0] | {"name": "999999.sst"}],
    "a size that is less": lambda files: first(files, bytes=1),
    "a size that is more": lambda files: first(files, bytes=1 << 60),
    "a size below nothing": lambda files: first(files, bytes=-1),
    "a size that is none": lambda files: first(files, bytes="1"),
    "a name that is none": lambda files: first(files, name=7),
    "no digest": lambda files: first(files, blake2b=""),
    "a file that is none": lambda files: ["CURRENT", *files],
}


@pytest.mark.parametrize("what", sorted(RUDE_LISTS))
def test_nothing_is_fetched_for_an_invalid_list_of_files(
    stages: dict[int, Path], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Names that lead elsewhere, lists that lack something, sizes that lie: a sentence before the
    first byte, in a command and in the restore of an empty volume."""
    storage, taken = storage_at(place), take(stages[60], place)
    manifest = f"{taken.name}/{MANIFEST}"
    size = storage.sizes(taken.name)[MANIFEST]
    fields = json.loads(b"".join(storage.parts(manifest, size)))
    del fields["checksum"]
    fields["files"] = RUDE_LISTS[what](fields["files"])
    fields["checksum"] = snapshot._checksum(fields)
    storage.write(manifest, json.dumps(fields).encode())
    opened: list[str] = []
    with faulty(monkeypatch, place, 0, fails) as store:
        parts = store.parts
        store.parts = lambda name, size: (opened.append(name), parts(name, size))[1]  # type: ignore[attr-defined]
        with pytest.raises(
            FormatError, match=r"(?s)(list of files|invalid field|does not contain|has changed)"
        ):
            restore(place, tmp_path / "new", log=LOG)
        messages: list[str] = []
        assert restore_any(place, tmp_path / "new", LOG, messages.append) is None
    assert len(messages) == 1
    assert set(opened) == {manifest}
    assert not (tmp_path / "new").exists()


def test_a_store_that_changes_between_list_and_read_is_refused(
    stages: dict[int, Path], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file is replaced, cut or removed after its size was asked; nothing is left."""
    taken = take(stages[60], place)
    for change in ("other bytes", "fewer bytes", "gone"):

        class Changing:
            def __init__(self, storage: Storage, change: str) -> None:
                self._storage, self._change = storage, change

            def __getattr__(self, name: str) -> Any:
                return getattr(self._storage, name)

            def parts(self, name: str, size: int) -> Iterator[bytes]:
                for part in self._storage.parts(name, size):
                    if name.endswith(".sst"):
                        if self._change == "gone":
                            raise FileNotFoundError(name)
                        yield part[:-1] + (b"" if self._change == "fewer bytes" else b"?")
                    else:
                        yield part

        with monkeypatch.context() as patch:
            patch.setattr(
                snapshot, "storage_at", lambda where, how=change: Changing(storage_at(where), how)
            )
            with pytest.raises(FormatError, match=r"\.sst"):
                restore(place, tmp_path / "new", name=taken.name, log=LOG)
        assert is_empty(tmp_path / "new")


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("is_link", [True, False])
def test_no_file_outside_of_a_snapshot_is_taken_into_the_next(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool, has_links: bool
) -> None:
    """Neither one that the manifest before names so, nor one that a link in its place leads to."""
    first = take(volume, tmp_path / "s")
    table = next(file for file in first.manifest.files if file.name.endswith(".sst"))
    (tmp_path / "foreign").write_bytes(bytes(table.bytes))
    folder = tmp_path / "s" / first.name
    if is_link:
        (folder / VOLUME / table.name).unlink()
        (folder / VOLUME / table.name).symlink_to(tmp_path / "foreign")
    else:
        names = {table.name: "../../../foreign"}
        files = [
            asdict(file) | {"name": names.get(file.name, file.name)}
            for file in first.manifest.files
        ]
        edit_manifest(folder, files=files)
    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", fails_to_link)

    second = take(volume, tmp_path / "s")

    restore(tmp_path / "s", tmp_path / "new", name=second.name, log=LOG)
    assert (tmp_path / "foreign").stat().st_nlink == 1


def fails_to_link(*_: object) -> None:
    raise OSError("this file system has no links")


def test_a_manifest_of_any_depth_is_refused(volume: Path, tmp_path: Path) -> None:
    """Also of one that can just be parsed, and not be written again."""
    folder = tmp_path / "s" / take(volume, tmp_path / "s").name
    for depth in range(500, 1_100):
        (folder / MANIFEST).write_text('{"x":' + "[" * depth + "]" * depth + "}")
        with pytest.raises(FormatError, match=r"cannot be read|damaged or edited"):
            snapshot.read_manifest(storage_at(tmp_path / "s"), folder.name)


@pytest.mark.parametrize("name", ["../s", "/etc", "x"])
def test_a_path_is_refused_as_the_name_of_a_snapshot(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="is not the name of a snapshot"):
        restore(tmp_path, tmp_path / "new", name=name)


def test_snapshots_and_restored_volumes_are_private(
    stages: dict[int, Path], tmp_path: Path
) -> None:
    """Nobody else can read the files of either, nor list their folders, under an open umask."""
    before = os.umask(0)
    try:
        take(stages[60], tmp_path / "s")
        restore(tmp_path / "s", tmp_path / "new", log=LOG)
    finally:
        os.umask(before)
    made = [*(tmp_path / "s").rglob("*"), *(tmp_path / "new").rglob("*"), tmp_path / "new"]
    open_to_others = [path for path in made if path.stat().st_mode & 0o077]
    assert open_to_others == []


def test_a_folder_without_a_manifest_is_no_snapshot(
    stages: dict[int, Path], tmp_path: Path
) -> None:
    """It is named as unfinished where it is asked for, and passed over where the newest is."""
    first, place = take(stages[60], tmp_path / "s"), str(tmp_path / "s")
    unfinished = f"{tmp_path / 's'}/2999{first.name[4:]}"
    shutil.copytree(tmp_path / "s" / first.name, unfinished)
    (Path(unfinished) / MANIFEST).unlink()
    assert restore(place, tmp_path / "new").name == first.name
    with pytest.raises(InputError, match="contains no complete snapshot"):
        restore(place, tmp_path / "other", name=Path(unfinished).name)
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="contains no complete snapshot"):
        restore(tmp_path / "none", tmp_path / "other")


def test_folders_that_are_not_empty_or_in_use_are_refused(volume: Path, tmp_path: Path) -> None:
    """No index goes into a directory that holds anything, or into a file; no snapshot into the
    volume, or of nothing."""
    take(volume, tmp_path / "s")
    with pytest.raises(InputError, match="only be restored to an empty directory"):
        restore(tmp_path / "s", volume)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not a directory"):
        restore(tmp_path / "s", tmp_path / "file")
    with pytest.raises(InputError, match="no index volume"):
        take(tmp_path / "nothing", tmp_path / "t")
    with pytest.raises(InputError, match="is inside the index volume"):
        take(volume, volume / "snapshots")
    with (volume / "LOCK").open("a") as lock:  # another process's
        fcntl.lockf(lock, fcntl.LOCK_EX)
        pid = os.fork()
        if pid == 0:
            try:
                take(volume, tmp_path / "s")
            except StoreError as error:
                os._exit(7 if "open in a running index" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_damaged_volume_makes_no_snapshot(volume: Path, tmp_path: Path) -> None:
    """It is read to its end before anything is copied."""
    flip(next(volume.glob("*.sst")))
    with pytest.raises(VolumeError, match="damaged"):
        take(volume, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_place_that_cannot_be_used_is_named(volume: Path, tmp_path: Path) -> None:
    """A foreign disk, a package that is missing, a scheme that nobody knows: a sentence with the
    place."""
    (tmp_path / "file").write_text("")
    for place in (str(tmp_path / "file" / "s"), "gs://backup/x", "no-such-scheme://x/y"):
        with pytest.raises(StoreError, match=place.split("/file")[0]):
            take(volume, place)


def test_the_frozen_snapshot_of_this_layout_is_restored(tmp_path: Path) -> None:
    """Taken by the first version that had the layout, it is restored, and answers the rest of its
    log as was recorded."""
    with tarfile.open(SNAPSHOT) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        archive.extractall(tmp_path / "s")  # noqa: S202 - an archive of ours
    log, answers, half = half_of_the_log()
    restore(tmp_path / "s", tmp_path / "new", log=NAME)
    index = LogIndex(RocksStore(tmp_path / "new"))

    assert (index.applied, index.log) == (half, NAME)
    assert dict(index.apply(log[half:])) == {
        offset: raw for offset, raw in answers.items() if offset >= half
    }


def test_a_restored_index_sends_no_old_answers(volume: Path, tmp_path: Path) -> None:
    """It says that it was restored until it announced from where it answers, over a restart too,
    and sends nothing old."""
    take(volume, tmp_path / "s")
    restore(tmp_path / "s", tmp_path / "new", log=LOG)
    index = LogIndex(RocksStore(tmp_path / "new"))
    assert index.restored
    assert list(index.answers_since(0)) == []
    index.mark_announced(75)
    index.close()
    index = LogIndex(RocksStore(tmp_path / "new"))

    assert (index.restored, index.answered_offset) == (False, 75)
    index.close()


def test_the_manifest_describes_its_snapshot(volume: Path, tmp_path: Path) -> None:
    """Log offset, recipe, plan, digest and every file with size and checksum can be read without
    opening the volume."""
    taken = take(volume, tmp_path / "s")
    fields = json.loads((tmp_path / "s" / taken.name / MANIFEST).read_text())

    assert list(complete_snapshots(storage_at(tmp_path / "s"))) == [
        Snapshot(taken.name, taken.manifest)
    ]
    assert " ".join(sorted(fields)) == (
        "applied chain checksum files format log plan program recipe state_digest taken "
        "volume_format"
    )
    assert fields["volume_format"] == layout.VERSION
    assert {file["name"]: file["bytes"] for file in fields["files"]} == {
        path.name: path.stat().st_size for path in (tmp_path / "s" / taken.name / VOLUME).iterdir()
    }


def test_a_volume_that_nobody_has_open_is_not_running(volume: Path) -> None:
    assert not snapshot.is_running(volume)
    assert not snapshot.is_running(volume.parent / "none")


def test_a_request_that_no_index_will_answer_is_refused(volume: Path, tmp_path: Path) -> None:
    """The running index says where it puts snapshots; a request leaves no file behind."""
    with pytest.raises(ConfigurationError, match=r"takes no snapshots\. Restart it with"):
        snapshot.request_snapshot(volume, tmp_path / "s", 60)
    snapshot.announce_place(volume, tmp_path / "s")
    with pytest.raises(
        ConfigurationError, match=f"writes its snapshots to {tmp_path / 's'}, not to"
    ):
        snapshot.request_snapshot(volume, "s3://backup/crawl", 60)
    with pytest.raises(StoreError, match="did not complete a snapshot"):
        snapshot.request_snapshot(volume, tmp_path / "x" / ".." / "s", 0)
    assert not (volume / snapshot.REQUEST_FILE).exists()
    snapshot.announce_place(volume, None)
    with pytest.raises(ConfigurationError, match="takes no snapshots"):
        snapshot.request_snapshot(volume, tmp_path / "s", 60)
