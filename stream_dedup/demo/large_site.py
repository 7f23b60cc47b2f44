"""The demo's crawl: a mini-crawl, and among it a large site, whose pages have a template in common
and say different things.

A page of the site is a column of teasers, which stands on every page, around an article of its own.
Any two have an exact Jaccard of .5 to .6 or so, and none is a copy of another. A few of them come
again under another address, with a sentence changed: those are copies.

Invariants: a seed gives the same bytes on every Python; a copy comes after the page it was made
from.
"""

from __future__ import annotations

from typing import Final

from stream_dedup.demo.crawl import CrawledPage, crawled, mini_crawl
from stream_dedup.demo.texts import Article, Dice, Writer, language

HOST: Final = "almanac.example"
SITE_PAGES: Final = 48
_COPIED_AFTER: Final = 16  # pages, then a copy of one of those before
_COPIES: Final = SITE_PAGES // _COPIED_AFTER
_LANGUAGE: Final = "en"
_TEASERS: Final = (14, 10)  # sentences before what a page says, and behind it
_OWN: Final = 9


def demo_crawl(seed: int, pages: int) -> list[CrawledPage]:
    """Return a crawl of `pages` pages in crawl order, with those of the large site all over it.

    Raises:
        InputError: too few are left for the mini-crawl.
    """
    others = mini_crawl(seed, pages - SITE_PAGES - _COPIES)
    placed = [(float(number), page) for number, page in enumerate(others)]
    placed += large_site(seed, len(others) / (SITE_PAGES + _COPIES))
    return [page for _, page in sorted(placed, key=lambda one: one[0])]


def is_of_site(page: CrawledPage) -> bool:
    """Return whether a page is one of the large site."""
    return page.id.startswith(f"https://{HOST}/")


def large_site(seed: int, gap: float) -> list[tuple[float, CrawledPage]]:
    """Return the pages of the site and the copies of some, each with its place: one after `gap`
    pages of others.
    """
    said = language(_LANGUAGE)
    before, behind = (
        said.tell(Writer(Dice("large site", seed, half)).article(_TEASERS[half])) for half in (0, 1)
    )
    pages: list[tuple[str, Article]] = []
    told: list[tuple[str, str | None, Article]] = []
    for number in range(SITE_PAGES):
        writer = Writer(Dice("page of a large site", seed, number))
        pages.append((f"https://{HOST}/{number:03d}", writer.article(_OWN)))
        told.append((pages[-1][0], None, pages[-1][1]))
        if number % _COPIED_AFTER == _COPIED_AFTER - 1:
            url, article = pages[number // 2]
            changed = writer.with_other_value(article.body[0], 0)
            told.append((f"{url}/print", url, Article(article.title, (changed, *article.body[1:]))))
    found = []
    for order, (url, of, article) in enumerate(told):
        text = f"{before}\n\n{said.tell(article)}\n\n{behind}"
        place, kind = (order + 0.5) * gap, "edit" if of else "site"
        title = said.tell(article).split("\n\n", 1)[0]
        found.append((place, crawled(url, text, _LANGUAGE, kind, of, place, title)))
    return found
