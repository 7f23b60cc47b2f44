"""A print's key in each table of a plan, and which other keys a search visits.

A table holds one block. Its key is the block's low `ADDRESS_BITS_MAX` bits; a block within r bits of another has a key
within r bits of the other's key, so visiting all keys within r bits finds every block within r bits, and what a shorter
key lets in besides is turned away by `kernels.within_reach`, which applies the plan's whole predicate. Within a table, the
bucket of (key, scope) is key XOR the scope's low bits: scopes that share a text do not share its bucket.

Invariants: each table has its own buckets (`base` tells where they begin), so tables of equal width never share them;
nothing is accepted by its bucket alone.

Prints are rows of uint64 words, low word first.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.index.plan import ADDRESS_BITS_MAX, Plan

_WORD_MASK = (1 << 64) - 1


class Tables(NamedTuple):
    """A plan as the compiled functions want it; T tables, W words judged of a print.

    Shapes: `word`, `shift` (T,) int64: where a block begins; `address` (T,) uint64: the mask of its key; `base` (T,)
    int64: its first bucket; `flips` (P,) uint64 and `flips_end` (T,) int64: what to XOR onto a key, table after table,
    the key itself first; `masks` (T, W) uint64: the block's bits; `whole` (W,) uint64: the bits that are judged.
    """

    word: NDArray[np.int64]
    shift: NDArray[np.int64]
    address: NDArray[np.uint64]
    base: NDArray[np.int64]
    flips: NDArray[np.uint64]
    flips_end: NDArray[np.int64]
    masks: NDArray[np.uint64]
    whole: NDArray[np.uint64]
    radius: int
    threshold: int
    buckets: int


def tables_of(plan: Plan) -> Tables:
    """Return the tables that serve a plan."""
    bits = [min(end - first, ADDRESS_BITS_MAX) for first, end in plan.bounds]
    flips = [_flips(count, plan.radius) for count in bits]
    sizes = [1 << count for count in bits]
    return Tables(
        word=np.array([first // 64 for first, _ in plan.bounds], np.int64),
        shift=np.array([first % 64 for first, _ in plan.bounds], np.int64),
        address=np.array([size - 1 for size in sizes], np.uint64),
        base=np.array([0, *itertools.accumulate(sizes)][:-1], np.int64),
        flips=np.array([flip for table in flips for flip in table], np.uint64),
        flips_end=np.array(list(itertools.accumulate(map(len, flips))), np.int64),
        masks=np.array([to_words(((1 << (end - first)) - 1) << first, plan.words) for first, end in plan.bounds]),
        whole=to_words((1 << plan.width) - 1, plan.words),
        radius=plan.radius,
        threshold=plan.threshold,
        buckets=sum(sizes),
    )


def to_words(number: int, words: int) -> NDArray[np.uint64]:
    """Return a print, given as a number, as `words` 64-bit words, low word first."""
    return np.array([(number >> (64 * word)) & _WORD_MASK for word in range(words)], np.uint64)


def keys_of(plan: Plan, number: int) -> tuple[int, ...]:
    """Return a print's key in each table, in plain Python: what `kernels.find_buckets` must agree with."""
    return tuple((number >> first) & ((1 << min(end - first, ADDRESS_BITS_MAX)) - 1) for first, end in plan.bounds)


def _flips(bits: int, radius: int) -> list[int]:
    return [
        sum(1 << bit for bit in chosen)
        for flips in range(min(radius, bits) + 1)
        for chosen in itertools.combinations(range(bits), flips)
    ]
