"""What is kept of every representative on disk: rows in pages of 64 with their ids, and segments for opening.

Invariants: entry n is row n mod 64 of page n // 64, for ever; a page is in memory while it has changes that are not
written, and the last page as long as it has room; a removed entry keeps its row, marked so, until all of its page are
removed: then the page goes. Of every 4,096 entries whose pages are full, a segment holds what the tables in memory need,
live ones only, so opening reads a third of the bytes in a few large values, and nothing else but the last pages.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.document import Reason, maker_of
from stream_dedup.errors import FormatError, InvariantError
from stream_dedup.index import kernels
from stream_dedup.index.contract import Store
from stream_dedup.index.layout import (
    PAGE_ENTRIES,
    PREFIX_PAGE,
    PREFIX_SEGMENT,
    ROWS_AT,
    SEGMENT_ENTRIES,
    STATE_DIGEST_ONLY,
    STATE_REMOVED,
    check_rows,
    decode_columns,
    encode_columns,
    encode_rows,
    encode_segment,
    number_of,
    page_key,
    row_type,
    segment_key,
    segment_type,
    split_rows,
    view_segment,
)
from stream_dedup.index.writes import Writes

_FORMS: Final = {"u2": "H", "u4": "I", "u8": "Q", "i8": "q"}  # of `struct`; a type's own letter means another size there
_PAGES_KEPT: Final = 512
_PAGES_AT_ONCE: Final = 256
_LACKS: Final = "The index volume lacks a page of entries; give it an empty volume to rebuild."


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


class Origin(NamedTuple):
    """What a duplicate's verdict says of the entry that it names."""

    source: int
    offset: int
    time_ms: int
    log_offset: int
    place: int
    id: bytes


_origin = maker_of(Origin)
# What tells entries apart, whatever their prints: the text in its scope, and the position with the value that stood there.
_IDENTITY: Final = np.dtype(
    [("text_digest", "u1", (16,)), ("scope", "<u8"), ("source", "<u4"), ("offset", "<i8"), ("value_digest", "<u8")]
)


class Stored(NamedTuple):
    """The live entries as opening reads them: numbers (n,) int64, ascending, and the columns (n,) of their segment rows."""

    numbers: NDArray[np.int64]
    rows: dict[str, NDArray[Any]]


class _Page:
    """A page in memory, row by row."""

    __slots__ = ("_kind", "_size", "data", "ids")

    def __init__(self, kind: np.dtype[Any], rows: bytes = b"", ids: bytes = b"") -> None:
        self._kind, self._size = kind, kind.itemsize
        self.data = bytearray(rows)
        self.ids = bytearray(ids)

    def row(self, place: int) -> bytes:
        return bytes(self.data[place * self._size : (place + 1) * self._size])

    def identity(self, place: int) -> bytes:
        data, at = self.data, place * self._size
        return b"".join([data[at + before : at + before + size] for before, size in _identity_of(self._kind)])

    def ids_end(self, place: int) -> int:  # a row ends with it
        return int.from_bytes(self.data[(place + 1) * self._size - 2 : (place + 1) * self._size], "little")

    def id(self, place: int) -> bytes:
        return bytes(self.ids[self.ids_end(place - 1) if place else 0 : self.ids_end(place)])

    def origin(self, place: int) -> Origin:
        data, at = self.data, place * self._size
        fields = [take(data, at + before)[0] for before, _, take in _origin_of(self._kind)]
        fields.append(self.id(place))
        return _origin(fields)

    def rows(self) -> bytes:
        return bytes(self.data)


