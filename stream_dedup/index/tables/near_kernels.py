"""Compiled functions that hash keys, compare rows and decide which texts are near.

A key is hashed with its scope and the number of its table to 64 bits, by which `finder_kernels`
finds rows.

Invariant: a hash alone never decides: the key itself is compared before an entry counts.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stream_dedup.domain.relations import Relation
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
from stream_dedup.index.storage.columns import FULL
from stream_dedup.index.storage.tags import SPREAD, mix_limb
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
def _find_threshold(plan: Any, features: Any, other_features: Any) -> int:
    """Return the threshold for two texts with these counts of features, or -1 if the lengths differ too
    much for copies.
    """
    smaller, larger = int64(min(features, other_features)), int64(max(features, other_features))
    if 100 * smaller < plan.ratio * larger:
        return -1
    length_limits, thresholds = plan.length_limits, plan.thresholds
    for step in range(length_limits.shape[0]):
        if smaller < int64(length_limits[step]):
            return int(thresholds[step])
    return int(thresholds[length_limits.shape[0]])


@kernel
def print_distance(plan: Any, rows: Any, row: int, other_rows: Any, other_row: int) -> int:
    """Return the distance of two rows' prints."""
    prints, other_prints, compared_bits = rows.prints, other_rows.prints, plan.compared_bits
    distance: int = popcount((prints[row, 0] ^ other_prints[other_row, 0]) & compared_bits[0])
    for limb in range(1, compared_bits.shape[0]):
        distance += popcount(
            (prints[row, limb] ^ other_prints[other_row, limb]) & compared_bits[limb]
        )
    return distance


@kernel
def has_near_key(plan: Any, rows: Any, row: int, other_rows: Any, other_row: int) -> Any:
    """Return whether one of the plan's keys differs in at most `radius` bits between two rows; True if
    the plan lists no keys, because its tables find only such rows.
    """
    keys, prints, other_prints = plan.keys, rows.prints, other_rows.prints
    for number in range(keys.shape[0]):
        differing = 0
        for limb in range(keys.shape[1]):
            differing += popcount(
                (prints[row, limb] ^ other_prints[other_row, limb]) & keys[number, limb]
            )
        if differing <= plan.radius:
            return True
    return keys.shape[0] == 0


@kernel
def load_print(loaded: Any, row: int) -> None:
    """Load the print of a row into `loaded.buffer`.

    If its file cannot be read, set `failed` of the buffer, as the next two functions do.
    """
    buffer = loaded.buffer
    if buffer.rows[0] == row:
        return
    buffer.rows[0] = row
    if loaded.files[0] < 0:
        for limb in range(buffer.prints.shape[1]):
            buffer.prints[0, limb] = loaded.prints[row, limb]
    elif (
        read_at(loaded.files[0], int64(row) * int64(buffer.prints.nbytes), buffer.prints)
        != buffer.prints.nbytes
    ):
        buffer.failed[0] = 1


@kernel
def load_features(loaded: Any, row: int) -> None:
    """Load the number of features of a row into `loaded.buffer`."""
    buffer = loaded.buffer
    if buffer.rows[1] == row:
        return
    buffer.rows[1] = row
    if loaded.files[1] < 0:
        buffer.features[0] = loaded.features[row]
    elif read_at(loaded.files[1], int64(row) * int64(4), buffer.features) != 4:
        buffer.failed[0] = 1


@kernel
def load_sketch(loaded: Any, row: int) -> None:
    """Load the sketch of a row into `loaded.buffer`."""
    buffer = loaded.buffer
    if buffer.rows[2] == row:
        return
    buffer.rows[2] = row
    if loaded.files[2] < 0:
        for index in range(buffer.sketches.shape[1]):
            buffer.sketches[0, index] = loaded.sketches[row, index]
    elif (
        read_at(loaded.files[2], int64(row) * int64(buffer.sketches.nbytes), buffer.sketches)
        != buffer.sketches.nbytes
    ):
        buffer.failed[0] = 1


