"""The similarity of many sketches at once: `sketch.alike`, in columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.sketch import ALIKE, FIRST_WEIGHT, JUDGING_VALUES, JUDGING_WEIGHT, SKETCH_VALUES


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
