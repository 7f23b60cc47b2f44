"""Compiled: the keys of the print and of the sketch, whether two texts share one and are near, and
who has one text.

A key is hashed, with its scope and the number of its table, to 64 bits, by which `finder_kernels`
finds rows.

Invariant: a tag never decides: the key itself is compared before an entry counts or is found.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stream_dedup.domain.related import Relation
from stream_dedup.domain.sketch import (
    ALIKE,
    FIRST_WEIGHT,
    JUDGING_VALUES,
    JUDGING_WEIGHT,
    NOT_COMPARED,
    SKETCH_BYTES,
    SKETCH_VALUES,
    SURE,
    alike_min,
)
from stream_dedup.index.tables.rows import FULL
from stream_dedup.index.tables.tags import SPREAD, mixed_limb
from stream_dedup.kernels.compiled import inlined, kernel, popcount, read_at

int64: Any = np.int64
uint8: Any = np.uint8
uint64: Any = np.uint64

_FIRST: Final = int64(SKETCH_VALUES)
_BYTES: Final = int64(SKETCH_BYTES)
_JUDGING: Final = int64(JUDGING_VALUES)
_FIRST_WEIGHT: Final = int64(FIRST_WEIGHT)
_JUDGING_WEIGHT: Final = int64(JUDGING_WEIGHT)
_SURE: Final = int64(alike_min(SURE))
_FREE, _UNKNOWN_SITE, _SAME_TITLE, _UNKNOWN_TITLE, _OTHER_TITLE = map(int, Relation)
_PRIME: Final = uint64(0x100000001B3)  # of FNV-1a (Fowler, Noll and Vo)


@kernel
def _threshold_of(tables: Any, features: Any, other_features: Any) -> int:
    """Return the threshold for two texts with these counts of features, or -1 if their lengths keep
    them apart.
    """
    smaller, larger = int64(min(features, other_features)), int64(max(features, other_features))
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
def distance_of(tables: Any, one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return the distance of two rows' prints."""
    prints, other_prints, whole = one.prints, other.prints, tables.whole
    distance: int = popcount((prints[one_row, 0] ^ other_prints[other_row, 0]) & whole[0])
    for limb in range(1, whole.shape[0]):
        distance += popcount((prints[one_row, limb] ^ other_prints[other_row, limb]) & whole[limb])
    return distance


@kernel
def meets(tables: Any, one: Any, one_row: int, other: Any, other_row: int) -> Any:
    """Return whether two rows are within the radius in one of the plan's keys, where the tables do
    not tell already.
    """
    keys, prints, other_prints = tables.keys, one.prints, other.prints
    for key in range(keys.shape[0]):
        inside = 0
        for limb in range(keys.shape[1]):
            inside += popcount(
                (prints[one_row, limb] ^ other_prints[other_row, limb]) & keys[key, limb]
            )
        if inside <= tables.radius:
            return True
    return keys.shape[0] == 0


@kernel
def take_print(held: Any, row: int) -> None:
    """Have the print of a row in `held.taken`; the same with the next two."""
    taken = held.taken
    if taken.rows[0] == row:
        return
    taken.rows[0] = row
    if held.files[0] < 0:
        for limb in range(taken.prints.shape[1]):
            taken.prints[0, limb] = held.prints[row, limb]
    elif (
        read_at(held.files[0], int64(row) * int64(taken.prints.nbytes), taken.prints)
        != taken.prints.nbytes
    ):
        taken.failed[0] = 1


@kernel
def take_features(held: Any, row: int) -> None:
    """Have how many features a row has."""
    taken = held.taken
    if taken.rows[1] == row:
        return
    taken.rows[1] = row
    if held.files[1] < 0:
        taken.features[0] = held.features[row]
    elif read_at(held.files[1], int64(row) * int64(4), taken.features) != 4:
        taken.failed[0] = 1


@kernel
def take_sketch(held: Any, row: int) -> None:
    """Have the sketch of a row."""
    taken = held.taken
    if taken.rows[2] == row:
        return
    taken.rows[2] = row
    if held.files[2] < 0:
        for at in range(taken.sketches.shape[1]):
            taken.sketches[0, at] = held.sketches[row, at]
    elif (
        read_at(held.files[2], int64(row) * int64(taken.sketches.nbytes), taken.sketches)
        != taken.sketches.nbytes
    ):
        taken.failed[0] = 1


