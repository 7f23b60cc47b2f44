"""What rows and tables ask of the files that keep them; `volume.beside` has these, and says which
of them count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

GROUP_ROWS: Final = 4096
"""The rows of a column that have one digest."""
ROW_BYTES: Final = 4
"""Of a row number, with which the file of a table begins."""

Pieces = Callable[[], Iterator[NDArray[np.uint8]]]
"""Returns the bytes of a table, piece by piece: to be read, or to be filled."""


class Sizes(NamedTuple):
    """How many rows a table covers, and how many entries and buckets it has."""

    rows: int
    entries: int
    buckets: int


class TableFile(NamedTuple):
    """What the volume says of a table's file: the plan that its keys follow from, its name, its
    sizes, what is in it.
    """

    plan: int
    generation: int
    rows: int
    entries: int
    buckets: int
    digest: int


class RowsAsKept(NamedTuple):
    """Rows as far as they are in files: the entry that `numbers` (n,) count from, `states` (n,),
    and the digests of files.

    `digests` returns that of each column's part of the 4,096 rows of a number.
    """

    base: int
    numbers: NDArray[np.uint32]
    states: NDArray[np.uint8]
    digests: Callable[[int], NDArray[np.uint64]]


class FilesKept(Protocol):
    """The files of one index, in a folder of their own; its tables are numbered from 0, those of
    rows by digest, id, .. first.

    `digests` (groups, columns) uint64 says what the columns of each 4,096 rows must be, `base` from
    which entry their numbers count.
    """

    folder: Path
    digests: NDArray[np.uint64]
    base: int | None

    def take_rows(self, groups: int, good: int) -> None:
        """Take note that of `groups` groups of rows only the `good` first ones are what they must
        be.
        """
        ...

    def mark_removed(self, numbers: NDArray[np.uint32], states: NDArray[np.uint8]) -> None:
        """Set `states` (n,) of the rows with `numbers` (n,) that were removed since they were laid
        out.
        """
        ...

    def begin(self) -> None:
        """Let nothing that is there count any more, at once: rows are about to be laid out anew."""
        ...

    def removed(self, entries: NDArray[np.int64]) -> None:
        """Take note of entries that were removed."""
        ...

    def wiped(self, rows: NDArray[np.int64]) -> None:
        """Take note of rows of which nothing is left."""
        ...

    def drop(self, first: int) -> None:
        """Let the files of all tables from number `first` on count no more: they are made anew for
        another plan.
        """
        ...

    def kept(self, plan: str) -> Mapping[int, TableFile]:
        """Return the files that count of the tables whose keys follow from `plan`."""
        ...

    def read(self, number: int, pieces: Pieces) -> FileIO | None:
        """Fill a table from its file, and return it, still open; None if it has to be made anew.
        From any thread.
        """
        ...

    def changing(self, numbers: Iterable[int]) -> None:
        """Let nobody write these tables any more: they are about to change."""
        ...

    def new_file(self, number: int) -> Path:
        """Return where a file for the row numbers of a table is to be made; the next `keep` of this
        table completes it.
        """
        ...

    def keep(self, number: int, plan: str, sizes: Sizes, pieces: Pieces) -> None:
        """Write a table beside what the caller does, if it has grown; it does not change before
        `changing` is called.
        """
        ...


def digest_of(piece: NDArray[np.uint8]) -> int:
    """Return the digest of some bytes."""
    return xxhash.xxh3_64_intdigest(piece.data)
