"""The tables of a plan, by which a document finds who may be near; `finder` tells how they lie,
`blocks` which there are.

Invariant: what they find equals `Plan.scan` over the live entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.related import Relation
from stream_dedup.index.tables import finder_kernels, keyed_kernels, near_kernels
from stream_dedup.index.tables.blocks import Tables, table_count
from stream_dedup.index.tables.budget import unreadable
from stream_dedup.index.tables.finder import KeysOf, RowFinder
from stream_dedup.index.tables.kept import FilesKept
from stream_dedup.index.tables.rows import (
    NONE,
    Columns,
    HeldRows,
    JudgedRows,
    Known,
    NearRows,
    new_chains,
    no_columns,
    no_row_taken,
    room_for_near,
)

_PASSED: Final = 64

ReadRows = Callable[[str, int, int], NDArray[np.generic]]
"""Returns the rows of a column, by its name, from a first one to an end."""


class Keyed:
    """The tables of a plan over the rows of one index; not safe for use by several threads at
    once.
    """

    def __init__(
        self, tables: Tables, files: FilesKept | None = None, first: int = 0, plan: str = ""
    ) -> None:
        """See `RowFinder`."""
        self._tables = tables
        self.count = table_count(tables)
        self.finder = RowFinder(self.count, files, first, plan)

    def keys(self, batch: Columns) -> NDArray[np.uint64]:
        """Return the hashed keys (n, T) of documents."""
        keys = np.empty((len(batch.scopes), self.count), np.uint64)
        near_kernels.keys_of(self._tables, batch, keys)
        return keys

    def search(
        self,
        held: HeldRows,
        batch: Columns,
        keys: NDArray[Any],
        docs: NDArray[Any],
        known: Known,
        candidates: NDArray[Any],
    ) -> None:
        """Lower what is `known` to be the best of the documents `docs` to the earliest row within
        reach, and say who is alone.

        From any thread.

        With a cap that says who may have somebody near; `judge_in_order` says who has.

        Raises:
            StoreError: a file cannot be read.
        """
        held, passed = with_own_row(held, batch), np.empty((2, _PASSED), np.int64)
        tables, table = self._tables, self.finder.table
        reached = (
            known.best,
            known.best_distance,
            known.sibling,
            known.is_alone,
        )  # by themselves: out of a tuple the search is slower
        keyed_kernels.search(tables, table, held, batch, keys, docs, *reached, passed, candidates)
        check_read(held)

    def judge_in_order(
        self, held: HeldRows, batch: Columns, known: Known, keys: NDArray[Any], judged: JudgedRows
    ) -> None:
        """Fill `judged` with what becomes of a batch."""
        held, chains = with_own_row(held, batch), new_chains(len(known.tags), self.count)
        scratch = chains, np.empty((self.count, 4), np.int64), room_for_near(1)
        keyed_kernels.judge_in_order(
            self._tables, self.finder.table, held, batch, known, keys, *scratch, judged
        )
        check_read(held)

    def collect_near(self, held: HeldRows, wanted: Columns, alike_min: int) -> NearRows:
        """Return all rows near one document that are alike in `alike_min` parts, in log order,
        whatever their sites and titles.
        """
        held, keys = with_own_row(held, wanted), self.keys(wanted)
        newer = (int(NONE), new_chains(0, self.count), np.empty(0, np.int64))
        cursors, table = np.empty((self.count, 4), np.int64), self.finder.table
        tables = self._tables._replace(
            alike_mins=np.full(len(Relation), alike_min, np.int64), compares=alike_min > 0
        )
        count, near = 256, room_for_near(0)
        while count > len(near.rows):
            near = room_for_near(count)
            count = int(
                keyed_kernels.walk(tables, table, held, wanted, 0, keys, newer, cursors, near)
            )
        check_read(held)
        return NearRows(near.rows[:count], near.distances[:count], near.sibling)

    def keys_of(self, read: ReadRows) -> KeysOf:
        """Return what gives the keys of rows in some tables."""
        empty, of_prints = no_columns(self._tables.whole.shape[0], 0), len(self._tables.masks)

        def keys_of(numbers: Sequence[int], first: int, end: int) -> NDArray[np.uint64]:
            names = {"scopes"} | {
                "prints" if number < of_prints else "sketches" for number in numbers
            }
            columns: dict[str, Any] = {name: read(name, first, end) for name in names}
            some = empty._replace(**columns)
            keys = np.empty((len(numbers), end - first), np.uint64)
            for at, number in enumerate(numbers):
                near_kernels.keys_in(self._tables, number, some, keys[at])
            return keys

        return keys_of

    def full_blocks(self, number: int) -> int:
        """Return how many keys of one table more entries have than are asked, as far as tags tell
        keys apart.

        Entries that were removed count until the rows are laid out anew.
        """
        asked, table = self._tables.asked, self.finder.table
        return (
            int(
                finder_kernels.count_fuller(
                    table, number, asked, np.zeros(finder_kernels.TAGS, np.int64)
                )
            )
            if asked
            else 0
        )


def with_own_row(held: HeldRows, batch: Columns) -> HeldRows:
    """Return held rows with room of one's own for the row that is looked at."""
    return held._replace(taken=no_row_taken(batch.prints.shape[1], batch.sketches.shape[1]))


def check_read(held: HeldRows) -> None:
    """Raise StoreError if a file could not be read for a search."""
    if held.taken.failed[0]:
        raise unreadable(None)
