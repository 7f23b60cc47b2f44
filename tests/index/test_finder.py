"""Tables of hashed keys: however many parts, pieces and threads they are sorted in, they equal a
plain stable sort."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_dedup.domain.errors import StoreError
from stream_dedup.index.storage.columns import FULL, REMOVED, SHORT
from stream_dedup.index.tables import finder
from stream_dedup.index.tables.finder import RowFinder
from tests.tiers import few

TABLES = 3


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("parts_bits", [0, 3, 30])
@pytest.mark.parametrize("rows", [0, 1, 33, 5000])
def test_frozen_segments_equal_a_plain_stable_sort(
    rows: int, parts_bits: int, in_file: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever rows count, and if nearly all of them have one key; also a second time, over what
    was there."""
    monkeypatch.setattr(finder, "_PART_BITS_MIN", 2)
    monkeypatch.setattr(finder, "_PARTS_BITS", parts_bits)
    monkeypatch.setattr(finder, "_KEYS_AT_ONCE", 7)
    chance = np.random.default_rng(int(os.environ["TEST_SEED"]))
    tables = RowFinder(TABLES)
    if in_file:
        tables.move_to_files(tmp_path)
    with ThreadPoolExecutor(3) as pool:

        def each(work: Callable[[Any], None], parts: Sequence[Any]) -> None:
            list(pool.map(work, parts))

        for least in (SHORT, FULL):
            keys = chance.integers(0, 1 << 64, (TABLES, rows), np.uint64)
            keys[1, chance.random(rows) < 0.9] = keys[1, :1] if rows else 0
            states = chance.integers(0, 3, rows, np.uint8)
            counting = np.flatnonzero(states >= least)
            tables.freeze(
                lambda numbers, first, end: keys[numbers, first:end].copy(),  # noqa: B023
                states,
                least,
                len(counting),
                each,
            )
            buckets = finder.buckets_for(len(counting))
            places = len(tables.key_tables.tags) // TABLES
            for number in range(TABLES):
                bucket = keys[number, counting] & np.uint64(buckets - 1)
                order = np.argsort(bucket, kind="stable")
                wanted = keys[number, counting][order]
                begin, end = number * places, number * places + len(counting)
                assert np.array_equal(tables._read_rows(number, 0, len(counting)), counting[order])
                assert np.array_equal(tables.key_tables.tags[begin:end], wanted >> np.uint64(56))
                halves = tables.key_tables.half_tags[begin // 2 : end // 2 + 1]
                more = np.stack([halves & 15, halves >> 4], axis=1).ravel()
                assert np.array_equal(
                    more[: len(counting)], wanted >> np.uint64(28) & np.uint64(15)
                )
                heads = tables.key_tables.heads[number, : buckets + 1]
                assert np.array_equal(heads, np.searchsorted(bucket[order], np.arange(buckets + 1)))


def in_turn(work: Callable[[Any], None], parts: Sequence[Any]) -> None:
    for part in parts:
        work(part)


@pytest.mark.parametrize("seed", few(range(4)))
def test_tables_merged_one_at_a_time_find_the_same_as_lists(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rows are found in their order, whichever tables were merged or got more buckets since, and
    wherever the rows lie."""
    monkeypatch.setattr(finder, "_BUCKETS_MIN", 8)
    monkeypatch.setattr(finder, "_ROOM_BUCKETS", 16)
    monkeypatch.setattr(finder, "_ENTRIES_AT_ONCE", 50)
    chance = random.Random(f"{os.environ['TEST_SEED']} {seed}")
    dice = np.random.default_rng(chance.getrandbits(32))
    tables, some = RowFinder(TABLES), dice.integers(0, 1 << 64, 40, np.uint64)
    keys, states, apart = np.empty((0, TABLES), np.uint64), np.empty(0, np.uint8), 0

    def freeze(numbers: list[int]) -> None:
        live = int((states >= SHORT).sum())
        tables.freeze(
            lambda numbers, first, end: keys[first:end, numbers].T.copy(),
            states,
            SHORT,
            live,
            in_turn,
            numbers,
        )

    by_chance = [
        chance.choice(["add", "add", "merge", "merge", "merge", "remove", "file"])
        for _ in range(190)
    ]
    for action in (
        by_chance + ["add", "merge"] * 30
    ):  # so many rows in the end that the tables move to where there is more room
        if action == "add":
            added = dice.integers(0, 1 << 64, (chance.randrange(60), TABLES), np.uint64)
            known = dice.random(added.shape) < 0.5
            added[known] = dice.choice(some, int(known.sum()))
            tables.add(np.arange(len(keys), len(keys) + len(added)), added)
            keys, states = (
                np.concatenate([keys, added]),
                np.concatenate([states, np.full(len(added), FULL, np.uint8)]),
            )
        elif action == "merge":
            number = chance.randrange(TABLES)
            others, room = np.delete(tables.active, number), tables.key_tables.heads.shape
            if not tables.merge(number):
                freeze([number])
            assert tables.active[number] == 0
            assert (
                np.array_equal(np.delete(tables.active, number), others)
                or tables.key_tables.heads.shape != room
            )
        elif action == "remove":
            states[dice.random(len(states)) < 0.05] = REMOVED
        elif chance.random() < 0.1:
            tables.move_to_files(tmp_path)
        apart += len({tables.buckets(number) for number in range(TABLES)}) > 1
        for number in range(TABLES):
            wanted, buckets = defaultdict(list), np.uint64(tables.buckets(number))
            for row in np.flatnonzero(states != REMOVED).tolist():
                wanted[seen_of(keys[row, number], buckets)].append(row)
            for key in some:
                cursor, found = np.zeros(1, np.int64), []
                while (row := tables.find(number, np.array([key]), states, cursor)[0]) >= 0:
                    found.append(row)
                assert found == wanted[seen_of(key, buckets)]
                cursor[:], below, backwards = (
                    finder.FROM_THE_END,
                    chance.randrange(len(keys) + 1),
                    [],
                )
                while (row := tables.find(number, np.array([key]), states, cursor, below)[0]) >= 0:
                    backwards.append(row)
                assert backwards == [row for row in reversed(found) if row < below]
    assert tables.frozen.min() > 0
    assert apart
    assert tables.key_tables.heads.shape[1] > 17  # moved there


def seen_of(key: np.uint64, buckets: np.uint64) -> tuple[int, int, int]:
    """Return the parts of a key that tables compare."""
    return int(key % buckets), int(key >> np.uint64(56)), int(key >> np.uint64(28)) & 15


def test_blocks_of_merged_tables_are_used_again() -> None:
    """Active segments that are merged over and over take the room that they took in the
    beginning."""
    dice = np.random.default_rng(int(os.environ["TEST_SEED"]))
    tables, rooms = RowFinder(TABLES), []
    for first in range(0, 120_000, 1000):
        tables.add(
            np.arange(first, first + 1000), dice.integers(0, 1 << 64, (1000, TABLES), np.uint64)
        )
        assert tables.merge(first // 1000 % TABLES)
        rooms.append(int(tables.key_tables.free_blocks[-1]))

    assert rooms[-1] < 1.2 * rooms[20]


def test_room_that_was_never_written_takes_no_memory(tmp_path: Path) -> None:
    """There is room for more rows than there are: it is counted neither as memory nor on the
    disk."""
    tables, states = RowFinder(TABLES), np.full(8000, FULL, np.uint8)
    empty = tables.bytes_used
    keys = np.random.default_rng(1).integers(0, 1 << 64, (TABLES, len(states)), np.uint64)
    for entries, row_bytes in ((8000, 5.5), (8000, 1.5), (500, 1.5)):
        tables.freeze(
            lambda numbers, first, end: keys[numbers, first:end].copy(),
            states[:entries],
            FULL,
            entries,
            in_turn,
        )
        assert tables.bytes_used - empty == TABLES * entries * row_bytes
        tables.move_to_files(tmp_path)
        assert tables.bytes_in_file == TABLES * entries * 4
        on_disk = sum(
            os.fstat(column.descriptor).st_blocks * 512 for column in tables._row_files.values()
        )
        assert tables.bytes_in_file <= on_disk < tables.bytes_in_file + TABLES * 8192


def test_a_merge_fails_if_a_file_is_too_short(tmp_path: Path) -> None:
    """The missing rows are not merged as if they were row 0."""
    tables, keys = (
        RowFinder(TABLES),
        np.random.default_rng(1).integers(0, 1 << 64, (2000, TABLES), np.uint64),
    )
    tables.move_to_files(tmp_path)
    tables.add(np.arange(1000), keys[:1000])
    assert tables.merge(1)
    os.truncate(tables._row_files[1].descriptor, 4 * 999)
    tables.add(np.arange(1000, 2000), keys[1000:])
    with pytest.raises(StoreError, match="the file is too short"):
        tables.merge(1)


def test_a_system_that_limits_the_address_space_is_reported() -> None:
    """The error names the setting that permits reserving memory without using it."""
    program = (
        "import resource\n"
        "from stream_dedup.index.tables.finder import RowFinder\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))\n"
        "RowFinder(20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "ConfigurationError: The system refused" in done.stderr
    assert "vm.overcommit_memory" in done.stderr


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(),
    reason="the system has no large pages to refuse",
)
def test_tables_use_no_large_pages() -> None:
    """Some systems use large pages by default: 2 MiB for each place that is written."""
    tables = RowFinder(TABLES)
    for array in (
        tables.key_tables.heads,
        tables.key_tables.tags,
        tables.key_tables.half_tags,
        tables.key_tables.rows,
        tables.key_tables.active_heads,
    ):
        flags: list[str] = []
        inside = False
        for line in Path("/proc/self/smaps").read_text("ascii").splitlines():
            bounds = line.split()[0].split("-")
            if len(bounds) == 2:
                inside = int(bounds[0], 16) <= array.ctypes.data < int(bounds[1], 16)
            elif inside and line.startswith("VmFlags:"):
                flags = line.split()
        assert "nh" in flags
