"""Score verdicts against the true copies of a crawl, which were measured by the exact Jaccard.

Invariant: the score depends only on the pairs and the verdicts, and uses no code of the filter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

DUPLICATE_FROM: Final = 0.8
GREY_FROM: Final = 0.5

TrueVerdict = Literal["exact", "duplicate", "grey", "different"]


class ScoredPage(Protocol):
    """A page to score: a page of a crawl, or anything else with a text, a language and a kind."""

    @property
    def text(self) -> str:
        """The whole text."""

    @property
    def language(self) -> str:
        """A code of ISO 639, or `zh-Hant`."""

    @property
    def kind(self) -> str:
        """How the page was made."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two pages by their indices, `earlier` < `later`, with their Jaccard and the true verdict."""

    earlier: int
    later: int
    jaccard: float
    verdict: TrueVerdict

    @property
    def similarity(self) -> float:
        """The Jaccard; 1 if the texts are equal after normalisation."""
        return 1.0 if self.verdict == "exact" else self.jaccard

    @property
    def is_copy(self) -> bool:
        """Whether one page is a true duplicate of the other."""
        return self.verdict in ("exact", "duplicate")


@dataclass(frozen=True, slots=True)
class TrueJudgement:
    """A verdict to score: whether a page was judged a duplicate, and the index of the kept page that
    the verdict names.
    """

    is_duplicate: bool
    representative: int | None = None


@dataclass(slots=True)
class TruthTally:
    """Counts over some pages, by the groups of `score_verdicts`: `positives`, `grey` and `negatives`
    add up to `pages`. `near_...`: positives without exact copies.
    """

    pages: int = 0
    positives: int = 0
    found: int = 0
    near_positives: int = 0
    near_found: int = 0
    grey: int = 0
    grey_dropped: int = 0
    negatives: int = 0
    false_drops: int = 0

    @property
    def recall(self) -> float:
        """The share of the positives that were judged duplicates; 1 without positives."""
        return self.found / self.positives if self.positives else 1.0

    @property
    def near_recall(self) -> float:
        """The recall without exact copies, which are easy to find."""
        return self.near_found / self.near_positives if self.near_positives else 1.0


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a set of verdicts. `misnamed`: duplicates that do not name a page that was kept
    before, although every duplicate must.
    """

    total: TruthTally = field(default_factory=TruthTally)
    by_language: dict[str, TruthTally] = field(default_factory=dict)
    misnamed: list[int] = field(default_factory=list)


def is_judged(page: ScoredPage) -> bool:
    """Return whether a page can be a duplicate: it has a letter or a digit, and its record is not
    broken.
    """
    return page.kind != "broken" and any(character.isalnum() for character in page.text)


def score_verdicts(
    pages: Sequence[ScoredPage], verdicts: Mapping[int, TrueJudgement], pairs: Iterable[Pair]
) -> Score:
    """Score verdicts in their order, each against the pages that were kept before.

    A page is *positive* if its similarity to a page that was kept before is at least 0.8, *grey* if
    the highest such similarity is 0.5 to 0.8, otherwise *negative*. Recall is the share of positive
    pages that were judged duplicates. A negative page that was judged a duplicate is a *false drop*,
    because its content is lost. So is a duplicate whose similarity to the page that it names is below
    0.5, because the reference is wrong.

    Args:
        pages: the crawl.
        verdicts: by index in `pages`, in the order of judging, which can differ from that of the
            crawl. Pages that are not `is_judged` are skipped.
        pairs: the similar pairs of the crawl.
    """
    pairs_by_page: defaultdict[int, dict[int, Pair]] = defaultdict(dict)
    for pair in pairs:
        pairs_by_page[pair.earlier][pair.later] = pairs_by_page[pair.later][pair.earlier] = pair
    score = Score()
    kept_pages: set[int] = set()
    for index, verdict in verdicts.items():
        if not is_judged(pages[index]):
            continue
        _count_verdict(score, pages[index], verdict, pairs_by_page[index], kept_pages)
        if not verdict.is_duplicate:
            kept_pages.add(index)
        elif verdict.representative not in kept_pages:
            score.misnamed.append(index)
    return score


def _count_verdict(
    score: Score,
    page: ScoredPage,
    verdict: TrueJudgement,
    pairs_of_page: Mapping[int, Pair],
    kept_pages: Collection[int],
) -> None:
    best = max(
        (pair for other, pair in pairs_of_page.items() if other in kept_pages),
        key=lambda pair: (pair.is_copy, pair.similarity),
        default=None,
    )
    similarity = best.similarity if best else 0.0
    is_positive = best is not None and best.is_copy
    is_near = best is not None and best.verdict == "duplicate"
    is_grey = not is_positive and similarity >= GREY_FROM
    named_pair = pairs_of_page.get(-1 if verdict.representative is None else verdict.representative)
    named_similarity = named_pair.similarity if named_pair else 0.0
    is_false_drop = verdict.is_duplicate and min(similarity, named_similarity) < GREY_FROM
    for tally in (score.total, score.by_language.setdefault(page.language, TruthTally())):
        tally.pages += 1
        tally.positives += is_positive
        tally.found += is_positive and verdict.is_duplicate
        tally.near_positives += is_near
        tally.near_found += is_near and verdict.is_duplicate
        tally.grey += is_grey
        tally.grey_dropped += is_grey and verdict.is_duplicate
        tally.negatives += not is_positive and not is_grey
        tally.false_drops += is_false_drop
