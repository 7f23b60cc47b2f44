"""What is kept of every representative on disk: rows in pages of 64, and the ids that go with them.

Invariants: entry n is row n mod 64 of page n // 64, for ever; a page is in memory while it has changes that are not
written, and the last page as long as it has room; a removed entry keeps its row, marked so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.document import Reason
from stream_dedup.errors import FormatError
from stream_dedup.index.contract import Store
from stream_dedup.index.layout import (
    PAGE_ENTRIES,
    PREFIX_PAGE,
    STATE_DIGEST_ONLY,
    STATE_FULL,
    STATE_REMOVED,
    encode_rows,
    number_of,
    page_key,
    row_type,
    split_rows,
)
from stream_dedup.index.writes import Writes

_PAGES_A_STEP: Final = 4096


class Detail(NamedTuple):
    """One entry as stored; `print` is its words' bytes."""

    state: int
    text_digest: bytes
    print: bytes
    scope: int
    features: int
    source: int
    offset: int
    value_digest: int
    time_ms: int
    log_offset: int
    place: int
    append_ms: int
    id: bytes

    @property
    def reason(self) -> Reason:
        """Why it became a representative."""
        return Reason.TOO_SHORT if self.state == STATE_DIGEST_ONLY else Reason.NEW


class _Page:
    __slots__ = ("ids", "rows")

    def __init__(self, rows: bytes = b"", ids: bytes = b"") -> None:
        self.rows = bytearray(rows)
        self.ids = bytearray(ids)


class Entries:
    """All entries of a volume whose prints have `words` words."""

    def __init__(self, store: Store, words: int) -> None:
        self._store = store
        self._type = row_type(words)
        self._row = struct.Struct(f"<B16s{8 * words}sQIIqQqQHqH")
        self._open: dict[int, _Page] = {}
        self._changed: set[int] = set()
        self.count = 0

    def load(self) -> NDArray[Any]:
        """Read all pages and return the rows of entries 0, 1, ... (n,).

        Raises:
            FormatError: a page is missing or damaged.
        """
        parts: list[NDArray[Any]] = []
        raw: list[bytes] = []
        count = 0
        value = b""
        for key, value in self._store.scan(PREFIX_PAGE):
            if number_of(key) * PAGE_ENTRIES != count:
                raise FormatError("The index volume lacks a page of entries; give it an empty volume to rebuild.")
            size, rows, _ = split_rows(value, self._row.size)
            count += size
            raw.append(rows)
            if len(raw) == _PAGES_A_STEP:
                parts.append(np.frombuffer(b"".join(raw), self._type))
                raw = []
        parts.append(np.frombuffer(b"".join(raw), self._type))
        self.count = count
        if count % PAGE_ENTRIES:
            _, rows, ids = split_rows(value, self._row.size)
            self._open[count // PAGE_ENTRIES] = _Page(rows, ids)
        return np.concatenate(parts)

    def append(self, rows: NDArray[Any], ids: Sequence[bytes]) -> None:
        """Add entries; `rows` (n,) of the row type, whose `ids_end` is set here, `ids` one for each."""
        done = 0
        while done < len(rows):
            number, used = divmod(self.count, PAGE_ENTRIES)
            page = self._open.setdefault(number, _Page())
            self._changed.add(number)
            end = min(len(rows), done + PAGE_ENTRIES - used)
            part = rows[done:end]
            part["ids_end"] = np.cumsum([len(one) for one in ids[done:end]]) + len(page.ids)
            page.rows += part.tobytes()
            page.ids += b"".join(ids[done:end])
            self.count += end - done
            done = end

    def details(self, numbers: Iterable[int]) -> list[Detail]:
        """Return the entries of these numbers, in their order."""
        wanted = list(numbers)
        missing = list({number // PAGE_ENTRIES for number in wanted} - self._open.keys())
        pages: dict[int, tuple[bytes | bytearray, bytes | bytearray]] = {
            page: (self._open[page].rows, self._open[page].ids)
            for page in {number // PAGE_ENTRIES for number in wanted} & self._open.keys()
        }
        pages.update(zip(missing, self._read(missing), strict=True))
        return [self._detail(*pages[number // PAGE_ENTRIES], number % PAGE_ENTRIES) for number in wanted]

    def remove(self, number: int) -> Detail:
        """Mark an entry as removed and return what it was."""
        page_number, row = divmod(number, PAGE_ENTRIES)
        if page_number not in self._open:
            self._open[page_number] = _Page(*self._read([page_number])[0])
        page = self._open[page_number]
        detail = self._detail(page.rows, page.ids, row)
        page.rows[row * self._row.size] = STATE_REMOVED
        self._changed.add(page_number)
        return detail

    def collect(self, writes: Writes) -> None:
        """Add the pages that changed since the last call."""
        for number in sorted(self._changed):
            page = self._open[number]
            count = len(page.rows) // self._row.size
            writes.put(page_key(number), encode_rows(bytes(page.rows), count, bytes(page.ids)))
            if count == PAGE_ENTRIES:
                del self._open[number]
        self._changed.clear()

    def _read(self, pages: Sequence[int]) -> list[tuple[bytes, bytes]]:
        if not pages:
            return []
        found = []
        for value in self._store.get_many([page_key(page) for page in pages]):
            if value is None:
                raise FormatError("The index volume lacks a page of entries; give it an empty volume to rebuild.")
            found.append(split_rows(value, self._row.size)[1:])
        return found

    def _detail(self, rows: bytes | bytearray, ids: bytes | bytearray, row: int) -> Detail:
        at = row * self._row.size
        *fields, end = self._row.unpack_from(rows, at)
        begin = int.from_bytes(rows[at - 2 : at], "little") if row else 0  # the row before ends with its ids_end
        return Detail._make((*fields, bytes(ids[begin:end])))


def live_and_full(states: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the entries that are live, and of those that have neighbours, ascending."""
    return np.flatnonzero(states != STATE_REMOVED), np.flatnonzero(states == STATE_FULL)
