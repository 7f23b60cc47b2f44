"""Choose the tables that find the representatives near a document with a plan.

If a plan has `asked` (the most candidates of a key) or `bands`, there is a table for each of its
keys, and a document is compared with at most `asked` of the entries with the same key. Any other
plan compares a document with every entry that could be near. For that, any tables can be used that
return at least the near entries, because each returned entry is compared by all conditions of the
plan:

- If two keys differ in at most `radius` bits, one of their `radius` + 1 parts is equal: so there is a
  table for each part.
- If these tables together would return as many entries as there are, a single table whose key has no
  bits returns each of them once: a plain scan. Blocks of one bit, and plans without blocks, use this.

Invariant: no table alone decides that texts are near, unless its key is one of the plan's.

Prints are rows of uint64 limbs, low limb first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.plan import TABLES_MAX, Plan
from stream_dedup.domain.sketch import SKETCH_VALUES

_LIMB_MASK: Final = (1 << 64) - 1


class CompiledPlan(NamedTuple):
    """A plan as arrays for the kernels; W limbs of a print are compared.

    Tables by print: `masks` (T, W) uint64 are the bits of the print that are the key of each table.
    `keys` (K, W) uint64 are the plan's keys: two texts are near only if one of these differs in at
    most `radius` bits; K is 0 if the tables have these keys.

    Tables by sketch, numbered after the tables by print: one for each of `bands` blocks of
    `band_values` values.

    Of the entries with the same key, a document is compared with `candidates_max` (0: all): the
    first `candidates_max` - `candidates_last`, and the last `candidates_last`.

    Conditions: `compared_bits` (W,) uint64 are the bits of a print that are compared. A text's
    length is its number of features; of two texts the shorter one counts. If its length is below
    `length_limits[i]` (L,) uint32, at most `thresholds[i]` (L + 1,) int64 bits may differ, or
    `thresholds[L]` if it reaches all limits; `threshold` is the largest. It must have at least
    `ratio` per cent of the longer text's features. If `compares_sketches`, the similarity must be
    at least `alike_mins` (5,) int64 parts of `ALIKE`, by the relation of the documents.
    """

    masks: NDArray[np.uint64]
    keys: NDArray[np.uint64]
    radius: int
    compared_bits: NDArray[np.uint64]
    threshold: int
    length_limits: NDArray[np.uint32]
    thresholds: NDArray[np.int64]
    ratio: int
    alike_mins: NDArray[np.int64]
    compares_sketches: bool
    band_values: int
    bands: int
    candidates_max: int
    candidates_last: int


def compile_plan(plan: Plan) -> CompiledPlan:
    """Return a plan as arrays for the kernels."""
    key_bits = [
        _bit_mask(bit for first, end in key for bit in range(first, end)) for key in plan.keys
    ]
    table_bits = _key_bits_of_tables(plan, key_bits)
    return CompiledPlan(
        masks=_limbs_of(table_bits, plan.limbs),
        keys=_limbs_of([] if table_bits == key_bits else key_bits, plan.limbs),
        radius=plan.radius,
        compared_bits=to_limbs((1 << plan.width) - 1, plan.limbs),
        threshold=plan.threshold_max,
        length_limits=np.array([below for below, _ in plan.by_length], np.uint32),
        thresholds=np.array(
            [*(threshold for _, threshold in plan.by_length), plan.threshold], np.int64
        ),
        ratio=plan.ratio,
        alike_mins=np.array(plan.alike_mins, np.int64),
        compares_sketches=any(plan.alike_mins),
        band_values=SKETCH_VALUES // max(1, plan.bands),
        bands=plan.bands,
        candidates_max=plan.asked,
        candidates_last=plan.asked_last,
    )


def table_count(plan: CompiledPlan) -> int:
    """Return the number of tables that a plan needs."""
    return len(plan.masks) + plan.bands


def to_limbs(number: int, limbs: int) -> NDArray[np.uint64]:
    """Return a print, a number, as `limbs` 64-bit limbs, low limb first."""
    return np.array([(number >> (64 * limb)) & _LIMB_MASK for limb in range(limbs)], np.uint64)


def _key_bits_of_tables(plan: Plan, key_bits: list[int]) -> list[int]:
    """Return the key of each table by print, as bits of the print."""
    if plan.asked or plan.bands:
        return key_bits
    parts = list(
        dict.fromkeys(part for key in key_bits for part in _split_key(key, plan.radius + 1))
    )
    # The share of all representatives that a look-up returns.
    share = sum(0.5 ** part.bit_count() for part in parts)
    return parts if share < 1 and len(parts) <= TABLES_MAX else [0]


def _split_key(key: int, count: int) -> Iterator[int]:
    """Yield the bits of a key in `count` parts of nearly equal length; if it has fewer bits, some
    parts have none.
    """
    bits = [bit for bit in range(key.bit_length()) if key >> bit & 1]
    for part in range(count):
        yield _bit_mask(bits[len(bits) * part // count : len(bits) * (part + 1) // count])


def _bit_mask(bits: Iterable[int]) -> int:
    return sum(1 << bit for bit in bits)


def _limbs_of(masks: list[int], limbs: int) -> NDArray[np.uint64]:
    return np.array([to_limbs(mask, limbs) for mask in masks], np.uint64).reshape(-1, limbs)
