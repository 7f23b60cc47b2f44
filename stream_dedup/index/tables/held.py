"""What is held of the live entries, column by column, in memory or in files.

Invariants: all columns have the same rows, in the order of the entries' numbers; scopes are held once a row is in another than
the common one; numbers, states and scopes stay in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.index.tables.budget import Column
from stream_dedup.index.tables.finder import finder_bytes
from stream_dedup.index.tables.rows import HeldRows, StoredRows, no_row_taken

_ROWS_MIN: Final = 2048
TAGS: Final = ("digest_tags", "position_tags")
_ALWAYS_BYTES: Final = 5  # of a row: its number and its state
_BY_ROW_BYTES: Final = 12  # features and tags


class HeldColumns:
    """The columns of one index; sketches lie in a file where there is a `folder`."""

    def __init__(self, limbs: int, values: int, folder: Path | None) -> None:
        self._columns = {
            "prints": Column(np.uint64, limbs),
            "scopes": Column(np.uint64),
            "features": Column(np.uint32),
            "numbers": Column(np.uint32),
            "states": Column(np.uint8),
            "sketches": Column(np.uint8, values, folder=folder),
            "digest_tags": Column(np.uint32),
            "position_tags": Column(np.uint32),
        }
        self._print_bytes = 8 * limbs
        self.reserve(_ROWS_MIN)

    @property
    def room(self) -> int:
        """For how many rows there is room."""
        return self._columns["states"].count

    def column(self, name: str) -> Column:
        """Return one column."""
        return self._columns[name]

    def read(self, name: str, first: int, end: int) -> NDArray[np.generic]:
        """Return the rows from `first` to `end` of a column; none of scopes while all are the common one."""
        return self._columns[name].read(first, end)

    def reserve(self, count: int) -> None:
        """Make room for `count` rows, in place: the system moves pages, nothing is copied or held twice."""
        for name, column in self._columns.items():
            if name != "scopes" or column.count:
                column.reserve(count)
        self._take()

    def write(self, first: int, rows: StoredRows) -> None:
        """Set the rows from `first` on; there is room for them."""
        if rows.scopes.any() and not self._columns["scopes"].count:
            self._columns["scopes"].reserve(self.room)
            self._take()
        for name, values in rows._asdict().items():
            if name != "scopes" or self._columns[name].count:
                self._columns[name].write(first, values)

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Leave only the `kept` ones of the first rows."""
        for column in self._columns.values():
            if column.count:
                column.keep(kept)
        self._take()

    def to_files(self, folder: Path) -> None:
        """Move what is read by single rows to files."""
        for name in ("prints", "features", *TAGS):
            self._columns[name].to_file(folder)
        self._take()

    @property
    def bytes_used(self) -> int:
        """Bytes of memory that the columns hold."""
        return sum(column.array.nbytes for column in self._columns.values())

    @property
    def bytes_in_file(self) -> int:
        """Bytes of those that lie in files."""
        return sum(column.bytes_in_file for column in self._columns.values())

    def bytes_for(self, tables: int, rows: int, full: int, *, in_files: bool, open_share: float) -> int:
        """Return what `bytes_for` returns, with the scopes that there are."""
        scopes = 8 * rows if self._columns["scopes"].count else 0
        return scopes + bytes_for(tables, rows, full, self._print_bytes, in_files=in_files, open_share=open_share)

    def _take(self) -> None:
        """Have the columns as the compiled functions want them, as `rows`."""
        columns = self._columns
        files = np.array([columns[name].number for name in ("prints", "features", "sketches")], np.int64)
        arrays = {name: columns[name].array for name in HeldRows._fields if name in columns}
        self.rows = HeldRows(**arrays, files=files, taken=no_row_taken())


def bytes_for(tables: int, rows: int, full: int, print_bytes: int, *, in_files: bool, open_share: float) -> int:
    """Return how many bytes of memory rows need while such a share of them is open.

    `full` of them are in the plan's `tables`; `in_files`: what is read by single rows lies there. Scopes are left out.
    """
    row_bytes = _ALWAYS_BYTES if in_files else _ALWAYS_BYTES + _BY_ROW_BYTES + print_bytes
    return (
        (rows + rows // 8) * row_bytes
        + finder_bytes(2, rows, open_share, in_file=in_files)
        + finder_bytes(tables, full, open_share, in_file=in_files)
    )
