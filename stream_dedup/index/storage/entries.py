"""The stored representatives: rows in pages of 64 with their ids.

Invariants: entry n is always row n mod 64 of page n // 64; a page is in memory while it has
unwritten changes, and the last page while it has room; a removed entry keeps its row, which is
marked, until all entries of its page are removed: then the page is deleted. Opening without table
files reads all pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import FormatError, InvariantError
from stream_dedup.domain.lazy import Ids
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
    SEGMENT_ENTRIES,
    count_rows,
    decode_columns,
    encode_parts,
    encode_rows,
    id_tags_key,
    loaded_type,
    number_of,
    page_key,
    row_fields,
    row_type,
    split_rows,
)
from stream_dedup.index.storage.pages import EntryPage, Gathered, gather, select_ids
from stream_dedup.index.storage.tags import Tags, crcs_of

_PAGES_AT_ONCE: Final = 256
NO_TAG: Final = 0
_SEGMENTS_AT_ONCE: Final = 64
_LOW_BITS: Final = 0xFFFF
_PAGE_MISSING: Final = (
    "The index volume lacks a page of entries; give it an empty volume to rebuild."
)


class EntryBytes:
    """Optional bytes of entries, under the key that `key_of` returns; empty bytes are not stored.

    `changed` contains those that changed since the last write; all below `dropped_below` are gone.
    """

    def __init__(self, store: Store, key_of: Callable[[int], bytes]) -> None:
        self._store, self._key_of = store, key_of
        self.changed: dict[int, bytes] = {}
        self._deleted_below = 0  # all keys below it are deleted
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
    """The fields of named entries that a duplicate's verdict contains, as columns (n,)."""

    sources: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    log_offsets: NDArray[np.int64]
    places: NDArray[np.int64]
    features: NDArray[np.uint32]
    ids: Ids

    def select(self, is_chosen: NDArray[np.bool_]) -> RepresentativeColumns:
        """Return the rows for which `is_chosen` (n,) is true."""
        if is_chosen.all():
            return self
        columns: list[Any] = [column[is_chosen] for column in self[:-1]]
        columns.append(select_ids(self.ids, np.flatnonzero(is_chosen)))
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
_STATE: Final = row_fields("state")
_IDENTITY: Final = row_fields("text_digest", "scope", "source", "offset", "value_digest")


def columns_of(rows: NDArray[Any], ids: Sequence[bytes]) -> Columns:
    """Return the columns that the tables in memory need of stored rows (n,) and their ids."""
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


