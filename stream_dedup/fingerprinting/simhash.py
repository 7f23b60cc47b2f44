"""Compute the bits of a fingerprint from hashed features: weights, sums and signs.

Invariants, all frozen by golden vectors:

- A bit is 1 if and only if its sum is greater than zero: a tie gives 0, and a text without features has the fingerprint 0
  (such a text is below every floor, so its fingerprint is never compared).
- Weights are integers, so sums are exact and a fingerprint is equal on every platform. `WEIGHT_ONE` is the weight 1. A
  feature that occurs n times weighs `log_count_weight(n)`: `round(256 * (1 + ln n))`, with n counted up to
  `COUNT_MAX`. The weights of a group of features may be scaled by an integer.
- The two halves of a fingerprint come from two mixes of the same 64-bit hash.

Sources: Charikar, "Similarity Estimation Techniques from Rounding Algorithms" (STOC 2002); Manku,
Jain, Das Sarma, "Detecting Near-Duplicates for Web Crawling" (WWW 2007); Harley and Seal's counter
of bits, in Warren, "Hacker's Delight" (2nd edition, 5-2); Muła, Kurz, Lemire, "Faster Population
Counts Using AVX2 Instructions" (2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting.hashes import mix
from stream_dedup.kernels.compiled import allocating_kernel, inlined

WIDTH_MAX: Final = 128
WEIGHT_ONE = 256
COUNT_MAX = 1024
# Weights are added in lanes of 32 bits while their total fits, then flushed to sums of 64 bits.
_LANE_LIMIT = (1 << 32) - 1
_FOLD = 16
_COUNT_ALIKE = 8  # features of counts up to this are frequent enough to be added together


def log_count_weight(count: int) -> int:
    """Return the weight of a feature that occurs `count` times in a text."""
    return round(WEIGHT_ONE * (1 + math.log(min(count, COUNT_MAX))))


# Before rounding, every value is at least 1e-4 away from a half, so the last bit of a platform's
# logarithm does not matter.
WEIGHTS: NDArray[np.int64] = np.array(
    [0, *map(log_count_weight, range(1, COUNT_MAX + 1))], np.int64
)
WEIGHTS.setflags(write=False)


@inlined
def _add_lanes(low: Any, high: Any, weight: Any, lanes: Any) -> None:
    """Add a weight to the lanes of the 1 bits; the loop over each quarter is vectorised."""
    first_quarter = np.uint32(low)
    second_quarter = np.uint32(low >> np.uint64(32))
    third_quarter = np.uint32(high)
    fourth_quarter = np.uint32(high >> np.uint64(32))
    for bit in range(32):
        lanes[bit] += weight & (np.uint32(0) - ((first_quarter >> np.uint32(bit)) & np.uint32(1)))
        lanes[32 + bit] += weight & (
            np.uint32(0) - ((second_quarter >> np.uint32(bit)) & np.uint32(1))
        )
        lanes[64 + bit] += weight & (
            np.uint32(0) - ((third_quarter >> np.uint32(bit)) & np.uint32(1))
        )
        lanes[96 + bit] += weight & (
            np.uint32(0) - ((fourth_quarter >> np.uint32(bit)) & np.uint32(1))
        )


@inlined
def _flush(lanes: Any, scale: Any, ones: Any) -> None:
    for lane in range(128):
        ones[lane] += np.int64(lanes[lane]) * scale
        lanes[lane] = 0


@inlined
def _add_weighed(low: Any, high: Any, weight: Any, lanes: Any, pending: Any, ones: Any) -> Any:
    """Add a feature's weight to the sums of its 1 bits; return the total that is pending in
    `lanes`.
    """
    if pending + weight > _LANE_LIMIT:
        _flush(lanes, np.int64(1), ones)
        pending = np.int64(0)
    if weight > _LANE_LIMIT:
        for bit in range(64):
            ones[bit] += weight * np.int64((low >> np.uint64(bit)) & np.uint64(1))
            ones[64 + bit] += weight * np.int64((high >> np.uint64(bit)) & np.uint64(1))
        return pending
    _add_lanes(low, high, np.uint32(weight), lanes)
    return pending + weight


@inlined
def _carry_save(a: Any, b: Any, c: Any) -> Any:
    """Add three bits in each place; return the carries and the sums."""
    half = a ^ b
    return (a & b) | (half & c), half ^ c


@inlined
def _fold_eight(words: Any, ones: Any, twos: Any, fours: Any) -> Any:
    """Add eight words to bitwise counters of ones, twos and fours; return the carry to eights, and
    the counters.
    """
    two_a, ones = _carry_save(ones, words[0], words[1])
    two_b, ones = _carry_save(ones, words[2], words[3])
    four_a, twos = _carry_save(twos, two_a, two_b)
    two_a, ones = _carry_save(ones, words[4], words[5])
    two_b, ones = _carry_save(ones, words[6], words[7])
    four_b, twos = _carry_save(twos, two_a, two_b)
    eight_carried, fours = _carry_save(fours, four_a, four_b)
    return eight_carried, ones, twos, fours


@inlined
def _eight_at(values: Any, first: Any, high_secret: Any) -> Any:
    """Return eight words from index `first`, and their mixes for the high half."""
    a, b, c, d = values[first], values[first + 1], values[first + 2], values[first + 3]
    e, f, g, h = values[first + 4], values[first + 5], values[first + 6], values[first + 7]
    above = (
        mix(a + high_secret),
        mix(b + high_secret),
        mix(c + high_secret),
        mix(d + high_secret),
        mix(e + high_secret),
        mix(f + high_secret),
        mix(g + high_secret),
        mix(h + high_secret),
    )
    return (a, b, c, d, e, f, g, h), above


@inlined
def _add_alike(
    values: Any, features: Any, high_secret: Any, weight: Any, lanes: Any, ones: Any
) -> None:
    """Add features of one weight, a multiple of sixteen of them, by counting bits within words.

    Each step of `_fold_eight` does in a word what `_add_lanes` does in 64 lanes; only every
    sixteenth step needs the lanes. `lanes` are 128 zeros, before and after.
    """
    zero = np.uint64(0)
    low_one = low_two = low_four = low_eight = zero
    high_one = high_two = high_four = high_eight = zero
    for first in range(0, features, _FOLD):
        below, above = _eight_at(values, first, high_secret)
        low_a, low_one, low_two, low_four = _fold_eight(below, low_one, low_two, low_four)
        high_a, high_one, high_two, high_four = _fold_eight(above, high_one, high_two, high_four)
        below, above = _eight_at(values, first + 8, high_secret)
        low_b, low_one, low_two, low_four = _fold_eight(below, low_one, low_two, low_four)
        high_b, high_one, high_two, high_four = _fold_eight(above, high_one, high_two, high_four)
        low_sixteen, low_eight = _carry_save(low_eight, low_a, low_b)
        high_sixteen, high_eight = _carry_save(high_eight, high_a, high_b)
        _add_lanes(low_sixteen, high_sixteen, np.uint32(_FOLD), lanes)
    _add_lanes(low_one, high_one, np.uint32(1), lanes)
    _add_lanes(low_two, high_two, np.uint32(2), lanes)
    _add_lanes(low_four, high_four, np.uint32(4), lanes)
    _add_lanes(low_eight, high_eight, np.uint32(8), lanes)
    _flush(lanes, weight, ones)


@inlined
def _move_alike(values: Any, counts: Any, features: Any, count: Any, alike: Any) -> Any:
    """Move the features that occur `count` times to `alike`, and close the gaps; return the numbers
    of moved and of remaining features.

    Without branches, as in `count_one`.
    """
    taken_count = np.int64(0)
    rest_count = np.int64(0)
    for feature in range(features):
        value = values[feature]
        counted = counts[feature]
        is_taken = np.int64(counted == count)
        alike[taken_count] = value
        values[rest_count] = value
        counts[rest_count] = counted
        taken_count += is_taken
        rest_count += 1 - is_taken
    return taken_count, rest_count


@inlined
def add_features(
    table: Any,
    distinct: Any,
    gathered: Any,
    scale: Any,
    weights: Any,
    high_secret: Any,
    ones: Any,
) -> Any:
    """Add the weights of features to the sums of their 1 bits; return their total weight.

    `table`: keys, counts and the slots in use. `gathered`: buffers for the values and counts of all
    features, for the values of one weight, and (2, 128) zeros, which are zeros again afterwards.
    `high_secret` derives the high half of a feature's bits.

    The sums of 1 bits and the total weight contain the same information as sums of plus and minus,
    for half the work. In running text most features occur once or a few times, so nearly all can be
    added with others of the same weight.
    """
    keys, slot_counts, order = table
    values, counts, alike, both_lanes = gathered
    lanes, alike_lanes = both_lanes[0], both_lanes[1]
    for feature in range(distinct):
        slot = order[feature]
        values[feature] = keys[slot]
        counts[feature] = slot_counts[slot]
    pending = np.int64(0)
    total = np.int64(0)
    rest_count = np.int64(distinct)
    count = np.int64(1)
    while count <= _COUNT_ALIKE and rest_count >= _FOLD:
        taken_count, rest_count = _move_alike(values, counts, rest_count, count, alike)
        weight = weights[count] * scale
        total += weight * taken_count
        folded = taken_count - taken_count % _FOLD
        if folded > 0:
            _add_alike(alike, folded, high_secret, weight, alike_lanes, ones)
        for feature in range(folded, taken_count):
            low = alike[feature]
            pending = _add_weighed(low, mix(low + high_secret), weight, lanes, pending, ones)
        count += 1
    for feature in range(rest_count):
        low = values[feature]
        counted = np.int64(counts[feature])
        weight = weights[min(counted, COUNT_MAX)] * scale
        total += weight
        pending = _add_weighed(low, mix(low + high_secret), weight, lanes, pending, ones)
    _flush(lanes, np.int64(1), ones)
    return total


@inlined
def sign(ones: Any, total: Any, bits: Any, out: Any) -> None:
    """Write the fingerprint: a bit is 1 if the features with a 1 there weigh more than half."""
    for word in range(len(out)):
        value = np.uint64(0)
        for bit in range(min(64, bits - 64 * word)):
            if 2 * ones[64 * word + bit] > total:
                value |= np.uint64(1) << np.uint64(bit)
        out[word] = value


@allocating_kernel
def sum_hashes(hashes: Any, weights: Any, bits: Any, out: Any) -> None:
    """Write the fingerprint of a text to `out` (bits / 64 rounded up,) from its hashed features.

    `hashes`: (m, 2), as `in_halves` returns them; `weights`: (m,), integers.
    """
    ones = np.zeros(128, np.int64)
    lanes = np.zeros(128, np.uint32)
    total = np.int64(0)
    pending = np.int64(0)
    for feature in range(len(weights)):
        total += weights[feature]
        pending = _add_weighed(
            hashes[feature, 0], hashes[feature, 1], weights[feature], lanes, pending, ones
        )
    _flush(lanes, np.int64(1), ones)
    sign(ones, total, bits, out)


def in_halves(hashes: Iterable[int]) -> NDArray[np.uint64]:
    """Return hashes of up to 128 bits as an array, (m, 2), low half first."""
    halves = [(value & 0xFFFF_FFFF_FFFF_FFFF, value >> 64) for value in hashes]
    return np.array(halves, np.uint64).reshape(-1, 2)
