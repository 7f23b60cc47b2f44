"""What the topic `representatives` is owed, for the index that writes it: which entries, and what
is to be said of them.

Invariant: asked for by the applying thread between two calls of `LogIndex.apply`, so what is said
is the state after all that was applied. (Entries are read under the index's lock, because look-ups
read them too.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from stream_dedup.ground.document import Position
from stream_dedup.index.rules import published as published_rows
from stream_dedup.index.rules.published import Published
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.volume.contract import Store, Writes
from stream_dedup.log.representatives import PublishedValue

_AT_ONCE: Final = 4096


class Outbox:
    """What the topic is owed by one index. `rows` says which entries, and since when."""

    def __init__(
        self, state: IndexState, rows: Published, writes: Callable[[], Writes], lock: threading.Lock
    ) -> None:
        self._state = state
        self._writes = writes
        self._lock = lock
        self.rows = rows

    @property
    def first_standing(self) -> int:
        """The number of the lowest entry that no window has left behind."""
        return self._state.generations.first(
            0 if self._state.entries is None else self._state.entries.count
        )

    def values(self, numbers: Sequence[int]) -> list[tuple[int, Position, PublishedValue | None]]:
        """Return (number, position, what is to be said) of those of these entries that the topic
        may tell of.

        Nothing is to be said any more of one that is gone. One of a topic that was created again
        since is left out: its position may be that of another document now.
        """
        state = self._state
        if state.entries is None:
            return []
        places = self.rows.positions(numbers)
        copies = state.copies.stored(numbers)
        itself = [
            number
            for number, one in zip(numbers, copies, strict=True)
            if one is not None and not one.rule
        ]
        with self._lock:
            ids = dict(
                zip(itself, state.entries.origins(np.array(itself, np.int64)).ids, strict=True)
            )
        found: list[tuple[int, Position, PublishedValue | None]] = []
        for number, place, one in zip(numbers, places, copies, strict=True):
            if place is None or not state.sources.is_latest(place[0]):
                continue
            value = None
            if one is not None:
                best = state.sources.position(one.source, one.offset)
                value = PublishedValue(
                    one.copies, one.first_ms, one.last_ms, best, ids.get(number, one.id), one.rule
                )
            found.append((number, state.sources.position(*place), value))
        return found

    def forget(
        self, numbers: Iterable[int] = (), *, below: int = 0, swept_below: int | None = None
    ) -> None:
        """Drop the rows of entries whose tombstones the topic holds: of these, and of all `below`
        one.

        `swept_below`: of all others the topic holds what they were below that log offset. The
        index's next write makes it durable.
        """
        writes = self._writes()
        self.rows.forget(writes, numbers)
        self.rows.forget_below(writes, min(below, self.first_standing))
        if swept_below is not None:
            self.rows.swept(writes, swept_below)


def begin(
    state: IndexState, store: Store, writes: Writes, applied: int, beat: Callable[[], None]
) -> None:
    """Let a state keep what the topic is owed: as the volume has it, or, if it kept nothing, from
    all copies that there are.
    """
    found = published_rows.opened(store, applied)
    if found is None:
        found = (
            published_rows.begun(store, _places(state, beat), applied)
            if applied
            else published_rows.new(store, writes)
        )
    state.copies.published = found


def _places(
    state: IndexState, beat: Callable[[], None]
) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """Yield (numbers, sources, offsets) of the entries that have copies, some at a time."""
    numbers = list(state.copies.numbers())
    for first in range(0, len(numbers), _AT_ONCE):
        part = numbers[first : first + _AT_ONCE]
        found = state.rooms()[0].origins(np.array(part, np.int64))
        beat()
        yield part, found.sources.tolist(), found.offsets.tolist()
