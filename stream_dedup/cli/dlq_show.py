"""`dlq show`: list dead letters (by `orders.run_redrive`)."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from stream_dedup.cli.options import (
    ClassesOption,
    ContainsOption,
    JsonOption,
    StagesOption,
    command,
)
from stream_dedup.domain.terminal import note, print_json, print_table
from stream_dedup.kafka import topic_bounds
from stream_dedup.log.dead_letters import Letter
from stream_dedup.orders.run_redrive import (
    Selection,
    count_partitions,
    read_letters,
    read_starts,
    summary_of,
)
from stream_dedup.settings.settings import Settings

_NOT_SENDABLE = "impossible: produce the source record again"


@command("dlq show", example="stream-dedup dlq show --stage decode --limit 20")
def dlq_show_command(
    settings: Settings,
    stages: StagesOption = None,
    classes: ClassesOption = None,
    contains: ContainsOption = "",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Show at most N dead letters.")
    ] = 50,
    as_json: JsonOption = False,
) -> int:
    """List dead letters: position, reason, size, and whether they were sent back."""
    selection = Selection(tuple(stages or ()), tuple(classes or ()), contains)
    topic = settings.topic_names.dead_letters
    partitions = count_partitions(settings, topic)
    bounds = topic_bounds(settings, topic, partitions)
    starts = read_starts(settings, topic, partitions)
    shown: list[Letter] = []
    counts: Counter[tuple[str, str]] = Counter()
    others: Counter[tuple[str, str]] = Counter()
    for letter in read_letters(settings, topic, bounds):
        if selection.includes(letter):
            counts[letter.stage, letter.error_class] += 1
            if limit is None or len(shown) < limit:
                shown.append(letter)
        else:
            others[letter.stage, letter.error_class] += 1
    documents = settings.topic_names.documents
    fields = [letter.to_fields(documents, starts[letter.message.partition]) for letter in shown]
    fields.sort(key=lambda row: (row["time"] or "", row["partition"], row["offset"]))
    if as_json:
        for row in fields:
            print_json(row)
        return 0
    rows = [
        [
            f"{row['partition']}@{row['offset']}",
            *(row[name] or "-" for name in ("source", "stage", "class")),
            f"{row['bytes']:,}",
            "yes" if row["sent_back"] else "-" if row["can_be_sent_back"] else _NOT_SENDABLE,
            row["message"],
        ]
        for row in fields
    ]
    if rows:
        print_table(["letter", "source", "stage", "class", "bytes", "sent back", "reason"], rows)
    note(summary_of(topic, counts, others, len(shown)))
    return 0
