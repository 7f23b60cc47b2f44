"""Compare the sketches of two texts; a sketch has `SKETCH_BYTES` bytes and complements the
fingerprint.

A sketch is a MinHash in two parts. Each value of two sketches is equal with a probability of the
Jaccard similarity of the texts' runs of three words, plus equality by chance. The first
`SKETCH_VALUES` values have one byte each: equal blocks of them find candidates, and all of them
count for the similarity. The other `JUDGING_VALUES` values have half a byte each, the first of a
byte in its low half, and only count for the similarity. `fingerprinting.sketch` makes sketches. A
recipe without words makes no sketches: they have 0 bytes.

The similarity is the mean of the estimates of both parts: a / 80 for `a` equal values of the first
part, and (b / 80 - 1 / 16) / (15 / 16) for `b` equal values of the second, where one in 16 is equal
by chance. In whole numbers the sum is 15 a + 16 b - 80, of at most 2,400 (`ALIKE`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

SKETCH_VALUES: Final = 80
JUDGING_VALUES: Final = 80
SKETCH_BYTES: Final = SKETCH_VALUES + JUDGING_VALUES // 2
FIRST_WEIGHT: Final = 15
JUDGING_WEIGHT: Final = 16
"""Weight of a value of half a byte, of which one in this number is equal by chance."""
ALIKE: Final = FIRST_WEIGHT * (SKETCH_VALUES + JUDGING_VALUES)
"""Result of `alike` for two equal sketches."""
NOT_COMPARED: Final = 255
"""Written instead of the similarity in per cent if two sketches were not compared."""
SURE: Final = 85
"""Similarity in per cent from which the sketches alone decide, without the fingerprints."""


def alike_each(sketches: NDArray[np.uint8], others: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the similarities of sketches (n, SKETCH_BYTES) and `others` (n, SKETCH_BYTES) or
    (SKETCH_BYTES,), in parts of `ALIKE`, (n,).

    A similarity below that of chance is negative.
    """
    differing = sketches[..., SKETCH_VALUES:] ^ others[..., SKETCH_VALUES:]
    first = (sketches[..., :SKETCH_VALUES] == others[..., :SKETCH_VALUES]).sum(axis=-1)
    judging = ((differing & 15) == 0).sum(axis=-1) + ((differing >> 4) == 0).sum(axis=-1)
    alike: NDArray[np.int64] = FIRST_WEIGHT * first + JUDGING_WEIGHT * judging - JUDGING_VALUES
    return alike


def per_cents(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the similarities of sketches, as `alike_each`, in per cent, rounded down, (n,)."""
    return np.maximum(100 * alike_each(first, second) // ALIKE, 0).astype(np.uint8)


def alike(first: bytes, second: bytes) -> int:
    """Return the similarity of two sketches of one recipe, in parts of `ALIKE`.

    Raises:
        ValueError: the sketches have different lengths.
    """
    firsts, seconds = _columns((first, second))
    return int(alike_each(firsts, seconds))


def similarity(first: bytes, second: bytes) -> float:
    """Return the similarity of two sketches of one recipe, 0 to 1; 0 if both are empty.

    Raises:
        ValueError: the sketches have different lengths.
    """
    return max(0, alike(first, second)) / ALIKE if first or second else 0.0


def per_cent(first: bytes, second: bytes) -> int:
    """Return the similarity of two sketches of one recipe in per cent, rounded down.

    Raises:
        ValueError: the sketches have different lengths.
    """
    return max(0, 100 * alike(first, second) // ALIKE)


def alike_min(similarity: int) -> int:
    """Return the number of parts of `ALIKE` that a similarity in per cent requires."""
    return -(-similarity * ALIKE // 100)


def as_text(similarity: int) -> str:
    """Return a similarity in per cent as headers contain it: a share with two decimals."""
    return f"{similarity // 100}.{similarity % 100:02d}"


def _columns(sketches: Sequence[bytes]) -> list[NDArray[np.uint8]]:
    if len(set(map(len, sketches))) > 1:
        raise ValueError("the sketches have different lengths, so they have different recipes")
    return [np.frombuffer(sketch, np.uint8) for sketch in sketches]
