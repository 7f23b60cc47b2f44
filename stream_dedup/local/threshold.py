"""From which similarity on documents should be dropped: what a sample of them says. Pure.

Of each document the most similar earlier one is looked for that lengths and prints let pass, so
that the threshold alone decides about the pair. Two texts are compared if a block of two values of
their sketches is equal: of pairs that are .5 alike hardly any is missed. Of a block that many share
only the `SHARING_MAX` before a document are compared, so time grows with the documents, not with
their square.

A threshold is proposed where fewest pairs lie near it, because there it matters least where exactly
it is; but only in a valley: between copies and documents that are like nothing, or alike by their
site's template. Where pairs get fewer up to an edge of the range, there is none, and nothing is
proposed. The threshold in force stays if it is as good as any.

What the plan's crowd turns away is no copy at any threshold: a pair of .5 and more counts only if
it stands out from the crowd of its document, which `crowds` forms with the threshold in force. The
others are told beside.

Pages of one template are alike for one reason, and the error of their estimates is one error. So
documents that hang together by pairs of .5 and more count as one site, of which at most
`SITE_PAIRS` pairs count; and how sure a proposal is, is told by those that samples of the sites,
drawn with replacement, would have made.

Sources: Efron, Tibshirani, "An Introduction to the Bootstrap", chapter 13 (1993); Davison, Hinkley,
"Bootstrap Methods and their Application", section 3.8 (1997); Wilson, "Probable inference, the law
of succession, and statistical inference", JASA 22 (1927).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting import Prints
from stream_dedup.ground.plan import Plan
from stream_dedup.ground.sketch import SKETCH_VALUES, per_cents
from stream_dedup.local.crowds import ComparedTexts, Crowds, Numbers

SHARING_MAX: Final = 64
PAIRS_MIN: Final = 30
"""With fewer pairs between the lowest and the highest threshold, and above, nothing is proposed."""
SITES_MIN: Final = 10
SITE_PAIRS: Final = 30
_BLOCK: Final = 2
_LOWEST, _HIGHEST = 50, 90
_NEARNESS: Final = np.array((1, 3, 5, 7, 7, 5, 3, 1))  # about as wide as the error of one estimate
_DRAWS: Final = 400
_DEPTH: Final = 0.5  # a valley is at most this share of the lower of the hills on its sides
_SURE_WITHIN: Final = 15
_Z: Final = 1.96


@dataclass(frozen=True, slots=True)
class NearestPairs:
    """Documents with the most similar earlier one: rows, and how alike they are in per cent;
    (pairs,) each.
    """

    rows: NDArray[np.int64]
    of: NDArray[np.int64]
    similarity: NDArray[np.int64]

    def sites(self) -> NDArray[np.int64]:
        """Return of each pair the number of its site: those that hang together by pairs of .5 and
        more have one, from 0 on.
        """
        first: dict[int, int] = {}
        found = np.empty(len(self.rows), np.int64)
        for at, (row, of, alike) in enumerate(
            zip(self.rows.tolist(), self.of.tolist(), self.similarity.tolist(), strict=True)
        ):
            first[row] = (
                first.get(of, of) if alike >= _LOWEST else row
            )  # rows ascend, and `of` is an earlier one
            found[at] = first[row]
        _, numbers = np.unique(found, return_inverse=True)
        return numbers.astype(np.int64)

    def dropped(self, similarity: int) -> int:
        """Return how many documents have a pair of this similarity in per cent or more."""
        return int((self.similarity >= similarity).sum())


@dataclass(frozen=True, slots=True)
class SamplePairs:
    """Of each document the most similar earlier one (`nearest`), and the most similar one that can
    be its original (`near`).

    `apart`: which of the nearest the crowd turns away, by their places, though they are .5 alike or
    more; `others` (apart,) how many of the crowd they were held against, `shares` (apart,) what
    they share that these do not, in per cent.
    """

    nearest: NearestPairs
    near: NearestPairs
    apart: NDArray[np.int64]
    others: NDArray[np.int64]
    shares: NDArray[np.int64]

    def sites(self) -> NDArray[np.int64]:
        """Return the site of each pair of `near`: pages that hang together by what the crowd turns
        away are of one, too.
        """
        return self.nearest.sites()[np.searchsorted(self.nearest.rows, self.near.rows)]


class Doubt(enum.StrEnum):
    """Why nothing is proposed."""

    FEW_PAIRS = "few-pairs"
    FEW_SITES = "few-sites"
    NO_VALLEY = "no-valley"
    WIDE_RANGE = "wide-range"


@dataclass(frozen=True, slots=True)
class ThresholdProposal:
    """A threshold in per cent, or None where there is a `doubt`; from `pairs` pairs of .5 and more,
    of `sites` sites.

    It is the one in force where that lies between `low` and `high`: the range of 95 in 100
    resampled ones, if they have one.
    """

    similarity: int | None
    doubt: Doubt | None
    pairs: int
    sites: int
    low: int | None = None
    high: int | None = None


def distinct_rows(prints: Prints, scopes: NDArray[np.uint64], floor: int) -> NDArray[np.int64]:
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


class _Pairs(NamedTuple):
    """Texts by their numbers, an earlier one of each, and how alike they are in per cent; (pairs,)
    each.
    """

    later: Numbers
    earlier: Numbers
    alike: Numbers

    def which(self, chosen: NDArray[np.bool_]) -> _Pairs:
        """Return some of them."""
        return _Pairs(*(one[chosen] for one in self))


class _Best:
    """Of each of n texts the most similar earlier one so far, and how alike it is in per cent; -1
    where there is none.
    """

    def __init__(self, count: int) -> None:
        self.similarity, self.of = np.full(count, -1, np.int64), np.full(count, -1, np.int64)

    def better(self, pairs: _Pairs) -> _Pairs:
        """Return the pairs that are more alike than what there is, or as alike and with an earlier
        text.
        """
        best = self.similarity[pairs.later]
        return pairs.which(
            (pairs.alike > best) | ((pairs.alike == best) & (pairs.earlier < self.of[pairs.later]))
        )

    def take(self, pairs: _Pairs) -> None:
        """Take such pairs; a text is the later one of at most one of them."""
        self.similarity[pairs.later], self.of[pairs.later] = pairs.alike, pairs.earlier

    def by_rows(self, rows: Numbers) -> NearestPairs:
        """Return them by the rows of the texts."""
        found = np.flatnonzero(self.of >= 0)
        return NearestPairs(rows[found], rows[self.of[found]], self.similarity[found])


def nearest_pairs(
    prints: Prints, scopes: NDArray[np.uint64], rows: NDArray[np.int64], plan: Plan
) -> SamplePairs:
    """Return of each of `rows`, ascending, that has one, the most similar earlier row of its scope,
    or the first of them.
    """
    texts = ComparedTexts(prints, scopes, rows, plan)
    crowds = Crowds(texts) if plan.crowd else None
    nearest, near = _Best(len(rows)), _Best(len(rows))
    for pairs in _meeting(texts):
        nearest.take(nearest.better(pairs))
        better = near.better(pairs)
        if crowds is not None:
            stands_out = better.alike < _LOWEST
            asked = better.which(~stands_out)
            stands_out[~stands_out] = crowds.shares(asked.later, asked.earlier)[1] >= plan.crowd
            better = better.which(stands_out)
        near.take(better)
    apart = np.flatnonzero((nearest.similarity >= _LOWEST) & (near.similarity < nearest.similarity))
    none = np.empty(0, np.int64)
    others, shares = (none, none) if crowds is None else crowds.shares(apart, nearest.of[apart])
    found = nearest.by_rows(rows)
    return SamplePairs(
        found, near.by_rows(rows), np.searchsorted(found.rows, rows[apart]), others, shares
    )


def _meeting(texts: ComparedTexts) -> Iterator[_Pairs]:
    """Yield the pairs that are compared, each text as the later of one pair at a time."""
    for block in range(0, SKETCH_VALUES, _BLOCK):
        keys = (
            texts.scopes << 16
            | texts.sketches[:, block].astype(np.int64) << 8
            | texts.sketches[:, block + 1]
        )
        order = np.argsort(keys, kind="stable")  # those of one key stand together, in their order
        for back in range(1, SHARING_MAX + 1):
            later, earlier = order[back:], order[:-back]
            is_shared = keys[later] == keys[earlier]
            later, earlier = later[is_shared], earlier[is_shared]
            if not len(later):
                break
            passes = texts.pass_by(later, earlier)
            later, earlier = later[passes], earlier[passes]
            yield _Pairs(
                later,
                earlier,
                per_cents(texts.sketches[later], texts.sketches[earlier]).astype(np.int64),
            )


def propose(
    pairs: NearestPairs, of_site: NDArray[np.int64], compared: int, in_force: int, seed: int = 0
) -> ThresholdProposal:
    """Return the threshold that suits a sample of `compared` documents; `in_force`: per cent, taken
    of equal ones.

    `of_site`: the site of each pair, by its number.
    """
    is_near = pairs.similarity >= _LOWEST
    near, sites = int(is_near.sum()), len(np.unique(of_site[is_near]))
    if near < PAIRS_MIN:
        return ThresholdProposal(None, Doubt.FEW_PAIRS, near, sites)
    weights = np.minimum(1.0, SITE_PAIRS / np.maximum(1, np.bincount(of_site)))[of_site]
    alone = compared - len(pairs.rows)  # documents that are like nothing before them

    def counted(times: NDArray[np.float64]) -> NDArray[np.float64]:
        counts = np.bincount(pairs.similarity, weights=times, minlength=101).astype(np.float64)
        counts[0] += alone
        return counts

    proposed = _valley(counted(weights), in_force)
    if proposed is None:
        return ThresholdProposal(None, Doubt.NO_VALLEY, near, sites)
    if sites < SITES_MIN:
        return ThresholdProposal(None, Doubt.FEW_SITES, near, sites)
    all_sites = int(of_site.max()) + 1
    dice = np.random.default_rng(seed)
    drawn = [
        _valley(
            counted(
                weights
                * np.bincount(dice.integers(0, all_sites, all_sites), minlength=all_sites)[of_site]
            ),
            in_force,
        )
        for _ in range(_DRAWS)
    ]
    found = [one for one in drawn if one is not None]
    if len(found) < 0.95 * _DRAWS:
        return ThresholdProposal(None, Doubt.WIDE_RANGE, near, sites)
    low, high = (int(one) for one in np.quantile(found, (0.025, 0.975), method="nearest"))
    if high - low > _SURE_WITHIN:
        return ThresholdProposal(None, Doubt.WIDE_RANGE, near, sites, low, high)
    return ThresholdProposal(
        in_force if low <= in_force <= high else proposed, None, near, sites, low, high
    )


def _valley(counts: NDArray[np.float64], in_force: int) -> int | None:
    """Return the per cent between .5 and .9 about which fewest lie; of equal ones that nearest to
    the one in force.

    None if that is an edge of the range, or if there is no hill on one of its sides that is well
    above it.
    """
    padded = np.concatenate([np.zeros(4), counts, np.zeros(4)])
    crowds = np.convolve(padded, _NEARNESS[::-1], mode="valid")[
        :101
    ]  # of value v: counts[v - 4 : v + 4]
    crowd, _, value = min(
        (crowds[one], abs(one - in_force), one) for one in range(_LOWEST, _HIGHEST + 1)
    )
    hill = min(crowds[:value].max(), crowds[value + 1 :].max())
    if value in (_LOWEST, _HIGHEST) or not hill or crowd > _DEPTH * hill:
        return None
    return value


def wilson(part: int, whole: int) -> tuple[float, float]:
    """Return between which shares the true one lies with 95 % confidence, if `part` of `whole` were
    counted.
    """
    if whole == 0:
        return 0.0, 1.0
    share, spread = part / whole, _Z * _Z / whole
    middle = share + spread / 2
    half = _Z * math.sqrt(share * (1 - share) / whole + spread / whole / 4)
    low, high = (middle - half) / (1 + spread), (middle + half) / (1 + spread)
    return (0.0 if part == 0 else max(0.0, low)), (1.0 if part == whole else min(1.0, high))
