"""Measure how many different pages of real sites are dropped, and how many copies are found.

A site is a file NAME.jsonl of rows `{"id", "text", "site", "page"}`, with `"title"` where it is
known. All versions of one page have the same `page`. The index judges the rows in the order of the
file, once for each set of thresholds.

- *lost*: the first version of a page was dropped as a copy of another page.
- *versions*: later versions of a page that differ from all earlier versions, by the exact Jaccard
  with the nearest of these, and how many of them were dropped, whichever page they name.
- *edited*: a sample of pages with up to `EDITED_MAX` of their words exchanged, judged after the
  site: on the same site with the same title, and on another site.
- *families*: generated groups of 2 to 8 pages of one site that share 70 to 95 % of their words, and
  as many pages of one template; pages of a family are different pages.

Invariants: everything depends only on the files and the seed; Jaccards are exact, by `truth`.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bench.find_texts import vocabulary
from bench.quality import KnownPrints, Say, fingerprinter_of
from bench.truth import jaccard, shingles
from stream_dedup.domain.document import Verdict
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.plan import PLANS, Plan
from stream_dedup.domain.sketch import as_text
from stream_dedup.files.offline import Judged, OfflineDocument, judge_documents

EDGES: Final = (0.65, 0.75, 0.85, 0.9)
BANDS: Final = ("below .65", ".65 to .75", ".75 to .85", ".85 to .9", "from .9")
EDITED_MAX: Final = 0.03
EDITED: Final = 300
SAME_SITE: Final = (65, 75, 80, 85, 90, 95)
"""Thresholds of one site, in per cent, that are measured without titles."""
BY_TITLE: Final = ((70, 95), (70, 97), (75, 97), (85, 97))
"""Thresholds of equal and of different titles, in per cent, that are measured with titles."""
FAMILY_SHARES: Final = (70, 75, 80, 85, 90, 95)
FAMILY_SIZES: Final = (2, 3, 4, 5, 6, 7, 8)
FAMILIES: Final = 20
"""Made-up families of each share and size."""
FAMILY_WORDS: Final = 360
_VOCABULARY: Final = 4000
_FAMILY_SITE: Final = "families.example"
_OTHER_SITE: Final = "copies.example"


class Page(NamedTuple):
    """A version of a page of a real site."""

    id: str
    text: str
    site: str
    page: str
    title: str


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds for pages of one site; `with_titles`: whether their titles are known."""

    plan: Plan
    with_titles: bool

    @property
    def label(self) -> str:
        """The thresholds as text: `0.85`, or `0.75, 0.97` of equal and of different titles."""
        if self.with_titles:
            return f"{as_text(self.plan.unsure)}, {as_text(self.plan.other_title)}"
        return as_text(self.plan.same_site)


@dataclass(frozen=True, slots=True)
class RealSiteFinding:
    """The result of one set of thresholds for one site.

    `versions` and `versions_found`: the number of changed versions, and of those that were dropped,
    for each of `BANDS`. `edited_within` and `edited_across`: how many of the `edited` copies
    were found on the same site and on another site.
    """

    name: str
    thresholds: str
    with_titles: bool
    pages: int
    lost: int
    versions: tuple[int, ...]
    versions_found: tuple[int, ...]
    edited: int
    edited_within: int
    edited_across: int

    def as_json(self) -> dict[str, object]:
        """Return everything by name."""
        return {
            "site": self.name,
            "thresholds": self.thresholds,
            "with_titles": self.with_titles,
            "pages": self.pages,
            "lost": self.lost,
            "versions": dict(zip(BANDS, self.versions, strict=True)),
            "versions_found": dict(zip(BANDS, self.versions_found, strict=True)),
            "edited": self.edited,
            "edited_within": self.edited_within,
            "edited_across": self.edited_across,
        }


@dataclass(frozen=True, slots=True)
class FamilyFinding:
    """The result for generated families whose pages share `share` per cent of their words: how many
    pages were dropped although they are different, and how many copies of them on another site were
    found.
    """

    share: int
    pages: int
    lost_with_titles: int
    lost_without: int
    copies: int
    copies_found: int


