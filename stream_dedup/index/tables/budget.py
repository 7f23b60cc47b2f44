"""The memory budget of an index, and columns in memory or in files.

If there is a folder for files, sketches, features and tags are in files. If the budget is too small
for the rest, row numbers and prints move to files too: these are read row by row. Each table keeps
the start of each bucket and 12 bits of each entry's key in memory. With the plan `bands`, one row
is then read for every four documents without similar ones, on average; a plan that compares all
candidates reads each row that shares a block. Answers are the same, only slower
(docs/explanation/index-layout.md has figures).

Invariants: files created because of the budget have no name, and disappear with the process. If
the index does not fit even then, an error is raised before memory is allocated. Nothing here is
needed to open a volume again.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
import tempfile
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import ConfigurationError, StoreError, VolumeError
from stream_dedup.domain.paths import open_or_replace

# Python, compiled code, RocksDB and its caches: 430 MiB measured with 3,600,000 entries, plus peaks.
_FIXED_BYTES: Final = 480 << 20
_FREE_SHARE: Final = 20
_MAP_NORESERVE: Final = 0x4000 if sys.platform == "linux" else 0  # not a constant of Python's mmap
_ROWS_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `memory_bytes` of resident memory for the whole process, 0 for no limit.

    Of these, `other_process_bytes` are for another process, the child that takes snapshots. `folder`
    is for the files.
    """

    memory_bytes: int
    folder: Path
    other_process_bytes: int = 0

    def free_bytes(self, needed_bytes: int) -> int:
        """Return how many bytes remain besides `needed_bytes`; negative if these do not fit.

        A twentieth stays free for new tables, which are built while the old ones are still used.
        """
        return (
            self.memory_bytes
            - self.memory_bytes // _FREE_SHARE
            - _FIXED_BYTES
            - self.other_process_bytes
            - needed_bytes
        )

    @staticmethod
    def least_for(needed_bytes: int) -> int:
        """Return the smallest budget into which `needed_bytes` fit."""
        return (needed_bytes + _FIXED_BYTES) * _FREE_SHARE // (_FREE_SHARE - 1) + 1

    def require(self, needed_bytes: int) -> None:
        """Check that `needed_bytes` fit.

        Raises:
            ConfigurationError: they do not.
        """
        missing = -self.free_bytes(needed_bytes)
        if missing > 0:
            raise ConfigurationError(
                f"The index's live entries need at least {(self.memory_bytes + missing) >> 20} "
                f"MiB of memory, but STREAM_DEDUP_MEMORY allows only {self.memory_bytes >> 20} "
                "MiB; raise it."
            )


class PlanMemory(NamedTuple):
    """The number of live entries, the memory of the process that they need with a plan, and the memory
    allowed, 0 for no limit.
    """

    entries: int
    needed_bytes: int
    allowed_bytes: int

    @property
    def is_enough(self) -> bool:
        """Whether the plan fits into the memory."""
        return not self.allowed_bytes or self.needed_bytes <= self.allowed_bytes


