"""A memory budget: which tables stay in memory, and files for those that do not, and for sketches.

Beyond what rows, slots and open parts take, a budget holds as many sealed tables as fit (of tables of whole keys the tags, and
either all row numbers or none); the others lie in files without a name, which go with the process, and are mapped: a search
touches a page of them for each bucket it visits (of whole keys, for each row number it reads), and what it touched
is given back after every `share` of the budget. Their answers are the same, only slower: the price is in
docs/explanation/index-layout.md.

Invariants: what cannot be held even so is refused with a sentence before memory is taken; nothing here is needed to open
a volume again.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.errors import ConfigurationError, StoreError

_OTHER_BYTES: Final = 320 << 20  # Python, numba and what RocksDB keeps: 200 to 300 MB were measured
_TOUCHED_BYTES: Final = 64 << 10  # Linux maps up to 16 pages around one that is touched (fault_around_bytes)
_SHARE: Final = 20
RELEASE_EVERY: Final = 1 << 12
_ROWS_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Budget:
    """At most so many bytes of resident memory for the whole process, 0 for no bound; `folder` takes the files."""

    memory_bytes: int
    folder: Path

    def tables_resident(self, fixed_bytes: int, table_bytes: int, tables: int) -> int:
        """Return how many sealed tables of `table_bytes` may stay in memory beside the `fixed_bytes` of everything else.

        Raises:
            ConfigurationError: not even the rest fits.
        """
        if not self.memory_bytes:
            return tables
        # One table is being made while the others stand; rows and open parts grow by an eighth until the next time.
        room = self.memory_bytes - self.memory_bytes // _SHARE - _OTHER_BYTES - fixed_bytes - fixed_bytes // 8 - table_bytes
        if room < 0:
            raise ConfigurationError(
                f"The index's live entries need at least {(self.memory_bytes - room) >> 20} MiB of memory, and index_memory "
                f"allows {self.memory_bytes >> 20} MiB; raise it, or split the index into slices."
            )
        return min(tables, room // max(1, table_bytes))

    def documents_at_once(self, probes: int, bucket_bytes: int) -> int:
        """Return how many documents may search a mapped table before its pages are given back."""
        return max(1, self.memory_bytes // _SHARE // max(1, probes * (bucket_bytes + _TOUCHED_BYTES)))


class Mapped:
    """Arrays in a file without a name; `arrays` are theirs, and their pages come and go with `release`."""

    def __init__(self, folder: Path, arrays: list[NDArray[Any]]) -> None:
        self.arrays: list[NDArray[Any]] = []
        self._maps: list[mmap.mmap] = []
        for array in arrays:
            with tempfile.TemporaryFile(dir=folder) as file:
                array.tofile(file)
                file.truncate(max(1, array.nbytes))
                # Private and writable only so that the compiled functions see the same kind of array; nothing writes.
                mapped = mmap.mmap(file.fileno(), max(1, array.nbytes), mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
            mapped.madvise(mmap.MADV_RANDOM)
            self._maps.append(mapped)
            self.arrays.append(np.frombuffer(mapped, array.dtype, len(array)))

    def release(self) -> None:
        """Give all resident pages back."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)


class FileRows:
    """Rows `array` (C, `values`) of one kind of number, in a file without a name if there is a `folder` for it.

    For what is read seldom, as sketches are, because only what the print lets pass is compared by them. The file is written by
    calls, or through the map by which it is read, and the system holds of it what it has room for.
    """

    def __init__(self, values: int, folder: Path | None, kind: type[np.uint8 | np.uint32] = np.uint8) -> None:
        self._values, self._kind = values, kind
        self._row_bytes = values * np.dtype(kind).itemsize
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0) if folder is not None and values else None  # noqa: SIM115
        self._map: mmap.mmap | None = None
        self._touched = 0
        self.array: NDArray[Any] = np.zeros((0, values), kind)

    @property
    def bytes_mapped(self) -> int:
        """Bytes that lie in the file."""
        return 0 if self._file is None else self.array.nbytes

    def reserve(self, count: int) -> None:
        """Make room for `count` rows; `array` is another one afterwards.

        Raises:
            StoreError: the file cannot grow.
        """
        if self._file is None:
            self.array.resize((count, self._values), refcheck=False)
            return
        try:
            self._file.truncate(max(1, count * self._row_bytes))
            self._map = mmap.mmap(self._file.fileno(), 0)
        except OSError as error:
            raise _no_room(error) from error
        self.array = np.frombuffer(self._map, self._kind, count * self._values).reshape(count, self._values)

    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Set the rows from `first` on; there is room for them.

        Raises:
            StoreError: the file cannot grow.
        """
        if self._file is None:
            self.array[first : first + len(rows)] = rows
            return
        left = memoryview(np.ascontiguousarray(rows).tobytes())
        at = first * self._row_bytes
        try:
            while left:
                done = os.pwrite(self._file.fileno(), left, at)
                left, at = left[done:], at + done
        except OSError as error:
            raise _no_room(error) from error

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Leave only the `kept` ones of the first rows, one after another."""
        to = 0
        for first in range(0, len(kept), _ROWS_AT_ONCE):
            some = kept[first : first + _ROWS_AT_ONCE]
            part = self.array[first : first + len(some)][some]
            self.write(to, part)
            to += len(part)
        self.reserve(to)

    def release(self, documents: int) -> None:
        """Give resident pages back when `documents` judged since, of which each touches a row or two, may have touched many."""
        self._touched += documents
        if self._map is not None and self._touched >= RELEASE_EVERY:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched = 0


def _no_room(error: OSError) -> StoreError:
    return StoreError(
        f"Could not write sketches or tables beside the index volume ({error.strerror}); make room on that disk, and start the "
        "index again."
    )
