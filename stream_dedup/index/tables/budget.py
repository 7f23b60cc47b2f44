"""A memory budget: which tables and columns stay in memory, and files for those that do not.

Sketches, features and tags lie in files wherever there is a folder for them. A budget that does not
hold everything moves all else that is read by single rows there too: row numbers and prints. What
tells a search where to look stays (12 bits of the key beside each row number, and where each bucket
begins), so a document that nothing resembles reads one row in four on average with `bands`, and
each row that shares a block where all are asked. Answers are the same, only slower: the price is in
docs/explanation/index-layout.md.

Invariants: the files have no name, and go with the process; what cannot be held even so is refused
with a sentence before memory is taken; nothing here is needed to open a volume again.
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

_OTHER_BYTES: Final = (
    480 << 20
)  # Python, compiled code, RocksDB and its caches: 430 MiB with 3,600,000 entries, and spikes
_SHARE: Final = 20
_MAP_NORESERVE: Final = 0x4000 if sys.platform == "linux" else 0  # Python's mmap does not name it
_ROWS_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `memory_bytes` of resident memory for the whole process, 0 for no bound; `folder`
    takes the files.

    Of them `beside_bytes` are for a process of ours beside it.
    """

    memory_bytes: int
    folder: Path
    beside_bytes: int = 0

    def room(self, bytes_needed: int) -> int:
        """Return how many bytes are left beside those that are needed, below zero if these do not
        fit.

        A part is kept free for what is made while the old one stands.
        """
        return (
            self.memory_bytes
            - self.memory_bytes // _SHARE
            - _OTHER_BYTES
            - self.beside_bytes
            - bytes_needed
        )

    @staticmethod
    def least_for(bytes_needed: int) -> int:
        """Return the least budget into which `bytes_needed` fit."""
        return (bytes_needed + _OTHER_BYTES) * _SHARE // (_SHARE - 1) + 1

    def demand(self, bytes_needed: int) -> None:
        """Make sure that `bytes_needed` fit.

        Raises:
            ConfigurationError: they do not.
        """
        missing = -self.room(bytes_needed)
        if missing > 0:
            raise ConfigurationError(
                f"The index's live entries need at least {(self.memory_bytes + missing) >> 20} MiB "
                "of memory, and STREAM_DEDUP_MEMORY "
                f"allows {self.memory_bytes >> 20} MiB; raise it."
            )


class PlanMemory(NamedTuple):
    """What the live `entries` need under a plan, and what there is, in bytes of the whole process;
    0 allowed is no bound.
    """

    entries: int
    needed_bytes: int
    allowed_bytes: int

    @property
    def is_enough(self) -> bool:
        """Whether the plan can be carried out here."""
        return not self.allowed_bytes or self.needed_bytes <= self.allowed_bytes


