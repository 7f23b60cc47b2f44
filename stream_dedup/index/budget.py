"""A memory budget: which tables stay in memory, and files for those that do not.

Beyond what rows, slots and open parts take, a budget holds as many sealed tables as fit; the others lie in files without
a name, which go with the process, and are mapped: a search touches a page of them for each bucket it visits, and what it
touched is given back after every `share` of the budget. Their answers are the same, only slower: the price is in
docs/explanation/index-layout.md.

Invariants: what cannot be held even so is refused with a sentence before memory is taken; nothing here is needed to open
a volume again.
"""

from __future__ import annotations

import mmap
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.errors import ConfigurationError

_OTHER_BYTES: Final = 320 << 20  # Python, numba and what RocksDB keeps: 200 to 300 MB were measured
_TOUCHED_BYTES: Final = 64 << 10  # Linux maps up to 16 pages around one that is touched (fault_around_bytes)
_SHARE: Final = 20


@dataclass(frozen=True, slots=True)
class Budget:
    """At most so many bytes of resident memory for the whole process; `folder` takes the files."""

    memory_bytes: int
    folder: Path

    def tables_resident(self, fixed_bytes: int, table_bytes: int, tables: int) -> int:
        """Return how many sealed tables of `table_bytes` may stay in memory beside the `fixed_bytes` of everything else.

        Raises:
            ConfigurationError: not even the rest fits.
        """
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
                file.flush()
                # Private and writable only so that the compiled functions see the same kind of array; nothing writes.
                mapped = mmap.mmap(file.fileno(), max(1, array.nbytes), mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
            mapped.madvise(mmap.MADV_RANDOM)
            self._maps.append(mapped)
            self.arrays.append(np.frombuffer(mapped, array.dtype, len(array)))

    def release(self) -> None:
        """Give all resident pages back."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)
