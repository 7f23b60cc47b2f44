"""The compiled half of `neighbours`: arrays in, arrays out, no object of Python's inside.

Two kinds of memory, both arrays of entry numbers (uint32):

    slots    open addressing with linear probing, at most 6 in 10 taken: (scope, text digest) -> entry, and
             (source, offset, value digest) -> entry; a removal shifts back what follows, so there are no tombstones
    buckets  one per table and key: a block of the arena, of 4, 8, 16, ... places, holding its entries in ascending
             order; a full block moves to one of twice the size, and the old one goes onto the free list of its size;
             a removal that makes the next smaller size do moves it to such a block, or gives its upper half back

Invariants: a bucket's capacity is a function of its length (0, or the least 4 * 2^n that holds it), so it is stored
nowhere; entries of a bucket ascend, so the first within reach is its earliest and the search stops at one later than
the best; every function that may take from the arena is called with `room` for it, and nothing here grows an array.

All compiled code of the index is in this one file, and takes its numbers as arguments.
numba turns a mixture of signed and unsigned words into floats: hashes and prints are uint64 throughout, places int64.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from stream_dedup.compiled import kernel
from stream_dedup.index.blocks import Tables

# numba knows these as types; to the type checker they are Any, because indices and counts are int there.
int64: Any = np.int64
uint32: Any = np.uint32
uint64: Any = np.uint64

EMPTY: Final = uint32(0xFFFFFFFF)
FEATURES_UNKNOWN: Final = 0xFFFFFFFF
OUTCOME_NEW: Final = 0
OUTCOME_SHORT: Final = 1
OUTCOME_DIGEST: Final = 2
OUTCOME_NEAR: Final = 3
_UNIT: Final = 4  # places in the smallest block; blocks are counted in units of it
_CANDIDATES_AT_ONCE: Final = 1024
_SPREAD: Final = uint64(0x9E3779B97F4A7C15)
_MIX_ONE: Final = uint64(0xBF58476D1CE4E5B9)  # the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)
_MIX_TWO: Final = uint64(0x94D049BB133111EB)


class Columns(NamedTuple):
    """What is held of every entry, by entry number. Shapes: `prints` (C, W), `digests` (C, 2), the rest (C,)."""

    prints: NDArray[np.uint64]
    scopes: NDArray[np.uint64]
    digests: NDArray[np.uint64]
    sources: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    values: NDArray[np.uint64]
    features: NDArray[np.uint32]


def take_rows(columns: Columns, rows: slice | NDArray[np.int64]) -> Columns:
    """Return some rows of columns: a view for a slice, a copy for row numbers."""
    return Columns(
        columns.prints[rows], columns.scopes[rows], columns.digests[rows],
        columns.sources[rows], columns.offsets[rows], columns.values[rows], columns.features[rows],
    )  # fmt: skip


def copy_rows(stored: Columns, into: Columns, count: int) -> None:
    """Copy the first `count` rows of columns into other columns."""
    for name in Columns._fields:
        getattr(into, name)[:count] = getattr(stored, name)[:count]


class Slots(NamedTuple):
    """Entry numbers by hash; each array's length is a power of two."""

    digest: NDArray[np.uint32]
    position: NDArray[np.uint32]


class Buckets(NamedTuple):
    """Where each bucket's entries lie.

    `heads` (buckets, 2) uint32: first unit and length; `arena` (units * 4,) uint32; `free` (34,) int64: first free
    block per size, plus one; `top` (1,) int64: units of the arena ever taken.
    """

    heads: NDArray[np.uint32]
    arena: NDArray[np.uint32]
    free: NDArray[np.int64]
    top: NDArray[np.int64]


class Scratch(NamedTuple):
    """Room for one document: `bucket` (T,) int64, its own buckets; `first`, `length` (probes,) uint32, the heads of those
    that a search visits; `entry` (any,) uint32, some candidates.
    """

    bucket: NDArray[np.int64]
    first: NDArray[np.uint32]
    length: NDArray[np.uint32]
    entry: NDArray[np.uint32]


