"""What a store of the index must do, and what is written to it in one step.

`store.RocksStore` and `memory.MemoryStore` pass the same tests.

Invariants: a `write` is seen whole or not at all, also after the process was killed; a scan goes in the order of the
keys' bytes; a store that was opened to be read only sees one moment of the volume and changes nothing of it; after a
failed write every call but `close` fails until the store is opened again, because nobody can say what the volume holds;
each failure is a `StoreError`, never an empty answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """Keys and values as bytes, on one volume. All methods raise `StoreError` when the volume fails."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, None where there is none."""
        ...

    def write(
        self, puts: Mapping[bytes, bytes], deletes: Collection[bytes], ranges: Collection[tuple[bytes, bytes]] = ()
    ) -> None:
        """Put and delete all, in one atomic step that outlives this process; no key is in both `puts` and `deletes`.

        Of `ranges`, each (first key, key after the last), everything that the volume held goes; a put within them stays.
        """
        ...

    def scan(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Return (key, value) of every key with the prefix, in the order of the keys; nothing may be written meanwhile.

        With `first` it begins at that key, or at the next one that there is.
        """
        ...

    def checkpoint(self, directory: Path) -> None:
        """Make a copy of the volume as it is now in a directory that must not exist yet; writes may go on meanwhile."""
        ...

    def size_bytes(self) -> int:
        """Return how many bytes the volume takes."""
        ...

    def close(self) -> None:
        """Release the volume; closing twice does nothing."""
        ...


class Writes:
    """The writes of one step, gathered as values; the coordinator carries them out in one atomic write.

    Invariant: a key is put or deleted, never both; the last word on a key counts. A range goes before any put takes place.
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
