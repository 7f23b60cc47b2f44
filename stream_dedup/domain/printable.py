"""Make untrusted text safe to show on a terminal or in a log.

Invariant: the result contains only printable characters and plain spaces: no escape sequence, line
break or right-to-left override. A document's id must not be able to change an operator's screen or
forge a log line.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

TEXT_CHARACTERS_MAX = 200
_LATEST_MS: Final = 253_402_300_799_999


def printable(text: str | bytes, limit: int = TEXT_CHARACTERS_MAX) -> str:
    """Return `text` with every unprintable character written as an escape; a result of more than
    `limit` characters is cut, with an ellipsis.

    Bytes are decoded as UTF-8; invalid bytes become escapes too.
    """
    if isinstance(text, bytes):
        # Do not decode all of it. A character has at most 4 bytes, and an escape is longer than its
        # byte, so the rest is beyond `limit`.
        text = text[: 4 * limit + 4].decode("utf-8", "backslashreplace")
    if len(text) > limit:
        text = text[: limit + 1]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _escape(char) for char in text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1: `1 record`, `2,000
    records`.
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def utc_text(time_ms: int) -> str:
    """Return a time in UTC, to the second; empty if it is unknown."""
    if not 0 < time_ms <= _LATEST_MS:
        return ""
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
