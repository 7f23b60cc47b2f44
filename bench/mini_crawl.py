"""Generate a small crawl in nine languages with difficult near-duplicates.

Invariants: a seed gives the same bytes on every Python (a golden test compares them); a copy comes
after its source page; a kind describes how a page was made, never whether it is a duplicate: `truth`
measures that on the texts alone.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bench.prose import LANGUAGES, Article, Dice, Sentence, Writer, language
from stream_dedup.demo.crawl import CrawledPage
from stream_dedup.domain.errors import InputError

KINDS = ("original", "re-crawl", "mirror", "edit", "translation", "template", "short", "broken")
PAGES_MIN = 40

# Shares of a mini-crawl. One record is broken, the rest is originals.
_SHARES = {
    "re-crawl": 0.12,
    "mirror": 0.13,
    "edit": 0.14,
    "translation": 0.06,
    "template": 0.07,
    "short": 0.06,
}
_FIRST_FETCH = datetime(2025, 3, 1, 6, tzinfo=UTC)
_SECONDS_PER_FETCH = 7

# Hosts by their index in a language's list: three newspapers of decreasing weight, advertisements, a
# read-later service.
_NEWSPAPERS = (0, 0, 0, 1, 1, 2)
_ADVERTISEMENTS = 3
READ_LATER = 4
# Numbers of navigation words and footer lines on every page of a host.
_LAYOUTS = ((6, 1), (8, 2), (5, 1), (14, 9), (9, 3))
# Minimum and maximum of an article's `Language.size` (words, or characters without spaces); most
# articles are short.
_ARTICLE_SIZES = {"zh": (320, 1450), "ja": (320, 1450), "th": (560, 3200)}
_ARTICLE_SIZE = (130, 800)
_EDIT_SHARE = (0.01, 0.10)
_REVISION_SHARE = (0.01, 0.05)


def mini_crawl(seed: int, pages: int = 600) -> list[CrawledPage]:
    """Return a crawl of `pages` pages in crawl order.

    Raises:
        InputError: fewer than `PAGES_MIN` pages, too few for each kind in each language.
    """
    if pages < PAGES_MIN:
        raise InputError(
            f"A mini-crawl of {pages} pages cannot show every kind of page; ask for at least "
            f"{PAGES_MIN}."
        )
    crawl = _MiniCrawl(seed)
    kinds = [kind for kind, share in _SHARES.items() for _ in range(round(share * pages))] + [
        "broken"
    ]
    originals = pages - len(kinds) - len(LANGUAGES)
    for kind in ["original"] * len(LANGUAGES) + crawl.dice.shuffled(
        ["original"] * originals + kinds
    ):
        crawl.fetch(kind)
    return crawl.pages


@dataclass(frozen=True, slots=True)
class _Source:
    """A page that may be copied: its article and its position."""

    id: str
    language: str
    host: int
    article: Article
    root: str


class _MiniCrawl:
    def __init__(self, seed: int) -> None:
        self.dice = Dice("mini-crawl", seed)
        self.pages: list[CrawledPage] = []
        self._originals: list[_Source] = []
        self._sources: list[_Source] = []
        self._latest: dict[str, _Source] = {}
        self._next_languages: list[str] = []
        self._languages_of: dict[str, list[str]] = {}
        self._template: dict[str, _Source] = {}
        self._shorts: dict[str, str] = {}

    def fetch(self, kind: str) -> None:
        """Add a page of a kind."""
        make = {
            "original": self._add_original,
            "re-crawl": self._add_re_crawl,
            "mirror": self._add_mirror,
            "edit": self._add_edit,
            "translation": self._add_translation,
            "template": self._add_template,
            "short": self._add_short,
            "broken": self._add_broken,
        }
        make[kind]()

    def _add_original(self) -> None:
        code = self._next_language()
        low, high = _ARTICLE_SIZES.get(code, _ARTICLE_SIZE)
        size = low + (high - low) * self.dice.roll() * self.dice.roll()
        article = Writer(self.dice).article(round(size / language(code).sentence_size))
        self._originals.append(
            self._add_article("original", None, code, self.dice.pick(_NEWSPAPERS), article)
        )

    def _add_re_crawl(self) -> None:
        source = self._latest[self._pick_source().id]
        draw = self.dice.roll()
        article = source.article
        if draw >= 0.6:
            article = self._edit_article(article, source.language, self._between(*_REVISION_SHARE))
        self._add_article(
            "re-crawl",
            source,
            source.language,
            source.host,
            article,
            url=source.id,
            respaced=0.4 <= draw < 0.6,
        )

    def _add_mirror(self) -> None:
        source = self._pick_source()
        others = [
            host for host in (READ_LATER, READ_LATER, READ_LATER, 0, 1, 2) if host != source.host
        ]
        self._add_article("mirror", source, source.language, self.dice.pick(others), source.article)

    def _add_edit(self) -> None:
        source = self._pick_source()
        host = source.host if self.dice.roll() < 0.5 else self.dice.pick(_NEWSPAPERS)
        article = self._edit_article(source.article, source.language, self._between(*_EDIT_SHARE))
        self._add_article("edit", source, source.language, host, article)

    def _add_translation(self) -> None:
        source = self.dice.pick(
            [
                source
                for source in self._originals
                if len(self._languages_of[source.root]) < len(LANGUAGES)
            ]
        )
        code = self.dice.pick(
            [code for code in LANGUAGES if code not in self._languages_of[source.root]]
        )
        self._add_article("translation", source, code, self.dice.pick(_NEWSPAPERS), source.article)

    def _add_template(self) -> None:
        """Add an advertisement: a new one in two of three cases, otherwise the first one with some
        fields changed.
        """
        code = self._next_language()
        first = self._template.get(code)
        article = Writer(self.dice).article(6 + self.dice.below(5))
        if first and self.dice.roll() < 1 / 3:
            article = self._refill(first.article, self.dice.pick((0.05, 0.1, 0.2, 0.35, 0.5)))
        source = self._add_article("template", first, code, _ADVERTISEMENTS, article)
        self._template.setdefault(code, source)

    def _add_short(self) -> None:
        code = self.dice.pick_early(LANGUAGES)
        texts = ("", *language(code).texts["short"])
        text = self.dice.pick_early(texts)
        url = self._url(code, self.dice.pick((*_NEWSPAPERS, _ADVERTISEMENTS)))
        self.pages.append(
            make_page(url, text, code, "short", self._shorts.get(text), len(self.pages))
        )
        self._shorts.setdefault(text, url)

    def _add_broken(self) -> None:
        code = LANGUAGES[0]
        url = self._url(code, 0)
        complete = make_page(
            url,
            language(code).render_article(Writer(self.dice).article(10)),
            code,
            "broken",
            None,
            len(self.pages),
        )
        self.pages.append(
            CrawledPage(
                url,
                "",
                code,
                "broken",
                None,
                complete.key,
                complete.value[: len(complete.value) // 2],
            )
        )

    def _add_article(
        self,
        kind: str,
        of: _Source | None,
        code: str,
        host: int,
        article: Article,
        *,
        url: str | None = None,
        respaced: bool = False,
    ) -> _Source:
        url = url or self._url(code, host)
        body = language(code).render_article(article)
        text = _with_layout(code, host, _respace(body) if respaced else body)
        title = body.split("\n\n", 1)[0]
        number = len(self.pages)
        self.pages.append(make_page(url, text, code, kind, of.id if of else None, number, title))
        source = _Source(url, code, host, article, of.root if of else url)
        self._sources.append(source)
        self._latest[url] = source
        codes = self._languages_of.setdefault(source.root, [])
        if code not in codes:
            codes.append(code)
        return source

    def _pick_source(self) -> _Source:
        """Return a page to copy: mostly an original, sometimes a copy, which makes chains."""
        return self.dice.pick(self._originals if self.dice.roll() < 0.8 else self._sources)

    def _next_language(self) -> str:
        if not self._next_languages:
            self._next_languages = self.dice.shuffled(LANGUAGES)
        return self._next_languages.pop()

    def _url(self, code: str, host: int) -> str:
        return f"https://{language(code).lists['host'][host][0]}/{code}/{len(self.pages):05d}"

    def _between(self, low: float, high: float) -> float:
        """Return a random share from low to high; small ones are more likely."""
        return low + (high - low) * self.dice.roll() * self.dice.roll()

    def _edit_article(self, article: Article, code: str, share: float) -> Article:
        """Return the article with about this share of its words changed: values replaced, sentences
        added, removed or moved.
        """
        prose = language(code)
        writer = Writer(self.dice)
        body = list(article.body)
        budget = share * sum(prose.size(prose.render(sentence)) for sentence in body)
        while budget > 0 or tuple(body) == article.body:
            draw = self.dice.roll()
            place = self.dice.below(len(body))
            size = prose.size(prose.render(body[place]))
            if draw < 0.15:
                aside = Sentence("aside", self.dice.below(len(prose.texts["aside"])))
                body.insert(place, aside)
                budget -= prose.size(prose.render(aside))
            elif draw < 0.25 and size <= budget:
                del body[place]
                budget -= size
            elif draw < 0.35:
                body.insert(self.dice.below(len(body)), body.pop(place))
                budget -= size / 4
            elif body[place].values:
                before = prose.render(body[place])
                body[place] = writer.with_other_value(
                    body[place], self.dice.below(len(body[place].values))
                )
                budget -= max(1, prose.size(_changed(before, prose.render(body[place]))))
        return Article(article.title, tuple(body))

    def _refill(self, article: Article, share: float) -> Article:
        """Return the article with this share of its fields changed."""
        writer = Writer(self.dice)
        body = list(article.body)
        for place, sentence in enumerate(body):
            for slot in range(len(sentence.values)):
                if self.dice.roll() < share:
                    body[place] = writer.with_other_value(body[place], slot)
        return Article(writer.sentence("title", article.title.frame), tuple(body))


def _changed(before: str, after: str) -> str:
    """Return the part of `after` between the common prefix and the common suffix of both."""
    start = next(
        (i for i, (old, new) in enumerate(zip(before, after, strict=False)) if old != new),
        len(before),
    )
    end = next(
        (
            i
            for i, (old, new) in enumerate(zip(before[::-1], after[::-1], strict=False))
            if old != new
        ),
        0,
    )
    return after[start : max(start, len(after) - end)]


def _respace(body: str) -> str:
    """Return the text with other line breaks, and its title in capitals if that is reversible."""
    title, rest = body.split("\n\n", 1)
    capitals = title.upper()
    return f"{capitals if capitals.lower() == title.lower() else title}\n{rest.replace(chr(10) * 2, chr(10))} \n"


@functools.cache
def _layout(code: str, host: int) -> tuple[str, str]:
    """Return the constant navigation and footer of a host."""
    prose = language(code)
    dice = Dice("layout", code, host)
    words, lines = _LAYOUTS[host]
    navigation = " | ".join(word for (word,) in dice.shuffled(prose.lists["nav"])[:words])
    return navigation, "\n".join(dice.shuffled(prose.texts["footer"])[:lines])


def _with_layout(code: str, host: int, body: str) -> str:
    navigation, footer = _layout(code, host)
    return f"{navigation}\n\n{body}\n\n{footer}"


def make_page(
    url: str, text: str, code: str, kind: str, of: str | None, number: float, title: str = ""
) -> CrawledPage:
    """Return a page as a crawler sends it; the crawler fetches a page every few seconds, and this one
    after `number` others.
    """
    fetched = (_FIRST_FETCH + timedelta(seconds=_SECONDS_PER_FETCH * number)).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )
    record = {"url": url, "text": text, "language": code, "fetched": fetched}
    if title:
        record["title"] = title
    value = json.dumps(record, ensure_ascii=False).encode()
    return CrawledPage(url, text, code, kind, of, url.encode(), value, title)
