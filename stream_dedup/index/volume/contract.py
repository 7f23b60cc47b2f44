"""What a store of the index must do; `store.RocksStore` and `memory.MemoryStore` pass the same tests.

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
