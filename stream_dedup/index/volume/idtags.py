"""Where the entries with an id are: four bytes of each id, by which a take-down reads a few pages instead of all.

Of every segment of 4,096 entries one value holds the tags of their ids, in the order of the entries; those of the entries
behind the last whole segment are in memory. A tag may be another id's too, so the caller reads the entry's id. Opening
reads them too: by them the tables in memory find the latest entry of an id.

Invariants: the tag of an entry whose id was wiped is wiped; with a hundred million entries 400 MB are read, a beat after every
megabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.errors import FormatError
from stream_dedup.index.tables.tags import Tags, crcs_of
from stream_dedup.index.volume.contract import Store, Writes
from stream_dedup.index.volume.layout import DAMAGED_PAGE, SEGMENT_ENTRIES, id_tags_key

NO_TAG: Final = 0
_SEGMENTS_AT_ONCE: Final = 64
_LOW_BITS: Final = 0xFFFF


class IdTags:
    """The tags of the ids of a volume's entries."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._frozen = 0
        self._tail: list[Tags] = []
        self._changed: dict[int, Tags | None] = {}  # None: it goes

    def load(self, frozen: int) -> None:
        """Begin behind these whole segments; what comes after them is then added as if it were new."""
        self._frozen = frozen

    def append(self, ids: Sequence[bytes]) -> Tags:
        """Take note of the ids of the next entries; return their tags."""
        self._tail.append(crcs_of(ids))
        return self._tail[-1]

    def of(self, segment: int) -> Tags:
        """Return the tags (4096,) of a stored segment.

        Raises:
            FormatError: they are damaged or missing.
        """
        (tags,) = self._read([segment])
        if tags is None:
            raise FormatError(DAMAGED_PAGE)
        return tags

    def seal(self) -> None:
        """Let the next 4,096 entries be a segment."""
        tail = self._whole_tail()
        self._changed[self._frozen] = tail[:SEGMENT_ENTRIES].copy()
        self._tail = [tail[SEGMENT_ENTRIES:].copy()]
        self._frozen += 1

    def drop(self, segment: int) -> None:
        """Let a segment go of which no entry is left."""
        self._changed[segment] = None

    def wipe(self, segment: int, places: NDArray[np.int64]) -> None:
        """Forget the tags of entries of one segment, or of the tail."""
        if segment >= self._frozen:
            tail = self._whole_tail()
            tail[(segment - self._frozen) * SEGMENT_ENTRIES + places] = NO_TAG
            self._tail = [tail]
            return
        (tags,) = self._read([segment])
        if tags is not None:
            tags = tags.copy()
            tags[places] = NO_TAG
            self._changed[segment] = tags

    def candidates(self, ids: Collection[bytes], beat: Callable[[], None]) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of all entries that may have one of these ids, ascending, removed ones among them."""
        wanted = np.unique(crcs_of(list(ids)))
        is_low = np.zeros(_LOW_BITS + 1, np.bool_)
        is_low[wanted & _LOW_BITS] = True
        for first in range(0, self._frozen, _SEGMENTS_AT_ONCE):
            segments = range(first, min(first + _SEGMENTS_AT_ONCE, self._frozen))
            for segment, tags in zip(segments, self._read(segments), strict=True):
                if tags is not None and len(places := _places(tags, is_low, wanted)):
                    yield segment * SEGMENT_ENTRIES + places
            beat()
        yield self._frozen * SEGMENT_ENTRIES + _places(self._whole_tail(), is_low, wanted)

    def add_writes(self, writes: Writes) -> None:
        """Add what changed since the last call."""
        for segment, tags in self._changed.items():
            if tags is None:
                writes.delete(id_tags_key(segment))
            else:
                writes.put(id_tags_key(segment), tags.astype("<u4").tobytes())
        self._changed.clear()

    def _read(self, segments: Sequence[int]) -> list[Tags | None]:
        stored = self._store.get_many([id_tags_key(segment) for segment in segments])
        return [
            self._changed[segment] if segment in self._changed else None if value is None else _decode(value)
            for segment, value in zip(segments, stored, strict=True)
        ]

    def _whole_tail(self) -> Tags:
        return np.concatenate(self._tail or [np.empty(0, np.uint32)])


def _places(tags: Tags, is_low: NDArray[np.bool_], wanted: Tags) -> NDArray[np.int64]:
    likely = np.flatnonzero(is_low[tags & _LOW_BITS])
    return likely[np.isin(tags[likely], wanted)]


def _decode(value: bytes) -> Tags:
    if len(value) != 4 * SEGMENT_ENTRIES:
        raise FormatError(DAMAGED_PAGE)
    return np.frombuffer(value, "<u4")
