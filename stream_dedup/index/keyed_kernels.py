"""The compiled half of `keyed`: keys of the print and of the sketch, who is near, and the cap on who is asked.

A key is hashed, with its scope and the number of its table, to 64 bits, by which `finder_kernels` finds rows.

The cap: where more than `asked` entries of a bucket pass by their tags, they are gone through in order, each that has the very
key is counted, and after so many no other is asked. Where fewer pass nothing is to be counted.

Invariant: a tag never decides: the key itself is compared before an entry counts or is found.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stream_dedup.index.finder_kernels import (
    GROUP_BITS,
    bucket_of,
    first_tag,
    half_of,
    next_passing,
    open_tag,
    row_at,
    sealed_row,
    second_tag,
)
from stream_dedup.index.near_kernels import (
    agreeing,
    agreeing_held,
    near_held,
    near_prints,
    same_in_batch,
    take_print,
    take_sketch,
)
from stream_dedup.index.rows import FULL, NONE, OUTCOME_DIGEST, OUTCOME_NEAR, OUTCOME_NEW, OUTCOME_SHORT
from stream_dedup.index.slot_kernels import SPREAD, mixed_limb
from stream_dedup.index.table_kernels import UNIT
from stream_dedup.machine.compiled import inlined, kernel, prefetch

int64: Any = np.int64
uint64: Any = np.uint64

_PRIME: Final = uint64(0x100000001B3)  # of FNV-1a (Fowler, Noll and Vo)
_LINE: Final = 64


@inlined
def _start(table: int, scope: Any) -> Any:
    """Return what the key of a scope in a table begins with."""
    return (uint64(table) + uint64(1)) * SPREAD ^ mixed_limb(scope)


@inlined
def _print_key(masks: Any, table: int, prints: Any, row: int, start: Any) -> Any:
    key = start
    for limb in range(masks.shape[1]):
        key = mixed_limb(key ^ (prints[row, limb] & masks[table, limb]))
    return mixed_limb(key)


@inlined
def _block_key(first: int, end: int, sketches: Any, row: int, start: Any) -> Any:
    key = start
    for at in range(uint64(first), uint64(end)):  # unsigned: nothing counts from the end
        key = (key ^ uint64(sketches[uint64(row), at])) * _PRIME
    return mixed_limb(key)


@kernel
def keys_in(tables: Any, number: int, rows: Any, keys: Any) -> None:
    """Set `keys` (n,) uint64 to the hashed keys in one table of `rows`: columns, of which those have rows that it needs.

    What is large as `tables` is goes to no function for each row: it would be copied.
    """
    prints, sketches, scopes, masks = rows.prints, rows.sketches, rows.scopes, tables.masks
    first = (number - masks.shape[0]) * tables.band_values
    end, start = first + tables.band_values, _start(number, uint64(0))
    for row in range(keys.shape[0]):
        if scopes.shape[0] > 0:
            start = _start(number, scopes[row])
        if first < 0:
            keys[row] = _print_key(masks, number, prints, row, start)
        else:
            keys[row] = _block_key(first, end, sketches, row, start)


@kernel
def keys_of(tables: Any, batch: Any, keys: Any) -> None:
    """Set `keys` (n, T) uint64 to the hashed keys of every document."""
    for table in range(keys.shape[1]):
        keys_in(tables, table, batch, keys[:, table])


@kernel
def _shares(tables: Any, table: int, one: Any, one_row: int, other: Any, other_row: int) -> Any:
    """Return whether two rows have the same key in a table, their scopes aside."""
    masks = tables.masks
    if table < masks.shape[0]:
        for limb in range(masks.shape[1]):
            if (one.prints[one_row, limb] ^ other.prints[other_row, limb]) & masks[table, limb] != uint64(0):
                return False
        return True
    values = tables.band_values
    first = (table - masks.shape[0]) * values
    for at in range(first, first + values):  # noqa: SIM110 - the compiler knows no generator
        if one.sketches[one_row, at] != other.sketches[other_row, at]:
            return False
    return True


@kernel
def _alike(tables: Any, batch: Any, one: int, doc: int) -> int:
    """Return the distance of two documents of a batch that are near if they are found, or -1: `Plan.is_alike`, compiled."""
    distance: int = near_prints(tables, batch, one, batch, doc)
    if distance >= 0 and tables.agreeing > 0 and agreeing(batch, one, batch, doc) < tables.agreeing:
        return -1
    return distance


@kernel
def _alike_held(tables: Any, held: Any, row: int, batch: Any, doc: int) -> int:
    """Return the same of a held row and a document."""
    distance: int = near_held(tables, held, row, batch, doc)
    return distance if distance >= 0 and agreeing_held(tables, held, row, batch, doc) else -1


@kernel
def _counts(tables: Any, table: int, held: Any, row: int, batch: Any, doc: int) -> Any:
    """Return whether an entry is a full one of a document's scope with its key."""
    scope = held.scopes[row] if held.scopes.shape[0] > 0 else uint64(0)
    if held.states[row] != FULL or scope != batch.scopes[doc]:
        return False
    if table < tables.masks.shape[0]:
        take_print(held, row)
    else:
        take_sketch(held, row)
    return _shares(tables, table, held.taken, 0, batch, doc)


