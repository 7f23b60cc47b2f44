"""Features -> bits: weights, sums and signs.

Invariants, all frozen by golden vectors:

- A bit of the print is 1 if and only if its sum is greater than zero: a tie gives 0, and a text without features gives
  the print 0 (such a text is below every floor, so no print of it is ever compared).
- Weights are integers, so sums are exact and a print is equal on every platform. `WEIGHT_ONE` stands for one. Under log
  counts a feature occurring n times weighs `log_count_weight(n)`: `round(256 * (1 + ln n))`, with n
  counted up to `COUNT_MAX`; under counts 256 n; under ones 256. A group of features may weigh a
  whole number of times as much.
- The two halves of a print come from two mixes of the same 64-bit hash.

Sources: Charikar, "Similarity Estimation Techniques from Rounding Algorithms" (STOC 2002); Manku,
Jain, Das Sarma, "Detecting Near-Duplicates for Web Crawling" (WWW 2007); Harley and Seal's counter
of bits, in Warren, "Hacker's Delight" (2nd edition, 5-2); Muła, Kurz, Lemire, "Faster Population
Counts Using AVX2 Instructions" (2018).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting.hashes import mix
from stream_dedup.kernels.compiled import allocating_kernel, inlined

WIDTH_MAX: Final = 128
WEIGHT_ONE = 256
COUNT_MAX = 1024
# Weights are gathered in 32 bits while their total fits, then added to sums of 64.
_LANE_LIMIT = (1 << 32) - 1
_FOLD = 16
_COUNT_ALIKE = 8  # counts up to this are frequent enough to look for those of each


def log_count_weight(count: int) -> int:
    """Return the weight of a feature that occurs `count` times in a text."""
    return round(WEIGHT_ONE * (1 + math.log(min(count, COUNT_MAX))))


# No value before rounding comes nearer to a half than 1e-4, so the last bit of a platform's
# logarithm changes nothing.
WEIGHTS: NDArray[np.int64] = np.array(
    [0, *map(log_count_weight, range(1, COUNT_MAX + 1))], np.int64
)
WEIGHTS.setflags(write=False)


def count_weights(name: str) -> tuple[NDArray[np.int64], int]:
    """Return the weights of counts up to `COUNT_MAX`, (1025,), and how much each further occurrence
    adds.
    """
    if name == "log":
        return WEIGHTS, 0
    counts = (
        np.arange(COUNT_MAX + 1, dtype=np.int64)
        if name == "count"
        else np.ones(COUNT_MAX + 1, np.int64)
    )
    table = counts * WEIGHT_ONE
    table.setflags(write=False)  # as `WEIGHTS` is: to numba a writable array is another type
    return table, WEIGHT_ONE if name == "count" else 0


@inlined
def _add_lanes(low: Any, high: Any, weight: Any, lanes: Any) -> None:
    """Add a weight to the lanes of the 1 bits; the loop over each quarter becomes vector
    instructions.
    """
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
    """Add one feature's weight to the sums of its 1 bits; return the total that waits in
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
    """Add three bits in each place: return the carries and the sums."""
    half = a ^ b
    return (a & b) | (half & c), half ^ c


@inlined
def _fold_eight(eight: Any, one: Any, two: Any, four: Any) -> Any:
    """Add eight words to counters of one, two and four; return what is carried to eight, and the
    counters.
    """
    two_a, one = _carry_save(one, eight[0], eight[1])
    two_b, one = _carry_save(one, eight[2], eight[3])
    four_a, two = _carry_save(two, two_a, two_b)
    two_a, one = _carry_save(one, eight[4], eight[5])
    two_b, one = _carry_save(one, eight[6], eight[7])
    four_b, two = _carry_save(two, two_a, two_b)
    eight_carried, four = _carry_save(four, four_a, four_b)
    return eight_carried, one, two, four


@inlined
def _eight_at(values: Any, first: Any, high: Any) -> Any:
    """Return eight words from `first` on, and what they are in the high half."""
    a, b, c, d = values[first], values[first + 1], values[first + 2], values[first + 3]
    e, f, g, h = values[first + 4], values[first + 5], values[first + 6], values[first + 7]
    above = (
        mix(a + high),
        mix(b + high),
        mix(c + high),
        mix(d + high),
        mix(e + high),
        mix(f + high),
        mix(g + high),
        mix(h + high),
    )
    return (a, b, c, d, e, f, g, h), above