def read_sites(folder: Path) -> dict[str, list[Page]]:
    """Return the pages of each file NAME.jsonl of a folder, by NAME.

    The title of a row without one is the first line of its text.

    Raises:
        InputError: the folder has no such file, or a row lacks a field.
    """
    found = {
        path.stem: [
            _page(path, number, line)
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if line.strip()
        ]
        for path in sorted(folder.glob("*.jsonl"))
    }
    if not found:
        raise InputError(f"There is no NAME.jsonl in {folder}; write one file for each site.")
    return found


def _page(path: Path, number: int, line: str) -> Page:
    try:
        row = json.loads(line)
        identifier, text, site, page = (str(row[name]) for name in ("id", "text", "site", "page"))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path.name}:{number} is no page of a site; each line is a JSON object with id, text, "
            "site and page."
        ) from error
    title = row.get("title") or next(iter(text.strip().splitlines()), "")
    return Page(identifier, text, site, page, str(title))


def measure_real_sites(folder: Path, seed: int, say: Say) -> Iterator[RealSiteFinding]:
    """Yield a finding of each site and each set of thresholds.

    Raises:
        InputError: the folder cannot be read as sites.
    """
    for name, pages in read_sites(folder).items():
        say(f"{name}: {len(pages):,} rows")
        site = RealSite(name, pages, seed)
        for thresholds in thresholds_measured():
            yield site.judge(thresholds)


def thresholds_measured(plan: Plan = PLANS["bands"]) -> Iterator[Thresholds]:
    """Yield what is measured: thresholds of one site without titles, then pairs of them with."""
    for share in SAME_SITE:
        yield Thresholds(plan.with_similarity(same_site=share), with_titles=False)
    for equal, other in BY_TITLE:
        asked = plan.with_similarity(unsure=equal, other_title=other)
        yield Thresholds(asked, with_titles=True)


class RealSite:
    """The pages of one site and edited copies of some of them, fingerprinted once."""

    def __init__(self, name: str, pages: Sequence[Page], seed: int) -> None:
        self.name, self.pages = name, pages
        chance = np.random.default_rng([seed, len(pages)])
        words = sorted({word for page in pages[:200] for word in page.text.split()})
        sample = chance.choice(len(pages), min(EDITED, len(pages)), replace=False).tolist()
        self.edited = [(place, edited(pages[place].text, words, chance)) for place in sample]
        texts = [*(page.text for page in pages), *(text for _, text in self.edited)]
        self._known = KnownPrints(fingerprinter_of("words", 0), texts)
        self._versions = changed_versions(pages)

    def judge(self, thresholds: Thresholds) -> RealSiteFinding:
        """Return what the index does to the site's rows and then to the edited copies."""
        verdicts = self._verdicts(thresholds, self.pages[0].site)
        across = self._verdicts(thresholds, _OTHER_SITE)
        lost = lost_pages(self.pages, verdicts[: len(self.pages)])
        versions, found = [0] * len(BANDS), [0] * len(BANDS)
        for place, alike in self._versions.items():
            band = bisect_right(EDGES, alike)
            versions[band] += 1
            found[band] += verdicts[place].verdict is Verdict.DUPLICATE
        return RealSiteFinding(
            self.name,
            thresholds.label,
            thresholds.with_titles,
            len({page.page for page in self.pages}),
            lost,
            tuple(versions),
            tuple(found),
            len(self.edited),
            _count_duplicates(verdicts[len(self.pages) :]),
            _count_duplicates(across[len(self.pages) :]),
        )

    def _verdicts(self, thresholds: Thresholds, site_of_copies: str) -> list[Judged]:
        """Return the verdicts on the site's rows and on the edited copies, one pass in order."""

        def document(number: int, page: Page, text: str, site: str) -> OfflineDocument:
            title = page.title if thresholds.with_titles else ""
            return OfflineDocument(str(number).encode(), text, site=site, title=title)

        documents = [
            document(number, page, page.text, page.site) for number, page in enumerate(self.pages)
        ]
        documents += [
            document(number, self.pages[place], text, site_of_copies)
            for number, (place, text) in enumerate(self.edited, len(self.pages))
        ]
        recipe = self._known.recipe
        return list(judge_documents(documents, recipe, thresholds.plan, self._known.fingerprint))


