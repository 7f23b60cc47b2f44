"""What this machine's index takes, measured in about a second: the constants of `stream-dedup plan`.

Three plans over the same random prints, chosen so that their look-ups differ in one thing: `64:4` (few probes, few
candidates), `40:4` (as few probes, many candidates), `128:8:1` (many probes). From their times follow the cost of a probe, of
a candidate and of the rest; from their sizes the memory of an entry and of a table; a batch through the whole index in
memory gives what surrounds the look-up.

Invariants: times are CPU times of this thread, so that another process on the machine costs precision and no bias; what is
compiled is compiled before anything is timed, and memory that a first look-up touches is touched before; of several
samples the least disturbed, the shortest, counts.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from stream_dedup.index.arithmetic import candidates_of_plan
from stream_dedup.index.blocks import tables_of
from stream_dedup.index.kernels import Columns, take_rows
from stream_dedup.index.neighbours import Neighbours, no_columns
from stream_dedup.index.plan import Plan

ENTRIES: Final = 200_000
DOCUMENTS: Final = 5_000
_SAMPLES: Final = 4
DISK_BYTES: Final = 130
"""Bytes on disk of a representative with a print of 128 bits, whatever the plan, its id apart: `bench index` measures it."""

SURROUNDING_US: Final = 4.0
"""CPU of what surrounds a look-up: decoding, positions, answer, the write to RocksDB; `bench index` less the look-up."""

_FLOOR: Final = 1
_SCATTER_SMALL: Final = 1 << 22
_SCATTER_LARGE: Final = 1 << 27
_READS: Final = 1 << 20
_PLAIN: Final = Plan(64, 4, 0, 3)
_CROWDED: Final = Plan(40, 4, 0, 3)
_PROBING: Final = Plan(128, 8, 1, 19)


@dataclass(frozen=True, slots=True)
class Constants:
    """CPU time and memory of the parts of a judgement on this machine.

    `document_us`: finding by digest, becoming an entry, and the tables of one; `table_us`: entering a further table;
    `probe_us`, `candidate_us`: visiting a bucket, comparing a print, while the index fits the caches; `far`: how much longer
    they take where it does not; `entry_bytes`: memory of an entry beside its tables; `table_bytes`: in each of them;
    `bucket_bytes`: of an empty bucket.
    """

    document_us: float
    table_us: float
    probe_us: float
    candidate_us: float
    far: float
    entry_bytes: float
    table_bytes: float
    bucket_bytes: float
    entries: int = ENTRIES

    def as_json(self) -> dict[str, float]:
        """Return the constants by name."""
        return asdict(self)

    def microseconds(self, plan: Plan, documents: int, share_new: float = 1.0) -> float:
        """Predict the CPU time of judging one document beside so many others."""
        far = self.far if documents > 4 * self.entries else 1.0
        visits = plan.probes * self.probe_us + float(candidates_of_plan(plan, documents)) * self.candidate_us
        return self.document_us + SURROUNDING_US + far * (visits + share_new * plan.tables * self.table_us)

    def memory_bytes(self, plan: Plan, documents: int) -> float:
        """Predict the memory of an index of so many documents."""
        return documents * (self.entry_bytes + plan.tables * self.table_bytes) + tables_of(plan).buckets * self.bucket_bytes


@dataclass(frozen=True, slots=True)
class _Timed:
    load_us: float
    judge_us: float
    bytes_used: int
    bytes_empty: int


def calibrate(seed: int = 1) -> Constants:
    """Measure the constants, in about a second once the kernels are compiled."""
    chance = np.random.default_rng(seed)
    for plan in (_PLAIN, _CROWDED, _PROBING):
        _time(plan, _random(chance, 64), _random(chance, 64))
    stored, asked = _random(chance, ENTRIES), _random(chance, DOCUMENTS)
    plain, crowded, probing = (_time(plan, stored, asked) for plan in (_PLAIN, _CROWDED, _PROBING))
    compared = {plan: float(candidates_of_plan(plan, ENTRIES)) for plan in (_PLAIN, _CROWDED, _PROBING)}
    candidate = max(0.0, (crowded.judge_us - plain.judge_us) / (compared[_CROWDED] - compared[_PLAIN]))
    table = max(0.0, (probing.load_us - plain.load_us) / (_PROBING.tables - _PLAIN.tables))
    more = probing.judge_us - plain.judge_us - table * (_PROBING.tables - _PLAIN.tables)
    probe = max(0.0, (more - candidate * (compared[_PROBING] - compared[_PLAIN])) / (_PROBING.probes - _PLAIN.probes))
    rest = plain.judge_us - table * _PLAIN.tables - probe * _PLAIN.probes - candidate * compared[_PLAIN]
    table_bytes = (probing.bytes_used - plain.bytes_used) / (_PROBING.tables - _PLAIN.tables) / ENTRIES
    return Constants(
        document_us=max(0.0, rest),
        table_us=table,
        probe_us=probe,
        candidate_us=candidate,
        far=_far(chance),
        entry_bytes=plain.bytes_used / ENTRIES - _PLAIN.tables * table_bytes,
        table_bytes=table_bytes,
        bucket_bytes=(probing.bytes_empty - plain.bytes_empty) / (tables_of(_PROBING).buckets - tables_of(_PLAIN).buckets),
    )


def _random(chance: np.random.Generator, count: int) -> Columns:
    columns = no_columns(2, count)
    columns.prints[:] = chance.integers(0, 1 << 64, (count, 2), np.uint64)
    columns.digests[:] = chance.integers(0, 1 << 64, (count, 2), np.uint64)
    columns.offsets[:] = chance.permutation(count)
    columns.features[:] = 100
    return columns


def _time(plan: Plan, stored: Columns, asked: Columns) -> _Timed:
    """Load entries and judge documents under a plan; times are microseconds for one, bytes beside the buckets' heads."""
    empty = Neighbours(plan, 2)
    fixed = empty.bytes_used
    numbers = np.arange(len(stored.scopes))
    began = time.thread_time()
    empty.load(stored, numbers, numbers)
    loaded = time.thread_time()
    size = empty.bytes_used - fixed
    samples = []
    for part in np.array_split(np.arange(len(asked.scopes)), _SAMPLES + 1):
        batch = take_rows(asked, part)
        before = time.thread_time()
        empty.judge(batch, batch.features, _FLOOR)
        samples.append((time.thread_time() - before) / len(part) * 1e6)
    return _Timed((loaded - began) / len(numbers) * 1e6, min(samples[1:]), size, fixed)  # the first one makes room


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
