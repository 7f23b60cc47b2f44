"""Rows and tables beside the volume: whatever becomes of their files, and wherever a process dies,
verdicts stay the same."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.domain.errors import StoreError, VolumeError
from stream_dedup.domain.plan import PLANS, Plan
from stream_dedup.index import index as index_module
from stream_dedup.index.index import LogIndex
from stream_dedup.index.snapshot import restore, take
from stream_dedup.index.storage import layout, table_files
from stream_dedup.index.storage.layout import PREFIX_FILE_ROWS, PREFIX_FILE_TABLE
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.index.storage.table_files import TableFiles
from stream_dedup.index.tables import entry_columns, finder, neighbours
from stream_dedup.index.tables.budget import Budget
from tests.index.logs import APPEND_MS, Doc, RandomLog, append_time, batch, declare, forget, retract

SEED = int(os.environ["TEST_SEED"])
GROUP = 8
RECORDS = 140
GOLDEN = Path(__file__).parents[1] / "golden" / "table_files.json"
SEEDS = [SEED * 100 + n for n in range(4)]


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have groups of eight rows, and tables that are merged after some entries, so that small logs
    have all of it."""
    monkeypatch.setattr(table_files, "GROUP_ROWS", GROUP)
    monkeypatch.setattr(entry_columns, "GROUP_ROWS", GROUP)
    monkeypatch.setattr(neighbours, "_ACTIVE_MIN", 4)
    monkeypatch.setattr(finder, "_BUCKETS_MIN", 8)
    monkeypatch.setattr(finder, "_ROOM_BUCKETS", 16)
    monkeypatch.setattr(finder, "_PLACES_AT_ONCE", 64)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


class AtOnce(Executor):
    """Runs each task at once, in the caller's thread."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*arguments, **named))
        return done


class Late(Executor):
    """Runs its tasks when `work` is called, cancelled ones never."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self._waiting.append((done, partial(work, *arguments, **named)))
        return done

    def work(self) -> None:
        for done, work in self._waiting:
            if done.set_running_or_notify_cancel():
                done.set_result(work())
        self._waiting.clear()


def records_of(seed: int, plan: Plan = PLANS["bands"]) -> list[tuple[int, int, bytes | None]]:
    log = RandomLog(seed, plan, plan_changes=seed % 3 == 0, windows=seed % 2 == 0).records(RECORDS)
    return [(offset, append_time(offset), value) for offset, value in enumerate(log)]


def chain_of(records: list[tuple[int, int, bytes | None]]) -> tuple[bytes, str]:
    """Return chain and state digest of an index without table files."""
    index = LogIndex(MemoryStore())
    index.apply(records)
    return index.chain, index.state_digest().digest


def apply_rest(index: LogIndex, records: list[tuple[int, int, bytes | None]]) -> tuple[bytes, str]:
    """Apply the rest, close the index, and return its chain and state digest."""
    index.apply(records[index.applied :])
    found = index.chain, index.state_digest().digest
    index.close()
    return found


def wait_for_tables(index: LogIndex) -> None:
    """Wait until the other thread has written its tables and removed replaced files."""
    assert index._files is not None
    for writing in list(index._files._writes.values()):
        assert writing.future is not None
        writing.future.result()
    index._files._thread.submit(lambda: None).result()


def little_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Budget:
    """Return a budget with which everything that may be in files is there."""
    monkeypatch.setattr(Budget, "free_bytes", lambda self, needed: -1)
    monkeypatch.setattr(Budget, "require", lambda self, needed: None)
    return Budget(3 << 30, folder)


def files_in_use(index: LogIndex) -> set[int]:
    """Return the files that row numbers of tables are read from, by their numbers on the disk."""
    tables = index._state.neighbours
    finders = [] if tables is None else [tables._tag_finder, tables._tables.finder]
    return {
        os.fstat(column.descriptor).st_ino
        for row_finder in finders
        for column in row_finder._row_files.values()
    }


def count_file_rows(index: LogIndex) -> int:
    """Return the number of rows in the files."""
    assert index._files is not None
    return index._files._groups * GROUP