def lost_pages(pages: Sequence[Page], verdicts: Sequence[Judged]) -> int:
    """Return how many pages were dropped with their first version, as a copy of another page."""
    seen: set[str] = set()
    lost = 0
    for page, verdict in zip(pages, verdicts, strict=True):
        is_first = page.page not in seen
        seen.add(page.page)
        if is_first and verdict.kept_number is not None:
            lost += pages[verdict.kept_number].page != page.page
    return lost


def changed_versions(pages: Sequence[Page]) -> dict[int, float]:
    """Return the places of later versions that differ from those before, each with the exact
    Jaccard of the nearest version before it.
    """
    earlier: defaultdict[str, list[str]] = defaultdict(list)
    found = {}
    for place, page in enumerate(pages):
        before = earlier[page.page]
        if before and page.text not in before:
            features = shingles(page.text, "en")
            found[place] = max(jaccard(features, shingles(text, "en")) for text in before)
        before.append(page.text)
    return found


def edited(text: str, words: Sequence[str], chance: np.random.Generator) -> str:
    """Return a text with up to `EDITED_MAX` of its words exchanged for others of the site."""
    parts = re.split(r"(\s+)", text)  # words at even places, what is between them at odd ones
    count = int(chance.uniform(0, EDITED_MAX) * (len(parts) // 2))
    for place in chance.choice(len(parts) // 2, count, replace=False).tolist():
        parts[2 * place] = words[int(chance.integers(len(words)))]
    return "".join(parts)


def _count_duplicates(verdicts: Sequence[Judged]) -> int:
    return sum(verdict.verdict is Verdict.DUPLICATE for verdict in verdicts)


def measure_families(seed: int) -> Iterator[FamilyFinding]:
    """Yield what the default plan does to made-up families, for each of `FAMILY_SHARES`."""
    for share in FAMILY_SHARES:
        families = [
            _family(np.random.default_rng([seed, share, size, number]), share, size)
            for size in FAMILY_SIZES
            for number in range(FAMILIES)
        ]
        chance = np.random.default_rng([seed, share])
        of_template = _family(chance, 60, sum(map(len, families)))
        pages = [text for family in families for text in family]
        order = chance.permutation(len(pages) + len(of_template)).tolist()
        texts = [[*pages, *of_template][place] for place in order]
        words = _vocabulary()
        copies = [edited(text, words, chance) for text in pages]
        known = KnownPrints(fingerprinter_of("words", 0), [*texts, *copies])
        yield FamilyFinding(
            share,
            len(texts),
            _count_duplicates(_judge_texts(known, texts, with_titles=True)),
            _count_duplicates(_judge_texts(known, texts, with_titles=False)),
            len(copies),
            _count_duplicates(_judge_texts(known, texts, copies, with_titles=True)[len(texts) :]),
        )


def _judge_texts(
    known: KnownPrints, texts: Sequence[str], copies: Sequence[str] = (), *, with_titles: bool
) -> list[Judged]:
    """Return the verdicts on pages of one site, and then on their copies on another."""
    sites = [_FAMILY_SITE] * len(texts) + [_OTHER_SITE] * len(copies)
    documents = [
        OfflineDocument(
            str(number).encode(), text, site=site, title=f"Page {number}" if with_titles else ""
        )
        for number, (text, site) in enumerate(zip([*texts, *copies], sites, strict=True))
    ]
    return list(judge_documents(documents, known.recipe, PLANS["bands"], known.fingerprint))


def _family(chance: np.random.Generator, share: int, size: int) -> list[str]:
    """Return pages that share `share` per cent of their words, half before and half behind."""
    words = _vocabulary()
    shared = chance.choice(words, FAMILY_WORDS * share // 100).tolist()
    half = len(shared) // 2
    return [
        " ".join(
            [
                *shared[:half],
                *chance.choice(words, FAMILY_WORDS - len(shared)).tolist(),
                *shared[half:],
            ]
        )
        for _ in range(size)
    ]


@functools.cache
def _vocabulary() -> list[str]:
    return list(itertools.islice(vocabulary("en"), _VOCABULARY))
