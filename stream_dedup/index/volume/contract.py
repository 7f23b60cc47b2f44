"""What a store of the index must do, what is written to it in one step, and what waits in it until
it was delivered.

`store.RocksStore` and `memory.MemoryStore` pass the same tests.

Invariants: a `write` is seen whole or not at all, also after the process was killed; a scan goes in
the order of the keys' bytes; a store that was opened to be read only sees one moment of the volume
and changes nothing of it; after a failed write every call but `close` fails until the store is
opened again, because nobody can say what the volume holds; each failure is a `StoreError`, never an
empty answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """Keys and values as bytes, on one volume. All methods raise `StoreError` when the volume
    fails.
    """

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, None where there is none."""
        ...

    def write(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes],
        ranges: Collection[tuple[bytes, bytes]] = (),
    ) -> None:
        """Put and delete all, in one atomic step that outlives this process; no key is in both
        `puts` and `deletes`.

        Of `ranges`, each (first key, key after the last), everything that the volume held goes; a
        put within them stays.
        """
        ...

    def scan(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Return (key, value) of every key with the prefix, in the order of the keys; nothing may
        be written meanwhile.

        With `first` it begins at that key, or at the next one that there is.
        """
        ...

    def checkpoint(self, directory: Path) -> None:
        """Make a copy of the volume as it is now in a directory that must not exist yet; writes may
        go on meanwhile.
        """
        ...

    def size_bytes(self) -> int:
        """Return how many bytes the volume takes."""
        ...

    def close(self) -> None:
        """Release the volume; closing twice does nothing."""
        ...


class Writes:
    """The writes of one step, gathered as values; the coordinator carries them out in one atomic
    write.

    Invariant: a key is put or deleted, never both; the last word on a key counts. A range goes
    before any put takes place.
    """

    __slots__ = ("deletes", "puts", "ranges")

    def __init__(self) -> None:
        self.puts: dict[bytes, bytes] = {}
        self.deletes: set[bytes] = set()
        self.ranges: list[tuple[bytes, bytes]] = []

    def __bool__(self) -> bool:
        return bool(self.puts or self.deletes or self.ranges)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key's value."""
        self.deletes.discard(key)
        self.puts[key] = value

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self.puts.pop(key, None)
        self.deletes.add(key)

    def delete_range(self, first: bytes, end: bytes) -> None:
        """Remove every key from `first` up to, not including, `end`."""
        for key in [key for key in self.puts if first <= key < end]:
            del self.puts[key]
        self.ranges.append((first, end))


class Undelivered:
    """Answers on their way to `verdicts`, kept until they were delivered.

    Each lies under the log offset that it is of, in the log's order; `key_of` gives its key.
    """

    def __init__(
        self, store: Store, key_of: Callable[[int], bytes], log_offsets: list[int]
    ) -> None:
        """`log_offsets`, ascending: of what the volume holds."""
        self._store = store
        self._key_of = key_of
        self._log_offsets = log_offsets

    def __len__(self) -> int:
        return len(self._log_offsets)

    def keep(self, writes: Writes, log_offset: int, raw: bytes) -> None:
        """Keep a record from the next write on; its log offset lies above all others."""
        writes.put(self._key_of(log_offset), raw)
        self._log_offsets.append(log_offset)

    def since(self, log_offset: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (log offset, record) from a log offset on, as far as they are written."""
        for one in self._log_offsets[bisect_left(self._log_offsets, log_offset) :]:
            (raw,) = self._store.get_many([self._key_of(one)])
            if raw is not None:  # its delivery may have been confirmed meanwhile
                yield one, raw

    def delivered(self, writes: Writes, below: int) -> None:
        """Take note that all below a log offset were delivered; the next write makes it durable."""
        done = bisect_left(self._log_offsets, below)
        for log_offset in self._log_offsets[:done]:
            writes.delete(self._key_of(log_offset))
        del self._log_offsets[:done]
