"""The stored representatives: rows in pages of 64 with their ids.

Invariants: entry n is always row n mod 64 of page n // 64. A page is in memory while it has unwritten
changes, and the last page while it has room. The row of a removed entry is all zeros; once all
entries of a page are removed, the page is deleted. Opening without table files reads all pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import FormatError
from stream_dedup.domain.lazy_sequences import Ids
from stream_dedup.index.storage.columns import (
    REMOVED,
    Columns,
    StoredRows,
    copy_columns,
    make_columns,
    stored_rows,
    with_origins,
)
from stream_dedup.index.storage.contract import Store, Writes
from stream_dedup.index.storage.layout import (
    DAMAGED_PAGE,
    PAGE_ENTRIES,
    PREFIX_PAGE,
    count_rows,
    decode_columns,
    encode_parts,
    encode_rows,
    loaded_type,
    number_of,
    page_key,
    row_fields,
    row_type,
    split_rows,
)
from stream_dedup.index.storage.pages import EntryPage, Gathered, gather, select_ids
from stream_dedup.index.storage.tags import crcs_of

_PAGES_AT_ONCE: Final = 256
_PAGE_MISSING: Final = (
    "The index volume does not contain a page of its entries. Start the index with an empty "
    "volume; it is rebuilt from the log."
)


class EntryBytes:
    """Optional bytes of entries, stored under the key that `key_of` returns; empty ones are not
    stored.

    `changed` contains the bytes that changed since the last write. Those of entries below
    `dropped_below` are deleted.
    """

    def __init__(self, store: Store, key_of: Callable[[int], bytes]) -> None:
        self._store, self._key_of = store, key_of
        self.changed: dict[int, bytes] = {}
        self._deleted_below = 0  # as of the last write
        self.dropped_below = 0

    def read(self, entries: Sequence[int]) -> dict[int, bytes]:
        """Return the bytes of those of these entries that have any."""
        stored = [entry for entry in entries if entry not in self.changed]
        values = self._store.get_many(list(map(self._key_of, stored))) if stored else []
        values_by_entry = self.changed | dict(zip(stored, values, strict=True))
        return {entry: value for entry in entries if (value := values_by_entry[entry])}

    def drop(self, entries: Collection[int]) -> None:
        """Delete the bytes of entries that are no longer representatives."""
        self.changed.update(dict.fromkeys(entries, b""))

    def drop_below(self, first: int) -> None:
        """Delete the bytes of all entries below `first`, whose window has passed."""
        self.dropped_below = max(self.dropped_below, first)
        self.changed = {entry: value for entry, value in self.changed.items() if entry >= first}

    def add_writes(self, writes: Writes) -> None:
        """Add the changes since the last call."""
        if self.dropped_below > self._deleted_below:
            writes.delete_range(self._key_of(self._deleted_below), self._key_of(self.dropped_below))
            self._deleted_below = self.dropped_below
        for entry, value in self.changed.items():
            if value:
                writes.put(self._key_of(entry), value)
            else:
                writes.delete(self._key_of(entry))
        self.changed.clear()


class RepresentativeColumns(NamedTuple):
    """The fields of representatives that the verdict on a duplicate contains, as columns (n,)."""

    sources: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    log_offsets: NDArray[np.int64]
    places: NDArray[np.int64]
    features: NDArray[np.uint32]
    ids: Ids

    def select(self, mask: NDArray[np.bool_]) -> RepresentativeColumns:
        """Return the rows in `mask` (n,)."""
        if mask.all():
            return self
        columns: list[Any] = [column[mask] for column in self[:-1]]
        columns.append(select_ids(self.ids, np.flatnonzero(mask)))
        return RepresentativeColumns(*columns)


# The fields of `RepresentativeColumns` without the id, and their types as columns.
_REPRESENTATIVE_COLUMNS: Final = {
    "source": "u4",
    "offset": "i8",
    "time_ms": "i8",
    "log_offset": "i8",
    "place": "i8",
    "features": "u4",
}
_REPRESENTATIVE: Final = row_fields(*_REPRESENTATIVE_COLUMNS)
# The fields that distinguish entries with equal prints: text, scope, position and value.
_IDENTITY: Final = row_fields("text_digest", "scope", "source", "offset", "value_digest")


def columns_of(rows: NDArray[Any], ids: Sequence[bytes]) -> Columns:
    """Return stored rows (n,) and their ids as the columns that the tables in memory need."""
    digests = np.array(rows["text_digest"], np.uint8).view(np.uint64)
    crcs = crcs_of(ids)
    columns = Columns(
        prints=rows["print"],
        scopes=rows["scope"],
        digests=digests,
        sources=rows["source"],
        offsets=rows["offset"],
        value_digests=rows["value_digest"],
        features=rows["features"],
        sketches=with_origins(rows["sketch"], rows["site"], rows["title"], crcs),
        ids=crcs,
    )
    return copy_columns(columns)


class Entries:
    """All entries of a volume, with prints of `limbs` limbs and sketches of `sketch_bytes` bytes."""

    def __init__(self, store: Store, limbs: int, sketch_bytes: int = 0) -> None:
        self._store = store
        self._limbs = limbs
        self._sketch_bytes = sketch_bytes
        self._type = row_type(limbs, sketch_bytes)
        self._open_pages: dict[int, EntryPage] = {}
        self._changed_pages: set[int] = set()
        self._deleted_pages: list[int] = []
        self._reader = ThreadPoolExecutor(1)
        self.count = 0

    def load(self, count: int, live: int, first: int = 0) -> Iterator[StoredRows]:
        """Yield the live entries from number `first` on, many pages at a time.

        There must be `live` of them; `count` is the number of all entries so far. Consume the
        iterator before any other call.

        Raises:
            FormatError: a page is damaged or missing.
        """
        self.count = count
        self._load_open_page()
        live_found = 0
        for part in self._read_ahead(self._scan_columns(first)):
            live_found += len(part.numbers)
            if live_found > live:
                break
            if len(part.numbers):
                yield part
        if live_found != live:
            raise FormatError(
                f"The index volume contains {'more' if live_found > live else live_found} live "
                f"entries instead of {live}. Start the index with an empty volume; it is rebuilt "
                "from the log."
            )

    def _load_open_page(self) -> None:
        """Load the last page, if it has room."""
        page, size = divmod(self.count, PAGE_ENTRIES)
        if not size:
            return
        (value,) = self._store.get_many([page_key(page)])
        rows, ids = (np.empty(0), b"") if value is None else self._decode_page(value)
        if len(rows) != size:
            raise FormatError(_PAGE_MISSING)
        self._open_pages[page] = EntryPage(rows.tobytes(), ids)

    def _read_ahead(self, parts: Iterator[StoredRows]) -> Iterator[StoredRows]:
        """Yield parts. A thread reads the next one while the caller uses the current one."""
        reading = self._reader.submit(next, parts, None)
        while (part := reading.result()) is not None:
            reading = self._reader.submit(next, parts, None)
            yield part

    def _scan_columns(self, first: int) -> Iterator[StoredRows]:
        """Yield the live entries from number `first` on, which can be within a page."""
        fields = loaded_type(self._limbs, self._sketch_bytes)
        for numbers, gathered in self._scan(first // PAGE_ENTRIES, fields):
            is_yielded = (gathered.rows["state"] != REMOVED) & (numbers >= first)
            live = gathered.select(is_yielded)
            yield stored_rows(
                numbers[is_yielded], columns_of(live.rows, live.ids()), live.rows["state"]
            )

    def _scan(
        self, first_page: int, fields: np.dtype[Any]
    ) -> Iterator[tuple[NDArray[np.int64], Gathered]]:
        """Yield (numbers, fields of these entries) of all stored pages from `first_page` on, many pages
        at a time; also of removed entries.

        Raises:
            FormatError: a page is damaged, or has entries that were never added.
        """
        pages = self._store.scan(PREFIX_PAGE, page_key(first_page))
        while part := list(itertools.islice(pages, _PAGES_AT_ONCE)):
            counts = [count_rows(value) for _, value in part]
            if not all(counts):
                raise FormatError(DAMAGED_PAGE)
            firsts = np.array([number_of(key) * PAGE_ENTRIES for key, _ in part])
            numbers = np.repeat(firsts, counts)
            numbers += np.concatenate([np.arange(count) for count in counts])
            if numbers[-1] >= self.count:
                raise FormatError(
                    f"The index volume contains more entries than the {self.count} that it "
                    "records. Start the index with an empty volume; it is rebuilt from the log."
                )
            yield (
                numbers,
                gather(
                    [value for _, value in part],
                    np.repeat(np.arange(len(part)), counts),
                    numbers % PAGE_ENTRIES,
                    self._type,
                    fields,
                ),
            )

    def scan_live(self) -> Iterator[tuple[NDArray[Any], Ids]]:
        """Yield (rows, ids) of the live entries, in log order, many pages at a time.

        `ids_end` of a row has no meaning outside its page.

        Raises:
            FormatError: a page is damaged.
        """
        for _, gathered in self._scan(0, self._type):
            live = gathered.select(gathered.rows["state"] != REMOVED)
            yield live.rows, live.ids()

    def append(self, rows: NDArray[Any], ids: Ids) -> None:
        """Add entries: `rows` (n,) of the row type, whose `ids_end` is set here, and one id for
        each.
        """
        added = first_byte = 0
        while added < len(rows):
            number, used = divmod(self.count, PAGE_ENTRIES)
            page = self._open_pages.setdefault(number, EntryPage())
            self._changed_pages.add(number)
            end = min(len(rows), added + PAGE_ENTRIES - used)
            page_rows, end_byte = rows[added:end], int(ids.stops[end - 1])
            page_rows["ids_end"] = ids.stops[added:end] - (first_byte - len(page.ids))
            page.data += page_rows.tobytes()
            page.ids += ids.joined[first_byte:end_byte]
            self.count += end - added
            added, first_byte = end, end_byte

    def representatives(self, numbers: NDArray[np.int64]) -> RepresentativeColumns:
        """Return the fields of the entries of these numbers, in their order."""
        gathered = self._gather(numbers, _REPRESENTATIVE)
        columns: list[Any] = [
            *(gathered.rows[name].astype(dtype) for name, dtype in _REPRESENTATIVE_COLUMNS.items()),
            gathered.ids(),
        ]
        return RepresentativeColumns(*columns)

    def rows(self, numbers: NDArray[np.int64]) -> tuple[NDArray[Any], Ids]:
        """Return (rows, ids) of the entries of these numbers, in their order."""
        gathered = self._gather(numbers, self._type)
        return gathered.rows, gathered.ids()

    def texts(self, numbers: NDArray[np.int64]) -> list[tuple[int, bytes, bytes]]:
        """Return (scope, id, text digest) of the entries of these numbers, in their order."""
        gathered = self._gather(numbers, _IDENTITY)
        digests = map(bytes, gathered.rows["text_digest"])
        return list(zip(gathered.rows["scope"].tolist(), gathered.ids(), digests, strict=True))

    def identities(self, numbers: NDArray[np.int64]) -> Columns:
        """Return the columns that distinguish the entries of these numbers, in their order.

        The other columns are empty.
        """
        rows = self._gather(numbers, _IDENTITY).rows
        return make_columns(self._limbs, 0, self._sketch_bytes)._replace(
            scopes=rows["scope"],
            digests=np.ascontiguousarray(rows["text_digest"]).view(np.uint64),
            sources=rows["source"],
            offsets=rows["offset"],
            value_digests=rows["value_digest"],
        )

    def drop(self, numbers: NDArray[np.int64]) -> None:
        """Remove live entries, given in ascending order: no id, no print, no position remains.

        The cost is proportional to the number of their pages.
        """
        for page, places in _group_by(numbers, PAGE_ENTRIES):
            if len(places) < PAGE_ENTRIES:  # otherwise the whole page is deleted without reading it
                page_data = self._open_page(page)
                rows = np.frombuffer(page_data.data, self._type).copy()
                page_ids = _split_ids(rows, bytes(page_data.ids))
                rows[places] = np.zeros(len(places), self._type)
                for place in places.tolist():
                    page_ids[place] = b""
                rows["ids_end"] = np.cumsum([len(part) for part in page_ids])
                if len(rows) < PAGE_ENTRIES or rows["state"].any():
                    self._open_pages[page] = EntryPage(rows.tobytes(), b"".join(page_ids))
                    self._changed_pages.add(page)
                    continue
            self._open_pages.pop(page, None)
            self._changed_pages.discard(page)
            self._deleted_pages.append(page)

    def add_writes(self, writes: Writes) -> None:
        """Add the pages that changed since the last call."""
        for first, end in _runs(self._deleted_pages):
            writes.delete_range(page_key(first), page_key(end))
        size = PAGE_ENTRIES * self._type.itemsize
        full = [
            number
            for number in sorted(self._changed_pages)
            if len(self._open_pages[number].data) == size
        ]
        for page_numbers in (full, *([number] for number in self._changed_pages.difference(full))):
            rows = np.frombuffer(
                b"".join([self._open_pages[number].data for number in page_numbers]), self._type
            )
            for number, columns in zip(
                page_numbers, encode_parts(rows, len(page_numbers)), strict=True
            ):
                writes.put(
                    page_key(number),
                    encode_rows(
                        columns, len(rows) // len(page_numbers), bytes(self._open_pages[number].ids)
                    ),
                )
        for number in full:
            del self._open_pages[number]
        self._changed_pages.clear()
        self._deleted_pages.clear()

    def _open_page(self, number: int) -> EntryPage:
        (page,) = self._pages([number])
        if isinstance(page, bytes):
            rows, ids = self._decode_page(page)
            page = self._open_pages[number] = EntryPage(rows.tobytes(), ids)
        return page

    def _decode_page(self, value: bytes) -> tuple[NDArray[Any], bytes]:
        """Return (rows, ids) of a stored page."""
        count, raw, ids = split_rows(value, self._type.itemsize)
        return decode_columns(raw, count, self._type), ids

    def _gather(self, numbers: NDArray[np.int64], fields: np.dtype[Any]) -> Gathered:
        pages, page_indices = np.unique(numbers // PAGE_ENTRIES, return_inverse=True)
        return gather(
            self._pages(pages.tolist()), page_indices, numbers % PAGE_ENTRIES, self._type, fields
        )

    def _pages(self, numbers: Sequence[int]) -> list[EntryPage | bytes]:
        """Return pages by number, unwritten changes included."""
        stored = [number for number in numbers if number not in self._open_pages]
        values = dict(zip(stored, self._store.get_many(list(map(page_key, stored))), strict=True))
        pages = [self._open_pages.get(number) or values[number] for number in numbers]
        existing = [page for page in pages if page is not None]
        if len(existing) < len(pages):
            raise FormatError(_PAGE_MISSING)
        return existing


def _split_ids(rows: NDArray[Any], ids: bytes) -> list[bytes]:
    """Return the ids of a page's rows."""
    return [ids[begin:end] for begin, end in itertools.pairwise([0, *rows["ids_end"].tolist()])]


def _group_by(numbers: NDArray[np.int64], size: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Return (group, places in it) of ascending numbers, in groups of `size`."""
    if not len(numbers):
        return []
    groups, first = np.unique(numbers // size, return_index=True)
    return list(zip(groups.tolist(), np.split(numbers % size, first[1:]), strict=True))


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers as ranges (first, end) of consecutive ones."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number:
            runs[-1] = runs[-1][0], number + 1
        else:
            runs.append((number, number + 1))
    return runs
