"""The plan's predicate, told anew: for one pair in whole numbers, and for many as a compiled plain scan.

A plan's fields are those of the log's records (docs/reference/plans.md): of the low `width` bits of two prints at most
`threshold` differ, and of the `key_blocks` blocks that differ least at most `radius` bits; `by_length` gives shorter texts
other thresholds, `ratio` asks that the shorter has so many per cent of the longer's features.

Invariant: `Reach.is_near` is the definition; the compiled scan gives the lowest row for which it holds, whatever the plan.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.errors import FormatError
from stream_dedup.machine.compiled import allocating_kernel, kernel, popcount

LIMB_BITS: Final = 64
_ROWS_AT_ONCE: Final = 2048  # 32 kB of prints: they stay in the cache while all that is asked passes over them
_THREAD_FROM: Final = 2_000_000  # pairs below which starting threads costs more than it saves
int64: Any = np.int64
uint64: Any = np.uint64


@dataclass(frozen=True, slots=True)
class Reach:
    """What counts as near under one plan."""

    width: int
    blocks: int
    radius: int
    threshold: int
    key_blocks: int = 1
    by_length: tuple[tuple[int, int], ...] = ()
    ratio: int = 0

    @classmethod
    def from_fields(cls, fields: object) -> Self:
        """Return the predicate of a plan as a control record states it.

        Raises:
            FormatError: that is no plan which an index would follow.
        """
        numbers = ("width", "blocks", "radius", "threshold")
        optional = ("key_blocks", "by_length", "ratio")
        if not isinstance(fields, Mapping) or not set(numbers) <= set(fields) <= {*numbers, *optional}:
            raise FormatError(f"These are not the fields of a plan: {fields!r:.200}.")
        steps = fields.get("by_length", [])
        if not isinstance(steps, list) or any(not isinstance(step, list) or len(step) != 2 for step in steps):
            raise FormatError(f"A plan's by_length is a list of pairs, not {steps!r:.100}.")
        reach = cls(**{**fields, "by_length": tuple((below, bits) for below, bits in steps)})
        reach._check()
        return reach

    def _check(self) -> None:
        flat = [self.width, self.blocks, self.radius, self.threshold, self.key_blocks, self.ratio]
        flat += [number for step in self.by_length for number in step]
        if any(isinstance(number, bool) or not isinstance(number, int) for number in flat):
            raise FormatError(f"A plan consists of whole numbers, and this one does not: {self!r:.200}.")
        lengths = [below for below, _ in self.by_length]
        fits = (
            1 <= self.width <= 256
            and 0 <= self.blocks <= min(64, self.width)
            and 0 <= self.radius <= 3
            and 0 <= self.threshold <= min(255, self.width)
            and 1 <= self.key_blocks <= max(1, self.blocks)
            and self.tables <= 128
            and len(self.by_length) <= 8
            and all(1 <= below < 1 << 32 and 0 <= bits <= min(255, self.width) for below, bits in self.by_length)
            and lengths == sorted(set(lengths))
            and 0 <= self.ratio <= 100
        )
        if not fits:
            raise FormatError(f"No index can follow this plan: {self!r:.200}.")

    @property
    def tables(self) -> int:
        """In how many ways a key's blocks can be chosen: an index keeps a table for each, and has at most 128."""
        if not self.blocks:
            return 1
        ways = 1
        for chosen in range(self.key_blocks):
            ways = ways * (self.blocks - chosen) // (chosen + 1)
        return ways

    @property
    def limbs(self) -> int:
        """How many limbs of a print it looks at."""
        return -(-self.width // LIMB_BITS)

    def distance(self, one: int, other: int) -> int:
        """Return in how many of the low bits two prints differ."""
        return ((one ^ other) & ((1 << self.width) - 1)).bit_count()

    def is_near(self, one: int, other: int, features: tuple[int, int]) -> bool:
        """Return whether two prints of texts with so many features are within reach of each other."""
        shorter, longer = min(features), max(features)
        threshold = self.threshold
        for below, bits in reversed(self.by_length):
            if shorter < below:
                threshold = bits
        if 100 * shorter < self.ratio * longer or self.distance(one, other) > threshold:
            return False
        if not self.blocks:
            return True
        different, inside = one ^ other, []
        for block in range(self.blocks):
            first, end = self.width * block // self.blocks, self.width * (block + 1) // self.blocks
            inside.append(((different >> first) & ((1 << (end - first)) - 1)).bit_count())
        return sum(sorted(inside)[: self.key_blocks]) <= self.radius


class Rows:
    """Prints, feature counts and scopes of all that ever were representatives, in the order in which they became so."""

    def __init__(self, limbs: int) -> None:
        self.count = 0
        self.prints = np.zeros((1024, limbs), np.uint64)
        self.features = np.zeros(1024, np.int64)
        self.scopes = np.zeros(1024, np.uint64)
        self.alive = np.zeros(1024, np.bool_)

    def add(self, limbs: NDArray[np.uint64], features: int, scope: int) -> int:
        """Append one; return its row."""
        if self.count == len(self.alive):
            for name in ("prints", "features", "scopes", "alive"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        row = self.count
        self.prints[row], self.features[row], self.scopes[row], self.alive[row] = limbs, features, scope, True
        self.count += 1
        return row


class PlainScan:
    """Row by row, with `Reach.is_near`; numpy only puts aside what differs in too many bits, or is of another scope."""

    def find(
        self, reach: Reach, rows: Rows, first: int, end: int,
        prints: NDArray[np.uint64], features: NDArray[np.int64], scopes: NDArray[np.uint64],
    ) -> NDArray[np.int64]:  # fmt: skip
        """Return for each print the lowest living row of [first, end) within reach and of its scope, or -1."""
        found = np.full(len(prints), -1, np.int64)
        limbs, most = reach.limbs, max([reach.threshold, *(bits for _, bits in reach.by_length)])
        mask = np.full(limbs, 2**64 - 1, np.uint64)
        if reach.width % LIMB_BITS:
            mask[-1] = 2 ** (reach.width % LIMB_BITS) - 1
        stored, alive, of_scope = rows.prints[first:end, :limbs], rows.alive[first:end], rows.scopes[first:end]
        for at in range(len(prints)):
            bits = np.bitwise_count((stored ^ prints[at, :limbs]) & mask).sum(axis=1)
            mine = as_number(prints[at])
            for row in np.flatnonzero((bits <= most) & alive & (of_scope == scopes[at])).tolist():
                pair = (int(features[at]), int(rows.features[first + row]))
                if reach.is_near(mine, as_number(rows.prints[first + row]), pair):
                    found[at] = first + row
                    break
        return found


class CompiledScan:
    """The same by compiled brute force, on all processors."""

    def __init__(self) -> None:
        self._threads = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._threads, "audit-scan")

    def find(
        self, reach: Reach, rows: Rows, first: int, end: int,
        prints: NDArray[np.uint64], features: NDArray[np.int64], scopes: NDArray[np.uint64],
    ) -> NDArray[np.int64]:  # fmt: skip
        """Return for each print the lowest living row of [first, end) within reach and of its scope, or -1."""
        found = np.full(len(prints), -1, np.int64)
        numbers = np.array(
            [reach.width, reach.blocks, reach.radius, reach.threshold, reach.key_blocks, reach.ratio, first, end], np.int64
        )
        steps = np.array(reach.by_length, np.int64).reshape(-1, 2)
        # Copies: what was decoded lies unaligned and read-only in its record, another type to numba.
        prints, features, scopes = np.array(prints), np.array(features), np.array(scopes)
        parts = self._threads if len(prints) * (end - first) >= _THREAD_FROM else 1
        cuts = [len(prints) * part // parts for part in range(parts + 1)]

        def scan(part: int) -> None:
            at = slice(cuts[part], cuts[part + 1])
            find_rows(
                numbers, steps, rows.prints, rows.features, rows.scopes, rows.alive,
                prints[at], features[at], scopes[at], found[at],
            )  # fmt: skip

        if parts == 1:
            scan(0)
        else:
            list(self._pool.map(scan, range(parts)))
        return found


def as_number(limbs: NDArray[np.uint64]) -> int:
    """Return a print, low limb first, as one number."""
    number = 0
    for limb in reversed(limbs.tolist()):
        number = number << LIMB_BITS | limb
    return number


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
    numbers: Any, steps: Any, stored: Any, stored_features: Any, stored_scopes: Any, alive: Any,
    asked: Any, asked_features: Any, asked_scopes: Any, found: Any,
) -> None:  # fmt: skip
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
