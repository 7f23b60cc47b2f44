"""The second witness of a text beside its print: a sketch of `SKETCH_BYTES` bytes, and how two are
compared.

A sketch is a MinHash in two parts. In each value two sketches agree with the probability that is
the Jaccard similarity of the texts' runs of three words, and by chance. The first `SKETCH_VALUES`
values have a byte each: blocks of them find, all of them judge. The other `JUDGING_VALUES` have
half a byte each, the first of a byte in its low half, and only judge. How one is made is told in
`fingerprinting.sketch`. A recipe that is not of words has no sketch: its sketches have no bytes.

The similarity is the mean of what the parts say. Of `a` equal values of the first it is a / 80; of
`b` of the second, in which one in 16 is equal by chance, (b / 80 - 1 / 16) / (15 / 16). In whole
numbers that is 15 a + 16 b - 80, of 2,400: `ALIKE`.
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
"""Of values of half a byte one in this number is equal by chance."""
ALIKE: Final = FIRST_WEIGHT * (SKETCH_VALUES + JUDGING_VALUES)
"""What two equal sketches have of `alike`."""
NOT_COMPARED: Final = 255
"""Stands for the similarity in per cent where two sketches were not compared."""
SURE: Final = 85
"""From this similarity on, in per cent, two sketches decide without the prints."""


def alike_each(sketches: NDArray[np.uint8], others: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how similar sketches (n, SKETCH_BYTES) are to others, of the same shape or one for
    all, in parts of `ALIKE`.

    What is less alike than chance is below 0.
    """
    differing = sketches[..., SKETCH_VALUES:] ^ others[..., SKETCH_VALUES:]
    first = (sketches[..., :SKETCH_VALUES] == others[..., :SKETCH_VALUES]).sum(axis=-1)
    judging = ((differing & 15) == 0).sum(axis=-1) + ((differing >> 4) == 0).sum(axis=-1)
    alike: NDArray[np.int64] = FIRST_WEIGHT * first + JUDGING_WEIGHT * judging - JUDGING_VALUES
    return alike


def per_cents(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the same in whole per cents that are reached."""
    return np.maximum(100 * alike_each(first, second) // ALIKE, 0).astype(np.uint8)


def alike(first: bytes, second: bytes) -> int:
    """Return how similar two sketches of one recipe are, in parts of `ALIKE`.

    Raises:
        ValueError: they are not of one length.
    """
    firsts, seconds = _columns((first, second))
    return int(alike_each(firsts, seconds))


def similarity(first: bytes, second: bytes) -> float:
    """Return the similarity of two sketches of one recipe, 0 to 1; 0 if they have no values.

    Raises:
        ValueError: they are not of one length.
    """
    return max(0, alike(first, second)) / ALIKE if first or second else 0.0


def per_cent(first: bytes, second: bytes) -> int:
    """Return the similarity of two sketches of one recipe in whole per cents that are reached.

    Raises:
        ValueError: they are not of one length.
    """
    return max(0, 100 * alike(first, second) // ALIKE)


def alike_min(similarity: int) -> int:
    """Return how many parts of `ALIKE` are `similarity` per cent."""
    return -(-similarity * ALIKE // 100)


def as_text(similarity: int) -> str:
    """Return a similarity in per cent as headers have it: a share with two decimals."""
    return f"{similarity // 100}.{similarity % 100:02d}"


def _columns(sketches: Sequence[bytes]) -> list[NDArray[np.uint8]]:
    if len(set(map(len, sketches))) > 1:
        raise ValueError("sketches of several lengths are not of one recipe")
    return [np.frombuffer(sketch, np.uint8) for sketch in sketches]
