"""What is kept of every representative on disk: rows in pages of 64 with their ids, and segments
for opening.

Invariants: entry n is row n mod 64 of page n // 64, for ever; a page is in memory while it has
changes that are not written, and the last page as long as it has room; a removed entry keeps its
row, marked so, until all of its page are removed: then the page goes. Of every 4,096 entries whose
pages are full, a segment holds what the tables in memory need, live ones only, so opening reads a
third of the bytes in a few large values, and nothing else but the last pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import FormatError, InvariantError
from stream_dedup.domain.lazy import Ids
from stream_dedup.index.tables.rows import (
    Columns,
    StoredRows,
    fresh_columns,
    no_columns,
    with_origins,
)
from stream_dedup.index.tables.tags import Tags, crcs_of, digest_tags, id_tags, position_tags
from stream_dedup.index.volume.contract import Store, Writes
from stream_dedup.index.volume.layout import (
    DAMAGED_PAGE,
    PAGE_ENTRIES,
    PREFIX_PAGE,
    PREFIX_SEGMENT,
    SEGMENT_ENTRIES,
    STATE_REMOVED,
    decode_columns,
    encode_parts,
    encode_rows,
    encode_segment,
    id_tags_key,
    number_of,
    page_key,
    row_type,
    segment_key,
    segment_type,
    split_rows,
    view_segment,
)
from stream_dedup.index.volume.pages import EntryPage, Gathered, gather, taken

_PAGES_KEPT: Final = 512
_PAGES_AT_ONCE: Final = 256
NO_TAG: Final = 0
_SEGMENTS_AT_ONCE: Final = 64
_LOW_BITS: Final = 0xFFFF
_LACKS: Final = "The index volume lacks a page of entries; give it an empty volume to rebuild."


class EntryBytes:
    """Bytes beside an entry, under the key that `key_of` gives, of the entries that have any; empty
    ones are none.

    `changed` are those since the last write.
    """

    def __init__(self, store: Store, key_of: Callable[[int], bytes]) -> None:
        self._store, self._key_of = store, key_of
        self.changed: dict[int, bytes] = {}
        self._passed = 0  # nothing lies below it
        self._dropped_below = 0

    def of(self, entries: Sequence[int]) -> dict[int, bytes]:
        """Return what lies beside these entries, where something does."""
        stored = [entry for entry in entries if entry not in self.changed]
        values = self._store.get_many(list(map(self._key_of, stored))) if stored else []
        found = self.changed | dict(zip(stored, values, strict=True))
        return {entry: value for entry in entries if (value := found[entry])}

    def drop(self, entries: Collection[int]) -> None:
        """Drop what lies beside entries that are no representatives any more."""
        self.changed.update(dict.fromkeys(entries, b""))

    def drop_below(self, first: int) -> None:
        """Drop what lies beside all entries below one: their window has passed."""
        self._dropped_below = max(self._dropped_below, first)
        self.changed = {entry: value for entry, value in self.changed.items() if entry >= first}

    def add_writes(self, writes: Writes) -> None:
        """Add what changed since the last call."""
        if self._dropped_below > self._passed:
            writes.delete_range(self._key_of(self._passed), self._key_of(self._dropped_below))
            self._passed = self._dropped_below
        for entry, value in self.changed.items():
            if value:
                writes.put(self._key_of(entry), value)
            else:
                writes.delete(self._key_of(entry))
        self.changed.clear()


class Origins(NamedTuple):
    """What the verdicts of duplicates say of the entries that they name, as columns (n,)."""

    sources: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    log_offsets: NDArray[np.int64]
    places: NDArray[np.int64]
    features: NDArray[np.uint32]
    ids: Ids

    def taken(self, chosen: NDArray[np.bool_]) -> Origins:
        """Return those of the chosen entries, (n,)."""
        if chosen.all():
            return self
        some: list[Any] = [column[chosen] for column in self[:-1]]
        some.append(taken(self.ids, np.flatnonzero(chosen)))
        return Origins(*some)


# What is said of an entry that a duplicate names, but for its id: as it is stored, and as columns.
_ORIGIN: Final = np.dtype(
    [
        ("source", "<u4"), ("offset", "<i8"), ("time_ms", "<i8"), ("log_offset", "<u8"), ("place", "<u2"), ("features", "<u4"),
    ]
)  # fmt: skip
_ORIGIN_COLUMNS: Final = tuple(
    zip(_ORIGIN.names or (), ("u4", "i8", "i8", "i8", "i8", "u4"), strict=True)
)
# What tells entries with equal prints apart: the text in its scope, and the position with the value
# that stood there.
_IDENTITY: Final = np.dtype(
    [
        ("text_digest", "u1", (16,)),
        ("scope", "<u8"),
        ("source", "<u4"),
        ("offset", "<i8"),
        ("value_digest", "<u8"),
    ]
)


def columns_of(rows: NDArray[Any], ids: Sequence[bytes]) -> Columns:
    """Return what the tables in memory take of stored rows (n,) and their ids."""
    digests = np.array(rows["text_digest"], np.uint8).view(np.uint64)
    told, crcs = (
        (rows[name] for name in ("source", "offset", "value_digest", "features")),
        crcs_of(ids),
    )
    sketches = with_origins(rows["sketch"], rows["site"], rows["title"], crcs)
    return fresh_columns(rows["print"], rows["scope"], digests, *told, sketches, crcs)


class IdTags:
    """Where the entries with an id are: four bytes of each id, by which a take-down reads a few
    pages instead of all.

    Of every segment of 4,096 entries one value holds the tags of their ids, in the order of the
    entries; those of the entries behind the last whole segment are in memory. A tag may be another
    id's too, so the caller reads the entry's id. Opening reads them too: by them the tables in
    memory find the latest entry of an id.

    Invariants: the tag of an entry whose id was wiped is wiped; with a hundred million entries 400
    MB are read, a beat after every megabyte.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._frozen = 0
        self._tail: list[Tags] = []
        self._changed: dict[int, Tags | None] = {}  # None: it goes

    def load(self, frozen: int) -> None:
        """Begin behind these whole segments; what comes after them is then added as if it were
        new.
        """
        self._frozen = frozen

    def append(self, ids: Sequence[bytes]) -> Tags:
        """Take note of the ids of the next entries; return their tags."""
        self._tail.append(crcs_of(ids))
        return self._tail[-1]

    def of(self, segment: int) -> Tags:
        """Return the tags (4096,) of a stored segment.

        Raises:
            FormatError: they are damaged or missing.
        """
        (tags,) = self._read([segment])
        if tags is None:
            raise FormatError(DAMAGED_PAGE)
        return tags

    def seal(self) -> None:
        """Let the next 4,096 entries be a segment."""
        tail = self._whole_tail()
        self._changed[self._frozen] = tail[:SEGMENT_ENTRIES].copy()
        self._tail = [tail[SEGMENT_ENTRIES:].copy()]
        self._frozen += 1

    def drop(self, segment: int) -> None:
        """Let a segment go of which no entry is left."""
        self._changed[segment] = None

    def wipe(self, segment: int, places: NDArray[np.int64]) -> None:
        """Forget the tags of entries of one segment, or of the tail."""
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
        """Yield the numbers of all entries that may have one of these ids, ascending, removed ones
        among them.
        """
        wanted = np.unique(crcs_of(list(ids)))
        is_low = np.zeros(_LOW_BITS + 1, np.bool_)
        is_low[wanted & _LOW_BITS] = True
        for first in range(0, self._frozen, _SEGMENTS_AT_ONCE):
            segments = range(first, min(first + _SEGMENTS_AT_ONCE, self._frozen))
            for segment, tags in zip(segments, self._read(segments), strict=True):
                if tags is not None and len(places := _places_of(tags, is_low, wanted)):
                    yield segment * SEGMENT_ENTRIES + places
            beat()
        yield self._frozen * SEGMENT_ENTRIES + _places_of(self._whole_tail(), is_low, wanted)

    def add_writes(self, writes: Writes) -> None:
        """Add what changed since the last call."""
        for segment, tags in self._changed.items():
            if tags is None:
                writes.delete(id_tags_key(segment))
            else:
                writes.put(id_tags_key(segment), tags.astype("<u4").tobytes())
        self._changed.clear()

    def _read(self, segments: Sequence[int]) -> list[Tags | None]:
        stored = self._store.get_many([id_tags_key(segment) for segment in segments])
        return [
            self._changed[segment]
            if segment in self._changed
            else None
            if value is None
            else _decode_tags(value)
            for segment, value in zip(segments, stored, strict=True)
        ]

    def _whole_tail(self) -> Tags:
        return np.concatenate(self._tail or [np.empty(0, np.uint32)])


