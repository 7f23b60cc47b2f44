"""Extract texts in a child process of `html`: read pages from standard input, write texts to standard
output.

A request is 4 bytes (big-endian length) and UTF-8 of that length; an answer the same after one byte:
0 for a title, a line feed and a text, 1 for the class of an error. For each page the process sets a
timer of its CPU time, at which the kernel ends it (SIGPROF). It ends with its input.

The extractor is resiliparse (Apache-2.0). It returns the main content of a page without menus,
banners, footers and the comments of readers, with which an article would change with each comment.
If the result is very short, the extractor has missed the article, and the visible text is used:
otherwise different pages would be copies by their headings.
"""

from __future__ import annotations

import re
import signal
import sys
from typing import IO, Any, BinaryIO, Final, NamedTuple

LENGTH_BYTES = 4
TEXT, FAILED = 0, 1

# Fewer words are no main text: a heading and a notice, which all pages of a site share, have them.
WORDS_MIN: Final = 25
_VISIBLE_SHARE: Final = 10  # the main text has at least a tenth of the visible words
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
    heading = tree.document.query_selector("h1")
    titles = (tree.title or "", heading.text if heading is not None else "")
    lines = (" ".join(title.split()) for title in titles)
    return Page(main_text(tree), next(filter(None, lines), ""))


def main_text(page: Any) -> str:
    """Return the main text of an HTML page, which is a text or its tree.

    If that is too short, or a small part of the visible text, return the visible text; if that is too
    short too, the text with the hidden parts.
    """
    from resiliparse.extract.html2text import extract_plain_text  # noqa: PLC0415 - only this process needs it

    tree = _parse(page) if isinstance(page, str) else page

    def text_of(**options: Any) -> str:
        return str(
            extract_plain_text(
                tree, preserve_formatting=True, comments=False, list_bullets=False, **options
            )
        )

    def all_text(*skipped: str) -> str:
        # The library treats captions of figures as alternative texts, and labels as form fields.
        return text_of(alt_texts=True, form_fields=True, skip_elements=skipped)

    main = text_of(main_content=True, alt_texts=False)
    visible = all_text(*_NO_TEXT, *_HIDDEN)
    words = _count_words(main)
    most_visible = words * _VISIBLE_SHARE
    if words >= WORDS_MIN and (
        _count_words(visible) <= most_visible
        or _count_words(all_text(*_NO_TEXT, *_HIDDEN, *_MENUS)) <= most_visible
    ):
        return main
    return visible if _count_words(visible) >= WORDS_MIN else all_text(*_NO_TEXT)


def _parse(page: str) -> Any:
    """Return the tree of a page without the readings of ruby, and without the attribute that hides an
    article from screen readers while a dialog is open.
    """
    from resiliparse.parse.html import HTMLTree  # noqa: PLC0415 - only this process needs it

    tree: Any = HTMLTree.parse(page)
    for element in tree.document.query_selector_all(_BEHIND_A_DIALOG):
        element.remove_attribute("aria-hidden")
    rubies = list(tree.document.query_selector_all("ruby, rb"))
    if not rubies:
        return tree
    for reading in list(tree.document.query_selector_all("rt, rp")):
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
