"""The compiled half of `keyed`: tables of whole keys, of the print and of the sketch, and the cap on who is asked.

A key is hashed, with its scope and the number of its table, to 64 bits: the low ones choose the bucket, the top eight are the
*tag* that lies beside each row. A bucket holds some 24 entries, so a search reads a line of tags for each table and looks up
one entry in ten tables by chance, however many there are. Its sealed part is sorted by bucket, without a gap; what came since
lies in an arena of blocks, as in `table_kernels`, which all tables share. Tables of one plan hold the same entries, so their
sealed parts are rows of one array.

The cap: where a bucket holds more than `asked` entries, they are gone through in order, each that has the very key is counted,
and after so many no other is asked. In a shorter bucket nothing is to be counted.

Invariants: as those of `table_kernels`; a tag never decides: the key itself is compared before an entry counts or is found.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.index.near_kernels import agreeing, near_prints, same_in_batch
from stream_dedup.index.rows import FULL, NONE, OUTCOME_DIGEST, OUTCOME_NEAR, OUTCOME_NEW, OUTCOME_SHORT
from stream_dedup.index.slot_kernels import SPREAD, mixed_word
from stream_dedup.index.table_kernels import UNIT, give_back, take_block
from stream_dedup.machine.compiled import inlined, kernel, prefetch

int64: Any = np.int64
uint8: Any = np.uint8
uint32: Any = np.uint32
uint64: Any = np.uint64

_TAG_SHIFT: Final = uint64(56)
_PRIME: Final = uint64(0x100000001B3)  # of FNV-1a (Fowler, Noll and Vo)
_LINE: Final = 64


class KeyTables(NamedTuple):
    """T tables of B buckets, B a power of two, over m entries.

    Sealed: `heads` (T, B + 1) uint32 where each bucket begins, `tags`, `rows` (T * m,), table after table. Open: `open_heads`
    (T, B, 2) uint32 first unit and length, `open_tags`, `open_rows` (units * 4,), `free` and `top` as in `table_kernels.Table`.
    """

    heads: NDArray[np.uint32]
    tags: NDArray[np.uint8]
    rows: NDArray[np.uint32]
    open_heads: NDArray[np.uint32]
    open_tags: NDArray[np.uint8]
    open_rows: NDArray[np.uint32]
    free: NDArray[np.int64]
    top: NDArray[np.int64]


@kernel
def _key(tables: Any, prints: Any, sketches: Any, row: int, scope: Any, table: int) -> Any:
    masks = tables.masks
    key = (uint64(table) + uint64(1)) * SPREAD ^ mixed_word(scope)
    if table < masks.shape[0]:
        for word in range(masks.shape[1]):
            key = mixed_word(key ^ (prints[row, word] & masks[table, word]))
    else:
        values = tables.band_values
        first = (table - masks.shape[0]) * values
        for at in range(first, first + values):
            key = (key ^ uint64(sketches[row, at])) * _PRIME
    return mixed_word(key)


@kernel
def keys_of(tables: Any, batch: Any, keys: Any) -> None:
    """Set `keys` (n, T) uint64 to the hashed keys of every document."""
    for row in range(keys.shape[0]):
        for table in range(keys.shape[1]):
            keys[row, table] = _key(tables, batch.prints, batch.sketches, row, batch.scopes[row], table)


@kernel
def _shares(tables: Any, table: int, one: Any, one_row: int, other: Any, other_row: int) -> Any:
    """Return whether two rows have the same key in a table, their scopes aside."""
    masks = tables.masks
    if table < masks.shape[0]:
        for word in range(masks.shape[1]):
            if (one.prints[one_row, word] ^ other.prints[other_row, word]) & masks[table, word] != uint64(0):
                return False
        return True
    values = tables.band_values
    first = (table - masks.shape[0]) * values
    for at in range(first, first + values):  # noqa: SIM110 - the compiler knows no generator
        if one.sketches[one_row, at] != other.sketches[other_row, at]:
            return False
    return True


@kernel
def _alike(tables: Any, one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return the distance of two rows that are near if they are found, or -1: `Plan.is_alike`, compiled."""
    distance: int = near_prints(tables, one, one_row, other, other_row)
    if distance >= 0 and tables.agreeing > 0 and agreeing(one, one_row, other, other_row) < tables.agreeing:
        return -1
    return distance


@kernel
def _counts(tables: Any, table: int, held: Any, row: int, batch: Any, doc: int) -> Any:
    """Return whether an entry is a full one of a document's scope with its key."""
    scope = held.scopes[row] if held.scopes.shape[0] > 0 else uint64(0)
    return held.states[row] == FULL and scope == batch.scopes[doc] and _shares(tables, table, held, row, batch, doc)


