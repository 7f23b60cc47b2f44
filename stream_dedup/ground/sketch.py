"""The second witness of a text beside its print: a sketch of `SKETCH_BYTES` bytes, and how two are compared.

A sketch is a MinHash in two parts. In each value two sketches agree with the probability that is the Jaccard similarity of the
texts' runs of three words, and by chance. The first `SKETCH_VALUES` values have a byte each: blocks of them find, all of them
judge. The other `JUDGING_VALUES` have half a byte each, the first of a byte in its low half, and only judge. How one is made is
told in `fingerprinting.sketch`. A recipe that is not of words has no sketch: its sketches have no bytes.

The similarity is the mean of what the parts say. Of `a` equal values of the first it is a / 80; of `b` of the second, in which
one in 16 is equal by chance, (b / 80 - 1 / 16) / (15 / 16). In whole numbers that is 15 a + 16 b - 80, of 2,400: `ALIKE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
"""This number of candidates, the first in log order, is the crowd by which each of them is judged."""
CROWD_SCEPTICS: Final = 4
"""This number of strangers is counted with the crowd: what two or three share is little evidence of a template."""


def values_of(sketch: bytes) -> list[int]:
    """Return the values of both parts of a sketch."""
    values = list(sketch[:SKETCH_VALUES])
    for byte in sketch[SKETCH_VALUES:]:
        values += (byte & 15, byte >> 4)
    return values


def alike(one: bytes, other: bytes) -> int:
    """Return how similar two sketches of one recipe are, in parts of `ALIKE`; what is less alike than chance is below 0.

    Raises:
        ValueError: they are not of one length.
    """
    equal = [mine == yours for mine, yours in zip(values_of(one), values_of(other), strict=True)]
    first, judging = sum(equal[:SKETCH_VALUES]), sum(equal[SKETCH_VALUES:])
    return FIRST_WEIGHT * first + JUDGING_WEIGHT * judging - JUDGING_VALUES


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


def share(similarity: int) -> float | None:
    """Return a similarity in per cent as a share, 0 to 1; None if it is `NOT_COMPARED`."""
    return None if similarity == NOT_COMPARED else similarity / 100


def own_share(sketch: bytes, other: bytes, crowd: Sequence[bytes]) -> int:
    """Return how much two sketches share of all that the crowd does not, in whole per cents that are reached.

    A value weighs the square of the share of the crowd, and of the `CROWD_SCEPTICS`, that has another value there than
    `sketch`. In the second part chance is taken out, of that share and of what is equal, as in `alike`.

    Raises:
        ValueError: the sketches are not of one length.
    """
    others = len(crowd) + CROWD_SCEPTICS
    own = whole = 0
    values = zip(values_of(sketch), values_of(other), *map(values_of, crowd), strict=True)
    for at, (mine, yours, *theirs) in enumerate(values):
        unlike = others - theirs.count(mine)
        if at < SKETCH_VALUES:
            weight, equal, chance = (FIRST_WEIGHT * unlike) ** 2, FIRST_WEIGHT, 0
        else:
            weight, equal, chance = min(FIRST_WEIGHT * others, JUDGING_WEIGHT * unlike) ** 2, JUDGING_WEIGHT, 1
        whole += FIRST_WEIGHT * weight
        own += weight * (equal * (mine == yours) - chance)
    return max(0, 100 * own // whole)


def apart_in_words(name: str, similarity: float, others: int, share: float) -> str:
    """Return what is said of a document that is alike as the others of its crowd are; shares from 0 to 1."""
    return f"{name} is {similarity:.2f} alike; of what {others} others do not share, {share:.2f}: not a copy."