@kernel
def _passes_more(table: Any, number: int, key: Any, most: int) -> Any:
    """Return whether more than `most` entries of a key's bucket pass by their tags."""
    at = int64(-1)
    for _ in range(most + 1):
        at = int64(next_passing(table, number, key, at + 1))
        if at < 0:
            return False
    return True


@kernel
def _ask_in_order(tables: Any, table: Any, held: Any, batch: Any, doc: int, number: int, key: Any, end: Any) -> Any:
    """Ask the entries of one long bucket in order, at most `asked` of those with the very key, and none from row `end` on.

    Returns (the row of the first within reach, or NONE; its distance; how many have the key).
    """
    found, at = int64(0), int64(-1)
    while True:
        at = int64(next_passing(table, number, key, at + 1))
        if at < 0:
            return NONE, int64(0), found
        row = int64(row_at(table, held.taken, number, key, at))
        if row >= end:
            return NONE, int64(0), found
        if _counts(tables, number, held, row, batch, doc):
            found += 1
            distance = int64(_alike_held(tables, held, row, batch, doc))
            if distance >= 0:
                return row, distance, found
            if found == tables.asked:
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

    `docs` (m,) int64 are those to search for; `passed` (2, any) int64 is scratch: what passes by its tags is gathered, and
    looked up together. `candidates` (n,) int64 grows by the entries that are looked up. What a document visits is asked
    for while those before it are searched, heads two documents ahead and tags one.
    """
    heads, tags, more, rows = table.heads, table.tags, table.more, table.rows
    open_heads, open_tags, open_rows = table.open_heads, table.open_tags, table.open_rows
    asked, room = tables.asked, passed.shape[1]
    count, groups = heads.shape[0], open_heads.shape[1]
    places, masks = tags.shape[0] // count, table.masks
    for order in range(docs.shape[0] + 2):
        if order < docs.shape[0]:
            for number in range(count):
                bucket = bucket_of(masks[number], keys[docs[order], number])
                prefetch(heads, number * heads.shape[1] + bucket)
                prefetch(open_heads, (number * groups + (bucket >> GROUP_BITS)) * 2)
        if 1 <= order <= docs.shape[0]:
            for number in range(count):
                bucket = bucket_of(masks[number], keys[docs[order - 1], number])
                begin, end = int64(heads[number, bucket]), int64(heads[number, bucket + 1])
                group = bucket >> GROUP_BITS
                if end > begin:
                    prefetch(tags, number * places + begin)
                    prefetch(tags, number * places + min(end - 1, begin + _LINE))
                if open_heads[number, group, 1] > 0:
                    prefetch(open_tags, int64(open_heads[number, group, 0]) * UNIT)
        if order < 2:
            continue
        doc, gathered = docs[order - 2], 0
        for number in range(count):
            key = keys[doc, number]
            bucket, first, second = bucket_of(masks[number], key), first_tag(key), second_tag(key)
            group = bucket >> GROUP_BITS
            at = number * places + int64(heads[number, bucket])
            stop = number * places + int64(heads[number, bucket + 1])
            open_length = int64(open_heads[number, group, 1])
            if asked > 0 and stop - at + open_length > asked and _passes_more(table, number, key, asked):
                row, distance, found = _ask_in_order(tables, table, held, batch, doc, number, key, best[doc])
                candidates[doc] += found
                if row < best[doc]:
                    best[doc], best_distance[doc] = row, distance
                continue
            while at < stop:
                if tags[at] == first and half_of(more, at) == second:
                    if gathered == room:
                        _resolve(table, held, passed, gathered)
                        _look_up(tables, held, batch, doc, passed, gathered, best, best_distance)
                        gathered = 0
                    passed[0, gathered], passed[1, gathered] = at, number
                    if rows.shape[0] > 0:
                        prefetch(rows, at)
                    gathered += 1
                    candidates[doc] += 1
                at += 1
            at, wanted = int64(open_heads[number, group, 0]) * UNIT, open_tag(key)
            for place in range(at, at + open_length):
                if open_tags[place] == wanted:
                    if gathered == room:
                        _resolve(table, held, passed, gathered)
                        _look_up(tables, held, batch, doc, passed, gathered, best, best_distance)
                        gathered = 0
                    passed[0, gathered], passed[1, gathered] = -1 - place, number
                    prefetch(open_rows, place)
                    gathered += 1
                    candidates[doc] += 1
        _resolve(table, held, passed, gathered)
        _look_up(tables, held, batch, doc, passed, gathered, best, best_distance)


@kernel
def _resolve(table: Any, held: Any, passed: Any, gathered: int) -> None:
    """Turn places in the sealed rows, or -1 - places in the open ones, into rows, and ask for their prints."""
    for at in range(gathered):
        place = passed[0, at]
        passed[0, at] = sealed_row(table, held.taken, place) if place >= 0 else int64(table.open_rows[-1 - place])
        if held.files[0] < 0:
            prefetch(held.prints, passed[0, at] * held.prints.shape[1])


@kernel
def _look_up(tables: Any, held: Any, batch: Any, doc: int, passed: Any, gathered: int, best: Any, best_distance: Any) -> None:
    """Lower the document's best by those of the rows `passed[0]`, found in the tables `passed[1]`, that are within reach."""
    for at in range(gathered):
        row = passed[0, at]
        if row < best[doc]:
            # The print first: it turns nearly all away, by one line of memory.
            distance = int64(_alike_held(tables, held, row, batch, doc))
            if distance >= 0 and _counts(tables, passed[1, at], held, row, batch, doc):
                best[doc], best_distance[doc] = row, distance


