"""The compiled half of `neighbours`: arrays in, arrays out, no object of Python's inside.

Three kinds of memory:

    held     what is known of an entry, by row; rows are in log order, and a removed entry's row is marked until the
             next compaction
    slots    open addressing with linear probing, at most 3 in 4 taken, two of them: by (scope, text digest) and by
             (source, offset, value digest). A slot is a 32-bit tag of that hash above the row. A tag that is found is a
             candidate, which the caller compares with what is stored: one in 2^32 per entry is another document's
    table    one per key of the plan. Its sealed part is sorted by bucket, without a gap; what came since lies in an
             arena of blocks of 4, 8, 16, ... places, one block a bucket: a full block moves to one of twice the size, and
             the old one goes onto the free list of its size. When the open part has grown to a share of the sealed one,
             both are sorted again into a new sealed part

Both parts of a table hold, beside the row, a *fragment* of the print: 32 or 64 bits that the table's key says nothing of.
It is what a search compares, so nearly every candidate is turned away by memory that is read in order; only what
passes is looked up by its row. Measured: docs/explanation/index-layout.md.

Invariants: within a bucket rows ascend, so the first within reach is its earliest; a fragment that is further off than
the plan's threshold proves its print to be; every function that may take from an arena returns early when there is no
room, and nothing here grows an array; a slot's home follows from its tag alone and keeps the tags' order, so a larger
array is filled nearly in order.

All compiled code of the index is in this one file, and takes its numbers as arguments.
numba turns a mixture of signed and unsigned words into floats: hashes and prints are uint64 throughout, places int64.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from stream_dedup.machine.compiled import kernel, popcount

# numba knows these as types; to the type checker they are Any, because indices and counts are int there.
int64: Any = np.int64
uint32: Any = np.uint32
uint64: Any = np.uint64

NONE: Final = int64(0xFFFFFFFF)  # no row: later than every row
EMPTY: Final = uint64(0xFFFFFFFFFFFFFFFF)
FEATURES_UNKNOWN: Final = 0xFFFFFFFF
OUTCOME_NEW: Final = 0
OUTCOME_SHORT: Final = 1
OUTCOME_DIGEST: Final = 2
OUTCOME_NEAR: Final = 3
REMOVED: Final = 0
SHORT: Final = 1
FULL: Final = 2
UNIT: Final = 4  # places in the smallest block; blocks are counted in units of it
SIZES: Final = 32
_LINE_BYTES: Final = 64
_LINES_AHEAD: Final = 4
SPREAD: Final = uint64(0x9E3779B97F4A7C15)
_MIX_ONE: Final = uint64(0xBF58476D1CE4E5B9)  # the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)
_MIX_TWO: Final = uint64(0x94D049BB133111EB)


class Columns(NamedTuple):
    """Documents to be judged. Shapes: `prints` (n, W), `digests` (n, 2), `sketches` (n, S), S maybe 0, the rest (n,)."""

    prints: NDArray[np.uint64]
    scopes: NDArray[np.uint64]
    digests: NDArray[np.uint64]
    sources: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    values: NDArray[np.uint64]
    features: NDArray[np.uint32]
    sketches: NDArray[np.uint8]


def no_columns(words: int, count: int, values: int = 0) -> Columns:
    """Return columns for `count` documents with prints of `words` words and sketches of `values` values, all zero."""
    return Columns(
        prints=np.zeros((count, words), np.uint64),
        scopes=np.zeros(count, np.uint64),
        digests=np.zeros((count, 2), np.uint64),
        sources=np.zeros(count, np.uint32),
        offsets=np.zeros(count, np.int64),
        values=np.zeros(count, np.uint64),
        features=np.zeros(count, np.uint32),
        sketches=np.zeros((count, values), np.uint8),
    )


def take_rows(columns: Columns, rows: slice | NDArray[np.int64]) -> Columns:
    """Return some rows of columns: views for a slice, copies for row numbers."""
    taken: list[Any] = [column[rows] for column in columns]
    return Columns(*taken)


class HeldRows(NamedTuple):
    """What is held of every entry, by row. Shapes: `prints` (C, W), `sketches` (C, S), the rest (C,); `scopes` (0,) while
    all are 0.

    `states` are REMOVED, SHORT or FULL; `numbers` are entry numbers, counted from the first row's when they were laid out.
    """

    prints: NDArray[np.uint64]
    scopes: NDArray[np.uint64]
    features: NDArray[np.uint32]
    numbers: NDArray[np.uint32]
    states: NDArray[np.uint8]
    sketches: NDArray[np.uint8]


class Table(NamedTuple):
    """One table. `place` (4,) int64: its number, the fragment's word and shift, its first bucket.

    Sealed: `heads` (B + 1,) uint32 where each bucket begins, `fragments`, `rows` (m,). Open: `open_heads` (B, 2) uint32 first
    unit and length, `open_fragments`, `open_rows` (units * 4,), `free` (SIZES,) int64 first free block per size, plus one,
    `top` (1,) int64 units ever taken.
    """

    place: NDArray[np.int64]
    heads: NDArray[np.uint32]
    fragments: NDArray[Any]
    rows: NDArray[np.uint32]
    open_heads: NDArray[np.uint32]
    open_fragments: NDArray[Any]
    open_rows: NDArray[np.uint32]
    free: NDArray[np.int64]
    top: NDArray[np.int64]


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Ask for the cache line of array[index], which need not exist, without waiting for it."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, value=arguments[0]).data
        byte = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        insert: Any = cgutils.get_or_insert_function
        call = insert(builder.module, kind, "llvm.prefetch.p0")
        builder.call(call, [pointer, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), build


prefetch: Any = intrinsic(_prefetch)


@kernel
def _address(word: Any, shift: Any, mask: Any, onto: Any, begin: int, end: int, prints: Any, row: int) -> Any:
    """Return the address of a print in the table whose pieces are `begin`..`end`."""
    key = uint64(0)
    for piece in range(begin, end):
        at = word[piece]
        low = uint64(shift[piece])
        bits = prints[row, at] >> low
        if low > uint64(0) and at + 1 < prints.shape[1]:  # the piece may lie across two words
            bits |= prints[row, at + 1] << (uint64(64) - low)
        key ^= (bits & mask[piece]) << onto[piece]
    return key


@kernel
def find_buckets(tables: Any, prints: Any, row: int, scope: Any, bucket: Any) -> None:
    """Set `bucket` (T,) int64 to the bucket of print `row` and a scope in each table."""
    word, shift, mask, onto = tables.word, tables.shift, tables.piece, tables.onto
    address, base, piece_end = tables.address, tables.base, tables.piece_end
    begin = 0
    for table in range(base.shape[0]):
        end = piece_end[table]
        key = _address(word, shift, mask, onto, begin, end, prints, row)
        bucket[table] = base[table] + int64((key ^ scope) & address[table])
        begin = end


@kernel
def _threshold_of(tables: Any, features: Any, other_features: Any) -> int:
    """Return the threshold for two texts of so many features, or -1 if their lengths keep them apart."""
    smaller, larger = int64(min(features, other_features)), int64(max(features, other_features))
    if larger == FEATURES_UNKNOWN:
        larger = smaller
    if 100 * smaller < tables.ratio * larger:
        return -1
    below, thresholds = tables.below, tables.thresholds
    for step in range(below.shape[0]):
        if smaller < int64(below[step]):
            threshold: int = thresholds[step]
            return threshold
    longest: int = thresholds[below.shape[0]]
    return longest


@kernel
def near_prints(tables: Any, one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return the distance of two rows whose prints and lengths are near enough, or -1."""
    prints, other_prints, whole = one.prints, other.prints, tables.whole
    distance: int = popcount((prints[one_row, 0] ^ other_prints[other_row, 0]) & whole[0])
    if distance > tables.threshold:  # nearly every candidate ends here
        return -1
    for word in range(1, whole.shape[0]):
        distance += popcount((prints[one_row, word] ^ other_prints[other_row, word]) & whole[word])
    if distance > tables.threshold or distance > _threshold_of(tables, one.features[one_row], other.features[other_row]):
        return -1
    return distance


