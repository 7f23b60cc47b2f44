"""What is held of the live entries, column by column, in memory or in files.

Invariants: all columns have the same rows, in the order of the entries' numbers; scopes are held
once a row is in another than the common one; numbers, states and scopes stay in memory. With a
folder of their own all columns also lie in files there, as they were first written: a state that
changed is told by `beside`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import StoreError
from stream_dedup.index.tables.budget import Column
from stream_dedup.index.tables.finder import Each, finder_bytes
from stream_dedup.index.tables.kept import GROUP_ROWS, FilesKept, RowsAsKept, digest_of
from stream_dedup.index.tables.rows import HeldRows, StoredRows, no_row_taken

_ROWS_MIN: Final = 2048
GROWN: Final = 32
"""By such a part the room for rows grows: they are not copied, so small steps cost little."""
_PART_BYTES: Final = 1 << 25  # of a file, which one thread reads: the system reads ahead of it
_BYTES_AT_ONCE: Final = (
    1 << 18
)  # that are read of a file, and stay in a cache until they are digested
TAGS: Final = ("digest_tags", "position_tags", "id_tags")
_ALWAYS_BYTES: Final = 5  # of a row: its number and its state
_IN_FILES: Final = ("sketches", "features", *TAGS)


class HeldColumns:
    """The columns of one index.

    Sketches and features, which what the print lets pass is compared by, and tags, of which tables
    are laid out anew, lie in files where there is a `folder`, and with `beside` all columns do.
    """

    def __init__(
        self, limbs: int, values: int, folder: Path | None, beside: FilesKept | None = None
    ) -> None:
        self._beside = beside
        kept_in = None if beside is None else beside.folder
        kinds: dict[str, tuple[Any, ...]] = {
            "prints": (np.uint64, limbs),
            "scopes": (np.uint64,),
            "features": (np.uint32,),
            "numbers": (np.uint32,),
            "states": (np.uint8,),
            "sketches": (np.uint8, values),
            **dict.fromkeys(TAGS, (np.uint32,)),
        }
        in_file = kept_in or folder
        self._columns = {
            name: Column(
                *kind,
                path=kept_in and kept_in / name,
                folder=in_file if name in _IN_FILES else None,
            )
            for name, kind in kinds.items()
        }
        self._print_bytes = 8 * limbs
        self.reserve(_ROWS_MIN)

    @property
    def room(self) -> int:
        """For how many rows there is room."""
        return self._columns["states"].count

    def read(self, name: str, first: int, end: int) -> NDArray[Any]:
        """Return the rows from `first` to `end` of a column; none of scopes while all are the
        common one.
        """
        return self._columns[name].read(first, end)

    def reserve(self, count: int) -> None:
        """Make room for `count` rows, in place: the system moves pages, nothing is copied or held
        twice.
        """
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
        """Leave only the `kept` ones of the first rows. What is said of files is withdrawn before
        they change.
        """
        if self._beside is not None:
            self._beside.begin()
        for column in self._columns.values():
            if column.count:
                column.keep(kept)
        self.reserve(
            max(_ROWS_MIN, int(np.count_nonzero(kept)))
        )  # some room always, as where all are gone

    def wipe(self, rows: int, numbers: NDArray[np.int64]) -> None:
        """Leave nothing of those of the first rows that have these numbers, which ascend, but
        numbers and states.
        """
        there = self.rows.numbers[:rows]
        wanted = numbers[(numbers >= 0) & (numbers <= (there[-1] if rows else -1))].astype(
            np.uint32
        )
        places = np.searchsorted(there, wanted)
        places = places[there[places] == wanted]
        for name, column in self._columns.items():
            if name not in ("numbers", "states") and column.count:
                nothing = np.zeros((1, *column.array.shape[1:]), column.array.dtype)
                for row in places.tolist():
                    column.write(row, nothing)
        if self._beside is not None:
            self._beside.wiped(places)

    def renumber(self, rows: int) -> int:
        """Let the numbers of the first rows count from the first of them; return what that was."""
        numbers = self._columns["numbers"]
        first = int(numbers.array[0])
        numbers.array[:rows] -= numbers.array[0]
        numbers.write(0, numbers.array[:rows])
        return first

    # -- in files

    @property
    def rows_in_files(self) -> int:
        """How many rows lie in files, if all of them are what they must be."""
        wanted = np.zeros((0, 0)) if self._beside is None else self._beside.digests
        return len(wanted) * GROUP_ROWS if wanted.shape[1] == len(self._columns) else 0

    def take(self, rows: int, each: Each) -> tuple[int, int]:
        """Take over the first rows from files, up to the first 4,096 that are not what they must
        be.

        Returns how many rows that are, and the entry from which their numbers count; nothing is
        left behind them.

        Raises:
            StoreError: the volume failed, or a file cannot be cut.
        """
        if self._beside is None:
            return 0, 0
        groups = rows // GROUP_ROWS
        good = self._good_groups(self._beside.digests, groups, each) if groups else 0
        self._beside.take_rows(groups, good)
        rows = good * GROUP_ROWS
        self.cut(rows)
        self._beside.mark_removed(self.rows.numbers[:rows], self.rows.states[:rows])
        return rows, self._beside.base or 0

    def _good_groups(self, wanted: NDArray[np.uint64], groups: int, each: Each) -> int:
        columns = list(self._columns.values())
        if wanted[:, list(self._columns).index("scopes")].any():
            self._columns["scopes"].count = 1  # so that there is room for them too
        self.reserve(max(_ROWS_MIN, groups * GROUP_ROWS))
        steps = [max(1, _PART_BYTES // max(1, column.row_bytes * GROUP_ROWS)) for column in columns]
        parts = [
            (at, slice(first, first + step))
            for at, step in enumerate(steps)
            for first in range(0, groups, step)
        ]
        good = np.full(len(parts), groups)

        def work(number: int) -> None:
            at, part = parts[number]
            first, there = part.start, wanted[:groups, at][part].tolist()
            if any(there):  # else there were no scopes yet
                found = self._taken(columns[at], first, first + len(there))
                bad = (
                    group
                    for group, (one, own) in enumerate(zip(there, found, strict=True), first)
                    if one not in (0, own)
                )
                good[number] = next(bad, groups)

        each(work, range(len(parts)))
        return int(good.min())

    def as_kept(self, rows: int, base: int) -> RowsAsKept:
        """Return the first rows, whose numbers count from `base`, as far as they are in files."""
        return RowsAsKept(base, self.rows.numbers[:rows], self.rows.states[:rows], self._digests)

    def cut(self, rows: int) -> None:
        """Leave the first rows of the files, and nothing behind them."""
        for column in self._columns.values():
            column.cut(rows)

    def _digests(self, group: int) -> NDArray[np.uint64]:
        """Return the digest of each column's part of 4,096 rows, as it lies in its file; 0 while
        there are no scopes.
        """
        first, end = group * GROUP_ROWS, (group + 1) * GROUP_ROWS
        columns = self._columns.values()
        return np.array(
            [
                self._digest(one.stored(first, end)) if one.count and one.row_bytes else 0
                for one in columns
            ],
            np.uint64,
        )

    def _taken(
        self, column: Column, first: int, end: int, at_once: int = _BYTES_AT_ONCE
    ) -> Iterator[int | None]:
        """Yield the digests of a column's groups, which are held from now on where rows are held;
        None if one is unreadable.
        """
        step = max(1, at_once // (column.row_bytes * GROUP_ROWS))
        for at in range(first, end, step):
            stop = min(end, at + step)
            try:
                rows = column.stored(at * GROUP_ROWS, stop * GROUP_ROWS, take=True)
                yield from map(self._digest, np.split(rows, stop - at))
            except StoreError:  # of one of them
                yield from [None] if stop - at == 1 else self._taken(column, at, stop, 0)

    @staticmethod
    def _digest(rows: NDArray[Any]) -> int:
        return digest_of(rows.reshape(-1).view(np.uint8)) or 1

    def to_files(self, folder: Path) -> None:
        """Move prints to a file too, which are read by single rows."""
        self._columns["prints"].to_file(folder)
        self._take()

    @property
    def bytes_used(self) -> int:
        """Bytes of memory that the columns hold."""
        return sum(column.array.nbytes for column in self._columns.values())

    @property
    def bytes_in_file(self) -> int:
        """Bytes of those that lie in files."""
        return sum(column.bytes_in_file for column in self._columns.values())

    def bytes_for(
        self, tables: int, rows: int, full: int, *, in_files: bool, active_share: float
    ) -> int:
        """Return how many bytes of memory rows need while such a share of them is open.

        `full` of them are in the plan's `tables`; `in_files`: what is read by single rows lies
        there.
        """
        scopes = 8 * rows if self._columns["scopes"].count else 0
        row_bytes = _ALWAYS_BYTES if in_files else _ALWAYS_BYTES + self._print_bytes
        return (
            scopes
            + (rows + rows // GROWN) * row_bytes
            + finder_bytes(len(TAGS), rows, active_share, in_file=in_files)
            + finder_bytes(tables, full, active_share, in_file=in_files)
        )

    def _take(self) -> None:
        """Have the columns as the compiled functions want them, as `rows`."""
        columns = self._columns
        files = np.array(
            [columns[name].number for name in ("prints", "features", "sketches")], np.int64
        )
        arrays = {name: columns[name].array for name in HeldRows._fields if name in columns}
        self.rows = HeldRows(**arrays, files=files, taken=no_row_taken())
