"""What is kept of every representative on disk: rows in pages of 64, and the ids that go with them.

Invariants: entry n is row n mod 64 of page n // 64, for ever; a page is in memory while it has changes that are not
written, and the last page as long as it has room; a removed entry keeps its row, marked so.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
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

_PAGES_AT_ONCE: Final = 256


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
        self._dropped: list[tuple[int, int]] = []
        self.count = 0

    def load(self, count: int) -> NDArray[Any]:
        """Read all pages and return the rows of entries 0, 1, ... (count,); those of a page that was dropped are zero.

        Raises:
            FormatError: a page is damaged, or there are entries beyond `count`.
        """
        table = np.zeros(count, self._type)
        for key, value in self._store.scan(PREFIX_PAGE):
            first = number_of(key) * PAGE_ENTRIES
            size, rows, ids = split_rows(value, self._row.size)
            if first + size > count or size < min(PAGE_ENTRIES, count - first):
                raise FormatError(
                    f"The index volume holds a page of {size} entries from {first} on, and should hold {count} entries in all; "
                    "give the index an empty volume, and it is rebuilt from the log."
                )
            table[first : first + size] = np.frombuffer(rows, self._type)
            if size < PAGE_ENTRIES:
                self._open[number_of(key)] = _Page(rows, ids)
        self.count = count
        return table

    def live(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], bytes]]:
        """Yield (rows, the sizes of their ids, the ids one after another) of the live entries as stored, in log order.

        Many pages at a time; `ids_end` of a row has no meaning outside its page.

        Raises:
            FormatError: a page is damaged.
        """
        pages = self._store.scan(PREFIX_PAGE)
        while group := [split_rows(value, self._row.size) for _, value in itertools.islice(pages, _PAGES_AT_ONCE)]:
            rows = np.frombuffer(b"".join(raw for _, raw, _ in group), self._type)
            ids = b"".join(blob for _, _, blob in group)
            sizes = rows["ids_end"].astype(np.int64)
            sizes[1:] -= sizes[:-1].copy()
            firsts = np.cumsum([0, *(count for count, _, _ in group[:-1])])
            sizes[firsts] = rows["ids_end"][firsts]  # each page's ids begin anew
            is_live = rows["state"] != STATE_REMOVED
            if not is_live.all():
                ends = np.cumsum(sizes)
                begins = (ends - sizes)[is_live].tolist()
                ids = b"".join(ids[begin:end] for begin, end in zip(begins, ends[is_live].tolist(), strict=True))
                rows, sizes = rows[is_live], sizes[is_live]
            yield rows, sizes, ids

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

    def drop(self, numbers: NDArray[np.int64]) -> None:
        """Remove the entries of these numbers, ascending: whole pages as ranges, of other pages the single rows."""
        pages, first = np.unique(numbers // PAGE_ENTRIES, return_index=True)
        counts = np.diff([*first, len(numbers)])
        whole = (counts == PAGE_ENTRIES).tolist()
        for at, page in enumerate(pages.tolist()):
            if whole[at]:
                self._open.pop(page, None)
                self._changed.discard(page)
                if self._dropped and self._dropped[-1][1] == page:
                    self._dropped[-1] = (self._dropped[-1][0], page + 1)
                else:
                    self._dropped.append((page, page + 1))
            else:
                for number in numbers[first[at] : first[at] + counts[at]].tolist():
                    self.remove(number)

    def collect(self, writes: Writes) -> None:
        """Add the pages that changed since the last call."""
        for begin, end in self._dropped:
            writes.delete_range(page_key(begin), page_key(end))
        self._dropped.clear()
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
