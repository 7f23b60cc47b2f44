"""The demo's crawl: a mini-crawl mixed with a large site, whose pages share a template and have
different contents.

A page of the site is a column of teasers, the same on every page, around a distinct article. Any two
pages have an exact Jaccard of about .5 to .6, and none is a copy of another. A few of them are
repeated under another address with a changed sentence: those are copies.

    python -m bench.demo_crawl    write the file that `stream-dedup demo` reads

Invariants: a seed gives the same bytes on every Python; a copy comes after its source page.
"""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import stream_dedup.demo
from bench.mini_crawl import make_page, mini_crawl
from bench.prose import Article, Dice, Writer, language
from bench.truth import find_pairs
from stream_dedup.demo.crawl import FILE, HOST_OF_SITE, CrawledPage
from stream_dedup.domain.hosts import site_of

SEED: Final = 1
PAGES: Final = 600
SITE_PAGES: Final = 48
_COPIED_AFTER: Final = 16  # pages, then a copy of an earlier one
_COPIES: Final = SITE_PAGES // _COPIED_AFTER
_LANGUAGE: Final = "en"
_TEASERS: Final = (14, 10)  # sentences before a page's article, and after it
_ARTICLE_SENTENCES: Final = 9


def demo_crawl(seed: int, pages: int) -> list[CrawledPage]:
    """Return a crawl of `pages` pages in crawl order, with those of the large site spread over it.

    Raises:
        InputError: too few pages remain for the mini-crawl.
    """
    others = mini_crawl(seed, pages - SITE_PAGES - _COPIES)
    placed = [(float(number), page) for number, page in enumerate(others)]
    placed += large_site(seed, len(others) / (SITE_PAGES + _COPIES))
    return [page for _, page in sorted(placed, key=lambda item: item[0])]


def large_site(seed: int, gap: float) -> list[tuple[float, CrawledPage]]:
    """Return (place in the crawl, page) of the site's pages and copies; `gap` is the number of other
    pages between two of them.
    """
    prose = language(_LANGUAGE)
    before, after = (
        prose.render_article(Writer(Dice("large site", seed, half)).article(_TEASERS[half]))
        for half in (0, 1)
    )
    pages: list[tuple[str, Article]] = []
    entries: list[tuple[str, str | None, Article]] = []
    for number in range(SITE_PAGES):
        writer = Writer(Dice("page of a large site", seed, number))
        pages.append((f"https://{HOST_OF_SITE}/{number:03d}", writer.article(_ARTICLE_SENTENCES)))
        entries.append((pages[-1][0], None, pages[-1][1]))
        if number % _COPIED_AFTER == _COPIED_AFTER - 1:
            url, article = pages[number // 2]
            changed = writer.with_other_value(article.body[0], 0)
            entries.append(
                (f"{url}/print", url, Article(article.title, (changed, *article.body[1:])))
            )
    placed = []
    for order, (url, of, article) in enumerate(entries):
        text = f"{before}\n\n{prose.render_article(article)}\n\n{after}"
        place, kind = (order + 0.5) * gap, "edit" if of else "site"
        title = prose.render_article(article).split("\n\n", 1)[0]
        placed.append((place, make_page(url, text, _LANGUAGE, kind, of, place, title)))
    return placed


def demo_lines() -> str:
    """Return the lines of the demo's file: a page with its earlier similar pages."""
    pages = demo_crawl(SEED, PAGES)
    similar: defaultdict[int, list[Any]] = defaultdict(list)
    for pair in find_pairs(pages, [(site_of(page.key), page.title) for page in pages]):
        similar[pair.later].append([pair.earlier, pair.jaccard, pair.verdict])
    rows = (
        {
            "id": page.id,
            "language": page.language,
            "kind": page.kind,
            "of": page.of,
            "value": page.value.decode(),
            "similar": similar[number],
        }
        for number, page in enumerate(pages)
    )
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


if __name__ == "__main__":
    packed = lzma.compress(demo_lines().encode(), preset=9)
    Path(stream_dedup.demo.__file__).with_name(FILE).write_bytes(packed)
