"""Hard negatives: pages of one site, which share everything except their article.

A site has a navigation bar, a side column of teasers and a footer, equal on all its pages; the body
is a separate article. The length of the boilerplate relative to the article is random for each
site, so that pages of one site have a Jaccard of about 0.1 to 0.5. Words are those of the
mini-crawl (`prose`).

Invariants: a seed gives the same pages on every Python; no two pages have a Jaccard of 0.5 or more,
by the exact measure (`truth`), because such pages are left out, so every page is a negative.
"""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass
from typing import Final

from bench.corpus import LISTED_FROM, CorpusDocument
from bench.prose import LANGUAGES, Dice, Writer, language
from bench.truth import jaccard, shingles
from stream_dedup.demo.score import GREY_FROM, Pair

PAGES: Final = 100
_PAGES_PER_SITE: Final = 10
# Sentences of a body, and the teasers of a side column as a share of them.
_BODY_SENTENCES: Final = (8, 30)
_TEASERS: Final = (0.2, 1.1)
KIND: Final = "template"


@dataclass(frozen=True, slots=True)
class Templates:
    """Generated pages, the pairs of them with a Jaccard of at least `LISTED_FROM`, and for each
    page the Jaccard of its nearest page.
    """

    documents: tuple[CorpusDocument, ...]
    pairs: tuple[Pair, ...]
    nearest: tuple[float, ...]

    def quantiles(self) -> tuple[float, float, float]:
        """Return the 10 %, 50 % and 90 % quantiles of the Jaccard with the nearest other page."""
        cuts = statistics.quantiles(self.nearest, n=10, method="inclusive")
        return cuts[0], cuts[4], cuts[8]


def template_language(code: str) -> str:
    """Return the language of `prose` that stands for a language: itself, or English."""
    code = code.removesuffix("-Hant")
    return code if code in LANGUAGES else "en"


@functools.cache
def template_pages(code: str, seed: int, pages: int = PAGES) -> Templates:
    """Return so many pages in a language of `prose`."""
    dice = Dice("template sites", code, seed)
    documents: list[CorpusDocument] = []
    features: list[frozenset[str]] = []
    pairs: list[Pair] = []
    nearest: list[float] = []
    while len(documents) < pages:
        head, side, foot = _boilerplate(dice, code)
        site = f"site-{len(documents) // _PAGES_PER_SITE}"
        for _ in range(_PAGES_PER_SITE):
            body = language(code).render_article(
                Writer(dice).article(_between(dice, *_BODY_SENTENCES))
            )
            text = f"{head}\n\n{body}\n\n{side}\n\n{foot}"
            of_page = shingles(text, code)
            alike = [jaccard(of_page, other) for other in features]
            if max(alike, default=0.0) >= GREY_FROM or len(documents) == pages:
                continue
            place = len(documents)
            pairs += [
                Pair(other, place, value, "different")
                for other, value in enumerate(alike)
                if value >= LISTED_FROM
            ]
            nearest = [max(before, value) for before, value in zip(nearest, alike, strict=True)] + [
                max(alike, default=0.0)
            ]
            documents.append(CorpusDocument(f"template:{code}:{site}:{place}", text, code, KIND))
            features.append(of_page)
    return Templates(tuple(documents), tuple(pairs), tuple(nearest))


def _boilerplate(dice: Dice, code: str) -> tuple[str, str, str]:
    sentences = language(code)
    low, high = _BODY_SENTENCES
    teasers = round((low + high) / 2 * (_TEASERS[0] + (_TEASERS[1] - _TEASERS[0]) * dice.roll()))
    navigation = " | ".join(
        word for (word,) in dice.shuffled(sentences.lists["nav"])[: 5 + dice.below(12)]
    )
    footer = "\n".join(dice.shuffled(sentences.texts["footer"])[: 1 + dice.below(8)])
    return navigation, sentences.render_article(Writer(dice).article(teasers)), footer


def _between(dice: Dice, low: int, high: int) -> int:
    return low + dice.below(high - low + 1)
