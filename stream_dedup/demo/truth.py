r"""The true near-duplicates by the exact Jaccard of every pair of pages, and a score of verdicts.

Invariants: nothing here is sampled or hashed into sketches, and nothing is shared with the recipe under test (no import of
`stream_dedup.fingerprinting` or `stream_dedup.index`); the measure is symmetric, and 1 for a page with itself.

Definitions
    word        a run of letters, marks and numbers of the NFKC, lower-case text, as the recipe splits texts; joiners are removed
    shingles    word 3-grams; in languages without spaces, 5-grams of the characters of words
    bare text   the NFKC, lower-case text without punctuation and white space
    resemblance of two pages: 1 if their bare texts are equal, else the Jaccard of their shingles (Broder 1997). A text too
                short for one shingle thus resembles only a text with an equal bare text.
    verdict     `exact` (equal bare texts), `duplicate` (resemblance >= 0.8), `grey` (0.5 to 0.8: neither), `different`; for two
                pages of one site with different titles, up to 0.97 is `grey` as well
    judged      pages with at least one letter or digit; broken and empty pages are never duplicates and are skipped
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from stream_dedup.domain.errors import InputError

DUPLICATE_FROM = 0.8
DUPLICATE_OF_OTHER_TITLE_FROM = 0.97
GREY_FROM = 0.5
LISTED_FROM = 0.3
WORDS = 3
CHARACTERS = 5
BY_CHARACTERS = ("zh", "zh-Hant", "ja", "th")

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
        """How the page was made; used only to group counts."""


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


class _Separated(dict[int, str]):
    """The translation of characters for word splitting: the character, nothing, or a space."""

    def __missing__(self, code_point: int) -> str:
        """Look a character up when it is first seen."""
        character = chr(code_point)
        category = unicodedata.category(character)
        is_word = category[0] in "LMN" and character not in "\u02bb\u02bc"
        self[code_point] = character if is_word else "" if category == "Cf" else " "
        return self[code_point]


_SEPARATED = _Separated()


def words(text: str) -> list[str]:
    """Return the words of a text, in its order."""
    return unicodedata.normalize("NFKC", text).lower().translate(_SEPARATED).split()


def bare_text(text: str) -> str:
    """Return the text without case, punctuation, white space and control characters."""
    folded = unicodedata.normalize("NFKC", text).lower()
    return "".join(
        character for character in folded if unicodedata.category(character)[0] not in "PZC"
    )


def shingles(text: str, language: str) -> frozenset[str]:
    """Return the word 3-grams of a text, or character 5-grams for languages without spaces; empty if
    the text is too short.
    """
    word_list = words(text)
    if language in BY_CHARACTERS:
        run = "".join(word_list)
        return frozenset(
            run[start : start + CHARACTERS] for start in range(len(run) - CHARACTERS + 1)
        )
    return frozenset(
        " ".join(word_list[start : start + WORDS]) for start in range(len(word_list) - WORDS + 1)
    )


def jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """Return |A and B| / |A or B|; 0 if both are empty."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared) if shared else 0.0


def is_judged(page: Text) -> bool:
    """Return whether a page can be a duplicate: it has a letter or a digit, and its record is not
    broken.
    """
    return page.kind != "broken" and any(character.isalnum() for character in page.text)


def find_pairs(pages: Sequence[Text], named: Sequence[tuple[str, str]] = ()) -> list[Pair]:
    """Return all pairs with a Jaccard of at least `LISTED_FROM` or equal bare texts, by later page,
    then earlier page.

    `named` are the (site, title) of each page, "" if unknown; it may be empty.
    """
    containing: defaultdict[str, list[int]] = defaultdict(list)
    same_text: defaultdict[str, list[int]] = defaultdict(list)
    sizes: list[int] = []
    listed: list[Pair] = []
    for later, page in enumerate(pages):
        features = shingles(page.text, page.language) if is_judged(page) else frozenset()
        sizes.append(len(features))
        shared: Counter[int] = Counter()
        for shingle in features:
            earlier_pages = containing[shingle]
            shared.update(earlier_pages)
            earlier_pages.append(later)
        equal = same_text[bare_text(page.text)] if is_judged(page) else []
        for earlier in sorted({*shared, *equal}):
            value = shared[earlier] / (sizes[earlier] + sizes[later] - shared[earlier] or 1)
            if earlier in equal:
                listed.append(Pair(earlier, later, value, "exact"))
            elif value >= LISTED_FROM:
                has_other_title = bool(named) and _has_other_title(named[earlier], named[later])
                listed.append(Pair(earlier, later, value, _true_verdict(value, has_other_title)))
        if is_judged(page):
            equal.append(later)
    return listed