def _popcount(typing_context: Any, word: Any) -> Any:  # noqa: ARG001 - numba's signature
    """Count the bits of a uint64: one instruction."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), build


popcount: Any = intrinsic(_popcount)


@kernel
def find_buckets(tables: Any, prints: Any, row: int, scope: Any, bucket: Any) -> None:
    """Set `bucket` (T,) int64 to the bucket of print `row` and a scope in each table."""
    word, shift, mask, onto = tables.word, tables.shift, tables.piece, tables.onto
    address, base, piece_end = tables.address, tables.base, tables.piece_end
    piece = 0
    for table in range(base.shape[0]):
        key = uint64(0)
        while piece < piece_end[table]:
            at = word[piece]
            low = uint64(shift[piece])
            bits = prints[row, at] >> low
            if low > uint64(0) and at + 1 < prints.shape[1]:  # the piece may lie across two words
                bits |= prints[row, at + 1] << (uint64(64) - low)
            key ^= (bits & mask[piece]) << onto[piece]
            piece += 1
        bucket[table] = base[table] + int64((key ^ scope) & address[table])


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
def within_reach(tables: Any, one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return the distance of two rows of `Columns` within the plan's reach, or -1: `Plan.within_reach`, compiled.

    A row whose features are `FEATURES_UNKNOWN` is taken to be as long as the other.
    """
    prints, other_prints, whole = one.prints, other.prints, tables.whole
    distance: int = popcount((prints[one_row, 0] ^ other_prints[other_row, 0]) & whole[0])
    if distance > tables.threshold:  # nearly every candidate ends here
        return -1
    for word in range(1, whole.shape[0]):
        distance += popcount((prints[one_row, word] ^ other_prints[other_row, word]) & whole[word])
    if distance > tables.threshold or distance > _threshold_of(tables, one.features[one_row], other.features[other_row]):
        return -1
    for table in range(tables.masks.shape[0]):
        inside = 0
        for word in range(whole.shape[0]):
            inside += popcount((prints[one_row, word] ^ other_prints[other_row, word]) & tables.masks[table, word])
        if inside <= tables.radius:
            return distance
    return -1


@kernel
def _digest_slot(columns: Any, row: int, mask: Any) -> int:
    slot: int = int64((columns.digests[row, 0] ^ (columns.scopes[row] * _SPREAD)) & mask)
    return slot


@kernel
def _position_slot(columns: Any, row: int, mask: Any) -> int:
    mixed = uint64(columns.offsets[row]) * _SPREAD
    mixed ^= columns.values[row] ^ (uint64(columns.sources[row]) << uint64(32))
    mixed = (mixed ^ (mixed >> uint64(30))) * _MIX_ONE
    mixed = (mixed ^ (mixed >> uint64(27))) * _MIX_TWO
    slot: int = int64((mixed ^ (mixed >> uint64(31))) & mask)
    return slot


@kernel
def _same_digest(one: Any, one_row: int, other: Any, other_row: int) -> bool:
    same: bool = (
        one.digests[one_row, 0] == other.digests[other_row, 0]
        and one.digests[one_row, 1] == other.digests[other_row, 1]
        and one.scopes[one_row] == other.scopes[other_row]
    )
    return same


@kernel
def _same_position(one: Any, one_row: int, other: Any, other_row: int) -> bool:
    same: bool = (
        one.offsets[one_row] == other.offsets[other_row]
        and one.sources[one_row] == other.sources[other_row]
        and one.values[one_row] == other.values[other_row]
    )
    return same


@kernel
def find_digest(columns: Any, slots: Any, wanted: Any, row: int) -> int:
    """Return the live entry with the digest and scope of row `row` of `wanted`, or -1."""
    mask = uint64(slots.digest.shape[0] - 1)
    slot = _digest_slot(wanted, row, mask)
    while slots.digest[slot] != EMPTY:
        entry: int = int64(slots.digest[slot])
        if _same_digest(columns, entry, wanted, row):
            return entry
        slot = (slot + 1) & int64(mask)
    return -1


@kernel
def find_positions(columns: Any, slots: Any, wanted: Any, count: int, found: Any) -> None:
    """Set `found` (count,) int64 to the live entry at each wanted (source, offset, value digest), or -1."""
    mask = uint64(slots.position.shape[0] - 1)
    for row in range(count):
        found[row] = -1
        slot = _position_slot(wanted, row, mask)
        while slots.position[slot] != EMPTY:
            entry = int64(slots.position[slot])
            if _same_position(columns, entry, wanted, row):
                found[row] = entry
                break
            slot = (slot + 1) & int64(mask)


@kernel
def add_to_slots(columns: Any, slots: Any, entry: int) -> None:
    """Make a live entry findable by its digest and by its position."""
    mask = uint64(slots.digest.shape[0] - 1)
    slot = _digest_slot(columns, entry, mask)
    while slots.digest[slot] != EMPTY:
        slot = (slot + 1) & int64(mask)
    slots.digest[slot] = uint32(entry)
    mask = uint64(slots.position.shape[0] - 1)
    slot = _position_slot(columns, entry, mask)
    while slots.position[slot] != EMPTY:
        slot = (slot + 1) & int64(mask)
    slots.position[slot] = uint32(entry)