@kernel
def agreeing(one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return how many values of two rows' sketches are equal."""
    sketches, other_sketches = one.sketches, other.sketches
    count = 0
    for at in range(sketches.shape[1]):
        if sketches[one_row, at] == other_sketches[other_row, at]:
            count += 1
    return count


@kernel
def within_reach(tables: Any, one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return the distance of two rows of `Columns` or `HeldRows` within the plan's reach, or -1: `Plan.within_reach`, compiled.

    For plans that are not keyed. A row whose features are `FEATURES_UNKNOWN` is taken to be as long as the other.
    """
    distance: int = near_prints(tables, one, one_row, other, other_row)
    if distance < 0:
        return -1
    prints, other_prints = one.prints, other.prints
    for table in range(tables.masks.shape[0]):
        inside = 0
        for word in range(tables.whole.shape[0]):
            inside += popcount((prints[one_row, word] ^ other_prints[other_row, word]) & tables.masks[table, word])
        if inside <= tables.radius:
            if tables.agreeing > 0 and agreeing(one, one_row, other, other_row) < tables.agreeing:
                return -1
            return distance
    return -1


@kernel
def agreeing_of(held: Any, rows: Any, batch: Any, docs: Any, counts: Any) -> None:
    """Set `counts[docs]` to how many values the sketches of those documents share with the rows found for them, `rows` (n,)."""
    for at in range(docs.shape[0]):
        if at + 4 < docs.shape[0]:
            prefetch(held.sketches, rows[docs[at + 4]] * held.sketches.shape[1])
        counts[docs[at]] = agreeing(held, rows[docs[at]], batch, docs[at])


@kernel
def buckets_of(tables: Any, batch: Any, buckets: Any) -> None:
    """Set `buckets` (n, T) int64 to the buckets of every document."""
    prints, scopes = batch.prints, batch.scopes
    for row in range(buckets.shape[0]):
        find_buckets(tables, prints, row, scopes[row], buckets[row])


@kernel
def mixed_word(word: Any) -> Any:
    """Return a word mixed so that each bit depends on all."""
    word = (word ^ (word >> uint64(30))) * _MIX_ONE
    word = (word ^ (word >> uint64(27))) * _MIX_TWO
    return word ^ (word >> uint64(31))


@kernel
def tag_digests(digests: Any, scopes: Any, tags: Any) -> None:
    """Set `tags` (n,) uint32 to those of (scope, text digest)."""
    for row in range(tags.shape[0]):
        tags[row] = uint32(mixed_word(digests[row, 0] ^ (scopes[row] * SPREAD)) >> uint64(32))


@kernel
def tag_positions(sources: Any, offsets: Any, values: Any, tags: Any) -> None:
    """Set `tags` (n,) uint32 to those of (source, offset, value digest)."""
    for row in range(tags.shape[0]):
        mixed = uint64(offsets[row]) * SPREAD
        mixed ^= values[row] ^ (uint64(sources[row]) << uint64(32))
        tags[row] = uint32(mixed_word(mixed) >> uint64(32))


@kernel
def _home(tag: Any, size: int) -> int:
    home: int = int64((uint64(tag) * uint64(size)) >> uint64(32))
    return home


@kernel
def find_tags(slots: Any, tags: Any, states: Any, at: Any, found: Any) -> None:
    """Set `found` (n,) int64 to the row of the next live entry with each tag, or -1.

    `at` (n,) int64 is where the search stands: the slot after the last one found, or -1 to begin.
    """
    size = slots.shape[0]
    for row in range(tags.shape[0]):
        if at[row] < 0 and row + 8 < tags.shape[0]:
            prefetch(slots, _home(tags[row + 8], size))
        slot = _home(tags[row], size) if at[row] < 0 else at[row]
        found[row] = -1
        while slots[slot] != EMPTY:
            held = slots[slot]
            slot += 1
            if slot == size:
                slot = 0
            entry = int64(held & uint64(0xFFFFFFFF))
            if held >> uint64(32) == uint64(tags[row]) and states[entry] != REMOVED:
                found[row] = entry
                break
        at[row] = slot


@kernel
def add_tags(slots: Any, tags: Any, first: int) -> None:
    """Make rows `first`.. findable by their tags (n,) uint32; there is room."""
    size = slots.shape[0]
    for row in range(tags.shape[0]):
        if row + 8 < tags.shape[0]:
            prefetch(slots, _home(tags[row + 8], size))
        slot = _home(tags[row], size)
        while slots[slot] != EMPTY:
            slot += 1
            if slot == size:
                slot = 0
        slots[slot] = (uint64(tags[row]) << uint64(32)) | uint64(first + row)


@kernel
def copy_slots(old: Any, new: Any, moved: Any) -> None:
    """Fill the empty `new` slots with those in `old`; row r becomes `moved[r]`, and goes if that is `NONE`.

    `moved` is int64, and empty when every row stays.
    """
    size = new.shape[0]
    for at in range(old.shape[0]):
        if old[at] == EMPTY:
            continue
        row = int64(old[at] & uint64(0xFFFFFFFF))
        if moved.shape[0] > 0:
            row = moved[row]
        if row == NONE:
            continue
        tag = old[at] >> uint64(32)
        slot = _home(tag, size)
        while new[slot] != EMPTY:
            slot += 1
            if slot == size:
                slot = 0
        new[slot] = (tag << uint64(32)) | uint64(row)


@kernel
def _keys_of_rows(tables: Any, number: int, held: Any, keys: Any) -> None:
    """Set `keys` (rows,) uint32 to the rows' buckets in one table, counted from the table's first.

    The same as `find_buckets`, with the loop over the rows inside, where the compiler makes vector code of it.
    """
    prints, scopes = held.prints, held.scopes
    keys[:] = uint32(0)
    for piece in range(0 if number == 0 else tables.piece_end[number - 1], tables.piece_end[number]):
        at, low = tables.word[piece], uint64(tables.shift[piece])
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
def take_block(rows: Any, free: Any, top: Any, length: int) -> int:
    """Return the first unit of a block for `length` entries: one given back, or the arena's next; -1 if it lacks room."""
    size = size_of(length)
    if free[size] > 0:
        block = free[size] - 1
        free[size] = int64(rows[block * UNIT])
        return int(block)
    block = top[0]
    if block + (1 << size) > rows.shape[0] // UNIT:
        return -1
    top[0] = block + (1 << size)
    return int(block)


@kernel
def give_back(rows: Any, free: Any, block: int, length: int) -> None:
    """Let another list have the block of one of `length` entries, which has moved."""
    size = size_of(length)
    rows[block * UNIT] = uint32(free[size])
    free[size] = block + 1


@kernel
def add_open(tables: Any, table: Any, held: Any, added: Any, buckets: Any, first: int) -> int:
    """Add rows `added[first:]` (k,) int64, later than all there, with their `buckets` (k, T), to a table's open part.

    Returns how many are in; fewer than all if the arena lacks room.
    """
    number, word, shift, base = table.place[0], table.place[1], uint64(table.place[2]), table.place[3]
    heads, fragments, rows, free, top = table.open_heads, table.open_fragments, table.open_rows, table.free, table.top
    prints, whole = held.prints, tables.whole[word]
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
            larger = int64(take_block(rows, free, top, length + 1))
            if larger < 0:
                return at
            for place in range(length):
                fragments[larger * UNIT + place] = fragments[block * UNIT + place]
                rows[larger * UNIT + place] = rows[block * UNIT + place]
            if length > 0:
                give_back(rows, free, block, length)
            block = larger
            heads[bucket, 0] = uint32(block)
        row = added[at]
        fragments[block * UNIT + length] = (prints[row, word] & whole) >> shift
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
    words = prints.shape[1]
    for at in range(count):
        row = int64(rows[passed[at]]) if passed[at] >= 0 else int64(open_rows[-1 - passed[at]])
        passed[at] = row
        prefetch(prints, row * words)
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
    number, word, low, base = table.place[0], table.place[1], uint64(table.place[2]), table.place[3]
    heads, fragments, rows = table.heads, table.fragments, table.rows
    open_heads, open_fragments, open_rows = table.open_heads, table.open_fragments, table.open_rows
    flips, prints, whole, threshold = tables.flips, batch.prints, tables.whole[word], tables.threshold
    is_apart = (tables.masks[number, word] & _part(low, fragments.itemsize)) == uint64(0)
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
        wanted = (prints[doc, word] & whole) >> low
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
    """Return the mask of a fragment of so many bytes that begins at bit `low` of a word."""
    return uint64(0xFFFFFFFFFFFFFFFF) if size == 8 else uint64(0xFFFFFFFF) << low


@kernel
def _reached(tables: Any, held: Any, row: int, batch: Any, doc: int) -> int:
    """Return the distance of a document to a full entry of its scope within reach, or -1."""
    distance: int = within_reach(tables, held, row, batch, doc)  # turns nearly all away, by one line of memory
    if distance < 0 or held.states[row] != FULL:
        return -1
    scope = held.scopes[row] if held.scopes.shape[0] > 0 else uint64(0)
    return distance if scope == batch.scopes[doc] else -1


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


@kernel
def _between(tables: Any, batch: Any, doc: int, other: int) -> int:
    """Return the distance of two documents of a batch that are within reach in one scope, or -1."""
    distance: int = within_reach(tables, batch, doc, batch, other)
    return distance if batch.scopes[doc] == batch.scopes[other] else -1


@kernel
def same_in_batch(batch: Any, doc: int, seen: Any, made: Any, slot: int) -> Any:
    """Return (which new entry of the batch has a document's text, or -1; the slot in which the search for it ended)."""
    mask = int64(seen.shape[0] - 1)
    while seen[slot] >= 0:
        other = made[seen[slot]]
        if (
            batch.digests[doc, 0] == batch.digests[other, 0]
            and batch.digests[doc, 1] == batch.digests[other, 1]
            and batch.scopes[doc] == batch.scopes[other]
        ):
            return seen[slot], slot
        slot = (slot + 1) & mask
    return int64(-1), slot


@kernel
def settle(
    tables: Any, batch: Any, floor: int, same: Any, best: Any, best_distance: Any, next_row: int, tags: Any, seen: Any,
    buckets: Any, heads: Any, links: Any, outcome: Any, found: Any, distance: Any, made: Any, lows: Any,
) -> int:  # fmt: skip
    """Judge documents in order, each seeing those before it; return how many become entries, rows `next_row`..

    Known of each from the entries before the batch: `same` (n,) int64, the row with its digest or -1; `best`, the earliest row
    within reach or NONE. Sets `outcome` (uint8), `found` (int64 row) and `distance` (uint8); `made` (n,) int64 the documents
    that become entries; scratch: `seen` (a power of two above 2n,) int64 all -1, `lows` (n,) uint64.

    `heads` (T, as many as `seen`) int32 all -1 and `links` (n, T) int32: the batch's new entries are found by their buckets,
    for plans of radius 0, in which entries within reach share one. With T = 0 here they are compared with one after another.
    """
    mask = int64(seen.shape[0] - 1)
    chains = heads.shape[0]
    whole, threshold = tables.whole[0], tables.threshold
    count = 0
    for doc in range(outcome.shape[0]):
        distance[doc] = 0
        found[doc] = same[doc]
        slot = int64(tags[doc]) & mask
        if found[doc] < 0:
            place, slot = same_in_batch(batch, doc, seen, made, slot)
            found[doc] = next_row + place if place >= 0 else -1
        if found[doc] >= 0:
            outcome[doc] = OUTCOME_DIGEST
            continue
        short = batch.features[doc] < floor
        low = batch.prints[doc, 0] & whole
        if not short:
            row, bits = best[doc], best_distance[doc]
            if row == NONE and chains > 0:
                first = int64(count)
                for table in range(chains):
                    at = int64(heads[table, buckets[doc, table] & mask])
                    while at >= 0:
                        if at < first and popcount(lows[at] ^ low) <= threshold:
                            reached = _between(tables, batch, doc, made[at])
                            if reached >= 0:
                                first, bits = at, int64(reached)
                        at = int64(links[at, table])
                if first < count:
                    row = next_row + first
            elif row == NONE:
                for at in range(count):
                    other = made[at]
                    if popcount(lows[at] ^ low) <= threshold and outcome[other] == OUTCOME_NEW:
                        bits = _between(tables, batch, doc, other)
                        if bits >= 0:
                            row = next_row + at
                            break
            if row != NONE:
                outcome[doc] = OUTCOME_NEAR
                found[doc] = row
                distance[doc] = bits
                continue
        outcome[doc] = OUTCOME_SHORT if short else OUTCOME_NEW
        found[doc] = next_row + count
        seen[slot] = count
        made[count] = doc
        lows[count] = low
        for table in range(0 if short else chains):
            slot = buckets[doc, table] & mask
            links[count, table] = heads[table, slot]
            heads[table, slot] = count
        count += 1
    return count
