"""The compiled half of `finder`: tables of hashed keys over rows.

A key is 64 bits. Its low ones choose the bucket; twelve others are its *tag*, of which eight lie
beside each row and four in an array of halves of bytes, which is asked where the eight pass. A
bucket holds some 24 entries, so a search reads a line of tags for each table, and by chance one
entry in twenty tables passes once in eight searches, however many there are.

The frozen segment is sorted by bucket, without a gap; what came since lies in an arena of blocks of
4, 8, 16, ... places that all tables share: a block for four buckets that lie side by side, with the
bucket's two bits beside the tag. A list whose block is full moves to one of twice the size, and the
old block goes onto the free list of its size, where the next list takes it. The frozen segments of
the tables of one finder lie in one array, each with room for far more than it holds, so each is
merged with its active segment, or gets twice as many buckets, by itself. The row numbers of the
frozen segments may lie in files, one a table.

Invariants: within a bucket rows ascend, so the first that passes is the earliest; a tag never
decides, who asks compares what it stands for; nothing here grows an array: who takes from an arena
that lacks room is told so before anything changes.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.index.tables.rows import REMOVED
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
SIZES: Final = 32
_TAG_SHIFT: Final = uint64(56)
_MORE_SHIFT: Final = uint64(28)
_AHEAD: Final = 8


class KeyTables(NamedTuple):
    """T tables with room for B buckets and m rows in each, B a power of two, m even.

    `masks` (T,) uint64: how many buckets each has, a power of two of at most B, less one. Frozen:
    `heads` (T, B + 1) uint32 where each bucket begins, and after them where the last ends, `tags`
    (T * m,) uint8, `more` (T * m / 2,) uint8, `rows` (T * m,) uint32, or (0,) where those of each
    table lie at the beginning of the file of number `files` (T,) int64, else -1. Active:
    `active_heads` (T, B / 4, 2) uint32 first unit and length, `active_tags` uint16, `active_rows`
    uint32 (units * 4,), `free` (SIZES + 1,) int64 the first free block of each size, plus one, and
    how many units were ever taken.
    """

    masks: NDArray[np.uint64]
    heads: NDArray[np.uint32]
    tags: NDArray[np.uint8]
    more: NDArray[np.uint8]
    rows: NDArray[np.uint32]
    files: NDArray[np.int64]
    active_heads: NDArray[np.uint32]
    active_tags: NDArray[np.uint16]
    active_rows: NDArray[np.uint32]
    free: NDArray[np.int64]


@kernel
def _size_of(length: int) -> int:
    """Return n of the least block of 4 * 2^n places that holds `length` entries."""
    size = 0
    while (UNIT << size) < length:
        size += 1
    return size


@kernel
def _give_back(rows: Any, free: Any, block: int, length: int) -> None:
    """Let another list have the block of one of `length` entries, which has moved; there is at
    least one.
    """
    size = _size_of(length)
    rows[block * UNIT] = uint32(free[size])
    free[size] = block + 1


@kernel
def _take_block(rows: Any, free: Any, length: int) -> int:
    """Return the first unit of a block for `length` entries: one given back, or the arena's next;
    -1 if it lacks room.

    Of a larger one that was given back the first half is taken, or the first half of that, and the
    others are given back.
    """
    size = _size_of(length)
    for larger in range(size, SIZES):
        if free[larger] > 0:
            block = free[larger] - 1
            free[larger] = int64(rows[block * UNIT])
            prefetch(rows, (free[larger] - 1) * UNIT)  # which the next one asks for
            for half in range(size, larger):
                _give_back(rows, free, block + (1 << half), UNIT << half)
            return int(block)
    block = free[SIZES]
    if block + (1 << size) > rows.shape[0] // UNIT:
        return -1
    free[SIZES] = block + (1 << size)
    return int(block)


@kernel
def _larger_block(beside: Any, rows: Any, free: Any, block: int, length: int) -> int:
    """Move the `length` entries of a full block to one that has room for more; return which, or -1
    if the arena lacks room.

    `beside` is the other array of the arena, with what lies beside each row number.
    """
    larger: int = _take_block(rows, free, length + 1)
    if larger < 0:
        return -1
    for place in range(length):
        beside[larger * UNIT + place] = beside[block * UNIT + place]
        rows[larger * UNIT + place] = rows[block * UNIT + place]
    if length > 0:
        _give_back(rows, free, block, length)
    return larger


@inlined
def bucket_of(mask: Any, key: Any) -> Any:
    """Return the bucket of a key; `mask` is the number of buckets of its table less one."""
    return int64(key & mask)


@inlined
def first_tag(key: Any) -> Any:
    """Return the part of a key that lies beside each row."""
    return uint8(key >> _TAG_SHIFT)


@inlined
def second_tag(key: Any) -> Any:
    """Return the four bits of a key that are asked where the others pass."""
    return uint8((key >> _MORE_SHIFT) & uint64(15))


@inlined
def active_tag(key: Any) -> Any:
    """Return both tags, with the place of the key's bucket among the four that share a block."""
    return uint16(
        ((key >> _TAG_SHIFT) << uint64(8))
        | (((key >> _MORE_SHIFT) & uint64(15)) << uint64(4))
        | (key & uint64(GROUP - 1))
    )


