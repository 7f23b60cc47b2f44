"""Compute the bits of vectors with random hyperplanes: a bit says on which side of a
plane the vector is.

Invariants: the planes depend only on the secrets, which are derived from the recipe's key, and are
never stored; a block of their dimensions is computed when it is needed, so a vector may have any
number of dimensions; a bit is 1 if and only if its sum is greater than zero; sums are added up in
the order of the dimensions, in 64-bit floating point and without contraction, so a fingerprint is
equal on every platform; multiplying a vector by a positive power of two changes no bit.

A plane's coordinates are normally distributed, in `LEVELS` equally probable steps: integers, so
they do not depend on a platform's logarithm. Two vectors at an angle a differ in a bit with
probability a / pi, which the hashed features of `simhash` approximate with coordinates of plus and
minus one.

Sources: Charikar, "Similarity Estimation Techniques from Rounding Algorithms" (STOC 2002), section
3; Goemans and Williamson, "Improved Approximation Algorithms for Maximum Cut" (JACM 1995), lemma
3.2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import InputError
from stream_dedup.fingerprinting.hashes import mix
from stream_dedup.kernels.compiled import allocating_kernel, inlined

LEVEL_BITS: Final = 12
LEVELS: Final = 1 << LEVEL_BITS
_STEP: Final = 1 << 16
_BLOCK: Final = 64
_PER_HASH: Final = 5  # levels in one hash of 64 bits
_LARGEST: Final = 1e150  # the maximum of a number, so that no sum overflows

Vector = NDArray[np.float64]


def normal_levels() -> NDArray[np.int32]:
    """Return the possible coordinates of planes, (4096,): the middle of each equally probable step,
    times 2^16.
    """
    normal = NormalDist()
    half = [
        round(_STEP * normal.inv_cdf((level + 0.5) / LEVELS))
        for level in range(LEVELS // 2, LEVELS)
    ]
    levels = np.array([-value for value in reversed(half)] + half, np.int32)
    levels.setflags(write=False)
    return levels


NORMAL_LEVELS: Final = normal_levels()


def derive_plane_secrets(key: bytes) -> NDArray[np.uint64]:
    """Return the secrets of the planes, (2,): an offset and an odd multiplier of the dimension's
    number.
    """
    derived = hashlib.blake2b(bytes(8), digest_size=16, key=key, person=b"plane secrets").digest()
    secrets = np.frombuffer(derived, "<u8").astype(np.uint64)
    secrets[1] |= np.uint64(1)
    return secrets


@inlined
def coordinates(state: Any, levels: Any, out: Any) -> None:
    """Write the coordinates of 128 planes in one dimension."""
    for first in range(0, 128, _PER_HASH):
        state += np.uint64(0x9E3779B97F4A7C15)
        value = mix(state)
        for plane in range(first, min(first + _PER_HASH, 128)):
            out[plane] = levels[value & np.uint64(LEVELS - 1)]
            value >>= np.uint64(LEVEL_BITS)


@allocating_kernel
def project_vectors(
    numbers: Any, bounds: Any, secrets: Any, levels: Any, bits: Any, prints: Any
) -> None:
    """Fill `prints` (n, bits / 64 rounded up) from concatenated vectors `numbers`; `bounds` (n +
    1,): the start of each.
    """
    longest = np.int64(0)
    for vector in range(len(bounds) - 1):
        longest = max(longest, bounds[vector + 1] - bounds[vector])
    sums = np.zeros((len(bounds) - 1, 128), np.float64)
    block = np.empty((_BLOCK, 128), np.float64)
    for first in range(0, longest, _BLOCK):
        for dimension in range(_BLOCK):
            coordinates(
                mix(np.uint64(first + dimension) * secrets[1] + secrets[0]),
                levels,
                block[dimension],
            )
        for vector in range(len(bounds) - 1):
            begin = bounds[vector] + first
            total = sums[vector]
            for dimension in range(min(_BLOCK, bounds[vector + 1] - begin)):
                number = numbers[begin + dimension]
                plane = block[dimension]
                for bit in range(128):
                    total[bit] += number * plane[bit]
    for vector in range(len(bounds) - 1):
        _signs(sums[vector], bits, prints[vector])


@inlined
def _signs(sums: Any, bits: Any, out: Any) -> None:
    for word in range(len(out)):
        value = np.uint64(0)
        for bit in range(min(64, bits - 64 * word)):
            if sums[64 * word + bit] > 0.0:
                value |= np.uint64(1) << np.uint64(bit)
        out[word] = value


def as_vector(values: Sequence[float] | NDArray[np.floating[Any]]) -> Vector:
    """Return numbers as a vector, with every zero positive.

    Raises:
        InputError: the values are not a row of finite numbers of at most 1e150.
    """
    try:
        vector = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            "A vector contains something that is not a number; give a list of numbers."
        ) from error
    if vector.ndim != 1:
        raise InputError(
            f"A vector is a flat list of numbers, but this list is nested {vector.ndim} levels "
            "deep."
        )
    if not bool(np.all(np.abs(vector) <= _LARGEST)):
        raise InputError(
            "A vector contains null, or a number that is not finite or greater than 1e150; give "
            "finite numbers."
        )
    return vector + 0.0
