"""The best copy of each representative, and, if the log counts copies, their number.

    row     copies(u32), then the best copy so far: features(u32) time_ms(i64) rule(u8: the rule by
            which it beat the earlier ones; 0 while the representative is best) source(u32)
            offset(i64)

A representative has a row, under its entry's number, once it has a better copy or a counted copy.
The id of the best copy is stored under another key, so that `forget` reads ids only. Judging a
batch reads the rows of all representatives that its duplicates name in one request; the batch's
write contains them.

Invariants: rows depend on the log alone: of two equally good copies the earlier one counts as
better; a row is deleted with its representative, and moves when the representative is renewed; a
forgotten id is not stored here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.errors import FormatError
from stream_dedup.index.storage.contract import Store, Writes
from stream_dedup.index.storage.entries import EntryBytes
from stream_dedup.index.storage.layout import (
    COPIES,
    PREFIX_BEST_ID,
    best_id_key,
    copies_key,
    number_of,
)
from stream_dedup.kernels.compiled import inlined, kernel

_ROWS_CACHED: Final = 16_384
_ROWS_INITIAL: Final = 1024
_COPIES_MAX: Final = (1 << 32) - 1
_NEWEST: Final = int(BetterRule.NEWEST)
_DAMAGED: Final = (
    "A count of copies in the index volume is damaged. Start the index with an "
    "empty volume; it is rebuilt from the log."
)


class Copies(NamedTuple):
    """The fields of documents that the rules compare, and their positions, (n,) each."""

    features: NDArray[np.uint32]
    times_ms: NDArray[np.int64]
    sources: NDArray[np.uint32]
    offsets: NDArray[np.int64]


class CopyCounts:
    """The rows of all representatives that have copies."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows = np.zeros(_ROWS_INITIAL, COPIES)
        self._places: dict[int, int] = {}  # the index of an entry's row in `_rows`
        self._used_rows = 0
        self._stored = EntryBytes(store, copies_key)
        self._ids = EntryBytes(store, best_id_key)
        self._changed: set[int] = set()

    def count(
        self,
        entries: NDArray[np.int64],
        representatives: Copies,
        copies: Copies,
        ids: Sequence[bytes],
        rule: BetterRule,
        *,
        counts_copies: bool,
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """Add the duplicates `copies` with their `ids`; each names the representative in the same row
        of `entries` (n,) and `representatives`.

        Unless `counts_copies`, only rows of duplicates that beat their representative are read.
        Return two columns (n,): the number of copies of the representative up to each duplicate, and
        the rule's number for a copy that beats all earlier ones, otherwise 0.
        """
        counts, better = np.zeros(len(entries), np.uint32), np.zeros(len(entries), np.uint8)
        beats_representative = np.empty(len(entries), np.bool_)
        _mark_better(representatives, copies, int(rule), beats_representative)
        checked = np.arange(len(entries)) if counts_copies else np.flatnonzero(beats_representative)
        if not len(checked):
            return counts, better
        numbers: list[int] = entries.tolist()
        checked_entries = [numbers[index] for index in checked.tolist()]
        # Before `_rows` is read below, because `_load_rows` may replace it by a larger array.
        places = self._load_rows(checked_entries)
        _count(
            self._rows,
            places,
            checked,
            representatives,
            copies,
            beats_representative,
            int(rule),
            counts_copies,
            counts,
            better,
        )
        better_rows = np.flatnonzero(better).tolist()
        for index in better_rows:
            self._ids.changed[numbers[index]] = ids[index]
        self._changed.update(
            checked_entries if counts_copies else [numbers[index] for index in better_rows]
        )
        return counts, better

    def move(self, old: Sequence[int], first: int) -> None:
        """Move the rows of renewed representatives from entries `old` to the entries from `first`
        on.
        """
        ids = self._ids.read(old)
        places = self._load_rows(old)
        rows = self._rows[places]
        self.drop(old)
        has_copies = (rows["copies"] > 0) | (rows["rule"] > 0)
        moved_to = (first + np.flatnonzero(has_copies)).tolist()
        places = self._load_rows(moved_to)
        self._rows[places] = rows[has_copies]
        self._changed.update(moved_to)
        self._ids.changed.update(
            (number, ids[entry]) for number, entry in enumerate(old, first) if entry in ids
        )

    def drop(self, numbers: Collection[int]) -> None:
        """Delete the rows of entries that are no longer representatives."""
        self._drop_cached_rows(numbers)
        self._stored.drop(numbers)
        self._ids.drop(numbers)

    def drop_below(self, first: int) -> None:
        """Delete the rows of all entries below `first`, whose window has passed."""
        self._drop_cached_rows([number for number in self._places if number < first])
        self._stored.drop_below(first)
        self._ids.drop_below(first)

    def forget(self, ids: Collection[bytes]) -> None:
        """Replace these ids by empty ones in the best copies. This reads the ids of all best copies."""
        ids_by_entry = {
            number_of(key): value for key, value in self._store.scan(PREFIX_BEST_ID)
        } | self._ids.changed
        for number, copy_id in ids_by_entry.items():
            if copy_id in ids and number >= self._ids.dropped_below:
                self._ids.changed[number] = b""

    def add_writes(self, writes: Writes) -> None:
        """Add the changes since the last call."""
        changed = list(self._changed)
        rows = self._rows[self._load_rows(changed)]
        self._stored.changed.update(zip(changed, map(bytes, rows.view(_RAW_ROW)), strict=True))
        self._stored.add_writes(writes)
        self._ids.add_writes(writes)
        self._changed.clear()
        if self._used_rows > _ROWS_CACHED:
            self._places.clear()
            self._used_rows = 0

    def _drop_cached_rows(self, numbers: Collection[int]) -> None:
        self._changed.difference_update(numbers)
        for number in numbers:
            self._places.pop(number, None)

    def _load_rows(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Return the indices of these entries' rows in `_rows`; the row of an entry without copies
        is all 0.
        """
        missing = dict.fromkeys(number for number in numbers if number not in self._places)
        if missing:
            stored = self._stored.read(list(missing))
            if any(len(row) != COPIES.itemsize for row in stored.values()):
                raise FormatError(_DAMAGED)
            begin, end = self._used_rows, self._used_rows + len(missing)
            self._used_rows = end
            if end > len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros(end, COPIES)])
            self._rows[begin:end] = np.frombuffer(
                b"".join([stored.get(number, _NO_ROW) for number in missing]), COPIES
            )
            self._places.update(zip(missing, range(begin, end), strict=True))
        return np.fromiter(map(self._places.__getitem__, numbers), np.int64, len(numbers))


_NO_ROW: Final = bytes(COPIES.itemsize)
_RAW_ROW: Final = np.dtype((np.void, COPIES.itemsize))


@inlined
def _is_better(
    rule: Any, features: Any, time_ms: Any, best_features: Any, best_time_ms: Any
) -> Any:
    if rule == _NEWEST:
        return time_ms > best_time_ms
    count, best_count = np.int64(features), np.int64(best_features)
    return count > best_count and 10 * count >= 11 * best_count


@kernel
def _mark_better(representatives: Any, copies: Any, rule: Any, beats_representative: Any) -> None:
    """Set `beats_representative` (n,): whether each duplicate is better than its representative."""
    for index in range(len(beats_representative)):
        beats_representative[index] = _is_better(
            rule,
            copies.features[index],
            copies.times_ms[index],
            representatives.features[index],
            representatives.times_ms[index],
        )


@kernel
def _count(
    rows: Any,
    places: Any,
    checked: Any,
    representatives: Any,
    copies: Any,
    beats_representative: Any,
    rule: Any,
    counts_copies: Any,
    counts: Any,
    better: Any,
) -> None:
    """Add the duplicates `checked` (m,) one by one; `places` (m,) are the indices of their rows."""
    for index in range(len(places)):
        row, copy = rows[places[index]], checked[index]
        if row.copies == 0 and row.rule == 0:
            row.features, row.time_ms = (
                representatives.features[copy],
                representatives.times_ms[copy],
            )
            row.source, row.offset = representatives.sources[copy], representatives.offsets[copy]
        if counts_copies:
            if row.copies < _COPIES_MAX:
                row.copies += 1
            counts[copy] = row.copies
        features_time = (copies.features[copy], copies.times_ms[copy])
        if beats_representative[copy] and _is_better(
            rule, *features_time, row.features, row.time_ms
        ):
            better[copy] = row.rule = rule
            row.features, row.time_ms = features_time
            row.source, row.offset = copies.sources[copy], copies.offsets[copy]
