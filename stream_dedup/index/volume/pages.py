"""Pages of entries in memory, and what many entries hold, gathered from their pages at once.

Invariants: a page is its value as the store has it, column by column, or, while it changes, an
`EntryPage`, row by row; an entry is looked for only within its page, so a value that is damaged
becomes an error, never another entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import FormatError
from stream_dedup.domain.lazy import Ids
from stream_dedup.index.volume.layout import DAMAGED_PAGE, ROWS_AT
from stream_dedup.kernels.compiled import inlined, kernel
from stream_dedup.log.frame import joined_parts


class EntryPage:
    """A page that changes: the rows' bytes one after another, and the ids'."""

    __slots__ = ("data", "ids")

    def __init__(self, rows: bytes = b"", ids: bytes = b"") -> None:
        self.data = bytearray(rows)
        self.ids = bytearray(ids)


class Gathered:
    """Some fields of n entries, `rows` (n,), and the bytes in which their ids are."""

    __slots__ = ("_begins", "_raw", "_stops", "rows")

    def __init__(
        self,
        rows: NDArray[Any],
        raw: NDArray[np.uint8],
        begins: NDArray[np.int64],
        stops: NDArray[np.int64],
    ) -> None:
        self.rows = rows
        self._raw, self._begins, self._stops = raw, begins, stops

    def ids(self) -> Ids:
        """Return the entries' ids."""
        return _joined(self._raw, self._begins, self._stops)


def taken(ids: Ids, places: NDArray[np.int64]) -> Ids:
    """Return the ids at some places."""
    return _joined(
        np.frombuffer(bytearray(ids.joined), np.uint8),
        (ids.stops - ids.sizes)[places],
        ids.stops[places],
    )


def same_ids(one: Ids, other: Ids) -> NDArray[np.bool_]:
    """Return which ids are equal, (n,); an empty one is nobody's."""
    same = np.empty(len(one), np.bool_)
    raw = [np.frombuffer(bytearray(ids.joined), np.uint8) for ids in (one, other)]
    _compare(raw[0], one.stops, raw[1], other.stops, same)
    return same


def _joined(raw: NDArray[np.uint8], begins: NDArray[np.int64], stops: NDArray[np.int64]) -> Ids:
    return Ids(joined_parts(raw, begins, stops), np.cumsum(stops - begins))


def gather(
    pages: Sequence[EntryPage | bytes],
    which: NDArray[np.int64],
    places: NDArray[np.int64],
    kind: np.dtype[Any],
    wanted: np.dtype[Any],
) -> Gathered:
    """Return fields of the entries at `places` (n,) of the pages numbered `which` (n,).

    `kind` is the rows' type in the pages, whose last field says where an entry's id ends; `wanted`
    names fields of it.

    Raises:
        FormatError: a page is damaged.
    """
    parts: list[bytes | bytearray] = []
    counts = []  # of a page that is stored, its own bytes say it
    for page in pages:
        if isinstance(page, EntryPage):
            parts += (page.data, page.ids)
            counts.append(len(page.data) // kind.itemsize)
        else:
            parts += (page, b"")
            counts.append(0)
    sizes = np.fromiter(map(len, parts), np.int64, len(parts)).reshape(-1, 2).sum(1)
    raw = np.frombuffer(bytearray().join(parts), np.uint8)
    rows = np.empty(len(which), wanted)
    begins, stops = np.empty(len(which), np.int64), np.empty(len(which), np.int64)
    damaged = _gather(
        *(
            raw,
            np.cumsum(sizes),
            np.array(counts, np.int64),
            (kind.itemsize, *_fields(kind, wanted)),
            which,
            places,
        ),
        *(rows.view(np.uint8).reshape(len(which), wanted.itemsize), begins, stops),
    )
    if damaged >= 0:
        raise FormatError(DAMAGED_PAGE)
    return Gathered(rows, raw, begins, stops)


@lru_cache
def _fields(
    kind: np.dtype[Any], wanted: np.dtype[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many bytes of a row lie before each wanted field, and how many it has itself,
    (fields,) each.
    """
    fields: Any = kind.fields
    found = [(fields[name][1], fields[name][0].itemsize) for name in wanted.names or ()]
    before, size = np.array(found, np.int64).T.copy()
    return before, size


@inlined
def _u16(raw: Any, at: Any) -> Any:
    return np.int64(raw[at]) + np.int64(raw[at + 1]) * 256


@kernel
def _gather(
    raw: Any,
    page_stops: Any,
    counts: Any,
    fields: Any,
    which: Any,
    places: Any,
    rows: Any,
    begins: Any,
    stops: Any,
) -> Any:
    """Fill `rows` (n, bytes), and where each one's id lies in `raw`; return an entry whose page is
    damaged, or -1.
    """
    row_bytes, before, size = fields
    for i in range(len(which)):
        page, place = which[i], places[i]
        first, stop = page_stops[page - 1] if page else np.int64(0), page_stops[page]
        count = counts[page]
        by_row = count > 0
        if not by_row:
            if stop - first < ROWS_AT:
                return i
            count = _u16(raw, first)
            first += ROWS_AT
        ids = first + count * row_bytes
        if place >= count or ids > stop:
            return i
        filled = 0
        for field in range(len(before)):
            at = first + (
                place * row_bytes + before[field]
                if by_row
                else before[field] * count + place * size[field]
            )
            for byte in range(size[field]):
                rows[i, filled] = raw[at + byte]
                filled += 1
        step = row_bytes if by_row else np.int64(2)
        at = ids - step * (count - 1 - place) - 2  # the last field says where ids end
        begins[i] = ids + (_u16(raw, at - step) if place else np.int64(0))
        stops[i] = ids + _u16(raw, at)
        if begins[i] > stops[i] or stops[i] > stop:
            return i
    return -1


@kernel
def _compare(one: Any, stops: Any, other: Any, other_stops: Any, same: Any) -> None:
    at = other_at = np.int64(0)
    for row in range(len(same)):
        size = stops[row] - at
        is_same = size > 0 and other_stops[row] - other_at == size
        place = np.int64(0)
        while is_same and place < size:
            is_same = one[at + place] == other[other_at + place]
            place += 1
        same[row] = is_same
        at, other_at = stops[row], other_stops[row]