class IdTags:
    """The tags of ids, four bytes each, by which a take-down finds entries and reads a few pages
    only.

    One value contains the tags of 4,096 entries, a segment; the tags after the last whole segment
    are in memory. Another id may have the same tag, so the caller compares the entry's id.

    Invariants: the tag of an entry whose id was wiped is wiped; with a hundred million entries 400
    MB are read, with a beat after every megabyte.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._first = 0  # the first segment with a page
        self._deleted_below = 0
        self._frozen = 0  # the number of whole segments so far
        self._tail: list[Tags] = []
        self._changed: dict[int, Tags] = {}

    def load(self, first: int, frozen: int, tail: Tags) -> None:
        """Continue with stored segments from `first` up to `frozen`, and the tags after them."""
        self._first, self._frozen, self._tail = first, frozen, [tail]

    def append(self, ids: Sequence[bytes]) -> None:
        """Add the ids of the next entries."""
        self._tail.append(crcs_of(ids))

    def drop_below(self, segment: int) -> None:
        """Delete all segments below one: they have no pages any more."""
        self._first = segment

    def wipe(self, segment: int, places: NDArray[np.int64]) -> None:
        """Wipe the tags of entries of one segment, or of the tail."""
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

    def candidates(
        self, ids: Collection[bytes], beat: Callable[[], None]
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of all entries that may have one of these ids, ascending, also of
        removed ones.
        """
        wanted = np.unique(crcs_of(list(ids)))
        low_hits = np.zeros(_LOW_BITS + 1, np.bool_)
        low_hits[wanted & _LOW_BITS] = True
        for first in range(self._first, self._frozen, _SEGMENTS_AT_ONCE):
            segments = range(first, min(first + _SEGMENTS_AT_ONCE, self._frozen))
            for segment, tags in zip(segments, self._read(segments), strict=True):
                if tags is not None and len(places := _places_of(tags, low_hits, wanted)):
                    yield segment * SEGMENT_ENTRIES + places
            beat()
        yield self._frozen * SEGMENT_ENTRIES + _places_of(self._whole_tail(), low_hits, wanted)

    def add_writes(self, writes: Writes) -> None:
        """Add the changes since the last call."""
        tail = self._whole_tail()
        while len(tail) >= SEGMENT_ENTRIES:
            self._changed[self._frozen], tail = tail[:SEGMENT_ENTRIES], tail[SEGMENT_ENTRIES:]
            self._frozen += 1
        self._tail = [tail.copy()]
        if self._first > self._deleted_below:
            writes.delete_range(id_tags_key(self._deleted_below), id_tags_key(self._first))
            self._deleted_below = self._first
        for segment, tags in self._changed.items():
            if segment >= self._first:
                writes.put(id_tags_key(segment), tags.astype("<u4").tobytes())
        self._changed.clear()

    def _read(self, segments: Sequence[int]) -> list[Tags | None]:
        stored = self._store.get_many([id_tags_key(segment) for segment in segments])
        read = [value if value is None else _decode_tags(value) for value in stored]
        return [
            self._changed.get(segment, tags) for segment, tags in zip(segments, read, strict=True)
        ]

    def _whole_tail(self) -> Tags:
        return np.concatenate(self._tail or [np.empty(0, np.uint32)])


