"""Render pages from templates: everything is escaped, control characters are written out, and an
unknown name in a template is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from stream_dedup.console import pictures
from stream_dedup.console.recent_decisions import known_reason
from stream_dedup.console.tables import TABLES
from stream_dedup.domain.csv_text import csv_text
from stream_dedup.domain.differences import shown
from stream_dedup.domain.document import OUTCOMES, SAME_ID
from stream_dedup.domain.printable import printable, utc_text

_WEB: Final = re.compile(
    r"https?://[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]{1,2000}"
)  # the characters of RFC 3986
_WEB_SIGNS: Final = "-._~:/?#[]@!$&'()*+,;=%"
_PLAIN: Final = re.compile(r"""https?://[^\s<>"\\^`{|}]{1,2000}""")


@cache
def environment() -> Environment:
    """Return the templates."""
    templates = Environment(
        loader=PackageLoader("stream_dedup.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "plain": printable,
        "shown": shown,
        "size": size,
        "time": time_of,
        "number": number,
        "delay": delay,
        "query": query,
        "web": web,
        "key": key,
        "breaking": breaking,
    }
    templates.globals |= {"picture": pictures, "outcomes": OUTCOMES, "same_id": SAME_ID}
    return templates


def page(template: str, values: dict[str, Any]) -> bytes:
    """Return the page as UTF-8; a lone surrogate becomes a question mark."""
    return environment().get_template(template).render(values).encode("utf-8", "replace")


def table(name: str, rows: Iterable[Any]) -> bytes:
    """Return the rows of a page's table as CSV in UTF-8 with a heading; times as text."""
    columns = TABLES[name].columns
    cells = (
        [
            time_of(value)
            if column.endswith("_ms")
            else "; ".join(map(str, value))
            if isinstance(value, tuple)
            else value
            for column in columns
            for value in [getattr(row, column)]
        ]
        for row in rows
    )
    return csv_text([column.removesuffix("_ms") for column in columns], cells).encode(
        "utf-8", "replace"
    )


def size(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def time_of(time_ms: int) -> str:
    """Return a time in UTC, to the second; `-` for none."""
    return utc_text(time_ms) or "-"


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with thousands separators; `-` for none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def delay(milliseconds: int) -> str:
    """Return a time that passed: in milliseconds, from 10 s on in seconds, then in minutes."""
    if milliseconds < 10_000:
        return f"{milliseconds:,} ms"
    return (
        f"{milliseconds / 1000:.0f} s"
        if milliseconds < 600_000
        else f"{milliseconds / 60_000:,.0f} min"
    )


def key(reason: str) -> Markup:
    """Return the colour key of a reason, as in the pictures."""
    return Markup('<span class="key r-{0}"></span>').format(known_reason(reason))


def web(identifier: str) -> str:
    """Return an id that is the URL of a web page, or nothing: only such ids become links."""
    # A browser decodes a host that is percent-encoded, so letters of any script can be linked.
    address = quote(identifier, safe=_WEB_SIGNS) if _PLAIN.fullmatch(identifier) else ""
    return address if identifier.isprintable() and _WEB.fullmatch(address) else ""


def breaking(text: str) -> Markup:
    """Return a URL that may wrap after its slashes; any text is accepted."""
    slash = Markup("/<wbr>")
    return escape(text).replace("/", slash).replace(slash + slash, "//")


def query(values: dict[str, Any], **changes: Any) -> str:
    """Return the query of a URL with some values changed; empty ones are omitted."""
    return urlencode(
        {name: value for name, value in (values | changes).items() if value not in ("", None)},
        errors="replace",
    )