@kernel
def add_open(table: Any, added: Any, keys: Any, first: int) -> int:
    """Add rows `added` (k,) int64, later than all there, with their `keys` (k, T), to the open parts.

    Begins at place `first` of the k * T and returns how many are in; fewer than all if the arena lacks room.
    """
    heads, tags, rows, free, top = table.open_heads, table.open_tags, table.open_rows, table.free, table.top
    count = keys.shape[1]
    mask = uint64(heads.shape[1] - 1)
    for at in range(first, added.shape[0] * count):
        doc, number = at // count, at % count
        if at + 16 < added.shape[0] * count:
            later, its = (at + 16) // count, (at + 16) % count
            prefetch(heads, (its * heads.shape[1] + int64(keys[later, its] & mask)) * 2)
        key = keys[doc, number]
        bucket = int64(key & mask)
        block, length = int64(heads[number, bucket, 0]), int64(heads[number, bucket, 1])
        if length == 0 or (length >= UNIT and (length & (length - 1)) == 0):
            larger = int64(take_block(rows, free, top, length + 1))
            if larger < 0:
                return at
            for place in range(length):
                tags[larger * UNIT + place] = tags[block * UNIT + place]
                rows[larger * UNIT + place] = rows[block * UNIT + place]
            if length > 0:
                give_back(rows, free, block, length)
            block = larger
            heads[number, bucket, 0] = uint32(block)
        tags[block * UNIT + length] = uint8(key >> _TAG_SHIFT)
        rows[block * UNIT + length] = uint32(added[doc])
        heads[number, bucket, 1] = uint32(length + 1)
    return int(added.shape[0] * count)


@kernel
def seal(tables: Any, table: Any, held: Any, number: int, keys: Any, cursor: Any) -> None:
    """Sort the full entries of the first rows into the sealed part of table `number`.

    `keys` (rows,) uint64 and `cursor` (B,) uint32 are scratch.
    """
    heads, states, scopes = table.heads[number], held.states, held.scopes
    entries = table.rows.shape[0] // table.heads.shape[0]
    tags, rows = table.tags[number * entries : (number + 1) * entries], table.rows[number * entries : (number + 1) * entries]
    mask = uint64(cursor.shape[0] - 1)
    heads[:] = 0
    for row in range(keys.shape[0]):
        if states[row] == FULL:
            scope = scopes[row] if scopes.shape[0] > 0 else uint64(0)
            keys[row] = _key(tables, held.prints, held.sketches, row, scope, number)
            heads[int64(keys[row] & mask) + 1] += uint32(1)
    for bucket in range(cursor.shape[0]):
        heads[bucket + 1] += heads[bucket]
        cursor[bucket] = heads[bucket]
    for row in range(keys.shape[0]):
        if states[row] == FULL:
            bucket = int64(keys[row] & mask)
            at = cursor[bucket]
            cursor[bucket] = at + uint32(1)
            tags[at] = uint8(keys[row] >> _TAG_SHIFT)
            rows[at] = uint32(row)


@kernel
def merge(table: Any, number: int, before: int, after: int) -> None:
    """Move the open part of table `number` behind its sealed one, bucket by bucket; the sealed arrays were made longer for it.

    A table had `before` sealed entries and has `after`. From the end, the last table first: what moves, moves to the right.
    """
    heads, tags, rows = table.heads, table.tags, table.rows
    open_heads, open_tags, open_rows = table.open_heads, table.open_tags, table.open_rows
    to = (number + 1) * after
    for bucket in range(open_heads.shape[1] - 1, -1, -1):
        length = int64(open_heads[number, bucket, 1])
        block = int64(open_heads[number, bucket, 0]) * UNIT
        first, end = number * before + int64(heads[number, bucket]), number * before + int64(heads[number, bucket + 1])
        heads[number, bucket + 1] = uint32(to - number * after)
        to -= length
        for place in range(length):
            tags[to + place] = open_tags[block + place]
            rows[to + place] = open_rows[block + place]
        for at in range(end - 1, first - 1, -1):
            to -= 1
            tags[to] = tags[at]
            rows[to] = rows[at]
        open_heads[number, bucket, 0] = uint32(0)
        open_heads[number, bucket, 1] = uint32(0)


