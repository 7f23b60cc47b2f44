"""Hash tables from keys to rows. A table has a frozen segment, sorted by bucket, and an active one for
later rows.

The row numbers of the frozen segment are in memory or in a file of the table. That can be its table
file (`table_files`), which is written once, when the table is merged, and is used without loading it.

Invariants: the number of buckets grows with the rows, so a look-up costs the same for any number of
rows; the active segment is merged into the frozen one in place, without a copy; each table is merged,
and gets more buckets, independently of the others; a look-up returns rows whose bucket and 12 more
bits of the key match, earliest first, and the caller compares them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.index.storage.table_files import ROW_BYTES, Sizes, TableFiles
from stream_dedup.index.tables import finder_kernels
from stream_dedup.index.tables.budget import Column, allocate_lazily, read_error
from stream_dedup.index.tables.finder_kernels import BLOCK_SIZES, GROUP, UNIT, KeyTables
from stream_dedup.index.tables.rows import make_row_buffer

_BUCKET_ENTRIES: Final = 32  # limit of the average; the tags of 32 entries fill half a cache line
# Enough that an active block has about four entries at the first merge: longer ones cost time and
# room.
_BUCKETS_MIN: Final = 1 << 15
# Buckets for which room is reserved: 134 million entries. Reserved room uses addresses, not memory.
_ROOM_BUCKETS: Final = 1 << 22
_UNITS_MIN: Final = 1024
_ROOM_FOR_MORE: Final = 4  # if more are needed: reserve this many times the needed number
_KEYS_AT_ONCE: Final = 1 << 12
_PIECES: Final = 16  # of the rows, and of a table; each is processed by one thread
_PARTS_BITS: Final = 11  # log2 of the largest number of parts
_PART_BITS_MIN: Final = 11  # log2 of the fewest buckets in a part, so that a part fits into a cache
_ENTRIES_AT_ONCE: Final = 1 << 21  # row numbers that a merge moves in one step
# Bytes per active entry: its row number and tags, the unused half of its block, and free blocks.
_ACTIVE_BYTES: Final = 12
# Entries that are read from or written to a file in one call: they fit into a cache.
_PLACES_AT_ONCE: Final = 1 << 16
# Bytes per bucket: the start of its frozen segment, and a quarter of a block's first unit and
# length.
_BUCKET_BYTES: Final = 4 + 8 // GROUP
_TAG_BYTES: Final = 1.5
FROM_THE_END: Final = np.iinfo(np.int64).max

RunParts = Callable[[Callable[[Any], None], Sequence[Any]], None]
"""Calls a function for each part, on some threads."""
ReadKeys = Callable[[Sequence[int], int, int], NDArray[np.uint64]]
"""Returns the keys (k, n) in k tables of the rows from a first row to an end."""


class _Piece(NamedTuple):
    """Rows from `first` to `end`; their unsorted keys are at `first_place` to `end_place` of a table."""

    first: int
    end: int
    first_place: int
    end_place: int


class RowFinder:
    """`count` tables over the rows of one index; not thread-safe.

    `active` (T,) int64: the number of rows in the active segment of each. With `files`, frozen
    segments are also in table files: those of the tables from number `first` on, with keys that are
    derived from `plan_id`.
    """

    def __init__(
        self, count: int, files: TableFiles | None = None, first: int = 0, plan_id: str = ""
    ) -> None:
        self.count = count
        self._first, self._plan_id = first, plan_id
        self.active = np.zeros(count, np.int64)
        self._files = files
        self._next_row = 0  # after the last row that was added
        self._folder: Path | None = None  # for files with row numbers; None: they are in memory
        self._row_files: dict[int, Column] = {}  # the file with the row numbers of each table
        self.key_tables = self._make_tables(_ROOM_BUCKETS)

    def add(self, rows: NDArray[np.int64], keys: NDArray[np.uint64], number: int = 0) -> None:
        """Add rows (k,), later than all others, with their keys (k, t) to the t tables from `number`
        on.
        """
        key_tables = self.key_tables
        added = finder_kernels.add_active(key_tables, number, rows, keys, 0)
        while added < keys.size:
            places = len(key_tables.active_rows) * 17 // 16 // UNIT * UNIT
            key_tables.active_rows.resize(places, refcheck=False)
            key_tables.active_tags.resize(places, refcheck=False)
            added = finder_kernels.add_active(key_tables, number, rows, keys, added)
        self.active[number : number + keys.shape[1]] += len(rows)
        if len(rows):
            self._next_row = int(rows[-1]) + 1

    def find(
        self,
        number: int,
        keys: NDArray[np.uint64],
        states: NDArray[np.uint8],
        cursors: NDArray[np.int64],
        row_below: int | None = None,
    ) -> NDArray[np.int64]:
        """Return the next live row of each key in one table, or -1. Advance `cursors`, which must be 0
        in the first call.

        With `row_below` the search goes backwards, from the latest row before that one, and cursors
        must be `FROM_THE_END` in the first call.
        """
        found, buffer = np.empty(len(keys), np.int64), make_row_buffer()
        finder_kernels.find_live(
            self.key_tables,
            buffer,
            number,
            keys,
            states,
            -1 if row_below is None else row_below,
            cursors,
            found,
        )
        if buffer.failed[0]:
            raise read_error(None)
        return found

    def freeze(
        self,
        read_keys: ReadKeys,
        states: NDArray[np.uint8],
        state_min: int,
        entries: int,
        run_parts: RunParts,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """Sort the `entries` rows with a state of `state_min` or more into the frozen segments of the
        tables `numbers`, or of all if that is None or a table has no room for these entries.

        First write the keys to the frozen segments in the order of the rows, so that each row is read
        once. Then copy the keys of each table to their part of the buckets, and in the part to their
        bucket, so that writes are close together.
        """
        buckets = buckets_for(entries)
        if numbers is None or buckets > self._room_buckets:
            numbers = range(self.count)
        self._stop_writing(numbers)
        if len(numbers) == self.count:
            self.key_tables = self._make_tables(max(_ROOM_BUCKETS, _ROOM_FOR_MORE * buckets))
        else:
            for number in numbers:
                finder_kernels.clear_active(self.key_tables, number)
        for number in numbers if entries else ():
            self._set_row_file(number, self._begin_row_file(number))
        self.active[numbers] = 0
        self.key_tables.masks[numbers] = buckets - 1
        row_bounds = np.linspace(0, len(states), _PIECES + 1, dtype=np.int64).tolist()
        places = [
            0,
            *itertools.accumulate(
                int((states[begin:end] >= state_min).sum())
                for begin, end in itertools.pairwise(row_bounds)
            ),
        ]
        pieces = [
            _Piece(*piece)
            for piece in zip(row_bounds[:-1], row_bounds[1:], places[:-1], places[1:], strict=True)
        ]
        part_bits = _part_bits(buckets)
        counts = np.zeros((_PIECES, len(numbers), buckets >> part_bits), np.int64)
        run_parts(
            lambda index: self._place_keys(
                numbers, pieces[index], read_keys, states, state_min, part_bits, counts[index]
            ),
            range(_PIECES),
        )
        parted = np.empty(entries, np.uint64)
        self._next_row = len(states)
        for index, number in enumerate(numbers):
            self._sort_table(
                number, pieces, states, state_min, part_bits, counts[:, index], parted, run_parts
            )
            self._write_file(number)

    def _place_keys(
        self,
        numbers: Sequence[int],
        piece: _Piece,
        read_keys: ReadKeys,
        states: NDArray[np.uint8],
        state_min: int,
        part_bits: int,
        counts: NDArray[np.int64],
    ) -> None:
        """Write the keys of a piece of the rows, unsorted, and count those of each part of the
        buckets.
        """
        place, low_halves = piece.first_place, np.empty(_KEYS_AT_ONCE, np.uint32)
        for first in range(piece.first, piece.end, _KEYS_AT_ONCE):
            end, count = min(piece.end, first + _KEYS_AT_ONCE), 0
            for index, keys in enumerate(read_keys(numbers, first, end)):
                number, part_states = numbers[index], states[first:end]
                count = finder_kernels.place_keys(
                    self.key_tables,
                    number,
                    keys,
                    part_states,
                    state_min,
                    place,
                    part_bits,
                    counts[index],
                    low_halves,
                )
                self._write_rows(number, place, low_halves[:count], self._row_files.get(number))
            place += count

    def _sort_table(
        self,
        number: int,
        pieces: Sequence[_Piece],
        states: NDArray[np.uint8],
        state_min: int,
        part_bits: int,
        counts: NDArray[np.int64],
        parted: NDArray[np.uint64],
        run_parts: RunParts,
    ) -> None:
        """Sort the keys of one table, which `_place_keys` has written.

        `counts` (pieces, parts) are its counts; `parted` (entries,) is scratch.
        """
        base = number * self._places
        # In each part, the keys of a piece end here.
        ends = np.cumsum(counts.T).reshape(counts.shape[::-1])
        cursors = np.ascontiguousarray((ends - counts.T).T, np.uint64)
        begins = np.append(0, ends[:, -1])

        def partition_piece(index: int) -> None:
            first, end, first_place, end_place = pieces[index]
            low_halves = self._read_rows(number, first_place, end_place)
            tags = self.key_tables.tags[base + first_place : base + end_place]
            finder_kernels.partition_keys(
                self.key_tables.masks[number],
                low_halves,
                tags,
                states[first:end],
                state_min,
                first,
                part_bits,
                cursors[index],
                parted,
            )

        def sort_range(parts: tuple[int, int]) -> None:
            part_begins = begins[parts[0] : parts[1] + 1]
            part_keys = parted[part_begins[0] : part_begins[-1]]
            cursor = np.empty(1 << part_bits, np.uint32)
            ordered = np.empty(np.diff(part_begins).max(), np.uint64)
            rows, halves = np.empty(len(part_keys), np.uint32), np.empty(len(part_keys), np.uint8)
            finder_kernels.sort_parts(
                self.key_tables,
                number,
                part_keys,
                parts[0],
                part_begins,
                cursor,
                ordered,
                halves,
                rows,
            )
            self._write_rows(number, int(part_begins[0]), rows, self._row_files.get(number))

        run_parts(partition_piece, range(len(pieces)))
        run_parts(sort_range, _ranges_of_parts(begins))
        self.key_tables.heads[number, self.buckets(number)] = begins[-1]

    def tables_to_merge(self, entries_min: int, merge_share: int) -> Iterator[int]:
        """Yield the table with the largest active segment, as long as all active segments together are
        too large. The caller merges it.

        An active segment is full once it has one entry for every `merge_share` frozen ones, and at
        least `entries_min`. All together may have half the entries of full segments, because tables
        that are merged in turn are half full on average. So each is merged as often as if it were
        merged when full, and never all at once, even if all were empty at the same time.
        """
        count = self.count
        while 2 * count * int(self.active.sum()) > (count + 1) * max(
            count * entries_min, int(self.frozen.sum()) // merge_share
        ):
            yield int(self.active.argmax())

    def merge(self, number: int) -> bool:
        """Merge the active segment of one table into its frozen one. Return False, and change nothing,
        if the table needs more buckets.
        """
        key_tables, base = self.key_tables, number * self._places
        end_place = int(self.frozen[number]) + int(self.active[number])
        if buckets_for(end_place) > self.buckets(number):
            return False
        self._stop_writing([number])
        merged, cursor = self._begin_row_file(number), np.empty(GROUP, np.int64)
        # From the last bucket to the first, because entries move to higher places.
        for first, end in reversed(list(self._bucket_ranges(number))):
            begin, stop = key_tables.heads[number, [first, end]].tolist()
            count = (
                stop
                - begin
                + int(key_tables.active_heads[number, first // GROUP : end // GROUP, 1].sum())
            )
            rows, tags, halves = np.empty(count, np.uint32), *np.empty((2, count), np.uint8)
            old_rows, begin_place = self._read_rows(number, begin, stop), end_place - count
            finder_kernels.merge_segments(
                key_tables, number, first, end, begin_place, old_rows, rows, tags, halves, cursor
            )
            self._write_rows(number, begin_place, rows, merged)
            key_tables.tags[base + begin_place : base + end_place] = tags
            finder_kernels.write_halves(key_tables.half_tags, base + begin_place, halves)
            end_place = begin_place
        self._set_row_file(number, merged)
        self.active[number] = 0
        self._write_file(number)
        return True

    def build(
        self,
        read_keys: ReadKeys,
        states: NDArray[np.uint8],
        state_min: int,
        entries: int,
        run_parts: RunParts,
        beat: Callable[[], None],
    ) -> None:
        """Build the tables of the `entries` rows with a state of `state_min` or more; only in a new
        object.

        A table with a valid file is read, and later rows are added to it; the others are sorted.
        """
        covered = self._read_table_files(entries, run_parts)
        missing = np.flatnonzero(covered < 0).tolist()
        if missing:
            self.freeze(
                read_keys,
                states,
                state_min,
                entries,
                run_parts,
                None if len(missing) == self.count else missing,
            )
            covered[missing] = len(states)
        for first in range(int(covered.min()), len(states), _KEYS_AT_ONCE):
            end = min(len(states), first + _KEYS_AT_ONCE)
            rows = first + np.flatnonzero(states[first:end] >= state_min)
            numbers = np.flatnonzero(covered < end).tolist()
            for number, keys in zip(numbers, read_keys(numbers, first, end), strict=True):
                later = rows[rows >= covered[number]]
                self.add(later, keys[later - first, np.newaxis], number)
            beat()
        self._next_row = len(states)

    def _read_table_files(self, entries: int, run_parts: RunParts) -> NDArray[np.int64]:
        """Read the valid table files. Return for each table (T,) the number of rows in it, or -1 if it
        has no valid file.
        """
        covered = np.full(self.count, -1, np.int64)
        if self._files is None:
            return covered
        numbers = range(self._first, self._first + self.count)
        valid_files = {
            number - self._first: table_file
            for number, table_file in self._files.valid_tables(self._plan_id).items()
            if number in numbers
        }
        if not valid_files:
            return covered
        files, file_buckets = self._files, [file.buckets for file in valid_files.values()]
        room_buckets = max(buckets_for(entries), *file_buckets)
        if room_buckets > self._room_buckets:
            self.key_tables = self._make_tables(_ROOM_FOR_MORE * room_buckets)

        def read_table(number: int) -> None:
            table_file = valid_files[number]
            self.key_tables.masks[number] = table_file.buckets - 1
            file = files.read_table(
                self._first + number, lambda: self._pieces(number, table_file.entries, fill=True)
            )
            if file is None:
                return
            covered[number] = table_file.rows
            if self._folder is None:
                file.close()
            else:
                self._set_row_file(number, Column(np.uint32, file=file))

        run_parts(read_table, list(valid_files))
        return covered

    def _stop_writing(self, numbers: Sequence[int]) -> None:
        if self._files is not None:
            self._files.stop_writing([self._first + number for number in numbers])

    def _write_file(self, number: int) -> None:
        """Start writing the frozen segment of a table to a table file."""
        if self._files is not None and (entries := int(self.frozen[number])):
            sizes = Sizes(self._next_row, entries, self.buckets(number))
            self._files.write_table(
                self._first + number, self._plan_id, sizes, lambda: self._pieces(number, entries)
            )

    def _pieces(
        self, number: int, entries: int, *, fill: bool = False
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield the memory of a table's frozen segment, piece by piece: row numbers, tags, half tags,
        heads.

        With `fill` the caller fills them from the table's file. If the row numbers stay in that file,
        their pieces are a buffer that is discarded.
        """
        base, key_tables = number * self._places, self.key_tables
        skipped = (
            np.empty(min(entries, _PLACES_AT_ONCE), np.uint32)
            if fill and self._folder is not None
            else None
        )
        for first in range(0, entries, _PLACES_AT_ONCE):
            end = min(entries, first + _PLACES_AT_ONCE)
            yield (
                self._read_rows(number, first, end) if skipped is None else skipped[: end - first]
            ).view(np.uint8)
        for part in (
            key_tables.tags[base : base + entries],
            key_tables.half_tags[base // 2 : (base + entries + 1) // 2],
            self._heads(number).view(np.uint8),
        ):
            for first in range(0, len(part), _PLACES_AT_ONCE):
                yield part[first : first + _PLACES_AT_ONCE]

    def move_to_files(self, folder: Path) -> None:
        """Move the row numbers of the frozen segments to files."""
        if self._folder is not None:
            return
        for number, entries in enumerate(self.frozen.tolist()):
            if entries:
                column = Column(np.uint32, folder=folder)
                column.write(0, self._read_rows(number, 0, entries))
                self._set_row_file(number, column)
        self._folder = folder
        self.key_tables = self.key_tables._replace(rows=np.empty(0, np.uint32))

    def _begin_row_file(self, number: int) -> Column | None:
        """Return a new file for the row numbers of a table; None if they are in memory."""
        if self._folder is None:
            return None
        return Column(
            np.uint32,
            folder=self._folder,
            path=None if self._files is None else self._files.begin_file(self._first + number),
        )

    def _set_row_file(self, number: int, column: Column | None) -> None:
        """Use `column` as the file with the row numbers of a table; do nothing if it is None."""
        if column is not None:
            self._row_files[number] = column
            self.key_tables.files[number] = column.descriptor

    def _read_rows(self, number: int, begin: int, end: int) -> NDArray[np.uint32]:
        """Return the row numbers at some places of a table's frozen segment; a view if they are in
        memory.
        """
        rows, base = self.key_tables.rows, number * self._places
        # `rows` first, because another thread may run `move_to_files`, which sets the files and
        # then empties the array.
        column = self._row_files.get(number)
        return rows[base + begin : base + end] if column is None else column.read(begin, end)

    def _write_rows(
        self, number: int, first: int, rows: NDArray[np.uint32], column: Column | None
    ) -> None:
        """Set row numbers of a table from a place on, in `column` or in memory."""
        if column is None:
            base = number * self._places + first
            self.key_tables.rows[base : base + len(rows)] = rows
        else:
            column.write(first, rows)

    @property
    def frozen(self) -> NDArray[np.int64]:
        """The number of rows in the frozen segment of each table, (T,)."""
        ends: NDArray[np.uint32] = self.key_tables.heads[
            np.arange(self.count), self.key_tables.masks + np.uint64(1)
        ]
        return ends.astype(np.int64)

    @property
    def bytes_used(self) -> int:
        """Bytes of memory that the arrays use; unwritten room uses none."""
        key_tables = self.key_tables
        written = int(
            self.frozen.sum() * (_TAG_BYTES if self._folder is not None else _TAG_BYTES + ROW_BYTES)
        )
        heads = sum(self.buckets(number) for number in range(self.count)) * _BUCKET_BYTES
        return written + heads + key_tables.active_tags.nbytes + key_tables.active_rows.nbytes

    @property
    def bytes_in_file(self) -> int:
        """Bytes of the row numbers that are in files."""
        return int(self.frozen.sum()) * ROW_BYTES if self._folder is not None else 0

    def longest(self, number: int) -> int:
        """Return the largest number of entries that a look-up in one table reads: those of a frozen
        bucket and of its active block. The block counts as a whole, because counting its entries by
        bucket would read each of them.
        """
        frozen = np.diff(self._heads(number)).reshape(-1, GROUP).max(axis=1)
        return int((frozen + self.key_tables.active_heads[number, : len(frozen), 1]).max())

    def buckets(self, number: int) -> int:
        """Return the number of buckets of one table."""
        return int(self.key_tables.masks[number]) + 1

    def _heads(self, number: int) -> NDArray[np.uint32]:
        """Return the start of each bucket of one table, and the end of the last, (B + 1,)."""
        return self.key_tables.heads[number, : self.buckets(number) + 1]

    @property
    def _room_buckets(self) -> int:
        """The number of buckets for which each table has room."""
        return int(self.key_tables.heads.shape[1] - 1)

    @property
    def _places(self) -> int:
        """The number of places of each table in the frozen arrays."""
        return len(self.key_tables.tags) // self.count

    def _bucket_ranges(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield ranges (first, end) of buckets, in whole groups, with so few entries that a merge can
        process them in memory.
        """
        entries, buckets = int(self.frozen[number]), self.buckets(number)
        step = max(GROUP, buckets * _ENTRIES_AT_ONCE // max(1, entries) // GROUP * GROUP)
        for first in range(0, buckets, step):
            yield first, min(buckets, first + step)

    def _make_tables(self, room_buckets: int) -> KeyTables:
        """Return empty tables with room for `room_buckets` buckets each, and for their entries."""
        places = self.count * room_buckets * _BUCKET_ENTRIES
        self._row_files.clear()
        return KeyTables(
            masks=np.full(self.count, _BUCKETS_MIN - 1, np.uint64),
            heads=allocate_lazily((self.count, room_buckets + 1), np.uint32),
            tags=allocate_lazily((places,), np.uint8),
            half_tags=allocate_lazily((places // 2,), np.uint8),
            rows=allocate_lazily((places if self._folder is None else 0,), np.uint32),
            files=np.full(self.count, -1, np.int64),
            active_heads=allocate_lazily((self.count, room_buckets // GROUP, 2), np.uint32),
            active_tags=np.zeros(_UNITS_MIN * UNIT, np.uint16),
            active_rows=np.zeros(_UNITS_MIN * UNIT, np.uint32),
            free_blocks=np.zeros(BLOCK_SIZES + 1, np.int64),
        )


def buckets_for(entries: int) -> int:
    """Return the number of buckets of a table of `entries`: a power of two with up to 32 entries in
    each.
    """
    return max(_BUCKETS_MIN, 1 << (entries // _BUCKET_ENTRIES).bit_length())


def _part_bits(buckets: int) -> int:
    """Return log2 of the number of buckets in a part: few parts, but each fits into a cache."""
    bits = buckets.bit_length() - 1
    return min(bits, max(_PART_BITS_MIN, bits - _PARTS_BITS))


def finder_bytes(tables: int, entries: int, active_share: float, *, in_file: bool = False) -> int:
    """Return the bytes of memory of `tables` tables, with the share `active_share` of the entries in
    active segments; with `in_file`, row numbers are in files.
    """
    frozen = _TAG_BYTES if in_file else _TAG_BYTES + ROW_BYTES
    return int(
        tables
        * (entries * (frozen + active_share * _ACTIVE_BYTES) + buckets_for(entries) * _BUCKET_BYTES)
    )


def _ranges_of_parts(begins: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return at most `_PIECES` ranges of about equal length of the parts that begin at `begins`.

    Ranges begin at even places, because two half tags share a byte and two threads must not write to
    the same one.
    """
    even_parts = np.append(np.flatnonzero(begins[:-1] % 2 == 0), len(begins) - 1)
    selected = np.linspace(0, len(even_parts) - 1, _PIECES + 1, dtype=np.int64)
    return list(itertools.pairwise(np.unique(even_parts[selected]).tolist()))
