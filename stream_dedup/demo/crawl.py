"""Generate a small crawl in nine languages with difficult near-duplicates, and an endless one for
load tests.

Invariants: a seed gives the same bytes on every Python (a golden test compares them); a copy comes
after its source page; a kind describes how a page was made, never whether it is a duplicate: `truth`
measures that on the texts alone.
"""

from __future__ import annotations

import functools
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stream_dedup.demo.texts import HAN, LANGUAGES, Article, Dice, Sentence, Writer, language
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
_READ_LATER = 4
# Numbers of navigation words and footer lines on every page of a host.
_LAYOUTS = ((6, 1), (8, 2), (5, 1), (14, 9), (9, 3))
# Minimum and maximum of an article's `Language.size` (words, or characters without spaces); most
# articles are short.
_ARTICLE_SIZES = {"zh": (320, 1450), "ja": (320, 1450), "th": (560, 3200)}
_ARTICLE_SIZE = (130, 800)
_EDIT_SHARE = (0.01, 0.10)
_REVISION_SHARE = (0.01, 0.05)


@dataclass(frozen=True, slots=True)
class CrawledPage:
    """A record of a crawl. `id` is the page's URL, `of` that of its source page, `value` the record's
    value; `title` is "" if it has none.
    """

    id: str
    text: str
    language: str
    kind: str
    of: str | None
    key: bytes
    value: bytes
    title: str = ""


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
            "original": self._original,
            "re-crawl": self._re_crawl,
            "mirror": self._mirror,
            "edit": self._edit,
            "translation": self._translation,
            "template": self._page_of_template,
            "short": self._short,
            "broken": self._broken,
        }
        make[kind]()

    def _original(self) -> None:
        code = self._next_language()
        low, high = _ARTICLE_SIZES.get(code, _ARTICLE_SIZE)
        size = low + (high - low) * self.dice.roll() * self.dice.roll()
        article = Writer(self.dice).article(round(size / language(code).sentence_size))
        self._originals.append(
            self._add("original", None, code, self.dice.pick(_NEWSPAPERS), article)
        )

    def _re_crawl(self) -> None:
        source = self._latest[self._source().id]
        draw = self.dice.roll()
        article = source.article
        if draw >= 0.6:
            article = self._edited(article, source.language, self._between(*_REVISION_SHARE))
        self._add(
            "re-crawl",
            source,
            source.language,
            source.host,
            article,
            url=source.id,
            respaced=0.4 <= draw < 0.6,
        )

    def _mirror(self) -> None:
        source = self._source()
        others = [
            host for host in (_READ_LATER, _READ_LATER, _READ_LATER, 0, 1, 2) if host != source.host
        ]
        self._add("mirror", source, source.language, self.dice.pick(others), source.article)

    def _edit(self) -> None:
        source = self._source()
        host = source.host if self.dice.roll() < 0.5 else self.dice.pick(_NEWSPAPERS)
        article = self._edited(source.article, source.language, self._between(*_EDIT_SHARE))
        self._add("edit", source, source.language, host, article)

    def _translation(self) -> None:
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
        self._add("translation", source, code, self.dice.pick(_NEWSPAPERS), source.article)

    def _page_of_template(self) -> None:
        """Add an advertisement: a new one in two of three cases, otherwise the first one with some
        fields changed.
        """
        code = self._next_language()
        first = self._template.get(code)
        article = Writer(self.dice).article(6 + self.dice.below(5))
        if first and self.dice.roll() < 1 / 3:
            article = self._refilled(first.article, self.dice.pick((0.05, 0.1, 0.2, 0.35, 0.5)))
        source = self._add("template", first, code, _ADVERTISEMENTS, article)
        self._template.setdefault(code, source)

    def _short(self) -> None:
        code = self.dice.pick_early(LANGUAGES)
        texts = ("", *language(code).texts["short"])
        text = self.dice.pick_early(texts)
        url = self._url(code, self.dice.pick((*_NEWSPAPERS, _ADVERTISEMENTS)))
        self.pages.append(
            crawled(url, text, code, "short", self._shorts.get(text), len(self.pages))
        )
        self._shorts.setdefault(text, url)

    def _broken(self) -> None:
        code = LANGUAGES[0]
        url = self._url(code, 0)
        complete = crawled(
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

    def _add(
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
        text = _laid_out(code, host, _respaced(body) if respaced else body)
        title = body.split("\n\n", 1)[0]
        number = len(self.pages)
        self.pages.append(crawled(url, text, code, kind, of.id if of else None, number, title))
        source = _Source(url, code, host, article, of.root if of else url)
        self._sources.append(source)
        self._latest[url] = source
        codes = self._languages_of.setdefault(source.root, [])
        if code not in codes:
            codes.append(code)
        return source

    def _source(self) -> _Source:
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

    def _edited(self, article: Article, code: str, share: float) -> Article:
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

    def _refilled(self, article: Article, share: float) -> Article:
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


def _respaced(body: str) -> str:
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


def _laid_out(code: str, host: int, body: str) -> str:
    navigation, footer = _layout(code, host)
    return f"{navigation}\n\n{body}\n\n{footer}"


def crawled(
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


SIZE_BYTES_MIN, SIZE_BYTES_MAX = 250, 1_000_000
# A larger page has several sections, because the pool grows with the square of a section's size.
_SECTION_BYTES_MAX = 20_000
# Long texts with the same small vocabulary are closer than unrelated texts: 40 of 128 bits apart at
# 10 kB and 28 at 100 kB, where real English texts are 58 and 52 apart. With this share of unique
# words they are 55 and 52 apart.
_UNIQUE_WORDS_FROM_BYTES = 5000
_UNIQUE_WORDS_PERCENT = 25
_ORIGINALS_MIN = 10**8
_SENTENCES_MIN = 4000


def endless(
    seed: int,
    pages: int | None = None,
    *,
    size_bytes: int = 1000,
    duplicate_share: float = 0.3,
    languages: Sequence[str] = ("en",),
) -> Iterator[CrawledPage]:
    """Yield `pages` pages (None: without end) of about `size_bytes` of UTF-8 text, fast enough to
    load a broker.

    The languages alternate. Originals are guaranteed to be distinct: two of one language share at
    most three sentences, and never more than a third of them, for the first 10^8 originals of a
    language. Pages above 20 kB consist of sections with that property, and share at most a third of
    all sentences. Above 5 kB a quarter of a page's words are unique to it, as in real texts. A copy is
    made of a uniformly chosen earlier original: the same page again (`re-crawl`), the same text at
    another address (`mirror`), or with a sentence added or exchanged (`edit`), with a Jaccard above
    0.8. Pages are computed from their numbers, so no earlier page is stored. A page has at least three
    sentences, so Hindi and Thai pages have at least some 500 bytes.

    Raises:
        InputError: a size below 250 bytes or above 1 MB; a share outside of 0 to 1; an unknown
        language.
    """
    if not SIZE_BYTES_MIN <= size_bytes <= SIZE_BYTES_MAX:
        raise InputError(
            f"There are no endless pages of {size_bytes} bytes; ask for {SIZE_BYTES_MIN} to "
            f"{SIZE_BYTES_MAX}."
        )
    if not 0 <= duplicate_share < 1:
        raise InputError(
            f"A duplicate share of {duplicate_share} leaves no originals; give a number from 0 to "
            "below 1."
        )
    unknown = [code for code in languages if code not in LANGUAGES]
    if unknown or not languages:
        raise InputError(
            f"There are no texts in {', '.join(unknown) or 'no language'}; choose from "
            f"{', '.join(LANGUAGES)}."
        )
    return _endless(seed, pages, size_bytes, duplicate_share, languages)


def _endless(
    seed: int, pages: int | None, size_bytes: int, duplicate_share: float, languages: Sequence[str]
) -> Iterator[CrawledPage]:
    sections = math.ceil(size_bytes / _SECTION_BYTES_MAX)
    pools = [_Pool(seed, code, size_bytes // sections) for code in languages]
    dice = Dice("endless", seed)
    originals = 0
    number = 0
    while pages is None or number < pages:
        copied = originals > 0 and dice.roll() < duplicate_share
        original = dice.below(originals) if copied else originals
        pool = pools[original % len(pools)]
        first = original // len(pools) * sections
        chosen = [
            sentence
            for section in range(first, first + sections)
            for sentence in pool.sentences(section)
        ]
        url = of = f"https://{pool.hosts[original % 3]}/{pool.code}/{original}"
        kind = "original"
        if copied:
            kind = dice.pick(("re-crawl", "mirror", "edit"))
            if kind != "re-crawl":
                url = f"https://{pool.hosts[_READ_LATER]}/{pool.code}/{number}"
            if kind == "edit":
                chosen = pool.edited(chosen, dice)
        else:
            originals += 1
        if size_bytes > _UNIQUE_WORDS_FROM_BYTES:
            chosen = pool.with_unique_words(
                chosen, zlib.crc32(f"{seed}:{pool.code}:{original}".encode())
            )
        yield crawled(url, pool.gap.join(chosen), pool.code, kind, of if copied else None, number)
        number += 1


class _Pool:
    """The sentences of one language's endless pages, and the rule that picks them.

    Every place on a page has a separate set of p sentences, p a prime number. The n-th original is a
    polynomial over the integers modulo p with the digits of (a permutation of) n as coefficients; its
    value at the place's point selects the sentence. Two polynomials of degree d agree in at most d
    points (the argument behind Reed and Solomon's codes, 1960).
    """

    def __init__(self, seed: int, code: str, size_bytes: int) -> None:
        prose = language(code)
        dice = Dice("pool", seed, code)
        frames = range(len(prose.frames["frame"]))
        size = sum(
            len(prose.render(Writer(dice).sentence("frame", frame)).encode()) for frame in frames
        ) / len(frames)
        places = max(3, round(size_bytes / size))
        self._degree = min(places // 3, 3)
        self._prime = _prime_from(
            max(
                places + 1,
                _SENTENCES_MIN // places,
                round(_ORIGINALS_MIN ** (1 / (self._degree + 1))),
            )
        )
        pool: dict[str, None] = {}
        while len(pool) < places * self._prime:
            pool.update(
                (prose.render(sentence), None)
                for sentence in Writer(dice).article(len(frames)).body
            )
        self.code = code
        self.hosts = [name for (name,) in prose.lists["host"]]
        self.gap = "" if code in HAN else " "
        self._asides = prose.texts["aside"]
        self._letters = sorted(
            {letter for sentence in pool for letter in sentence if letter.isalpha()}
        )
        self._pool = list(pool)[: places * self._prime]
        points = dice.shuffled(range(self._prime))
        self._places = [(place * self._prime, points[place]) for place in range(places)]
        self._numbers = self._prime ** (self._degree + 1)
        self._stride = 1 + self._prime * dice.below(self._numbers // self._prime)
        self._start = dice.below(self._numbers)

    def sentences(self, original: int) -> list[str]:
        """Return the sentences of the n-th original."""
        prime, pool = self._prime, self._pool
        rest = (self._start + original * self._stride) % self._numbers
        coefficients = []
        for _ in range(self._degree + 1):
            rest, coefficient = divmod(rest, prime)
            coefficients.append(coefficient)
        chosen = []
        for first, point in self._places:
            value = 0
            for coefficient in coefficients:
                value = value * point + coefficient
            chosen.append(pool[first + value % prime])
        return chosen

    def edited(self, sentences: list[str], dice: Dice) -> list[str]:
        """Return the sentences with one of them exchanged if there are 16 or more, otherwise with a
        short one added.
        """
        if len(sentences) >= 16:
            place = dice.below(len(sentences))
            return [*sentences[:place], dice.pick(self._pool), *sentences[place + 1 :]]
        place = dice.below(len(sentences)) if len(sentences) >= 6 else len(sentences)
        return [*sentences[:place], dice.pick(self._asides), *sentences[place:]]

    def with_unique_words(self, sentences: list[str], page: int) -> list[str]:
        """Return the sentences with some words replaced by others of the same length. These depend on
        word and page only, so that an edited copy has the same ones. Without spaces, characters are
        replaced.
        """
        letters, count = self._letters, len(self._letters)
        exchanged: dict[str, str] = {}

        def exchange(word: str) -> str:
            new_word = exchanged.get(word)
            if new_word is None:
                new_word, draw = word, zlib.crc32(word.encode(), page)
                if draw % 100 < _UNIQUE_WORDS_PERCENT:
                    draws = (zlib.crc32(b"%d" % place, draw) for place in range(len(word)))
                    new_word = "".join(
                        letters[digit % count] if character.isalpha() else character
                        for character, digit in zip(word, draws, strict=True)
                    )
                exchanged[word] = new_word
            return new_word

        return [
            self.gap.join(map(exchange, sentence.split(self.gap) if self.gap else sentence))
            for sentence in sentences
        ]


def _prime_from(number: int) -> int:
    """Return the smallest prime that is at least `number`."""
    while any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += 1
    return number