@kernel
def count_alike(rows: Any, row: int, other_rows: Any, other_row: int) -> int:
    """Return the similarity of two rows' sketches in parts of `ALIKE`: `domain.sketch.alike`,
    compiled.
    """
    left, right = rows.sketches[row], other_rows.sketches[other_row]
    first = judging = 0
    for index in range(_FIRST):
        first += left[index] == right[index]
    for index in range(_FIRST, _BYTES):
        differing = left[index] ^ right[index]
        judging += ((differing & uint8(15)) == 0) + ((differing >> uint8(4)) == 0)
    return int(_FIRST_WEIGHT * first + _JUDGING_WEIGHT * judging - _JUDGING)


@kernel
def similarity_percent(rows: Any, row: int, other_rows: Any, other_row: int) -> int:
    """Return the similarity of two rows' sketches in per cent, rounded down; `NOT_COMPARED` without
    sketches.
    """
    if other_rows.sketches.shape[1] == 0:
        return NOT_COMPARED
    return int(max(int64(0), 100 * int64(count_alike(rows, row, other_rows, other_row)) // ALIKE))


@kernel
def find_in_batch(batch: Any, doc: int, digest_slots: Any, new_docs: Any, slot: int) -> Any:
    """Find a document's text among the new entries of the batch.

    Return (the entry's place in `new_docs`, or -1; the slot in which the search ended).
    """
    mask = int64(digest_slots.shape[0] - 1)
    while digest_slots[slot] >= 0:
        other = new_docs[digest_slots[slot]]
        if (
            batch.digests[doc, 0] == batch.digests[other, 0]
            and batch.digests[doc, 1] == batch.digests[other, 1]
            and batch.scopes[doc] == batch.scopes[other]
        ):
            return digest_slots[slot], slot
        slot = (slot + 1) & mask
    return int64(-1), slot


@inlined
def _seed_of(number: int, scope: Any) -> Any:
    """Return the initial value for hashes of keys in a table and a scope."""
    return (uint64(number) + uint64(1)) * SPREAD ^ mix_limb(scope)


@inlined
def _print_key(masks: Any, number: int, prints: Any, row: int, seed: Any) -> Any:
    key = seed
    for limb in range(masks.shape[1]):
        key = mix_limb(key ^ (prints[row, limb] & masks[number, limb]))
    return mix_limb(key)


@inlined
def _block_key(first: int, end: int, sketches: Any, row: int, seed: Any) -> Any:
    key = seed
    for index in range(
        uint64(first), uint64(end)
    ):  # unsigned, so numba omits the check for a negative index
        key = (key ^ uint64(sketches[uint64(row), index])) * _PRIME
    return mix_limb(key)


@kernel
def hash_table_keys(plan: Any, number: int, rows: Any, keys: Any) -> None:
    """Set `keys` (n,) uint64 to the hashed keys of `rows` in one table.

    Only the columns of `rows` that the table needs are read. The functions called for each row do not
    take `plan`, because numba copies large tuples when they are passed to a function.
    """
    prints, sketches, scopes, masks = rows.prints, rows.sketches, rows.scopes, plan.masks
    first = (number - masks.shape[0]) * plan.band_values
    end, seed = first + plan.band_values, _seed_of(number, uint64(0))
    for row in range(keys.shape[0]):
        if scopes.shape[0] > 0:
            seed = _seed_of(number, scopes[row])
        if first < 0:
            keys[row] = _print_key(masks, number, prints, row, seed)
        else:
            keys[row] = _block_key(first, end, sketches, row, seed)


@kernel
def hash_keys(plan: Any, batch: Any, keys: Any) -> None:
    """Set `keys` (n, T) uint64 to the hashed keys of every document."""
    for number in range(keys.shape[1]):
        hash_table_keys(plan, number, batch, keys[:, number])


@kernel
def has_equal_key(
    plan: Any, number: int, rows: Any, row: int, other_rows: Any, other_row: int
) -> Any:
    """Return whether two rows have equal keys in a table; scopes are not compared."""
    masks = plan.masks
    if number < masks.shape[0]:
        for limb in range(masks.shape[1]):
            if (rows.prints[row, limb] ^ other_rows.prints[other_row, limb]) & masks[
                number, limb
            ] != uint64(0):
                return False
        return True
    values = plan.band_values
    first = (number - masks.shape[0]) * values
    for index in range(first, first + values):  # noqa: SIM110 - numba does not compile generators
        if rows.sketches[row, index] != other_rows.sketches[other_row, index]:
            return False
    return True


@kernel
def find_relation(rows: Any, row: int, other_rows: Any, other_row: int) -> int:
    """Return the relation of two rows: `domain.relations.relation_of`, compiled."""
    left, right, first = rows.sketches[row], other_rows.sketches[other_row], uint64(_BYTES)
    equal_id = any_id = False
    equal_site = equal_title = True
    any_site = any_other_site = any_title = any_other_title = False
    for index in range(first, first + uint64(8)):
        equal_site = equal_site and left[index] == right[index]
        any_site = any_site or left[index] != 0
        any_other_site = any_other_site or right[index] != 0
        title = index + uint64(8)
        equal_title = equal_title and left[title] == right[title]
        any_title = any_title or left[title] != 0
        any_other_title = any_other_title or right[title] != 0
    equal_id = True
    for index in range(first + uint64(16), first + uint64(20)):
        equal_id = equal_id and left[index] == right[index]
        any_id = any_id or left[index] != 0
    if (equal_id and any_id) or (any_site and any_other_site and not equal_site):
        return _FREE
    if not (any_site and any_other_site):
        return _UNKNOWN_SITE
    if not (any_title and any_other_title):
        return _UNKNOWN_TITLE
    return _SAME_TITLE if equal_title else _OTHER_TITLE


@kernel
def near_distance(plan: Any, rows: Any, row: int, batch: Any, doc: int) -> int:
    """Return the distance of a row and a document, -1 if they are not near, or -2 if they would be near
    but for their site or title.
    """
    distance = int64(print_distance(plan, rows, row, batch, doc))
    threshold = int64(_find_threshold(plan, rows.features[row], batch.features[doc]))
    if threshold < 0 or not has_near_key(plan, rows, row, batch, doc):
        return -1
    if not plan.compares_sketches:
        return int(distance) if distance <= threshold else -1
    parts = int64(count_alike(rows, row, batch, doc))
    if parts < plan.alike_mins[0] or (distance > threshold and parts < _SURE):
        return -1
    relation = find_relation(rows, row, batch, doc)
    if parts >= plan.alike_mins[relation]:
        return int(min(distance, int64(255)))
    return -2 if relation >= _SAME_TITLE else -1


@kernel
def near_distance_loaded(plan: Any, loaded: Any, row: int, batch: Any, doc: int) -> int:
    """Return `near_distance` of a loaded row and a document."""
    load_print(loaded, row)
    if plan.compares_sketches:
        load_sketch(loaded, row)
    elif print_distance(plan, loaded.buffer, 0, batch, doc) > plan.threshold:
        return -1  # rejects nearly every candidate
    if plan.ratio > 0 or plan.length_limits.shape[0] > 0:
        load_features(loaded, row)
    return int(near_distance(plan, loaded.buffer, 0, batch, doc))


@kernel
def has_full_key(plan: Any, number: int, loaded: Any, row: int, batch: Any, doc: int) -> Any:
    """Return whether an entry is compared by similarity (`FULL`), is in the document's scope and has
    its key in a table.
    """
    scope = loaded.scopes[row] if loaded.scopes.shape[0] > 0 else uint64(0)
    if loaded.states[row] != FULL or scope != batch.scopes[doc]:
        return False
    if number < plan.masks.shape[0]:
        load_print(loaded, row)
    else:
        load_sketch(loaded, row)
    return has_equal_key(plan, number, loaded.buffer, 0, batch, doc)