class _StoredPage:
    """A page as it was read, column by column: the rows' bytes begin at ROWS_AT of the value, the ids behind them."""

    __slots__ = ("_count", "_ids_at", "_kind", "_value")

    def __init__(self, kind: np.dtype[Any], value: bytes) -> None:
        self._kind, self._value = kind, value
        self._count, self._ids_at = check_rows(value, kind.itemsize)

    @property
    def ids(self) -> bytes:
        return self._value[self._ids_at :]

    def row(self, place: int) -> bytes:
        return self._fields(place, _columns_of(self._kind))

    def identity(self, place: int) -> bytes:
        return self._fields(place, _identity_of(self._kind))

    def _fields(self, place: int, columns: Iterable[tuple[int, int]]) -> bytes:
        value, count = self._value, self._count
        return b"".join([value[(at := ROWS_AT + before * count + place * size) : at + size] for before, size in columns])

    def id(self, place: int) -> bytes:
        value, first = self._value, self._ids_at
        at = first - 2 * (self._count - place)  # the last column says where ids end
        begin = int.from_bytes(value[at - 2 : at], "little") if place else 0
        return value[first + begin : first + int.from_bytes(value[at : at + 2], "little")]

    def origin(self, place: int) -> Origin:
        value, count = self._value, self._count
        fields = [take(value, ROWS_AT + before * count + place * size)[0] for before, size, take in _origin_of(self._kind)]
        fields.append(self.id(place))
        return _origin(fields)

    def rows(self) -> bytes:
        return decode_columns(self._value[ROWS_AT : self._ids_at], self._count, self._kind).tobytes()


def columns_of(rows: NDArray[Any]) -> kernels.Columns:
    """Return what the tables in memory take of stored rows (n,)."""
    return kernels.Columns(
        prints=np.array(rows["print"], np.uint64), scopes=np.array(rows["scope"], np.uint64),
        digests=np.array(rows["text_digest"], np.uint8).view(np.uint64), sources=np.array(rows["source"], np.uint32),
        offsets=np.array(rows["offset"], np.int64), values=np.array(rows["value_digest"], np.uint64),
        features=np.array(rows["features"], np.uint32),
    )  # fmt: skip


@lru_cache
def _columns_of(kind: np.dtype[Any]) -> list[tuple[int, int]]:
    """Return (bytes of a row before it, its own) of each field of a packed row."""
    return [(field[1], field[0].itemsize) for field in (kind.fields or {}).values()]


@lru_cache
def _identity_of(kind: np.dtype[Any]) -> list[tuple[int, int]]:
    """Return the same of the fields that tell entries apart, in the order of `_IDENTITY`."""
    fields: Any = kind.fields or {}
    return [(fields[name][1], fields[name][0].itemsize) for name in _IDENTITY.names or ()]


@lru_cache
def _origin_of(kind: np.dtype[Any]) -> list[tuple[int, int, Callable[..., tuple[Any, ...]]]]:
    """Return (bytes of a row before it, its own, how to read it) of each field of an `Origin` but the id."""
    fields: Any = kind.fields or {}
    found = [(fields[name][1], fields[name][0]) for name in Origin._fields[:-1]]
    return [(before, one.itemsize, struct.Struct(f"<{_FORMS[one.str[1:]]}").unpack_from) for before, one in found]


