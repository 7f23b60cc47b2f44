"""What an index with a memory budget says that it needs at least, held against the arrays of one that grows."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.ground.plan import PLANS
from stream_dedup.index.tables.budget import Budget
from stream_dedup.index.tables.held import bytes_for
from stream_dedup.index.tables.neighbours import MERGED_AGAIN_IN_FILES, Neighbours
from stream_dedup.index.tables.rows import no_columns, take_rows


def test_memory_of_a_process_beside_it_is_asked_for_too(tmp_path: Path) -> None:
    def least(beside_bytes: int) -> int:
        with pytest.raises(ConfigurationError) as refused:
            Budget(512 << 20, tmp_path, beside_bytes).demand(1 << 30)
        return int(re.findall(r"at least (\d+) MiB", str(refused.value))[0])

    assert least(320 << 20) == least(0) + 320


class Tight(Budget):
    """Holds what has to be in memory, and nothing that may lie in files."""

    def room(self, bytes_needed: int) -> int:
        """Return that there is none."""
        return -bytes_needed

    def demand(self, bytes_needed: int) -> None:
        """Refuse nothing."""


def test_a_budget_is_told_what_the_arrays_hold_at_most(tmp_path: Path) -> None:
    """What the least budget is told from bounds an index that grows, and is not far off."""
    dice = np.random.default_rng(int(os.environ["TEST_SEED"]))
    plan, count, shares = PLANS["bands"], 1_200_000, []
    columns = no_columns(2, count, 120)
    columns.sketches[:] = dice.integers(0, 256, (count, 120), np.uint8)
    columns.prints[:], columns.digests[:] = dice.integers(0, 1 << 64, (2, count, 2), np.uint64)
    columns.offsets[:] = np.arange(count)
    index = Neighbours(plan, 2, lambda numbers: take_rows(columns, numbers), budget=Tight(1, tmp_path), values=120)
    for first in range(0, count, 5_000):
        part = take_rows(columns, slice(first, first + 5_000))
        index.add(part, np.ones(5_000, np.bool_))
        index.judge(take_rows(part, slice(0, 1)), np.full(1, 100, np.uint32), 1)  # which sorts when it is due
        shares.append(
            index.bytes_used
            / bytes_for(plan.tables, index.live, index.live, 16, in_files=True, active_share=1 / MERGED_AGAIN_IN_FILES)
        )

    assert max(shares[-40:]) < 1.0
    assert min(shares[-40:]) > 0.7
    assert index.bytes_mapped > 150 * index.live