class Column:
    """Rows of one kind, of a fixed width, in memory as `array` (n, ..), or in a file of `number`,
    or in both.

    In a file alone, `array` has no rows. It is read and written by calls, of which the system keeps
    what it has room for: a map would cost a page fault for each row read, and count as the
    process's own memory.
    """

    def __init__(
        self,
        kind: type[np.generic],
        *tail: int,
        folder: Path | None = None,
        path: Path | None = None,
        file: FileIO | None = None,
    ) -> None:
        """Rows are numbers of `kind`, or arrays of them of the shape `tail`.

        With a `folder` they lie in a file there, without a name; with a `path` also, or only, in
        this one; with an open `file` they are what lies at its beginning.

        Raises:
            VolumeError: something that is no file has the name of `path`.
            StoreError: the file cannot be opened.
        """
        self.array: NDArray[Any] = np.zeros((0, *tail), kind)
        self.count = 0
        self.row_bytes = int(np.prod(tail, dtype=np.int64)) * self.array.itemsize
        self._file: Any = file
        self._is_held = file is None
        if path is not None and self.row_bytes:
            try:
                self._file = os.fdopen(open_or_replace(path), "r+b", buffering=0)
            except FileExistsError as error:
                raise VolumeError(
                    f"{path} is in the place of a file of the index, and is a folder, a pipe or a "
                    f"device. Delete it, or all of {path.parent}: what the index keeps there is "
                    "made anew from its volume."
                ) from error
            except OSError as error:
                raise _no_room(error) from error
        if folder is not None:
            self.to_file(folder)

    @property
    def number(self) -> int:
        """The number of the open file, -1 in memory."""
        return -1 if self._is_held else int(self._file.fileno())

    @property
    def bytes_in_file(self) -> int:
        """Bytes of the rows if they lie in a file alone."""
        return 0 if self._is_held else self.count * self.row_bytes

    def to_file(self, folder: Path) -> None:
        """Hold the rows in a file alone: their own, or one without a name.

        Raises:
            StoreError: there is no room.
        """
        if self._is_held and self.row_bytes:
            rows, self.array, self._is_held = self.array, self.array[:0].copy(), False
            if self._file is not None:
                return
            try:
                self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            except OSError as error:
                raise _no_room(error) from error
            self.write(0, rows)

    def reserve(self, count: int) -> None:
        """Make room for `count` rows, or leave out those from there on; in memory in place, so
        nothing is held twice.
        """
        self.count = count
        if self._is_held:
            self.array.resize((count, *self.array.shape[1:]), refcheck=False)

    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Set the rows from `first` on; there is room for them.

        Raises:
            StoreError: the file cannot grow.
        """
        if self._is_held:
            self.array[first : first + len(rows)] = rows
        if self._file is None:
            return
        left = np.ascontiguousarray(rows, self.array.dtype).reshape(-1).view(np.uint8).data
        at = first * self.row_bytes
        try:
            while left:
                done = os.pwrite(self._file.fileno(), left, at)
                left, at = left[done:], at + done
        except OSError as error:
            raise _no_room(error) from error

    def read(self, first: int, end: int) -> NDArray[Any]:
        """Return the rows from `first` to `end`: a view in memory.

        Raises:
            StoreError: the file cannot be read.
        """
        return self.array[first:end] if self._is_held else self.stored(first, end)

    def stored(self, first: int, end: int, *, take: bool = False) -> NDArray[Any]:
        """Return the rows as they lie in the file; with `take` they are held from now on, where
        rows are held.

        Raises:
            StoreError: the file cannot be read.
        """
        is_view = take and self._is_held
        rows = (
            self.array[first:end]
            if is_view
            else np.empty((max(0, end - first), *self.array.shape[1:]), self.array.dtype)
        )
        left, at = rows.reshape(-1).view(np.uint8).data, first * self.row_bytes
        try:
            while left:
                done = os.preadv(self._file.fileno(), [left], at)
                if not done:
                    raise unreadable(None)
                left, at = left[done:], at + done
        except OSError as error:
            raise unreadable(error.strerror) from error
        return rows

    def cut(self, rows: int) -> None:
        """Leave the first rows of the file, and nothing behind them.

        Raises:
            StoreError: it cannot be cut.
        """
        if self._file is not None:
            try:
                self._file.truncate(rows * self.row_bytes)
            except OSError as error:
                raise _no_room(error) from error

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Leave only the `kept` ones of the first rows, one after another."""
        to = 0
        for first in range(0, len(kept), _ROWS_AT_ONCE):
            some = kept[first : first + _ROWS_AT_ONCE]
            part = self.read(first, first + len(some))[some]
            self.write(to, part)
            to += len(part)
        self.reserve(to)


def unwritten(shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    """Return an array of zeros that takes memory page by page as it is written.

    For one of numpy's making the system is asked for large pages, which are taken whole, and may
    refuse what it could not hold. Some systems give large pages unasked. They are refused here, or
    room that is written to at many places would be taken.

    Raises:
        ConfigurationError: the system counts addresses that are not written to, and has too few.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    room = max(1, math.prod(shape) * np.dtype(kind).itemsize)
    try:
        mapped = mmap.mmap(-1, room, flags)
    except OSError as error:
        raise ConfigurationError(
            f"The system refused {room >> 20} MiB of addresses for tables of the index "
            f"({error.strerror}), nearly all of which "
            "take no memory. Set the sysctl vm.overcommit_memory to 0 or 1, and no limit on "
            "addresses (ulimit -v)."
        ) from error
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # by a system that has none
            mapped.madvise(mmap.MADV_NOHUGEPAGE)
    return np.ndarray(shape, kind, mapped)


def unreadable(why: str | None) -> StoreError:
    """Return the error for a file of columns or tables that cannot be read."""
    return StoreError(
        "Could not read sketches or tables back that lie beside the index volume "
        f"({why or 'the file is too short'}); look "
        "after that disk, and start the index again."
    )


def _no_room(error: OSError) -> StoreError:
    return StoreError(
        f"Could not write sketches or tables beside the index volume ({error.strerror}); make room "
        "on that disk, and start the "
        "index again."
    )