@pytest.mark.parametrize("memory", [None, "little"])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_index_opened_from_files_answers_like_one_without(
    seed: int, memory: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened again and again, with removals, windows, take-downs and changed plans between; and all
    files are used."""
    chance = random.Random(seed)
    records = records_of(seed)
    volume: dict[bytes, bytes] = {}
    budget = little_memory(tmp_path, monkeypatch) if memory else None
    index = LogIndex(MemoryStore(volume), budget, table_folder=tmp_path / "tables")
    while index.applied < len(records):
        index.apply(records[index.applied : index.applied + chance.choice([1, 7, 30])])
        if chance.random() < 0.4:
            if chance.random() < 0.5:
                wait_for_tables(index)
                index.flush()
            index.close()
            assert not list((tmp_path / "tables").glob("*.part"))
            rows, tables = (
                sum(key.startswith(first) for key in volume)
                for first in (PREFIX_FILE_ROWS, PREFIX_FILE_TABLE)
            )
            index = LogIndex(MemoryStore(volume), budget, table_folder=tmp_path / "tables")
            assert index.rebuild_reasons == ()
            assert index._files is not None
            assert count_file_rows(index) == rows * GROUP
            assert len(index._files._named_tables) >= tables  # opening may have written more

    wait_for_tables(index)
    names = {path.stat().st_ino: path.name for path in (tmp_path / "tables").iterdir()}
    read_from = [names[inode] for inode in files_in_use(index)]
    assert bool(read_from) == (memory is not None)
    assert all(name.startswith("table-") and not name.endswith(".part") for name in read_from)
    assert apply_rest(index, records) == chain_of(records)


@pytest.mark.parametrize("memory", [None, "little"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_that_changes_before_it_is_written_is_not_written(
    seed: int, memory: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late the other thread comes to it, no file holds a table of which one part is older
    than another; and what was replaced goes when that thread comes to it, because removing a large
    file takes long.
    """
    chance, written = random.Random(seed), TableFiles.note_written
    replaced: dict[TableFiles | None, list[Path]] = {}
    threads: list[Late] = []

    def removes_nothing(self: TableFiles) -> None:
        files_before = sorted(self.folder.iterdir())
        replaced.setdefault(self, []).extend(self._obsolete_files)
        written(self)
        assert sorted(self.folder.iterdir()) == files_before

    def files_late(store: Any, folder: Path) -> TableFiles:
        threads.append(Late())
        return TableFiles(store, folder, threads[-1])

    monkeypatch.setattr(TableFiles, "note_written", removes_nothing)
    monkeypatch.setattr(index_module, "TableFiles", files_late)
    budget, tables = little_memory(tmp_path, monkeypatch) if memory else None, 0
    for tried in range(
        seed, seed + 400, 4
    ):  # a log that replaces nothing is followed by another one
        print("seed", tried)
        records, volume, folder = records_of(tried), dict[bytes, bytes](), tmp_path / str(tried)
        index = LogIndex(MemoryStore(volume), budget, table_folder=folder)
        while index.applied < len(records):
            index.apply(records[index.applied : index.applied + 1])
            if chance.random() < 0.1:
                threads[-1].work()
            if chance.random() < 0.05:
                index.flush()
                index.close()
                assert not list(folder.glob("*.part"))
                index = LogIndex(MemoryStore(volume), budget, table_folder=folder)
                assert index.rebuild_reasons == ()
            assert index._files is not None
            tables = max(tables, len(index._files._named_tables))
        assert apply_rest(index, records) == chain_of(records)
        threads[-1].work()
        assert not any(path.exists() for path in replaced.get(index._files, ()))
        if tables and any(replaced.values()):
            return
    pytest.fail("of a hundred logs none replaced a file")


class Dying(MemoryStore):
    """A store that reports a step before and after each write."""

    def __init__(self, volume: dict[bytes, bytes], on_step: Callable[[str], None]) -> None:
        super().__init__(volume)
        self._on_step = on_step

    def write(self, *given: Any) -> None:
        self._on_step("before a write")
        super().write(*given)
        self._on_step("after a write")


STEPS = (
    *("before a write", "after a write", "names written", "names withdrawn", "rows wiped"),
    *("table begun", "table written", "table synced", "table renamed"),
)
# At these steps rows may be wiped that the volume does not record as removed yet.
AHEAD = {"rows wiped", "before a write"}


@pytest.mark.parametrize("step", STEPS)
def test_wherever_a_process_dies_the_next_one_answers_alike(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies on the disk at any step opens, and goes on to the same answers and the same
    state."""
    chance = random.Random(f"{SEED} {step}")
    records = records_of(SEED * 6)  # with changed plans and windows
    for name in (b"a", b"b", b"c" * 512):
        records.append((len(records), append_time(len(records)), forget(name)))
    volume: dict[bytes, bytes] = {}
    left: list[tuple[dict[bytes, bytes], Path]] = []

    def on_step(now: str) -> None:
        if now == step and chance.random() < (1 if len(left) < 4 else 0.2) and len(left) < 8:
            folder = tmp_path / f"left-{len(left)}"
            shutil.copytree(tmp_path / "tables", folder)
            left.append((dict(volume), folder))

    monkeypatch.setattr(
        index_module, "TableFiles", partial(TableFiles, thread=AtOnce(), on_step=on_step)
    )
    index = LogIndex(Dying(volume, on_step), table_folder=tmp_path / "tables")
    while index.applied < len(records):
        index.apply(records[index.applied : index.applied + chance.choice([1, 7, 30])])
        if chance.random() < 0.2:
            index.close()
            index = LogIndex(Dying(volume, on_step), table_folder=tmp_path / "tables")
    wanted = apply_rest(index, records)
    assert wanted == chain_of(records)
    monkeypatch.undo()
    make_small(monkeypatch)

    assert left
    for stored, folder in left:
        opened = LogIndex(MemoryStore(stored), table_folder=folder)
        assert all(
            step in AHEAD and reason.startswith("rows from number ")
            for reason in opened.rebuild_reasons
        )
        assert apply_rest(opened, records) == wanted


def flip(path: Path, chance: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def tear(path: Path, chance: random.Random) -> None:
    """Replace the end of a file by zeros, as a crashed machine may leave it."""
    size = path.stat().st_size
    kept = chance.randrange(size)
    os.truncate(path, kept)
    os.truncate(path, size)


def lose(path: Path, _: random.Random) -> None:
    path.unlink()


def swap(path: Path, chance: random.Random) -> None:
    """Overwrite a file with another one, if possible one of its kind."""
    others = [
        path_beside
        for path_beside in sorted(path.parent.iterdir())
        if path_beside != path and path_beside.name[:5] == path.name[:5]
    ]
    other = chance.choice(
        others
        or [path_beside for path_beside in sorted(path.parent.iterdir()) if path_beside != path]
    )
    path.write_bytes(other.read_bytes())


def shut(path: Path, _: random.Random) -> None:
    """Replace a file by a directory, which cannot be read as a file."""
    path.unlink()
    path.mkdir()


def failing(write: Callable[..., Any], share: float, chance: random.Random) -> Callable[..., Any]:
    """Return a write that sometimes fails half done, as on a full disk."""

    def write_at_times(file: int, piece: Any, *offset: int) -> Any:
        if chance.random() < share:
            write(file, piece[: len(piece) // 2], *offset)
            raise OSError(28, "No space left on device")
        return write(file, piece, *offset)

    return write_at_times


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[bytes, bytes], Path, list[Any], tuple[bytes, str]]:
    """A volume, its table files, its log, and chain and state digest at the end of the log."""
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        folder = tmp_path_factory.mktemp("whole")
        records = records_of(13)
        volume: dict[bytes, bytes] = {}
        patch.setattr(index_module, "TableFiles", partial(TableFiles, thread=AtOnce()))
        index = LogIndex(MemoryStore(volume), table_folder=folder / "tables")
        index.apply(records[:110])
        index.flush()
        index.close()
        return volume, folder / "tables", records, chain_of(records)


COLUMNS = (
    "prints",
    "features",
    "numbers",
    "states",
    "sketches",
    "digest_tags",
    "position_tags",
    "ids",
    "scopes",
)


FILES = [*COLUMNS, "first table", "last table", "all tables", "all"]


@pytest.mark.parametrize(
    ("name", "damage"), [*product(FILES, [flip, cut, tear, lose, swap]), ("all tables", shut)]
)
def test_a_damaged_file_is_rebuilt_from_the_volume(
    name: str, damage: Callable[[Path, random.Random], None], whole: Any, tmp_path: Path
) -> None:
    """What is flipped, cut, torn, lost or another file is noticed where it counts, and changes no
    verdict."""
    volume, folder, records, wanted = whole
    noticed, number = 0, 0
    while number < 3 or (
        not noticed and number < 30
    ):  # damage to the last rows is not noticed: they are rebuilt anyway
        chance = random.Random(f"{SEED} {name} {damage.__name__} {number}")
        copied_folder = tmp_path / str(number)
        shutil.copytree(folder, copied_folder)
        named = sorted(
            layout.number_of(key) for key in volume if key[:1] == layout.PREFIX_FILE_TABLE
        )
        tables = {"first table": f"table-{named[0]}.*", "last table": f"table-{named[-1]}.*"}
        pattern = {"all": "*", "all tables": "table-*", **tables}.get(name, f"{name}*")
        before = {
            path.name: path.read_bytes()
            for path in copied_folder.glob(pattern)
            if path.stat().st_size
        }
        assert before
        for found in before:
            damage(copied_folder / found, chance)
        index = LogIndex(MemoryStore(dict(volume)), table_folder=copied_folder)
        noticed += len(index.rebuild_reasons)
        assert all(
            reason.startswith(("the digest of the rows from number ", "table-"))
            for reason in index.rebuild_reasons
        )
        assert apply_rest(index, records) == wanted
        number += 1
    assert noticed > 0


@pytest.mark.thorough
@pytest.mark.timeout(900)  # it waits for the disk: some 20,000 calls of fsync
def test_a_death_and_damage_at_once_change_no_verdict(tmp_path: Path) -> None:
    """At a random step of a random log a process dies, or its disk is full, and its machine may
    lose what it wrote.

    `TEST_FAULTS` says how often.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    known: dict[int, tuple[list[Any], tuple[bytes, str]]] = {}
    pwrite, write_all = os.pwrite, table_files._write_all
    while counts.total() < int(os.environ.get("TEST_FAULTS", "40")):
        chance = random.Random(f"{SEED} {counts.total()}")
        seed, step, which = (
            SEED * 100 + chance.randrange(20),
            chance.choice(STEPS),
            chance.randrange(1, 6),
        )
        damage = chance.choice([None, flip, cut, tear, lose, swap])
        memory, disk = chance.choice(["much", "little"]), chance.choice(["room", "room", "full"])
        if seed not in known:
            known[seed] = (records := records_of(seed)), chain_of(records)
        records, wanted = known[seed]
        folder, volume = tmp_path / str(counts.total()), dict[bytes, bytes]()
        left: list[tuple[dict[bytes, bytes], Path]] = []

        def on_step(
            now: str,
            step: str = step,
            left: Any = left,
            volume: Any = volume,
            folder: Path = folder,
        ) -> None:
            if now == step:
                left.append(
                    (dict(volume), shutil.copytree(folder / "tables", folder / f"left-{len(left)}"))
                )

        with pytest.MonkeyPatch.context() as patch:
            make_small(patch)
            budget = little_memory(folder, patch) if memory == "little" else None
            patch.setattr(
                index_module, "TableFiles", partial(TableFiles, thread=AtOnce(), on_step=on_step)
            )
            index = LogIndex(Dying(volume, on_step), budget, table_folder=folder / "tables")
            if disk == "full":
                patch.setattr(table_files, "_write_all", failing(write_all, 0.2, chance))
                patch.setattr(os, "pwrite", failing(pwrite, 0.01, chance))
            try:
                while index.applied < len(records) and len(left) < which:
                    index.apply(records[index.applied : index.applied + chance.choice([1, 7, 30])])
                index.close()
            except StoreError:
                left.append((dict(volume), shutil.copytree(folder / "tables", folder / "full")))
                step = "a write of rows"
            patch.setattr(os, "pwrite", pwrite)
            patch.setattr(table_files, "_write_all", write_all)
            if left:
                stored, found = left[-1]
                files = [path for path in sorted(found.iterdir()) if path.stat().st_size]
                if damage is not None and files:
                    damage(chance.choice(files), chance)
                patch.setattr(index_module, "TableFiles", partial(TableFiles, thread=AtOnce()))
                opened = LogIndex(MemoryStore(stored), budget, table_folder=found)
                description = f"TEST_SEED={SEED}, fault {counts.total()}: {step}, {damage and damage.__name__}, {memory}, {disk}"
                assert apply_rest(opened, records) == wanted, description
        shutil.rmtree(folder)
        counts[
            step if left else "nothing", damage.__name__ if damage else "whole", memory, disk
        ] += 1
    for kind, count in sorted(counts.items()):
        print(count, *kind)


def replace(path: Path, _: random.Random) -> None:
    """Replace a file by another one of the same name."""
    other = path.with_name("other")
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)


@pytest.mark.parametrize("damage", [lose, replace, cut])
def test_row_numbers_are_read_from_the_open_files(
    damage: Callable[[Path, random.Random], None],
    whole: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is gone, or another now, is read on as it was; one that is cut meanwhile ends a
    search with a sentence."""
    volume, folder, records, wanted = whole
    stored, budget, chance = dict(volume), little_memory(tmp_path, monkeypatch), random.Random(SEED)
    shutil.copytree(folder, tmp_path / "own")
    index = LogIndex(MemoryStore(stored), budget, table_folder=tmp_path / "own")
    kept = [path for path in (tmp_path / "own").glob("table-*") if path.suffix != ".part"]
    assert files_in_use(index) == {path.stat().st_ino for path in kept}
    for path in kept:
        damage(path, chance)
    if damage is cut:
        with pytest.raises(
            StoreError,
            match=r"could not read its table files .*too short.*Check the disk",
        ):
            index.apply(records[110:])
        index = LogIndex(MemoryStore(stored), budget, table_folder=tmp_path / "own")
        assert index.rebuild_reasons

    assert apply_rest(index, records) == wanted


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize("same", [True, False])
def test_links_are_replaced_by_files_and_their_targets_stay(
    whole: Any, tmp_path: Path, link: Callable[[Path, Path], None], same: bool
) -> None:
    """All of one foreign file, or each of a copy of what it was: no verdict changes, and the next
    opening finds files of its own."""
    volume, folder, records, wanted = whole
    stored, own_tables, foreign = dict(volume), tmp_path / "tables", tmp_path / "foreign"
    shutil.copytree(folder, own_tables)
    shutil.copytree(folder, foreign)
    (foreign / "other").write_bytes(random.Random(SEED).randbytes(100_000))
    before = {path.name: path.read_bytes() for path in foreign.iterdir()}
    for path in own_tables.iterdir():
        path.unlink()
        link(path, foreign / (path.name if same else "other"))
    index = LogIndex(MemoryStore(stored), table_folder=own_tables)
    assert index.rebuild_reasons
    assert apply_rest(index, records) == wanted
    assert {path.name: path.read_bytes() for path in foreign.iterdir()} == before
    assert not any(path.is_symlink() or path.stat().st_nlink > 1 for path in own_tables.iterdir())
    assert LogIndex(MemoryStore(stored), table_folder=own_tables).rebuild_reasons == ()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_folder_or_pipe_in_place_of_a_column_is_reported(
    whole: Any, tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    """The index does not remove a folder or a pipe in place of a column, nor wait for it."""
    volume, folder, _, _ = whole
    shutil.copytree(folder, tmp_path / "tables")
    (tmp_path / "tables" / name).unlink()
    make(tmp_path / "tables" / name)
    with pytest.raises(
        VolumeError, match=f"needs the file .*tables/{name}, but.* Delete it or the folder"
    ):
        LogIndex(MemoryStore(dict(volume)), table_folder=tmp_path / "tables")


def test_a_pipe_in_place_of_a_table_is_ignored(whole: Any, tmp_path: Path) -> None:
    volume, folder, records, wanted = whole
    shutil.copytree(folder, tmp_path / "tables")
    for path in (tmp_path / "tables").glob("table-*"):
        path.unlink()
        os.mkfifo(path)
    index = LogIndex(MemoryStore(dict(volume)), table_folder=tmp_path / "tables")
    assert all("is not a regular file" in reason for reason in index.rebuild_reasons)
    assert apply_rest(index, records) == wanted


def test_rebuilt_rows_and_tables_are_written_again(whole: Any, tmp_path: Path) -> None:
    """After damage the next opening is as quick as any, and finds nothing that does not fit."""
    volume, folder, records, wanted = whole
    stored, chance = dict(volume), random.Random(SEED)
    shutil.copytree(folder, tmp_path / "tables")
    for path in (tmp_path / "tables").iterdir():
        flip(path, chance)
    index = LogIndex(MemoryStore(stored), table_folder=tmp_path / "tables")
    assert index.rebuild_reasons
    index.flush()
    index.close()
    index = LogIndex(MemoryStore(stored), table_folder=tmp_path / "tables")

    assert index.rebuild_reasons == ()
    assert count_file_rows(index) > 5 * GROUP
    assert apply_rest(index, records) == wanted


def test_a_removal_is_not_applied_to_another_row_after_damage(tmp_path: Path) -> None:
    """The rows from the damage on are laid out again without the removed ones."""
    chance = random.Random(SEED)
    docs = [
        Doc(0, n, n, chance.randbytes(16), chance.getrandbits(128), sketch=chance.randbytes(120))
        for n in range(5 * GROUP)
    ]
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume), table_folder=tmp_path)
    index.apply([(0, APPEND_MS, declare(PLANS["bands"])), (1, APPEND_MS, batch(docs))])
    index.apply([(2, APPEND_MS, retract(docs[3 * GROUP + 1]))])
    index.close()
    raw = bytearray((tmp_path / "prints").read_bytes())
    raw[16 * 2 * GROUP] ^= 1
    (tmp_path / "prints").write_bytes(raw)
    index = LogIndex(MemoryStore(volume), table_folder=tmp_path)
    assert len(index.rebuild_reasons) == 1
    index.close()
    index = LogIndex(MemoryStore(volume), table_folder=tmp_path)

    assert (index.rebuild_reasons, count_file_rows(index)) == ((), 4 * GROUP)
    index.close()


def test_rows_that_an_index_without_the_files_removed_are_noticed(
    whole: Any, tmp_path: Path
) -> None:
    """A program that does not know the files leaves no note of what it removed: then nothing of
    them counts."""
    volume, folder, records, wanted = whole
    stored = dict(volume)
    shutil.copytree(folder, tmp_path / "tables")
    index = LogIndex(MemoryStore(stored))
    live = index.statistics()["entries"] - index.statistics()["removed"]
    while index.statistics()["entries"] - index.statistics()["removed"] >= live:
        index.apply(records[index.applied : index.applied + 1])
        live = max(live, index.statistics()["entries"] - index.statistics()["removed"])
    index.close()
    index = LogIndex(MemoryStore(stored), table_folder=tmp_path / "tables")

    assert any("live entries" in reason for reason in index.rebuild_reasons)
    assert apply_rest(index, records) == wanted


def test_files_of_another_version_are_rebuilt(whole: Any, tmp_path: Path) -> None:
    """Another format of these files, newer or older, is not looked into."""
    volume, folder, records, wanted = whole
    stored = dict(volume)
    shutil.copytree(folder, tmp_path / "tables")
    stored[layout.KEY_TABLE_FILES] = b"\x63\x00" + stored[layout.KEY_TABLE_FILES][2:]
    index = LogIndex(MemoryStore(stored), table_folder=tmp_path / "tables")

    assert index.rebuild_reasons == (
        "rows and tables were written by another version of the program",
    )
    assert apply_rest(index, records) == wanted


def test_a_full_disk_does_not_end_an_index_that_writes_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that cannot be written are counted, leave nothing on the disk, and are made anew at
    the next start."""
    monkeypatch.setattr(
        table_files, "_write_all", failing(table_files._write_all, 0.3, random.Random(SEED))
    )
    records = records_of(13)
    volume: dict[bytes, bytes] = {}
    unwritten = 0
    index = LogIndex(MemoryStore(volume), table_folder=tmp_path / "tables")
    while index.applied < len(records):
        index.apply(records[index.applied : index.applied + 30])
        unwritten += index.statistics()["tables_unwritten"]
        index.close()
        assert not list((tmp_path / "tables").glob("*.part"))
        index = LogIndex(MemoryStore(volume), table_folder=tmp_path / "tables")
        assert index.rebuild_reasons == ()

    assert unwritten > 0
    assert apply_rest(index, records) == chain_of(records)


def test_a_full_disk_ends_an_index_that_writes_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that cannot be written end the index, as the volume itself would; opened again it goes
    on to the same verdicts."""
    real, full = os.pwrite, failing(os.pwrite, 0.01, random.Random(SEED))
    records = records_of(13)
    volume: dict[bytes, bytes] = {}
    messages: list[str] = []
    while True:
        monkeypatch.setattr(os, "pwrite", real)
        index = LogIndex(MemoryStore(volume), table_folder=tmp_path / "tables")
        monkeypatch.setattr(os, "pwrite", full)
        try:
            while index.applied < len(records):
                index.apply(records[index.applied : index.applied + 30])
            break
        except StoreError as error:
            messages.append(str(error))

    assert messages
    assert all("Free space on the disk" in message for message in messages)
    assert apply_rest(index, records) == chain_of(records)


def test_forgotten_documents_are_in_no_file(tmp_path: Path) -> None:
    """Nothing of a text that was taken down is left in the rows: no print, no sketch, no tag; and
    they still count."""
    chance = random.Random(SEED)
    docs = [
        Doc(
            0,
            n,
            n,
            chance.randbytes(16),
            chance.getrandbits(128),
            id=b"id%d" % n,
            sketch=chance.randbytes(120),
        )
        for n in range(5 * GROUP)
    ]
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume), table_folder=tmp_path / "tables")
    index.apply([(0, APPEND_MS, declare(PLANS["bands"])), (1, APPEND_MS, batch(docs))])
    assert docs[3].sketch in (tmp_path / "tables" / "sketches").read_bytes()
    assert docs[3].print.to_bytes(16, "little") in (tmp_path / "tables" / "prints").read_bytes()
    index.apply([(2, APPEND_MS, forget(b"id3")), (3, APPEND_MS, retract(docs[4]))])
    index.close()

    index = LogIndex(MemoryStore(volume), table_folder=tmp_path / "tables")
    assert index.rebuild_reasons == ()
    assert count_file_rows(index) == 5 * GROUP
    index.close()
    for path in (tmp_path / "tables").iterdir():
        raw = path.read_bytes()
        assert docs[3].sketch not in raw
        assert docs[3].print.to_bytes(16, "little") not in raw


def test_a_snapshot_is_complete_without_the_files(tmp_path: Path) -> None:
    """What lies beside a volume is not copied with it; the restored one makes it anew without a
    word, and goes on equally."""
    records = records_of(13)
    index = LogIndex(RocksStore(tmp_path / "volume"), table_folder=tmp_path / "volume" / "tables")
    index.bind("log")
    index.apply(records[:110])
    index.flush()
    assert count_file_rows(index)
    index.close()
    take(tmp_path / "volume", tmp_path / "snapshot")
    restore(tmp_path / "snapshot", tmp_path / "new", log="log")
    for name in ("volume", "new"):
        index = LogIndex(RocksStore(tmp_path / name), table_folder=tmp_path / name / "tables")
        assert index.rebuild_reasons == ()
        assert apply_rest(index, records) == chain_of(records)


def test_the_bytes_of_files_are_those_of_their_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of these bytes, or of what keys follow from a text, is a new `FORMAT`: old files
    would find others."""
    monkeypatch.setattr(index_module, "TableFiles", partial(TableFiles, thread=AtOnce()))
    chance = random.Random(1)
    docs = [
        Doc(
            0,
            n,
            n,
            chance.randbytes(16),
            chance.getrandbits(128),
            id=b"%d" % n,
            scope=n % 3,
            sketch=chance.randbytes(120),
        )
        for n in range(12 * GROUP)
    ]
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume), table_folder=tmp_path / "tables")
    index.apply(
        [
            (0, APPEND_MS, declare(PLANS["bands"])),
            (1, APPEND_MS, batch(docs)),
            (2, APPEND_MS, retract(docs[9])),
        ]
    )
    index.close()
    kinds = (
        layout.KEY_TABLE_FILES,
        layout.PREFIX_FILE_ROWS,
        layout.PREFIX_FILE_TABLE,
        layout.PREFIX_REMOVED,
    )
    stored = {key.hex(): value.hex() for key, value in sorted(volume.items()) if key[:1] in kinds}
    assert len({key[:2] for key in stored}) == len(kinds)

    found = {"format": table_files.FORMAT, "said": stored}

    assert found == json.loads(GOLDEN.read_text("utf-8"))
