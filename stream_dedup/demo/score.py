"""Score verdicts against the true copies of a crawl, which are measured by the exact Jaccard.

Invariant: the score uses only the pairs and the verdicts, nothing of the filter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

DUPLICATE_FROM: Final = 0.8
GREY_FROM: Final = 0.5

TrueVerdict = Literal["exact", "duplicate", "grey", "different"]


class Text(Protocol):
    """The interface of measured pages: of a crawl, or anything else with a text and a language."""

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
    def resemblance(self) -> float:
        """1 for equal bare texts, else the Jaccard."""
        return 1.0 if self.verdict == "exact" else self.jaccard

    @property
    def is_copy(self) -> bool:
        """Whether one of them is a duplicate of the other."""
        return self.verdict in ("exact", "duplicate")


@dataclass(frozen=True, slots=True)
class TrueJudgement:
    """A verdict to score: whether a page is a duplicate, and the index of the kept page that it
    names.
    """

    duplicate: bool
    representative: int | None = None


@dataclass(slots=True)
class TruthTally:
    """Counts over some pages; the three groups of truth (`positives`, `grey`, `negatives`) add up
    to `pages`.
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
        """Share of the positives that were called duplicate; 1 if there are none."""
        return self.found / self.positives if self.positives else 1.0

    @property
    def near_recall(self) -> float:
        """The recall without pages whose bare text was kept before, because exact copies are easy."""
        return self.near_found / self.near_positives if self.near_positives else 1.0


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a set of verdicts. `misnamed` are duplicates that name no page kept before them,
    because chains are not allowed.
    """

    total: TruthTally = field(default_factory=TruthTally)
    by_language: dict[str, TruthTally] = field(default_factory=dict)
    misnamed: list[int] = field(default_factory=list)


def is_judged(page: Text) -> bool:
    """Return whether a page can be a duplicate: it has a letter or a digit, and its record is not
    broken.
    """
    return page.kind != "broken" and any(character.isalnum() for character in page.text)


def score_verdicts(
    pages: Sequence[Text], verdicts: Mapping[int, TrueJudgement], pairs: Iterable[Pair]
) -> Score:
    """Score verdicts in their order, against the pages kept before each.

    A page is a *positive* if a page kept before it (unique by these verdicts) resembles it by at
    least 0.8, *grey* if the best one does by 0.5 to 0.8, otherwise a *negative*. Recall is the share
    of positives judged duplicate. A page judged duplicate is a *false drop* if it is a negative,
    because its content is lost, and also if its representative resembles it by less than 0.5, because
    the reference leads to another content.

    Args:
        pages: the crawl.
        verdicts: by index in `pages`, in the order of judging, which partitions make different from
        the crawl's; pages that are not `is_judged` are skipped. pairs: the similar pairs of the
        crawl.
    """
    pairs_by_page: defaultdict[int, dict[int, Pair]] = defaultdict(dict)
    for pair in pairs:
        pairs_by_page[pair.earlier][pair.later] = pairs_by_page[pair.later][pair.earlier] = pair
    score = Score()
    kept_pages: set[int] = set()
    for place, verdict in verdicts.items():
        if not is_judged(pages[place]):
            continue
        _count(score, pages[place], verdict, pairs_by_page[place], kept_pages)
        if not verdict.duplicate:
            kept_pages.add(place)
        elif verdict.representative not in kept_pages:
            score.misnamed.append(place)
    return score


def _count(
    score: Score,
    page: Text,
    verdict: TrueJudgement,
    pairs_of_page: Mapping[int, Pair],
    kept_pages: Collection[int],
) -> None:
    best = max(
        (pair for other, pair in pairs_of_page.items() if other in kept_pages),
        key=lambda pair: (pair.is_copy, pair.resemblance),
        default=None,
    )
    resemblance = best.resemblance if best else 0.0
    positive = best is not None and best.is_copy
    near = best is not None and best.verdict == "duplicate"
    grey = not positive and resemblance >= GREY_FROM
    named = pairs_of_page.get(-1 if verdict.representative is None else verdict.representative)
    named_resemblance = named.resemblance if named else 0.0
    false_drop = verdict.duplicate and min(resemblance, named_resemblance) < GREY_FROM
    for tally in (score.total, score.by_language.setdefault(page.language, TruthTally())):
        tally.pages += 1
        tally.positives += positive
        tally.found += positive and verdict.duplicate
        tally.near_positives += near
        tally.near_found += near and verdict.duplicate
        tally.grey += grey
        tally.grey_dropped += grey and verdict.duplicate
        tally.negatives += not positive and not grey
        tally.false_drops += false_drop
