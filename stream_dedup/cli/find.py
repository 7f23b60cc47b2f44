"""`find`: print the documents that contain a text, from a running search."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stream_dedup.cli.find_lines import line_of
from stream_dedup.cli.options import (
    AsTextOption,
    JsonOption,
    PageOption,
    SearchOption,
    TextArgument,
    command,
)
from stream_dedup.console.values import FIND_ORDERS
from stream_dedup.domain.csv_text import csv_text
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.terminal import console, note, print_json
from stream_dedup.files.one_text import read_text
from stream_dedup.search import client
from stream_dedup.settings.settings import Settings


@command(
    "find",
    example='stream-dedup find "two sentences of a text, copied exactly" --limit 5',
    asks_kafka=False,
)
def find_command(
    settings: Settings,
    target: TextArgument,
    as_text: AsTextOption = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100, help="Show at most N documents.")
    ] = 20,
    min_share: Annotated[
        float | None,
        typer.Option(
            "--min-share",
            metavar="SHARE",
            help="Minimum share of the query that a document contains, 0 to 1.  [default: 0.5; 0.4"
            " for up to eleven words]",
        ),
    ] = None,
    page: PageOption = 1,
    order: Annotated[
        str, typer.Option("--order", metavar="|".join(FIND_ORDERS), help="Order of documents.")
    ] = "best",
    host: Annotated[
        str | None, typer.Option("--host", help="Only this host and its subdomains.")
    ] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print all documents as CSV, without snippets.")
    ] = False,
    search: SearchOption = None,
    as_json: JsonOption = False,
) -> int:
    """Find the documents that contain all or most of a sentence or two."""
    if as_csv and as_json:
        raise InputError("Print documents as CSV or JSON: use only one of --csv and --json.")
    text = str(read_text(settings, target, as_text=as_text).text)
    path = client.find_path(limit, page, order, host=host, min_share=min_share, as_csv=as_csv)
    answer = client.ask_search(settings, search, path, text.encode("utf-8", "replace"))
    with client.raise_if_other_version():
        lines = [line_of(document) for document in answer["documents"]]
        summary = client.summary_of(answer)
        rows = list(map(client.csv_row, answer["documents"]))
    if as_json:
        print_json(answer)
    elif as_csv:
        sys.stdout.write(csv_text(client.CSV_COLUMNS, rows))
    else:
        for line in lines:
            console().print(line, soft_wrap=True)
        note(summary)
    return 0
