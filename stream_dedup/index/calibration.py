"""What this machine's index takes, measured in about a second: the constants of `stream-dedup plan`.

Four plans over the same random prints, whose searches differ in what they do: few buckets with few or many prints in each,
many buckets; fragments of 32 bits (thresholds up to 7) and of 64. The times of their searches are four equations, solved
for the cost of a bucket, of a print compared for either width, and of the rest. Laying their tables out, and adding to
them, gives the cost of a table; sizes follow from the arrays. The tables of whole keys, as `bands` has them, are timed apart.

Invariants: times are CPU times of one thread, so that another process on the machine costs precision and little bias; what
is compiled is compiled before anything is timed; of several samples the least disturbed, the shortest, counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from stream_dedup.ground.plan import PLANS, Plan
from stream_dedup.ground.sketch import SKETCH_BYTES
from stream_dedup.index.arithmetic import candidates_of_plan, candidates_of_texts
from stream_dedup.index.blocked import fragment_bytes
from stream_dedup.index.blocks import tables_of
from stream_dedup.index.budget import Budget
from stream_dedup.index.finder import finder_bytes
from stream_dedup.index.held import bytes_for
from stream_dedup.index.keyed import Keyed
from stream_dedup.index.measured import MEASURED
from stream_dedup.index.neighbours import MERGED_AGAIN, MERGED_AGAIN_IN_FILES, SEALED_AGAIN, Neighbours
from stream_dedup.index.rows import FULL, Columns, StoredRows, no_columns, take_rows

ENTRIES: Final = 200_000
DOCUMENTS: Final = 2_000
_SAMPLES: Final = 4
_FLOOR: Final = 1
_SCATTER_SMALL: Final = 1 << 24  # about what the tables of so many entries take
_SCATTER_LARGE: Final = 1 << 27
_READS: Final = 1 << 20
_PLANS: Final = (Plan(64, 4, 0, 3), Plan(40, 4, 0, 3), Plan(128, 8, 1, 19), Plan(128, 16, 0, 19))
_KEYED: Final = PLANS["bands"]
_ROW_BYTES: Final = 4
_HEAD_BYTES: Final = 12  # of a bucket: where it begins; where its open block is, and how long
_HELD_BYTES: Final = 17  # of an entry: features, number, state, and the tags of its digest and position
_OPEN_SHARE: Final = 0.6 / SEALED_AGAIN  # what an open part holds on average, in blocks that are not full
_MERGED_SHARE: Final = 0.5 / MERGED_AGAIN


@dataclass(frozen=True, slots=True)
class Constants:
    """CPU time of the parts of a judgement on this machine.

    `document_us`: finding by digest and becoming an entry; `table_us`: entering a table, the sorting again included;
    `probe_us`: visiting a bucket, while the index fits the caches; `far`: how much longer that takes where it does not;
    `narrow_us`, `wide_us`: comparing a print by 32 or by 64 bits, wherever it lies, for they lie in a row. `keyed_us`: asking
    a table of whole keys, `keyed_table_us`: entering it, the merging included.
    """

    document_us: float
    table_us: float
    probe_us: float
    narrow_us: float
    wide_us: float
    far: float
    keyed_us: float
    keyed_table_us: float
    entries: int = ENTRIES

    def as_json(self) -> dict[str, float]:
        """Return the constants by name."""
        return asdict(self)

    def microseconds(
        self, plan: Plan, documents: int, share_new: float = 1.0, *, surrounding_us: float = MEASURED.surrounding_us
    ) -> float:
        """Predict the CPU time of judging one document beside so many others.

        `surrounding_us` is what surrounds a search: decoding, positions, answer, the write to RocksDB.
        """
        far = self.far if documents > 4 * self.entries else 1.0
        probe_us, table_us, compare_us = self.probe_us, self.table_us, self.narrow_us if _is_narrow(plan) else self.wide_us
        if plan.is_keyed:  # asking includes what passes by its tag
            probe_us, table_us, compare_us = self.keyed_us, self.keyed_table_us, 0.0
        compared = float(candidates_of_texts(plan, documents)) * compare_us
        scattered = plan.probes * probe_us + share_new * plan.tables * table_us
        return self.document_us + surrounding_us + far * scattered + compared

    def memory_bytes(self, plan: Plan, documents: int, limbs: int = 2) -> float:
        """Predict the memory of an index of so many documents with prints of `limbs` limbs, all in one scope.

        Sketches are not in it: they lie in a file.
        """
        found: float = finder_bytes(2, documents, _MERGED_SHARE)
        if plan.is_keyed:
            found += finder_bytes(plan.tables, documents, _MERGED_SHARE)
        else:
            table = (fragment_bytes(tables_of(plan)) + _ROW_BYTES) * (1 + _OPEN_SHARE)
            found += documents * plan.tables * table + tables_of(plan).buckets * _HEAD_BYTES
        return documents * (8 * limbs + _HELD_BYTES) * (1 + _OPEN_SHARE) + found


def least_memory(plan: Plan, documents: int, limbs: int = 2) -> int | None:
    """Return the least `INDEX_MEMORY` that serves so many documents, all in one scope; None if the plan is not keyed."""
    if not plan.is_keyed:
        return None
    return Budget.least_for(
        bytes_for(plan.tables, documents, documents, 8 * limbs, in_files=True, open_share=1 / MERGED_AGAIN_IN_FILES)
    )


@dataclass(frozen=True, slots=True)
class _Timed:
    """Microseconds: for one entry sorted into all tables, for one added to them, for one document searched for."""

    seal_us: float
    add_us: float
    search_us: float


def calibrate(seed: int = 1) -> Constants:
    """Measure the constants, in about a second once the kernels are compiled."""
    chance = np.random.default_rng(seed)
    for plan in (*_PLANS, _KEYED):
        _time(plan, _random(chance, 64), _random(chance, 64))
    _time_merge(_random(chance, 64))
    stored, asked = _random(chance, ENTRIES), _random(chance, DOCUMENTS)
    timed = [_time(plan, stored, asked) for plan in _PLANS]
    keyed, merge_us = _time(_KEYED, stored, asked), _time_merge(stored)
    compared = [float(candidates_of_plan(plan, ENTRIES)) for plan in _PLANS]
    equations = np.array(
        [
            (1, plan.probes, *((count, 0) if _is_narrow(plan) else (0, count)))
            for plan, count in zip(_PLANS, compared, strict=True)
        ]
    )
    rest, probe, narrow, wide = np.linalg.solve(equations, np.array([one.search_us for one in timed])).tolist()
    few, many = timed[0], timed[3]
    tables = _PLANS[3].tables - _PLANS[0].tables
    add, seal = (many.add_us - few.add_us) / tables, (many.seal_us - few.seal_us) / tables
    return Constants(
        document_us=max(0.0, rest + few.add_us - add * _PLANS[0].tables),
        # To grow by an eighth, nine eighths are sorted again: nine times each, on the whole.
        table_us=max(0.0, add + (SEALED_AGAIN + 1) * seal),
        probe_us=max(0.0, probe),
        narrow_us=max(0.0, narrow),
        wide_us=max(0.0, wide),
        far=_far(chance),
        keyed_us=max(0.0, keyed.search_us - rest) / _KEYED.tables,
        keyed_table_us=max(0.0, keyed.add_us - few.add_us + add * _PLANS[0].tables + (MERGED_AGAIN + 1) * merge_us)
        / _KEYED.tables,
    )


def _is_narrow(plan: Plan) -> bool:
    return fragment_bytes(tables_of(plan)) == _ROW_BYTES


def _random(chance: np.random.Generator, count: int) -> Columns:
    columns = no_columns(2, count, SKETCH_BYTES)
    columns.sketches[:] = chance.integers(0, 256, (count, SKETCH_BYTES), np.uint8)
    columns.prints[:] = chance.integers(0, 1 << 64, (count, 2), np.uint64)
    columns.digests[:] = chance.integers(0, 1 << 64, (count, 2), np.uint64)
    columns.offsets[:] = chance.permutation(count)
    columns.features[:] = 100
    return columns


def _time(plan: Plan, stored: Columns, asked: Columns) -> _Timed:
    """Load entries under a plan, judge documents, and add them to another index of the same entries."""
    count = len(stored.scopes)

    def loaded() -> tuple[Neighbours, float]:
        index = Neighbours(
            plan, 2, lambda numbers: take_rows(stored, np.array(numbers) % count), threads=1, values=SKETCH_BYTES
        )
        tags = stored.digests.astype(np.uint32)
        states = np.full(count, FULL, np.uint8)
        rows = StoredRows(
            np.arange(count), stored.prints, stored.scopes, stored.features, states, stored.sketches, tags[:, 0], tags[:, 1]
        )
        began = time.thread_time()
        index.load([rows], count, count)
        return index, (time.thread_time() - began) / count * 1e6

    judging, seal_us = loaded()
    adding, again_us = loaded()
    adds, judges = [], []
    for part in np.array_split(np.arange(len(asked.scopes)), _SAMPLES + 1):
        batch, began = take_rows(asked, part), time.thread_time()
        adding.add(batch, np.ones(len(part), np.bool_))
        added = time.thread_time()
        judging.judge(batch, batch.features, _FLOOR)
        adds.append((added - began) / len(part) * 1e6)
        judges.append((time.thread_time() - added) / len(part) * 1e6)
    add_us = min(adds[1:])  # the first one makes room
    return _Timed(min(seal_us, again_us), add_us, max(0.0, min(judges[1:]) - add_us))


def _time_merge(stored: Columns) -> float:
    """Return the microseconds for one entry of tables of whole keys, when a twelfth of them is merged in."""
    keyed, count = Keyed(tables_of(_KEYED)), len(stored.scopes)
    keys, states = keyed.keys(stored), np.full(count, FULL, np.uint8)
    old = count * MERGED_AGAIN // (MERGED_AGAIN + 1)
    keyed.seal(lambda name, first, end: getattr(stored, name)[first:end], states[:old], old, _in_turn)
    keyed.finder.add(np.arange(old, count), keys[old:])
    began = time.thread_time()
    for number in range(keyed.count):
        keyed.finder.merge(number)
    return (time.thread_time() - began) / count * 1e6


def _in_turn(work: Callable[[Any], None], parts: Sequence[Any]) -> None:
    for part in parts:
        work(part)


def _far(chance: np.random.Generator) -> float:
    """Return how much longer scattered reads take over 128 MB than over 16 MB."""
    times = []
    for size in (_SCATTER_SMALL, _SCATTER_LARGE):
        memory = np.ones(size // 4, np.uint32)
        places = chance.integers(0, len(memory), _READS)
        samples = []
        for _ in range(3):
            began = time.thread_time()
            memory.take(places)
            samples.append(time.thread_time() - began)
        times.append(min(samples))
    return max(1.0, times[1] / times[0])
