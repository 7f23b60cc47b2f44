"""Many sketches at once: `sketch.alike` and `sketch.own_share`, in columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.sketch import (
    ALIKE,
    CROWD_SCEPTICS,
    FIRST_WEIGHT,
    JUDGING_VALUES,
    JUDGING_WEIGHT,
    SKETCH_VALUES,
)


def alike_each(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how similar sketches (n, SKETCH_BYTES) are to others, of the same shape or one for all, in parts of `ALIKE`."""
    differing = one[..., SKETCH_VALUES:] ^ other[..., SKETCH_VALUES:]
    first = (one[..., :SKETCH_VALUES] == other[..., :SKETCH_VALUES]).sum(axis=-1)
    judging = ((differing & 15) == 0).sum(axis=-1) + ((differing >> 4) == 0).sum(axis=-1)
    alike: NDArray[np.int64] = FIRST_WEIGHT * first + JUDGING_WEIGHT * judging - JUDGING_VALUES
    return alike


def per_cents(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the same in whole per cents that are reached."""
    return np.maximum(100 * alike_each(one, other) // ALIKE, 0).astype(np.uint8)


def equal_values(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which values of both parts are equal in sketches (n, SKETCH_BYTES) and others, of that shape or one for all."""
    first = one[..., :SKETCH_VALUES] == other[..., :SKETCH_VALUES]
    differing = one[..., SKETCH_VALUES:] ^ other[..., SKETCH_VALUES:]
    judging = np.stack([(differing & 15) == 0, (differing >> 4) == 0], axis=-1).reshape(*differing.shape[:-1], JUDGING_VALUES)
    return np.concatenate([first, judging], axis=-1)


def own_shares(equal: NDArray[np.bool_], seen: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how much pairs share of all that the crowd does not, in whole per cents that are reached: `own_share`, in columns.

    `equal` (n, values): which values a pair has in common; `seen` (n, values): how many of `others` (n,) have the first one's.
    """
    most = others[:, None] + CROWD_SCEPTICS
    unlike = most - seen
    first = (FIRST_WEIGHT * unlike[:, :SKETCH_VALUES]) ** 2
    judging = np.minimum(FIRST_WEIGHT * most, JUDGING_WEIGHT * unlike[:, SKETCH_VALUES:]) ** 2
    whole = FIRST_WEIGHT * (first.sum(axis=1) + judging.sum(axis=1))
    own = FIRST_WEIGHT * (first * equal[:, :SKETCH_VALUES]).sum(axis=1) - judging.sum(axis=1)
    own += JUDGING_WEIGHT * (judging * equal[:, SKETCH_VALUES:]).sum(axis=1)
    found: NDArray[np.int64] = np.maximum(0, 100 * own // whole)
    return found
