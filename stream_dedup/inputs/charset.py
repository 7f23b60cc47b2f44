"""Decode the bytes of a web page by its byte order mark, the server's header or its own declaration,
else as UTF-8; and recognise a text that is the source of a web page.

Invariants: pure functions that do not raise; invalid bytes are replaced. Labels and their order are
those of the Encoding and HTML standards (a byte order mark takes precedence over the server), without
guesses, which could decode a page differently in another version.
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
# The standard scans 1,024 bytes; browsers scan more if scripts, comments or an archive's banner fill
# them.
_SCANNED_BYTES: Final = 256 << 10
_MARKUP_BYTES: Final = 16 << 10
_NO_MARKUP: Final = re.compile(
    rb"<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL
)
_META: Final = re.compile(rb"<meta[\s/]([^>]{0,4000})>", re.IGNORECASE)
_ATTRIBUTE: Final = re.compile(rb"""([^\s"'/=]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"']+))""")
_CHARSET_IN_CONTENT: Final = re.compile(rb"charset\s*=\s*[\"']?\s*([^\s;\"']+)", re.IGNORECASE)
_XML: Final = re.compile(rb"<\?xml\s[^>]*?\bencoding\s*=\s*[\"']([^\"'>]*)")
# The decoders that the standard uses for these names.
_DECODED_AS: Final = {"gbk": "gb18030", "x-user-defined": "cp1252"}
REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
_REPLACED_MIN: Final = 20
_MARKUP_CHARACTERS = 4000
_PAGE = re.compile(r"\s*<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE)
_TAG = re.compile(
    r"</?(?:div|p|a|span|li|ul|td|tr|table|h[1-6]|br|img|script|nav|article|section)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_TAGS_MIN = 6


def decode_page(raw: bytes, label: str | None = None) -> str:
    """Return the text of a page; `label` is the encoding that its server named, or None.

    If too many letters would be lost by that encoding, the page's own declaration is used.
    """
    for mark, name in _MARKS:
        if raw.startswith(mark):
            return raw[len(mark) :].decode(name, "replace")
    server_codec = _codec(label)
    if server_codec and not describe_wrong_encoding(text := raw.decode(server_codec, "replace")):
        return text
    page_codec = _codec(_declared(raw))
    if page_codec and page_codec.startswith("utf-16"):
        page_codec = "utf-8"  # the declaration was read as ASCII, so it is wrong
    return raw.decode(page_codec or server_codec or "utf-8", "replace")


def _declared(raw: bytes) -> str | None:
    """Return the label in a page's `meta` element, else in its XML declaration; None if it has none."""
    markup = _NO_MARKUP.sub(b"", raw[:_SCANNED_BYTES])[:_MARKUP_BYTES]
    for tag in _META.finditer(markup):
        values = {
            name.lower(): b"".join(value) for name, *value in reversed(_ATTRIBUTE.findall(tag[1]))
        }
        if b"charset" in values:
            return values[b"charset"].decode("latin-1")
        in_content = _CHARSET_IN_CONTENT.search(values.get(b"content", b""))
        if in_content and values.get(b"http-equiv", b"").lower() == b"content-type":
            return in_content[1].decode("latin-1")
    xml = _XML.match(raw[:_MARKUP_BYTES].lstrip())
    return xml[1].decode("latin-1") if xml else None


def describe_wrong_encoding(text: str) -> str:
    """Return an error message if more than a fifth of a text is U+FFFD, otherwise an empty string.

    Texts in another encoding lose most letters and keep digits and names, so different texts would
    look like copies. A text with fewer than `_REPLACED_MIN` replacements is accepted.
    """
    replaced = text.count(REPLACED)
    if replaced < _REPLACED_MIN or 5 * replaced <= len(text):
        return ""
    return (
        f"{replaced:,} of the {len(text):,} characters of the text are not UTF-8 (U+FFFD): it has "
        "another encoding, and without these letters it would be similar to unrelated texts. "
        "Send it in UTF-8."
    )


def _codec(label: str | None) -> str | None:
    """Return Python's name of the encoding with a label; None if browsers do not know it."""
    label = (label or "").strip(" \t\r\n\f\"'")
    found = webencodings.lookup(label) if label.isascii() else None
    if found is None or found.name == "replacement":
        return None
    return _DECODED_AS.get(found.name, found.codec_info.name)


def looks_like_markup(text: str) -> bool:
    """Return whether a text begins as a page does, or has many tags within its first 4,000
    characters.
    """
    part = text[:_MARKUP_CHARACTERS]
    return _PAGE.match(part) is not None or (
        "<" in part and sum(1 for _ in _TAG.finditer(part)) >= _TAGS_MIN
    )
