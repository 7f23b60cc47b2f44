"""The store contract on a dict: for tests, and for commands that judge a file and keep nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from stream_dedup.errors import StoreError


class MemoryStore:
    """A `contract.Store` that lives as long as `volume`; give the same dict again to open it again."""

    def __init__(self, volume: dict[bytes, bytes] | None = None) -> None:
        self._volume = {} if volume is None else volume
        self._closed = False

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `contract.Store`."""
        self._check()
        return [self._volume.get(key) for key in keys]

    def write(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes]) -> None:
        """See `contract.Store`."""
        self._check()
        self._volume.update(puts)
        for key in deletes:
            self._volume.pop(key, None)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `contract.Store`."""
        self._check()
        for key in sorted(key for key in self._volume if key.startswith(prefix)):
            yield key, self._volume[key]

    def size_bytes(self) -> int:
        """See `contract.Store`."""
        self._check()
        return sum(len(key) + len(value) for key, value in self._volume.items())

    def close(self) -> None:
        """See `contract.Store`."""
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise StoreError("The store in memory was closed; open it again before using it.")
