"""The interface of table files for rows and tables; `storage.table_files` implements it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

GROUP_ROWS: Final = 4096
"""Number of rows of a column that have one digest."""
ROW_BYTES: Final = 4
"""Bytes of a row number; the file of a table begins with these."""

Pieces = Callable[[], Iterator[NDArray[np.uint8]]]
"""Returns the bytes of a table piece by piece, to be read or to be filled."""


class Sizes(NamedTuple):
    """The number of rows that a table covers, and of its entries and buckets."""

    rows: int
    entries: int
    buckets: int


class TableFile(NamedTuple):
    """The volume's record of a table's file: plan of its keys, generation, sizes and digest."""

    plan: int
    generation: int
    rows: int
    entries: int
    buckets: int
    digest: int


class RowsInFiles(NamedTuple):
    """The rows of the column files.

    `base` is the entry from which `numbers` (n,) count; `states` (n,). `digests(group)` returns the
    digest of each column's part of a group of 4,096 rows.
    """

    base: int
    numbers: NDArray[np.uint32]
    states: NDArray[np.uint8]
    digests: Callable[[int], NDArray[np.uint64]]


class TableFilesProtocol(Protocol):
    """The table files of one index in one folder.

    Tables are numbered from 0; those that find rows by digest, position and id come first.
    `digests` (groups, columns) uint64 are the digests that the columns of each 4,096 rows must
    have; `base` is the entry from which row numbers count.
    """

    folder: Path
    digests: NDArray[np.uint64]
    base: int | None

    def accept_rows(self, groups: int, valid_groups: int) -> None:
        """Use only the first `valid_groups` of `groups` groups of rows: their digests are right."""
        ...

    def mark_removed(self, numbers: NDArray[np.uint32], states: NDArray[np.uint8]) -> None:
        """Set `states` (n,) to REMOVED for those rows with `numbers` (n,) that the volume lists as
        removed.
        """
        ...

    def withdraw_names(self) -> None:
        """Stop using all files at once, before rows are laid out again."""
        ...

    def note_removed(self, entries: NDArray[np.int64]) -> None:
        """Record that entries were removed, for the next write."""
        ...

    def note_wiped(self, rows: NDArray[np.int64]) -> None:
        """Record that rows were wiped, for the next write."""
        ...

    def drop_tables(self, first: int) -> None:
        """Stop using the files of all tables from number `first` on: another plan rebuilds them."""
        ...

    def valid_tables(self, plan: str) -> Mapping[int, TableFile]:
        """Return the valid files of the tables whose keys are derived from `plan`, by number."""
        ...

    def read_table(self, number: int, pieces: Pieces) -> FileIO | None:
        """Fill a table from its file.

        Returns the open file, or None if the table must be rebuilt. Any thread may call it.
        """
        ...

    def stop_writing(self, numbers: Iterable[int]) -> None:
        """Stop writing these tables to files, because they are about to change."""
        ...

    def begin_file(self, number: int) -> Path:
        """Return the path for a new file of a table's row numbers; the next `write_table` completes
        it.
        """
        ...

    def write_table(self, number: int, plan: str, sizes: Sizes, pieces: Pieces) -> None:
        """Write a table in the background, if it has grown; it does not change until
        `stop_writing`.
        """
        ...


def digest_bytes(piece: NDArray[np.uint8]) -> int:
    """Return the digest of some bytes."""
    return xxhash.xxh3_64_intdigest(piece.data)
