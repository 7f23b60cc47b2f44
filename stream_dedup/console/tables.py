"""The table of each page: its rows among the page's values, its columns, how it is sorted. Pure.

A page is sorted by `sort=COLUMN`, or `sort=-COLUMN` for the highest first, and its table is served
as CSV with the same address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stream_dedup.domain.errors import InputError


@dataclass(frozen=True, slots=True)
class PageTable:
    """Where the rows are among a page's values, their attributes, and how many a page shows."""

    rows: str
    columns: tuple[str, ...]
    shown: int = 200


TABLES: Final = {
    "now": PageTable("reasons", ("reason", "documents", "share")),
    "index": PageTable("buckets", ("up_to", "buckets")),
    "decisions": PageTable(
        "decisions",
        (
            "seen_ms",
            "at",
            "verdict",
            "reason",
            "similarity",
            "distance",
            "id",
            "title",
            "host",
            "size",
            "of_id",
            "of_position",
            "position",
            "log",
        ),
        shown=50,
    ),
    "find": PageTable(
        "documents", ("time_ms", "share", "id", "title", "host", "verdict", "at", "group")
    ),
    "groups": PageTable(
        "groups",
        (
            "id",
            "position",
            "copies",
            "fetched_again",
            "hosts",
            "bytes_wasted",
            "newest_ms",
            "oldest_ms",
            "counted",
        ),
        shown=50,
    ),
    "group": PageTable(
        "members",
        ("time_ms", "id", "title", "host", "reason", "similarity", "size", "better", "at"),
    ),
    "hosts": PageTable(
        "hosts",
        ("host", "documents", "duplicates", "fetched_again", "bytes", "bytes_wasted", "events"),
    ),
    "copies": PageTable(
        "pairs", ("copier", "source", "copies", "first_ms", "newest_ms", "example", "example_id")
    ),
    "dead-letters": PageTable(
        "listed",
        (
            "time_ms",
            "stage",
            "error_class",
            "why",
            "key",
            "id",
            "size",
            "at",
            "source",
            "beginning",
            "is_sent_back",
        ),
    ),
}


def arrange(
    name: str, values: Mapping[str, Any], sort: str, *, is_cut: bool = True
) -> dict[str, Any]:
    """Return the values of a page with the rows of its table sorted, and cut to what it shows.

    Raises:
        InputError: the table has no such column.
    """
    table = TABLES.get(name)
    if table is None:
        return dict(values)
    rows = list(values[table.rows])
    if sort:
        column = sort.removeprefix("-")
        if column not in table.columns:
            raise InputError(
                f"This table is sorted by one of {', '.join(table.columns)}, with - in front for "
                f"the highest first; sort={sort!r:.40} is none of them."
            )
        known = [row for row in rows if getattr(row, column) not in (None, "")]
        known.sort(key=lambda row: getattr(row, column), reverse=sort.startswith("-"))
        rows = known + [row for row in rows if getattr(row, column) in (None, "")]
    return {**values, table.rows: rows[: table.shown] if is_cut else rows}
