"""How alike the documents of a sample are: of each the most similar earlier one. Pure.

Only pairs whose lengths and prints the plan lets pass are compared, so that the threshold alone
decides about a pair. Two texts are compared if a block of two values of their sketches is equal: of
pairs that are .5 alike hardly any is missed. Of a block that many share only the `SHARING_MAX`
before a document are compared, so time grows with the documents, not with their square.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting import Prints
from stream_dedup.ground.plan import Plan
from stream_dedup.ground.sketch import SKETCH_VALUES, per_cents

SHARING_MAX: Final = 64
_BLOCK: Final = 2

Numbers = NDArray[np.int64]


class NearestPairs(NamedTuple):
    """Documents with the most similar earlier one: rows, and how alike they are in per cent;
    (pairs,) each.
    """

    rows: Numbers
    of: Numbers
    similarity: Numbers

    def dropped(self, similarity: int) -> int:
        """Return how many documents have a pair of this similarity in per cent or more."""
        return int((self.similarity >= similarity).sum())


def distinct_rows(prints: Prints, scopes: NDArray[np.uint64], floor: int) -> Numbers:
    """Return the rows that a plan compares: texts with `floor` features or more, the first of each
    text in its scope.
    """
    rows = np.flatnonzero(~prints.empty & (prints.features >= floor))
    _, first = np.unique(
        np.concatenate([prints.digests[rows], scopes[rows, None].view(np.uint8)], axis=1),
        axis=0,
        return_index=True,
    )
    return np.sort(rows[first]).astype(np.int64)


def nearest_pairs(
    prints: Prints, scopes: NDArray[np.uint64], rows: Numbers, plan: Plan
) -> NearestPairs:
    """Return of each of `rows`, ascending, that has one, the most similar earlier row of its scope,
    or the first of them.
    """
    best, of = np.full((2, len(rows)), -1, np.int64)
    sketches = prints.sketches[rows]
    scope = np.unique(scopes[rows], return_inverse=True)[1].astype(np.int64)
    for block in range(0, SKETCH_VALUES, _BLOCK):
        keys = scope << 16 | sketches[:, block].astype(np.int64) << 8 | sketches[:, block + 1]
        order = np.argsort(keys, kind="stable")  # those of one key are together, in their order
        for back in range(1, SHARING_MAX + 1):
            later, earlier = order[back:], order[:-back]
            is_shared = keys[later] == keys[earlier]
            if not is_shared.any():
                break
            later, earlier = later[is_shared], earlier[is_shared]
            passes = _pass(prints, rows[later], rows[earlier], plan)
            later, earlier = later[passes], earlier[passes]
            alike = per_cents(sketches[later], sketches[earlier]).astype(np.int64)
            better = (alike > best[later]) | ((alike == best[later]) & (earlier < of[later]))
            best[later[better]], of[later[better]] = alike[better], earlier[better]
    found = np.flatnonzero(of >= 0)
    return NearestPairs(rows[found], rows[of[found]], best[found])


def _pass(prints: Prints, ones: Numbers, others: Numbers, plan: Plan) -> NDArray[np.bool_]:
    """Return of which pairs of rows the lengths and the bits that differ are as the plan asks."""
    features = prints.features[ones].astype(np.int64), prints.features[others].astype(np.int64)
    shorter = np.minimum(*features)
    limit = np.full(len(ones), plan.threshold)
    for below, threshold in reversed(plan.by_length):
        limit[shorter < below] = threshold
    differing = prints.prints[ones, : plan.limbs] ^ prints.prints[others, : plan.limbs]
    if plan.width % 64:
        differing[:, -1] &= np.uint64(2 ** (plan.width % 64) - 1)
    passes: NDArray[np.bool_] = (np.bitwise_count(differing).sum(axis=1) <= limit) & (
        100 * shorter >= plan.ratio * np.maximum(*features)
    )
    return passes
