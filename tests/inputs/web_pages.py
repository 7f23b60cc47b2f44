"""Web pages whose main text and boilerplate are known, and how much of each an extractor keeps.

Pages are generated from `demo.texts`: an article within one of three layouts (HTML5 elements, class names of blogs, nameless
`div`s), with share buttons and a list of related articles inside it, and around it a cookie banner, a menu, a column of
teasers, a footer with the menu once more. Generated pages are easier than the web; they show that what is meant to go goes.

Invariants: equal seeds give equal pages; a paragraph counts as kept only if all of it is there.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stream_dedup.demo.texts import LANGUAGES, Dice, Writer, language

_LAYOUTS = (
    ("<main><article>", "</article></main>"),
    ('<div id="content" class="post-content">', "</div>"),
    ('<div class="c1"><div class="c2">', "</div></div>"),
)


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page: its HTML, the paragraphs that it is about, and the texts around them."""

    html: str
    main: tuple[str, ...]
    boilerplate: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """Shares from 0 to 1: of paragraphs and of boilerplate texts kept, and of boilerplate in all visible characters."""

    pages: int
    main_kept: float
    boilerplate_kept: float
    boilerplate_share: float
    cpu_ms_per_page: float
    kilobytes_per_page: float


def pages(seed: int, count: int) -> Iterator[WebPage]:
    """Yield so many pages; the languages and the layouts take turns."""
    for number in range(count):
        yield _page(Dice("web pages", seed, number), LANGUAGES[number % len(LANGUAGES)], number // len(LANGUAGES))


def measure(extract: Callable[[str], object], given: Iterator[WebPage] | Sequence[WebPage]) -> Measure:
    """Return what an extractor, from HTML to text, keeps. CPU is of this process, so not of an extractor in another one."""
    main = [0, 0]
    around = [0, 0]
    characters = [0, 0]
    size = count = 0
    cpu = 0.0
    for page in given:
        began = time.process_time()
        found = extract(page.html)
        cpu += time.process_time() - began
        text = _one_line(found) if isinstance(found, str) else ""
        for tally, parts in ((main, page.main), (around, page.boilerplate)):
            tally[0] += sum(_one_line(part) in text for part in parts)
            tally[1] += len(parts)
        characters[0] += sum(map(len, page.boilerplate))
        characters[1] += sum(map(len, page.boilerplate)) + sum(map(len, page.main))
        size += len(page.html.encode())
        count += 1
    return Measure(
        count, main[0] / main[1], around[0] / around[1], characters[0] / characters[1], cpu * 1000 / count, size / 1000 / count
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _page(dice: Dice, code: str, layout: int) -> WebPage:
    said = language(code)
    writer = Writer(dice)
    title, *paragraphs = said.tell(writer.article(6 + dice.below(18))).split("\n\n")
    teasers = said.tell(Writer(dice).article(32)).split("\n\n")[1:]
    related = said.tell(Writer(dice).article(8)).split("\n\n")[1:]
    menu = [word for (word,) in dice.shuffled(said.lists["nav"])]
    footer = dice.shuffled(said.texts["footer"])
    first, last = _LAYOUTS[layout % len(_LAYOUTS)]
    links = "".join(f'<li><a href="/{number}">{html.escape(word)}</a></li>' for number, word in enumerate(menu))
    markup = f"""<!DOCTYPE html>
<html lang="{code}"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>.c1 {{ color: black }}</style><script>var page = {{"a": "b<c"}};</script></head>
<body><div class="cookie-banner"><p>{html.escape(footer[0])}</p><button>OK</button></div>
<header><nav><ul>{links}</ul></nav></header>
{first}<h1>{html.escape(title)}</h1>
<div class="share-buttons"><a href="#">Facebook</a> <a href="#">WhatsApp</a></div>
{_tags("p", paragraphs)}
<div class="related-posts">{_tags("p", [f"{text[:120]}" for text in related])}</div>{last}
<aside class="sidebar">{_tags("p", teasers)}</aside>
<footer>{_tags("p", footer[1:])}<ul>{links}</ul></footer></body></html>
"""
    return WebPage(markup, tuple(paragraphs), (*footer, *teasers, *(text[:120] for text in related)))


def _tags(name: str, texts: Sequence[str]) -> str:
    return "".join(f"<{name}>{html.escape(text)}</{name}>" for text in texts)
