"""The second witness of a text beside its print: a sketch of `SKETCH_VALUES` values of one byte, and how two are compared.

A sketch is a MinHash: two sketches agree in a value with the probability that is the Jaccard similarity of the texts' runs
of three words (and in one of 256 by chance). How one is made is told in `fingerprinting.sketch`. A recipe that is not of
words has no sketch: its sketches have no values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SKETCH_VALUES: Final = 80
NOT_COMPARED: Final = 255
"""Stands for the number of equal values where two sketches were not compared."""
CROWD: Final = 32
"""So many candidates, the first in log order, are the crowd by which each of them is judged."""
CROWD_SCEPTICS: Final = 4
"""So many who share nothing are counted with the crowd: what two or three share is little evidence of a template."""


def agreeing(one: bytes, other: bytes) -> int:
    """Return in how many values two sketches of one recipe are equal.

    Raises:
        ValueError: they are not of one length.
    """
    return sum(mine == yours for mine, yours in zip(one, other, strict=True))


def similarity(one: bytes, other: bytes) -> float:
    """Return the share of equal values of two sketches of one recipe, 0 to 1; 0 if they have no values.

    Raises:
        ValueError: they are not of one length.
    """
    return agreeing(one, other) / len(one) if one or other else 0.0


def agreeing_min(similarity: int) -> int:
    """Return how many values of two sketches must be equal for so many per cent of similarity."""
    return -(-similarity * SKETCH_VALUES // 100)


def as_text(equal: int) -> str:
    """Return the similarity of two sketches with so many equal values as headers have it: two decimals, half a hundredth up."""
    share = (100 * equal + SKETCH_VALUES // 2) // SKETCH_VALUES
    return f"{share // 100}.{share % 100:02d}"


def share(equal: int) -> float | None:
    """Return the similarity of two sketches with so many equal values, 0 to 1; None if it is `NOT_COMPARED`."""
    return None if equal == NOT_COMPARED else equal / SKETCH_VALUES


def own_share(sketch: bytes, other: bytes, crowd: Sequence[bytes]) -> tuple[int, int]:
    """Return (what two sketches share and the crowd does not, all that the crowd does not share), in whole numbers.

    A value weighs the square of how many of the crowd, and of the `CROWD_SCEPTICS`, have another value there than `sketch`.

    Raises:
        ValueError: the sketches are not of one length.
    """
    others = len(crowd) + CROWD_SCEPTICS
    own = whole = 0
    for mine, yours, *theirs in zip(sketch, other, *crowd, strict=True):
        weight = (others - theirs.count(mine)) ** 2
        whole += weight
        own += weight * (mine == yours)
    return own, whole
