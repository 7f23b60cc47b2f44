"""Which copy of a representative is the best, and, where the log counts them, how many there were.

    row     copies(u32) and, of the best so far: features(u32) time_ms(i64) rule(u8: by which it
            beat what was best before; 0, it is the representative itself) source(u32) offset(i64)

A representative has a row, under its entry's number, once it has a better copy or a copy that was
counted. The id of the best copy lies beside it, so that a take-down reads ids and nothing else.
Rows are read when duplicates name their representatives, all of a batch's at once, and written with
what that batch led to.

Invariants: a function of the log alone, because log order decides between equals (the earlier is
better); a row goes with its representative, and moves with it where that is renewed; an id that was
forgotten is nowhere in here.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.better import BetterRule
from stream_dedup.domain.errors import FormatError
from stream_dedup.index.volume.contract import Store, Writes
from stream_dedup.index.volume.entries import EntryBytes
from stream_dedup.index.volume.layout import (
    COPIES,
    PREFIX_BEST_ID,
    best_id_key,
    copies_key,
    number_of,
)
from stream_dedup.kernels.compiled import inlined, kernel

_ROW: Final = struct.Struct("<IqqIqBIq")  # as COPIES
_ROWS_KEPT: Final = 16_384
_ROWS_AT_FIRST: Final = 1024
_COPIES_MAX: Final = (1 << 32) - 1
_NEWEST: Final = int(BetterRule.NEWEST)
_DAMAGED: Final = "A count of copies in the index volume is damaged; give the index an empty volume, and it is rebuilt."


class Copies(NamedTuple):
    """Duplicates as they come, (n,) each: what the rules look at, and where they lie."""

    features: NDArray[np.uint32]
    times_ms: NDArray[np.int64]
    sources: NDArray[np.uint32]
    offsets: NDArray[np.int64]


class CopyCounts:
    """The rows of all representatives that have copies."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows = np.zeros(_ROWS_AT_FIRST, COPIES)
        self._places: dict[int, int] = {}  # where among them an entry's row is
        self._used = 0
        self._ids = EntryBytes(store, best_id_key)
        self._changed: set[int] = set()
        self._gone: set[int] = set()
        self._passed = 0  # no row lies below it
        self._dropped_below = 0

    def count(
        self,
        named: NDArray[np.int64],
        first: Copies,
        copies: Copies,
        ids: Sequence[bytes],
        rule: BetterRule,
        *,
        counts: bool,
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """Take in duplicates that name the entries `named` (n,); return how many copies each made
        it, and whether it is better.

        `first` are the same columns of those entries themselves, `ids` the duplicates' own. What is
        better has the rule's number, all else 0. Where nobody `counts`, a row is only looked at for
        what beats the representative itself.
        """
        told, better = np.zeros(len(named), np.uint32), np.zeros(len(named), np.uint8)
        beats_first = np.empty(len(named), np.bool_)
        _beat(first, copies, int(rule), beats_first)
        asked = np.arange(len(named)) if counts else np.flatnonzero(beats_first)
        if not len(asked):
            return told, better
        numbers: list[int] = named.tolist()
        chosen = [numbers[at] for at in asked.tolist()]
        places = self._find(chosen)  # before the rows are named: it may make room for more of them
        _count(
            self._rows, places, asked, first, copies, beats_first, int(rule), counts, told, better
        )
        is_better = np.flatnonzero(better).tolist()
        for at in is_better:
            self._ids.changed[numbers[at]] = ids[at]
        self._changed.update(chosen if counts else [numbers[at] for at in is_better])
        return told, better

    def move(self, old: Sequence[int], first: int) -> None:
        """Let representatives that were renewed keep their rows: of entries `old`, and from `first`
        on, in their order.
        """
        ids = self._ids.of(old)
        places = self._find(old)
        rows = self._rows[places]
        self.drop(old)
        are_there = (rows["copies"] > 0) | (rows["rule"] > 0)
        moved = (first + np.flatnonzero(are_there)).tolist()
        places = self._find(moved)
        self._rows[places] = rows[are_there]
        self._changed.update(moved)
        self._ids.changed.update(
            (number, ids[before]) for number, before in enumerate(old, first) if before in ids
        )

    def drop(self, numbers: Collection[int]) -> None:
        """Drop the rows of entries that are no representatives any more."""
        self._gone.update(numbers)
        self._forget_rows(numbers)
        self._ids.drop(numbers)

    def drop_below(self, first: int) -> None:
        """Drop the rows of all entries below one: their window has passed."""
        self._dropped_below = max(self._dropped_below, first)
        self._forget_rows([number for number in self._places if number < first])
        self._ids.drop_below(first)

    def forget(self, ids: Collection[bytes]) -> None:
        """Blank these ids where they are those of a best copy. Reads the ids of all best copies."""
        held = {
            number_of(key): value for key, value in self._store.scan(PREFIX_BEST_ID)
        } | self._ids.changed
        for number, identifier in held.items():
            if identifier in ids and number >= self._dropped_below:
                self._ids.changed[number] = b""

    def add_writes(self, writes: Writes) -> None:
        """Add what changed since the last call."""
        if self._dropped_below > self._passed:
            writes.delete_range(copies_key(self._passed), copies_key(self._dropped_below))
            self._passed = self._dropped_below
        for number in self._gone:
            writes.delete(copies_key(number))
        changed = list(self._changed)
        places, size = self._find(changed), COPIES.itemsize
        raw = self._rows[places].tobytes()
        for at, number in enumerate(changed):
            writes.put(copies_key(number), raw[at * size : at * size + size])
        self._ids.add_writes(writes)
        self._gone.clear()
        self._changed.clear()
        if self._used > _ROWS_KEPT:
            self._places.clear()
            self._used = 0

    def _forget_rows(self, numbers: Collection[int]) -> None:
        self._changed.difference_update(numbers)
        for number in numbers:
            self._places.pop(number, None)

    def _find(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Return where among the rows at hand those of these entries are; of one that has no
        copies, all is 0.
        """
        missing = dict.fromkeys(number for number in numbers if number not in self._places)
        if missing:
            read = self._store.get_many(list(map(copies_key, missing)))
            if any(row is not None and len(row) != COPIES.itemsize for row in read):
                raise FormatError(_DAMAGED)
            begin, end = self._used, self._used + len(missing)
            self._used = end
            if end > len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros(end, COPIES)])
            self._rows[begin:end] = np.frombuffer(
                b"".join([row or _NO_ROW for row in read]), COPIES
            )
            self._places.update(zip(missing, range(begin, end), strict=True))
        return np.fromiter(map(self._places.__getitem__, numbers), np.int64, len(numbers))


_NO_ROW: Final = bytes(COPIES.itemsize)


@inlined
def _is_better(
    rule: Any, features: Any, time_ms: Any, best_features: Any, best_time_ms: Any
) -> Any:
    if rule == _NEWEST:
        return time_ms > best_time_ms
    own, best = np.int64(features), np.int64(best_features)
    return own > best and 10 * own >= 11 * best


@kernel
def _beat(first: Any, copies: Any, rule: Any, beats_first: Any) -> None:
    """Say which duplicates are better than their representative itself."""
    for i in range(len(beats_first)):
        beats_first[i] = _is_better(
            rule, copies.features[i], copies.times_ms[i], first.features[i], first.times_ms[i]
        )


@kernel
def _count(
    rows: Any,
    places: Any,
    asked: Any,
    first: Any,
    copies: Any,
    beats_first: Any,
    rule: Any,
    counts: Any,
    told: Any,
    better: Any,
) -> None:
    """Take in the duplicates `asked` (m,) one by one; `places` (m,) says which of the rows is that
    of their representatives.
    """
    for at in range(len(places)):
        row, i = rows[places[at]], asked[at]
        if row.copies == 0 and row.rule == 0:
            row.features, row.time_ms = first.features[i], first.times_ms[i]
            row.source, row.offset = first.sources[i], first.offsets[i]
        if counts:
            if row.copies < _COPIES_MAX:
                row.copies += 1
            told[i] = row.copies
        mine = (copies.features[i], copies.times_ms[i])
        if beats_first[i] and _is_better(rule, *mine, row.features, row.time_ms):
            better[i] = row.rule = rule
            row.features, row.time_ms = mine
            row.source, row.offset = copies.sources[i], copies.offsets[i]
