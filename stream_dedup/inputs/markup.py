"""Whether a text is a web page that somebody took for a text. Pure."""

from __future__ import annotations

import re
from typing import Final

_LOOKED_AT = 4000
_PAGE: Final = re.compile(r"\s*<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE)
_TAG: Final = re.compile(
    r"</?(?:div|p|a|span|li|ul|td|tr|table|h[1-6]|br|img|script|nav|article|section)(?:\s[^<>]*)?/?>", re.IGNORECASE
)
_TAGS_MIN = 6


def looks_like_markup(text: str) -> bool:
    """Return whether a text begins as a page does, or has many tags within its first 4,000 characters."""
    part = text[:_LOOKED_AT]
    return _PAGE.match(part) is not None or ("<" in part and sum(1 for _ in _TAG.finditer(part)) >= _TAGS_MIN)
