"""Find the most similar earlier document of each document of a sample, separately for each threshold.

Only sketches are compared, not lengths and bits, so a filter drops the reported number or fewer.
Two texts are compared if a block of two values of their sketches is equal, which misses hardly any
pair with a similarity of 0.5. If many documents share a block, a document is compared only with the
64 before it, so the time is linear in the number of documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.differences import compare
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.printable import printable
from stream_dedup.domain.sketch import SKETCH_VALUES, per_cents
from stream_dedup.files.offline import (
    FingerprintedBatch,
    OfflineDocument,
    check_widths,
    fingerprint_batches,
)
from stream_dedup.fingerprinting import Recipe

DOCUMENTS_MIN: Final = 50
BINS: Final = 20
THRESHOLDS: Final = {
    "similarity": "Different sites, or the same id",
    "unsure": "One site and title, or a site unknown",
    "same_site": "One site, a title unknown",
    "other_title": "One site, different titles",
}
_BLOCK_VALUES: Final = 2
_EXAMPLES_MAX: Final = 3

Numbers = NDArray[np.int64]


class NearestPairs(NamedTuple):
    """Pairs of a row and the most similar earlier row, with the similarity in per cent; each (pairs,)."""

    rows: Numbers
    earlier_rows: Numbers
    similarity: Numbers


def analyse_sample(
    documents: Sequence[OfflineDocument], recipe: Recipe, plan: Plan
) -> dict[str, Any]:
    """Return the histograms of pairs on different sites and on one site; for each threshold the number
    of documents that it drops, and the pairs just above and below it.

    Raises:
        ConfigurationError: the recipe computes no sketches, or does not fit the plan.
        InputError: too few documents can be compared.
    """
    check_widths(recipe, plan)
    sample = FingerprintedBatch.join(recipe, list(fingerprint_batches(documents, recipe)))
    long = np.flatnonzero(~sample.prints.empty & (sample.prints.features >= recipe.floor))
    scopes = sample.scopes[long, None].view(np.uint8)
    texts = np.concatenate([sample.prints.digests[long], scopes], axis=1)
    rows = long[np.sort(np.unique(texts, axis=0, return_index=True)[1])]
    if len(rows) < DOCUMENTS_MIN:
        raise InputError(
            f"Only {len(rows):,} of {len(documents):,} documents have different texts that are "
            f"long enough. Use a larger sample, with at least {DOCUMENTS_MIN} such documents."
        )
    pairs_by_threshold = nearest_pairs(sample, rows)
    thresholds = (plan.similarities[0], *plan.similarities[2:])
    return {
        "documents": len(documents),
        "compared": len(rows),
        "plan": plan.name,
        "two_sites": _histogram(pairs_by_threshold[:1], len(documents)),
        "one_site": _histogram(pairs_by_threshold[1:], len(documents)),
        "thresholds": [
            {
                "name": name,
                "similarity": threshold / 100,
                "drops": int((pairs.similarity >= threshold).sum()),
                **_examples(documents, pairs, threshold),
            }
            for name, threshold, pairs in zip(
                THRESHOLDS, thresholds, pairs_by_threshold, strict=True
            )
        ],
    }


def histogram_rows(report: dict[str, Any]) -> list[list[str]]:
    """Return a row for each bin of a report: its bounds, and the counts of both histograms as bars."""
    sites = (report["two_sites"], report["one_site"])
    largest = max(1, *sites[0], *sites[1])
    return [
        [f"{index / BINS:.2f} to {(index + 1) / BINS:.2f}"]
        + [f"{counts[index]:,} {'█' * -(-24 * counts[index] // largest)}" for counts in sites]
        for index in range(BINS)
    ]


def _histogram(pair_lists: list[NearestPairs], count: int) -> list[int]:
    """Return for each bin of similarity the number of documents whose best pair is in it."""
    best = np.full(count, -1)
    for pairs in pair_lists:
        best[pairs.rows] = np.maximum(best[pairs.rows], pairs.similarity)
    counts = np.bincount(np.minimum(BINS - 1, best[best >= 0] * BINS // 100), minlength=BINS)
    return [int(count) for count in counts]


def _examples(
    documents: Sequence[OfflineDocument], pairs: NearestPairs, threshold: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the pairs just above and below a threshold, with the words that differ."""
    order = np.argsort(pairs.similarity, kind="stable")
    first = int(np.searchsorted(pairs.similarity[order], threshold))
    sides = {
        "dropped": order[first : first + _EXAMPLES_MAX],
        "kept": order[:first][::-1][:_EXAMPLES_MAX],
    }
    examples: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for name, pair in [(name, pair) for name, chosen in sides.items() for pair in chosen]:
        page, kept = documents[pairs.rows[pair]], documents[pairs.earlier_rows[pair]]
        pieces = compare(str(kept.text), str(page.text)).pieces
        differ = [piece for piece in pieces if piece.kind in ("changed", "removed", "added")]
        examples[name].append(
            {
                "similarity": int(pairs.similarity[pair]) / 100,
                "id": printable(page.id, 80),
                "earlier_id": printable(kept.id, 80),
                "words": _join_words(piece.right for piece in differ),
                "earlier_words": _join_words(piece.left for piece in differ),
            }
        )
    return examples


