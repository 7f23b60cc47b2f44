"""Compiled: whether two documents are near, and what becomes of a batch whose documents see each other in order."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stream_dedup.ground.sketch import FIRST_WEIGHT, JUDGING_VALUES, JUDGING_WEIGHT, SKETCH_BYTES, SKETCH_VALUES
from stream_dedup.index.rows import (
    FEATURES_UNKNOWN,
    NONE,
    OUTCOME_DIGEST,
    OUTCOME_NEAR,
    OUTCOME_NEW,
    OUTCOME_SHORT,
)
from stream_dedup.machine.compiled import allocating_kernel, kernel, popcount, read_at

int64: Any = np.int64
uint8: Any = np.uint8
uint64: Any = np.uint64

_FIRST: Final = int64(SKETCH_VALUES)
_BYTES: Final = int64(SKETCH_BYTES)
_JUDGING: Final = int64(JUDGING_VALUES)
_FIRST_WEIGHT: Final = int64(FIRST_WEIGHT)
_JUDGING_WEIGHT: Final = int64(JUDGING_WEIGHT)


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
def near_prints(tables: Any, one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return the distance of two rows whose prints and lengths are near enough, or -1."""
    distance: int = apart(tables, one, one_row, other, other_row)
    if distance < 0 or distance > _threshold_of(tables, one.features[one_row], other.features[other_row]):
        return -1
    return distance


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
    elif read_at(held.files[0], int64(row) * int64(taken.prints.nbytes), taken.prints) != taken.prints.nbytes:
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
    elif read_at(held.files[2], int64(row) * int64(taken.sketches.nbytes), taken.sketches) != taken.sketches.nbytes:
        taken.failed[0] = 1


@kernel
def near_held(tables: Any, held: Any, row: int, batch: Any, doc: int) -> int:
    """Return the distance of a document to a held row whose print and length are near enough, or -1."""
    take_print(held, row)
    distance: int = apart(tables, held.taken, 0, batch, doc)
    if distance < 0:
        return -1
    take_features(held, row)
    return distance if distance <= _threshold_of(tables, held.taken.features[0], batch.features[doc]) else -1


@kernel
def alike_held(tables: Any, held: Any, row: int, batch: Any, doc: int) -> Any:
    """Return whether the sketches of a held row and of a document are as much alike as the plan wants."""
    if tables.alike_min == 0:
        return True
    take_sketch(held, row)
    return alike(held.taken, 0, batch, doc) >= tables.alike_min


@kernel
def alike(one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return how similar the sketches of two rows are, in parts of `ALIKE`: `ground.sketch.alike`, compiled."""
    mine, yours = one.sketches[one_row], other.sketches[other_row]
    first = judging = 0
    for at in range(_FIRST):
        first += mine[at] == yours[at]
    for at in range(_FIRST, _BYTES):
        differing = mine[at] ^ yours[at]
        judging += ((differing & uint8(15)) == 0) + ((differing >> uint8(4)) == 0)
    return int(_FIRST_WEIGHT * first + _JUDGING_WEIGHT * judging - _JUDGING)


@kernel
def found_by_blocks(tables: Any, one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return the distance of two rows of `Columns` or `HeldRows` that a plan without keys finds and their prints let be near.

    -1 if not. A row whose features are `FEATURES_UNKNOWN` is taken to be as long as the other.
    """
    distance: int = near_prints(tables, one, one_row, other, other_row)
    if distance < 0:
        return -1
    prints, other_prints = one.prints, other.prints
    for table in range(tables.masks.shape[0]):
        inside = 0
        for limb in range(tables.whole.shape[0]):
            inside += popcount((prints[one_row, limb] ^ other_prints[other_row, limb]) & tables.masks[table, limb])
        if inside <= tables.radius:
            return distance
    return -1


@kernel
def within_reach(tables: Any, one: Any, one_row: int, other: Any, other_row: int) -> int:
    """Return the distance of two rows within the plan's reach, or -1: `Plan.within_reach`, compiled, for plans without keys."""
    distance: int = found_by_blocks(tables, one, one_row, other, other_row)
    if distance >= 0 and tables.alike_min > 0 and alike(one, one_row, other, other_row) < tables.alike_min:
        return -1
    return distance


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


@allocating_kernel
def settle(tables: Any, batch: Any, known: Any, buckets: Any, chains: Any, settled: Any) -> int:
    """Judge documents in order, each seeing those before it; return how many become entries, rows `known.next_row`..

    The batch's new entries are found by their buckets (n, T), for plans of radius 0, in which entries within reach share one.
    With T = 0 in `chains.heads` they are compared with one after another.
    """
    floor, next_row, same, best, best_distance, tags = known
    seen, heads, _, links, _ = chains
    outcome, found, distance, made = settled
    lows = np.empty(outcome.shape[0], np.uint64)
    mask = int64(seen.shape[0] - 1)
    tables_chained = heads.shape[0]
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
            if row == NONE and tables_chained > 0:
                first = int64(count)
                for table in range(tables_chained):
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
        for table in range(0 if short else tables_chained):
            slot = buckets[doc, table] & mask
            links[count, table] = heads[table, slot]
            heads[table, slot] = count
        count += 1
    return count
