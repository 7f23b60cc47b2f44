"""The live representatives in memory, findable by text digest, by source position, and by print within a plan's reach.

Invariants: entry numbers are handed out in log order and never again; what `judge` finds equals a plain scan over the
live entries with the plan's predicate, taking the lowest number in the same scope; a removed entry is found by nothing;
a change of plan moves no entry, it only lays the tables out anew.

Memory per entry under the wide plan (128-bit prints): columns 64 bytes, slots 13 to 27, buckets 8 tables x 4 bytes at
about 0.72 full = 44, and up to half as much again as room to grow into; 190 bytes were measured at a million entries, and
140 under the classic plan. `bytes_used` tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.errors import InvariantError
from stream_dedup.index import kernels
from stream_dedup.index.blocks import tables_of
from stream_dedup.index.kernels import Columns
from stream_dedup.index.plan import Plan

ENTRIES_MAX: Final = 0xFFFFFFF0
_CAPACITY_MIN: Final = 1024
_SLOTS_MIN: Final = 2048
_UNITS_MIN: Final = 16_384


def no_columns(words: int, count: int) -> Columns:
    """Return columns for `count` entries of prints of `words` words, all zero."""
    return Columns(
        prints=np.zeros((count, words), np.uint64),
        scopes=np.zeros(count, np.uint64),
        digests=np.zeros((count, 2), np.uint64),
        sources=np.zeros(count, np.uint32),
        offsets=np.zeros(count, np.int64),
        values=np.zeros(count, np.uint64),
        features=np.zeros(count, np.uint32),
    )


class Found:
    """What became of a batch. `outcome` (n,) uint8, `entry` (n,) int64, `distance` (n,) uint8; see `kernels.judge`."""

    __slots__ = ("distance", "entry", "outcome")

    def __init__(self, count: int) -> None:
        self.outcome = np.empty(count, np.uint8)
        self.entry = np.empty(count, np.int64)
        self.distance = np.empty(count, np.uint8)


@dataclass(frozen=True, slots=True)
class BucketSizes:
    """How full the buckets of all tables are.

    `sizes`: (n, how many buckets hold more than n / 2 and up to n entries), n being powers of two; `hottest`: (table, key,
    entries) of the longest ones, longest first. In a scope other than the common one a key is mixed with the scope.
    """

    buckets: int
    used: int
    sizes: tuple[tuple[int, int], ...]
    hottest: tuple[tuple[int, int, int], ...]


class Neighbours:
    """The tables over the live representatives of one index; not safe for use by several threads at once."""

    def __init__(self, plan: Plan, words: int) -> None:
        self.plan = plan
        self.words = words
        self.entries = 0
        self.live = 0
        self.full = 0
        self._tables = tables_of(plan)
        self._columns = no_columns(words, _CAPACITY_MIN)
        self._full = np.zeros(_CAPACITY_MIN, np.bool_)
        self._slots = kernels.new_slots(_SLOTS_MIN)
        self._buckets = kernels.new_buckets(self._tables, _UNITS_MIN)
        self._scratch = kernels.new_scratch(self._tables)
        self._candidates = np.zeros(1, np.int64)

    @property
    def candidates(self) -> int:
        """How many prints were compared since the index was opened."""
        return int(self._candidates[0])

    def load(self, columns: Columns, live: NDArray[np.int64], full: NDArray[np.int64]) -> None:
        """Take over entries 0, 1, ... as they were stored; only on a new object.

        `live` are the numbers, ascending, of those that are findable by digest and position; `full`, among them, of
        those that have neighbours.
        """
        count = len(columns.scopes)
        self._reserve(count)
        kernels.copy_rows(columns, self._columns, count)
        self.entries = count
        self.live = len(live)
        self.full = len(full)
        self._full[full] = True
        kernels.fill_slots(self._columns, self._slots, live)
        self._fill(full)

    def judge(self, batch: Columns, features: NDArray[np.uint32], floor: int) -> Found:
        """Judge documents in order, each new representative being found by those after it.

        A document is a duplicate of the entry with its digest and scope, else of the lowest entry within reach in its
        scope; else it becomes an entry. One with fewer than `floor` features has no neighbours, only its digest.
        """
        count = len(features)
        batch = batch._replace(features=features)
        self._reserve(count)
        found = Found(count)
        done, before = 0, self.entries
        while True:
            done, self.entries = kernels.judge(
                self._tables, self._buckets, self._columns, self._slots, batch, floor, features,
                done, self.entries, found.outcome, found.entry, found.distance, self._scratch, self._candidates,
            )  # fmt: skip
            if done == count:
                break
            self._grow_arena(kernels.room_needed(self._buckets.heads, self._scratch.bucket))
        self.live += self.entries - before
        new = found.entry[found.outcome == kernels.OUTCOME_NEW]
        self._full[new] = True
        self.full += len(new)
        return found

    def find_positions(self, batch: Columns) -> NDArray[np.int64]:
        """Return, for each document, the live entry at its own source position and with its value digest, or -1."""
        found = np.empty(len(batch.scopes), np.int64)
        kernels.find_positions(self._columns, self._slots, batch, len(found), found)
        return found

    def find_digest(self, text_digest: bytes, scope: int) -> int:
        """Return the live entry with a text digest in a scope, or -1."""
        wanted = no_columns(self.words, 1)
        wanted.digests[0] = np.frombuffer(text_digest, np.uint64)
        wanted.scopes[0] = scope
        return int(kernels.find_digest(self._columns, self._slots, wanted, 0))

    def within_reach(self, print_words: NDArray[np.uint64], scope: int, features: int | None = None) -> list[tuple[int, int]]:
        """Return (distance, entry) of everything within the plan's reach in a scope, nearest and then lowest first.

        Without `features`, the text is taken to be as long as whatever it is compared with.
        """
        wanted = no_columns(self.words, 1)
        wanted.prints[0] = print_words
        wanted.scopes[0] = scope
        wanted.features[0] = kernels.FEATURES_UNKNOWN if features is None else features
        room = 256
        while True:
            entries, distances = np.empty(room, np.int64), np.empty(room, np.int64)
            count = kernels.all_within_reach(
                self._tables, self._buckets, self._columns, wanted, self._scratch, entries, distances
            )
            if count <= room:
                return sorted(set(zip(distances[:count].tolist(), entries[:count].tolist(), strict=True)))
            room = count

    def remove(self, entry: int, *, full: bool) -> None:
        """Make an entry unfindable; `full` tells whether it had neighbours."""
        kernels.remove_from_slots(self._columns, self._slots, entry)
        if full:
            kernels.find_buckets(self._tables, self._columns.prints, entry, self._columns.scopes[entry], self._scratch.bucket)
            kernels.remove_from_buckets(self._buckets, self._scratch.bucket, entry)
            self.full -= 1
        self.live -= 1

    def drop(self, entries: NDArray[np.int64]) -> None:
        """Make live entries unfindable; costs in proportion to how many there are."""
        for entry in entries.tolist():
            self.remove(entry, full=bool(self._full[entry]))

    def change_plan(self, plan: Plan) -> None:
        """Lay the tables out anew for another plan over the same entries."""
        full = np.empty(self.entries, np.int64)
        count = kernels.entries_of_first_table(self._tables, self._buckets, full)
        self.plan = plan
        self._tables = tables_of(plan)
        self._buckets = kernels.new_buckets(self._tables, _UNITS_MIN)
        self._scratch = kernels.new_scratch(self._tables)
        self._fill(np.sort(full[:count]))

    @property
    def bytes_used(self) -> int:
        """Bytes of memory that the arrays hold."""
        arrays = (*self._columns, *self._slots, *self._buckets)
        return sum(array.nbytes for array in arrays)

    @property
    def hottest_bucket(self) -> int:
        """How many entries the longest bucket holds."""
        return int(self._buckets.heads[:, 1].max())

    def bucket_sizes(self, most: int) -> BucketSizes:
        """Return how full the buckets are, with the `most` longest."""
        lengths = self._buckets.heads[:, 1].astype(np.int64)
        used = lengths[lengths > 0]
        classes = np.bincount(np.frexp(used.astype(np.float64) - 0.5)[1]) if len(used) else np.zeros(0, np.int64)
        sizes = tuple((1 << power, count) for power, count in enumerate(classes.tolist()) if count)
        hottest = []
        most = min(most, len(lengths))
        for at in np.argpartition(lengths, len(lengths) - most)[len(lengths) - most :].tolist():
            if lengths[at]:
                table = int(np.searchsorted(self._tables.base, at, side="right")) - 1
                hottest.append((table, at - int(self._tables.base[table]), int(lengths[at])))
        return BucketSizes(len(lengths), len(used), sizes, tuple(sorted(hottest, key=lambda one: (-one[2], one[:2]))))

    def _fill(self, full: NDArray[np.int64]) -> None:
        self._grow_arena(len(full) * len(self._tables.base) // 2)
        done = 0
        while True:
            done = kernels.fill_buckets(self._tables, self._buckets, self._columns, full, self._scratch, done)
            if done == len(full):
                return
            self._grow_arena(kernels.room_needed(self._buckets.heads, self._scratch.bucket))

    def _grow_arena(self, wanted: int) -> None:
        top, units = int(self._buckets.top[0]), len(self._buckets.arena) // 4
        if top + wanted > units:
            self._buckets = kernels.larger_arena(self._buckets, max(top + wanted, units + units // 2))

    def _reserve(self, count: int) -> None:
        needed = self.entries + count
        if needed > ENTRIES_MAX:
            raise InvariantError(
                f"The index holds {self.entries} entries and numbers at most {ENTRIES_MAX}; split it into slices."
            )
        capacity = len(self._columns.scopes)
        if needed > capacity:
            capacity = max(needed, capacity + capacity // 2)
            larger = no_columns(self.words, capacity)
            kernels.copy_rows(self._columns, larger, self.entries)
            self._columns = larger
            self._full = np.concatenate((self._full, np.zeros(capacity - len(self._full), np.bool_)))
        size = len(self._slots.digest)
        if (self.live + count) * 10 > size * 6:
            while (self.live + count) * 10 > size * 6:
                size *= 2
            larger_slots = kernels.new_slots(size)
            kernels.copy_slots(self._columns, self._slots, larger_slots)
            self._slots = larger_slots
