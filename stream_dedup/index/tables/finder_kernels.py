"""Compiled functions of `finder`: hash tables from keys to rows.

A key has 64 bits. Its low bits select the bucket. Twelve other bits are its *tag* (no tag of
`storage.tags`): eight are stored for each row, and four in an array of half bytes, which is read
only if the eight match. A bucket has about 24 entries, so a search reads one cache line of tags in
each table. A search in twenty tables returns a wrong entry about once in eight times, for any
number of entries.

The frozen segment is sorted by bucket, without gaps. Later entries, the active segment, are in blocks
of 4, 8, 16, ... places, in one arena for all tables. Four adjacent buckets, a *group*, share a block,
and the tag of an entry there includes two bits for the bucket. When a block is full, its entries move
to one of twice the size, and it is added to the free list of its size. The frozen segments of all
tables of a finder are in one array, with room for each so that a table can be merged, or get
twice as many buckets, without moving the others. The row numbers of the frozen segments may be in
files, one for each table.

Invariants: within a bucket rows ascend, so the first match is the earliest; a tag alone never
decides, because the caller compares the row. No function here grows an array: if the arena has no
room for an entry, a function reports that before it changes anything for the entry.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.index.storage.columns import REMOVED
from stream_dedup.kernels.compiled import inlined, kernel, prefetch, read_at

int64: Any = np.int64
uint8: Any = np.uint8
uint16: Any = np.uint16
uint32: Any = np.uint32
uint64: Any = np.uint64

TAGS: Final = 1 << 12
GROUP_BITS: Final = 2
GROUP: Final = 1 << GROUP_BITS
UNIT: Final = 4  # places in the smallest block; blocks are counted in units of it
BLOCK_SIZES: Final = 32
_TAG_SHIFT: Final = uint64(56)
_HALF_TAG_SHIFT: Final = uint64(28)
_AHEAD: Final = 8


class KeyTables(NamedTuple):
    """T tables with room for B buckets and m rows in each, B a power of two, m even.

    `masks` (T,) uint64 is the number of buckets of each table less one; the number is a power of two
    of at most B.

    Frozen segments: `heads` (T, B + 1) uint32, the place where each bucket begins, and the end of the
    last one; `tags` (T * m,) uint8; `half_tags` (T * m / 2,) uint8; `rows` (T * m,) uint32. If row
    numbers are in files, `rows` is empty, and `files` (T,) int64 are the descriptors, otherwise -1.

    Active segments: `active_heads` (T, B / 4, 2) uint32, the first unit and the length of each
    group's block; `active_tags` uint16 and `active_rows` uint32 (units * 4,); `free_blocks`
    (BLOCK_SIZES + 1,) int64, the first free block of each size, plus 1 (0: none), and at the end
    the number of units used so far.
    """

    masks: NDArray[np.uint64]
    heads: NDArray[np.uint32]
    tags: NDArray[np.uint8]
    half_tags: NDArray[np.uint8]
    rows: NDArray[np.uint32]
    files: NDArray[np.int64]
    active_heads: NDArray[np.uint32]
    active_tags: NDArray[np.uint16]
    active_rows: NDArray[np.uint32]
    free_blocks: NDArray[np.int64]


@kernel
def _block_size(length: int) -> int:
    """Return the n of the smallest block of 4 * 2^n places that holds `length` entries."""
    size = 0
    while (UNIT << size) < length:
        size += 1
    return size


@kernel
def _free_block(rows: Any, free_blocks: Any, block: int, length: int) -> None:
    """Add a block with `length` entries, 1 or more, to the free list of its size."""
    size = _block_size(length)
    rows[block * UNIT] = uint32(free_blocks[size])
    free_blocks[size] = block + 1


@kernel
def _take_block(rows: Any, free_blocks: Any, length: int) -> int:
    """Return the first unit of a block for `length` entries, or -1 if the arena has no room.

    The block is from the free lists, otherwise from the end of the arena. A larger free block is
    halved until its size is right, and the other halves are added to the free lists.
    """
    size = _block_size(length)
    for larger in range(size, BLOCK_SIZES):
        if free_blocks[larger] > 0:
            block = free_blocks[larger] - 1
            free_blocks[larger] = int64(rows[block * UNIT])
            prefetch(rows, (free_blocks[larger] - 1) * UNIT)  # the next call reads it
            for half in range(size, larger):
                _free_block(rows, free_blocks, block + (1 << half), UNIT << half)
            return int(block)
    block = free_blocks[BLOCK_SIZES]
    if block + (1 << size) > rows.shape[0] // UNIT:
        return -1
    free_blocks[BLOCK_SIZES] = block + (1 << size)
    return int(block)


@kernel
def _grow_block(tags: Any, rows: Any, free_blocks: Any, block: int, length: int) -> int:
    """Move the `length` entries of a full block to a larger block.

    Return the larger block, or -1 if the arena has no room. `tags` and `rows` are those of the arena.
    """
    larger: int = _take_block(rows, free_blocks, length + 1)
    if larger < 0:
        return -1
    for place in range(length):
        tags[larger * UNIT + place] = tags[block * UNIT + place]
        rows[larger * UNIT + place] = rows[block * UNIT + place]
    if length > 0:
        _free_block(rows, free_blocks, block, length)
    return larger


@inlined
def bucket_of(mask: Any, key: Any) -> Any:
    """Return the bucket of a key; `mask` is the number of buckets of its table less one."""
    return int64(key & mask)


@inlined
def first_tag(key: Any) -> Any:
    """Return the eight bits of a key's tag that are stored next to each row."""
    return uint8(key >> _TAG_SHIFT)