@inlined
def _part(table: Any, number: int, bucket: Any, part: int) -> Any:
    """Return (tags, rows, first place, end) of a bucket's sealed part (0), whose entries come first, or of its open one (1)."""
    if part == 0:
        base = number * (table.rows.shape[0] // table.heads.shape[0])
        first, stop = base + int64(table.heads[number, bucket]), base + int64(table.heads[number, bucket + 1])
        return table.tags, table.rows, first, stop
    first = int64(table.open_heads[number, bucket, 0]) * UNIT
    return table.open_tags, table.open_rows, first, first + int64(table.open_heads[number, bucket, 1])


@kernel
def _ask_in_order(tables: Any, table: Any, held: Any, batch: Any, doc: int, number: int, key: Any, end: Any) -> Any:
    """Ask the entries of one long bucket in order, at most `asked` of those with the very key, and none from row `end` on.

    Returns (the row of the first within reach, or NONE; its distance; how many have the key).
    """
    bucket, tag = int64(key & uint64(table.open_heads.shape[1] - 1)), uint8(key >> _TAG_SHIFT)
    found = int64(0)
    for part in range(2):
        tags, rows, first, stop = _part(table, number, bucket, part)
        for at in range(first, stop):
            if tags[at] == tag:
                row = int64(rows[at])
                if row >= end:
                    return NONE, int64(0), found
                if _counts(tables, number, held, row, batch, doc):
                    found += 1
                    distance = int64(_alike(tables, held, row, batch, doc))
                    if distance >= 0:
                        return row, distance, found
                    if found == tables.asked:
                        return NONE, int64(0), found
    return NONE, int64(0), found


@kernel
def search(
    tables: Any,
    table: Any,
    held: Any,
    batch: Any,
    keys: Any,
    docs: Any,
    best: Any,
    best_distance: Any,
    passed: Any,
    candidates: Any,
) -> None:
    """Lower `best` (n,) int64 and `best_distance` (n,) int64 to the earliest row within reach that any table knows.

    `docs` (m,) int64 are those to search for; `passed` (2, any) int64 is scratch: what passes by its tag is gathered, and
    looked up together. `candidates` (n,) int64 grows by the entries that are looked up. What a document visits is asked
    for while those before it are searched, heads two documents ahead and tags one.
    """
    heads, tags, rows = table.heads, table.tags, table.rows
    open_heads, open_tags, open_rows = table.open_heads, table.open_tags, table.open_rows
    prints, words, asked = held.prints, held.prints.shape[1], tables.asked
    count, size = heads.shape[0], open_heads.shape[1]
    entries, mask = rows.shape[0] // count, uint64(size - 1)
    for order in range(docs.shape[0] + 2):
        if order < docs.shape[0]:
            for number in range(count):
                bucket = int64(keys[docs[order], number] & mask)
                prefetch(heads, number * (size + 1) + bucket)
                prefetch(open_heads, (number * size + bucket) * 2)
        if 1 <= order <= docs.shape[0]:
            for number in range(count):
                bucket = int64(keys[docs[order - 1], number] & mask)
                begin, end = int64(heads[number, bucket]), int64(heads[number, bucket + 1])
                if end > begin:
                    prefetch(tags, number * entries + begin)
                    prefetch(tags, number * entries + min(end - 1, begin + _LINE))
                if open_heads[number, bucket, 1] > 0:
                    prefetch(open_tags, int64(open_heads[number, bucket, 0]) * UNIT)
        if order < 2:
            continue
        doc, gathered = docs[order - 2], 0
        for number in range(count):
            key = keys[doc, number]
            bucket, tag = int64(key & mask), uint8(key >> _TAG_SHIFT)
            at = number * entries + int64(heads[number, bucket])
            stop = number * entries + int64(heads[number, bucket + 1])
            open_length = int64(open_heads[number, bucket, 1])
            if asked > 0 and stop - at + open_length > asked:
                row, distance, found = _ask_in_order(tables, table, held, batch, doc, number, key, best[doc])
                candidates[doc] += found
                if row < best[doc]:
                    best[doc], best_distance[doc] = row, distance
                continue
            while at < stop:
                if tags[at] == tag:
                    if gathered == passed.shape[1]:
                        _resolve(rows, open_rows, prints, words, passed, gathered)
                        _look_up(tables, held, batch, doc, passed, gathered, best, best_distance)
                        gathered = 0
                    passed[0, gathered], passed[1, gathered] = at, number
                    prefetch(rows, at)
                    gathered += 1
                    candidates[doc] += 1
                at += 1
            at = int64(open_heads[number, bucket, 0]) * UNIT
            for place in range(at, at + open_length):
                if open_tags[place] == tag:
                    if gathered == passed.shape[1]:
                        _resolve(rows, open_rows, prints, words, passed, gathered)
                        _look_up(tables, held, batch, doc, passed, gathered, best, best_distance)
                        gathered = 0
                    passed[0, gathered], passed[1, gathered] = -1 - place, number
                    prefetch(open_rows, place)
                    gathered += 1
                    candidates[doc] += 1
        _resolve(rows, open_rows, prints, words, passed, gathered)
        _look_up(tables, held, batch, doc, passed, gathered, best, best_distance)


@kernel
def _resolve(rows: Any, open_rows: Any, prints: Any, words: int, passed: Any, gathered: int) -> None:
    """Turn places in `rows`, or -1 - places in `open_rows`, into rows, and ask for their prints."""
    for at in range(gathered):
        place = passed[0, at]
        passed[0, at] = int64(rows[place]) if place >= 0 else int64(open_rows[-1 - place])
        prefetch(prints, passed[0, at] * words)


@kernel
def _look_up(tables: Any, held: Any, batch: Any, doc: int, passed: Any, gathered: int, best: Any, best_distance: Any) -> None:
    """Lower the document's best by those of the rows `passed[0]`, found in the tables `passed[1]`, that are within reach."""
    for at in range(gathered):
        row = passed[0, at]
        if row < best[doc]:
            # The print first: it turns nearly all away, by one line of memory.
            distance = int64(_alike(tables, held, row, batch, doc))
            if distance >= 0 and _counts(tables, passed[1, at], held, row, batch, doc):
                best[doc], best_distance[doc] = row, distance


@kernel
def collect(
    tables: Any, table: Any, held: Any, batch: Any, number: int, key: Any, found: Any, distances: Any, count: int
) -> int:
    """Append every row within reach of document 0 that one table knows; return how many there are, room or not."""
    bucket, tag = int64(key & uint64(table.open_heads.shape[1] - 1)), uint8(key >> _TAG_SHIFT)
    asked = int64(0)
    for part in range(2):
        tags, rows, first, stop = _part(table, number, bucket, part)
        for at in range(first, stop):
            row = int64(rows[at])
            if tags[at] != tag or not _counts(tables, number, held, row, batch, 0):
                continue
            asked += 1
            distance = int64(_alike(tables, held, row, batch, 0))
            if distance >= 0:
                if count < found.shape[0]:
                    found[count] = row
                    distances[count] = distance
                count += 1
            if asked == tables.asked:
                return count
    return count


@kernel
def _first_in_batch(
    tables: Any, table: Any, held: Any, batch: Any, doc: int, number: int, key: Any, at: int, end: int, links: Any, made: Any
) -> Any:
    """Return (the first new entry of the batch within reach in one table and before `end`, or `end`; its distance).

    `at` begins the chain of those in the document's slot; entries from before the batch count to the cap first.
    """
    left = int64(-1)
    while 0 <= at < end:
        other = made[at]
        if batch.scopes[other] == batch.scopes[doc] and _shares(tables, number, batch, other, batch, doc):
            if tables.asked > 0:
                if left < 0:
                    left = int64(tables.asked) - _held_with_key(tables, table, held, batch, doc, number, key)
                if left <= 0:
                    break
                left -= 1
            distance = int64(_alike(tables, batch, other, batch, doc))
            if distance >= 0:
                return at, distance
        at = int64(links[at, number])
    return end, int64(0)


@kernel
def _held_with_key(tables: Any, table: Any, held: Any, batch: Any, doc: int, number: int, key: Any) -> Any:
    """Return how many entries from before the batch have the document's key in one table, counted up to the cap."""
    bucket, tag = int64(key & uint64(table.open_heads.shape[1] - 1)), uint8(key >> _TAG_SHIFT)
    count = int64(0)
    for part in range(2):
        tags, rows, first, stop = _part(table, number, bucket, part)
        for at in range(first, stop):
            if count == tables.asked:
                return count
            if tags[at] == tag and _counts(tables, number, held, int64(rows[at]), batch, doc):
                count += 1
    return count


@kernel
def settle(tables: Any, table: Any, held: Any, batch: Any, known: Any, keys: Any, chains: Any, settled: Any) -> int:
    """Judge documents in order, each seeing those before it, as `near_kernels.settle` does; chains begin with the earliest."""
    floor, next_row, same, best, best_distance, tags = known
    seen, heads, tails, links = chains
    outcome, found, distance, made = settled
    mask = int64(seen.shape[0] - 1)
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
        if not short:
            row, bits = best[doc], best_distance[doc]
            if row == NONE:
                first = int64(count)
                for number in range(heads.shape[0]):
                    key = keys[doc, number]
                    at = int64(heads[number, int64(key) & mask])
                    if 0 <= at < first:
                        at, apart = _first_in_batch(tables, table, held, batch, doc, number, key, at, first, links, made)
                        if at < first:
                            first, bits = at, apart
                if first < count:
                    row = next_row + first
            if row != NONE:
                outcome[doc] = OUTCOME_NEAR
                found[doc] = row
                distance[doc] = bits
                continue
        outcome[doc] = OUTCOME_SHORT if short else OUTCOME_NEW
        found[doc] = next_row + count
        seen[slot] = count
        made[count] = doc
        for number in range(0 if short else heads.shape[0]):
            slot = int64(keys[doc, number]) & mask
            links[count, number] = -1
            if heads[number, slot] < 0:
                heads[number, slot] = count
            else:
                links[tails[number, slot], number] = count
            tails[number, slot] = count
        count += 1
    return count
