"""The table of each page: where its rows are, its columns, and how it is sorted. Pure.

A page is sorted by `sort=COLUMN`, or `sort=-COLUMN` for the highest first; its CSV has the same
address. On a page with two tables, both are sorted by a column that both have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stream_dedup.domain.errors import InputError


@dataclass(frozen=True, slots=True)
class PageTable:
    """The name of the rows among a page's values, their attributes, and how many the page shows;
    `page`: the page of a second table, empty for a table with the name of its page.
    """

    rows: str
    columns: tuple[str, ...]
    shown: int = 200
    page: str = ""


TABLES: Final = {
    "now": PageTable("reasons", ("reason", "documents", "share")),
    "similarities": PageTable(
        "similarities", ("similarity_from", "similarity_to", "duplicates"), page="now"
    ),
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
            "best_id",
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
        "pairs",
        (
            "copier",
            "source",
            "copies",
            "first_ms",
            "newest_ms",
            "example",
            "example_id",
            "is_older_than_kept",
        ),
    ),
    "letter-kinds": PageTable(
        "kinds", ("stage", "error_class", "count", "waiting", "staying"), page="dead-letters"
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
    page: str, values: Mapping[str, Any], sort: str, *, is_cut: bool = True
) -> dict[str, Any]:
    """Return the values of a page with sorted tables, cut to the rows that it shows.

    Raises:
        InputError: no table of the page has such a column.
    """
    arranged = dict(values)
    tables = [table for name, table in TABLES.items() if page in (name, table.page)]
    columns = dict.fromkeys(column for table in tables for column in table.columns)
    column = sort.removeprefix("-")
    if sort and tables and column not in columns:
        raise InputError(
            f"sort must be one of {', '.join(columns)}, with - in front for the highest first, not "
            f"{sort!r:.40}."
        )
    for table in tables:
        rows = list(values[table.rows])
        if column in table.columns:
            with_value = [row for row in rows if getattr(row, column) not in (None, "", ())]
            with_value.sort(key=lambda row: getattr(row, column), reverse=sort.startswith("-"))
            rows = with_value + [row for row in rows if getattr(row, column) in (None, "", ())]
        arranged[table.rows] = rows[: table.shown] if is_cut else rows
        arranged[f"{table.rows}_hidden"] = len(rows) - len(arranged[table.rows])
    return arranged