@inlined
def second_tag(key: Any) -> Any:
    """Return the four bits of a key's tag that are compared after the first eight."""
    return uint8((key >> _HALF_TAG_SHIFT) & uint64(15))


@inlined
def active_tag(key: Any) -> Any:
    """Return both parts of the tag, and the number of the key's bucket within its group."""
    return uint16(
        ((key >> _TAG_SHIFT) << uint64(8))
        | (((key >> _HALF_TAG_SHIFT) & uint64(15)) << uint64(4))
        | (key & uint64(GROUP - 1))
    )


@inlined
def read_half(half_tags: Any, index: int) -> Any:
    """Return the half byte of number `index`."""
    return (half_tags[index >> 1] >> uint8((index & 1) << 2)) & uint8(15)


@inlined
def _write_half(half_tags: Any, index: int, half: Any) -> None:
    shift = uint8((index & 1) << 2)
    half_tags[index >> 1] = (half_tags[index >> 1] & ~(uint8(15) << shift)) | (uint8(half) << shift)


@kernel
def write_halves(half_tags: Any, first: int, halves: Any) -> None:
    """Set half bytes from number `first` on to `halves` (n,) uint8."""
    odd = first & 1
    if halves.shape[0] > 0 and odd == 1:
        _write_half(half_tags, first, halves[0])
    for pair in range((halves.shape[0] - odd) >> 1):
        low = uint64(odd + 2 * pair)
        half_tags[uint64(((first + odd) >> 1) + pair)] = halves[low] | (
            halves[low + uint64(1)] << uint8(4)
        )
    if halves.shape[0] > odd and (halves.shape[0] - odd) & 1 == 1:
        _write_half(half_tags, first + halves.shape[0] - 1, halves[halves.shape[0] - 1])


@inlined
def read_frozen_row(key_tables: Any, buffer: Any, number: Any, place: Any) -> Any:
    """Return the row number at a place of the frozen segment of table `number`.

    `place` is an index into the arrays of all tables. If the file cannot be read, `buffer.failed` is
    set.
    """
    if key_tables.files[number] < 0:
        return int64(key_tables.rows[place])
    place_in_table = int64(place) - int64(number) * int64(
        key_tables.tags.shape[0] // key_tables.heads.shape[0]
    )
    if read_at(key_tables.files[number], place_in_table * int64(4), buffer.number) != 4:
        buffer.failed[0] = 1
        buffer.number[0] = 0
    return int64(buffer.number[0])


