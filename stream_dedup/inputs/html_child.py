"""Extract texts in a child process of `html`: read pages from standard input, write texts to standard
output.

A request is a length (4 bytes, big-endian) and UTF-8 of that length. An answer is a byte, a length
and UTF-8: after the byte 0 a title, a line feed and a text, after 1 the class of an error. For each
page the process sets a timer of its CPU time, at which the kernel ends it (SIGPROF). The process
ends with its input.

The extractor is resiliparse (Apache-2.0). It returns the main content of a page without menus,
banners, footers and readers' comments; otherwise each new comment would change the article. If the
result is short, the extractor may have missed the content. Then the text outside the frame of the
page (menus, headers, footers) is used, or else the visible text: otherwise different pages would
count as copies because they share a heading or a frame.
"""

from __future__ import annotations

import re
import signal
import sys
from typing import IO, Any, BinaryIO, Final, NamedTuple

LENGTH_BYTES = 4
TEXT, FAILED = 0, 1

# A text of fewer words is no main text: a heading and a notice that all pages share are as short.
WORDS_MIN: Final = 25
# A page with fewer words outside its frame is short: the extractor often misses captions and cards.
SHORT_PAGE_WORDS: Final = 100
_VISIBLE_SHARE: Final = 10  # the main text has at least a tenth of the visible words
_WORDS_OUTSIDE_MIN: Final = 3
# Two characters of a script that is written without spaces count as a word.
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff\U00020000-\U0003ffff]{2}"
)
# Elements that are not text: alternatives for media, and controls.
_NO_TEXT: Final = (
    *("img", "area", "svg", "canvas", "object", "audio", "video", "iframe", "noscript", "template"),
    *("button", "input", "select", "datalist"),
)
_MENUS: Final = ("a", "footer", "nav")  # can be longer than the article
_CONTENT: Final = "main, article, figure, [role='main']"
_FRAME: Final = "data-stream-dedup-frame"  # marks elements of the frame in the tree


def _named(*names: str) -> str:
    return ", ".join(f"[class~='{name}' i], [id='{name}' i]" for name in names)


_FOOTERS: Final = "footer, nav, [role='navigation'], [role='search'], " + _named(
    "footer", "site-footer", "page-footer", "copyright"
)
_HEADERS: Final = "header, [role='banner'], " + _named("header", "site-header", "masthead")
_SIDES: Final = "aside, " + _named("sidebar", "widget")
_CONSENT: Final = ", ".join(
    f"[{attribute}*='{name}' i]:not(:has(h1, main, article))"
    for name in ("cookie", "consent")
    for attribute in ("class", "id")
)
_LISTS: Final = frozenset(("ul", "ol", "dl", "menu", "table", "div", "p", "section", "center"))
_MENU_LINKS_MIN: Final = 3
_MENU_WORDS: Final = 4  # words of a link of a menu, at most, on average; a headline has more
_BEHIND_A_DIALOG: Final = "[aria-hidden='true']:has(main, article, [role='main'])"
_HIDDEN: Final = (
    *("body [hidden]", "body dialog:not([open])"),
    *("body [style*='display:none' i]", "body [style*='display: none' i]"),
)


class Page(NamedTuple):
    """The text of a web page, and its title on one line, empty if it has none."""

    text: str
    title: str = ""


def read_page(page: str) -> Page:
    """Return the text and the title of an HTML page."""
    tree = _parse(page)
    title = " ".join((tree.title or "").split()) or _heading_of(tree)
    return Page(main_text(tree), title)


def _heading_of(tree: Any) -> str:
    """Return the text of the first `h1` on one line, empty without one."""
    heading = tree.document.query_selector("h1")
    return "" if heading is None else " ".join(heading.text.split())


def main_text(page: Any) -> str:
    """Return the main text of an HTML page, which is a text or its tree.

    Of a short page, return the text outside the frame, so that pages with the same frame differ. If the
    main text is too short, or a small part of the visible text, return the visible text; if that is
    too short too, the text with the hidden parts.
    """
    from resiliparse.extract.html2text import extract_plain_text  # noqa: PLC0415 - only this process needs it

    tree = _parse(page) if isinstance(page, str) else page

    def text_of(**options: Any) -> str:
        return str(
            extract_plain_text(
                tree, preserve_formatting=True, comments=False, list_bullets=False, **options
            )
        )

    def all_text(*skipped: str, **options: Any) -> str:
        # The library treats captions of figures as alternative texts, and labels as form fields.
        return text_of(alt_texts=True, form_fields=True, skip_elements=skipped, **options)

    main = text_of(main_content=True, alt_texts=False)
    visible = all_text(*_NO_TEXT, *_HIDDEN)
    words = _count_words(main)
    if words < SHORT_PAGE_WORDS and _count_words(visible) >= WORDS_MIN:
        main = all_text(*_NO_TEXT, *_HIDDEN, main_content=True)  # with the captions of figures
        words = _count_words(main)
        _mark_frame(tree.document)
        outside = all_text(*_NO_TEXT, *_HIDDEN, f"[{_FRAME}]")
        outside_words = _count_words(outside)
        if (
            words >= WORDS_MIN
            and 2 * words >= outside_words
            and _is_article(main, outside, _heading_of(tree))
        ):
            return main
        if (
            _WORDS_OUTSIDE_MIN <= outside_words < SHORT_PAGE_WORDS
            or words < WORDS_MIN <= outside_words
        ):
            return outside
    most_visible = words * _VISIBLE_SHARE
    if words >= WORDS_MIN and (
        _count_words(visible) <= most_visible
        or _count_words(all_text(*_NO_TEXT, *_HIDDEN, *_MENUS)) <= most_visible
    ):
        return main
    return visible if _count_words(visible) >= WORDS_MIN else all_text(*_NO_TEXT)


