"""From which similarity on documents should be dropped: what a sample of them says. Pure.

Of each document the most similar earlier one is looked for that lengths and prints let pass, so that the threshold alone
decides about the pair. Two texts are compared if a block of two values of their sketches is equal: of pairs that are .5
alike hardly any is missed. Of a block that many share only the `SHARING_MAX` before a document are compared, so time
grows with the documents, not with their square.

A threshold is proposed where fewest pairs lie near it, because there it matters least where exactly it is. How sure that is:
the proposals that samples of the pairs, drawn with replacement, would have made.

Sources: Efron, Tibshirani, "An Introduction to the Bootstrap", chapter 13 (1993); Wilson, "Probable inference, the law of
succession, and statistical inference", JASA 22 (1927).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting import Prints
from stream_dedup.ground.plan import Plan
from stream_dedup.ground.sketch import SKETCH_VALUES, agreeing_min

SHARING_MAX: Final = 64
PAIRS_MIN: Final = 30
"""With fewer pairs between the lowest and the highest threshold, and above, nothing is proposed."""
_BLOCK: Final = 2
_LOWEST, _HIGHEST = SKETCH_VALUES // 2, SKETCH_VALUES * 9 // 10  # equal values: similarities from .5 to .9
_NEARNESS: Final = np.array((1, 3, 5, 7, 7, 5, 3, 1))  # about as wide as the error of one estimate
_DRAWS: Final = 400
_SURE_WITHIN: Final = 15
_Z: Final = 1.96


@dataclass(frozen=True, slots=True)
class NearestPairs:
    """Documents with the most similar earlier one: rows, and in how many values their sketches agree; (pairs,) each."""

    rows: NDArray[np.int64]
    of: NDArray[np.int64]
    agreeing: NDArray[np.int64]

    def dropped(self, similarity: int) -> int:
        """Return how many documents have a pair of so many per cent of similarity or more."""
        return int((self.agreeing >= agreeing_min(similarity)).sum())


@dataclass(frozen=True, slots=True)
class ThresholdProposal:
    """A threshold in per cent, the range in which 95 of 100 resampled ones lie, and from how many pairs it comes.

    If they are fewer than `PAIRS_MIN`, it is the one that was in force.
    """

    similarity: int
    low: int
    high: int
    pairs: int

    @property
    def is_sure(self) -> bool:
        """Whether there were enough pairs, and samples of them agree about the threshold."""
        return self.pairs >= PAIRS_MIN and self.high - self.low <= _SURE_WITHIN


def distinct_rows(prints: Prints, scopes: NDArray[np.uint64], floor: int) -> NDArray[np.int64]:
    """Return the rows that a plan compares: texts with `floor` features or more, the first of each text in its scope."""
    rows = np.flatnonzero(~prints.empty & (prints.features >= floor))
    _, first = np.unique(
        np.concatenate([prints.digests[rows], scopes[rows, None].view(np.uint8)], axis=1), axis=0, return_index=True
    )
    return np.sort(rows[first]).astype(np.int64)


def nearest_pairs(prints: Prints, scopes: NDArray[np.uint64], rows: NDArray[np.int64], plan: Plan) -> NearestPairs:
    """Return of each of `rows`, ascending, that has one, the most similar earlier row of its scope, or the first of them."""
    sketches, limbs, features = prints.sketches[rows], prints.prints[rows, : plan.limbs], prints.features[rows].astype(np.int64)
    mask = np.full(plan.limbs, 2**64 - 1, np.uint64)
    if plan.width % 64:
        mask[-1] = 2 ** (plan.width % 64) - 1
    _, scope = np.unique(scopes[rows], return_inverse=True)
    best, of = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
    for block in range(0, SKETCH_VALUES, _BLOCK):
        keys = scope << 16 | sketches[:, block].astype(np.int64) << 8 | sketches[:, block + 1]
        order = np.argsort(keys, kind="stable")  # those of one key stand together, in their order
        for back in range(1, SHARING_MAX + 1):
            later, earlier = order[back:], order[:-back]
            is_shared = keys[later] == keys[earlier]
            later, earlier = later[is_shared], earlier[is_shared]
            if not len(later):
                break
            shorter = np.minimum(features[later], features[earlier])
            limit = np.full(len(later), plan.threshold)
            for below, threshold in reversed(plan.by_length):
                limit[shorter < below] = threshold
            distances = np.bitwise_count((limbs[later] ^ limbs[earlier]) & mask).sum(axis=1)
            passes = (distances <= limit) & (100 * shorter >= plan.ratio * np.maximum(features[later], features[earlier]))
            later, earlier = later[passes], earlier[passes]
            equal = (sketches[later] == sketches[earlier]).sum(axis=1)
            is_better = (equal > best[later]) | ((equal == best[later]) & (earlier < of[later]))
            best[later[is_better]], of[later[is_better]] = equal[is_better], earlier[is_better]
    found = np.flatnonzero(of >= 0)
    return NearestPairs(rows[found], rows[of[found]], best[found])


def propose(agreeing: NDArray[np.int64], in_force: int, seed: int = 0) -> ThresholdProposal:
    """Return the threshold that suits pairs with so many equal values; `in_force`: per cent, kept where nothing tells."""
    near = agreeing[agreeing >= _LOWEST]
    if len(near) < PAIRS_MIN:
        return ThresholdProposal(in_force, in_force, in_force, len(near))
    counts = np.bincount(agreeing, minlength=SKETCH_VALUES + 1)
    draws = np.random.default_rng(seed).multinomial(int(counts.sum()), counts / counts.sum(), size=_DRAWS)
    low, high = np.quantile([_emptiest(drawn, in_force) for drawn in draws], (0.025, 0.975), method="nearest").tolist()
    return ThresholdProposal(_emptiest(counts, in_force), int(low), int(high), len(near))


def _emptiest(counts: NDArray[np.int64], in_force: int) -> int:
    """Return the per cent between .5 and .9 about which fewest pairs lie; of equal ones that nearest to the one in force."""
    values = range(_LOWEST, _HIGHEST + 1)
    crowds = [int((counts[value - 4 : value + 4] * _NEARNESS).sum()) for value in values]
    now = agreeing_min(in_force)
    _, _, chosen = min((crowd, abs(value - now), value) for crowd, value in zip(crowds, values, strict=True))
    return 100 * chosen // SKETCH_VALUES


def wilson(part: int, whole: int) -> tuple[float, float]:
    """Return between which shares the true one lies with 95 % confidence, if `part` of `whole` were counted."""
    if whole == 0:
        return 0.0, 1.0
    share, spread = part / whole, _Z * _Z / whole
    middle = share + spread / 2
    half = _Z * math.sqrt(share * (1 - share) / whole + spread / whole / 4)
    low, high = (middle - half) / (1 + spread), (middle + half) / (1 + spread)
    return (0.0 if part == 0 else max(0.0, low)), (1.0 if part == whole else min(1.0, high))