@inlined
def _add_alike(values: Any, features: Any, high: Any, weight: Any, lanes: Any, ones: Any) -> None:
    """Add features of one weight, a whole number of sixteens of them: bits are counted in the words
    themselves.

    Each step of `_fold_eight` does in a word what `_add_lanes` does in 64 lanes; only every
    sixteenth goes there. `lanes` are 128 zeros, before and after.
    """
    zero = np.uint64(0)
    low_one = low_two = low_four = low_eight = zero
    high_one = high_two = high_four = high_eight = zero
    for first in range(0, features, _FOLD):
        below, above = _eight_at(values, first, high)
        low_a, low_one, low_two, low_four = _fold_eight(below, low_one, low_two, low_four)
        high_a, high_one, high_two, high_four = _fold_eight(above, high_one, high_two, high_four)
        below, above = _eight_at(values, first + 8, high)
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
def _take(values: Any, counts: Any, features: Any, count: Any, alike: Any) -> Any:
    """Move the features that occur `count` times to `alike`, and close the gaps; return how many
    are moved, and are left.

    As in `count_one`, nothing is branched on.
    """
    taken = np.int64(0)
    left = np.int64(0)
    for feature in range(features):
        value = values[feature]
        counted = counts[feature]
        is_taken = np.int64(counted == count)
        alike[taken] = value
        values[left] = value
        counts[left] = counted
        taken += is_taken
        left += 1 - is_taken
    return taken, left


@inlined
def add_features(
    table: Any,
    distinct: Any,
    gathered: Any,
    scale: Any,
    weights: Any,
    beyond: Any,
    high: Any,
    ones: Any,
) -> Any:
    """Add the weights of features to the sums of their 1 bits; return the weight of all.

    `table`: keys, counts and the slots in use; `gathered`: room for as many values, counts and
    values again, and (2, 128) zeros, which they are again afterwards.

    The sums of 1 bits and the whole weight say as much as sums of plus and minus, at half the work.
    In running text most features occur once or a few times, so nearly all can be added with others
    of the same weight.
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
    left = np.int64(distinct)
    count = np.int64(1)
    while count <= _COUNT_ALIKE and left >= _FOLD:
        taken, left = _take(values, counts, left, count, alike)
        weight = weights[count] * scale
        total += weight * taken
        folded = taken - taken % _FOLD
        if folded > 0:
            _add_alike(alike, folded, high, weight, alike_lanes, ones)
        for feature in range(folded, taken):
            low = alike[feature]
            pending = _add_weighed(low, mix(low + high), weight, lanes, pending, ones)
        count += 1
    for feature in range(left):
        low = values[feature]
        counted = np.int64(counts[feature])
        weight = (weights[min(counted, COUNT_MAX)] + beyond * max(counted - COUNT_MAX, 0)) * scale
        total += weight
        pending = _add_weighed(low, mix(low + high), weight, lanes, pending, ones)
    _flush(lanes, np.int64(1), ones)
    return total


@inlined
def sign(ones: Any, total: Any, bits: Any, out: Any) -> None:
    """Write the print: the bits of which the features with a 1 weigh more than half."""
    for word in range(len(out)):
        value = np.uint64(0)
        for bit in range(min(64, bits - 64 * word)):
            if 2 * ones[64 * word + bit] > total:
                value |= np.uint64(1) << np.uint64(bit)
        out[word] = value


@allocating_kernel
def sum_hashes(hashes: Any, weights: Any, bounds: Any, bits: Any, prints: Any) -> None:
    """Make the prints of features that are hashed already.

    `hashes`: (m, 2), low half first; `weights`: (m,), whole numbers; `bounds`: (n + 1,), where each
    text's features begin. Fills `prints` (n, bits / 64 rounded up).
    """
    ones = np.empty(128, np.int64)
    lanes = np.zeros(128, np.uint32)
    for text in range(len(bounds) - 1):
        ones[:] = 0
        total = np.int64(0)
        pending = np.int64(0)
        for feature in range(bounds[text], bounds[text + 1]):
            total += weights[feature]
            pending = _add_weighed(
                hashes[feature, 0], hashes[feature, 1], weights[feature], lanes, pending, ones
            )
        _flush(lanes, np.int64(1), ones)
        sign(ones, total, bits, prints[text])
