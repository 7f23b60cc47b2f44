"""Text from outside, made safe to show on a terminal or in a log.

Invariant: what comes out has only printable characters and plain spaces: no escape sequence, no
line break, no right-to-left override. A document's id must not be able to repaint an operator's
screen or forge a log line.
"""

from __future__ import annotations

TEXT_CHARACTERS_MAX = 200


def printable(text: str | bytes, limit: int = TEXT_CHARACTERS_MAX) -> str:
    """Return `text` with every unprintable character written as an escape, cut to `limit`
    characters with an ellipsis.

    Bytes are read as UTF-8; those that are not become escapes too.
    """
    if isinstance(text, bytes):
        # An escape is at least as long as what it stands for, so what is cut here would be cut
        # below anyway.
        text = text[: 4 * limit + 4].decode("utf-8", "backslashreplace")
    if len(text) > limit:
        text = text[: limit + 1]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _escape(char) for char in text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def counted(number: int, what: str) -> str:
    """Return a number with its noun, in the plural unless it is one: `1 record`, `2,000
    records`.
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
