"""Compiled: tables of a print's blocks, for plans that allow some bits of a block to differ, or judge by the print alone.

One table per key of the plan. Its sealed part is sorted by bucket, without a gap; what came since lies in an arena of blocks
of 4, 8, 16, ... places, one block a bucket: a full block moves to one of twice the size, and the old one goes onto the free
list of its size. When the open part has grown to a share of the sealed one, both are sorted again into a new sealed part.

Both parts hold, beside the row, a *fragment* of the print: 32 or 64 bits that the table's key says nothing of. It is what a
search compares, so nearly every candidate is turned away by memory that is read in order; only what passes is looked up by
its row. Measured: docs/explanation/index-layout.md.

Invariants: within a bucket rows ascend, so the first within reach is its earliest; a fragment that is further off than the
plan's threshold proves its print to be; every function that may take from an arena returns early when there is no room, and
nothing here grows an array.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.index.near_kernels import alike_held, found_by_blocks
from stream_dedup.index.rows import FULL
from stream_dedup.machine.compiled import kernel, popcount, prefetch

int64: Any = np.int64
uint32: Any = np.uint32
uint64: Any = np.uint64

UNIT: Final = 4  # places in the smallest block; blocks are counted in units of it
SIZES: Final = 32
_LINE_BYTES: Final = 64
_LINES_AHEAD: Final = 4


class Table(NamedTuple):
    """One table. `place` (4,) int64: its number, the fragment's limb and shift, its first bucket.

    Sealed: `heads` (B + 1,) uint32 where each bucket begins, `fragments`, `rows` (m,). Open: `open_heads` (B, 2) uint32 first
    unit and length, `open_fragments`, `open_rows` (units * 4,), `free` (SIZES + 1,) int64 first free block per size, plus one,
    and units ever taken.
    """

    place: NDArray[np.int64]
    heads: NDArray[np.uint32]
    fragments: NDArray[Any]
    rows: NDArray[np.uint32]
    open_heads: NDArray[np.uint32]
    open_fragments: NDArray[Any]
    open_rows: NDArray[np.uint32]
    free: NDArray[np.int64]


@kernel
def _address(limb: Any, shift: Any, mask: Any, onto: Any, begin: int, end: int, prints: Any, row: int) -> Any:
    """Return the address of a print in the table whose pieces are `begin`..`end`."""
    key = uint64(0)
    for piece in range(begin, end):
        at = limb[piece]
        low = uint64(shift[piece])
        bits = prints[row, at] >> low
        if low > uint64(0) and at + 1 < prints.shape[1]:  # the piece may lie across two limbs
            bits |= prints[row, at + 1] << (uint64(64) - low)
        key ^= (bits & mask[piece]) << onto[piece]
    return key


@kernel
def find_buckets(tables: Any, prints: Any, row: int, scope: Any, bucket: Any) -> None:
    """Set `bucket` (T,) int64 to the bucket of print `row` and a scope in each table."""
    limb, shift, mask, onto = tables.limb, tables.shift, tables.piece, tables.onto
    address, base, piece_end = tables.address, tables.base, tables.piece_end
    begin = 0
    for table in range(base.shape[0]):
        end = piece_end[table]
        key = _address(limb, shift, mask, onto, begin, end, prints, row)
        bucket[table] = base[table] + int64((key ^ scope) & address[table])
        begin = end


@kernel
def buckets_of(tables: Any, batch: Any, buckets: Any) -> None:
    """Set `buckets` (n, T) int64 to the buckets of every document."""
    prints, scopes = batch.prints, batch.scopes
    for row in range(buckets.shape[0]):
        find_buckets(tables, prints, row, scopes[row], buckets[row])


@kernel
def _keys_of_rows(tables: Any, number: int, held: Any, keys: Any) -> None:
    """Set `keys` (rows,) uint32 to the rows' buckets in one table, counted from the table's first.

    The same as `find_buckets`, with the loop over the rows inside, where the compiler makes vector code of it.
    """
    prints, scopes = held.prints, held.scopes
    keys[:] = uint32(0)
    for piece in range(0 if number == 0 else tables.piece_end[number - 1], tables.piece_end[number]):
        at, low = tables.limb[piece], uint64(tables.shift[piece])
        mask, onto = tables.piece[piece], tables.onto[piece]
        two = low > uint64(0) and at + 1 < prints.shape[1]
        for row in range(keys.shape[0]):
            bits = prints[row, at] >> low
            if two:
                bits |= prints[row, at + 1] << (uint64(64) - low)
            keys[row] ^= uint32((bits & mask) << onto)
    if scopes.shape[0] > 0:
        address = tables.address[number]
        for row in range(keys.shape[0]):
            keys[row] = uint32((uint64(keys[row]) ^ scopes[row]) & address)


@kernel
def seal(tables: Any, table: Any, held: Any, keys: Any, cursor: Any) -> None:
    """Sort the full entries of the first rows into the sealed part of a table.

    `keys` (rows,) uint32 and `cursor` (B,) uint32 are scratch.
    """
    number, at_word, low = table.place[0], table.place[1], uint64(table.place[2])
    prints, states, heads = held.prints, held.states, table.heads
    fragments, rows, whole = table.fragments, table.rows, tables.whole[at_word]
    _keys_of_rows(tables, number, held, keys)
    heads[:] = 0
    for row in range(keys.shape[0]):
        if states[row] == FULL:
            heads[int64(keys[row]) + 1] += uint32(1)
    for bucket in range(cursor.shape[0]):
        heads[bucket + 1] += heads[bucket]
        cursor[bucket] = heads[bucket]
    for row in range(keys.shape[0]):
        if states[row] == FULL:
            bucket = int64(keys[row])
            at = cursor[bucket]
            cursor[bucket] = at + uint32(1)
            fragments[at] = (prints[row, at_word] & whole) >> low
            rows[at] = uint32(row)


@kernel
def size_of(length: int) -> int:
    """Return n of the least block of 4 * 2^n places that holds `length` entries."""
    size = 0
    while (UNIT << size) < length:
        size += 1
    return size


@kernel
def give_back(rows: Any, free: Any, block: int, length: int) -> None:
    """Let another list have the block of one of `length` entries, which has moved; there is at least one."""
    size = size_of(length)
    rows[block * UNIT] = uint32(free[size])
    free[size] = block + 1


@kernel
def take_block(rows: Any, free: Any, length: int) -> int:
    """Return the first unit of a block for `length` entries: one given back, or the arena's next; -1 if it lacks room.

    Of a larger one that was given back the first half is taken, or the first half of that, and the others are given back.
    """
    size = size_of(length)
    for larger in range(size, SIZES):
        if free[larger] > 0:
            block = free[larger] - 1
            free[larger] = int64(rows[block * UNIT])
            prefetch(rows, (free[larger] - 1) * UNIT)  # which the next one asks for
            for half in range(size, larger):
                give_back(rows, free, block + (1 << half), UNIT << half)
            return int(block)
    block = free[SIZES]
    if block + (1 << size) > rows.shape[0] // UNIT:
        return -1
    free[SIZES] = block + (1 << size)
    return int(block)


@kernel
def larger_block(beside: Any, rows: Any, free: Any, block: int, length: int) -> int:
    """Move the `length` entries of a full block to one that has room for more; return which, or -1 if the arena lacks room.

    `beside` is the other array of the arena, with what lies beside each row number.
    """
    larger: int = take_block(rows, free, length + 1)
    if larger < 0:
        return -1
    for place in range(length):
        beside[larger * UNIT + place] = beside[block * UNIT + place]
        rows[larger * UNIT + place] = rows[block * UNIT + place]
    if length > 0:
        give_back(rows, free, block, length)
    return larger


@kernel
def add_open(tables: Any, table: Any, held: Any, added: Any, buckets: Any, first: int) -> int:
    """Add rows `added[first:]` (k,) int64, later than all there, with their `buckets` (k, T), to a table's open part.

    Returns how many are in; fewer than all if the arena lacks room.
    """
    number, limb, shift, base = table.place[0], table.place[1], uint64(table.place[2]), table.place[3]
    heads, fragments, rows, free = table.open_heads, table.open_fragments, table.open_rows, table.free
    prints, whole = held.prints, tables.whole[limb]
    for at in range(first, added.shape[0]):
        if at + 16 < added.shape[0]:
            prefetch(heads, (buckets[at + 16, number] - base) * 2)
        if at + 8 < added.shape[0]:
            ahead = int64(heads[buckets[at + 8, number] - base, 0]) * UNIT
            prefetch(fragments, ahead)
            prefetch(rows, ahead)
        bucket = buckets[at, number] - base
        block, length = int64(heads[bucket, 0]), int64(heads[bucket, 1])
        if length == 0 or (length >= UNIT and (length & (length - 1)) == 0):
            block = int64(larger_block(fragments, rows, free, block, length))
            if block < 0:
                return at
            heads[bucket, 0] = uint32(block)
        row = added[at]
        fragments[block * UNIT + length] = (prints[row, limb] & whole) >> shift
        rows[block * UNIT + length] = uint32(row)
        heads[bucket, 1] = uint32(length + 1)
    return int(added.shape[0])


@kernel
def _ask(
    flips: Any, begin: int, end: int, key: int, heads: Any, open_heads: Any, fragments: Any, open_fragments: Any, first: Any,
    length: Any, side: int,
) -> None:  # fmt: skip
    """Set where the buckets within the radius of `key` begin and how long they are, and ask for their memory.

    `first`, `length` (2, probes, 2) int64: of one side, sealed and open. Nearly all of a search goes into waiting for memory,
    and the processor waits for many lines at once if it knows of them in time.
    """
    step = _LINE_BYTES // fragments.itemsize
    for probe in range(end - begin):
        at = key ^ int64(flips[begin + probe])
        sealed = int64(heads[at])
        count = int64(heads[at + 1]) - sealed
        first[side, probe, 0] = sealed
        length[side, probe, 0] = count
        first[side, probe, 1] = int64(open_heads[at, 0]) * UNIT
        length[side, probe, 1] = open_heads[at, 1]
        for line in range(0, min(count, _LINES_AHEAD * step), step):
            prefetch(fragments, sealed + line)
        if open_heads[at, 1] > 0:
            prefetch(open_fragments, first[side, probe, 1])


@kernel
def _next(fragments: Any, at: int, end: int, wanted: Any, threshold: int) -> int:
    """Return the first place from `at` whose fragment is within the threshold of the wanted one, or `end`."""
    while at < end and popcount(uint64(fragments[at]) ^ wanted) > threshold:
        at += 1
    return at


@kernel
def _verify(
    tables: Any, held: Any, batch: Any, doc: int, rows: Any, open_rows: Any, passed: Any, count: int, best: Any,
    best_distance: Any,
) -> None:  # fmt: skip
    """Lower the document's best by those of `passed[:count]` within reach: places in `rows`, or -1 - places in `open_rows`.

    Their prints lie anywhere in memory, so all are asked for before the first is looked at.
    """
    prints = held.prints
    limbs = prints.shape[1]
    for at in range(count):
        row = int64(rows[passed[at]]) if passed[at] >= 0 else int64(open_rows[-1 - passed[at]])
        passed[at] = row
        prefetch(prints, row * limbs)
    for at in range(count):
        if passed[at] < best[doc]:
            distance = _reached(tables, held, passed[at], batch, doc)
            if distance >= 0:
                best[doc], best_distance[doc] = passed[at], distance


@kernel
def search(
    tables: Any, table: Any, held: Any, batch: Any, buckets: Any, docs: Any, best: Any, best_distance: Any, first: Any,
    length: Any, passed: Any, candidates: Any,
) -> None:  # fmt: skip
    """Lower `best` (n,) int64 and `best_distance` (n,) int64 to the earliest row within reach that one table knows.

    `docs` (m,) int64 are those to search for; `first`, `length` (2, probes, 2) int64 are scratch: what one document's
    search visits is asked for while the one before it is searched; so is `passed` (any,) int64: what passes by its fragment is
    gathered, and looked up by its row together. `candidates` (n,) int64 grows by the entries of the visited buckets. Arrays
    are taken out of their tuples before the loops, because each taking counts a reference.

    A bucket that lies some flips from the document's own holds keys that differ in as many bits at least, which the fragment,
    where it shares no bit with the key, differs in less.
    """
    number, limb, low, base = table.place[0], table.place[1], uint64(table.place[2]), table.place[3]
    heads, fragments, rows = table.heads, table.fragments, table.rows
    open_heads, open_fragments, open_rows = table.open_heads, table.open_fragments, table.open_rows
    flips, prints, whole, threshold = tables.flips, batch.prints, tables.whole[limb], tables.threshold
    is_apart = (tables.masks[number, limb] & _part(low, fragments.itemsize)) == uint64(0)
    begin, end = (0 if number == 0 else tables.flips_end[number - 1]), tables.flips_end[number]
    if docs.shape[0] > 0:
        key = buckets[docs[0], number] - base
        _ask(flips, begin, end, key, heads, open_heads, fragments, open_fragments, first, length, 0)
    for order in range(docs.shape[0]):
        side = order & 1
        if order + 1 < docs.shape[0]:
            key = buckets[docs[order + 1], number] - base
            _ask(flips, begin, end, key, heads, open_heads, fragments, open_fragments, first, length, 1 - side)
        doc, seen, count = docs[order], 0, 0
        wanted = (prints[doc, limb] & whole) >> low
        if fragments.itemsize == 4:
            wanted &= uint64(0xFFFFFFFF)
        for probe in range(end - begin):
            within = threshold - popcount(flips[begin + probe]) if is_apart else threshold
            at = first[side, probe, 0]
            stop = at + length[side, probe, 0]
            seen += stop - at
            while True:
                at = _next(fragments, at, stop, wanted, within)
                if at == stop:
                    break
                if count == passed.shape[0]:
                    _verify(tables, held, batch, doc, rows, open_rows, passed, count, best, best_distance)
                    count = 0
                    if int64(rows[at]) >= best[doc]:  # and so are all that follow in this bucket
                        break
                prefetch(rows, at)
                passed[count] = at
                count += 1
                at += 1
            at = first[side, probe, 1]
            stop = at + length[side, probe, 1]
            seen += stop - at
            while True:
                at = _next(open_fragments, at, stop, wanted, within)
                if at == stop:
                    break
                if count == passed.shape[0]:
                    _verify(tables, held, batch, doc, rows, open_rows, passed, count, best, best_distance)
                    count = 0
                    if int64(open_rows[at]) >= best[doc]:
                        break
                prefetch(open_rows, at)
                passed[count] = -1 - at
                count += 1
                at += 1
        _verify(tables, held, batch, doc, rows, open_rows, passed, count, best, best_distance)
        candidates[doc] += seen


@kernel
def _part(low: Any, size: int) -> Any:
    """Return the mask of a fragment of so many bytes that begins at bit `low` of a limb."""
    return uint64(0xFFFFFFFFFFFFFFFF) if size == 8 else uint64(0xFFFFFFFF) << low


@kernel
def _reached(tables: Any, held: Any, row: int, batch: Any, doc: int) -> int:
    """Return the distance of a document to a full entry of its scope within reach, or -1."""
    distance: int = found_by_blocks(tables, held, row, batch, doc)  # turns nearly all away, by one line of memory
    if distance < 0 or held.states[row] != FULL:
        return -1
    scope = held.scopes[row] if held.scopes.shape[0] > 0 else uint64(0)
    return distance if scope == batch.scopes[doc] and alike_held(tables, held, row, batch, doc) else -1


@kernel
def collect(
    tables: Any,
    table: Any,
    held: Any,
    batch: Any,
    bucket: int,
    first: Any,
    length: Any,
    entries: Any,
    distances: Any,
    count: int,
) -> int:
    """Append every row within reach of document 0 that one table knows; return how many there are, room or not."""
    number, base = table.place[0], table.place[3]
    begin, end = (0 if number == 0 else tables.flips_end[number - 1]), tables.flips_end[number]
    _ask(
        tables.flips, begin, end, bucket - base, table.heads, table.open_heads, table.fragments, table.open_fragments,
        first, length, 0,
    )  # fmt: skip
    for probe in range(end - begin):
        for part in range(2):
            rows = table.rows if part == 0 else table.open_rows
            for at in range(first[0, probe, part], first[0, probe, part] + length[0, probe, part]):
                distance = _reached(tables, held, int64(rows[at]), batch, 0)
                if distance >= 0:
                    if count < entries.shape[0]:
                        entries[count] = rows[at]
                        distances[count] = distance
                    count += 1
    return count
