"""Which representatives the topic `representatives` holds or is owed, and since when.

A representative has a row here (`layout.PUBLISHED`, under its entry's number) from the first change
of its copies on, written in the one write of the change. The row outlives the representative: one
without a row of copies is owed a tombstone, and goes once that was written. So the index that comes
to write the topic finds all that it is owed since any log offset, and nothing else is to be kept
for it. What is owed may be written twice.

Invariants: `changed_below` of a row is never lower than where its last change lies; an entry that
was renewed leaves no row behind, because the topic knows it by its position, which stays; the row
of an entry that an order removed says so, because its document may come back, and then another
entry has the position.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence, Set
from itertools import islice
from typing import Any, Final, NamedTuple

from stream_dedup.ground.errors import FormatError, InvariantError
from stream_dedup.index.volume.contract import Store, Writes
from stream_dedup.index.volume.layout import (
    KEY_PUBLISHED,
    PREFIX_PUBLISHED,
    PUBLISHED,
    number_of,
    published_key,
)

_ROW: Final = struct.Struct("<IqQ?")
_BELOW: Final = struct.Struct("<Q")
_FRESH_MAX: Final = 1_000_000
_EVER: Final = (1 << 64) - 1
_DAMAGED: Final = (
    "What the index volume keeps for the topic `representatives` is damaged; give the index an "
    "empty volume, and it is rebuilt "
    "from the log."
)


class PublishedRow(NamedTuple):
    """The row of the entry `number`, which changed last below a log offset; `gone_by_order`: a
    retraction or take-down.
    """

    number: int
    changed_below: int
    gone_by_order: bool

    def null_is_written(self, written_below: int) -> bool:
        """Return whether a topic that holds all that changed below a log offset was told when an
        order removed the entry.
        """
        return self.gone_by_order and self.changed_below <= written_below


class Published:
    """The rows of all representatives that the topic holds or is owed.

    `fresh` are the numbers of those that changed since somebody asked for it by `gather`; None
    while nobody does, and once there are more than a million. What changed last did so below the
    log offset `changed_below`.
    """

    def __init__(self, store: Store, all_changed_below: int, applied: int) -> None:
        self._store = store
        self._all_changed_below = all_changed_below
        self._positions: dict[int, tuple[int, int]] = {}
        self._moved: set[int] = set()
        self._forgotten_below = 0
        self.fresh: set[int] | None = None
        self.changed_below = applied

    def gather(self) -> None:
        """Begin to gather in `fresh` what changes from now on."""
        self.fresh = set()

    def note(self, number: int, source: int, offset: int) -> None:
        """Take note where a representative lies whose copies change."""
        self._positions[number] = source, offset

    def move(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Let representatives that were renewed keep their places in the topic."""
        for row, number, before in zip(self._read(old), new, old, strict=True):
            if row is None:
                raise InvariantError(
                    f"Entry {before} has copies and no place in `representatives`: a fault of the "
                    "program."
                )
            self._positions[number] = row[0], row[1]
        self._moved.update(old)

    def add_writes(self, writes: Writes, changed: Set[int], gone: Set[int], applied: int) -> None:
        """Add what a write is to say of the entries whose copies it changes, and of those that are
        gone.
        """
        # Of an entry that came and went within this write, too: another index may have told the
        # topic of it in between.
        owed = list((self._positions.keys() | changed) - self._moved)
        left = [number for number in set(gone).difference(owed) if number not in self._moved]
        rows = dict(zip(owed, self._read(owed), strict=True))
        rows |= {
            number: row
            for number, row in zip(left, self.positions(left), strict=True)
            if row is not None
        }
        for number in self._moved:
            writes.delete(published_key(number))
        for number, row in rows.items():
            if row is None:
                raise InvariantError(
                    f"Nobody said where entry {number} lies, whose copies changed: a fault of the "
                    "program."
                )
            writes.put(published_key(number), _ROW.pack(row[0], row[1], applied, number in gone))
        self._positions.clear()
        self._moved.clear()
        if rows:
            self.changed_below = applied
            if self.fresh is not None:
                self.fresh |= rows.keys()
                if len(self.fresh) > _FRESH_MAX:
                    self.fresh = None

    # -- for who writes the topic

    def scan(self, first: int, end: int | None, most: int) -> list[PublishedRow]:
        """Return up to `most` rows with numbers of [first, end), ascending."""
        found = []
        for key, value in islice(self._store.scan(PREFIX_PUBLISHED, published_key(first)), most):
            number = number_of(key)
            if end is not None and number >= end:
                break
            _, _, below, gone_by_order = _unpack(value)
            found.append(PublishedRow(number, max(below, self._all_changed_below), gone_by_order))
        return found

    def positions(self, numbers: Sequence[int]) -> list[tuple[int, int] | None]:
        """Return (source, offset) of the entries of these numbers; None where there is no row any
        more.
        """
        return [None if row is None else (row[0], row[1]) for row in self._stored(numbers)]

    def swept(self, writes: Writes, below: int) -> None:
        """Take note that the topic holds, of every row, what it said below a log offset."""
        if self._all_changed_below > below:
            self._all_changed_below = below
            writes.put(KEY_PUBLISHED, _BELOW.pack(below))

    def forget(self, writes: Writes, numbers: Iterable[int]) -> None:
        """Drop the rows of representatives that are gone from the topic too."""
        for number in numbers:
            writes.delete(published_key(number))

    def forget_below(self, writes: Writes, end: int) -> None:
        """Likewise, of all entries below one."""
        if end > self._forgotten_below:
            writes.delete_range(published_key(self._forgotten_below), published_key(end))
            self._forgotten_below = end

    def _read(self, numbers: Sequence[int]) -> list[tuple[int, int] | None]:
        """Return where these entries lie, as was said since the last write, or is stored."""
        missing = [number for number in numbers if number not in self._positions]
        stored = dict(zip(missing, self.positions(missing), strict=True))
        return [self._positions.get(number) or stored[number] for number in numbers]

    def _stored(self, numbers: Sequence[int]) -> list[Any]:
        if not numbers:
            return []
        return [
            None if raw is None else _unpack(raw)
            for raw in self._store.get_many(list(map(published_key, numbers)))
        ]


