"""Tables of a print's blocks, for plans that judge by the print alone; see `table_kernels` for their layout.

Invariants: what they find equals `Plan.scan` over the live entries; with a memory budget, tables that it does not hold lie in
files and find the same.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.errors import InvariantError
from stream_dedup.index import near_kernels, table_kernels
from stream_dedup.index.blocks import Tables
from stream_dedup.index.budget import Budget, Mapped
from stream_dedup.index.finder import Each
from stream_dedup.index.keyed import check_read, with_own_row
from stream_dedup.index.rows import ALONE, AlikeRows, Columns, HeldRows, Known, Settled, gathered, new_chains
from stream_dedup.index.table_kernels import SIZES, UNIT, Table

_UNITS_MIN: Final = 1024
_STEP_COMPARISONS: Final = 16  # as many prints are compared in the time of one step from bucket to bucket
_PASSED: Final = 64
_NARROW_THRESHOLD: Final = 7  # up to it, 32 bits turn away all but one in a thousand of strangers; beyond it, 64 are held


class Blocked:
    """The tables of a plan that is not keyed over the rows of one index; not safe for use by several threads at once.

    `opened` (T,) int64: how many rows lie in the open part of each.
    """

    def __init__(self, tables: Tables, budget: Budget | None) -> None:
        self._tables = tables
        self._budget = budget
        self._mapped: dict[int, Mapped] = {}  # by table
        self.count = len(tables.base)
        self.opened = np.zeros(self.count, np.int64)
        self.parts = [_new_table(tables, number, 0) for number in range(self.count)]

    def keys(self, batch: Columns) -> NDArray[np.int64]:
        """Return the buckets (n, T) of documents."""
        buckets = np.empty((len(batch.scopes), self.count), np.int64)
        table_kernels.buckets_of(self._tables, batch, buckets)
        return buckets

    def search(
        self,
        held: HeldRows,
        batch: Columns,
        keys: NDArray[np.int64],
        docs: NDArray[np.int64],
        best: NDArray[np.int64],
        bits: NDArray[np.int64],
        candidates: NDArray[np.int64],
    ) -> None:
        """Lower `best` and `bits` of the documents `docs` to the earliest row within reach; from any thread."""
        first, length = self._scratch()
        held, passed = with_own_row(held, batch), np.empty(_PASSED, np.int64)
        for number, table in enumerate(self.parts):
            mapped = self._mapped.get(number)
            some = max(1, len(docs) if mapped is None else self._documents_at_once(table))
            for at in range(0, len(docs), some):
                own = docs[at : at + some]
                table_kernels.search(self._tables, table, held, batch, keys, own, best, bits, first, length, passed, candidates)
                if mapped is not None:
                    mapped.release()
        check_read(held)

    def settle(self, _: HeldRows, batch: Columns, known: Known, keys: NDArray[Any], settled: Settled) -> int:
        """Fill `settled` with what becomes of a batch, and return how many documents become entries."""
        chains = new_chains(len(known.tags), self.count if self._is_chained(len(known.tags)) else 0)
        return int(near_kernels.settle(self._tables, batch, known, keys, chains, settled))

    def _is_chained(self, count: int) -> bool:
        """Return whether documents of one batch find each other by their buckets, or are better compared one by one."""
        if self._tables.radius:
            return False
        sizes = np.diff(self._tables.base, append=self._tables.buckets)
        return float((1 + count / np.minimum(count, sizes)).sum()) * _STEP_COMPARISONS < count

    def add(self, held: HeldRows, rows: NDArray[np.int64], keys: NDArray[np.int64]) -> None:
        """Add rows (k,), later than all there, with their buckets (k, T)."""
        for table in self.parts:
            done = table_kernels.add_open(self._tables, table, held, rows, keys, 0)
            while done < len(rows):
                places = len(table.open_rows) * 3 // 2 // UNIT * UNIT
                table.open_rows.resize(places, refcheck=False)
                table.open_fragments.resize(places, refcheck=False)
                done = table_kernels.add_open(self._tables, table, held, rows, keys, done)
        self.opened += len(rows)

    def collect(self, held: HeldRows, wanted: Columns) -> AlikeRows:
        """Return everything within reach of one document; a row may come from several tables."""
        held, buckets, (first, length) = with_own_row(held, wanted), self.keys(wanted)[0], self._scratch()

        def fill(reached: AlikeRows) -> int:
            reached.others[:], reached.shares[:], count = 0, ALONE, 0
            for number, table in enumerate(self.parts):
                count = table_kernels.collect(
                    self._tables, table, held, wanted, buckets[number], first, length, reached.rows, reached.distances, count
                )
            return count

        found = gathered(fill)
        check_read(held)
        return found

    def seal(self, held: HeldRows, rows: int, full: int, each: Each, other_bytes: int) -> None:
        """Sort the `full` live entries of the first `rows` rows into sealed parts, from nothing.

        `other_bytes`: what the index holds beside its tables, which the memory budget counts.
        """
        for number in range(self.count):
            self._clear(number)
        resident = self._resident(full, other_bytes)
        if resident < self.count:
            for number in range(self.count - 1, -1, -1):  # one at a time, those that leave memory first
                self._seal(number, held, rows, full, resident)
        else:
            each(lambda number: self._seal(number, held, rows, full, resident), range(self.count))

    def seal_one(self, number: int, held: HeldRows, rows: int, full: int, other_bytes: int) -> None:
        """Do the same with one table; where fewer fit into memory than did before, others move to files."""
        resident = self._resident(full, other_bytes)
        for other in range(resident, self.count):
            if other != number:
                self._map(other)
        self._clear(number)
        self._seal(number, held, rows, full, resident)

    def _clear(self, number: int) -> None:
        """Throw one table away, because nothing of it is needed to sort it anew."""
        self.parts[number] = _new_table(self._tables, number, 0)
        self._mapped.pop(number, None)
        self.opened[number] = 0

    def _resident(self, full: int, other_bytes: int) -> int:
        """Return how many of the tables may stay in memory when they hold `full` entries each."""
        if self._budget is None:
            return self.count
        return self._budget.tables_resident(other_bytes + self._head_bytes, full * self._entry_bytes, self.count)

    def least_bytes(self, full: int, other_bytes: int) -> int:
        """Return how many bytes are needed when the tables hold `full` entries each, and lie in files."""
        return Budget.least_of_tables(other_bytes + self._head_bytes, full * self._entry_bytes)

    @property
    def _head_bytes(self) -> int:
        return sum(table.heads.nbytes + table.open_heads.nbytes for table in self.parts)

    @property
    def _entry_bytes(self) -> int:
        return self.parts[0].fragments.itemsize + self.parts[0].rows.itemsize

    def _seal(self, number: int, held: HeldRows, rows: int, full: int, resident: int) -> None:
        table = _new_table(self._tables, number, full)
        keys, cursor = np.empty(rows, np.uint32), np.empty(len(table.open_heads), np.uint32)
        table_kernels.seal(self._tables, table, held, keys, cursor)
        self.parts[number] = table
        if number >= resident:
            self._map(number)

    def _map(self, number: int) -> None:
        """Move the sealed part of one table to a file."""
        if self._budget is not None and number not in self._mapped:
            table = self.parts[number]
            mapped = self._mapped[number] = Mapped(self._budget.folder, [table.fragments, table.rows])
            self.parts[number] = table._replace(fragments=mapped.arrays[0], rows=mapped.arrays[1])

    @property
    def sealed(self) -> NDArray[np.int64]:
        """How many rows lie in the sealed part of each table, (T,)."""
        return np.array([len(table.rows) for table in self.parts], np.int64)

    @property
    def bytes_used(self) -> int:
        """Bytes of memory that the arrays hold."""
        return sum(array.nbytes for table in self.parts for array in table) - self.bytes_in_file

    @property
    def bytes_in_file(self) -> int:
        """Bytes of the arrays that lie in files."""
        return sum(array.nbytes for mapped in self._mapped.values() for array in mapped.arrays)

    def lengths(self, number: int) -> NDArray[np.int64]:
        """Return how many entries each bucket of one table holds, (B,)."""
        table = self.parts[number]
        return (np.diff(table.heads) + table.open_heads[:, 1]).astype(np.int64)

    def full_blocks(self, _: int) -> int:
        """Return 0: every entry of a bucket is asked."""
        return 0

    def longest(self, number: int) -> int:
        """Return how many entries the longest bucket of one table holds."""
        return int(self.lengths(number).max())

    def _documents_at_once(self, table: Table) -> int:
        if self._budget is None:
            raise InvariantError("A table is mapped without a memory budget; this is a fault of the program.")
        probes = int(np.diff(self._tables.flips_end, prepend=0).max())
        longest = int(np.diff(table.heads).max()) * table.fragments.itemsize
        return self._budget.documents_at_once(probes, longest)

    def _scratch(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        probes = int(np.diff(self._tables.flips_end, prepend=0).max())
        return np.empty((2, probes, 2), np.int64), np.empty((2, probes, 2), np.int64)


def fragment_bytes(keys: Tables) -> int:
    """Return how much of a print the tables of a plan hold beside each row."""
    return 4 if keys.threshold <= _NARROW_THRESHOLD else 8


def _new_table(keys: Tables, number: int, sealed: int) -> Table:
    """Return a table with room for `sealed` entries and an empty open part."""
    bits = 8 * fragment_bytes(keys)
    free = [
        (int(keys.whole[limb] & ~keys.masks[number, limb]) >> shift & ((1 << bits) - 1)).bit_count()
        for limb in range(len(keys.whole))
        for shift in range(0, 64, bits)
    ]
    limb, part = divmod(free.index(max(free)), 64 // bits)
    kind = np.uint32 if bits == 32 else np.uint64
    ends = [*keys.base.tolist(), keys.buckets]
    buckets = ends[number + 1] - ends[number]
    return Table(
        place=np.array([number, limb, part * bits, ends[number]], np.int64),
        heads=np.zeros(buckets + 1, np.uint32),
        fragments=np.empty(sealed, kind),
        rows=np.empty(sealed, np.uint32),
        open_heads=np.zeros((buckets, 2), np.uint32),
        open_fragments=np.zeros(_UNITS_MIN * UNIT, kind),
        open_rows=np.zeros(_UNITS_MIN * UNIT, np.uint32),
        free=np.zeros(SIZES + 1, np.int64),
    )
