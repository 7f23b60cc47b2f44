"""What finds the representatives that a plan may let be near, and what then judges them.

A plan with `asked` or `bands` is served by its own keys: of each of them some are asked. A plan
that asks all may be served by any tables that find at least what it calls near, because what is
found is judged by the whole predicate:

- Two keys within `radius` bits have one of `radius` + 1 parts equal, so there is a table for each part.
- Where the tables together would give as many representatives as there are, one table without bits gives each of them once:
  a plain scan. That serves blocks of one bit, and plans without blocks.

Invariant: nothing is accepted by a table alone where its key is not one of the plan's.

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


class Tables(NamedTuple):
    """A plan as the compiled functions want it; W limbs are judged of a print.

    `masks` (T, W) uint64: the bits of the print that make the key of each table that finds by the
    print. `keys` (K, W) uint64: the plan's own keys, of which one is within `radius` bits if two
    texts are near; K is 0 where the tables have these very keys. `whole` (W,) uint64: the bits that
    are judged. `threshold` is the loosest for any length; `below` (L,) uint32 and `thresholds` (L +
    1,) int64: those by length, the plan's own last; `ratio` in per cent. Two sketches are near
    from `alike_mins` (5,) int64 parts of `ALIKE` on, by the relation of the documents, if
    `compares`; their first part has `bands` blocks of `band_values` values, with
    a table each behind those of the print. Of each key `asked` are asked, `asked_last` of them the
    last and the others the first, or all (0).
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


def tables_of(plan: Plan) -> Tables:
    """Return the tables that serve a plan."""
    own = [_mask(bit for first, end in key for bit in range(first, end)) for key in plan.keys]
    found_by = _finding(plan, own)
    return Tables(
        masks=_rows(found_by, plan.limbs),
        keys=_rows([] if found_by == own else own, plan.limbs),
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


def table_count(tables: Tables) -> int:
    """Return how many tables there are."""
    return len(tables.masks) + tables.bands


def to_limbs(number: int, limbs: int) -> NDArray[np.uint64]:
    """Return a print, given as a number, as `limbs` 64-bit limbs, low limb first."""
    return np.array([(number >> (64 * limb)) & _LIMB_MASK for limb in range(limbs)], np.uint64)


def _finding(plan: Plan, own: list[int]) -> list[int]:
    """Return the bits of each table that finds by the print."""
    if plan.asked or plan.bands:
        return own
    parts = list(dict.fromkeys(part for key in own for part in _parts(key, plan.radius + 1)))
    share = sum(
        0.5 ** part.bit_count() for part in parts
    )  # of all representatives, which a look-up is given
    return parts if share < 1 and len(parts) <= TABLES_MAX else [0]


def _parts(key: int, count: int) -> Iterator[int]:
    """Yield the bits of a key in `count` parts of nearly equal length; a part has no bits if there
    are too few.
    """
    bits = [bit for bit in range(key.bit_length()) if key >> bit & 1]
    for part in range(count):
        yield _mask(bits[len(bits) * part // count : len(bits) * (part + 1) // count])


def _mask(bits: Iterable[int]) -> int:
    return sum(1 << bit for bit in bits)


def _rows(masks: list[int], limbs: int) -> NDArray[np.uint64]:
    return np.array([to_limbs(mask, limbs) for mask in masks], np.uint64).reshape(-1, limbs)