class Entries:
    """All entries of a volume, with prints of `limbs` limbs and sketches of `sketch_bytes` bytes."""

    def __init__(
        self,
        store: Store,
        limbs: int,
        sketch_bytes: int = 0,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the entries; `beat` is called during long work to show progress."""
        self._store = store
        self._beat = beat
        self._tags = IdTags(store)
        self._limbs = limbs
        self._sketch_bytes = sketch_bytes
        self._type = row_type(limbs, sketch_bytes)
        self._open_pages: dict[int, EntryPage] = {}
        self._changed: set[int] = set()
        self._dropped: list[int] = []
        self._reader = ThreadPoolExecutor(1)
        self._first_page = 0  # the first that is not deleted
        self.count = 0

    def load(self, count: int, live: int, first: int = 0) -> Iterator[StoredRows]:
        """Yield the live entries from number `first` on, many pages at a time.

        `live` is their number, `count` the number of all entries so far. The caller reads all parts
        before any other call.

        Raises:
            FormatError: a page is damaged or missing.
        """
        self.count = count
        self._load_open_page()
        self._load_tags()
        live_found = 0
        for part in self._read_ahead(self._scan_columns(first)):
            live_found += len(part.numbers)
            if live_found > live:
                break
            if len(part.numbers):
                yield part
        if live_found != live:
            raise FormatError(
                f"The index volume holds {'more' if live_found > live else live_found} live entries and "
                f"should hold {live}; give the index an empty volume, and it is rebuilt."
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

    def _load_tags(self) -> None:
        self._first_page = self._next_page(0)
        frozen = self.count // SEGMENT_ENTRIES
        tail = np.full(self.count % SEGMENT_ENTRIES, NO_TAG, np.uint32)
        first = frozen * SEGMENT_ENTRIES
        for numbers, gathered in self._scan(first // PAGE_ENTRIES, _STATE):
            tail[numbers - first] = crcs_of(gathered.ids())
        self._tags.load(self._first_page * PAGE_ENTRIES // SEGMENT_ENTRIES, frozen, tail)

    def _read_ahead(self, parts: Iterator[StoredRows]) -> Iterator[StoredRows]:
        """Yield parts; each is read while the caller uses the one before."""
        reading = self._reader.submit(next, parts, None)
        while (part := reading.result()) is not None:
            reading = self._reader.submit(next, parts, None)
            yield part

    def _scan_columns(self, first: int) -> Iterator[StoredRows]:
        """Yield the live entries from number `first` on, which can be within a page."""
        fields = loaded_type(self._limbs, self._sketch_bytes)
        for numbers, gathered in self._scan(first // PAGE_ENTRIES, fields):
            is_wanted = (gathered.rows["state"] != REMOVED) & (numbers >= first)
            live = gathered.select(is_wanted)
            yield stored_rows(
                numbers[is_wanted], columns_of(live.rows, live.ids()), live.rows["state"]
            )

    def _scan(
        self, first_page: int, fields: np.dtype[Any]
    ) -> Iterator[tuple[NDArray[np.int64], Gathered]]:
        """Yield (numbers, fields of these entries) of all stored pages from one on, also of removed
        entries, many pages at a time.

        Raises:
            FormatError: a page is damaged, or has entries that should not be there.
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
                    f"The index volume holds entries beyond the {self.count} that it should hold; "
                    "give the index an empty volume, and it is rebuilt."
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

    def _next_page(self, page: int) -> int:
        """Return the number of the first page from `page` on that is stored or has changes."""
        stored = next(self._store.scan(PREFIX_PAGE, page_key(page)), None)
        if stored is not None:
            return number_of(stored[0])
        return min(self._open_pages, default=self.count // PAGE_ENTRIES)

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
        self._tags.append(ids)
        added = begin_byte = 0
        while added < len(rows):
            number, used = divmod(self.count, PAGE_ENTRIES)
            page = self._open_pages.setdefault(number, EntryPage())
            self._changed.add(number)
            end = min(len(rows), added + PAGE_ENTRIES - used)
            page_rows, end_byte = rows[added:end], int(ids.stops[end - 1])
            page_rows["ids_end"] = ids.stops[added:end] - (begin_byte - len(page.ids))
            page.data += page_rows.tobytes()
            page.ids += ids.joined[begin_byte:end_byte]
            self.count += end - added
            added, begin_byte = end, end_byte

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
        """Remove live entries, given in ascending order.

        The cost is proportional to the number of their pages.
        """
        size = self._type.itemsize
        for page, places in _group_by(numbers, PAGE_ENTRIES):
            if len(places) == PAGE_ENTRIES:  # expired together: the page is not read
                self._open_pages.pop(page, None)
                self._changed.discard(page)
                self._dropped.append(page)
                continue
            page_data = self._open_page(page)
            states = np.frombuffer(page_data.data, self._type)["state"]
            states[places] = REMOVED
            is_full = len(page_data.data) == PAGE_ENTRIES * size
            if is_full and not states.any():
                del states, self._open_pages[page]
                self._changed.discard(page)
                self._dropped.append(page)
            else:
                self._changed.add(page)

    def find_ids(self, ids: Collection[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return (numbers, which are live) of all rows with one of these ids, ascending.

        Reads only the pages of entries whose tags match.
        """
        numbers_found: list[int] = []
        is_live: list[bool] = []
        for numbers in self._tags.candidates(ids, self._beat):
            pages = _group_by(numbers, PAGE_ENTRIES)
            for (page, places), page_value in zip(
                pages, self._read_pages([page for page, _ in pages]), strict=True
            ):
                if page_value is None:
                    continue
                rows, page_ids = page_value
                begins = [0, *rows["ids_end"].tolist()]
                for place in places.tolist():
                    if page_ids[begins[place] : begins[place + 1]] in ids:
                        numbers_found.append(page * PAGE_ENTRIES + place)
                        is_live.append(rows["state"][place] != REMOVED)
        return np.array(numbers_found, np.int64), np.array(is_live, np.bool_)

    def wipe(self, numbers: NDArray[np.int64]) -> None:
        """Set removed entries to zeros: no id, no print, no position remains."""
        for page, places in _group_by(numbers, PAGE_ENTRIES):
            if page in self._dropped:
                continue
            page_data = self._open_page(page)
            rows = np.frombuffer(page_data.data, self._type).copy()
            page_ids = _split_ids(rows, bytes(page_data.ids))
            for place in places.tolist():
                if rows["state"][place] != REMOVED:
                    raise InvariantError("A live entry was to be wiped; this is an internal error.")
                page_ids[place] = b""
                rows[place] = np.zeros(1, self._type)[0]
            rows["ids_end"] = np.cumsum([len(part) for part in page_ids])
            self._open_pages[page] = EntryPage(rows.tobytes(), b"".join(page_ids))
            self._changed.add(page)
        for segment, places in _group_by(numbers, SEGMENT_ENTRIES):
            self._tags.wipe(segment, places)

    def add_writes(self, writes: Writes) -> None:
        """Add the pages that changed since the last call, and the tags of ids."""
        for first, end in _runs(self._dropped):
            writes.delete_range(page_key(first), page_key(end))
            if first <= self._first_page < end:
                self._first_page = self._next_page(end)
        self._tags.drop_below(self._first_page * PAGE_ENTRIES // SEGMENT_ENTRIES)
        size = PAGE_ENTRIES * self._type.itemsize
        full = [
            number for number in sorted(self._changed) if len(self._open_pages[number].data) == size
        ]
        for page_numbers in (full, *([number] for number in self._changed.difference(full))):
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
        self._changed.clear()
        self._dropped.clear()
        self._tags.add_writes(writes)

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

    def _read_pages(self, pages: Sequence[int]) -> list[tuple[NDArray[Any], bytes] | None]:
        """Return (rows, ids) of each page, unwritten changes included, None for a deleted one;
        cache none.
        """
        values = self._store.get_many([page_key(page) for page in pages])
        contents: list[tuple[NDArray[Any], bytes] | None] = []
        for page, value in zip(pages, values, strict=True):
            changed = self._open_pages.get(page)
            if changed is not None:
                rows = np.frombuffer(bytes(changed.data), self._type)
                contents.append((rows, bytes(changed.ids)))
            elif value is None or page in self._dropped:
                contents.append(None)
            else:
                contents.append(self._decode_page(value))
        return contents

    def _gather(self, numbers: NDArray[np.int64], fields: np.dtype[Any]) -> Gathered:
        pages, page_indices = np.unique(numbers // PAGE_ENTRIES, return_inverse=True)
        return gather(
            self._pages(pages.tolist()), page_indices, numbers % PAGE_ENTRIES, self._type, fields
        )

    def _pages(self, wanted: Sequence[int]) -> list[EntryPage | bytes]:
        """Return pages by number, unwritten changes included."""
        stored = [number for number in wanted if number not in self._open_pages]
        values = dict(zip(stored, self._store.get_many(list(map(page_key, stored))), strict=True))
        pages = [self._open_pages.get(number) or values[number] for number in wanted]
        found = [page for page in pages if page is not None]
        if len(found) < len(pages):
            raise FormatError(_PAGE_MISSING)
        return found


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
    """Return numbers as ranges (first, end)."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number:
            runs[-1] = runs[-1][0], number + 1
        else:
            runs.append((number, number + 1))
    return runs


def _places_of(tags: Tags, low_hits: NDArray[np.bool_], wanted: Tags) -> NDArray[np.int64]:
    likely = np.flatnonzero(low_hits[tags & _LOW_BITS])
    return likely[np.isin(tags[likely], wanted)]


def _decode_tags(value: bytes) -> Tags:
    if len(value) != 4 * SEGMENT_ENTRIES:
        raise FormatError(DAMAGED_PAGE)
    return np.frombuffer(value, "<u4")
