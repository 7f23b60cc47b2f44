"""A print's address in each table of a plan, and which other addresses a search visits.

A table's key is some blocks of the print, put side by side, low block first. Its address is the key folded to at most
`ADDRESS_BITS_MAX` bits: key bit i is XORed onto address bit i modulo their number. A key within r bits of another has an
address within r bits of the other's, so visiting all addresses within r bits finds every key within r bits, and what a
shorter address lets in besides is turned away by `near_kernels.within_reach`, which applies the plan's whole predicate. Folding
rather than cutting, because tables that share their low blocks would else share their buckets' content. Within a table,
the bucket of (key, scope) is the address XOR the scope's low bits: scopes that share a text do not share its bucket.

Invariants: each table has its own buckets (`base` tells where they begin), so tables of equal width never share them;
nothing is accepted by its bucket alone.

Prints are rows of uint64 limbs, low limb first.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.plan import ADDRESS_BITS_MAX, Plan
from stream_dedup.ground.sketch import SKETCH_VALUES

_LIMB_MASK = (1 << 64) - 1


class Tables(NamedTuple):
    """A plan as the compiled functions want it; T tables, P pieces of keys, W limbs judged of a print.

    Shapes: `limb`, `shift` (P,) int64 and `piece` (P,) uint64: where a piece begins in the print, and the mask of its
    bits; `onto` (P,) uint64: at which bit of the address it is XORed; `piece_end` (T,) int64: the end of a table's pieces;
    `address` (T,) uint64: the mask of its addresses; `base` (T,) int64: its first bucket; `flips` (F,) uint64 and
    `flips_end` (T,) int64: what to XOR onto an address, table after table, nothing first; `masks` (T, W) uint64: the key's
    bits; `whole` (W,) uint64: the bits that are judged. `threshold` is the loosest for any length; `below` (L,) uint32 and
    `thresholds` (L + 1,) int64: those by length, the plan's own last; `ratio` in per cent. Two sketches are alike in
    `alike_min` parts of `ALIKE`; their first part has `bands` blocks of `band_values` values; of each block `asked` are asked,
    `asked_last` of them the last and the others the first, or all (0). `crowd` in per cent, 0 for none.
    """

    limb: NDArray[np.int64]
    shift: NDArray[np.int64]
    piece: NDArray[np.uint64]
    onto: NDArray[np.uint64]
    piece_end: NDArray[np.int64]
    address: NDArray[np.uint64]
    base: NDArray[np.int64]
    flips: NDArray[np.uint64]
    flips_end: NDArray[np.int64]
    masks: NDArray[np.uint64]
    whole: NDArray[np.uint64]
    radius: int
    threshold: int
    below: NDArray[np.uint32]
    thresholds: NDArray[np.int64]
    ratio: int
    buckets: int
    alike_min: int
    band_values: int
    bands: int
    asked: int
    asked_last: int
    crowd: int


def tables_of(plan: Plan) -> Tables:
    """Return the tables that serve a plan."""
    bits = [min(count, ADDRESS_BITS_MAX) for count in plan.key_bits]
    pieces = [_pieces(key, count) for key, count in zip(plan.keys, bits, strict=True)]
    flat = [piece for table in pieces for piece in table]
    flips = [_flips(count, plan.radius) for count in bits]
    sizes = [1 << count for count in bits]
    key_masks = [sum(((1 << (end - first)) - 1) << first for first, end in key) for key in plan.keys]
    return Tables(
        limb=np.array([first // 64 for first, _, _ in flat], np.int64),
        shift=np.array([first % 64 for first, _, _ in flat], np.int64),
        piece=np.array([(1 << count) - 1 for _, count, _ in flat], np.uint64),
        onto=np.array([onto for _, _, onto in flat], np.uint64),
        piece_end=np.array(list(itertools.accumulate(map(len, pieces))), np.int64),
        address=np.array([size - 1 for size in sizes], np.uint64),
        base=np.array([0, *itertools.accumulate(sizes)][:-1], np.int64),
        flips=np.array([flip for table in flips for flip in table], np.uint64),
        flips_end=np.array(list(itertools.accumulate(map(len, flips))), np.int64),
        masks=np.array([to_limbs(mask, plan.limbs) for mask in key_masks], np.uint64).reshape(-1, plan.limbs),
        whole=to_limbs((1 << plan.width) - 1, plan.limbs),
        radius=plan.radius,
        threshold=plan.threshold_max,
        below=np.array([below for below, _ in plan.by_length], np.uint32),
        thresholds=np.array([*(threshold for _, threshold in plan.by_length), plan.threshold], np.int64),
        ratio=plan.ratio,
        buckets=sum(sizes),
        alike_min=plan.alike_min,
        band_values=SKETCH_VALUES // max(1, plan.bands),
        bands=plan.bands,
        asked=plan.asked,
        asked_last=plan.asked_last,
        crowd=plan.crowd,
    )


def to_limbs(number: int, limbs: int) -> NDArray[np.uint64]:
    """Return a print, given as a number, as `limbs` 64-bit limbs, low limb first."""
    return np.array([(number >> (64 * limb)) & _LIMB_MASK for limb in range(limbs)], np.uint64)


def addresses_of(plan: Plan, number: int) -> tuple[int, ...]:
    """Return a print's address in each table, in plain Python: what `table_kernels.find_buckets` must agree with."""
    addresses = []
    for key in plan.keys:
        bits = [number >> bit & 1 for first, end in key for bit in range(first, end)]
        address = 0
        for at, bit in enumerate(bits):
            address ^= bit << at % ADDRESS_BITS_MAX
        addresses.append(address)
    return tuple(addresses)


def _pieces(key: tuple[tuple[int, int], ...], address_bits: int) -> list[tuple[int, int, int]]:
    """Return a key as (first bit of the print, bits, first bit of the address): runs that no end of the address cuts."""
    pieces, at = [], 0
    for block_first, end in key:
        first = block_first
        while first < end:
            count = min(end - first, address_bits - at)
            pieces.append((first, count, at))
            first += count
            at = (at + count) % address_bits
    return pieces


def _flips(bits: int, radius: int) -> list[int]:
    return [
        sum(1 << bit for bit in chosen)
        for flips in range(min(radius, bits) + 1)
        for chosen in itertools.combinations(range(bits), flips)
    ]