def opened(store: Store, applied: int) -> Published | None:
    """Return the rows of a volume; None if it keeps none, or kept none for a while."""
    (value,) = store.get_many([KEY_PUBLISHED])
    if value is None:
        return None
    if len(value) != _BELOW.size:
        raise FormatError(_DAMAGED)
    (below,) = _BELOW.unpack(value)
    return Published(store, below, applied)


def begun(
    store: Store, places: Iterable[tuple[Sequence[int], Sequence[int], Sequence[int]]], applied: int
) -> Published:
    """Begin to keep rows in a volume that kept none: `places` are (numbers, sources, offsets) of
    what has copies, part by part.

    The topic is owed all of it, also what it holds. Rows kept before that have no copies any more
    stay, for a tombstone.
    """
    for numbers, sources, offsets in places:
        rows = {
            published_key(number): _ROW.pack(source, offset, applied, False)
            for number, source, offset in zip(numbers, sources, offsets, strict=True)
        }
        store.write(rows, ())
    store.write({KEY_PUBLISHED: _BELOW.pack(_EVER)}, ())
    return Published(store, _EVER, applied)


def new(store: Store, writes: Writes) -> Published:
    """Begin to keep rows in an empty volume, with its first write."""
    writes.put(KEY_PUBLISHED, _BELOW.pack(0))
    return Published(store, 0, 0)


def _unpack(raw: bytes) -> tuple[int, int, int, bool]:
    if len(raw) != PUBLISHED.itemsize:
        raise FormatError(_DAMAGED)
    source, offset, below, gone_by_order = _ROW.unpack(raw)
    return source, offset, below, gone_by_order
