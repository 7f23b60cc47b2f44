"""`group`: print a kept document with its copies, or groups of copies, from a running search."""

from __future__ import annotations

import urllib.parse
from typing import Annotated

import typer

from stream_dedup.cli.options import JsonOption, PageOption, SearchOption, command
from stream_dedup.domain.terminal import note, print_json, print_table
from stream_dedup.search.client import ask_search, raise_if_other_version
from stream_dedup.search.group_table import (
    COPY_COLUMNS,
    GROUP_COLUMNS,
    copy_row,
    group_row,
    summarise_group,
    summarise_list,
)
from stream_dedup.settings.settings import Settings


@command("group", example="stream-dedup group duplicates-3@17", asks_kafka=False)
def group_command(
    settings: Settings,
    document: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID|POSITION]",
            help="Id or position of a document. [default: list the groups]",
            show_default=False,
        ),
    ] = None,
    newest: Annotated[
        bool,
        typer.Option("--newest", help="List the newest groups instead of the largest."),
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=1, max=1000, help="List at most N groups, or copies of one group."
        ),
    ] = 20,
    page: PageOption = 1,
    search: SearchOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show a kept document with its copies, or the largest groups of copies."""
    query: dict[str, object] = {"limit": limit, "offset": limit * (page - 1)}
    query |= (
        {"order": "newest" if newest else "largest"} if document is None else {"document": document}
    )
    path = f"/v1/groups?{urllib.parse.urlencode(query, errors='replace')}"
    answer = ask_search(settings, search, path)
    with raise_if_other_version():
        if document is None:
            columns, rows = GROUP_COLUMNS, list(map(group_row, answer["groups"]))
            sentence = summarise_list(answer)
        else:
            columns, rows = (
                COPY_COLUMNS,
                list(map(copy_row, answer["members"] + answer["released_members"])),
            )
            sentence = summarise_group(answer)
    if as_json:
        print_json(answer)
    else:
        print_table(columns, rows)
        note(sentence)
    return 0
