"""Compiled: the keys of the print and of the sketch, whether two texts share one and are near, and
who has one text.

A key is hashed, with its scope and the number of its table, to 64 bits, by which `finder_kernels`
finds rows.

Invariant: a tag never decides: the key itself is compared before an entry counts or is found.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stream_dedup.ground.sketch import (
    ALIKE,
    FIRST_WEIGHT,
    JUDGING_VALUES,
    JUDGING_WEIGHT,
    NOT_COMPARED,
    SKETCH_BYTES,
    SKETCH_VALUES,
)
from stream_dedup.index.tables.rows import FULL
from stream_dedup.index.tables.tags import SPREAD, mixed_limb
from stream_dedup.machine.compiled import inlined, kernel, popcount, read_at

int64: Any = np.int64
uint8: Any = np.uint8
uint64: Any = np.uint64

_FIRST: Final = int64(SKETCH_VALUES)
_BYTES: Final = int64(SKETCH_BYTES)
_JUDGING: Final = int64(JUDGING_VALUES)
_FIRST_WEIGHT: Final = int64(FIRST_WEIGHT)
_JUDGING_WEIGHT: Final = int64(JUDGING_WEIGHT)
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
def apart(tables: Any, one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return the distance of two rows' prints, or -1 if no two texts so far apart are near."""
    prints, other_prints, whole = one.prints, other.prints, tables.whole
    distance: int = popcount((prints[one_row, 0] ^ other_prints[other_row, 0]) & whole[0])
    if distance > tables.threshold:  # nearly every candidate ends here
        return -1
    for limb in range(1, whole.shape[0]):
        distance += popcount((prints[one_row, limb] ^ other_prints[other_row, limb]) & whole[limb])
    return distance if distance <= tables.threshold else -1


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
def near_prints(tables: Any, one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return the distance of two rows whose prints and lengths are near enough, or -1."""
    distance: int = apart(tables, one, one_row, other, other_row)
    if distance < 0 or distance > _threshold_of(
        tables, one.features[one_row], other.features[other_row]
    ):
        return -1
    return distance if meets(tables, one, one_row, other, other_row) else -1


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
def near_held(tables: Any, held: Any, row: int, batch: Any, doc: int) -> int:
    """Return the distance of a document to a held row whose print and length are near enough, or
    -1.
    """
    take_print(held, row)
    distance: int = apart(tables, held.taken, 0, batch, doc)
    if distance < 0:
        return -1
    if tables.ratio > 0 or tables.below.shape[0] > 0:
        take_features(held, row)
    if distance > _threshold_of(tables, held.taken.features[0], batch.features[doc]):
        return -1
    return distance if meets(tables, held.taken, 0, batch, doc) else -1


@kernel
def alike_held(tables: Any, held: Any, row: int, batch: Any, doc: int) -> Any:
    """Return whether the sketches of a held row and of a document are as much alike as the plan
    wants.
    """
    if tables.alike_min == 0:
        return True
    take_sketch(held, row)
    return alike(held.taken, 0, batch, doc) >= tables.alike_min


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
def near_if_found(tables: Any, batch: Any, one: int, doc: int) -> int:
    """Return the distance of two documents of a batch that are near if they are found, or -1:
    `Plan.is_alike`, compiled.
    """
    distance: int = near_prints(tables, batch, one, batch, doc)
    if distance >= 0 and tables.alike_min > 0 and alike(batch, one, batch, doc) < tables.alike_min:
        return -1
    return distance


@kernel
def near_if_found_held(tables: Any, held: Any, row: int, batch: Any, doc: int) -> int:
    """Return the same of a held row and a document."""
    distance: int = near_held(tables, held, row, batch, doc)
    return distance if distance >= 0 and alike_held(tables, held, row, batch, doc) else -1


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
