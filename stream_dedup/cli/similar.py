"""`similar`: print the kept documents that are similar to a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream_dedup.cli.options import (
    AsTextOption,
    CommandLine,
    IndexUrlOption,
    JsonOption,
    OpenVolumeOption,
    ScopeOption,
    SiteOption,
    TextArgument,
    TitleOption,
    command,
)
from stream_dedup.cli.similar_in_index import ask_index
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.hosts import named_site
from stream_dedup.domain.plan import parse_similarity
from stream_dedup.domain.terminal import note, print_json, print_table
from stream_dedup.files.one_text import read_text
from stream_dedup.files.similar import LookUp, describe_answer, to_table
from stream_dedup.inputs.fields import scope_number


@command(
    "similar",
    example="stream-dedup similar page.txt --index http://localhost:8081 --limit 5",
    asks_kafka=False,
    flags=("similarity",),
)
def similar_command(
    command_line: CommandLine,
    target: TextArgument,
    as_text: AsTextOption = False,
    index: IndexUrlOption = None,
    volume: OpenVolumeOption = None,
    scope: ScopeOption = None,
    site: SiteOption = None,
    title: TitleOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="Show at most N.")
    ] = 100,
    as_json: JsonOption = False,
) -> int:
    """Find the kept documents that are similar to a text as a whole, nearest first.

    Shows all that reach SIMILARITY. To find documents that contain a sentence, use `find`.
    """
    if index is not None and volume is not None:
        raise typer.BadParameter("use only one of --index and --volume")
    if index is not None and Path(index).is_dir():
        raise InputError(f"{index} is a folder; read the index in it with --volume {index}.")
    settings = command_line.quiet_settings()
    required = command_line.flags["similarity"]
    similarity = None if required is None else parse_similarity(str(required))
    document = read_text(settings, target, as_text=as_text)
    document = document._replace(
        scope=document.scope if scope is None else scope_number(scope),
        site=document.site if site is None else named_site(site),
        title=document.title if title is None else title,
    )
    look_up = LookUp.from_document(settings, document, limit, similarity)
    answer = look_up.read_volume(volume) if volume else ask_index(look_up, settings, index)
    columns, rows = to_table(answer)
    if as_json:
        fingerprint = f"{look_up.number:0{look_up.recipe.width // 4}x}"
        print_json({"features": look_up.features, "fingerprint": fingerprint, **answer})
        return 0
    if rows:
        print_table(columns, rows)
    for sentence in describe_answer(look_up, answer, len(rows)):
        note(sentence)
    return 0