@kernel
def alike(one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return how similar the sketches of two rows are, in parts of `ALIKE`: `ground.sketch.alike`,
    compiled.
    """
    mine, yours = one.sketches[one_row], other.sketches[other_row]
    first = judging = 0
    for at in range(_FIRST):
        first += mine[at] == yours[at]
    for at in range(_FIRST, _BYTES):
        differing = mine[at] ^ yours[at]
        judging += ((differing & uint8(15)) == 0) + ((differing >> uint8(4)) == 0)
    return int(_FIRST_WEIGHT * first + _JUDGING_WEIGHT * judging - _JUDGING)


@kernel
def per_cent(one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return how similar the sketches of two rows are in whole per cents that are reached;
    `NOT_COMPARED` without sketches.
    """
    if other.sketches.shape[1] == 0:
        return NOT_COMPARED
    return int(max(int64(0), 100 * int64(alike(one, one_row, other, other_row)) // ALIKE))


@kernel
def same_in_batch(batch: Any, doc: int, seen: Any, made: Any, slot: int) -> Any:
    """Return (which new entry of the batch has a document's text, or -1; the slot in which the
    search for it ended).
    """
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
    """Set `keys` (n,) uint64 to the hashed keys in one table of `rows`: columns, of which those
    have rows that it needs.

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
def shares(tables: Any, table: int, one: Any, one_row: int, other: Any, other_row: int) -> Any:
    """Return whether two rows have the same key in a table, their scopes aside."""
    masks = tables.masks
    if table < masks.shape[0]:
        for limb in range(masks.shape[1]):
            if (one.prints[one_row, limb] ^ other.prints[other_row, limb]) & masks[
                table, limb
            ] != uint64(0):
                return False
        return True
    values = tables.band_values
    first = (table - masks.shape[0]) * values
    for at in range(first, first + values):  # noqa: SIM110 - the compiler knows no generator
        if one.sketches[one_row, at] != other.sketches[other_row, at]:
            return False
    return True


@kernel
def relation(one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return how two rows are related: `ground.related.relation_of`, compiled."""
    mine, yours, first = one.sketches[one_row], other.sketches[other_row], uint64(_BYTES)
    equal_id = any_id = False
    equal_site = equal_title = True
    any_site = any_other_site = any_title = any_other_title = False
    for at in range(first, first + uint64(8)):
        equal_site = equal_site and mine[at] == yours[at]
        any_site = any_site or mine[at] != 0
        any_other_site = any_other_site or yours[at] != 0
        title = at + uint64(8)
        equal_title = equal_title and mine[title] == yours[title]
        any_title = any_title or mine[title] != 0
        any_other_title = any_other_title or yours[title] != 0
    equal_id = True
    for at in range(first + uint64(16), first + uint64(20)):
        equal_id = equal_id and mine[at] == yours[at]
        any_id = any_id or mine[at] != 0
    if (equal_id and any_id) or (any_site and any_other_site and not equal_site):
        return _FREE
    if not (any_site and any_other_site):
        return _UNKNOWN_SITE
    if not (any_title and any_other_title):
        return _UNKNOWN_TITLE
    return _SAME_TITLE if equal_title else _OTHER_TITLE


@kernel
def near_if_found(tables: Any, one: Any, one_row: int, batch: Any, doc: int) -> int:
    """Return the distance of a row and a document that are near if they are found, else -1, or -2
    if only their site or title keeps them apart: `Plan.likeness`, compiled.
    """
    distance = int64(distance_of(tables, one, one_row, batch, doc))
    limit = int64(_threshold_of(tables, one.features[one_row], batch.features[doc]))
    if limit < 0 or not meets(tables, one, one_row, batch, doc):
        return -1
    if not tables.compares:
        return int(distance) if distance <= limit else -1
    share = int64(alike(one, one_row, batch, doc))
    if share < tables.alike_mins[0] or (distance > limit and share < _SURE):
        return -1
    related = relation(one, one_row, batch, doc)
    if share >= tables.alike_mins[related]:
        return int(min(distance, int64(255)))
    return -2 if related >= _SAME_TITLE else -1


@kernel
def near_if_found_held(tables: Any, held: Any, row: int, batch: Any, doc: int) -> int:
    """Return the same of a held row and a document."""
    take_print(held, row)
    if tables.compares:
        take_sketch(held, row)
    elif distance_of(tables, held.taken, 0, batch, doc) > tables.threshold:
        return -1  # nearly every candidate ends here
    if tables.ratio > 0 or tables.below.shape[0] > 0:
        take_features(held, row)
    found: int = near_if_found(tables, held.taken, 0, batch, doc)
    return found


@kernel
def counts(tables: Any, table: int, held: Any, row: int, batch: Any, doc: int) -> Any:
    """Return whether an entry is a full one of a document's scope with its key."""
    scope = held.scopes[row] if held.scopes.shape[0] > 0 else uint64(0)
    if held.states[row] != FULL or scope != batch.scopes[doc]:
        return False
    if table < tables.masks.shape[0]:
        take_print(held, row)
    else:
        take_sketch(held, row)
    return shares(tables, table, held.taken, 0, batch, doc)