def _join_words(passages: Iterable[str]) -> str:
    words = (" ".join(passage.split()) for passage in passages)
    return printable(" … ".join(filter(None, words)), 160)


def nearest_pairs(sample: FingerprintedBatch, rows: Numbers) -> list[NearestPairs]:
    """Return for each of `THRESHOLDS` the most similar earlier row of each row, among the rows of the
    same scope to which the threshold applies; of equally similar rows the first.

    `rows`: the rows of the sample to compare, ascending; rows without a pair are left out.
    """
    best, earlier_rows = np.full((2, len(THRESHOLDS), len(rows)), -1, np.int64)
    sketches = sample.prints.sketches[rows]
    scope = np.unique(sample.scopes[rows], return_inverse=True)[1].astype(np.int64)
    for block in range(0, SKETCH_VALUES, _BLOCK_VALUES):
        keys = scope << 16 | sketches[:, block].astype(np.int64) << 8 | sketches[:, block + 1]
        order = np.argsort(keys, kind="stable")  # groups rows with the same key, in their order
        for back in range(1, 65):
            later, earlier = order[back:], order[:-back]
            is_shared = keys[later] == keys[earlier]
            if not is_shared.any():
                break
            later, earlier = later[is_shared], earlier[is_shared]
            similarity = per_cents(sketches[later], sketches[earlier]).astype(np.int64)
            numbers = _threshold_numbers(sample, rows[later], rows[earlier])
            best_now = best[numbers, later]
            earlier_now = earlier_rows[numbers, later]
            better = (similarity > best_now) | ((similarity == best_now) & (earlier < earlier_now))
            better &= similarity >= 25  # unrelated texts are less similar
            numbers, later, earlier = numbers[better], later[better], earlier[better]
            best[numbers, later] = similarity[better]
            earlier_rows[numbers, later] = earlier
    paired = [np.flatnonzero(row_numbers >= 0) for row_numbers in earlier_rows]
    return [
        NearestPairs(rows[index], rows[earlier_rows[kind, index]], best[kind, index])
        for kind, index in enumerate(paired)
    ]


def _threshold_numbers(sample: FingerprintedBatch, rows: Numbers, others: Numbers) -> Numbers:
    """Return for each pair the index in `THRESHOLDS` of its threshold, by the rules of
    `domain.relations`.
    """
    ids = np.array(sample.ids, object)
    sites, titles = sample.sites, sample.titles
    same_id = (ids[rows] == ids[others]) & (ids[rows] != b"")
    is_known = (sites[rows] > 0) & (sites[others] > 0)
    has_titles = (titles[rows] > 0) & (titles[others] > 0)
    is_independent = same_id | (is_known & (sites[rows] != sites[others]))
    on_one_site = np.where(has_titles, np.where(titles[rows] == titles[others], 1, 3), 2)
    return np.where(is_independent, 0, np.where(is_known, on_one_site, 1)).astype(np.int64)
