"""Choose the tables that find the representatives near a document under a plan.

A plan with `asked` or `bands` has tables for its keys: of the entries of each key, `asked` are
compared with a document. A plan that compares all can use any tables that find at least its near
entries, because each result is compared by the whole predicate:

- If two keys are within `radius` bits, one of `radius` + 1 parts is equal: there is a table for each part.
- If the tables together would return as many representatives as there are, one table without bits returns each of them once:
  a plain scan. Blocks of one bit, and plans without blocks, use this.

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
    """A plan in the form that the compiled functions need; W limbs of a print are compared.

    `masks` (T, W) uint64: the bits of the print that are the key of each table by print. `keys` (K,
    W) uint64: the plan's keys, of which one is within `radius` bits if two texts are near; K is 0
    if the tables have these keys. `whole` (W,) uint64: the bits that are compared. `threshold` is
    the largest for any length; `below` (L,) uint32 and `thresholds` (L + 1,) int64: those by
    length, the plan's threshold last; `ratio` in per cent. If `compares`, two sketches are near
    from `alike_mins` (5,) int64 parts of `ALIKE`, by the relation of the documents; the first part
    of a sketch has `bands` blocks of `band_values` values, with a table for each after those by
    print. Of the entries of each key, `asked` are compared with a document, or all (0): the last
    `asked_last`, and otherwise the first.
    """

    masks: NDArray[np.uint64]
    keys: NDArray[np.uint64]
    radius: int
    whole: NDArray[np.uint64]
    threshold: int
    below: NDArray[np.uint32]
    thresholds: NDArray[np.int64]
    ratio: int
    alike_mins: NDArray[np.int64]
    compares: bool
    band_values: int
    bands: int
    asked: int
    asked_last: int


def compiled(plan: Plan) -> CompiledPlan:
    """Return a plan in the form that the compiled functions need."""
    key_bits = [
        _bit_mask(bit for first, end in key for bit in range(first, end)) for key in plan.keys
    ]
    table_bits = _key_bits_of_tables(plan, key_bits)
    return CompiledPlan(
        masks=_limbs_of(table_bits, plan.limbs),
        keys=_limbs_of([] if table_bits == key_bits else key_bits, plan.limbs),
        radius=plan.radius,
        whole=to_limbs((1 << plan.width) - 1, plan.limbs),
        threshold=plan.threshold_max,
        below=np.array([below for below, _ in plan.by_length], np.uint32),
        thresholds=np.array(
            [*(threshold for _, threshold in plan.by_length), plan.threshold], np.int64
        ),
        ratio=plan.ratio,
        alike_mins=np.array(plan.alike_mins, np.int64),
        compares=any(plan.alike_mins),
        band_values=SKETCH_VALUES // max(1, plan.bands),
        bands=plan.bands,
        asked=plan.asked,
        asked_last=plan.asked_last,
    )


def table_count(plan: CompiledPlan) -> int:
    """Return the number of tables that a plan needs."""
    return len(plan.masks) + plan.bands


def to_limbs(number: int, limbs: int) -> NDArray[np.uint64]:
    """Return a print, a number, as `limbs` 64-bit limbs, low limb first."""
    return np.array([(number >> (64 * limb)) & _LIMB_MASK for limb in range(limbs)], np.uint64)


def _key_bits_of_tables(plan: Plan, key_bits: list[int]) -> list[int]:
    """Return the bits of the print that each table by print has as its key."""
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