@kernel
def collect(
    tables: Any, table: Any, held: Any, batch: Any, number: int, key: Any, found: Any, distances: Any, count: int
) -> int:
    """Append every row within reach of document 0 that one table knows; return how many there are, room or not."""
    asked, at = int64(0), int64(-1)
    while True:
        at = int64(next_passing(table, number, key, at + 1))
        if at < 0:
            return count
        row = int64(row_at(table, held.taken, number, key, at))
        if not _counts(tables, number, held, row, batch, 0):
            continue
        asked += 1
        distance = int64(_alike_held(tables, held, row, batch, 0))
        if distance >= 0:
            if count < found.shape[0]:
                found[count] = row
                distances[count] = distance
            count += 1
        if asked == tables.asked:
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
            distance = int64(_alike(tables, batch, other, doc))
            if distance >= 0:
                return at, distance
        at = int64(links[at, number])
    return end, int64(0)


@kernel
def _held_with_key(tables: Any, table: Any, held: Any, batch: Any, doc: int, number: int, key: Any) -> Any:
    """Return how many entries from before the batch have the document's key in one table, counted up to the cap."""
    count, at = int64(0), int64(-1)
    while count < tables.asked:
        at = int64(next_passing(table, number, key, at + 1))
        if at < 0:
            break
        if _counts(tables, number, held, int64(row_at(table, held.taken, number, key, at)), batch, doc):
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
                    while 0 <= at < first and keys[made[at], number] != key:  # nearly all there are; a call costs more
                        at = int64(links[at, number])
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
