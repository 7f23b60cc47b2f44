"""The bytes of a web page to text: what the server said, a byte order mark, what the page says,
else UTF-8. And the other way round: whether a text is a web page that somebody took for a text.

Invariants: a function of its arguments alone; nothing raises: what fits no encoding is replaced.
Labels and order are those of the standards of encodings and HTML (a byte order mark beats the
server), without their guessing, which would make one page two on another version.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

import webencodings

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# The standard looks at 1,024 bytes; browsers read on where scripts, comments or an archive's banner
# fill them.
_SCANNED_BYTES: Final = 256 << 10
_MARKUP_BYTES: Final = 16 << 10
_NO_MARKUP: Final = re.compile(
    rb"<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL
)
_META: Final = re.compile(rb"<meta[\s/]([^>]{0,4000})>", re.IGNORECASE)
_ATTRIBUTE: Final = re.compile(rb"""([^\s"'/=]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"']+))""")
_OF_CONTENT: Final = re.compile(rb"charset\s*=\s*[\"']?\s*([^\s;\"']+)", re.IGNORECASE)
_XML: Final = re.compile(rb"<\?xml\s[^>]*?\bencoding\s*=\s*[\"']([^\"'>]*)")
# How the standard decodes what it calls by these names.
_DECODED_AS: Final = {"gbk": "gb18030", "x-user-defined": "cp1252"}
REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
_REPLACED_MIN: Final = 20
_LOOKED_AT_CHARACTERS = 4000
_PAGE = re.compile(r"\s*<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE)
_TAG = re.compile(
    r"</?(?:div|p|a|span|li|ul|td|tr|table|h[1-6]|br|img|script|nav|article|section)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_TAGS_MIN = 6


def decode_page(raw: bytes, said: str | None = None) -> str:
    """Return the text of a page; `said` is the encoding that its server named, if any.

    Where most letters would be lost by that, the encoding that the page names is taken.
    """
    for mark, name in _MARKS:
        if raw.startswith(mark):
            return raw[len(mark) :].decode(name, "replace")
    of_server = _codec(said)
    if of_server and not lost_letters(text := raw.decode(of_server, "replace")):
        return text
    of_page = _codec(_declared(raw))
    if of_page and of_page.startswith("utf-16"):
        of_page = "utf-8"  # its ASCII declaration was found
    return raw.decode(of_page or of_server or "utf-8", "replace")


def _declared(raw: bytes) -> str | None:
    """Return the label that a page states in a `meta` element, else in its XML declaration."""
    markup = _NO_MARKUP.sub(b"", raw[:_SCANNED_BYTES])[:_MARKUP_BYTES]
    for tag in _META.finditer(markup):
        values = {
            name.lower(): b"".join(value) for name, *value in reversed(_ATTRIBUTE.findall(tag[1]))
        }
        if b"charset" in values:
            return values[b"charset"].decode("latin-1")
        of_content = _OF_CONTENT.search(values.get(b"content", b""))
        if of_content and values.get(b"http-equiv", b"").lower() == b"content-type":
            return of_content[1].decode("latin-1")
    xml = _XML.match(raw[:_MARKUP_BYTES].lstrip())
    return xml[1].decode("latin-1") if xml else None


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
    """Return Python's name of an encoding of pages; None for a label that browsers do not know, or
    refuse.
    """
    label = (label or "").strip(" \t\r\n\f\"'")
    found = webencodings.lookup(label) if label.isascii() else None
    if found is None or found.name == "replacement":
        return None
    return _DECODED_AS.get(found.name, found.codec_info.name)


def looks_like_markup(text: str) -> bool:
    """Return whether a text begins as a page does, or has many tags within its first 4,000
    characters.
    """
    part = text[:_LOOKED_AT_CHARACTERS]
    return _PAGE.match(part) is not None or (
        "<" in part and sum(1 for _ in _TAG.finditer(part)) >= _TAGS_MIN
    )