def _has_other_title(left: tuple[str, str], right: tuple[str, str]) -> bool:
    return all((*left, *right)) and left[0] == right[0] and left[1] != right[1]


def _true_verdict(value: float, has_other_title: bool) -> TrueVerdict:
    if value >= (DUPLICATE_OF_OTHER_TITLE_FROM if has_other_title else DUPLICATE_FROM):
        return "duplicate"
    return "grey" if value >= GREY_FROM else "different"


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
class DemoFinding:
    """A wrongly judged page, and the page that it resembles most (missed) or was dropped for (false
    drop).
    """

    page: int
    other: int | None
    resemblance: float


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a set of verdicts. `misnamed` are duplicates that name no page kept before them,
    because chains are not allowed.
    """

    total: TruthTally = field(default_factory=TruthTally)
    by_language: dict[str, TruthTally] = field(default_factory=dict)
    by_kind: dict[str, TruthTally] = field(default_factory=dict)
    missed: list[DemoFinding] = field(default_factory=list)
    false_drops: list[DemoFinding] = field(default_factory=list)
    misnamed: list[int] = field(default_factory=list)


def score_verdicts(
    pages: Sequence[Text],
    verdicts: Mapping[int, TrueJudgement],
    order: Sequence[int] | None = None,
    known: Sequence[Pair] | None = None,
) -> Score:
    """Score verdicts in the order of judging, against the pages kept before each.

    A page is a *positive* if a page kept before it (unique by these verdicts) resembles it by at
    least 0.8, *grey* if the best one does by 0.5 to 0.8, otherwise a *negative*. Recall is the share
    of positives judged duplicate. A page judged duplicate is a *false drop* if it is a negative,
    because its content is lost, and also if its representative resembles it by less than 0.5, because
    the reference leads to another content.

    Args:
        pages: the crawl.
        verdicts: by index in `pages`; every page that `is_judged` must have one, others are ignored.
        order: indices in the order of judging, if it was not that of `pages` (several partitions);
            missing pages come last.
        known: the result of `find_pairs(pages)`, if it was computed before.

    Raises:
        InputError: a page has no verdict.
    """
    pairs_by_page: defaultdict[int, dict[int, Pair]] = defaultdict(dict)
    for pair in find_pairs(pages) if known is None else known:
        pairs_by_page[pair.earlier][pair.later] = pairs_by_page[pair.later][pair.earlier] = pair
    score = Score()
    kept_pages: set[int] = set()
    for place in dict.fromkeys([*(order or ()), *range(len(pages))]):
        if not is_judged(pages[place]):
            continue
        if place not in verdicts:
            raise InputError(
                f"Page {place} of the crawl has no verdict, so nothing can be scored; judge every "
                "page first."
            )
        verdict = verdicts[place]
        _count(score, pages[place], place, verdict, pairs_by_page[place], kept_pages)
        if not verdict.duplicate:
            kept_pages.add(place)
        elif verdict.representative not in kept_pages:
            score.misnamed.append(place)
    return score


def _count(
    score: Score,
    page: Text,
    place: int,
    verdict: TrueJudgement,
    pairs_of_page: Mapping[int, Pair],
    kept_pages: Collection[int],
) -> None:
    best, pair = max(
        ((other, pair) for other, pair in pairs_of_page.items() if other in kept_pages),
        key=lambda item: (item[1].is_copy, item[1].resemblance),
        default=(None, None),
    )
    resemblance = pair.resemblance if pair else 0.0
    positive = pair is not None and pair.is_copy
    near = positive and pair is not None and pair.verdict != "exact"
    grey = not positive and resemblance >= GREY_FROM
    named = pairs_of_page.get(-1 if verdict.representative is None else verdict.representative)
    named_resemblance = named.resemblance if named else 0.0
    false_drop = verdict.duplicate and min(resemblance, named_resemblance) < GREY_FROM
    if false_drop:
        score.false_drops.append(DemoFinding(place, verdict.representative, named_resemblance))
    if positive and not verdict.duplicate:
        score.missed.append(DemoFinding(place, best, resemblance))
    for tally in (
        score.total,
        score.by_language.setdefault(page.language, TruthTally()),
        score.by_kind.setdefault(page.kind, TruthTally()),
    ):
        tally.pages += 1
        tally.positives += positive
        tally.found += positive and verdict.duplicate
        tally.near_positives += near
        tally.near_found += near and verdict.duplicate
        tally.grey += grey
        tally.grey_dropped += grey and verdict.duplicate
        tally.negatives += not positive and not grey
        tally.false_drops += false_drop
