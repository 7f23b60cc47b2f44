"""Tables of whole keys for plans with sketch blocks, or with a cap on who is asked; see `keyed_kernels` for their layout.

Invariants: what they find equals `Plan.scan` over the live entries; buckets grow with the entries, so a look-up costs the same
at any number of them; the open parts move behind the sealed ones in place, so nothing is held twice. The row numbers of the
sealed parts lie in a file where a budget does not hold them: only those are read of which the tag passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.index import keyed_kernels
from stream_dedup.index.blocks import Tables
from stream_dedup.index.budget import RELEASE_EVERY, Budget, FileRows
from stream_dedup.index.keyed_kernels import KeyTables
from stream_dedup.index.rows import Columns, HeldRows, Known, Settled, gathered, new_chains
from stream_dedup.index.table_kernels import SIZES, UNIT

_BUCKET_ENTRIES: Final = 32  # at most, on average: as many tags are read in half a line of memory
_BUCKETS_MIN: Final = 64
_UNITS_MIN: Final = 1024
_PASSED: Final = 64
TAGS: Final = 256

Each = Callable[[Callable[[Any], None], Sequence[Any]], None]
"""Carries work out for each part, on some threads."""


class Keyed:
    """The tables of a keyed plan over the rows of one index; not safe for use by several threads at once."""

    def __init__(self, tables: Tables, budget: Budget | None) -> None:
        self._tables = tables
        self._budget = budget
        self._rows = FileRows(1, None, np.uint32)
        self.count = len(tables.masks) + tables.bands
        self._open_entries = 0
        self._table = _new_tables(self.count, _BUCKETS_MIN)

    def keys(self, batch: Columns) -> NDArray[np.uint64]:
        """Return the hashed keys (n, T) of documents."""
        keys = np.empty((len(batch.scopes), self.count), np.uint64)
        keyed_kernels.keys_of(self._tables, batch, keys)
        return keys

    def search(
        self,
        held: HeldRows,
        batch: Columns,
        keys: NDArray[np.uint64],
        docs: NDArray[np.int64],
        best: NDArray[np.int64],
        bits: NDArray[np.int64],
        candidates: NDArray[np.int64],
    ) -> None:
        """Lower `best` and `bits` of the documents `docs` to the earliest row within reach; from any thread."""
        passed = np.empty((2, _PASSED), np.int64)
        keyed_kernels.search(self._tables, self._table, held, batch, keys, docs, best, bits, passed, candidates)

    def settle(self, held: HeldRows, batch: Columns, known: Known, keys: NDArray[Any], settled: Settled) -> int:
        """Fill `settled` with what becomes of a batch, and return how many documents become entries."""
        chains = new_chains(len(known.tags), self.count)
        return int(keyed_kernels.settle(self._tables, self._table, held, batch, known, keys, chains, settled))

    def add(self, _: HeldRows, rows: NDArray[np.int64], keys: NDArray[np.uint64]) -> None:
        """Add rows (k,), later than all there, with their keys (k, T)."""
        done = keyed_kernels.add_open(self._table, rows, keys, 0)
        while done < keys.size:
            places = len(self._table.open_rows) * 3 // 2 // UNIT * UNIT
            self._table.open_rows.resize(places, refcheck=False)
            self._table.open_tags.resize(places, refcheck=False)
            done = keyed_kernels.add_open(self._table, rows, keys, done)
        self._open_entries += len(rows)

    def collect(self, held: HeldRows, wanted: Columns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (rows, distances) of everything within reach of one document; a row may come from several tables."""
        keys = self.keys(wanted)[0]

        def fill(rows: NDArray[np.int64], distances: NDArray[np.int64]) -> int:
            count = 0
            for number in range(self.count):
                count = keyed_kernels.collect(
                    self._tables, self._table, held, wanted, number, keys[number], rows, distances, count
                )
            return count

        return gathered(fill)

    def release(self) -> None:
        """Give back what searches touched of a file."""
        self._rows.release(RELEASE_EVERY)

    def seal(self, held: HeldRows, rows: int, full: int, each: Each, other_bytes: int) -> None:
        """Sort the `full` live entries of the first `rows` rows into sealed parts, from nothing.

        `other_bytes` are what else the index holds in memory.

        Raises:
            ConfigurationError: the budget does not even hold what has to stay in memory.
        """
        self._table = _new_tables(self.count, _BUCKETS_MIN)  # nothing of the old ones is needed
        self._rows = FileRows(1, None, np.uint32)
        self._table = _new_tables(self.count, buckets_for(full))
        self._open_entries = 0
        self._make_room(full, other_bytes)
        table = self._table

        def seal(number: int) -> None:
            keys, cursor = np.empty(rows, np.uint64), np.empty(table.open_heads.shape[1], np.uint32)
            keyed_kernels.seal(self._tables, table, held, number, keys, cursor)
            self.release()

        each(seal, range(self.count))

    def merge(self, other_bytes: int) -> bool:
        """Move the open parts behind the sealed ones; False if there are too many entries for the buckets there are.

        Raises:
            ConfigurationError: as `seal`.
        """
        before = len(self._table.rows) // self.count
        after = before + self._open_entries
        if buckets_for(after) > self._table.open_heads.shape[1]:
            return False
        self._make_room(after, other_bytes)
        table = self._table
        for number in range(self.count - 1, -1, -1):  # from the end, because what moves, moves to the right
            keyed_kernels.merge(table, number, before, after)
            self.release()
        table.free[:] = 0
        table.top[:] = 0
        self._open_entries = 0
        return True

    def _make_room(self, entries: int, other_bytes: int) -> None:
        """Make the sealed parts long enough; what the budget does not hold moves to a file."""
        table, budget = self._table, self._budget
        if budget is not None and not self._rows.bytes_mapped:
            own = sum(array.nbytes for array in table) - table.tags.nbytes - table.rows.nbytes + entries * self.count
            row_bytes = entries * table.rows.itemsize
            if budget.tables_resident(other_bytes + own, row_bytes, self.count) < self.count:
                old, self._rows = self._rows.array, FileRows(1, budget.folder, np.uint32)
                self._rows.reserve(len(old))
                self._rows.write(0, old)
        table.tags.resize(entries * self.count, refcheck=False)  # in place: nothing is copied or held twice
        self._rows.reserve(entries * self.count)
        self._table = table._replace(rows=self._rows.array[:, 0])

    @property
    def bytes_mapped(self) -> int:
        """Bytes of the arrays that lie in a file."""
        return self._rows.bytes_mapped

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Everything that is held."""
        return tuple(self._table)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many entries each bucket holds, (T, B)."""
        heads = self._table.heads.astype(np.int64)
        lengths: NDArray[np.int64] = heads[:, 1:] - heads[:, :-1] + self._table.open_heads[:, :, 1]
        return lengths


def buckets_for(entries: int) -> int:
    """Return how many buckets a table of so many entries has: a power of two, with 16 to 32 entries in each."""
    return max(_BUCKETS_MIN, 1 << (entries // _BUCKET_ENTRIES).bit_length())


def _new_tables(count: int, buckets: int) -> KeyTables:
    """Return empty tables."""
    return KeyTables(
        heads=np.zeros((count, buckets + 1), np.uint32),
        tags=np.empty(0, np.uint8),
        rows=np.empty(0, np.uint32),
        open_heads=np.zeros((count, buckets, 2), np.uint32),
        open_tags=np.zeros(_UNITS_MIN * UNIT, np.uint8),
        open_rows=np.zeros(_UNITS_MIN * UNIT, np.uint32),
        free=np.zeros(SIZES, np.int64),
        top=np.zeros(1, np.int64),
    )
