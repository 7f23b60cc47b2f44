"""Render pages from templates, and tables as CSV. All text is escaped, control characters are
written as escape sequences, and an unknown name in a template is an error.
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
from stream_dedup.domain.document import OUTCOMES, SAME_ID, is_shortened
from stream_dedup.domain.printable import printable, utc_text

_URL: Final = re.compile(
    r"https?://[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]{1,2000}"
)  # the characters of RFC 3986
_URL_CHARACTERS: Final = "-._~:/?#[]@!$&'()*+,;=%"
_UNENCODED_URL: Final = re.compile(r"""https?://[^\s<>"\\^`{|}]{1,2000}""")


@cache
def environment() -> Environment:
    """Return the environment of the templates, with their filters and globals."""
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
    """Return a page as UTF-8; a lone surrogate becomes a question mark."""
    return environment().get_template(template).render(values).encode("utf-8", "replace")


def table(name: str, rows: Iterable[Any]) -> bytes:
    """Return the rows of a page's table as CSV in UTF-8, with a heading and times in UTC."""
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
    """Return a time in UTC, to the second; `-` for no time."""
    return utc_text(time_ms) or "-"


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with thousands separators; `-` for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def delay(milliseconds: int) -> str:
    """Return a duration: in milliseconds, in seconds from 10 s, in minutes from 10 min."""
    if milliseconds < 10_000:
        return f"{milliseconds:,} ms"
    return (
        f"{milliseconds / 1000:.0f} s"
        if milliseconds < 600_000
        else f"{milliseconds / 60_000:,.0f} min"
    )


def key(reason: str) -> Markup:
    """Return a square in the colour that the pictures use for a reason."""
    return Markup('<span class="key r-{0}"></span>').format(known_reason(reason))


def web(identifier: str) -> str:
    """Return an id as a URL if it is the URL of a web page, else an empty text. Only URLs are linked;
    a URL that was shortened leads nowhere.
    """
    if is_shortened(identifier):
        return ""
    # Browsers decode a percent-encoded host, so URLs with letters of any script can be linked.
    address = (
        quote(identifier, safe=_URL_CHARACTERS) if _UNENCODED_URL.fullmatch(identifier) else ""
    )
    return address if identifier.isprintable() and _URL.fullmatch(address) else ""


def breaking(text: str) -> Markup:
    """Return a text that may wrap after its slashes, such as a URL."""
    slash = Markup("/<wbr>")
    return escape(text).replace("/", slash).replace(slash + slash, "//")


def query(values: dict[str, Any], **changes: Any) -> str:
    """Return the query string of a URL, with `changes` applied; empty values are omitted."""
    return urlencode(
        {name: value for name, value in (values | changes).items() if value not in ("", None)},
        errors="replace",
    )
