"""The bytes of a web page to text: what the server said, a byte order mark, what the page says,
else UTF-8. And the other way round: whether a text is a web page that somebody took for a text.

Invariants: a function of its arguments alone; nothing raises: what fits no encoding is replaced.
The order is that of the HTML standard (a byte order mark beats the server), without its guessing,
which would make one page two on another version.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_META = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE
)
_META_WITHIN_BYTES = 1024  # of the HTML standard
# Browsers read these labels as their larger cousins; pages are written for browsers.
_READ_AS = {
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
_REPLACED_MIN: Final = 20
# Python's own, which no server and no page means: they refuse what they cannot read, or take
# quadratic time for it.
_NOT_OF_PAGES = ("idna", "punycode", "raw_unicode_escape", "undefined", "unicode_escape")
_LOOKED_AT_CHARACTERS = 4000
_PAGE = re.compile(r"\s*<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE)
_TAG = re.compile(
    r"</?(?:div|p|a|span|li|ul|td|tr|table|h[1-6]|br|img|script|nav|article|section)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_TAGS_MIN = 6


def decode_page(raw: bytes, said: str | None = None) -> str:
    """Return the text of a page; `said` is the encoding that its server named, if any."""
    for mark, name in _MARKS:
        if raw.startswith(mark):
            return raw[len(mark) :].decode(name, "replace")
    found = _META.search(raw[:_META_WITHIN_BYTES])
    declared = _codec(said) or _codec(found[1].decode("ascii") if found else None)
    if declared is None:
        return raw.decode("utf-8", "replace")
    return raw.decode(declared, "replace")


def lost_letters(text: str) -> str:
    """Return why a text cannot be compared of which more than a fifth is U+FFFD; nothing for any
    other.

    What was replaced counts for no letter: different texts in another encoding would be left with
    the same digits and names, and be dropped as copies. Below `_REPLACED_MIN` there is not enough
    of a text to be compared anyway.
    """
    replaced = text.count(REPLACED)
    if replaced < _REPLACED_MIN or 5 * replaced <= len(text):
        return ""
    return (
        f"{replaced:,} of the {len(text):,} characters of the text are no UTF-8 (U+FFFD): it is in "
        "another encoding, "
        "and what is left would be like other texts. Have it sent in UTF-8."
    )


def _codec(label: str | None) -> str | None:
    """Return Python's name of an encoding of pages; None for one that it does not have."""
    if not label:
        return None
    try:
        found = codecs.lookup(label.strip())
        "".encode(found.name)  # refuses codecs that are not of text, such as zlib's
    except (LookupError, ValueError):
        return None
    if found.name.replace("-", "_") in _NOT_OF_PAGES:
        return None
    # A page whose ASCII `meta` was found is not UTF-16, even if it says so.
    return "utf-8" if found.name.startswith("utf-16") else _READ_AS.get(found.name, found.name)


def looks_like_markup(text: str) -> bool:
    """Return whether a text begins as a page does, or has many tags within its first 4,000
    characters.
    """
    part = text[:_LOOKED_AT_CHARACTERS]
    return _PAGE.match(part) is not None or (
        "<" in part and sum(1 for _ in _TAG.finditer(part)) >= _TAGS_MIN
    )
