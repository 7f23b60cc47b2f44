"""The compiled half of `scan`: a plain scan for plans of prints alone, row by row, whatever the plan."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stream_dedup.machine.compiled import allocating_kernel, kernel, popcount

_ROWS_AT_ONCE: Final = 2048  # 32 kB of prints: they stay in the cache while all that is asked passes over them
int64: Any = np.int64
uint64: Any = np.uint64


@kernel
def _are_blocks_near(numbers: Any, stored: Any, row: int, asked: Any, at: int, inside: Any) -> bool:
    """Return whether the blocks that differ least, of two prints, differ in few enough bits; `inside` is room for them."""
    width, blocks, radius, key_blocks = numbers[0], numbers[1], numbers[2], numbers[4]
    if blocks == 0:
        return True
    for block in range(blocks):
        bit, end = width * block // blocks, width * (block + 1) // blocks
        count = int64(0)
        while bit < end:
            limb, low = bit // 64, bit % 64
            take = min(end - bit, 64 - low)
            bits = (stored[row, limb] ^ asked[at, limb]) >> uint64(low)
            if take < 64:
                bits &= (uint64(1) << uint64(take)) - uint64(1)
            count += popcount(bits)
            bit += take
        place = block  # what stands before it is in order; numba's own sort takes seconds to compile
        while place > 0 and inside[place - 1] > count:
            inside[place] = inside[place - 1]
            place -= 1
        inside[place] = count
    fewest = int64(0)
    for block in range(min(key_blocks, blocks)):
        fewest += inside[block]
    return bool(fewest <= radius)


@allocating_kernel
def find_rows(
    numbers: Any,
    steps: Any,
    stored: Any,
    stored_features: Any,
    stored_scopes: Any,
    alive: Any,
    asked: Any,
    asked_features: Any,
    asked_scopes: Any,
    found: Any,
) -> None:
    """Set `found` (Q,) int64 to the lowest living row within reach of each print asked, where there is one."""
    width, threshold, ratio, first, end = numbers[0], numbers[3], numbers[5], numbers[6], numbers[7]
    limbs = (width + 63) // 64
    last = ~uint64(0)
    if width % 64 != 0:
        last = (uint64(1) << uint64(width % 64)) - uint64(1)
    first_mask = last if limbs == 1 else ~uint64(0)
    most = threshold
    for step in range(steps.shape[0]):
        most = max(most, steps[step, 1])
    inside = np.zeros(64, np.int64)
    for low in range(first, end, _ROWS_AT_ONCE):
        high = min(end, low + _ROWS_AT_ONCE)
        for at in range(asked.shape[0]):
            if found[at] >= 0:
                continue
            head = asked[at, 0]
            for row in range(low, high):
                bits = popcount((stored[row, 0] ^ head) & first_mask)  # nearly always enough to go on
                if bits > most:
                    continue
                for limb in range(1, limbs):
                    different = stored[row, limb] ^ asked[at, limb]
                    if limb == limbs - 1:
                        different &= last
                    bits += popcount(different)
                    if bits > most:
                        break
                if bits > most or not alive[row] or stored_scopes[row] != asked_scopes[at]:
                    continue
                shorter = min(stored_features[row], asked_features[at])
                longer = max(stored_features[row], asked_features[at])
                limit = threshold
                for step in range(steps.shape[0] - 1, -1, -1):
                    if shorter < steps[step, 0]:
                        limit = steps[step, 1]
                if bits > limit or 100 * shorter < ratio * longer:
                    continue
                if _are_blocks_near(numbers, stored, row, asked, at, inside):
                    found[at] = row
                    break
