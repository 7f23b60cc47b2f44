"""The columns of the live entries, in memory or in files.

Invariants: all columns have the same rows, in the order of the entries' numbers. The column of scopes
is empty until a document has a scope other than the common one. Numbers, states and scopes stay in
memory. With table files all columns are also in files, with the values that were first written;
`table_files` records which rows were removed later.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import StoreError
from stream_dedup.index.storage.columns import StoredRows
from stream_dedup.index.storage.table_files import GROUP_ROWS, RowsInFiles, TableFiles, digest_bytes
from stream_dedup.index.tables.budget import Column
from stream_dedup.index.tables.finder import RunParts, finder_bytes
from stream_dedup.index.tables.rows import LoadedRows, make_row_buffer

_ROWS_MIN: Final = 2048
ROOM_SHARE: Final = 32
"""Room for rows grows by one part in this many: rows are not copied, so small steps cost little."""
_PART_BYTES: Final = 1 << 25  # of a file for one thread; large, because the system reads ahead
_READ_BYTES: Final = 1 << 18  # in one call; small, so that they are in the CPU's cache when hashed
TAGS: Final = ("digest_tags", "position_tags", "ids")
"""The columns from which the tables of tags are built, in their order."""
_ALWAYS_BYTES: Final = 5  # per row, in memory with every budget: its number and its state
_IN_FILES: Final = ("sketches", "features", *TAGS)


class EntryColumns:
    """The columns of one index.

    With a `folder` or `files`, sketches and features (compared only after prints) and tags (read only
    to build tables) are only in files. With `files` the other columns are in files too.
    """

    def __init__(
        self,
        limbs: int,
        sketch_bytes: int,
        folder: Path | None,
        files: TableFiles | None = None,
    ) -> None:
        self._files = files
        table_folder = None if files is None else files.folder
        dtypes: dict[str, tuple[Any, ...]] = {
            "prints": (np.uint64, limbs),
            "scopes": (np.uint64,),
            "features": (np.uint32,),
            "numbers": (np.uint32,),
            "states": (np.uint8,),
            "sketches": (np.uint8, sketch_bytes),
            **dict.fromkeys(TAGS, (np.uint32,)),
        }
        file_folder = table_folder or folder
        self._columns = {
            name: Column(
                *dtype_and_shape,
                path=table_folder and table_folder / name,
                folder=file_folder if name in _IN_FILES else None,
            )
            for name, dtype_and_shape in dtypes.items()
        }
        self._print_bytes = 8 * limbs
        self.reserve(_ROWS_MIN)

    @property
    def room_rows(self) -> int:
        """The number of rows for which there is room."""
        return self._columns["states"].count

    def read(self, name: str, first: int, end: int) -> NDArray[Any]:
        """Return the rows from `first` to `end` of a column. The column of scopes has no rows while all
        documents have the common scope.
        """
        return self._columns[name].read(first, end)

    def reserve(self, count: int) -> None:
        """Make room for `count` rows in place: the system moves pages, and nothing is copied."""
        for name, column in self._columns.items():
            if name != "scopes" or column.count:
                column.reserve(count)
        self._update_rows()

    def write(self, first: int, rows: StoredRows) -> None:
        """Set the rows from `first` on; there is room for them."""
        if rows.scopes.any() and not self._columns["scopes"].count:
            self._columns["scopes"].reserve(self.room_rows)
            self._update_rows()
        for name, values in rows._asdict().items():
            if name != "scopes" or self._columns[name].count:
                self._columns[name].write(first, values)

    def keep_rows(self, is_kept: NDArray[np.bool_]) -> None:
        """Keep only the rows in the mask `is_kept` (n,).

        Before the files change, their names are withdrawn from the volume.
        """
        if self._files is not None:
            self._files.withdraw_names()
        for column in self._columns.values():
            if column.count:
                column.keep_rows(is_kept)
        self.reserve(max(_ROWS_MIN, int(np.count_nonzero(is_kept))))

    def wipe(self, rows: int, numbers: NDArray[np.int64]) -> None:
        """Set the rows with these numbers (ascending), among the first `rows`, to zeros, except their
        numbers and states.
        """
        row_numbers = self.rows.numbers[:rows]
        wiped_numbers = numbers[
            (numbers >= 0) & (numbers <= (row_numbers[-1] if rows else -1))
        ].astype(np.uint32)
        wiped_rows = np.searchsorted(row_numbers, wiped_numbers)
        wiped_rows = wiped_rows[row_numbers[wiped_rows] == wiped_numbers]
        for name, column in self._columns.items():
            if name not in ("numbers", "states") and column.count:
                zeros = np.zeros((1, *column.array.shape[1:]), column.array.dtype)
                for row in wiped_rows.tolist():
                    column.write(row, zeros)
        if self._files is not None:
            self._files.note_wiped(wiped_rows)

    def renumber(self, rows: int) -> int:
        """Subtract the first row's number from the numbers of the first rows; return it."""
        numbers = self._columns["numbers"]
        first = int(numbers.array[0])
        numbers.array[:rows] -= numbers.array[0]
        numbers.write(0, numbers.array[:rows])
        return first

    # -- in files

    @property
    def row_count_in_files(self) -> int:
        """The number of rows in files, if all of them are valid."""
        digests = np.zeros((0, 0)) if self._files is None else self._files.digests
        return len(digests) * GROUP_ROWS if digests.shape[1] == len(self._columns) else 0

    def load_files(self, rows: int, run_parts: RunParts) -> tuple[int, int]:
        """Load the first `rows` from files, up to the first group of 4,096 with a wrong digest. Cut
        the files after these rows.

        Return (the number of rows loaded, the entry from which their numbers count).

        Raises:
            StoreError: the volume failed, or a file cannot be cut.
        """
        if self._files is None:
            return 0, 0
        groups = rows // GROUP_ROWS
        valid_groups = (
            self._count_valid_groups(self._files.digests, groups, run_parts) if groups else 0
        )
        self._files.accept_rows(groups, valid_groups)
        rows = valid_groups * GROUP_ROWS
        self.truncate(rows)
        self._files.mark_removed(self.rows.states[:rows])
        return rows, self._files.base or 0

    def _count_valid_groups(
        self, digests: NDArray[np.uint64], groups: int, run_parts: RunParts
    ) -> int:
        columns = list(self._columns.values())
        if digests[:, list(self._columns).index("scopes")].any():
            self._columns["scopes"].count = 1  # makes `reserve` allocate them too
        self.reserve(max(_ROWS_MIN, groups * GROUP_ROWS))
        steps = [max(1, _PART_BYTES // max(1, column.row_bytes * GROUP_ROWS)) for column in columns]
        parts = [
            (column_number, slice(first, first + step))
            for column_number, step in enumerate(steps)
            for first in range(0, groups, step)
        ]
        valid_groups = np.full(len(parts), groups)

        def work(number: int) -> None:
            column_number, part = parts[number]
            first, expected = part.start, digests[:groups, column_number][part].tolist()
            if any(expected):  # all are 0 for a column without rows
                loaded = self._load_digests(columns[column_number], first, first + len(expected))
                invalid_groups = (
                    group
                    for group, (expected_digest, digest) in enumerate(
                        zip(expected, loaded, strict=True), first
                    )
                    if expected_digest not in (0, digest)
                )
                valid_groups[number] = next(invalid_groups, groups)

        run_parts(work, range(len(parts)))
        return int(valid_groups.min())

    def rows_in_files(self, rows: int, base: int) -> RowsInFiles:
        """Return the first `rows` as the volume records them; their numbers count from `base`."""
        return RowsInFiles(base, self.rows.states[:rows], self._digests)

    def truncate(self, rows: int) -> None:
        """Cut the files after the first rows."""
        for column in self._columns.values():
            column.truncate(rows)

    def _digests(self, group: int) -> NDArray[np.uint64]:
        """Return the digest of each column of a group of 4,096 rows in its file; 0 for a column without
        rows.
        """
        first, end = group * GROUP_ROWS, (group + 1) * GROUP_ROWS
        columns = self._columns.values()
        return np.array(
            [
                self._digest(column.read_file(first, end))
                if column.count and column.row_bytes
                else 0
                for column in columns
            ],
            np.uint64,
        )

    def _load_digests(
        self, column: Column, first: int, end: int, bytes_at_once: int = _READ_BYTES
    ) -> Iterator[int | None]:
        """Load groups of a column's rows, and yield their digests; None for an unreadable group."""
        step = max(1, bytes_at_once // (column.row_bytes * GROUP_ROWS))
        for first_group in range(first, end, step):
            end_group = min(end, first_group + step)
            try:
                rows = column.read_file(
                    first_group * GROUP_ROWS, end_group * GROUP_ROWS, in_memory=True
                )
                yield from map(self._digest, np.split(rows, end_group - first_group))
            except StoreError:  # one group is unreadable: read them one by one
                yield from (
                    [None]
                    if end_group - first_group == 1
                    else self._load_digests(column, first_group, end_group, 0)
                )

    @staticmethod
    def _digest(rows: NDArray[Any]) -> int:
        return digest_bytes(rows.reshape(-1).view(np.uint8)) or 1

    def move_to_files(self, folder: Path) -> None:
        """Move prints to a file too, to free memory."""
        self._columns["prints"].move_to_file(folder)
        self._update_rows()

    @property
    def bytes_used(self) -> int:
        """Bytes of memory that the columns use."""
        return sum(column.array.nbytes for column in self._columns.values())

    @property
    def bytes_in_file(self) -> int:
        """Bytes of the columns that are in files."""
        return sum(column.bytes_in_file for column in self._columns.values())

    def bytes_for(
        self, tables: int, rows: int, full: int, *, in_files: bool, active_share: float
    ) -> int:
        """Return the bytes of memory that `rows` rows and their tables need. The share `active_share`
        of the rows is in active segments of the tables (`finder`).

        `full` of the rows are in the plan's `tables`. With `in_files`, prints and row numbers are in
        files.
        """
        scopes = 8 * rows if self._columns["scopes"].count else 0
        row_bytes = _ALWAYS_BYTES if in_files else _ALWAYS_BYTES + self._print_bytes
        return (
            scopes
            + (rows + rows // ROOM_SHARE) * row_bytes
            + finder_bytes(len(TAGS), rows, active_share, in_file=in_files)
            + finder_bytes(tables, full, active_share, in_file=in_files)
        )

    def _update_rows(self) -> None:
        """Set `rows`, the columns as arrays for the kernels."""
        columns = self._columns
        files = np.array(
            [columns[name].descriptor for name in ("prints", "features", "sketches")], np.int64
        )
        arrays = {name: columns[name].array for name in LoadedRows._fields if name in columns}
        self.rows = LoadedRows(**arrays, files=files, buffer=make_row_buffer())
