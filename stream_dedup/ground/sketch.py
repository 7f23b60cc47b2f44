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
CROWD: Final = 32
"""This number of candidates, the first in log order, is the crowd by which each of them is
judged."""
CROWD_SCEPTICS: Final = 4
"""This number of strangers is counted with the crowd: what two or three share is little evidence of
a template."""


def alike_each(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how similar sketches (n, SKETCH_BYTES) are to others, of the same shape or one for
    all, in parts of `ALIKE`.

    What is less alike than chance is below 0.
    """
    differing = one[..., SKETCH_VALUES:] ^ other[..., SKETCH_VALUES:]
    first = (one[..., :SKETCH_VALUES] == other[..., :SKETCH_VALUES]).sum(axis=-1)
    judging = ((differing & 15) == 0).sum(axis=-1) + ((differing >> 4) == 0).sum(axis=-1)
    alike: NDArray[np.int64] = FIRST_WEIGHT * first + JUDGING_WEIGHT * judging - JUDGING_VALUES
    return alike


def per_cents(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the same in whole per cents that are reached."""
    return np.maximum(100 * alike_each(one, other) // ALIKE, 0).astype(np.uint8)


def equal_values(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which values of both parts are equal in sketches (n, SKETCH_BYTES) and others, of that
    shape or one for all.
    """
    first = one[..., :SKETCH_VALUES] == other[..., :SKETCH_VALUES]
    differing = one[..., SKETCH_VALUES:] ^ other[..., SKETCH_VALUES:]
    judging = np.stack([(differing & 15) == 0, (differing >> 4) == 0], axis=-1).reshape(
        *differing.shape[:-1], JUDGING_VALUES
    )
    return np.concatenate([first, judging], axis=-1)


def own_shares(
    equal: NDArray[np.bool_], seen: NDArray[np.int64], others: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how much pairs share of all that the crowd does not, in whole per cents that are
    reached, (n,).

    `equal` (n, values): which values a pair has in common; `seen` (n, values): how many of `others`
    (n,) have the first one's. A value weighs the square of the share of the crowd, and of the
    `CROWD_SCEPTICS`, that has another value there than the first one. In the second part chance is
    taken out, of that share and of what is equal, as in `alike_each`.
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


def alike(one: bytes, other: bytes) -> int:
    """Return how similar two sketches of one recipe are, in parts of `ALIKE`.

    Raises:
        ValueError: they are not of one length.
    """
    ones, others = _columns((one, other))
    return int(alike_each(ones, others))


def similarity(one: bytes, other: bytes) -> float:
    """Return the similarity of two sketches of one recipe, 0 to 1; 0 if they have no values.

    Raises:
        ValueError: they are not of one length.
    """
    return max(0, alike(one, other)) / ALIKE if one or other else 0.0


def per_cent(one: bytes, other: bytes) -> int:
    """Return the similarity of two sketches of one recipe in whole per cents that are reached.

    Raises:
        ValueError: they are not of one length.
    """
    return max(0, 100 * alike(one, other) // ALIKE)


def alike_min(similarity: int) -> int:
    """Return how many parts of `ALIKE` are `similarity` per cent."""
    return -(-similarity * ALIKE // 100)


def as_text(similarity: int) -> str:
    """Return a similarity in per cent as headers have it: a share with two decimals."""
    return f"{similarity // 100}.{similarity % 100:02d}"


def own_share(sketch: bytes, other: bytes, crowd: Sequence[bytes]) -> int:
    """Return `own_shares` of one pair.

    Raises:
        ValueError: the sketches are not of one length.
    """
    own, *others = _columns((sketch, other, *crowd))
    equal = equal_values(np.array(others), own)
    return int(own_shares(equal[:1], equal[1:].sum(axis=0)[None], np.array([len(crowd)]))[0])


def apart_in_words(name: str, similarity: float, others: int, share: float) -> str:
    """Return what is said of a document that is alike as the others of its crowd are; shares from 0
    to 1.
    """
    return f"{name} is {similarity:.2f} alike; {beyond_crowd(others)}, {share:.2f}: not a copy."


def beyond_crowd(others: int) -> str:
    """Return a share of which document parts is told where a crowd of that size is left out."""
    return f"of what {others:,} {'other does' if others == 1 else 'others do'} not share"


def _columns(sketches: Sequence[bytes]) -> list[NDArray[np.uint8]]:
    if len(set(map(len, sketches))) > 1:
        raise ValueError("sketches of several lengths are not of one recipe")
    return [np.frombuffer(sketch, np.uint8) for sketch in sketches]