class Entries:
    """All entries of a volume whose prints have `words` words."""

    def __init__(self, store: Store, words: int) -> None:
        self._store = store
        self._words = words
        self._type = row_type(words)
        self._row = struct.Struct(f"<B16s{8 * words}sQIIqQqQHqH")
        self._open: dict[int, _Page] = {}
        self._changed: set[int] = set()
        self._dropped: list[int] = []
        self._kept: dict[int, _StoredPage] = {}
        self._reader = ThreadPoolExecutor(1)
        self._expected: tuple[list[int], Future[list[bytes | None]]] | None = None
        self._sealed = 0  # segments that are written
        self._tail: list[NDArray[Any]] = []  # the segment rows after them
        self._segments: dict[int, NDArray[Any]] = {}  # those that change in this step
        self.count = 0

    def load(self, count: int) -> Stored:
        """Read what the tables in memory need of `count` entries ever made.

        Raises:
            FormatError: a segment or one of the last pages is damaged or missing.
        """
        self.count = count
        self._sealed = count // SEGMENT_ENTRIES
        names = segment_type(self._words).names or ()
        numbers, parts = [np.empty(0, np.int64)], [self._columns_of(np.empty(0, segment_type(self._words)))]
        for key, segment in self._store.scan(PREFIX_SEGMENT):
            columns = view_segment(segment, self._words)
            if number_of(key) >= self._sealed:
                raise FormatError(
                    f"The index volume holds entries beyond the {count} that it should hold; give the index an empty volume, "
                    "and it is rebuilt from the log."
                )
            parts.append(columns)
            numbers.append(number_of(key) * SEGMENT_ENTRIES + columns["place"].astype(np.int64))
        pages = range(self._sealed * SEGMENT_ENTRIES // PAGE_ENTRIES, -(-count // PAGE_ENTRIES))
        for page, value in zip(pages, self._store.get_many([page_key(page) for page in pages]), strict=True):
            size = min(PAGE_ENTRIES, count - page * PAGE_ENTRIES)
            rows = np.zeros(size, self._type)  # a page that was dropped whole
            if value is not None:
                found, raw, ids = split_rows(value, self._row.size)
                if found != size:
                    raise FormatError(_LACKS)
                rows = decode_columns(raw, size, self._type)
                if size < PAGE_ENTRIES:
                    self._open[page] = _Page(self._type, rows.tobytes(), ids)
            part = self._segment_rows(rows, page * PAGE_ENTRIES)
            self._tail.append(part)
            live = part["state"] != STATE_REMOVED
            parts.append(self._columns_of(part[live]))
            numbers.append(page * PAGE_ENTRIES + np.flatnonzero(live))
        return Stored(np.concatenate(numbers), {name: np.concatenate([part[name] for part in parts]) for name in names})

    def live(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], bytes]]:
        """Yield (rows, the sizes of their ids, the ids one after another) of the live entries as stored, in log order.

        Many pages at a time; `ids_end` of a row has no meaning outside its page.

        Raises:
            FormatError: a page is damaged.
        """
        pages = self._store.scan(PREFIX_PAGE)
        while group := [split_rows(value, self._row.size) for _, value in itertools.islice(pages, _PAGES_AT_ONCE)]:
            rows = np.concatenate([decode_columns(raw, count, self._type) for count, raw, _ in group])
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
        self._tail.append(self._segment_rows(rows, self.count))
        done = 0
        while done < len(rows):
            number, used = divmod(self.count, PAGE_ENTRIES)
            page = self._open.setdefault(number, _Page(self._type))
            self._changed.add(number)
            end = min(len(rows), done + PAGE_ENTRIES - used)
            part = rows[done:end]
            part["ids_end"] = np.cumsum([len(one) for one in ids[done:end]]) + len(page.ids)
            page.data += part.tobytes()
            page.ids += b"".join(ids[done:end])
            self.count += end - done
            done = end

    def details(self, numbers: Iterable[int]) -> list[Detail]:
        """Return the entries of these numbers, in their order."""
        wanted = list(numbers)
        pages = self._pages({number // PAGE_ENTRIES for number in wanted})
        found = []
        for number in wanted:
            page, place = pages[number // PAGE_ENTRIES], number % PAGE_ENTRIES
            *fields, _ = self._row.unpack(page.row(place))
            found.append(Detail._make((*fields, page.id(place))))
        return found

    def expect(self, numbers: Iterable[int]) -> None:
        """Begin to read the pages of these entries, beside what the caller does before it asks for them.

        Some may be entries that are yet to be appended: nothing is to be read of those.
        """
        self._keep_few()
        missing = self._missing({number // PAGE_ENTRIES for number in numbers if number < self.count})
        if missing:
            self._expected = missing, self._reader.submit(self._store.get_many, list(map(page_key, missing)))

    def origins(self, numbers: Sequence[int]) -> list[Origin]:
        """Return what is to be said of the entries of these numbers, in their order."""
        pages = self._pages({number // PAGE_ENTRIES for number in numbers})
        return [pages[number // PAGE_ENTRIES].origin(number % PAGE_ENTRIES) for number in numbers]

    def identities(self, numbers: Sequence[int]) -> kernels.Columns:
        """Return what tells the entries of these numbers from others, in their order; columns of anything else are empty."""
        pages = self._pages({number // PAGE_ENTRIES for number in numbers})
        found = [pages[number // PAGE_ENTRIES].identity(number % PAGE_ENTRIES) for number in numbers]
        rows = np.frombuffer(b"".join(found), _IDENTITY)
        return kernels.no_columns(self._words, 0)._replace(
            scopes=rows["scope"], digests=np.ascontiguousarray(rows["text_digest"]).view(np.uint64), sources=rows["source"],
            offsets=rows["offset"], values=rows["value_digest"],
        )  # fmt: skip

    def drop(self, numbers: NDArray[np.int64]) -> None:
        """Remove live entries, given in ascending order; costs in proportion to the pages and segments that they lie in."""
        size = self._row.size
        for page, places in _grouped(numbers, PAGE_ENTRIES):
            if len(places) == PAGE_ENTRIES:  # expired together: not even read
                self._open.pop(page, None)
                self._changed.discard(page)
                self._dropped.append(page)
                continue
            opened = self._opened(page)
            states = np.frombuffer(opened.data, self._type)["state"]
            states[places] = STATE_REMOVED
            full = len(opened.data) == PAGE_ENTRIES * size
            if full and not states.any():
                del states, self._open[page]
                self._changed.discard(page)
                self._dropped.append(page)
            else:
                self._changed.add(page)
        for segment, places in _grouped(numbers, SEGMENT_ENTRIES):
            if segment >= self._sealed:
                self._tail = [self._tail_rows()]
                self._tail[0]["state"][numbers[numbers >= self._sealed * SEGMENT_ENTRIES] - self._sealed * SEGMENT_ENTRIES] = (
                    STATE_REMOVED
                )
                break
            if len(places) == SEGMENT_ENTRIES:
                self._segments[segment] = np.empty(0, segment_type(self._words))
                continue
            rows = self._segments.get(segment)
            if rows is None:
                (value,) = self._store.get_many([segment_key(segment)])
                if value is None:
                    raise FormatError(_LACKS)
                columns = view_segment(value, self._words)
                rows = np.empty(len(columns["place"]), segment_type(self._words))
                for name, column in columns.items():
                    rows[name] = column
            self._segments[segment] = rows[~np.isin(rows["place"], places)]

    def find_ids(self, ids: Collection[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return (numbers, which are live) of all rows with one of these ids, ascending; reads every page."""
        found, live = [], []
        for page, rows, blob in self._all_pages():
            if not any(one in blob for one in ids):
                continue
            ends = rows["ids_end"].tolist()
            for place, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
                if blob[begin:end] in ids:
                    found.append(page * PAGE_ENTRIES + place)
                    live.append(rows["state"][place] != STATE_REMOVED)
        order = np.argsort(found, kind="stable")
        return np.array(found, np.int64)[order], np.array(live, np.bool_)[order]

    def wipe(self, numbers: NDArray[np.int64]) -> None:
        """Leave nothing of removed entries but that they were there: no id, no print, no position."""
        for page, places in _grouped(numbers, PAGE_ENTRIES):
            if page in self._dropped:
                continue
            opened = self._opened(page)
            rows = np.frombuffer(opened.data, self._type).copy()
            ends = [0, *rows["ids_end"].tolist()]
            parts = [bytes(opened.ids[begin:end]) for begin, end in itertools.pairwise(ends)]
            for place in places.tolist():
                if rows["state"][place] != STATE_REMOVED:
                    raise InvariantError("A live entry was to be wiped; this is a fault of the program.")
                parts[place] = b""
                rows[place] = np.zeros(1, self._type)[0]
            rows["ids_end"] = np.cumsum([len(part) for part in parts])
            self._open[page] = _Page(self._type, rows.tobytes(), b"".join(parts))
            self._changed.add(page)

    def collect(self, writes: Writes) -> None:
        """Add the pages and segments that changed since the last call."""
        for number in sorted(self._changed):
            page = self._open[number]
            rows = np.frombuffer(page.data, self._type)
            writes.put(page_key(number), encode_rows(encode_columns(rows), len(rows), bytes(page.ids)))
            self._kept.pop(number, None)
            if len(rows) == PAGE_ENTRIES:
                del rows, self._open[number]
        self._changed.clear()
        for first, end in _runs(self._dropped):
            writes.delete_range(page_key(first), page_key(end))
        for number in self._dropped:
            self._kept.pop(number, None)
        self._dropped.clear()
        if self.count >= (self._sealed + 1) * SEGMENT_ENTRIES:
            tail = self._tail_rows()
            while len(tail) >= SEGMENT_ENTRIES:
                whole, tail = tail[:SEGMENT_ENTRIES], tail[SEGMENT_ENTRIES:]
                self._segments[self._sealed] = whole[whole["state"] != STATE_REMOVED]
                self._sealed += 1
            self._tail = [tail.copy()]
        for segment, left in self._segments.items():
            if len(left):
                writes.put(segment_key(segment), encode_segment(left))
            else:
                writes.delete(segment_key(segment))
        self._segments.clear()

    def _opened(self, page: int) -> _Page:
        opened = self._open.get(page)
        if opened is None:
            stored = self._pages({page})[page]
            opened = self._open[page] = _Page(self._type, stored.rows(), bytes(stored.ids))
        return opened

    def _all_pages(self) -> Iterator[tuple[int, NDArray[Any], bytes]]:
        """Yield (page number, rows, ids) of every page that is there, as it is now."""
        dropped = set(self._dropped)
        for key, value in self._store.scan(PREFIX_PAGE):
            page = number_of(key)
            if page not in self._open and page not in dropped:
                count, rows, ids = split_rows(value, self._row.size)
                yield page, decode_columns(rows, count, self._type), ids
        for page in sorted(self._open):
            yield page, np.frombuffer(bytes(self._open[page].data), self._type), bytes(self._open[page].ids)

    def _columns_of(self, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return {name: rows[name] for name in rows.dtype.names or ()}

    def _tail_rows(self) -> NDArray[Any]:
        return np.concatenate(self._tail or [np.empty(0, segment_type(self._words))])

    def _segment_rows(self, rows: NDArray[Any], first: int) -> NDArray[Any]:
        made = np.empty(len(rows), segment_type(self._words))
        made["place"] = np.arange(first, first + len(rows)) % SEGMENT_ENTRIES
        for name in ("state", "features", "scope", "print"):
            made[name] = rows[name]
        tags = np.empty(len(rows), np.uint32)
        digests = np.ascontiguousarray(rows["text_digest"]).view(np.uint64)
        kernels.tag_digests(digests, np.ascontiguousarray(rows["scope"]), tags)
        made["digest_tag"] = tags
        source, offset, value = (np.ascontiguousarray(rows[name]) for name in ("source", "offset", "value_digest"))
        kernels.tag_positions(source, offset, value, tags)
        made["position_tag"] = tags
        return made

    def _pages(self, wanted: set[int]) -> dict[int, _Page | _StoredPage]:
        """Return pages by number; those read last are kept, because a batch asks for a page more than once."""
        if self._expected is None:
            self._keep_few()
        else:
            (expected, reading), self._expected = self._expected, None
            self._take(expected, reading.result())
        missing = self._missing(wanted)
        if missing:
            self._take(missing, self._store.get_many(list(map(page_key, missing))))
        return {number: self._open.get(number) or self._kept[number] for number in wanted}

    def _keep_few(self) -> None:
        if len(self._kept) > _PAGES_KEPT:
            self._kept.clear()

    def _missing(self, wanted: set[int]) -> list[int]:
        return [number for number in wanted if number not in self._open and number not in self._kept]

    def _take(self, numbers: Sequence[int], values: Sequence[bytes | None]) -> None:
        for number, value in zip(numbers, values, strict=True):
            if value is None:
                raise FormatError(_LACKS)
            self._kept[number] = _StoredPage(self._type, value)


def _grouped(numbers: NDArray[np.int64], size: int) -> list[tuple[int, NDArray[np.int64]]]:
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
