"""`tap`: print the committed decisions from the output topics as they are made."""

from __future__ import annotations

import enum
from dataclasses import asdict
from typing import Annotated

import typer

from stream_dedup.cli.options import JsonOption, command
from stream_dedup.cli.tap_lines import lines
from stream_dedup.domain.terminal import console, note, print_json
from stream_dedup.inputs.decoder import ids_of
from stream_dedup.kafka import follow_topics, read_stored
from stream_dedup.log.output_records import describe
from stream_dedup.settings.settings import Settings

_OUTPUTS = ("unique", "duplicates", "dead-letters")
OutputName = enum.StrEnum("OutputName", [(name.upper(), name) for name in _OUTPUTS])  # type: ignore[misc]


@command("tap", example="stream-dedup tap --only duplicates --limit 20")
def tap_command(
    settings: Settings,
    only: Annotated[
        list[OutputName] | None,
        typer.Option("--only", help="Show only these. Repeatable."),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the oldest decisions.")
    ] = False,
    until_now: Annotated[
        bool, typer.Option("--until-now", help="Exit at the end of the topics.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Exit after N decisions.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Print decisions as they are made: verdict, reason, similarity, id and kept document.

    For a duplicate, it also prints the command that releases it; for a page that was kept because of
    its site or title, its sibling.
    """
    names = settings.topic_names
    by_output = dict(zip(_OUTPUTS, names.outputs, strict=True))
    topics = [topic for output, topic in by_output.items() if not only or output in only]
    out = console()
    shown = 0
    id_of = ids_of(settings)
    try:
        if not as_json and not until_now:
            note(f"Decisions from {', '.join(topics)}; stop with Ctrl-C.")
        messages = (
            read_stored(settings, topics)
            if until_now
            else follow_topics(settings, topics, from_beginning=from_beginning)
        )
        for message in messages:
            if message is None:
                continue
            tapped = describe(message, names.dead_letters, id_of(message))
            if as_json:
                print_json(asdict(tapped))
                out.file.flush()
            else:
                for line in lines(tapped, out.width if out.is_terminal else None):
                    out.print(line, soft_wrap=True)
            shown += 1
            if shown == limit:
                break
    except KeyboardInterrupt:
        pass
    return 0
