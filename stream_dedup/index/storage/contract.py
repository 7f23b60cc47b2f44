"""The interface of the index's store, the writes of one call of `apply`, and undelivered answers.

`store.RocksStore` and `memory.MemoryStore` pass the same tests.

Invariants: a `write` is visible as a whole or not at all, also after the process was killed; a scan
returns keys in the order of their bytes; a read-only store sees a snapshot of the volume and
changes nothing in it; after a failed write every call but `close` fails until the store is opened
again, because the content of the volume is unknown; a failure raises a `StoreError`, and never looks
like a missing value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """Keys and values as bytes, on one volume. All methods raise `StoreError` if the volume
    fails.
    """

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, None for a missing one."""
        ...

    def write(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes],
        ranges: Collection[tuple[bytes, bytes]] = (),
    ) -> None:
        """Put and delete all keys in one atomic, durable step; no key is in both `puts` and
        `deletes`.

        All keys of `ranges`, each (first key, key after the last), are deleted before the puts.
        """
        ...

    def scan(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of every key with the prefix, in key order; no write may happen
        meanwhile.

        With `first` it begins at that key, or at the next one.
        """
        ...

    def checkpoint(self, directory: Path) -> None:
        """Copy the volume as it is now to a new directory; writes may continue meanwhile."""
        ...

    def size_bytes(self) -> int:
        """Return the size of the volume in bytes."""
        ...

    def close(self) -> None:
        """Release the volume; closing twice does nothing."""
        ...


class Writes:
    """Collects writes, which `LogIndex` performs as one atomic write.

    Invariant: a key is put or deleted, never both; the last call for a key counts. A range is
    deleted before any put.
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
    """The stored answers whose delivery to `verdicts` is not confirmed, in the log's order.

    `key_of` returns the key of the answer to a log offset.
    """

    def __init__(
        self, store: Store, key_of: Callable[[int], bytes], log_offsets: list[int]
    ) -> None:
        """`log_offsets`, ascending, are those of the stored answers."""
        self._store = store
        self._key_of = key_of
        self._log_offsets = log_offsets

    def __len__(self) -> int:
        return len(self._log_offsets)

    def add(self, writes: Writes, log_offset: int, raw: bytes) -> None:
        """Add an answer, to be stored by the next write; its log offset is the highest so far."""
        writes.put(self._key_of(log_offset), raw)
        self._log_offsets.append(log_offset)

    def since(self, log_offset: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (log offset, answer) of the stored answers at or after a log offset."""
        for offset in self._log_offsets[bisect_left(self._log_offsets, log_offset) :]:
            (raw,) = self._store.get_many([self._key_of(offset)])
            if raw is not None:  # otherwise its delivery was confirmed meanwhile
                yield offset, raw

    def delete_below(self, writes: Writes, below: int) -> None:
        """Delete the delivered answers, below a log offset; the next write makes this durable."""
        count = bisect_left(self._log_offsets, below)
        for log_offset in self._log_offsets[:count]:
            writes.delete(self._key_of(log_offset))
        del self._log_offsets[:count]