class Column:
    """A column of rows: in memory as `array` (n, ..), in a file with that `descriptor`, or both.

    If rows are only in a file, `array` has no rows. The file is read and written by system calls,
    which use the page cache: a memory map would cost a page fault for each row, and would count as
    memory of the process.
    """

    def __init__(
        self,
        dtype: type[np.generic],
        *shape: int,
        folder: Path | None = None,
        path: Path | None = None,
        file: FileIO | None = None,
    ) -> None:
        """Create a column whose rows are numbers of `dtype`, or arrays of them of `shape`.

        With `path` the rows are in this file and in memory; with `folder` too, only in the file. With
        `folder` alone they are in a file there without a name. An open `file` contains the rows.

        Raises:
            VolumeError: `path` is not a regular file.
            StoreError: the file cannot be opened.
        """
        self.array: NDArray[Any] = np.zeros((0, *shape), dtype)
        self.count = 0
        self.row_bytes = int(np.prod(shape, dtype=np.int64)) * self.array.itemsize
        self._file: Any = file
        self._is_in_memory = file is None
        if path is not None and self.row_bytes:
            try:
                self._file = os.fdopen(open_or_replace(path), "r+b", buffering=0)
            except FileExistsError as error:
                raise VolumeError(
                    f"The index needs the file {path}, but a folder, a pipe or a device has that "
                    f"name. Delete it or the folder {path.parent}; the index rebuilds its files "
                    "from its volume."
                ) from error
            except OSError as error:
                raise _write_error(error) from error
        if folder is not None:
            self.move_to_file(folder)

    @property
    def descriptor(self) -> int:
        """The descriptor of the open file; -1 if the rows are in memory."""
        return -1 if self._is_in_memory else int(self._file.fileno())

    @property
    def bytes_in_file(self) -> int:
        """Bytes of the rows if they are only in a file, otherwise 0."""
        return 0 if self._is_in_memory else self.count * self.row_bytes

    def move_to_file(self, folder: Path) -> None:
        """Free the memory of the rows; they stay in the column's file, or move to one without a name.

        Raises:
            StoreError: the disk is full.
        """
        if self._is_in_memory and self.row_bytes:
            rows, self.array, self._is_in_memory = self.array, self.array[:0].copy(), False
            if self._file is not None:
                return
            try:
                self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            except OSError as error:
                raise _write_error(error) from error
            self.write(0, rows)

    def reserve(self, count: int) -> None:
        """Make room for `count` rows, or drop those after them. Memory grows in place, without a
        copy.
        """
        self.count = count
        if self._is_in_memory:
            self.array.resize((count, *self.array.shape[1:]), refcheck=False)

    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Set the rows from `first` on; there is room for them.

        Raises:
            StoreError: the file cannot grow.
        """
        if self._is_in_memory:
            self.array[first : first + len(rows)] = rows
        if self._file is None:
            return
        remaining = np.ascontiguousarray(rows, self.array.dtype).reshape(-1).view(np.uint8).data
        position = first * self.row_bytes
        try:
            while remaining:
                count = os.pwrite(self._file.fileno(), remaining, position)
                remaining, position = remaining[count:], position + count
        except OSError as error:
            raise _write_error(error) from error

    def read(self, first: int, end: int) -> NDArray[Any]:
        """Return the rows from `first` to `end`; a view if they are in memory.

        Raises:
            StoreError: the file cannot be read.
        """
        return self.array[first:end] if self._is_in_memory else self.read_file(first, end)

    def read_file(self, first: int, end: int, *, in_memory: bool = False) -> NDArray[Any]:
        """Return the rows from `first` to `end` of the file.

        With `in_memory` they also become the column's rows in memory, if it has any.

        Raises:
            StoreError: the file cannot be read.
        """
        is_view = in_memory and self._is_in_memory
        rows = (
            self.array[first:end]
            if is_view
            else np.empty((max(0, end - first), *self.array.shape[1:]), self.array.dtype)
        )
        remaining, position = rows.reshape(-1).view(np.uint8).data, first * self.row_bytes
        try:
            while remaining:
                count = os.preadv(self._file.fileno(), [remaining], position)
                if not count:
                    raise read_error(None)
                remaining, position = remaining[count:], position + count
        except OSError as error:
            raise read_error(error.strerror) from error
        return rows

    def truncate(self, rows: int) -> None:
        """Cut the file after its first `rows` rows.

        Raises:
            StoreError: it cannot be cut.
        """
        if self._file is not None:
            try:
                self._file.truncate(rows * self.row_bytes)
            except OSError as error:
                raise _write_error(error) from error

    def keep_rows(self, is_kept: NDArray[np.bool_]) -> None:
        """Keep only the rows in the mask `is_kept` (n,), without gaps."""
        next_row = 0
        for first in range(0, len(is_kept), _ROWS_AT_ONCE):
            mask = is_kept[first : first + _ROWS_AT_ONCE]
            part = self.read(first, first + len(mask))[mask]
            self.write(next_row, part)
            next_row += len(part)
        self.reserve(next_row)


def allocate_lazily(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array of zeros that needs memory only for the pages that are written.

    A normal array may use huge pages, which are allocated as a whole, and the system may refuse a
    size for which it has no memory. Huge pages are disabled here, because few parts of the array are
    written.

    Raises:
        ConfigurationError: the system counts unused addresses as memory, and refuses so large an
        array.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
    try:
        mapped = mmap.mmap(-1, size, flags)
    except OSError as error:
        raise ConfigurationError(
            f"The system refused to reserve {size >> 20} MiB of virtual memory for the index's "
            f"tables ({error.strerror}); most of it is never used. Set the sysctl "
            "vm.overcommit_memory to 0 or 1, and remove the limit on virtual memory (ulimit -v)."
        ) from error
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a system without large pages
            mapped.madvise(mmap.MADV_NOHUGEPAGE)
    return np.ndarray(shape, dtype, mapped)


def read_error(problem: str | None) -> StoreError:
    """Return the error for a file of columns or tables that cannot be read."""
    return StoreError(
        f"The index could not read its table files ({problem or 'the file is too short'}). Check "
        "the disk, and start the index again."
    )


def _write_error(error: OSError) -> StoreError:
    return StoreError(
        f"The index could not write its table files ({error.strerror}). Free space on the disk, "
        "and start the index again."
    )
