"""Tables of whole keys for plans with sketch blocks, or with a cap on who is asked; see `keyed_kernels` for their layout.

Invariants: what they find equals `Plan.scan` over the live entries; buckets grow with the entries, so a look-up costs the same
at any number of them; the open parts move behind the sealed ones in place, so nothing is held twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.index import keyed_kernels
from stream_dedup.index.blocks import Tables
from stream_dedup.index.keyed_kernels import KeyTables
from stream_dedup.index.rows import Columns, HeldRows, Known, Settled, new_chains
from stream_dedup.index.table_kernels import SIZES, UNIT

_BUCKET_ENTRIES: Final = 32  # at most, on average: as many tags are read in half a line of memory
_BUCKETS_MIN: Final = 64
_UNITS_MIN: Final = 1024
_PASSED: Final = 64

Each = Callable[[Callable[[Any], None], Sequence[Any]], None]
"""Carries work out for each part, on some threads."""


class Keyed:
    """The tables of a keyed plan over the rows of one index; not safe for use by several threads at once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.count = len(tables.masks) + tables.bands
        self._open_entries = 0
        self._table = _new_tables(self.count, 0, _BUCKETS_MIN)

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
        keys, room = self.keys(wanted)[0], 256
        while True:
            rows, distances = np.empty(room, np.int64), np.empty(room, np.int64)
            count = 0
            for number in range(self.count):
                count = keyed_kernels.collect(
                    self._tables, self._table, held, wanted, number, keys[number], rows, distances, count
                )
            if count <= room:
                return rows[:count], distances[:count]
            room = count

    def seal(self, held: HeldRows, rows: int, full: int, each: Each, _: int) -> None:
        """Sort the `full` live entries of the first `rows` rows into sealed parts, from nothing."""
        self._table = _new_tables(self.count, 0, _BUCKETS_MIN)  # nothing of the old ones is needed
        self._table = table = _new_tables(self.count, full, _buckets_for(full))
        self._open_entries = 0

        def seal(number: int) -> None:
            keys, cursor = np.empty(rows, np.uint64), np.empty(table.open_heads.shape[1], np.uint32)
            keyed_kernels.seal(self._tables, table, held, number, keys, cursor)

        each(seal, range(self.count))

    def merge(self) -> bool:
        """Move the open parts behind the sealed ones; False if there are too many entries for the buckets there are."""
        table = self._table
        before = len(table.rows) // self.count
        after = before + self._open_entries
        if _buckets_for(after) > table.open_heads.shape[1]:
            return False
        for column in (table.tags, table.rows):  # in place: the system moves pages, nothing is copied or held twice
            column.resize(after * self.count, refcheck=False)
        keyed_kernels.merge(table, before, after)
        table.free[:] = 0
        table.top[:] = 0
        self._open_entries = 0
        return True

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Everything that is held."""
        return tuple(self._table)

    @property
    def bytes_mapped(self) -> int:
        """Bytes of the arrays that lie in files: none."""
        return 0

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many entries each bucket holds, (T, B)."""
        heads = self._table.heads.astype(np.int64)
        lengths: NDArray[np.int64] = heads[:, 1:] - heads[:, :-1] + self._table.open_heads[:, :, 1]
        return lengths


def _buckets_for(entries: int) -> int:
    """Return how many buckets a table of so many entries has: a power of two, with 16 to 32 entries in each."""
    return max(_BUCKETS_MIN, 1 << (entries // _BUCKET_ENTRIES).bit_length())


def _new_tables(count: int, sealed: int, buckets: int) -> KeyTables:
    """Return tables with room for `sealed` entries each and empty open parts."""
    return KeyTables(
        heads=np.zeros((count, buckets + 1), np.uint32),
        tags=np.empty(sealed * count, np.uint8),
        rows=np.empty(sealed * count, np.uint32),
        open_heads=np.zeros((count, buckets, 2), np.uint32),
        open_tags=np.zeros(_UNITS_MIN * UNIT, np.uint8),
        open_rows=np.zeros(_UNITS_MIN * UNIT, np.uint32),
        free=np.zeros(SIZES, np.int64),
        top=np.zeros(1, np.int64),
    )