@kernel
def copy_slots(columns: Any, old: Any, new: Any) -> None:
    """Fill the empty `new` slots with the entries in `old`."""
    for at in range(old.digest.shape[0]):
        if old.digest[at] != EMPTY:
            add_to_slots(columns, new, int64(old.digest[at]))


@kernel
def _clear_slot(columns: Any, slots: Any, by_digest: bool, slot: int) -> None:
    # Linear probing without tombstones: what follows moves back unless it already stands at or after its own slot
    # (Knuth, The Art of Computer Programming, volume 3, section 6.4, algorithm R).
    mask = uint64(slots.shape[0] - 1)
    hole = slot
    at = slot
    while True:
        at = (at + 1) & int64(mask)
        if slots[at] == EMPTY:
            break
        entry = int64(slots[at])
        home = _digest_slot(columns, entry, mask) if by_digest else _position_slot(columns, entry, mask)
        if ((at - home) & int64(mask)) >= ((at - hole) & int64(mask)):
            slots[hole] = slots[at]
            hole = at
    slots[hole] = EMPTY


@kernel
def remove_from_slots(columns: Any, slots: Any, entry: int) -> None:
    """Make an entry unfindable by digest and position."""
    mask = uint64(slots.digest.shape[0] - 1)
    slot = _digest_slot(columns, entry, mask)
    while slots.digest[slot] != uint32(entry):
        slot = (slot + 1) & int64(mask)
    _clear_slot(columns, slots.digest, True, slot)
    mask = uint64(slots.position.shape[0] - 1)
    slot = _position_slot(columns, entry, mask)
    while slots.position[slot] != uint32(entry):
        slot = (slot + 1) & int64(mask)
    _clear_slot(columns, slots.position, False, slot)


@kernel
def _size_of(length: int) -> int:
    """Return n of the least block of 4 * 2^n places that holds `length` entries."""
    size = 0
    while (_UNIT << size) < length:
        size += 1
    return size


@kernel
def _take(arena: Any, free: Any, top: Any, size: int) -> int:
    block: int = free[size] - 1
    if block >= 0:
        free[size] = int64(arena[block * _UNIT])
        return block
    block = top[0]
    top[0] = block + (1 << size)
    return block


@kernel
def _give(arena: Any, free: Any, block: int, size: int) -> None:
    arena[block * _UNIT] = uint32(free[size])
    free[size] = block + 1


@kernel
def _is_full(length: int) -> bool:
    return length == 0 or (length >= _UNIT and (length & (length - 1)) == 0)


@kernel
def room_needed(heads: Any, bucket: Any) -> int:
    """Return how many units of the arena it takes, at most, to add an entry to these buckets (T,) int64."""
    units = 0
    for table in range(bucket.shape[0]):
        length = int64(heads[bucket[table], 1])
        if _is_full(length):
            units += 1 if length == 0 else 2 * length // _UNIT
    return units


@kernel
def add_to_buckets(buckets: Any, bucket: Any, entry: int) -> None:
    """Append an entry to its bucket (T,) in every table; the arena has room, and no entry there is later."""
    heads, arena = buckets.heads, buckets.arena
    for table in range(bucket.shape[0]):
        block = int64(heads[bucket[table], 0])
        length = int64(heads[bucket[table], 1])
        if _is_full(length):
            size = _size_of(length + 1)
            larger = _take(arena, buckets.free, buckets.top, size)
            for at in range(length):
                arena[larger * _UNIT + at] = arena[block * _UNIT + at]
            if length > 0:
                _give(arena, buckets.free, block, size - 1)
            block = larger
            heads[bucket[table], 0] = uint32(block)
        arena[block * _UNIT + length] = uint32(entry)
        heads[bucket[table], 1] = uint32(length + 1)


