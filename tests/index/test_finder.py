"""Tables of hashed keys: however many parts, pieces and threads they are sorted in, they equal a plain stable sort."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_dedup.index import finder
from stream_dedup.index.finder import RowFinder
from stream_dedup.index.rows import FULL, SHORT

TABLES = 3


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("parts_bits", [0, 3, 30])
@pytest.mark.parametrize("rows", [0, 1, 33, 5000])
def test_sealed_parts_equal_a_plain_stable_sort(
    rows: int, parts_bits: int, in_file: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever rows count, and if nearly all of them have one key; also a second time, over what was there."""
    monkeypatch.setattr(finder, "_PART_BITS_MIN", 2)
    monkeypatch.setattr(finder, "_PARTS_BITS", parts_bits)
    monkeypatch.setattr(finder, "_KEYS_AT_ONCE", 7)
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = np.random.default_rng(seed)
    tables = RowFinder(TABLES)
    if in_file:
        tables.to_file(tmp_path)
    with ThreadPoolExecutor(3) as pool:

        def each(work: Callable[[Any], None], parts: Sequence[Any]) -> None:
            list(pool.map(work, parts))

        for least in (SHORT, FULL):
            keys = chance.integers(0, 1 << 64, (TABLES, rows), np.uint64)
            keys[1, chance.random(rows) < 0.9] = keys[1, :1] if rows else 0
            states = chance.integers(0, 3, rows, np.uint8)
            counting = np.flatnonzero(states >= least)
            tables.seal(lambda first, end: keys[:, first:end].copy(), states, least, len(counting), each)  # noqa: B023
            buckets = tables.table.heads.shape[1] - 1
            places = len(tables.table.tags) // TABLES
            for number in range(TABLES):
                bucket = keys[number, counting] & np.uint64(buckets - 1)
                order = np.argsort(bucket, kind="stable")
                wanted = keys[number, counting][order]
                begin, end = number * places, number * places + len(counting)
                assert np.array_equal(tables._rows.read(begin, end), counting[order])
                assert np.array_equal(tables.table.tags[begin:end], wanted >> np.uint64(56))
                more = np.stack([tables.table.more & 15, tables.table.more >> 4], axis=1).ravel()
                assert np.array_equal(more[begin:end], wanted >> np.uint64(28) & np.uint64(15))
                assert np.array_equal(tables.table.heads[number], np.searchsorted(bucket[order], np.arange(buckets + 1)))
