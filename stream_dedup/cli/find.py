"""`find`: print the documents that contain a text, from a running search."""

from __future__ import annotations

import re
import sys
import urllib.parse
from typing import Annotated, Any

import typer
from rich.text import Text

from stream_dedup.cli.options import AsTextOption, JsonOption, command
from stream_dedup.console.nouns import FIND_ORDERS
from stream_dedup.domain.csv_text import csv_text
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.printable import printable
from stream_dedup.domain.terminal import console, note, print_json
from stream_dedup.files.one_text import read_text
from stream_dedup.search.client import (
    CSV_COLUMNS,
    CSV_MAX,
    ask_search,
    csv_row,
    of_this_version,
    summary_of,
    time_of,
)
from stream_dedup.settings.settings import Settings

SearchOption = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="URL",
        help="Address of a running search.  [default: on this machine]",
    ),
]


@command(
    "find",
    example='stream-dedup find "two sentences of a text, copied exactly" --limit 5',
    asks_kafka=False,
)
def find_command(
    settings: Settings,
    clue: Annotated[
        str,
        typer.Argument(
            metavar="TEXT|FILE|-",
            help="A text, a file with one, or - for standard input.",
        ),
    ],
    as_text: AsTextOption = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100, help="Show at most N documents.")
    ] = 20,
    least: Annotated[
        float | None,
        typer.Option(
            "--least",
            metavar="SHARE",
            help="Least share of the query that a document contains, 0 to 1.  [default: 0.5; 0.4"
            " for up to eleven words]",
        ),
    ] = None,
    page: Annotated[int, typer.Option("--page", min=1, max=10_000, help="Page of results.")] = 1,
    order: Annotated[
        str,
        typer.Option("--order", metavar="|".join(FIND_ORDERS), help="Order of documents."),
    ] = "best",
    host: Annotated[
        str | None,
        typer.Option("--host", help="Only this host and its subdomains."),
    ] = None,
    as_csv: Annotated[
        bool,
        typer.Option("--csv", help="Print all documents as CSV, without snippets."),
    ] = False,
    search: SearchOption = None,
    as_json: JsonOption = False,
) -> int:
    """Find the documents that contain a sentence or two, or most of it."""
    if as_csv and as_json:
        raise InputError("Documents are printed as CSV or as JSON; give one of --csv and --json.")
    text = str(read_text(settings, clue, as_text=as_text).text)
    query = {"limit": limit, "offset": limit * (page - 1), "order": order}
    if as_csv:
        query |= {"limit": CSV_MAX, "offset": 0, "snippets": "no"}
    query |= {} if host is None else {"host": host}
    query |= {} if least is None else {"least": least}
    path = f"/v1/find?{urllib.parse.urlencode(query, errors='replace')}"
    answer = ask_search(settings, search, path, text.encode("utf-8", "replace"))
    with of_this_version():
        lines = [_line(document) for document in answer["documents"]]
        summary = summary_of(answer)
        rows = list(map(csv_row, answer["documents"]))
    if as_json:
        print_json(answer)
    elif as_csv:
        sys.stdout.write(csv_text(CSV_COLUMNS, rows))
    else:
        for line in lines:
            console().print(line, soft_wrap=True)
        note(summary)
    return 0


def _line(document: dict[str, Any]) -> Text:
    line = Text(f"{document['share']:4.0%}  ", "bold")
    line.append(printable(str(document["id"] or document["at"]), 200), "cyan")
    line.append(f"  {time_of(document['time_ms']) or '-'}", "dim")
    line.append(f"  {document['at']}  {printable(str(document['verdict']), 40)}")
    line.append(f"  group {document['group']}\n" if document["group"] else "\n", "dim")
    line.append("      ")
    if not document["snippet"]:
        line.append("(its text was deleted, or cannot be read now)", "dim")
    for piece, matches in document["snippet"]:
        line.append(
            printable(re.sub(r"\s+", " ", str(piece)), 2000), "bold yellow" if matches else ""
        )
    return line
