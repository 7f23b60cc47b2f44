"""What a store of the index must do; `store.RocksStore` and `memory.MemoryStore` pass the same tests.

Invariants: a `write` is seen whole or not at all, also after the process was killed; a scan goes in the order of the
keys' bytes; after a failed write every call but `close` fails until the store is opened again, because nobody can say
what the volume holds; whatever fails is a `StoreError`, never an empty answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol


class Store(Protocol):
    """Keys and values as bytes, on one volume. All methods raise `StoreError` when the volume fails."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, None where there is none."""
        ...

    def write(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes]) -> None:
        """Put and delete all, in one atomic step that outlives this process; no key is in both."""
        ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return (key, value) of every key with the prefix, in the order of the keys; nothing may be written meanwhile."""
        ...

    def size_bytes(self) -> int:
        """Return how many bytes the volume takes."""
        ...

    def close(self) -> None:
        """Release the volume; closing twice does nothing."""
        ...
