"""Generate large sites: many pages of one template, each with different words, and planted copies
of some of them.

A page has `WORDS` words. A share of them, the template, is equal on all pages of its site: half of
it comes before the words of the page, and half after them. The other words are drawn again for each
page. So any two pages of a site have nearly the same Jaccard, which follows from the share, and a
filter should keep them all while that is below its threshold.

One index judges the pages of all sites of one kind in random order, and then the planted copies. A
copy is a page in which as many words were exchanged as give it the required exact Jaccard with the
page.

Invariants: everything depends only on the seed; Jaccards are exact, by `truth`, with every page of
the same site that was kept before. Pages of different sites share no template and are not compared:
their Jaccard is almost 0. Pages have a site and no title; copies are on another site.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.bands import FALSE, BandCounts, count_bands
from bench.find_texts import vocabulary
from bench.quality import KnownPrints, Say, fingerprinter_of, plans_for
from bench.truth import jaccard, shingles
from stream_dedup.domain.document import Verdict
from stream_dedup.domain.plan import PLANS, Plan
from stream_dedup.files.offline import OfflineDocument, judge_documents

LANGUAGES: Final = ("en", "zh", "ja", "ar")
SIZES: Final = (10, 100, 1000, 4000)
TEMPLATES: Final = (50, 60, 65, 70, 75, 80)
LEVELS: Final = (0.95, 0.85, 0.75)
WORDS: Final = 360
_VOCABULARY: Final = 4000
_FREQUENT: Final = 0.4  # of the words so many are drawn by Pareto's law, the others evenly
_PARETO: Final = 0.9
_GAPS: Final = {"zh": "", "ja": ""}
# A copy is of the page that it names, rather than another page of the site, from here on.
_NAMED_FROM: Final = 0.65

Words = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """What to measure. `pages`: the number for each language, template and size, at least one site;
    `copies`: the number for each of these and each level.

    `templates`: shares of a page's words, in percent. `keys`: hash keys, the public one first.
    """

    languages: tuple[str, ...] = LANGUAGES
    templates: tuple[int, ...] = TEMPLATES
    sizes: tuple[int, ...] = SIZES
    pages: int = 4000
    copies: int = 80
    presets: tuple[str, ...] = ("words",)
    plans: tuple[Plan, ...] = (PLANS["bands"],)
    keys: int = 6
    seed: int = 1


@dataclass(frozen=True, slots=True)
class CopyCounts:
    """The number of planted copies, of those that were dropped, and of dropped ones that name a
    page that they hardly resemble.
    """

    planted: int = 0
    found: int = 0
    misnamed: int = 0

    def __add__(self, other: CopyCounts) -> CopyCounts:
        return CopyCounts(
            self.planted + other.planted, self.found + other.found, self.misnamed + other.misnamed
        )


@dataclass(frozen=True, slots=True)
class SiteFinding:
    """The result of one plan, with one hash key, for all sites of one kind.

    `alike`: the lowest and highest Jaccard of a page with the nearest page kept before it, without
    the first page of each site. `worst`: the highest share of falsely dropped pages of any site.
    `copies`: for each of `LEVELS`.
    """

    language: str
    template: int
    size: int
    method: str
    plan: str
    key: int
    sites: int
    alike: tuple[float, float]
    bands: BandCounts
    worst: float
    copies: tuple[CopyCounts, ...]

    def as_json(self) -> dict[str, object]:
        """Return everything by name."""
        return {
            "language": self.language,
            "template_percent": self.template,
            "site_pages": self.size,
            "method": self.method,
            "plan": self.plan,
            "key": self.key,
            "sites": self.sites,
            "jaccard_least_greatest": self.alike,
            "bands": self.bands.as_json(),
            "worst_site": self.worst,
            "copies": {
                f"{level:.2f}": {
                    "planted": count.planted,
                    "found": count.found,
                    "misnamed": count.misnamed,
                }
                for level, count in zip(LEVELS, self.copies, strict=True)
            },
        }


@dataclass(frozen=True, slots=True)
class SiteSummary:
    """The findings of one plan, template and size, combined over keys and over the named languages."""

    method: str
    plan: str
    template: int
    size: int
    sites: int
    alike: tuple[float, float]
    bands: BandCounts
    worst: float
    copies: tuple[CopyCounts, ...]

    @property
    def false_of_100_000(self) -> float | None:
        """Drops per 100,000 pages that resemble no kept page by 0.5; None if there are none."""
        documents = self.bands.documents[FALSE]
        return 1e5 * self.bands.dropped[FALSE] / documents if documents else None

    @property
    def dropped_of_100_000(self) -> float:
        """Drops per 100,000 pages, in every band."""
        return 1e5 * sum(self.bands.dropped) / sum(self.bands.documents)


@dataclass(frozen=True, slots=True)
class Copy:
    """A planted copy: the number of its page, its level (index in `LEVELS`), and its text."""

    of: int
    level: int
    text: str


class SitePages:
    """All sites of one language, template and size: texts by page number, the order of judging, and
    the copies, which are judged last.
    """

    def __init__(self, language: str, template: int, size: int, options: SiteOptions) -> None:
        self.language, self.template, self.size = language, template, size
        self.sites = max(1, options.pages // size)
        self._seed = [options.seed, LANGUAGES.index(language), template, size]
        self._words = _words(language)
        made = [self._page(site, page) for site in range(self.sites) for page in range(size)]
        self.texts = [self._join_words(words) for words in made]
        chance = self._generator(2)
        self.order: list[int] = chance.permutation(len(made)).tolist()
        self.copies = [
            self._copy(made[of], of, level, chance)
            for level in range(len(LEVELS))
            for of in chance.choice(
                len(made), min(options.copies, len(made)), replace=False
            ).tolist()
        ]

    def site_of(self, page: int) -> int:
        """Return the number of a page's site."""
        return page // self.size

    def features(self, text: str) -> frozenset[str]:
        """Return the exact shingles of a text."""
        return shingles(text, self.language)

    @functools.cached_property
    def alike(self) -> list[NDArray[np.float32]]:
        """The exact Jaccard of any two pages of a site, (size, size) for each site."""
        return [
            jaccards([self.features(text) for text in self.texts[first : first + self.size]])
            for first in range(0, len(self.texts), self.size)
        ]

    def _page(self, site: int, page: int) -> Words:
        """Return the words of a page: half of the template, its own, the other half."""
        count = WORDS * self.template // 100
        shared = self._draw_words(self._generator(0, site), count)
        return np.concatenate(
            [
                shared[: count // 2],
                self._draw_words(self._generator(1, site, page), WORDS - count),
                shared[count // 2 :],
            ]
        )

    def _copy(self, words: Words, of: int, level: int, chance: np.random.Generator) -> Copy:
        """Return a page with so many words exchanged that its Jaccard with itself comes nearest to
        the level.
        """
        places, others = chance.permutation(WORDS), self._draw_words(chance, WORDS)
        whole = self.features(self.texts[of])

        def changed(count: int) -> str:
            copy = words.copy()
            copy[places[:count]] = others[:count]
            return self._join_words(copy)

        low, high = 1, WORDS // 4
        while low < high:  # the first count that brings it to the level or below
            middle = (low + high) // 2
            if jaccard(whole, self.features(changed(middle))) > LEVELS[level]:
                low = middle + 1
            else:
                high = middle
        best = min(
            (low - 1, low),
            key=lambda count: abs(jaccard(whole, self.features(changed(count))) - LEVELS[level]),
        )
        return Copy(of, level, changed(max(1, best)))

    def _generator(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([*self._seed, *what])

    def _draw_words(self, chance: np.random.Generator, count: int) -> Words:
        frequent = np.minimum(chance.pareto(_PARETO, count), _VOCABULARY - 1).astype(np.int64)
        return np.where(
            chance.random(count) < _FREQUENT, frequent, chance.integers(0, _VOCABULARY, count)
        )

    def _join_words(self, words: Words) -> str:
        return _GAPS.get(self.language, " ").join([self._words[word] for word in words.tolist()])


@functools.cache
def _words(language: str) -> list[str]:
    return list(itertools.islice(vocabulary(language), _VOCABULARY))


def jaccards(features: Sequence[frozenset[str]]) -> NDArray[np.float32]:
    """Return the exact Jaccard of any two of these sets, (n, n), by an inverted index."""
    containing: defaultdict[str, list[int]] = defaultdict(list)
    for place, feature_set in enumerate(features):
        for shingle in feature_set:
            containing[shingle].append(place)
    count = len(features)
    shared = np.zeros((count, count), np.uint16)
    for places in containing.values():
        if len(places) == count:
            continue  # what all share is added below, at once
        if len(places) > 1:
            shared[np.ix_(places, places)] += 1
    shared += np.uint16(sum(len(places) == count for places in containing.values()))
    sizes = np.array([len(feature_set) for feature_set in features], np.float32)
    np.fill_diagonal(shared, sizes)
    found: NDArray[np.float32] = shared / np.maximum(sizes[:, None] + sizes[None, :] - shared, 1)
    return found


def measure_sites(options: SiteOptions, say: Say) -> Iterator[SiteFinding]:
    """Yield a finding of each language, template, size, recipe, hash key and plan.

    Raises:
        ConfigurationError: there is no such recipe.
    """
    kinds = itertools.product(options.languages, options.templates, options.sizes)
    for language, template, size in kinds:
        pages = SitePages(language, template, size, options)
        say(f"{language}, template {template} %: {pages.sites:,} sites of {size:,} pages")
        for preset, key in itertools.product(options.presets, range(options.keys)):
            known = KnownPrints(
                fingerprinter_of(preset, key), [*pages.texts, *(copy.text for copy in pages.copies)]
            )
            for plan in plans_for(known.recipe, options.plans):
                yield judge_site(pages, known, plan, preset, key)


def judge_site(
    pages: SitePages, known: KnownPrints, plan: Plan, method: str, key: int
) -> SiteFinding:
    """Judge the pages, then their copies, and return the finding."""
    texts = [*(pages.texts[place] for place in pages.order), *(copy.text for copy in pages.copies)]
    hosts = [f"site{pages.site_of(place)}.example" for place in pages.order]
    hosts += ["copies.example"] * len(pages.copies)
    documents = [
        OfflineDocument(str(number).encode(), text, site=host)
        for number, (text, host) in enumerate(zip(texts, hosts, strict=True))
    ]
    judged = list(judge_documents(documents, known.recipe, plan, known.fingerprint))
    count = len(pages.order)
    dropped = np.zeros(count, bool)
    for place, verdict in zip(pages.order, judged[:count], strict=True):
        dropped[place] = verdict.verdict is Verdict.DUPLICATE
    nearest = _nearest(pages, dropped)
    by_site = [
        count_bands(
            nearest[first : first + pages.size], dropped[first : first + pages.size].tolist()
        )
        for first in range(0, count, pages.size)
    ]
    named = [
        None if judged_page.kept_number is None else texts[judged_page.kept_number]
        for judged_page in judged[count:]
    ]
    later = [judged_page for judged_page in nearest if judged_page]
    return SiteFinding(
        pages.language,
        pages.template,
        pages.size,
        method,
        plan.name,
        key,
        pages.sites,
        (min(later, default=0.0), max(later, default=0.0)),
        sum(by_site, BandCounts()),
        max(judged_page.dropped[FALSE] for judged_page in by_site) / pages.size,
        _count_copies(pages, named),
    )


def _nearest(pages: SitePages, dropped: NDArray[np.bool_]) -> list[float]:
    """Return of each page its Jaccard with the nearest page of its site that was kept before it."""
    when = np.empty(len(pages.order), np.int64)
    when[pages.order] = np.arange(len(pages.order))
    found: list[float] = []
    for site, alike in enumerate(pages.alike):
        rows_of_site = slice(site * pages.size, (site + 1) * pages.size)
        found += nearest_before(alike, when[rows_of_site], dropped[rows_of_site])
    return found


def nearest_before(
    alike: NDArray[np.float32], when: NDArray[np.int64], dropped: NDArray[np.bool_]
) -> list[float]:
    """Return of each of n pages the greatest Jaccard with a page that came before it and was kept;
    0 if there is none.

    `alike`: (n, n); `when` each came, and whether it was `dropped`: (n,).
    """
    is_kept_before = (when[None, :] < when[:, None]) & ~dropped[None, :]
    found: list[float] = np.where(is_kept_before, alike, np.float32(0)).max(axis=1).tolist()
    return found


def _count_copies(pages: SitePages, named: Sequence[str | None]) -> tuple[CopyCounts, ...]:
    counts = [CopyCounts()] * len(LEVELS)
    for copy, text in zip(pages.copies, named, strict=True):
        is_misnamed = (
            text is not None
            and jaccard(pages.features(copy.text), pages.features(text)) < _NAMED_FROM
        )
        counts[copy.level] += CopyCounts(1, text is not None, is_misnamed)
    return tuple(counts)


def summarise_findings(
    findings: Sequence[SiteFinding], language: str | None = None
) -> list[SiteSummary]:
    """Return one line for each plan, template and size, over all keys, of one language or of
    all.
    """
    groups: defaultdict[tuple[str, str, int, int], list[SiteFinding]] = defaultdict(list)
    for finding in findings:
        if language in (None, finding.language):
            groups[finding.method, finding.plan, finding.template, finding.size].append(finding)
    return [
        SiteSummary(
            method,
            plan,
            template,
            size,
            sum(finding.sites for finding in group),
            (
                min(finding.alike[0] for finding in group),
                max(finding.alike[1] for finding in group),
            ),
            sum((finding.bands for finding in group), BandCounts()),
            max(finding.worst for finding in group),
            tuple(
                sum((finding.copies[level] for finding in group), CopyCounts())
                for level in range(len(LEVELS))
            ),
        )
        for (method, plan, template, size), group in groups.items()
    ]
