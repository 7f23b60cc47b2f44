"""Rows by hashed keys: some tables over the same rows, in memory, or with their row numbers in
files, one a table.

Where tables are kept, that file is the kept one: it is written once, when a table is merged, and
opening reads it in place.

Invariants: buckets grow with the rows, so a look-up costs the same at any number of them; the
active segment of a table moves behind its frozen one in place, so nothing is held twice; a table is
merged, and gets more buckets, without a look at the others; what is found passes by 12 bits of the
key and its bucket, earliest first, and is to be compared by who asks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.index.tables import finder_kernels
from stream_dedup.index.tables.budget import Column, unreadable, unwritten
from stream_dedup.index.tables.finder_kernels import GROUP, SIZES, UNIT, KeyTables
from stream_dedup.index.tables.kept import ROW_BYTES, FilesKept, Sizes
from stream_dedup.index.tables.rows import no_row_taken

_BUCKET_ENTRIES: Final = 32  # at most, on average: as many tags are read in half a line of memory
_BUCKETS_MIN: Final = (
    1 << 15
)  # four entries in an active block when the first are frozen: longer ones take time, and room
_ROOM_BUCKETS: Final = (
    1 << 22
)  # that each table may have without a move: 134 million entries. Room takes addresses, no memory
_UNITS_MIN: Final = 1024
_ROOM_FOR_MORE: Final = 4  # times as many buckets as there are, where more are needed than that
_KEYS_AT_ONCE: Final = 1 << 12
_PIECES: Final = 16  # of the rows, and of a table: one thread works at each
_PARTS_BITS: Final = 11  # the buckets are sorted in at most this many parts,
_PART_BITS_MIN: Final = (
    11  # each of at least this many buckets, which stay in a processor's own cache
)
_ENTRIES_AT_ONCE: Final = 1 << 21  # whose row numbers are moved in memory at once
_ACTIVE_BYTES: Final = (
    12  # a row number and its tags, in blocks that are half full, counting those that were outgrown
)
_PIECE: Final = (
    1 << 16
)  # places of a table that are read from its file or written to it at once: they stay in a cache
_BUCKET_BYTES: Final = (
    4 + 8 // GROUP
)  # where its frozen segment begins; its share of a block's first unit and length
_TAG_BYTES: Final = 1.5
FROM_THE_END: Final = np.iinfo(np.int64).max

Each = Callable[[Callable[[Any], None], Sequence[Any]], None]
"""Carries work out for each part, on some threads."""
KeysOf = Callable[[Sequence[int], int, int], NDArray[np.uint64]]
"""Returns the keys (k, n) in k tables of the rows from a first one to an end."""


class _Piece(NamedTuple):
    """The rows from `first` to `end`, of which those that count have the places from `begin` to
    `stop`.
    """

    first: int
    end: int
    begin: int
    stop: int


class RowFinder:
    """`count` tables over the rows of one index; not safe for use by several threads at once.

    `active` (T,) int64: how many rows lie in the active segment of each. With `files` their frozen
    segments are kept, as those of the tables from number `first` on, whose keys follow from `plan`.
    """

    def __init__(
        self, count: int, files: FilesKept | None = None, first: int = 0, plan: str = ""
    ) -> None:
        self.count = count
        self._first, self._plan = first, plan
        self.active = np.zeros(count, np.int64)
        self._files = files
        self._next_row = 0  # behind all that were added
        self._folder: Path | None = None  # of the files in which row numbers lie, if they do
        self._in: dict[int, Column] = {}  # those files, of each table that has row numbers there
        self.table = self._empty(_ROOM_BUCKETS)

    def add(self, rows: NDArray[np.int64], keys: NDArray[np.uint64], number: int = 0) -> None:
        """Add rows (k,), later than all there, with their keys (k, t), to t tables from `number`
        on.
        """
        table = self.table
        done = finder_kernels.add_open(table, number, rows, keys, 0)
        while done < keys.size:
            places = len(table.active_rows) * 17 // 16 // UNIT * UNIT
            table.active_rows.resize(places, refcheck=False)
            table.active_tags.resize(places, refcheck=False)
            done = finder_kernels.add_open(table, number, rows, keys, done)
        self.active[number : number + keys.shape[1]] += len(rows)
        if len(rows):
            self._next_row = int(rows[-1]) + 1

    def find(
        self,
        number: int,
        keys: NDArray[np.uint64],
        states: NDArray[np.uint8],
        at: NDArray[np.int64],
        below: int | None = None,
    ) -> NDArray[np.int64]:
        """Return the next live row of each key in one table, or -1, and move on where each search
        stands, `at`: 0 to begin.

        With `below`, a search goes from the latest row before that one to the earliest, and begins
        at `FROM_THE_END`.
        """
        found, taken = np.empty(len(keys), np.int64), no_row_taken()
        finder_kernels.find(
            self.table, taken, number, keys, states, -1 if below is None else below, at, found
        )
        if taken.failed[0]:
            raise unreadable(None)
        return found

    def freeze(
        self,
        keys_of: KeysOf,
        states: NDArray[np.uint8],
        least: int,
        entries: int,
        each: Each,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """Sort the rows with a state of `least` or more, `entries` of them, into the frozen
        segments of tables, from nothing.

        Of all tables without `numbers`, and if there is no room for these entries. First the keys
        go, in the order of the rows, to where the frozen segments will lie, so each row is read
        once. Then those of each table are moved to their part of the buckets, and within it to
        their bucket: what is written lies close together.
        """
        buckets = buckets_for(entries)
        if numbers is None or buckets > self._room:
            numbers = range(self.count)
        self._changing(numbers)
        if len(numbers) == self.count:
            self.table = self._empty(
                max(_ROOM_BUCKETS, _ROOM_FOR_MORE * buckets)
            )  # nothing of the old ones is needed
        else:
            for number in numbers:
                finder_kernels.clear_open(self.table, number)
        for number in numbers if entries else ():
            self._use(number, self._new_file(number))
        self.active[numbers] = 0
        self.table.masks[numbers] = buckets - 1
        cuts = np.linspace(0, len(states), _PIECES + 1, dtype=np.int64).tolist()
        places = [
            0,
            *itertools.accumulate(
                int((states[a:b] >= least).sum()) for a, b in itertools.pairwise(cuts)
            ),
        ]
        pieces = [
            _Piece(*piece)
            for piece in zip(cuts[:-1], cuts[1:], places[:-1], places[1:], strict=True)
        ]
        part_bits = _part_bits(buckets)
        counts = np.zeros((_PIECES, len(numbers), buckets >> part_bits), np.int64)
        each(
            lambda at: self._lay(
                numbers, pieces[at], keys_of, states, least, part_bits, counts[at]
            ),
            range(_PIECES),
        )
        parted = np.empty(entries, np.uint64)
        self._next_row = len(states)
        for at, number in enumerate(numbers):
            self._sort(number, pieces, states, least, part_bits, counts[:, at], parted, each)
            self._keep(number)

    def _lay(
        self,
        numbers: Sequence[int],
        piece: _Piece,
        keys_of: KeysOf,
        states: NDArray[np.uint8],
        least: int,
        part_bits: int,
        counts: NDArray[np.int64],
    ) -> None:
        """Put the keys of a piece of the rows into their places before they are sorted, and count
        those of each part.
        """
        to, low = piece.begin, np.empty(_KEYS_AT_ONCE, np.uint32)
        for first in range(piece.first, piece.end, _KEYS_AT_ONCE):
            end, count = min(piece.end, first + _KEYS_AT_ONCE), 0
            for at, keys in enumerate(keys_of(numbers, first, end)):
                number, some = numbers[at], states[first:end]
                count = finder_kernels.lay(
                    self.table, number, keys, some, least, to, part_bits, counts[at], low
                )
                self._write_rows(number, to, low[:count], self._in.get(number))
            to += count

    def _sort(
        self,
        number: int,
        pieces: Sequence[_Piece],
        states: NDArray[np.uint8],
        least: int,
        part_bits: int,
        counts: NDArray[np.int64],
        parted: NDArray[np.uint64],
        each: Each,
    ) -> None:
        """Sort what `_lay` put down of one table; `counts` (pieces, parts), and `parted` (entries,)
        is scratch.
        """
        base = number * self._places
        ends = np.cumsum(counts.T).reshape(
            counts.shape[::-1]
        )  # of each part, what each piece has of it
        cursors = np.ascontiguousarray((ends - counts.T).T, np.uint64)
        begins = np.append(0, ends[:, -1])

        def part(at: int) -> None:
            first, end, begin, stop = pieces[at]
            low, high = (
                self._rows_at(number, begin, stop),
                self.table.tags[base + begin : base + stop],
            )
            finder_kernels.part(
                self.table.masks[number],
                low,
                high,
                states[first:end],
                least,
                first,
                part_bits,
                cursors[at],
                parted,
            )

        def move(parts: tuple[int, int]) -> None:
            own = begins[parts[0] : parts[1] + 1]
            some, cursor = parted[own[0] : own[-1]], np.empty(1 << part_bits, np.uint32)
            ordered = np.empty(np.diff(own).max(), np.uint64)
            rows, halves = np.empty(len(some), np.uint32), np.empty(len(some), np.uint8)
            finder_kernels.freeze(
                self.table, number, some, parts[0], own, cursor, ordered, halves, rows
            )
            self._write_rows(number, int(own[0]), rows, self._in.get(number))

        each(part, range(len(pieces)))
        even = np.append(
            np.flatnonzero(begins[:-1] % 2 == 0), len(begins) - 1
        )  # so no two threads write to one byte
        groups = np.unique(
            even[np.linspace(0, len(even) - 1, _PIECES + 1, dtype=np.int64)]
        ).tolist()
        each(move, list(itertools.pairwise(groups)))
        self.table.heads[number, self.buckets(number)] = begins[-1]

    def due(self, least: int, again: int) -> Iterator[int]:
        """Yield the table with the fullest active segment, to be merged, as long as the active
        segments hold too much.

        Too much is the part `again` of the frozen ones, and `least` entries.

        That is what they hold together when they are filled evenly from nearly nothing to full: so
        all are merged as often as if each waited until it is full, and take turns, also when all
        were empty at once.
        """
        count = self.count
        while 2 * count * int(self.active.sum()) > (count + 1) * max(
            count * least, int(self.frozen.sum()) // again
        ):
            yield int(self.active.argmax())

    def merge(self, number: int) -> bool:
        """Move the active segment of one table behind its frozen one; False if there are too many
        entries for its buckets.
        """
        table, base = self.table, number * self._places
        to = int(self.frozen[number]) + int(self.active[number])
        if buckets_for(to) > self.buckets(number):
            return False
        self._changing([number])
        merged, cursor = self._new_file(number), np.empty(GROUP, np.int64)
        for first, end in reversed(
            list(self._stretches(number))
        ):  # from the end, because what moves, moves to the right
            begin, stop = table.heads[number, [first, end]].tolist()
            count = (
                stop
                - begin
                + int(table.active_heads[number, first // GROUP : end // GROUP, 1].sum())
            )
            rows, tags, halves = np.empty(count, np.uint32), *np.empty((2, count), np.uint8)
            old, at = self._rows_at(number, begin, stop), to - count
            finder_kernels.merge(table, number, first, end, at, old, rows, tags, halves, cursor)
            self._write_rows(number, at, rows, merged)
            table.tags[base + at : base + to] = tags
            finder_kernels.set_halves(table.more, base + at, halves)
            to = at
        self._use(number, merged)
        self.active[number] = 0
        self._keep(number)
        return True

    def open(
        self,
        keys_of: KeysOf,
        states: NDArray[np.uint8],
        least: int,
        entries: int,
        each: Each,
        beat: Callable[[], None],
    ) -> None:
        """Have the rows with a state of `least` or more, `entries` of them, in all tables: a new
        one's beginning.

        What files hold of them is read. Tables that have none are sorted from nothing, and to the
        others the rows are added that came since.
        """
        covered = self._take(entries, each)
        missing = np.flatnonzero(covered < 0).tolist()
        if missing:
            self.freeze(
                keys_of,
                states,
                least,
                entries,
                each,
                None if len(missing) == self.count else missing,
            )
            covered[missing] = len(states)
        for first in range(int(covered.min()), len(states), _KEYS_AT_ONCE):
            end = min(len(states), first + _KEYS_AT_ONCE)
            rows = first + np.flatnonzero(states[first:end] >= least)
            numbers = np.flatnonzero(covered < end).tolist()
            for number, keys in zip(numbers, keys_of(numbers, first, end), strict=True):
                later = rows[rows >= covered[number]]
                self.add(later, keys[later - first, np.newaxis], number)
            beat()
        self._next_row = len(states)

    def _take(self, entries: int, each: Each) -> NDArray[np.int64]:
        """Read the tables that were kept; return how many rows each covers (T,), -1 where there is
        no such file.
        """
        covered = np.full(self.count, -1, np.int64)
        if self._files is None:
            return covered
        own = range(self._first, self._first + self.count)
        kept = {
            number - self._first: table
            for number, table in self._files.kept(self._plan).items()
            if number in own
        }
        if not kept:
            return covered
        files, room = (
            self._files,
            max(buckets_for(entries), *(table.buckets for table in kept.values())),
        )
        if room > self._room:
            self.table = self._empty(_ROOM_FOR_MORE * room)

        def read(number: int) -> None:
            table = kept[number]
            self.table.masks[number] = table.buckets - 1
            file = files.read(
                self._first + number, lambda: self._pieces(number, table.entries, fill=True)
            )
            if file is None:
                return
            covered[number] = table.rows
            if self._folder is None:
                file.close()
            else:
                self._use(number, Column(np.uint32, file=file))

        each(read, list(kept))
        return covered

    def _changing(self, numbers: Sequence[int]) -> None:
        if self._files is not None:
            self._files.changing([self._first + number for number in numbers])

    def _keep(self, number: int) -> None:
        """Have the frozen segment of a table written to a file."""
        if self._files is not None and (entries := int(self.frozen[number])):
            sizes = Sizes(self._next_row, entries, self.buckets(number))
            self._files.keep(
                self._first + number, self._plan, sizes, lambda: self._pieces(number, entries)
            )

    def _pieces(
        self, number: int, entries: int, *, fill: bool = False
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of a table's frozen segment: row numbers, tags, halves of tags, heads;
        with `fill` to be set.

        Row numbers that stay in a file are filled in for nobody.
        """
        base, table = number * self._places, self.table
        passing = (
            np.empty(min(entries, _PIECE), np.uint32) if fill and self._folder is not None else None
        )
        for first in range(0, entries, _PIECE):
            end = min(entries, first + _PIECE)
            yield (
                self._rows_at(number, first, end) if passing is None else passing[: end - first]
            ).view(np.uint8)
        for part in (
            table.tags[base : base + entries],
            table.more[base // 2 : (base + entries + 1) // 2],
            self._heads(number).view(np.uint8),
        ):
            for first in range(0, len(part), _PIECE):
                yield part[first : first + _PIECE]

    def to_file(self, folder: Path) -> None:
        """Move the row numbers of the frozen segments to files."""
        if self._folder is not None:
            return
        for number, entries in enumerate(self.frozen.tolist()):
            if entries:
                column = Column(np.uint32, folder=folder)
                column.write(0, self._rows_at(number, 0, entries))
                self._use(number, column)
        self._folder = folder
        self.table = self.table._replace(rows=np.empty(0, np.uint32))

    def _new_file(self, number: int) -> Column | None:
        """Return a file for the row numbers of a table that is made anew, None if they lie in
        memory.
        """
        if self._folder is None:
            return None
        return Column(
            np.uint32,
            folder=self._folder,
            path=None if self._files is None else self._files.new_file(self._first + number),
        )

    def _use(self, number: int, column: Column | None) -> None:
        """Have the row numbers of a table in a file from now on, unless there is none."""
        if column is not None:
            self._in[number] = column
            self.table.files[number] = column.number

    def _rows_at(self, number: int, begin: int, end: int) -> NDArray[np.uint32]:
        """Return the row numbers at some places of a table's frozen segment: a view in memory."""
        rows, base = self.table.rows, number * self._places
        column = self._in.get(
            number
        )  # looked for after the array, which is empty only once there are files
        found: NDArray[np.uint32] = (
            rows[base + begin : base + end] if column is None else column.read(begin, end)
        )
        return found

    def _write_rows(
        self, number: int, first: int, rows: NDArray[np.uint32], column: Column | None
    ) -> None:
        """Set row numbers of a table from a place on, in the file that it is to have."""
        if column is None:
            base = number * self._places + first
            self.table.rows[base : base + len(rows)] = rows
        else:
            column.write(first, rows)

    @property
    def frozen(self) -> NDArray[np.int64]:
        """How many rows lie in the frozen segment of each table, (T,)."""
        ends: NDArray[np.uint32] = self.table.heads[
            np.arange(self.count), self.table.masks + np.uint64(1)
        ]
        return ends.astype(np.int64)

    @property
    def bytes_used(self) -> int:
        """Bytes of memory that the arrays hold; room that was never written to takes none."""
        table = self.table
        written = int(
            self.frozen.sum() * (_TAG_BYTES if self._folder is not None else _TAG_BYTES + ROW_BYTES)
        )
        heads = sum(self.buckets(number) for number in range(self.count)) * _BUCKET_BYTES
        return written + heads + table.active_tags.nbytes + table.active_rows.nbytes

    @property
    def bytes_in_file(self) -> int:
        """Bytes of the row numbers that lie in files."""
        return int(self.frozen.sum()) * ROW_BYTES if self._folder is not None else 0

    def lengths(self, number: int) -> NDArray[np.int64]:
        """Return how many entries each bucket of one table holds, (B,)."""
        lengths: NDArray[np.int64] = np.diff(self._heads(number)).astype(np.int64)
        finder_kernels.count_open(self.table, number, lengths)
        return lengths

    def longest(self, number: int) -> int:
        """Return how many entries a look-up reads at most in one table: those of a frozen bucket
        and of its active block.

        What blocks hold of each bucket is not counted out: that is a place of memory for each of
        their entries.
        """
        frozen = np.diff(self._heads(number)).reshape(-1, GROUP).max(axis=1)
        return int((frozen + self.table.active_heads[number, : len(frozen), 1]).max())

    def buckets(self, number: int) -> int:
        """Return how many buckets one table has."""
        return int(self.table.masks[number]) + 1

    def _heads(self, number: int) -> NDArray[np.uint32]:
        """Return where the buckets of one table begin, and where the last one ends, (B + 1,)."""
        return self.table.heads[number, : self.buckets(number) + 1]

    @property
    def _room(self) -> int:
        """How many buckets each table has room for."""
        return int(self.table.heads.shape[1] - 1)

    @property
    def _places(self) -> int:
        """How many places each table has in the frozen arrays."""
        return len(self.table.tags) // self.count

    def _stretches(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of buckets, whole groups, that hold few enough entries to be worked at
        in memory.
        """
        entries, buckets = int(self.frozen[number]), self.buckets(number)
        step = max(GROUP, buckets * _ENTRIES_AT_ONCE // max(1, entries) // GROUP * GROUP)
        for first in range(0, buckets, step):
            yield first, min(buckets, first + step)

    def _empty(self, room: int) -> KeyTables:
        """Return tables without entries, with room for `room` buckets and as many entries as these
        may hold.
        """
        places = self.count * room * _BUCKET_ENTRIES
        self._in.clear()
        return KeyTables(
            masks=np.full(self.count, _BUCKETS_MIN - 1, np.uint64),
            heads=unwritten((self.count, room + 1), np.uint32),
            tags=unwritten((places,), np.uint8),
            more=unwritten((places // 2,), np.uint8),
            rows=unwritten((places if self._folder is None else 0,), np.uint32),
            files=np.full(self.count, -1, np.int64),
            active_heads=unwritten((self.count, room // GROUP, 2), np.uint32),
            active_tags=np.zeros(_UNITS_MIN * UNIT, np.uint16),
            active_rows=np.zeros(_UNITS_MIN * UNIT, np.uint32),
            free=np.zeros(SIZES + 1, np.int64),
        )


def buckets_for(entries: int) -> int:
    """Return how many buckets a table of `entries` has: a power of two, with 16 to 32 entries in
    each, or fewer.
    """
    return max(_BUCKETS_MIN, 1 << (entries // _BUCKET_ENTRIES).bit_length())


def _part_bits(buckets: int) -> int:
    """Return how many buckets are sorted together, as a power of two: few parts, and each small
    enough for the caches.
    """
    bits = buckets.bit_length() - 1
    return min(bits, max(_PART_BITS_MIN, bits - _PARTS_BITS))


def finder_bytes(tables: int, entries: int, active_share: float, *, in_file: bool = False) -> int:
    """Return how many bytes of memory `tables` take with `active_share` of their entries active;
    see `RowFinder.to_file`.
    """
    frozen = _TAG_BYTES if in_file else _TAG_BYTES + ROW_BYTES
    return int(
        tables
        * (entries * (frozen + active_share * _ACTIVE_BYTES) + buckets_for(entries) * _BUCKET_BYTES)
    )
