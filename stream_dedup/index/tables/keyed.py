"""Find the near entries of a document with the tables of a plan.

`blocks` chooses the tables, `finder` stores them.

Invariant: the result is that of a plain scan over all live entries (`audit.scan.PlainScan`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.relations import Relation
from stream_dedup.index.storage.columns import Columns, make_columns
from stream_dedup.index.storage.table_files import TableFiles
from stream_dedup.index.tables import finder_kernels, keyed_kernels, near_kernels
from stream_dedup.index.tables.blocks import CompiledPlan, table_count
from stream_dedup.index.tables.budget import read_error
from stream_dedup.index.tables.finder import ReadKeys, RowFinder
from stream_dedup.index.tables.rows import (
    NONE,
    EarlierResults,
    JudgedRows,
    LoadedRows,
    NearRows,
    NewEntries,
    make_chains,
    make_near_rows,
    make_row_buffer,
)

_MATCHES: Final = 64

ReadRows = Callable[[str, int, int], NDArray[np.generic]]
"""Returns the rows of a column, by its name, from a first row to an end."""


class PlanTables:
    """The tables of a plan over the rows of one index; not thread-safe."""

    def __init__(
        self,
        plan: CompiledPlan,
        files: TableFiles | None = None,
        first: int = 0,
        plan_id: str = "",
    ) -> None:
        """Create the tables; for `files`, `first` and `plan_id` see `RowFinder`."""
        self._plan = plan
        self.count = table_count(plan)
        self.finder = RowFinder(self.count, files, first, plan_id)

    def keys(self, batch: Columns) -> NDArray[np.uint64]:
        """Return the hashed keys (n, T) of documents."""
        keys = np.empty((len(batch.scopes), self.count), np.uint64)
        near_kernels.hash_keys(self._plan, batch, keys)
        return keys

    def search(
        self,
        loaded: LoadedRows,
        batch: Columns,
        keys: NDArray[Any],
        docs: NDArray[Any],
        earlier: EarlierResults,
        candidates: NDArray[Any],
    ) -> None:
        """Set the results in `earlier` of the documents `docs` to the earliest near rows.

        If the plan limits how many entries are compared, the results only show which documents may
        have a near entry, and `judge_in_order` finds it. Any thread may call it.

        Raises:
            StoreError: a file cannot be read.
        """
        loaded, hits = with_row_buffer(loaded, batch), np.empty((2, _MATCHES), np.int64)
        plan, key_tables = self._plan, self.finder.key_tables
        # As separate arguments: one tuple would make the kernel slower.
        results = earlier.best, earlier.best_distance, earlier.sibling, earlier.is_only_match
        keyed_kernels.search_before_batch(
            plan, key_tables, loaded, batch, keys, docs, *results, hits, candidates
        )
        check_buffer(loaded)

    def judge_in_order(
        self,
        loaded: LoadedRows,
        batch: Columns,
        earlier: EarlierResults,
        keys: NDArray[Any],
        judged: JudgedRows,
    ) -> None:
        """Fill `judged` with the verdicts on a batch."""
        loaded, chains = with_row_buffer(loaded, batch), make_chains(len(earlier.tags), self.count)
        scratch = chains, np.empty((self.count, 4), np.int64), make_near_rows(1)
        keyed_kernels.judge_in_order(
            self._plan, self.finder.key_tables, loaded, batch, earlier, keys, *scratch, judged
        )
        check_buffer(loaded)

    def collect_near(self, loaded: LoadedRows, document: Columns, alike_min: int) -> NearRows:
        """Return all rows near one document, with a similarity of at least `alike_min` parts of
        `ALIKE`, in log order. Sites and titles are not compared.
        """
        loaded, keys = with_row_buffer(loaded, document), self.keys(document)
        added = NewEntries(int(NONE), make_chains(0, self.count), np.empty(0, np.int64))
        cursors, key_tables = np.empty((self.count, 4), np.int64), self.finder.key_tables
        plan = self._plan._replace(
            alike_mins=np.full(len(Relation), alike_min, np.int64), compares_sketches=alike_min > 0
        )
        count, near = 256, make_near_rows(0)
        while count > len(near.rows):
            near = make_near_rows(count)
            count = int(
                keyed_kernels.collect_in_order(
                    plan, key_tables, loaded, document, 0, keys, added, cursors, near, False
                )
            )
        check_buffer(loaded)
        return NearRows(near.rows[:count], near.distances[:count], near.sibling)

    def key_reader(self, read: ReadRows) -> ReadKeys:
        """Return a function that returns the keys of rows in some tables."""
        empty, print_tables = (
            make_columns(self._plan.compared_bits.shape[0], 0),
            len(self._plan.masks),
        )

        def read_keys(numbers: Sequence[int], first: int, end: int) -> NDArray[np.uint64]:
            names = {"scopes"} | {
                "prints" if number < print_tables else "sketches" for number in numbers
            }
            columns_by_name: dict[str, Any] = {name: read(name, first, end) for name in names}
            columns = empty._replace(**columns_by_name)
            keys = np.empty((len(numbers), end - first), np.uint64)
            for index, number in enumerate(numbers):
                near_kernels.hash_table_keys(self._plan, number, columns, keys[index])
            return keys

        return read_keys

    def full_blocks(self, number: int) -> int:
        """Return how many keys of one table have more entries than the plan compares.

        This counts by tags, not by keys. Removed entries count until the next compaction.
        """
        candidates_max, key_tables = self._plan.candidates_max, self.finder.key_tables
        return (
            int(
                finder_kernels.count_overfull_tags(
                    key_tables, number, candidates_max, np.zeros(finder_kernels.TAGS, np.int64)
                )
            )
            if candidates_max
            else 0
        )


def with_row_buffer(loaded: LoadedRows, batch: Columns) -> LoadedRows:
    """Return loaded rows with a new buffer, for one thread."""
    return loaded._replace(buffer=make_row_buffer(batch.prints.shape[1], batch.sketches.shape[1]))


def check_buffer(loaded: LoadedRows) -> None:
    """Raise StoreError if a search could not read a file."""
    if loaded.buffer.failed[0]:
        raise read_error(None)
