"""Records on their way to a topic, kept in the volume until they were delivered: answers, and decisions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from stream_dedup.index.volume.contract import Store, Writes


class Undelivered:
    """Those of one topic, each under the log offset that it is of, in the log's order; `key_of` gives its key."""

    def __init__(self, store: Store, key_of: Callable[[int], bytes], log_offsets: list[int]) -> None:
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
