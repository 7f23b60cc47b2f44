"""A store in memory: for tests, and for commands that judge a file and store nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from stream_dedup.domain.errors import StoreError

_CHECKPOINTS: Final[dict[Path, dict[bytes, bytes]]] = {}


class MemoryStore:
    """A `contract.Store` that lasts as long as `volume`; pass the same dict to open it again.

    With `read_only` it contains the volume as it was at this moment. Checkpoints are in this
    process: `MemoryStore.restored`.
    """

    def __init__(
        self, volume: dict[bytes, bytes] | None = None, *, read_only: bool = False
    ) -> None:
        volume = {} if volume is None else volume
        self._volume = dict(volume) if read_only else volume
        self._read_only = read_only
        self._closed = False

    @classmethod
    def restored(cls, directory: Path) -> MemoryStore:
        """Return a store on the copy that `checkpoint` made.

        Raises:
            StoreError: there is none.
        """
        if directory not in _CHECKPOINTS:
            raise StoreError(
                f"There is no checkpoint {directory} in this process; make one with checkpoint()."
            )
        return cls(dict(_CHECKPOINTS[directory]))

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
        if self._read_only:
            raise StoreError("The store in memory was opened to be read only; open it for writing.")
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
        """See `contract.Store`."""
        self._check()
        if directory in _CHECKPOINTS:
            raise StoreError(f"There is a checkpoint {directory} already; name a new directory.")
        _CHECKPOINTS[directory] = dict(self._volume)

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
