"""How alike the documents of a sample are: of each the most similar earlier one, for each
threshold. Pure.

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
from stream_dedup.ground.sketch import SKETCH_VALUES, SURE, per_cents
from stream_dedup.local.offline import PrintedBatch

SHARING_MAX: Final = 64
THRESHOLDS: Final = ("similarity", "unsure", "same_site", "other_title")
_BLOCK: Final = 2

Numbers = NDArray[np.int64]


class NearestPairs(NamedTuple):
    """Documents with the most similar earlier one: rows, and how alike they are in per cent;
    (pairs,) each.
    """

    rows: Numbers
    of: Numbers
    similarity: Numbers


def distinct_rows(prints: Prints, scopes: NDArray[np.uint64], floor: int) -> Numbers:
    """Return the rows that a plan compares: texts with `floor` features or more, the first of each
    text in its scope.
    """
    rows = np.flatnonzero(~prints.empty & (prints.features >= floor))
    texts = np.concatenate([prints.digests[rows], scopes[rows, None].view(np.uint8)], axis=1)
    _, first = np.unique(texts, axis=0, return_index=True)
    return np.sort(rows[first]).astype(np.int64)


def nearest_pairs(sample: PrintedBatch, rows: Numbers, plan: Plan) -> list[NearestPairs]:
    """Return for each of `THRESHOLDS`, of each of `rows`, ascending, that has one, the most similar
    earlier row of its scope that this threshold decides about, or the first of them.
    """
    best, of = np.full((2, len(THRESHOLDS), len(rows)), -1, np.int64)
    sketches, prints = sample.prints.sketches[rows], sample.prints
    scope = np.unique(sample.scopes[rows], return_inverse=True)[1].astype(np.int64)
    for block in range(0, SKETCH_VALUES, _BLOCK):
        keys = scope << 16 | sketches[:, block].astype(np.int64) << 8 | sketches[:, block + 1]
        order = np.argsort(keys, kind="stable")  # those of one key are together, in their order
        for back in range(1, SHARING_MAX + 1):
            later, earlier = order[back:], order[:-back]
            is_shared = keys[later] == keys[earlier]
            if not is_shared.any():
                break
            later, earlier = later[is_shared], earlier[is_shared]
            alike = per_cents(sketches[later], sketches[earlier]).astype(np.int64)
            kinds = _kinds(sample, rows[later], rows[earlier])
            passes = _pass(prints, rows[later], rows[earlier], alike, plan)
            best_now, of_now = best[kinds, later], of[kinds, later]
            better = (alike > best_now) | ((alike == best_now) & (earlier < of_now))
            chosen = passes & better
            kinds, later, earlier = kinds[chosen], later[chosen], earlier[chosen]
            best[kinds, later], of[kinds, later] = alike[chosen], earlier
    found = [np.flatnonzero(one >= 0) for one in of]
    return [
        NearestPairs(rows[at], rows[of[kind, at]], best[kind, at]) for kind, at in enumerate(found)
    ]


def _kinds(sample: PrintedBatch, ones: Numbers, others: Numbers) -> Numbers:
    """Return which of `THRESHOLDS` decides about pairs of rows, as `ground.related` has it."""
    ids = np.array(sample.ids, object)
    sites, titles = sample.sites, sample.titles
    same_id = (ids[ones] == ids[others]) & (ids[ones] != b"")
    is_known = (sites[ones] > 0) & (sites[others] > 0)
    titled = (titles[ones] > 0) & (titles[others] > 0)
    is_free = same_id | (is_known & (sites[ones] != sites[others]))
    on_site = np.where(titled, np.where(titles[ones] == titles[others], 1, 3), 2)
    return np.where(is_free, 0, np.where(is_known, on_site, 1)).astype(np.int64)


def _pass(
    prints: Prints, ones: Numbers, others: Numbers, alike: Numbers, plan: Plan
) -> NDArray[np.bool_]:
    """Return of which pairs of rows the lengths and the bits that differ are as the plan asks."""
    features = prints.features[ones].astype(np.int64), prints.features[others].astype(np.int64)
    shorter = np.minimum(*features)
    limit = np.full(len(ones), plan.threshold)
    for below, threshold in reversed(plan.by_length):
        limit[shorter < below] = threshold
    differing = prints.prints[ones, : plan.limbs] ^ prints.prints[others, : plan.limbs]
    if plan.width % 64:
        differing[:, -1] &= np.uint64(2 ** (plan.width % 64) - 1)
    is_close = (np.bitwise_count(differing).sum(axis=1) <= limit) | (alike >= SURE)
    passes: NDArray[np.bool_] = is_close & (100 * shorter >= plan.ratio * np.maximum(*features))
    return passes