def _is_article(main: str, outside: str, heading: str) -> bool:
    """Return whether a main text contains the page's heading, and nothing of the frame."""
    lines = {line.strip() for line in main.splitlines()}
    is_outside = lines <= {line.strip() for line in outside.splitlines()}
    return bool(heading) and is_outside and heading in " ".join(main.split())


def _mark_frame(document: Any) -> None:
    """Mark the elements around the content of a page: menus, footers, questions for consent, and
    headers and sidebars of links.

    Do not mark possible content: lists of links in the content or below its heading, links as
    long as headlines, sidebars of text, and headers with the page's heading.
    """
    for element in document.query_selector_all(_FOOTERS)[:]:
        element.setattr(_FRAME, "")
    for element in document.query_selector_all(_CONSENT)[:]:
        if element.tag not in ("html", "body") and element.closest(_CONTENT) is None:
            element.setattr(_FRAME, "")
    for element in document.query_selector_all(_HEADERS)[:]:
        has_heading = element.query_selector("h1, main, article") is not None
        if not has_heading and element.closest(_CONTENT) is None:
            words, links = _count_element_words(element)
            if words - links < WORDS_MIN:
                element.setattr(_FRAME, "")
    for element in document.query_selector_all(_SIDES)[:]:
        words, links = _count_element_words(element)
        if 2 * links >= words:
            element.setattr(_FRAME, "")
    lists: dict[Any, list[Any]] = {}
    for link in document.query_selector_all("a[href]")[:]:
        element = link.parent
        while element is not None and element.tag not in _LISTS:
            element = element.parent
        if element is not None:
            lists.setdefault(element, []).append(link)
    for element, items in lists.items():
        if len(items) >= _MENU_LINKS_MIN and _is_menu(element, items):
            element.setattr(_FRAME, "")


def _count_element_words(element: Any) -> tuple[int, int]:
    """Return the number of words of an element, and of its links."""
    links = element.query_selector_all("a")[:]
    return _count_words(element.text), sum(_count_words(link.text) for link in links)


def _is_menu(element: Any, links: list[Any]) -> bool:
    """Return whether a list of links leads to other parts of the site."""
    words = sum(_count_words(link.text) for link in links)
    if words > _MENU_WORDS * len(links) or 5 * words < 4 * _count_words(element.text):
        return False
    before = element.prev_element
    is_below_heading = before is not None and before.tag == "h1"
    return not is_below_heading and element.closest(_CONTENT) is None


def _parse(page: str) -> Any:
    """Return the tree of a page without the readings of ruby, and without the attribute that hides an
    article from screen readers while a dialog is open.
    """
    from resiliparse.parse.html import HTMLTree  # noqa: PLC0415 - only this process needs it

    tree: Any = HTMLTree.parse(page)
    for element in tree.document.query_selector_all(_BEHIND_A_DIALOG)[:]:
        element.remove_attribute("aria-hidden")
    rubies = tree.document.query_selector_all("ruby, rb")[:]
    if not rubies:
        return tree
    for reading in tree.document.query_selector_all("rt, rp")[:]:
        reading.decompose()
    for ruby in rubies:
        while ruby.first_child is not None:
            ruby.parent.insert_before(ruby.first_child, ruby)
        ruby.decompose()
    # Parsed again, so that a word is one node: the library drops nodes of one Chinese character.
    return HTMLTree.parse(tree.document.html)


def _count_words(text: str) -> int:
    return len(text.split()) + len(_UNSPACED.findall(text))


def read_exactly(stream: BinaryIO | IO[bytes], size: int) -> bytes | None:
    """Return exactly `size` bytes; None if the stream ends before."""
    data = stream.read(size)
    return data if data is not None and len(data) == size else None


def main(cpu_seconds: float) -> None:
    """Answer pages until the input ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    read_page("")  # loads the library outside of any page's limit
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while (header := read_exactly(source, LENGTH_BYTES)) is not None:
        raw = read_exactly(source, int.from_bytes(header, "big"))
        if raw is None:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            read = read_page(raw.decode("utf-8", "replace"))
            kind, answer = TEXT, f"{read.title}\n{read.text}".encode("utf-8", "replace")
        except (Exception, MemoryError) as error:  # noqa: BLE001 - each error that a page causes in the library is an answer
            kind, answer = FAILED, type(error).__name__.encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        target.write(bytes([kind]) + len(answer).to_bytes(LENGTH_BYTES, "big") + answer)
        target.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
