"""What this machine's index takes, measured in about a second: the constants of `stream-dedup plan`.

Four plans over the same random prints, whose searches differ in what they do: few buckets with few or many prints in each,
many buckets; fragments of 32 bits (thresholds up to 7) and of 64. The times of their searches are four equations, solved
for the cost of a bucket, of a print compared for either width, and of the rest. Laying their tables out, and adding to
them, gives the cost of a table; sizes follow from the arrays.

Invariants: times are CPU times of one thread, so that another process on the machine costs precision and little bias; what
is compiled is compiled before anything is timed; of several samples the least disturbed, the shortest, counts.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from stream_dedup.ground.plan import Plan
from stream_dedup.index.arithmetic import candidates_of_plan
from stream_dedup.index.blocked import fragment_bytes
from stream_dedup.index.blocks import tables_of
from stream_dedup.index.measured import MEASURED
from stream_dedup.index.neighbours import SEALED_AGAIN, Neighbours, no_rows
from stream_dedup.index.rows import FULL, Columns, no_columns, take_rows

ENTRIES: Final = 200_000
DOCUMENTS: Final = 2_000
_SAMPLES: Final = 4
_FLOOR: Final = 1
_SCATTER_SMALL: Final = 1 << 22
_SCATTER_LARGE: Final = 1 << 27
_READS: Final = 1 << 20
_PLANS: Final = (Plan(64, 4, 0, 3), Plan(40, 4, 0, 3), Plan(128, 8, 1, 19), Plan(128, 16, 0, 19))
_ROW_BYTES: Final = 4
_HEAD_BYTES: Final = 12  # of a bucket: where it begins; where its open block is, and how long
_SLOTS_BYTES: Final = 2 * 8 * 10 / 6  # of an entry: two arrays of slots, 6 in 10 taken
_OPEN_SHARE: Final = 1.2 / SEALED_AGAIN / 2  # what an open part holds on average, in blocks that are not full


@dataclass(frozen=True, slots=True)
class Constants:
    """CPU time of the parts of a judgement on this machine.

    `document_us`: finding by digest and becoming an entry; `table_us`: entering a table, the sorting again included;
    `probe_us`: visiting a bucket, while the index fits the caches; `far`: how much longer that takes where it does not;
    `narrow_us`, `wide_us`: comparing a print by 32 or by 64 bits, wherever it lies, for they lie in a row.
    """

    document_us: float
    table_us: float
    probe_us: float
    narrow_us: float
    wide_us: float
    far: float
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
        compared = float(candidates_of_plan(plan, documents)) * (self.narrow_us if _is_narrow(plan) else self.wide_us)
        scattered = plan.probes * self.probe_us + share_new * plan.tables * self.table_us
        return self.document_us + surrounding_us + far * scattered + compared

    def memory_bytes(self, plan: Plan, documents: int, words: int = 2) -> float:
        """Predict the memory of an index of so many documents with prints of `words` words, all in one scope."""
        rows = no_rows(words, 1)
        entry = sum(column.nbytes for column in rows) * (1 + _OPEN_SHARE) + _SLOTS_BYTES
        table = (fragment_bytes(tables_of(plan)) + _ROW_BYTES) * (1 + _OPEN_SHARE)
        return documents * (entry + plan.tables * table) + tables_of(plan).buckets * _HEAD_BYTES


@dataclass(frozen=True, slots=True)
class _Timed:
    """Microseconds: for one entry sorted into all tables, for one added to them, for one document searched for."""

    seal_us: float
    add_us: float
    search_us: float


def calibrate(seed: int = 1) -> Constants:
    """Measure the constants, in about a second once the kernels are compiled."""
    chance = np.random.default_rng(seed)
    for plan in _PLANS:
        _time(plan, _random(chance, 64), _random(chance, 64))
    stored, asked = _random(chance, ENTRIES), _random(chance, DOCUMENTS)
    timed = [_time(plan, stored, asked) for plan in _PLANS]
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
    )


def _is_narrow(plan: Plan) -> bool:
    return fragment_bytes(tables_of(plan)) == _ROW_BYTES


def _random(chance: np.random.Generator, count: int) -> Columns:
    columns = no_columns(2, count)
    columns.prints[:] = chance.integers(0, 1 << 64, (count, 2), np.uint64)
    columns.digests[:] = chance.integers(0, 1 << 64, (count, 2), np.uint64)
    columns.offsets[:] = chance.permutation(count)
    columns.features[:] = 100
    return columns


def _time(plan: Plan, stored: Columns, asked: Columns) -> _Timed:
    """Load entries under a plan, judge documents, and add them to another index of the same entries."""
    count = len(stored.scopes)

    def loaded() -> tuple[Neighbours, float]:
        index = Neighbours(plan, 2, lambda numbers: take_rows(stored, np.array(numbers) % count), threads=1)
        held = no_rows(2, count)
        held.prints[:], held.features[:], held.numbers[:], held.states[:] = stored.prints, 100, np.arange(count), FULL
        tags = stored.digests[:, 0].astype(np.uint32), stored.digests[:, 1].astype(np.uint32)
        began = time.thread_time()
        index.load(held, 0, count, *tags)
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


def _far(chance: np.random.Generator) -> float:
    """Return how much longer scattered reads take over 128 MB than over 4 MB."""
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