class Entries:
    """All entries of a volume whose prints have `limbs` limbs, and whose sketches `values`
    values.
    """

    def __init__(
        self, store: Store, limbs: int, values: int = 0, beat: Callable[[], None] = lambda: None
    ) -> None:
        """`beat` is called now and then in what may take long, to say that it goes on."""
        self._store = store
        self._beat = beat
        self._tags = IdTags(store)
        self._limbs = limbs
        self._values = values
        self._type = row_type(limbs, values)
        self._open: dict[int, EntryPage] = {}
        self._changed: set[int] = set()
        self._dropped: list[int] = []
        self._kept: dict[int, bytes] = {}
        self._reader = ThreadPoolExecutor(1)
        self._expected: tuple[list[int], Future[list[bytes | None]]] | None = None
        self._frozen = 0  # segments that are written
        self._tail: list[NDArray[Any]] = []  # the segment rows after them
        self._segments: dict[int, NDArray[Any]] = {}  # those that change in this step
        self.count = 0

    def load(self, count: int, live: int, first: int = 0) -> Iterator[StoredRows]:
        """Yield what the tables in memory need of the `live` ones of `count` entries ever made, a
        segment or page at a time.

        Of those from number `first` on; to be read to its end before anything else is asked of the
        entries.

        Raises:
            FormatError: a segment or one of the last pages is damaged or missing.
        """
        self.count = count
        self._frozen = count // SEGMENT_ENTRIES
        self._tags.load(self._frozen)
        found = 0
        for some in self._ahead(
            itertools.chain(self._load_segments(first // SEGMENT_ENTRIES), self._load_tail())
        ):
            part = some
            if len(some.numbers) and some.numbers[0] < first:
                columns: list[Any] = [column[some.numbers >= first] for column in some]
                part = StoredRows(*columns)
            found += len(part.numbers)
            if found > live:
                break
            if len(part.numbers):
                yield part
        if found != live:
            raise FormatError(
                f"The index volume holds {'more' if found > live else found} live entries and "
                f"should hold {live}; give the "
                "index an empty volume, and it is rebuilt."
            )

    def _ahead(self, parts: Iterator[StoredRows]) -> Iterator[StoredRows]:
        """Yield parts, each being read beside what the caller does with the one before."""
        reading = self._reader.submit(next, parts, None)
        while (part := reading.result()) is not None:
            reading = self._reader.submit(next, parts, None)
            yield part

    def _load_segments(self, first: int) -> Iterator[StoredRows]:
        for key, segment in self._store.scan(PREFIX_SEGMENT, segment_key(first)):
            columns = view_segment(segment, self._limbs, self._values)
            if number_of(key) >= self._frozen:
                raise FormatError(
                    f"The index volume holds entries beyond the {self.count} that it should hold; "
                    "give the index an empty "
                    "volume, and it is rebuilt."
                )
            ids = self._tags.of(number_of(key))[columns["place"]]
            yield _stored(
                number_of(key) * SEGMENT_ENTRIES + columns["place"].astype(np.int64), columns, ids
            )

    def _load_tail(self) -> Iterator[StoredRows]:
        pages = range(
            self._frozen * SEGMENT_ENTRIES // PAGE_ENTRIES, -(-self.count // PAGE_ENTRIES)
        )
        for page, value in zip(
            pages, self._store.get_many([page_key(page) for page in pages]), strict=True
        ):
            size = min(PAGE_ENTRIES, self.count - page * PAGE_ENTRIES)
            rows, ids = np.zeros(size, self._type), b""  # a page that was dropped whole
            if value is not None:
                found, raw, ids = split_rows(value, self._type.itemsize)
                if found != size:
                    raise FormatError(_LACKS)
                rows = decode_columns(raw, size, self._type)
                if size < PAGE_ENTRIES:
                    self._open[page] = EntryPage(rows.tobytes(), ids)
            part = self._segment_rows(rows, page * PAGE_ENTRIES)
            self._tail.append(part)
            crcs = self._tags.append(_cut(rows, ids))
            live = part["state"] != STATE_REMOVED
            yield _stored(page * PAGE_ENTRIES + np.flatnonzero(live), part[live], crcs[live])

    def live(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], bytes]]:
        """Yield (rows, the sizes of their ids, the ids one after another) of the live entries as
        stored, in log order.

        Many pages at a time; `ids_end` of a row has no meaning outside its page.

        Raises:
            FormatError: a page is damaged.
        """
        pages = self._store.scan(PREFIX_PAGE)
        while group := [
            split_rows(value, self._type.itemsize)
            for _, value in itertools.islice(pages, _PAGES_AT_ONCE)
        ]:
            rows = np.concatenate(
                [decode_columns(raw, count, self._type) for count, raw, _ in group]
            )
            ids = b"".join(blob for _, _, blob in group)
            sizes = rows["ids_end"].astype(np.int64)
            sizes[1:] -= sizes[:-1].copy()
            firsts = np.cumsum([0, *(count for count, _, _ in group[:-1])])
            sizes[firsts] = rows["ids_end"][firsts]  # each page's ids begin anew
            is_live = rows["state"] != STATE_REMOVED
            if not is_live.all():
                ends = np.cumsum(sizes)
                begins = (ends - sizes)[is_live].tolist()
                ids = b"".join(
                    ids[begin:end]
                    for begin, end in zip(begins, ends[is_live].tolist(), strict=True)
                )
                rows, sizes = rows[is_live], sizes[is_live]
            yield rows, sizes, ids

    def append(self, rows: NDArray[Any], ids: Ids) -> None:
        """Add entries; `rows` (n,) of the row type, whose `ids_end` is set here, `ids` one for
        each.
        """
        self._tail.append(self._segment_rows(rows, self.count))
        self._tags.append(ids)
        done = begin = 0
        while done < len(rows):
            number, used = divmod(self.count, PAGE_ENTRIES)
            page = self._open.setdefault(number, EntryPage())
            self._changed.add(number)
            end = min(len(rows), done + PAGE_ENTRIES - used)
            part, stop = rows[done:end], int(ids.stops[end - 1])
            part["ids_end"] = ids.stops[done:end] - (begin - len(page.ids))
            page.data += part.tobytes()
            page.ids += ids.joined[begin:stop]
            self.count += end - done
            done, begin = end, stop

    def expect(self, numbers: NDArray[np.int64]) -> None:
        """Begin to read the pages of these entries, beside what the caller does before it asks for
        them.

        Some may be entries that are yet to be appended: nothing is to be read of those.
        """
        self._keep_few()
        missing = self._missing(np.unique(numbers[numbers < self.count] // PAGE_ENTRIES).tolist())
        if missing:
            self._expected = (
                missing,
                self._reader.submit(self._store.get_many, list(map(page_key, missing))),
            )

    def origins(self, numbers: NDArray[np.int64]) -> Origins:
        """Return what is to be said of the entries of these numbers, in their order."""
        found = self._gathered(numbers, _ORIGIN)
        columns: list[Any] = [
            *(found.rows[name].astype(kind) for name, kind in _ORIGIN_COLUMNS),
            found.ids(),
        ]
        return Origins(*columns)

    def rows(self, numbers: NDArray[np.int64]) -> tuple[NDArray[Any], Ids]:
        """Return (rows, ids) of the entries of these numbers, in their order."""
        found = self._gathered(numbers, self._type)
        return found.rows, found.ids()

    def texts(self, numbers: NDArray[np.int64]) -> list[tuple[int, bytes, bytes]]:
        """Return (scope, id, text digest) of the entries of these numbers, in their order."""
        found = self._gathered(numbers, _IDENTITY)
        digests = map(bytes, found.rows["text_digest"])
        return list(zip(found.rows["scope"].tolist(), found.ids(), digests, strict=True))

    def identities(self, numbers: NDArray[np.int64]) -> Columns:
        """Return what tells the entries of these numbers from others, in their order; columns of
        anything else are empty.
        """
        rows = self._gathered(numbers, _IDENTITY).rows
        return no_columns(self._limbs, 0, self._values)._replace(
            scopes=rows["scope"],
            digests=np.ascontiguousarray(rows["text_digest"]).view(np.uint64),
            sources=rows["source"],
            offsets=rows["offset"],
            values=rows["value_digest"],
        )

    def drop(self, numbers: NDArray[np.int64]) -> None:
        """Remove live entries, given in ascending order; costs in proportion to the pages and
        segments that they lie in.
        """
        size = self._type.itemsize
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
            if segment >= self._frozen:
                self._tail = [self._tail_rows()]
                self._tail[0]["state"][
                    numbers[numbers >= self._frozen * SEGMENT_ENTRIES]
                    - self._frozen * SEGMENT_ENTRIES
                ] = STATE_REMOVED
                break
            if len(places) == SEGMENT_ENTRIES:
                self._segments[segment] = np.empty(0, segment_type(self._limbs, self._values))
                continue
            rows = self._segments.get(segment)
            if rows is None:
                (value,) = self._store.get_many([segment_key(segment)])
                if value is None:
                    raise FormatError(_LACKS)
                columns = view_segment(value, self._limbs, self._values)
                rows = np.empty(len(columns["place"]), segment_type(self._limbs, self._values))
                for name, column in columns.items():
                    rows[name] = column
            self._segments[segment] = rows[~np.isin(rows["place"], places)]

    def find_ids(self, ids: Collection[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return (numbers, which are live) of all rows with one of these ids, ascending; reads what
        their tags point at.
        """
        found: list[int] = []
        live: list[bool] = []
        for numbers in self._tags.candidates(ids, self._beat):
            pages = _grouped(numbers, PAGE_ENTRIES)
            for (page, places), value in zip(
                pages, self._there([page for page, _ in pages]), strict=True
            ):
                if value is None:
                    continue
                rows, blob = value
                begins = [0, *rows["ids_end"].tolist()]
                for place in places.tolist():
                    if blob[begins[place] : begins[place + 1]] in ids:
                        found.append(page * PAGE_ENTRIES + place)
                        live.append(rows["state"][place] != STATE_REMOVED)
        return np.array(found, np.int64), np.array(live, np.bool_)

    def wipe(self, numbers: NDArray[np.int64]) -> None:
        """Leave nothing of removed entries but that they were there: no id, no print, no
        position.
        """
        for page, places in _grouped(numbers, PAGE_ENTRIES):
            if page in self._dropped:
                continue
            opened = self._opened(page)
            rows = np.frombuffer(opened.data, self._type).copy()
            parts = _cut(rows, bytes(opened.ids))
            for place in places.tolist():
                if rows["state"][place] != STATE_REMOVED:
                    raise InvariantError(
                        "A live entry was to be wiped; this is a fault of the program."
                    )
                parts[place] = b""
                rows[place] = np.zeros(1, self._type)[0]
            rows["ids_end"] = np.cumsum([len(part) for part in parts])
            self._open[page] = EntryPage(rows.tobytes(), b"".join(parts))
            self._changed.add(page)
        for segment, places in _grouped(numbers, SEGMENT_ENTRIES):
            self._tags.wipe(segment, places)

    def add_writes(self, writes: Writes) -> None:
        """Add the pages and segments that changed since the last call."""
        size = PAGE_ENTRIES * self._type.itemsize
        full = [number for number in sorted(self._changed) if len(self._open[number].data) == size]
        for some in (full, *([number] for number in self._changed.difference(full))):
            rows = np.frombuffer(b"".join([self._open[number].data for number in some]), self._type)
            for number, columns in zip(some, encode_parts(rows, len(some)), strict=True):
                writes.put(
                    page_key(number),
                    encode_rows(columns, len(rows) // len(some), bytes(self._open[number].ids)),
                )
                self._kept.pop(number, None)
        for number in full:
            del self._open[number]
        self._changed.clear()
        for first, end in _runs(self._dropped):
            writes.delete_range(page_key(first), page_key(end))
        for number in self._dropped:
            self._kept.pop(number, None)
        self._dropped.clear()
        if self.count >= (self._frozen + 1) * SEGMENT_ENTRIES:
            tail = self._tail_rows()
            while len(tail) >= SEGMENT_ENTRIES:
                whole, tail = tail[:SEGMENT_ENTRIES], tail[SEGMENT_ENTRIES:]
                self._segments[self._frozen] = whole[whole["state"] != STATE_REMOVED]
                self._tags.seal()
                self._frozen += 1
            self._tail = [tail.copy()]
        for segment, left in self._segments.items():
            if len(left):
                writes.put(segment_key(segment), encode_segment(left))
            else:
                writes.delete(segment_key(segment))
                self._tags.drop(segment)
        self._segments.clear()
        self._tags.add_writes(writes)

    def _opened(self, number: int) -> EntryPage:
        (page,) = self._pages([number])
        if isinstance(page, bytes):
            count, rows, ids = split_rows(page, self._type.itemsize)
            page = self._open[number] = EntryPage(
                decode_columns(rows, count, self._type).tobytes(), ids
            )
        return page

    def _there(self, pages: Sequence[int]) -> list[tuple[NDArray[Any], bytes] | None]:
        """Return (rows, ids) of each page as it is now, None for one that was dropped; nothing of
        them is kept.
        """
        read = self._store.get_many([page_key(page) for page in pages])
        found: list[tuple[NDArray[Any], bytes] | None] = []
        for page, value in zip(pages, read, strict=True):
            if page in self._open:
                found.append(
                    (
                        np.frombuffer(bytes(self._open[page].data), self._type),
                        bytes(self._open[page].ids),
                    )
                )
            elif value is None or page in self._dropped:
                found.append(None)
            else:
                count, raw, ids = split_rows(value, self._type.itemsize)
                found.append((decode_columns(raw, count, self._type), ids))
        return found

    def _tail_rows(self) -> NDArray[Any]:
        return np.concatenate(self._tail or [np.empty(0, segment_type(self._limbs, self._values))])

    def _segment_rows(self, rows: NDArray[Any], first: int) -> NDArray[Any]:
        made = np.empty(len(rows), segment_type(self._limbs, self._values))
        made["place"] = np.arange(first, first + len(rows)) % SEGMENT_ENTRIES
        for name in ("state", "features", "scope", "print", "sketch", "site", "title"):
            made[name] = rows[name]
        digest, scope, source, offset, value = (
            np.array(rows[name])
            for name in ("text_digest", "scope", "source", "offset", "value_digest")
        )
        made["digest_tag"] = digest_tags(digest.view(np.uint64), scope)
        made["position_tag"] = position_tags(source, offset, value)
        return made

    def _gathered(self, numbers: NDArray[np.int64], wanted: np.dtype[Any]) -> Gathered:
        pages, which = np.unique(numbers // PAGE_ENTRIES, return_inverse=True)
        return gather(
            self._pages(pages.tolist()), which, numbers % PAGE_ENTRIES, self._type, wanted
        )

    def _pages(self, wanted: Sequence[int]) -> list[EntryPage | bytes]:
        """Return pages by number; those read last are kept, because a batch asks for a page more
        than once.
        """
        if self._expected is None:
            self._keep_few()
        else:
            (expected, reading), self._expected = self._expected, None
            self._take(expected, reading.result())
        missing = self._missing(wanted)
        if missing:
            self._take(missing, self._store.get_many(list(map(page_key, missing))))
        return [self._open.get(number) or self._kept[number] for number in wanted]

    def _keep_few(self) -> None:
        if len(self._kept) > _PAGES_KEPT:
            self._kept.clear()

    def _missing(self, wanted: Iterable[int]) -> list[int]:
        return [
            number for number in wanted if number not in self._open and number not in self._kept
        ]

    def _take(self, numbers: Sequence[int], values: Sequence[bytes | None]) -> None:
        for number, value in zip(numbers, values, strict=True):
            if value is None:
                raise FormatError(_LACKS)
            self._kept[number] = value


def _stored(numbers: NDArray[np.int64], columns: Any, crcs: Tags) -> StoredRows:
    """Return entries with such numbers; `columns` are those of a segment, by name, `crcs` (n,) of
    their ids.
    """
    before, behind = ("print", "scope", "features", "state"), ("digest_tag", "position_tag")
    tags = id_tags(crcs, np.array(columns["scope"]), np.array(columns["digest_tag"]))
    sketches = with_origins(columns["sketch"], columns["site"], columns["title"], crcs)
    told = (*(columns[name] for name in before), sketches, *(columns[name] for name in behind))
    stored: list[Any] = [numbers, *told, tags]
    return StoredRows(*stored)


def _cut(rows: NDArray[Any], ids: bytes) -> list[bytes]:
    """Return the ids of a page's rows one by one."""
    return [ids[begin:end] for begin, end in itertools.pairwise([0, *rows["ids_end"].tolist()])]


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


def _places_of(tags: Tags, is_low: NDArray[np.bool_], wanted: Tags) -> NDArray[np.int64]:
    likely = np.flatnonzero(is_low[tags & _LOW_BITS])
    return likely[np.isin(tags[likely], wanted)]


def _decode_tags(value: bytes) -> Tags:
    if len(value) != 4 * SEGMENT_ENTRIES:
        raise FormatError(DAMAGED_PAGE)
    return np.frombuffer(value, "<u4")