@kernel
def remove_from_buckets(buckets: Any, bucket: Any, entry: int) -> None:
    """Take an entry out of its bucket (T,) in every table; the order of the others stays."""
    heads, arena = buckets.heads, buckets.arena
    for table in range(bucket.shape[0]):
        first = int64(heads[bucket[table], 0]) * _UNIT
        length = int64(heads[bucket[table], 1])
        at = first
        while arena[at] != uint32(entry):
            at += 1
        while at + 1 < first + length:
            arena[at] = arena[at + 1]
            at += 1
        length -= 1
        heads[bucket[table], 1] = uint32(length)
        if length == 0:
            _give(arena, buckets.free, first // _UNIT, 0)
        elif _is_full(length):
            size = _size_of(length)
            if buckets.free[size] > 0:  # a block to move to keeps the larger one whole for the next bucket that grows
                smaller = _take(arena, buckets.free, buckets.top, size)
                for at in range(length):
                    arena[smaller * _UNIT + at] = arena[first + at]
                heads[bucket[table], 0] = uint32(smaller)
                _give(arena, buckets.free, first // _UNIT, size + 1)
            else:
                _give(arena, buckets.free, (first + length) // _UNIT, size)


@kernel
def _find_heads(tables: Any, buckets: Any, scratch: Any) -> None:
    """Put first unit and length of every bucket that a search visits into the scratch, given its own buckets there."""
    heads, flips, first, length = buckets.heads, tables.flips, scratch.first, scratch.length
    flip = 0
    for table in range(scratch.bucket.shape[0]):
        base, end = tables.base[table], tables.flips_end[table]
        key = scratch.bucket[table] - base
        while flip < end:
            bucket = base + (key ^ int64(flips[flip]))
            first[flip] = heads[bucket, 0]
            length[flip] = heads[bucket, 1]
            flip += 1


@kernel
def _earlier(
    tables: Any, columns: Any, wanted: Any, row: int, entries: Any, count: int, best: int, best_distance: int
) -> tuple[int, int]:
    """Return (entry, distance) of the lowest of `best` and the gathered entries that are within reach."""
    prints, scopes = columns.prints, columns.scopes
    low, mask, threshold = wanted.prints[row, 0], tables.whole[0], tables.threshold
    for at in range(count):
        entry = int64(entries[at])
        if popcount((prints[entry, 0] ^ low) & mask) <= threshold and entry < best:
            distance = within_reach(tables, columns, entry, wanted, row)
            if distance >= 0 and scopes[entry] == wanted.scopes[row]:
                best, best_distance = entry, distance
    return best, best_distance


@kernel
def _earliest(tables: Any, buckets: Any, columns: Any, wanted: Any, row: int, scratch: Any, candidates: Any) -> tuple[int, int]:
    """Return (entry, distance) of the lowest entry within reach in the same scope, or (-1, 0).

    Nearly all of the time goes into waiting for memory, so the work is done in passes of one kind of load each, which
    the processor keeps under way many at a time: the heads of all buckets, then their entries, then the prints.
    Arrays are taken out of their tuples before the loops, because each taking counts a reference.
    """
    _find_heads(tables, buckets, scratch)
    arena, first, length, gathered = buckets.arena, scratch.first, scratch.length, scratch.entry
    best, best_distance, count, seen = int64(EMPTY), 0, 0, 0
    for probe in range(first.shape[0]):
        at = int64(first[probe]) * _UNIT
        end = at + int64(length[probe])
        while at < end and int64(arena[at]) < best:
            stop = min(end, at + gathered.shape[0] - count)
            while at < stop:
                gathered[count] = arena[at]
                count += 1
                at += 1
            if count == gathered.shape[0]:
                best, best_distance = _earlier(tables, columns, wanted, row, gathered, count, best, best_distance)
                seen += count
                count = 0
    best, best_distance = _earlier(tables, columns, wanted, row, gathered, count, best, best_distance)
    candidates[0] += seen + count
    if best == int64(EMPTY):
        return -1, 0
    return best, best_distance


@kernel
def judge(
    tables: Any, buckets: Any, columns: Any, slots: Any, batch: Any, floor: int, features: Any,
    first: int, next_entry: int, outcome: Any, found: Any, distance: Any, scratch: Any,
    candidates: Any,
) -> tuple[int, int]:  # fmt: skip
    """Judge the documents `first`.. of a batch in order, each seeing those before it.

    `batch` is `Columns` of the documents; `features` (n,) uint32. Sets, per document, `outcome` (uint8), `found`
    (int64: the representative, or the number of the new entry) and `distance` (uint8). The columns and slots have room
    for a whole batch. Returns (the first document not judged, the next entry's number); it is short of the batch's end
    when the arena lacks room for that document.
    """
    units = buckets.arena.shape[0] // _UNIT
    for row in range(first, outcome.shape[0]):
        distance[row] = 0
        entry = find_digest(columns, slots, batch, row)
        if entry >= 0:
            outcome[row] = OUTCOME_DIGEST
            found[row] = entry
            continue
        short = features[row] < floor
        if not short:
            find_buckets(tables, batch.prints, row, batch.scopes[row], scratch.bucket)
            entry, bits = _earliest(tables, buckets, columns, batch, row, scratch, candidates)
            if entry >= 0:
                outcome[row] = OUTCOME_NEAR
                found[row] = entry
                distance[row] = bits
                continue
            if buckets.top[0] + room_needed(buckets.heads, scratch.bucket) > units:
                return row, next_entry
        entry = next_entry
        next_entry += 1
        for word in range(batch.prints.shape[1]):
            columns.prints[entry, word] = batch.prints[row, word]
        columns.scopes[entry] = batch.scopes[row]
        columns.digests[entry, 0] = batch.digests[row, 0]
        columns.digests[entry, 1] = batch.digests[row, 1]
        columns.sources[entry] = batch.sources[row]
        columns.offsets[entry] = batch.offsets[row]
        columns.values[entry] = batch.values[row]
        columns.features[entry] = features[row]
        add_to_slots(columns, slots, entry)
        if not short:
            add_to_buckets(buckets, scratch.bucket, entry)
        outcome[row] = OUTCOME_SHORT if short else OUTCOME_NEW
        found[row] = entry
    return outcome.shape[0], next_entry


@kernel
def fill_slots(columns: Any, slots: Any, entries: Any) -> None:
    """Make live entries findable by digest and position."""
    for at in range(entries.shape[0]):
        add_to_slots(columns, slots, entries[at])


@kernel
def fill_buckets(tables: Any, buckets: Any, columns: Any, entries: Any, scratch: Any, first: int) -> int:
    """Add ascending `entries` (n,) int64 from place `first` on; return the first place that found no room."""
    units = buckets.arena.shape[0] // _UNIT
    for at in range(first, entries.shape[0]):
        entry = entries[at]
        find_buckets(tables, columns.prints, entry, columns.scopes[entry], scratch.bucket)
        if buckets.top[0] + room_needed(buckets.heads, scratch.bucket) > units:
            return at
        add_to_buckets(buckets, scratch.bucket, entry)
    return int(entries.shape[0])


@kernel
def entries_of_first_table(tables: Any, buckets: Any, entries: Any) -> int:
    """Put the entries of all buckets of the first table, which holds each once, into `entries`; return how many."""
    count = 0
    for bucket in range(int64(tables.address[0]) + 1):
        first = int64(buckets.heads[bucket, 0]) * _UNIT
        for at in range(first, first + int64(buckets.heads[bucket, 1])):
            entries[count] = int64(buckets.arena[at])
            count += 1
    return count


@kernel
def all_within_reach(tables: Any, buckets: Any, columns: Any, wanted: Any, scratch: Any, entries: Any, distances: Any) -> int:
    """Collect every entry within reach of print 0 of `wanted`, in its scope, once for each bucket that holds it.

    Returns how many there are, which may be more than fit into `entries` and `distances`.
    """
    find_buckets(tables, wanted.prints, 0, wanted.scopes[0], scratch.bucket)
    _find_heads(tables, buckets, scratch)
    arena, scopes = buckets.arena, columns.scopes
    count = 0
    for probe in range(scratch.first.shape[0]):
        begin = int64(scratch.first[probe]) * _UNIT
        for at in range(begin, begin + int64(scratch.length[probe])):
            entry = int64(arena[at])
            distance = within_reach(tables, columns, entry, wanted, 0)
            if distance >= 0 and scopes[entry] == wanted.scopes[0]:
                if count < entries.shape[0]:
                    entries[count] = entry
                    distances[count] = distance
                count += 1
    return count


def new_buckets(tables: Tables, units: int) -> Buckets:
    """Return empty buckets for a plan's tables, with an arena of `units`."""
    return Buckets(
        heads=np.zeros((tables.buckets, 2), np.uint32),
        arena=np.empty(units * _UNIT, np.uint32),
        free=np.zeros(34, np.int64),
        top=np.zeros(1, np.int64),
    )


def new_scratch(tables: Tables) -> Scratch:
    """Return room for a search in a plan's tables."""
    probes = len(tables.flips)
    return Scratch(
        np.empty(len(tables.base), np.int64),
        np.empty(probes, np.uint32),
        np.empty(probes, np.uint32),
        np.empty(_CANDIDATES_AT_ONCE, np.uint32),
    )


def larger_arena(buckets: Buckets, units: int) -> Buckets:
    """Return the same buckets with an arena of at least `units`."""
    used = int(buckets.top[0]) * _UNIT
    arena = np.empty(units * _UNIT, np.uint32)
    arena[:used] = buckets.arena[:used]
    return buckets._replace(arena=arena)


def new_slots(size: int) -> Slots:
    """Return empty slots, a power of two of them."""
    return Slots(np.full(size, EMPTY), np.full(size, EMPTY))