@inlined
def half_of(more: Any, at: int) -> Any:
    """Return half a byte."""
    return (more[at >> 1] >> uint8((at & 1) << 2)) & uint8(15)


@inlined
def _set_half(more: Any, at: int, half: Any) -> None:
    shift = uint8((at & 1) << 2)
    more[at >> 1] = (more[at >> 1] & ~(uint8(15) << shift)) | (uint8(half) << shift)


@kernel
def set_halves(more: Any, at: int, halves: Any) -> None:
    """Set halves of bytes from the one of number `at` on to `halves` (n,) uint8."""
    odd = at & 1
    if halves.shape[0] > 0 and odd == 1:
        _set_half(more, at, halves[0])
    for pair in range((halves.shape[0] - odd) >> 1):
        low = uint64(odd + 2 * pair)
        more[uint64(((at + odd) >> 1) + pair)] = halves[low] | (halves[low + uint64(1)] << uint8(4))
    if halves.shape[0] > odd and (halves.shape[0] - odd) & 1 == 1:
        _set_half(more, at + halves.shape[0] - 1, halves[halves.shape[0] - 1])


@inlined
def frozen_row(table: Any, taken: Any, number: Any, place: Any) -> Any:
    """Return the row number at a place of table `number`, of its frozen segment; if it cannot be
    read, `taken.failed` is set.

    Places count through all tables.
    """
    if table.files[number] < 0:
        return int64(table.rows[place])
    own = int64(place) - int64(number) * int64(table.tags.shape[0] // table.heads.shape[0])
    if read_at(table.files[number], own * int64(4), taken.number) != 4:
        taken.failed[0] = 1
        taken.number[0] = 0
    return int64(taken.number[0])


@kernel
def next_passing(table: Any, number: int, key: Any, at: int) -> int:
    """Return the first place from `at` on in a key's bucket that the key's tags let pass, or -1.

    Places count through the bucket's frozen segment and then through the active block of the
    bucket; see `row_at`.
    """
    heads, tags, more = table.heads, table.tags, table.more
    bucket, first, second = bucket_of(table.masks[number], key), first_tag(key), second_tag(key)
    base = number * (tags.shape[0] // heads.shape[0])
    begin = base + int64(heads[number, bucket])
    count = base + int64(heads[number, bucket + 1]) - begin
    while at < count:
        if tags[begin + at] == first and half_of(more, begin + at) == second:
            return at
        at += 1
    group = bucket >> GROUP_BITS
    block, length = (
        int64(table.active_heads[number, group, 0]) * UNIT,
        int64(table.active_heads[number, group, 1]),
    )
    wanted, active_tags = active_tag(key), table.active_tags
    for place in range(at - count, length):
        if active_tags[block + place] == wanted:
            passing: int = count + place
            return passing
    return -1


@kernel
def last_passing(table: Any, number: int, key: Any, end: int) -> int:
    """Return the last place before `end` in a key's bucket that the key's tags let pass, or -1; see
    `next_passing`.
    """
    heads, tags, more = table.heads, table.tags, table.more
    bucket, first, second = bucket_of(table.masks[number], key), first_tag(key), second_tag(key)
    base = number * (tags.shape[0] // heads.shape[0])
    begin = base + int64(heads[number, bucket])
    count = base + int64(heads[number, bucket + 1]) - begin
    group = bucket >> GROUP_BITS
    block, length = (
        int64(table.active_heads[number, group, 0]) * UNIT,
        int64(table.active_heads[number, group, 1]),
    )
    wanted, active_tags = active_tag(key), table.active_tags
    at: int = min(end, count + length) - 1
    while at >= count:
        if active_tags[block + at - count] == wanted:
            return at
        at -= 1
    while at >= 0 and (tags[begin + at] != first or half_of(more, begin + at) != second):
        at -= 1
    return at


@kernel
def row_at(table: Any, taken: Any, number: int, key: Any, at: int) -> int:
    """Return the row number at a place that `next_passing` returned."""
    heads, bucket = table.heads, bucket_of(table.masks[number], key)
    begin, end = int64(heads[number, bucket]), int64(heads[number, bucket + 1])
    if at < end - begin:
        return int(
            frozen_row(
                table, taken, number, number * (table.tags.shape[0] // heads.shape[0]) + begin + at
            )
        )
    block = int64(table.active_heads[number, bucket >> GROUP_BITS, 0]) * UNIT
    return int(table.active_rows[block + at - (end - begin)])


@inlined
def _fetch_ahead(table: Any, number: int, keys: Any, doc: int) -> None:
    """Have the memory brought near with which the searches some places after `doc` begin."""
    heads, active_heads, mask = table.heads, table.active_heads, table.masks[number]
    later, soon = doc + 2 * _AHEAD, doc + _AHEAD
    if later < keys.shape[0]:
        bucket = bucket_of(mask, keys[later])
        prefetch(heads, number * heads.shape[1] + bucket)
        prefetch(active_heads, (number * active_heads.shape[1] + (bucket >> GROUP_BITS)) * 2)
    if 0 <= soon < keys.shape[0]:
        bucket = bucket_of(mask, keys[soon])
        prefetch(
            table.tags,
            number * (table.tags.shape[0] // heads.shape[0]) + int64(heads[number, bucket]),
        )
        prefetch(table.active_tags, int64(active_heads[number, bucket >> GROUP_BITS, 0]) * UNIT)


@kernel
def find(
    table: Any, taken: Any, number: int, keys: Any, states: Any, below: int, at: Any, found: Any
) -> None:
    """Set `found` (n,) int64 to the next live row that each key's tags let pass in one table, or
    -1; from the earliest on.

    With a row number `below`, not -1, from the latest row before that one on. `at` (n,) int64 is
    where the search stands: the place after the one found last, 0 to begin; backwards that one's
    own, and far behind all places to begin.
    """
    for doc in range(-2 * _AHEAD, keys.shape[0]):
        _fetch_ahead(table, number, keys, doc)
        if doc < 0:
            continue
        found[doc] = -1
        place = int64(at[doc])
        while True:
            place = int64(
                next_passing(table, number, keys[doc], place)
                if below < 0
                else last_passing(table, number, keys[doc], place)
            )
            if place < 0:
                break
            row = int64(row_at(table, taken, number, keys[doc], place))
            place += below < 0
            if states[row] != REMOVED and (below < 0 or row < below):
                found[doc] = row
                break
        at[doc] = place


@kernel
def add_open(table: Any, number: int, added: Any, keys: Any, first: int) -> int:
    """Add rows `added` (k,) int64, later than all there, with their `keys` (k, m), to the active
    segments of m tables.

    These are those from `number` on. Begins at place `first` of the k * m and returns how many are
    in; fewer than all if the arena lacks room.
    """
    heads, tags, rows, free = (
        table.active_heads[number:],
        table.active_tags,
        table.active_rows,
        table.free,
    )
    count, masks = keys.shape[1], table.masks[number:]
    for at in range(first, added.shape[0] * count):
        doc, its = at // count, at % count
        if at + 16 < added.shape[0] * count:
            later, ahead = (at + 16) // count, (at + 16) % count
            prefetch(
                heads,
                (
                    ahead * heads.shape[1]
                    + (bucket_of(masks[ahead], keys[later, ahead]) >> GROUP_BITS)
                )
                * 2,
            )
        if at + 8 < added.shape[0] * count:
            later, ahead = (at + 8) // count, (at + 8) % count
            place = (
                int64(heads[ahead, bucket_of(masks[ahead], keys[later, ahead]) >> GROUP_BITS, 0])
                * UNIT
            )
            prefetch(tags, place)
            prefetch(rows, place)
        key = keys[doc, its]
        group = bucket_of(masks[its], key) >> GROUP_BITS
        block, length = int64(heads[its, group, 0]), int64(heads[its, group, 1])
        if length == 0 or (length >= UNIT and (length & (length - 1)) == 0):
            block = int64(_larger_block(tags, rows, free, block, length))
            if block < 0:
                return at
            heads[its, group, 0] = uint32(block)
        tags[block * UNIT + length] = active_tag(key)
        rows[block * UNIT + length] = uint32(added[doc])
        heads[its, group, 1] = uint32(length + 1)
    return int(added.shape[0] * count)


@kernel
def lay(
    table: Any,
    number: int,
    keys: Any,
    states: Any,
    least: int,
    at: int,
    part_bits: int,
    counts: Any,
    low: Any,
) -> int:
    """Put the keys of rows whose state is `least` or more where table `number` will lie, from its
    place `at` on, unsorted.

    `keys` (n,) are those of rows with `states` (n,). The tags beside each row go into place; `low`
    (n,) uint32 becomes the low halves of the keys. `counts` (P,) int64 grows by how many there are
    in each part of 2^`part_bits` buckets; returns how many there are in all.
    """
    tags, mask = table.tags, table.masks[number]
    base, count = number * (tags.shape[0] // table.heads.shape[0]) + at, int64(0)
    for row in range(keys.shape[0]):
        if states[row] >= least:
            key = keys[row]
            tags[base + count] = first_tag(key)
            low[count] = uint32(key)
            counts[(key & mask) >> uint64(part_bits)] += 1
            count += 1
    return int(count)


@kernel
def part(
    mask: Any,
    low: Any,
    high: Any,
    states: Any,
    least: int,
    first: int,
    part_bits: int,
    cursor: Any,
    parted: Any,
) -> None:
    """Move what `lay` put down of one table to where its part of the buckets will lie, at `cursor`
    (P,) uint64 in `parted`.

    `low` and `high` are the low halves and the tags of the keys of those rows from `first` on whose
    `states` count; `mask` is the table's. `parted` (n,) uint64 becomes the row, both tags and the
    bucket within the part: 32, 8, 4 and 20 bits.
    """
    within = uint32((1 << part_bits) - 1)
    at = int64(0)
    for row in range(states.shape[0]):
        if states[row] >= least:
            bucket = low[at] & uint32(mask)
            own = uint64(bucket >> uint32(part_bits))
            to = cursor[own]
            cursor[own] = to + uint64(1)
            tag = (uint64(high[at]) << uint64(4)) | uint64(low[at] >> uint32(28))
            parted[to] = (
                (uint64(first + row) << uint64(32)) | (tag << uint64(20)) | uint64(bucket & within)
            )
            at += 1


@kernel
def freeze(
    table: Any, number: int, parted: Any, first: int, begins: Any, cursor: Any, ordered: Any, halves: Any, rows: Any
) -> None:  # fmt: skip
    """Sort parts of the buckets, from part `first` on, into the frozen segment of table `number`.

    `begins` (k + 1,) int64 are the places at which these k parts begin and the last one ends, the
    first of them even, so that no other thread writes to a byte of theirs. `parted` (n,) uint64 is
    what `part` made of them, `rows` (n,) uint32 becomes the row numbers. Scratch: `cursor` (buckets
    of a part,) uint32, `ordered` (entries of the longest part,) uint64, and `halves` (n,) uint8.
    """
    heads, tags, more = table.heads[number], table.tags, table.more
    base, before, size = (
        number * (tags.shape[0] // table.heads.shape[0]),
        int64(begins[0]),
        int64(cursor.shape[0]),
    )
    within = uint64(size - 1)
    for at in range(begins.shape[0] - 1):
        begin, end = int64(begins[at]) - before, int64(begins[at + 1]) - before
        cursor[:] = 0
        for place in range(begin, end):
            cursor[parted[uint64(place)] & within] += uint32(1)
        to = uint32(0)
        for bucket in range(size):
            heads[(first + at) * size + bucket] = uint32(before + begin) + to
            length = cursor[bucket]
            cursor[bucket] = to
            to += length
        for place in range(begin, end):
            entry = parted[uint64(place)]
            its = cursor[entry & within]
            cursor[entry & within] = its + uint32(1)
            ordered[uint64(its)] = entry
        for place in range(end - begin):
            entry = ordered[uint64(place)]
            tags[uint64(base + before + begin + place)] = uint8(entry >> uint64(24))
            halves[uint64(begin + place)] = uint8(entry >> uint64(20)) & uint8(15)
            rows[uint64(begin + place)] = uint32(entry >> uint64(32))
    set_halves(more, base + before, halves)


@inlined
def _clear_group(table: Any, number: int, group: int) -> None:
    """Empty the active block that four buckets share, and give it back to all tables."""
    active_heads = table.active_heads
    if active_heads[number, group, 1] > 0:
        _give_back(
            table.active_rows,
            table.free,
            int64(active_heads[number, group, 0]),
            int64(active_heads[number, group, 1]),
        )
    active_heads[number, group, 0] = uint32(0)
    active_heads[number, group, 1] = uint32(0)


@kernel
def merge(
    table: Any, number: int, first: int, end: int, at: int, old_rows: Any, rows: Any, tags: Any, halves: Any, cursor: Any
) -> None:  # fmt: skip
    """Put together the frozen and the active segment of buckets `first` to `end`, whole groups, of
    table `number`, in order.

    `old_rows` are the row numbers of the frozen segment. `rows` (n,) uint32, `tags` and `halves`
    (n,) uint8 become those of both, which will lie in the table from place `at` on, as the buckets'
    heads then say. The blocks of the active segment are given back to all tables. `cursor` (GROUP,)
    int64 is scratch.
    """
    heads, old_tags, more = table.heads[number], table.tags, table.more
    active_heads, active_tags, active_rows = (
        table.active_heads[number],
        table.active_tags,
        table.active_rows,
    )
    base, begin, to = (
        number * (old_tags.shape[0] // table.heads.shape[0]),
        int64(heads[first]),
        int64(0),
    )
    old = begin
    for group in range(first >> GROUP_BITS, end >> GROUP_BITS):
        block, length = int64(active_heads[group, 0]) * UNIT, int64(active_heads[group, 1])
        cursor[:] = 0
        for place in range(block, block + length):
            cursor[active_tags[place] & uint16(GROUP - 1)] += 1
        for part in range(GROUP):
            bucket = (group << GROUP_BITS) + part
            count = int64(heads[bucket + 1]) - old
            for place in range(count):
                rows[uint64(to + place)] = old_rows[uint64(old - begin + place)]
            for place in range(count):
                tags[uint64(to + place)] = old_tags[uint64(base + old + place)]
            for place in range(count):
                halves[uint64(to + place)] = half_of(more, base + old + place)
            old, to = old + count, to + count
            active = cursor[part]
            cursor[part] = to
            to += active
            heads[bucket + 1] = uint32(at + to)
        for place in range(block, block + length):
            tag = active_tags[place]
            its = uint64(cursor[tag & uint16(GROUP - 1)])
            cursor[tag & uint16(GROUP - 1)] += 1
            rows[its], tags[its], halves[its] = (
                active_rows[place],
                uint8(tag >> 8),
                uint8(tag >> 4) & uint8(15),
            )
        _clear_group(table, number, group)


@kernel
def clear_open(table: Any, number: int) -> None:
    """Empty the active segment of table `number`, and give its blocks back to all tables."""
    for group in range(int64(table.masks[number] + uint64(1)) >> GROUP_BITS):
        _clear_group(table, number, group)


@kernel
def count_open(table: Any, number: int, lengths: Any) -> None:
    """Add to `lengths` (B,) int64 how many rows of each bucket lie in the active segment of one
    table.
    """
    active_heads, active_tags = table.active_heads, table.active_tags
    for group in range(lengths.shape[0] >> GROUP_BITS):
        block = int64(active_heads[number, group, 0]) * UNIT
        for place in range(block, block + int64(active_heads[number, group, 1])):
            lengths[(group << GROUP_BITS) + (int64(active_tags[place]) & (GROUP - 1))] += 1


@kernel
def count_fuller(table: Any, number: int, most: int, counts: Any) -> int:
    """Return how many tags occur more than `most` times in a bucket of one table; `counts` (tags,)
    int64 stays zeros.
    """
    heads, tags, more = table.heads[number], table.tags, table.more
    active_heads, active_tags = table.active_heads[number], table.active_tags
    base, found = number * (tags.shape[0] // table.heads.shape[0]), int64(0)
    for bucket in range(int64(table.masks[number]) + 1):
        begin, end = base + int64(heads[bucket]), base + int64(heads[bucket + 1])
        block, length = (
            int64(active_heads[bucket >> GROUP_BITS, 0]) * UNIT,
            int64(active_heads[bucket >> GROUP_BITS, 1]),
        )
        if end - begin + length <= most:
            continue
        for step in range(2):  # once to count, once to leave zeros
            for place in range(begin, end):
                tag = (int64(tags[place]) << 4) | int64(half_of(more, place))
                counts[tag] = counts[tag] + 1 if step == 0 else 0
                found += step == 0 and counts[tag] == most + 1
            for place in range(block, block + length):
                if int64(active_tags[place]) & (GROUP - 1) == bucket & (GROUP - 1):
                    tag = int64(active_tags[place]) >> 4
                    counts[tag] = counts[tag] + 1 if step == 0 else 0
                    found += step == 0 and counts[tag] == most + 1
    return int(found)
