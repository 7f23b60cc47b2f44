"""Declare the table of each page: its rows and columns; sort and shorten it. Pure.

`sort=COLUMN` in the address sorts a table, `sort=-COLUMN` with the highest value first; this also
applies to its CSV. If a page has two tables, those that have the column are sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stream_dedup.domain.errors import InputError


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of a page. `rows`: the name of its rows in the page's values; `columns`: attributes of
    a row; `rows_shown`: the maximum number of rows on the page; `page`: the page that shows the
    table, empty if the table has the name of its page.
    """

    rows: str
    columns: tuple[str, ...]
    rows_shown: int = 200
    page: str = ""


TABLES: Final = {
    "now": PageTable("reasons", ("reason", "documents", "share")),
    "similarities": PageTable(
        "similarities", ("similarity_from", "similarity_to", "duplicates"), page="now"
    ),
    "decisions": PageTable(
        "decisions",
        (
            "time_ms",
            "output_position",
            "verdict",
            "reason",
            "similarity",
            "distance",
            "id",
            "title",
            "host",
            "size",
            "kept_id",
            "kept_position",
            "source_position",
            "log",
        ),
        rows_shown=50,
    ),
    "find": PageTable(
        "documents",
        (
            *("time_ms", "share", "id", "title", "host", "verdict", "output_position"),
            *("group_position", "fetches", "first_ms", "newest_ms"),
        ),
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
        rows_shown=50,
    ),
    "group": PageTable(
        "members",
        (
            *("time_ms", "id", "title", "host", "reason", "similarity", "size", "better"),
            *("output_position", "fetches", "first_ms", "newest_ms"),
        ),
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
        "kinds",
        ("stage", "error_class", "count", "not_sent_back", "cannot_be_sent_back"),
        page="dead-letters",
    ),
    "dead-letters": PageTable(
        "listed",
        (
            "time_ms",
            "stage",
            "error_class",
            "error_message",
            "key",
            "id",
            "size",
            "position",
            "source_position",
            "beginning",
            "is_sent_back",
        ),
    ),
}


def arrange(
    page: str, values: Mapping[str, Any], sort: str, *, is_cut: bool = True
) -> dict[str, Any]:
    """Return the values of a page with its tables sorted, and shortened to `rows_shown` if `is_cut`.

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
        arranged[table.rows] = rows[: table.rows_shown] if is_cut else rows
        arranged[f"{table.rows}_hidden"] = len(rows) - len(arranged[table.rows])
    return arranged
