"""The live representatives in memory, findable by text digest, by source position, and by print within a plan's reach.

Invariants: entry numbers are handed out in log order and never again; what `judge` finds equals a plain scan over the
live entries with the plan's predicate, taking the lowest number in the same scope; a removed entry is found by nothing;
a change of plan moves no entry, it only lays the tables out anew.

Rows are in the order of the numbers. Removing marks rows; when a third as many are marked as are live, the rows are laid
out anew without them, so memory follows the live entries and not the number ever made, and removing costs, on the whole,
in proportion to what is removed. Digests and positions are not held: what their tags find is compared with `identities`.

Memory per entry, and what it was measured to be: docs/explanation/index-layout.md. `bytes_used` tells.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.errors import InvariantError
from stream_dedup.ground.plan import Plan
from stream_dedup.ground.sketch import NOT_COMPARED
from stream_dedup.index import near_kernels, slot_kernels
from stream_dedup.index.blocked import Blocked
from stream_dedup.index.blocks import tables_of
from stream_dedup.index.budget import Budget, FileRows
from stream_dedup.index.keyed import Keyed
from stream_dedup.index.rows import (
    FEATURES_UNKNOWN,
    FULL,
    NONE,
    OUTCOME_NEAR,
    OUTCOME_NEW,
    OUTCOME_SHORT,
    REMOVED,
    SHORT,
    Columns,
    HeldRows,
    Known,
    Settled,
    no_columns,
    take_rows,
)

ROWS_MAX: Final = 0xFFFFFFF0
_SLOTS_MIN: Final = 2048
SEALED_AGAIN: Final = 8  # the open part is sealed when it is an eighth of what is sealed, and of at least:
_OPEN_MIN: Final = 32_768
_THREAD_DOCUMENTS: Final = 128
# Class k counts searches that compared 2^(k-1) to 2^k - 1 prints; class 0 those that compared none.
CANDIDATE_CLASSES: Final = 33

Identities = Callable[[NDArray[np.int64]], Columns]
"""Returns digests, scopes, sources, offsets and values of entries by their numbers."""


def no_rows(words: int, count: int, values: int = 0) -> HeldRows:
    """Return `count` rows of entries, all zero, none in a scope."""
    return HeldRows(
        prints=np.zeros((count, words), np.uint64),
        scopes=np.zeros(0, np.uint64),
        features=np.zeros(count, np.uint32),
        numbers=np.zeros(count, np.uint32),
        states=np.zeros(count, np.uint8),
        sketches=np.zeros((count, values), np.uint8),
    )


class Found:
    """What became of a batch. `outcome` (n,) uint8, `entry` (n,) int64, `distance` (n,) uint8; see `near_kernels.settle`.

    `agreeing` (n,) uint8: how many values of the sketches of a document and what it is near are equal, else `NOT_COMPARED`.
    """

    __slots__ = ("agreeing", "distance", "entry", "outcome")

    def __init__(self, count: int) -> None:
        self.outcome = np.empty(count, np.uint8)
        self.entry = np.empty(count, np.int64)
        self.distance = np.empty(count, np.uint8)
        self.agreeing = np.full(count, NOT_COMPARED, np.uint8)


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
    """The tables over the live representatives of one index; not safe for use by several threads at once.

    A search goes through all documents of a batch, one table after the other, on up to `threads` threads: what was there
    before the batch first, then, in order, what the batch itself adds. What is found does not depend on their number.
    """

    def __init__(
        self,
        plan: Plan,
        words: int,
        identities: Identities,
        threads: int | None = None,
        budget: Budget | None = None,
        values: int = 0,
    ) -> None:
        """`words` of a print, `values` of a sketch; 0 for recipes without."""
        self.plan = plan
        self.words = words
        self.values = values
        self.entries = 0
        self.live = 0
        self.full = 0
        self._identities = identities
        self._budget = budget
        self._threads = threads or min(2, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads - 1) if self._threads > 1 else None
        self._base = 0  # the entry number from which the rows' numbers count
        self._rows = 0
        self._open_rows = 0
        self._held = no_rows(words, _SLOTS_MIN)
        self._sketches = FileRows(values, None if budget is None else budget.folder)
        self._reserve_sketches(_SLOTS_MIN)
        self._by_digest = np.full(_SLOTS_MIN, slot_kernels.EMPTY)
        self._by_position = np.full(_SLOTS_MIN, slot_kernels.EMPTY)
        self._searches = np.zeros(CANDIDATE_CLASSES, np.int64)
        self._candidates = 0
        self._lay_tables()

    @property
    def candidates(self) -> int:
        """How many entries the searches visited since the index was opened."""
        return self._candidates

    @property
    def searches(self) -> tuple[int, ...]:
        """How many documents were searched for since then, by the class of how many entries that visited."""
        return tuple(self._searches.tolist())

    def load(
        self, held: HeldRows, first: int, entries: int, digest_tags: NDArray[np.uint32], position_tags: NDArray[np.uint32]
    ) -> None:
        """Take over rows as they were stored; only on a new object.

        `held` are live rows, with numbers that count from `first`, of `entries` ever made; the tags are theirs, (rows,).
        """
        self._base, self.entries = first, entries
        if not len(held.states):
            return
        self._rows = self.live = len(held.states)
        self._held = held
        self._reserve_sketches(self._rows)
        self._sketches.write(0, held.sketches)
        self.full = int(np.count_nonzero(held.states == FULL))
        size = _slots_for(self._rows)
        self._by_digest, self._by_position = np.full(size, slot_kernels.EMPTY), np.full(size, slot_kernels.EMPTY)
        self._each(
            lambda pair: slot_kernels.add_tags(pair[0], pair[1], 0),
            [(self._by_digest, digest_tags), (self._by_position, position_tags)],
        )
        self._seal()

    def judge(self, batch: Columns, features: NDArray[np.uint32], floor: int) -> Found:
        """Judge documents in order, each new representative being found by those after it.

        A document is a duplicate of the entry with its digest and scope, else of the lowest entry within reach in its
        scope; else it becomes an entry. One with fewer than `floor` features has no neighbours, only its digest.
        """
        count = len(features)
        batch = batch._replace(features=features)
        found = Found(count)
        tags = np.empty(count, np.uint32)
        slot_kernels.tag_digests(batch.digests, batch.scopes, tags)
        same = self._find(self._by_digest, tags, batch, _same_digest)
        buckets = self._tables.keys(batch)
        best, bits = np.full(count, NONE), np.zeros(count, np.int64)
        self._search(batch, buckets, np.flatnonzero((same < 0) & (features >= floor)), best, bits)
        known = Known(floor, self._rows, same, best, bits, tags)
        settled = Settled(found.outcome, found.entry, found.distance, np.empty(count, np.int64))
        added = self._tables.settle(self._held, batch, known, buckets, settled)
        self._add(batch, settled.made[:added], tags, found.outcome, buckets)
        if self.values and len(near := np.flatnonzero(found.outcome == OUTCOME_NEAR)):
            near_kernels.agreeing_of(self._held, found.entry, batch, near, found.agreeing)
        self._sketches.release(count)
        self._tables.release()
        found.entry = self._held.numbers[found.entry].astype(np.int64) + self._base
        if self._open_rows > max(_OPEN_MIN, (self.full - self._open_rows) // SEALED_AGAIN):
            if not self._tables.merge(self._other_bytes):
                self._seal()
            self._open_rows = 0
        return found

    def find_positions(self, batch: Columns) -> NDArray[np.int64]:
        """Return, for each document, the live entry at its own source position and with its value digest, or -1."""
        tags = np.empty(len(batch.scopes), np.uint32)
        slot_kernels.tag_positions(batch.sources, batch.offsets, batch.values, tags)
        found = self._find(self._by_position, tags, batch, _same_position)
        return np.where(found < 0, -1, self._held.numbers[found].astype(np.int64) + self._base)

    def find_digests(self, batch: Columns) -> NDArray[np.int64]:
        """Return, for each document, the live entry with its text digest in its scope, or -1."""
        tags = np.empty(len(batch.scopes), np.uint32)
        slot_kernels.tag_digests(batch.digests, batch.scopes, tags)
        found = self._find(self._by_digest, tags, batch, _same_digest)
        return np.where(found < 0, -1, self._held.numbers[found].astype(np.int64) + self._base)

    def find_digest(self, text_digest: bytes, scope: int) -> int:
        """Return the live entry with a text digest in a scope, or -1."""
        wanted = no_columns(self.words, 1)
        wanted.digests[0] = np.frombuffer(text_digest, np.uint64)
        wanted.scopes[0] = scope
        return int(self.find_digests(wanted)[0])

    def within_reach(
        self, print_words: NDArray[np.uint64], scope: int, features: int | None = None, sketch: bytes = b""
    ) -> list[tuple[int, int]]:
        """Return (distance, entry) of everything within the plan's reach in a scope, nearest and then lowest first.

        Without `features`, the text is taken to be as long as whatever it is compared with. `sketch` as long as those held.

        Raises:
            InvariantError: a plan that looks at sketches is asked without one.
        """
        wanted = no_columns(self.words, 1, self.values)
        if sketch or self.plan.needs_sketch:
            if len(sketch) != self.values:
                raise InvariantError(f"A sketch of {len(sketch)} values was looked up among sketches of {self.values}.")
            wanted.sketches[0] = np.frombuffer(sketch, np.uint8)
        wanted.prints[0] = print_words
        wanted.scopes[0] = scope
        wanted.features[0] = FEATURES_UNKNOWN if features is None else features
        rows, distances = self._tables.collect(self._held, wanted)
        entries = self._held.numbers[rows].astype(np.int64) + self._base
        return sorted(set(zip(distances.tolist(), entries.tolist(), strict=True)))

    def add(self, columns: Columns, full: NDArray[np.bool_]) -> None:
        """Add entries without judging them; no live one has the digest or position of any. `full` (n,): has neighbours."""
        count = len(full)
        tags = np.empty(count, np.uint32)
        slot_kernels.tag_digests(columns.digests, columns.scopes, tags)
        buckets = self._tables.keys(columns)
        outcome = np.where(full, OUTCOME_NEW, OUTCOME_SHORT).astype(np.uint8)
        self._add(columns, np.arange(count), tags, outcome, buckets)

    def live_below(self, entry: int) -> NDArray[np.int64]:
        """Return the live entries below a number, ascending."""
        rows = int(np.searchsorted(self._held.numbers[: self._rows], max(0, entry - self._base)))
        numbers: NDArray[np.uint32] = self._held.numbers[:rows][self._held.states[:rows] != REMOVED]
        return numbers.astype(np.int64) + self._base

    def drop(self, entries: NDArray[np.int64]) -> None:
        """Make live entries, given in ascending order, unfindable.

        Raises:
            InvariantError: one of them is not live.
        """
        states = self._held.states
        rows = np.minimum(np.searchsorted(self._held.numbers[: self._rows], entries - self._base), self._rows - 1)
        if not np.array_equal(self._held.numbers[rows] + self._base, entries) or not states[rows].all():
            raise InvariantError("Entries were removed that are not live; this is a fault of the program.")
        self.live -= len(rows)
        self.full -= int(np.count_nonzero(states[rows] == FULL))
        states[rows] = REMOVED
        if self._rows - self.live > max(_OPEN_MIN, self.live // 3):
            self._compact()

    def change_plan(self, plan: Plan) -> None:
        """Lay the tables out anew for another plan over the same entries."""
        self.plan = plan
        self._lay_tables()
        self._seal()

    def _lay_tables(self) -> None:
        """Make empty tables for the plan."""
        tables = tables_of(self.plan)
        kind = Keyed if self.plan.is_keyed else Blocked
        self._tables: Keyed | Blocked = kind(tables, self._budget)

    @property
    def bytes_used(self) -> int:
        """Bytes of memory that the arrays hold, without those that are mapped."""
        return self._other_bytes + sum(array.nbytes for array in self._tables.arrays) - self._tables.bytes_mapped

    @property
    def _other_bytes(self) -> int:
        """Bytes of memory that the arrays hold apart from tables."""
        arrays: list[NDArray[Any]] = [*self._held, self._by_digest, self._by_position]
        return sum(array.nbytes for array in arrays) - self._sketches.bytes_mapped

    @property
    def bytes_mapped(self) -> int:
        """Bytes that lie in files: sketches, and the tables that the memory budget does not hold."""
        return self._sketches.bytes_mapped + self._tables.bytes_mapped

    @property
    def hottest_bucket(self) -> int:
        """How many entries the longest bucket holds."""
        return max(int(lengths.max()) for lengths in self._tables.lengths)

    def bucket_sizes(self, most: int) -> BucketSizes:
        """Return how full the buckets are, with the `most` longest."""
        by_table = list(self._tables.lengths)
        bases, lengths = np.cumsum([0, *map(len, by_table[:-1])]), np.concatenate(by_table)
        used = lengths[lengths > 0]
        classes = np.bincount(np.frexp(used.astype(np.float64) - 0.5)[1]) if len(used) else np.zeros(0, np.int64)
        sizes = tuple((1 << power, count) for power, count in enumerate(classes.tolist()) if count)
        hottest = []
        most = min(most, len(lengths))
        for at in np.argpartition(lengths, len(lengths) - most)[len(lengths) - most :].tolist() if most else []:
            if lengths[at]:
                table = int(np.searchsorted(bases, at, side="right")) - 1
                hottest.append((table, at - int(bases[table]), int(lengths[at])))
        return BucketSizes(len(lengths), len(used), sizes, tuple(sorted(hottest, key=lambda one: (-one[2], one[:2]))))

    def _find(
        self, slots: NDArray[np.uint64], tags: NDArray[np.uint32], batch: Columns, same: Callable[[Columns, Columns], Any]
    ) -> NDArray[np.int64]:
        """Return the row of each document, or -1: what the tags find and the stored identities confirm."""
        at, found = np.full(len(tags), -1), np.empty(len(tags), np.int64)
        slot_kernels.find_tags(slots, tags, self._held.states, at, found)
        unsure = np.flatnonzero(found >= 0)
        while len(unsure):
            known = self._identities(self._held.numbers[found[unsure]].astype(np.int64) + self._base)
            wrong = unsure[~same(known, take_rows(batch, unsure))]
            next_at, next_found = at[wrong], np.empty(len(wrong), np.int64)
            slot_kernels.find_tags(slots, tags[wrong], self._held.states, next_at, next_found)
            at[wrong], found[wrong] = next_at, next_found
            unsure = wrong[next_found >= 0]
        return found

    def _search(
        self, batch: Columns, buckets: NDArray[Any], docs: NDArray[np.int64], best: NDArray[Any], bits: NDArray[Any]
    ) -> None:
        parts = min(self._threads, max(1, len(docs) // _THREAD_DOCUMENTS))
        candidates = np.zeros(len(best), np.int64)

        def search(own: NDArray[np.int64]) -> None:
            self._tables.search(self._held, batch, buckets, own, best, bits, candidates)

        self._each(search, np.array_split(docs, parts))
        compared = candidates[docs]
        self._candidates += int(compared.sum())
        classes = np.frexp(compared.astype(np.float64))[1]
        self._searches += np.bincount(np.minimum(classes, CANDIDATE_CLASSES - 1), minlength=CANDIDATE_CLASSES)

    def _add(
        self,
        batch: Columns,
        made: NDArray[np.int64],
        tags: NDArray[np.uint32],
        outcome: NDArray[np.uint8],
        buckets: NDArray[Any],
    ) -> None:
        count, first = len(made), self._rows
        if not count:
            return
        self._reserve(count)
        held, rows = self._held, slice(first, first + count)
        held.prints[rows] = batch.prints[made]
        held.features[rows] = batch.features[made]
        self._sketches.write(first, batch.sketches[made])
        held.numbers[rows] = np.arange(self.entries - self._base, self.entries - self._base + count)
        held.states[rows] = np.where(outcome[made] == OUTCOME_SHORT, SHORT, FULL)
        scopes = batch.scopes[made]
        if len(held.scopes) == 0 and scopes.any():
            self._held = held = held._replace(scopes=np.zeros(len(held.states), np.uint64))
        if len(held.scopes):
            held.scopes[rows] = scopes
        slot_kernels.add_tags(self._by_digest, tags[made], first)
        position_tags = np.empty(count, np.uint32)
        slot_kernels.tag_positions(batch.sources[made], batch.offsets[made], batch.values[made], position_tags)
        slot_kernels.add_tags(self._by_position, position_tags, first)
        is_full = outcome[made] != OUTCOME_SHORT
        added, keys = first + np.flatnonzero(is_full), buckets[made[is_full]]
        self._tables.add(held, added, keys)
        self._rows += count
        self.entries += count
        self.live += count
        self.full += len(added)
        self._open_rows += len(added)

    def _reserve(self, count: int) -> None:
        needed = self._rows + count
        if max(needed, self.entries - self._base + count) > ROWS_MAX:
            raise InvariantError(
                f"The index holds {self.live} live entries, in a span of more than {ROWS_MAX}, which is all that it can "
                "number; split it into slices."
            )
        capacity = len(self._held.states)
        if needed > capacity:
            rows = needed + needed // 8
            for column in self._held:
                if (
                    len(column) == capacity and column is not self._sketches.array
                ):  # in place: the system moves pages, nothing is copied or held twice
                    column.resize((rows, *column.shape[1:]), refcheck=False)
            self._reserve_sketches(rows)
        if needed > len(self._by_digest) * 3 // 4:
            self._lay_slots(needed, np.empty(0, np.int64))

    def _reserve_sketches(self, rows: int) -> None:
        self._sketches.reserve(rows)
        self._held = self._held._replace(sketches=self._sketches.array)

    def _lay_slots(self, count: int, moved: NDArray[np.int64]) -> None:
        for name in ("_by_digest", "_by_position"):
            larger = np.full(_slots_for(count), slot_kernels.EMPTY)
            slot_kernels.copy_slots(getattr(self, name), larger, moved)
            setattr(self, name, larger)

    def _compact(self) -> None:
        """Lay the rows out anew without the removed ones."""
        keep = self._held.states[: self._rows] != REMOVED
        self._lay_slots(self.live, np.where(keep, np.cumsum(keep) - 1, NONE))
        self._sketches.keep(keep)
        held = self._held._replace(sketches=self._sketches.array[:0])
        columns: list[Any] = [column[: self._rows][keep] if len(column) else column for column in held]
        self._held = HeldRows(*columns)._replace(sketches=self._sketches.array)
        self._rows = self.live
        if self.live:
            self._base += int(self._held.numbers[0])
            self._held.numbers[:] -= self._held.numbers[0]
        self._seal()

    def _seal(self) -> None:
        """Sort everything into the sealed parts of the tables."""
        self._tables.seal(self._held, self._rows, self.full, self._each, self._other_bytes)
        self._open_rows = 0

    def _each(self, work: Callable[[Any], None], parts: Sequence[Any]) -> None:
        if self._pool is None or len(parts) == 1:
            for part in parts:
                work(part)
        else:
            left = deque(parts)

            def work_off() -> None:
                while True:
                    try:
                        part = left.popleft()
                    except IndexError:
                        return
                    work(part)

            others = [self._pool.submit(work_off) for _ in range(min(self._threads, len(parts)) - 1)]
            work_off()  # here too: a thread that only waits has to be woken
            for other in others:
                other.result()


def _slots_for(count: int) -> int:
    """Return how many slots `count` rows get: 6 in 10 taken, and 3 in 4 before they get more."""
    return max(_SLOTS_MIN, count * 10 // 6)


def _same_digest(one: Columns, other: Columns) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = np.logical_and((one.digests == other.digests).all(axis=1), one.scopes == other.scopes)
    return same


def _same_position(one: Columns, other: Columns) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = np.logical_and(one.sources == other.sources, one.offsets == other.offsets)
    same &= one.values == other.values
    return same
