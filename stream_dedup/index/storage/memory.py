"""A store in memory: for tests, and for commands that judge a file and store nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from stream_dedup.domain.errors import StoreError


class MemoryStore:
    """A `contract.Store` that lasts as long as `volume`; pass the same dict to open it again."""

    def __init__(self, volume: dict[bytes, bytes] | None = None) -> None:
        self._volume = {} if volume is None else volume
        self._closed = False

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `contract.Store`."""
        self._check()
        return [self._volume.get(key) for key in keys]

    def write(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes],
        ranges: Collection[tuple[bytes, bytes]] = (),
    ) -> None:
        """See `contract.Store`."""
        self._check()
        for first, end in ranges:
            for key in [key for key in self._volume if first <= key < end]:
                del self._volume[key]
        self._volume.update(puts)
        for key in deletes:
            self._volume.pop(key, None)

    def scan(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See `contract.Store`."""
        self._check()
        for key in sorted(key for key in self._volume if key.startswith(prefix) and key >= first):
            yield key, self._volume[key]

    def checkpoint(self, directory: Path) -> None:
        """Raise StoreError: this store is not on a disk."""
        raise StoreError(f"A store in memory cannot be copied to {directory}.")

    def size_bytes(self) -> int:
        """See `contract.Store`."""
        self._check()
        return sum(len(key) + len(value) for key, value in self._volume.items())

    def close(self) -> None:
        """See `contract.Store`."""
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise StoreError("The store in memory is closed; open a new one.")