@kernel
def find_next(key_tables: Any, number: int, key: Any, place: int) -> int:
    """Return the first place in a key's bucket, from `place` on, whose tag equals the key's, or -1.

    A place is a number within the bucket: first come those of its frozen segment, then those of the
    active block. `read_row` returns the row there.
    """
    heads, tags, half_tags = key_tables.heads, key_tables.tags, key_tables.half_tags
    bucket, first, second = (
        bucket_of(key_tables.masks[number], key),
        first_tag(key),
        second_tag(key),
    )
    base = number * (tags.shape[0] // heads.shape[0])
    start = base + int64(heads[number, bucket])
    count = base + int64(heads[number, bucket + 1]) - start
    while place < count:
        if tags[start + place] == first and read_half(half_tags, start + place) == second:
            return place
        place += 1
    group = bucket >> GROUP_BITS
    block, length = (
        int64(key_tables.active_heads[number, group, 0]) * UNIT,
        int64(key_tables.active_heads[number, group, 1]),
    )
    wanted_tag, active_tags = active_tag(key), key_tables.active_tags
    for index in range(place - count, length):
        if active_tags[block + index] == wanted_tag:
            return int(count + index)
    return -1


@kernel
def find_last(key_tables: Any, number: int, key: Any, end: int) -> int:
    """Return the last place before `end` in a key's bucket whose tag equals the key's, or -1. Places
    are as in `find_next`.
    """
    heads, tags, half_tags = key_tables.heads, key_tables.tags, key_tables.half_tags
    bucket, first, second = (
        bucket_of(key_tables.masks[number], key),
        first_tag(key),
        second_tag(key),
    )
    base = number * (tags.shape[0] // heads.shape[0])
    start = base + int64(heads[number, bucket])
    count = base + int64(heads[number, bucket + 1]) - start
    group = bucket >> GROUP_BITS
    block, length = (
        int64(key_tables.active_heads[number, group, 0]) * UNIT,
        int64(key_tables.active_heads[number, group, 1]),
    )
    wanted_tag, active_tags = active_tag(key), key_tables.active_tags
    place: int = min(end, count + length) - 1
    while place >= count:
        if active_tags[block + place - count] == wanted_tag:
            return place
        place -= 1
    while place >= 0 and (
        tags[start + place] != first or read_half(half_tags, start + place) != second
    ):
        place -= 1
    return place


@kernel
def read_row(key_tables: Any, buffer: Any, number: int, key: Any, place: int) -> int:
    """Return the row number at a place that `find_next` returned."""
    heads, bucket = key_tables.heads, bucket_of(key_tables.masks[number], key)
    begin, end = int64(heads[number, bucket]), int64(heads[number, bucket + 1])
    if place < end - begin:
        return int(
            read_frozen_row(
                key_tables,
                buffer,
                number,
                number * (key_tables.tags.shape[0] // heads.shape[0]) + begin + place,
            )
        )
    block = int64(key_tables.active_heads[number, bucket >> GROUP_BITS, 0]) * UNIT
    return int(key_tables.active_rows[block + place - (end - begin)])


@inlined
def _prefetch_ahead(key_tables: Any, number: int, keys: Any, doc: int) -> None:
    """Prefetch the memory that the searches for later documents than `doc` read first."""
    heads, active_heads, mask = key_tables.heads, key_tables.active_heads, key_tables.masks[number]
    later, soon = doc + 2 * _AHEAD, doc + _AHEAD
    if later < keys.shape[0]:
        bucket = bucket_of(mask, keys[later])
        prefetch(heads, number * heads.shape[1] + bucket)
        prefetch(active_heads, (number * active_heads.shape[1] + (bucket >> GROUP_BITS)) * 2)
    if 0 <= soon < keys.shape[0]:
        bucket = bucket_of(mask, keys[soon])
        prefetch(
            key_tables.tags,
            number * (key_tables.tags.shape[0] // heads.shape[0]) + int64(heads[number, bucket]),
        )
        prefetch(
            key_tables.active_tags, int64(active_heads[number, bucket >> GROUP_BITS, 0]) * UNIT
        )


@kernel
def find_live(
    key_tables: Any,
    buffer: Any,
    number: int,
    keys: Any,
    states: Any,
    row_below: int,
    cursors: Any,
    found: Any,
) -> None:
    """Set `found` (n,) int64 to the next live row in one table whose tag equals each key's, or -1.

    If `row_below` is -1, the search goes from the earliest to the latest row, otherwise backwards
    from the latest row before `row_below`. `cursors` (n,) int64 contains the state of each search:
    forwards the place after the last result (at first 0), backwards the place of the last result (at
    first a number higher than any place).
    """
    for doc in range(-2 * _AHEAD, keys.shape[0]):
        _prefetch_ahead(key_tables, number, keys, doc)
        if doc < 0:
            continue
        found[doc] = -1
        place = int64(cursors[doc])
        while True:
            place = int64(
                find_next(key_tables, number, keys[doc], place)
                if row_below < 0
                else find_last(key_tables, number, keys[doc], place)
            )
            if place < 0:
                break
            row = int64(read_row(key_tables, buffer, number, keys[doc], place))
            place += row_below < 0
            if states[row] != REMOVED and (row_below < 0 or row < row_below):
                found[doc] = row
                break
        cursors[doc] = place


@kernel
def add_active(key_tables: Any, number: int, added: Any, keys: Any, first: int) -> int:
    """Add rows `added` (k,) int64, later than all others, to the active segments of m tables.

    The tables are those from `number` on, and `keys` (k, m) are the rows' keys. Start with the key at
    flat index `first`, and return the flat index after the last key that was added: lower than k * m
    if the arena has no room.
    """
    heads, tags, rows, free_blocks = (
        key_tables.active_heads[number:],
        key_tables.active_tags,
        key_tables.active_rows,
        key_tables.free_blocks,
    )
    count, masks = keys.shape[1], key_tables.masks[number:]
    for index in range(first, added.shape[0] * count):
        doc, column = index // count, index % count
        if index + 16 < added.shape[0] * count:
            next_doc, next_column = (index + 16) // count, (index + 16) % count
            prefetch(
                heads,
                (
                    next_column * heads.shape[1]
                    + (bucket_of(masks[next_column], keys[next_doc, next_column]) >> GROUP_BITS)
                )
                * 2,
            )
        if index + 8 < added.shape[0] * count:
            next_doc, next_column = (index + 8) // count, (index + 8) % count
            place = (
                int64(
                    heads[
                        next_column,
                        bucket_of(masks[next_column], keys[next_doc, next_column]) >> GROUP_BITS,
                        0,
                    ]
                )
                * UNIT
            )
            prefetch(tags, place)
            prefetch(rows, place)
        key = keys[doc, column]
        group = bucket_of(masks[column], key) >> GROUP_BITS
        block, length = int64(heads[column, group, 0]), int64(heads[column, group, 1])
        if length == 0 or (length >= UNIT and (length & (length - 1)) == 0):
            block = int64(_grow_block(tags, rows, free_blocks, block, length))
            if block < 0:
                return index
            heads[column, group, 0] = uint32(block)
        tags[block * UNIT + length] = active_tag(key)
        rows[block * UNIT + length] = uint32(added[doc])
        heads[column, group, 1] = uint32(length + 1)
    return int(added.shape[0] * count)


@kernel
def place_keys(
    key_tables: Any,
    number: int,
    keys: Any,
    states: Any,
    state_min: int,
    first: int,
    part_bits: int,
    counts: Any,
    low_halves: Any,
) -> int:
    """Write the keys of rows whose state is `state_min` or more, unsorted, to the frozen places of
    a table.

    `keys` (n,) are those of rows with `states` (n,). The first tags are written to the table from
    place `first` on, and the low halves of the keys to `low_halves` (n,) uint32. `counts` (P,) int64
    is increased by the number of keys in each part of 2^`part_bits` buckets. Return the number of
    keys.
    """
    tags, mask = key_tables.tags, key_tables.masks[number]
    base, count = number * (tags.shape[0] // key_tables.heads.shape[0]) + first, int64(0)
    for row in range(keys.shape[0]):
        if states[row] >= state_min:
            key = keys[row]
            tags[base + count] = first_tag(key)
            low_halves[count] = uint32(key)
            counts[(key & mask) >> uint64(part_bits)] += 1
            count += 1
    return int(count)


@kernel
def partition_keys(
    mask: Any,
    low_halves: Any,
    tags: Any,
    states: Any,
    state_min: int,
    first: int,
    part_bits: int,
    cursors: Any,
    parted: Any,
) -> None:
    """Copy the keys that `place_keys` wrote, each to its part of the buckets.

    `mask` is the table's. `low_halves` and `tags` are the low halves and first tags of the keys of
    those rows from `first` on whose state is `state_min` or more. `parted` (n,) uint64 is the output:
    row, both tags and the bucket within the part, in 32, 8, 4 and 20 bits. `cursors` (P,) uint64 are
    the next places of the parts in it.
    """
    bucket_mask = uint32((1 << part_bits) - 1)
    index = int64(0)
    for row in range(states.shape[0]):
        if states[row] >= state_min:
            bucket = low_halves[index] & uint32(mask)
            part = uint64(bucket >> uint32(part_bits))
            place = cursors[part]
            cursors[part] = place + uint64(1)
            tag = (uint64(tags[index]) << uint64(4)) | uint64(low_halves[index] >> uint32(28))
            parted[place] = (
                (uint64(first + row) << uint64(32))
                | (tag << uint64(20))
                | uint64(bucket & bucket_mask)
            )
            index += 1


@kernel
def sort_parts(
    key_tables: Any, number: int, parted: Any, first: int, begins: Any, cursor: Any, ordered: Any, halves: Any, rows: Any
) -> None:  # fmt: skip
    """Sort parts of the buckets, from part `first` on, into the frozen segment of table `number`.

    `begins` (k + 1,) int64 are the places where these k parts begin and the last one ends. The
    first is even: two half tags share a byte, and so no other thread writes to the same one.
    `parted` (n,) uint64 is the output of `partition_keys`; the row numbers are written to `rows`
    (n,) uint32. Scratch: `cursor` (buckets of a part,) uint32, `ordered` (entries of the longest
    part,) uint64, and `halves` (n,) uint8.
    """
    heads, tags, half_tags = key_tables.heads[number], key_tables.tags, key_tables.half_tags
    base, first_place, size = (
        number * (tags.shape[0] // key_tables.heads.shape[0]),
        int64(begins[0]),
        int64(cursor.shape[0]),
    )
    bucket_mask = uint64(size - 1)
    for part in range(begins.shape[0] - 1):
        begin, end = int64(begins[part]) - first_place, int64(begins[part + 1]) - first_place
        cursor[:] = 0
        for place in range(begin, end):
            cursor[parted[uint64(place)] & bucket_mask] += uint32(1)
        length_before = uint32(0)
        for bucket in range(size):
            heads[(first + part) * size + bucket] = uint32(first_place + begin) + length_before
            length = cursor[bucket]
            cursor[bucket] = length_before
            length_before += length
        for place in range(begin, end):
            entry = parted[uint64(place)]
            slot = cursor[entry & bucket_mask]
            cursor[entry & bucket_mask] = slot + uint32(1)
            ordered[uint64(slot)] = entry
        for place in range(end - begin):
            entry = ordered[uint64(place)]
            tags[uint64(base + first_place + begin + place)] = uint8(entry >> uint64(24))
            halves[uint64(begin + place)] = uint8(entry >> uint64(20)) & uint8(15)
            rows[uint64(begin + place)] = uint32(entry >> uint64(32))
    write_halves(half_tags, base + first_place, halves)


@inlined
def _clear_group(key_tables: Any, number: int, group: int) -> None:
    """Empty the active block that four buckets share, and add it to the free list."""
    active_heads = key_tables.active_heads
    if active_heads[number, group, 1] > 0:
        _free_block(
            key_tables.active_rows,
            key_tables.free_blocks,
            int64(active_heads[number, group, 0]),
            int64(active_heads[number, group, 1]),
        )
    active_heads[number, group, 0] = uint32(0)
    active_heads[number, group, 1] = uint32(0)


@kernel
def merge_segments(
    key_tables: Any,
    number: int,
    first: int,
    end: int,
    first_place: int,
    old_rows: Any,
    rows: Any,
    tags: Any,
    halves: Any,
    cursor: Any,
) -> None:
    """Merge the frozen and the active segment of buckets `first` to `end` of table `number`, in row
    order.

    The range consists of whole groups. `old_rows` are the row numbers of the frozen segment.
    Output: `rows` (n,) uint32, `tags` and `halves` (n,) uint8 of both segments. The caller writes
    these to the table from place `first_place` on; the buckets' heads for these places are set
    here. The blocks of the active segment are added to the free lists. `cursor` (GROUP,) int64 is
    scratch.
    """
    heads, old_tags, half_tags = key_tables.heads[number], key_tables.tags, key_tables.half_tags
    active_heads, active_tags, active_rows = (
        key_tables.active_heads[number],
        key_tables.active_tags,
        key_tables.active_rows,
    )
    base, begin, written = (
        number * (old_tags.shape[0] // key_tables.heads.shape[0]),
        int64(heads[first]),
        int64(0),
    )
    read = begin
    for group in range(first >> GROUP_BITS, end >> GROUP_BITS):
        block, length = int64(active_heads[group, 0]) * UNIT, int64(active_heads[group, 1])
        cursor[:] = 0
        for place in range(block, block + length):
            cursor[active_tags[place] & uint16(GROUP - 1)] += 1
        for index in range(GROUP):
            bucket = (group << GROUP_BITS) + index
            count = int64(heads[bucket + 1]) - read
            for place in range(count):
                rows[uint64(written + place)] = old_rows[uint64(read - begin + place)]
            for place in range(count):
                tags[uint64(written + place)] = old_tags[uint64(base + read + place)]
            for place in range(count):
                halves[uint64(written + place)] = read_half(half_tags, base + read + place)
            read, written = read + count, written + count
            active = cursor[index]
            cursor[index] = written
            written += active
            heads[bucket + 1] = uint32(first_place + written)
        for place in range(block, block + length):
            tag = active_tags[place]
            slot = uint64(cursor[tag & uint16(GROUP - 1)])
            cursor[tag & uint16(GROUP - 1)] += 1
            rows[slot], tags[slot], halves[slot] = (
                active_rows[place],
                uint8(tag >> 8),
                uint8(tag >> 4) & uint8(15),
            )
        _clear_group(key_tables, number, group)


@kernel
def clear_active(key_tables: Any, number: int) -> None:
    """Empty the active segment of table `number`, and add its blocks to the free lists."""
    for group in range(int64(key_tables.masks[number] + uint64(1)) >> GROUP_BITS):
        _clear_group(key_tables, number, group)


@kernel
def count_overfull_tags(key_tables: Any, number: int, count_max: int, counts: Any) -> int:
    """Return the number of tags that occur more than `count_max` times in a bucket of one table.

    `counts` (TAGS,) int64 is scratch: zeros before and after.
    """
    heads, tags, half_tags = key_tables.heads[number], key_tables.tags, key_tables.half_tags
    active_heads, active_tags = key_tables.active_heads[number], key_tables.active_tags
    base, found = number * (tags.shape[0] // key_tables.heads.shape[0]), int64(0)
    for bucket in range(int64(key_tables.masks[number]) + 1):
        begin, end = base + int64(heads[bucket]), base + int64(heads[bucket + 1])
        block, length = (
            int64(active_heads[bucket >> GROUP_BITS, 0]) * UNIT,
            int64(active_heads[bucket >> GROUP_BITS, 1]),
        )
        if end - begin + length <= count_max:
            continue
        for step in range(2):  # once to count, once to reset `counts` to zeros
            for place in range(begin, end):
                tag = (int64(tags[place]) << 4) | int64(read_half(half_tags, place))
                counts[tag] = counts[tag] + 1 if step == 0 else 0
                found += step == 0 and counts[tag] == count_max + 1
            for place in range(block, block + length):
                if int64(active_tags[place]) & (GROUP - 1) == bucket & (GROUP - 1):
                    tag = int64(active_tags[place]) >> 4
                    counts[tag] = counts[tag] + 1 if step == 0 else 0
                    found += step == 0 and counts[tag] == count_max + 1
    return int(found)
