"""Read fields of many entries from their pages.

A page is either its stored bytes, column by column, or, while it changes, an `EntryPage`, row by row.
Invariant: an entry is read only from the bytes of its page, so a damaged page raises an error and
never returns another entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import FormatError
from stream_dedup.domain.lazy_sequences import Ids
from stream_dedup.index.storage.layout import DAMAGED_PAGE, ROWS_BEGIN
from stream_dedup.kernels.compiled import inlined, kernel
from stream_dedup.log.record_frame import join_parts


class EntryPage:
    """A page that changes: the bytes of the rows, and of the ids."""

    __slots__ = ("data", "ids")

    def __init__(self, rows: bytes = b"", ids: bytes = b"") -> None:
        self.data = bytearray(rows)
        self.ids = bytearray(ids)


class Gathered:
    """Some fields of n entries, `rows` (n,), and the bytes that contain their ids."""

    __slots__ = ("_ends", "_raw", "_starts", "rows")

    def __init__(
        self,
        rows: NDArray[Any],
        raw: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> None:
        self.rows = rows
        self._raw, self._starts, self._ends = raw, starts, ends

    def select(self, mask: NDArray[np.bool_]) -> Gathered:
        """Return the entries in `mask` (n,)."""
        if mask.all():
            return self
        return Gathered(self.rows[mask], self._raw, self._starts[mask], self._ends[mask])

    def ids(self) -> Ids:
        """Return the entries' ids."""
        return _join_ids(self._raw, self._starts, self._ends)


def select_ids(ids: Ids, places: NDArray[np.int64]) -> Ids:
    """Return the ids at some places."""
    return _join_ids(
        np.frombuffer(bytearray(ids.joined), np.uint8),
        (ids.stops - ids.sizes)[places],
        ids.stops[places],
    )


def same_ids(ids: Ids, others: Ids) -> NDArray[np.bool_]:
    """Return the mask of ids that are equal to those at the same place of `others`, (n,); empty ids
    never are.
    """
    is_same = np.empty(len(ids), np.bool_)
    raw = [np.frombuffer(bytearray(part_ids.joined), np.uint8) for part_ids in (ids, others)]
    _compare(raw[0], ids.stops, raw[1], others.stops, is_same)
    return is_same


def _join_ids(raw: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Ids:
    return Ids(join_parts(raw, starts, ends), np.cumsum(ends - starts))


def gather(
    pages: Sequence[EntryPage | bytes],
    page_indices: NDArray[np.int64],
    places: NDArray[np.int64],
    row_dtype: np.dtype[Any],
    fields_dtype: np.dtype[Any],
) -> Gathered:
    """Return fields of the entries at `places` (n,) of the pages numbered `page_indices` (n,).

    `row_dtype` is the type of the pages' rows, whose last field is the end of the entry's id;
    `fields_dtype` names some of its fields.

    Raises:
        FormatError: a page is damaged.
    """
    parts: list[bytes | bytearray] = []
    counts = []  # the rows of each page; 0 for a stored page, which begins with their number
    for page in pages:
        if isinstance(page, EntryPage):
            parts += (page.data, page.ids)
            counts.append(len(page.data) // row_dtype.itemsize)
        else:
            parts += (page, b"")
            counts.append(0)
    sizes = np.fromiter(map(len, parts), np.int64, len(parts)).reshape(-1, 2).sum(1)
    raw = np.frombuffer(bytearray().join(parts), np.uint8)
    rows = np.empty(len(page_indices), fields_dtype)
    starts, ends = np.empty(len(page_indices), np.int64), np.empty(len(page_indices), np.int64)
    damaged = _gather(
        *(
            raw,
            np.cumsum(sizes),
            np.array(counts, np.int64),
            (row_dtype.itemsize, *_field_offsets_and_sizes(row_dtype, fields_dtype)),
            page_indices,
            places,
        ),
        *(rows.view(np.uint8).reshape(len(page_indices), fields_dtype.itemsize), starts, ends),
    )
    if damaged >= 0:
        raise FormatError(DAMAGED_PAGE)
    return Gathered(rows, raw, starts, ends)


@lru_cache
def _field_offsets_and_sizes(
    row_dtype: np.dtype[Any], fields_dtype: np.dtype[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offset of each field in a row, and its size, in bytes, (fields,) each."""
    fields: Any = row_dtype.fields
    offsets_sizes = [
        (fields[name][1], fields[name][0].itemsize) for name in fields_dtype.names or ()
    ]
    offset, size = np.array(offsets_sizes, np.int64).T.copy()
    return offset, size


@inlined
def _u16(raw: Any, position: Any) -> Any:
    return np.int64(raw[position]) + np.int64(raw[position + 1]) * 256


@kernel
def _gather(
    raw: Any,
    page_ends: Any,
    counts: Any,
    fields: Any,
    page_indices: Any,
    places: Any,
    rows: Any,
    starts: Any,
    ends: Any,
) -> Any:
    """Fill `rows` (n, bytes), and the start and end of each entry's id in `raw`.

    Return the row of an entry whose page is damaged, or -1.
    """
    row_bytes, field_offsets, field_sizes = fields
    for row in range(len(page_indices)):
        page, place = page_indices[row], places[row]
        rows_begin, page_end = page_ends[page - 1] if page else np.int64(0), page_ends[page]
        count = counts[page]
        is_by_row = count > 0
        if not is_by_row:
            if page_end - rows_begin < ROWS_BEGIN:
                return row
            count = _u16(raw, rows_begin)
            rows_begin += ROWS_BEGIN
        ids_begin = rows_begin + count * row_bytes
        if place >= count or ids_begin > page_end:
            return row
        filled = 0
        for field in range(len(field_offsets)):
            position = rows_begin + (
                place * row_bytes + field_offsets[field]
                if is_by_row
                else field_offsets[field] * count + place * field_sizes[field]
            )
            for byte in range(field_sizes[field]):
                rows[row, filled] = raw[position + byte]
                filled += 1
        row_step = row_bytes if is_by_row else np.int64(2)
        # The last field of a row is the end of its id.
        position = ids_begin - row_step * (count - 1 - place) - 2
        starts[row] = ids_begin + (_u16(raw, position - row_step) if place else np.int64(0))
        ends[row] = ids_begin + _u16(raw, position)
        if starts[row] > ends[row] or ends[row] > page_end:
            return row
    return -1


@kernel
def _compare(raw: Any, ends: Any, other_raw: Any, other_ends: Any, results: Any) -> None:
    begin = other_begin = np.int64(0)
    for row in range(len(results)):
        size = ends[row] - begin
        is_same = size > 0 and other_ends[row] - other_begin == size
        place = np.int64(0)
        while is_same and place < size:
            is_same = raw[begin + place] == other_raw[other_begin + place]
            place += 1
        results[row] = is_same
        begin, other_begin = ends[row], other_ends[row]
