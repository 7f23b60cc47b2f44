"""What an index needs of memory, and what it does in front of an order that it has not the memory
for: no wrong verdict."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

from stream_dedup.domain.errors import ConfigurationError, StreamDedupError
from stream_dedup.domain.plan import PLANS, Plan
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.columns import ORIGIN_BYTES, make_columns, select_rows
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.tables.budget import Budget
from stream_dedup.index.tables.neighbours import MERGE_SHARE_IN_FILES, Neighbours
from tests.index.logs import (
    APPEND_MS,
    Doc,
    batch,
    control,
    declare,
    random_sketch,
    read_judgements,
    retract,
)

_MANY = Plan(128, 8, 0, 24, key_blocks=2)  # 28 tables


@pytest.fixture
def docs() -> list[Doc]:
    chance = random.Random(5)
    return [
        Doc(
            0,
            n,
            n,
            chance.randbytes(16),
            chance.getrandbits(128),
            id=b"id%d" % n,
            sketch=random_sketch(chance),
        )
        for n in range(40)
    ]


def log_of(docs: list[Doc], first: Plan, then: Plan) -> list[bytes]:
    """Return a log that changes its plan between documents and their copies."""
    copies = [
        Doc(0, 100 + n, n, bytes(16), doc.print ^ 1 << 100, sketch=doc.sketch)
        for n, doc in enumerate(docs[:5])
    ]
    orders = [retract(docs[7]), control("plan", plan=then.to_fields(), better="newest")]
    return [declare(first), batch(docs), *orders, batch(copies)]


def apply_rest(index: LogIndex, log: list[bytes]) -> bytes:
    """Apply the rest of a log, and return the chain of its answers."""
    for offset in range(index.applied, len(log)):
        index.apply([(offset, APPEND_MS + offset, log[offset])])
    return index.chain


@pytest.mark.parametrize(
    ("first", "then"), [(PLANS["classic"], PLANS["bands"]), (PLANS["bands"], _MANY)]
)
def test_an_index_stops_before_a_plan_that_needs_too_much_memory(
    first: Plan, then: Plan, docs: list[Doc], tmp_path: Path
) -> None:
    """Nothing of the record is written; with more memory it goes on, and says what every other
    index says."""
    log = log_of(docs, first, then)
    whole = LogIndex(MemoryStore(), Budget(0, tmp_path))
    chain = apply_rest(whole, log)
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume), Budget(8 << 30, tmp_path))
    apply_rest(index, log[:3])
    index = LogIndex(MemoryStore(volume), Budget(8 << 30, tmp_path))
    needed = index.memory_for(then).needed_bytes
    small = Budget(needed - (64 << 10), tmp_path)
    index = LogIndex(MemoryStore(volume), small)
    before, memory = dict(volume), index.memory_for(then)

    assert (memory.entries, memory.is_enough, index.memory_for(first).is_enough) == (
        37 if then == _MANY else 39,
        False,
        True,
    )
    with pytest.raises(
        ConfigurationError, match=r"Log record 3 changes the plan to .* needs more memory"
    ):
        apply_rest(index, log)
    assert (index.plan, index._state.better.label) == (first, "longest")
    assert volume == before
    with pytest.raises(StreamDedupError, match="The index has stopped"):
        apply_rest(index, log)

    index = LogIndex(MemoryStore(volume), small)
    with pytest.raises(ConfigurationError, match="needs more memory"):
        apply_rest(index, log)
    assert volume == before

    index = LogIndex(MemoryStore(volume), Budget(needed, tmp_path))
    assert apply_rest(index, log) == chain
    ((_, raw),) = whole.answers_since(4)
    assert [judgement.reason.label for judgement in read_judgements(raw)] == ["near"] * 5
    assert index.statistics()["ignored_control_records"] == 0


def test_an_empty_index_stops_before_documents_that_need_too_much_memory(
    docs: list[Doc], tmp_path: Path
) -> None:
    """A plan costs nothing before there are documents; with the first of them its tables are made,
    and then memory is asked."""
    volume: dict[bytes, bytes] = {}
    log = [declare(PLANS["bands"]), control("plan", plan=_MANY.to_fields()), batch(docs)]
    small = Budget(505 << 20, tmp_path)
    index = LogIndex(MemoryStore(volume), small)
    apply_rest(index, log[:2])
    before = dict(volume)
    with pytest.raises(ConfigurationError, match=r"need at least 5\d\d MiB of memory"):
        apply_rest(index, log)
    assert volume == before
    assert apply_rest(LogIndex(MemoryStore(volume), Budget(8 << 30, tmp_path)), log) == apply_rest(
        LogIndex(MemoryStore()), log
    )


def test_another_similarity_needs_no_more_memory(docs: list[Doc], tmp_path: Path) -> None:
    """Another rule of what is better, another window and another similarity are carried out in any
    memory."""
    plan = PLANS["bands"]
    index = LogIndex(MemoryStore(), Budget(8 << 30, tmp_path))
    apply_rest(index, [declare(plan), batch(docs)])
    assert (
        index.memory_for(plan.with_similarity(70)).needed_bytes
        == index.memory_for(plan).needed_bytes
    )


def test_the_memory_of_the_other_process_is_added(tmp_path: Path) -> None:
    def least(other_process_bytes: int) -> int:
        with pytest.raises(ConfigurationError) as refused:
            Budget(512 << 20, tmp_path, other_process_bytes).require(1 << 30)
        return int(re.findall(r"at least (\d+) MiB", str(refused.value))[0])

    assert least(320 << 20) == least(0) + 320


class Tight(Budget):
    """A budget for what must be in memory, without room for what may be in files."""

    def free_bytes(self, needed_bytes: int) -> int:
        """Return that there is none."""
        return -needed_bytes

    def require(self, needed_bytes: int) -> None:
        """Refuse nothing."""


def test_the_memory_estimate_is_an_upper_bound_of_the_arrays(tmp_path: Path) -> None:
    """With a million rows, the arrays use 70 to 100 % of the estimate."""
    dice = np.random.default_rng(int(os.environ["TEST_SEED"]))
    plan, count, shares = PLANS["bands"], 1_200_000, []
    columns = make_columns(2, count, 120 + ORIGIN_BYTES)
    columns.sketches[:] = dice.integers(0, 256, columns.sketches.shape, np.uint8)
    columns.prints[:], columns.digests[:] = dice.integers(0, 1 << 64, (2, count, 2), np.uint64)
    columns.offsets[:] = np.arange(count)
    index = Neighbours(
        plan,
        2,
        lambda numbers: select_rows(columns, numbers),
        budget=Tight(1, tmp_path),
        sketch_bytes=120,
    )
    for first in range(0, count, 5_000):
        part = select_rows(columns, slice(first, first + 5_000))
        index.add(part, np.ones(5_000, np.bool_))
        index.judge(
            select_rows(part, slice(0, 1)), np.full(1, 100, np.uint32), 1
        )  # which sorts when it is due
        shares.append(
            index.bytes_used
            / index._columns.bytes_for(
                plan.tables,
                index.live,
                index.live,
                in_files=True,
                active_share=1 / MERGE_SHARE_IN_FILES,
            )
        )

    assert max(shares[-40:]) < 1.0
    assert min(shares[-40:]) > 0.7
    assert index.bytes_mapped > 150 * index.live
