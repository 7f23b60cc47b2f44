"""`dlq show` and `dlq redrive`: list dead letters, and send them back; see `orders.redriving`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
from stream_dedup.log.letters import Letter
from stream_dedup.orders.redriving import (
    Selection,
    count_partitions,
    read_letters,
    read_starts,
    redrive,
)
from stream_dedup.settings.settings import Settings

_STAYS = "cannot be: produce the source record again"


@command("dlq show", example="stream-dedup dlq show --stage decode --limit 20")
def dlq_show_command(
    settings: Settings,
    stages: StagesOption = None,
    classes: ClassesOption = None,
    contains: ContainsOption = "",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Show at most N letters.")
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
    for letter in read_letters(settings, topic, bounds):
        if selection.includes(letter):
            counts[letter.stage, letter.error_class] += 1
            if limit is None or len(shown) < limit:
                shown.append(letter)
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
            "yes" if row["sent_back"] else "-" if row["can_be_sent_back"] else _STAYS,
            row["message"],
        ]
        for row in fields
    ]
    if rows:
        print_table(["letter", "source", "stage", "class", "bytes", "sent back", "reason"], rows)
    by_kind = ", ".join(
        f"{count:,} {stage or '-'}/{kind or '-'}" for (stage, kind), count in counts.most_common()
    )
    note(
        f"{counts.total():,} dead letters on {topic}{f': {by_kind}' if by_kind else ''}; "
        f"{len(shown):,} shown."
    )
    return 0


@command("dlq redrive", example="stream-dedup dlq redrive --stage decode --yes")
def dlq_redrive_command(
    settings: Settings,
    stages: StagesOption = None,
    classes: ClassesOption = None,
    contains: ContainsOption = "",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Send at most N letters.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Send them; without it they are only counted.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Send dead letters back to `documents` in their original form, from the first that was not
    sent.

    Fix the cause first: each is judged as a new document.
    """
    selection = Selection(tuple(stages or ()), tuple(classes or ()), contains)
    totals: Counter[str] = Counter()
    letters = redrive(settings, selection, limit, totals, sends=yes)
    _print(settings, letters, totals, is_sent=yes, as_json=as_json)
    return 0


def _print(
    settings: Settings,
    letters: Sequence[Letter],
    totals: Counter[str],
    *,
    is_sent: bool,
    as_json: bool,
) -> None:
    names = settings.topic_names
    unfit = {name: totals[name] for name in ("cut", "foreign", "no such partition") if totals[name]}
    if as_json:
        print_json(
            {
                "letters": totals["letters"],
                "sent": is_sent,
                "may_be_sent_again": totals["again"],
                "sent_twice_at_most": totals["twice"],
                "unfit": {name.replace(" ", "_"): count for name, count in unfit.items()},
                "sources": [letter.source for letter in letters],
            }
        )
    else:
        counts = Counter((letter.stage, letter.error_class) for letter in letters)
        if counts:
            print_table(
                ["stage", "class", "sent back" if is_sent else "would be sent back"],
                [
                    [stage or "-", kind or "-", f"{count:,}"]
                    for (stage, kind), count in counts.most_common()
                ],
            )
    reasons = {
        "cut": "lack a part of their record, which was cut or could not be read; produce these again",
        "foreign": f"are not of {names.documents}",
        "no such partition": f"are of a partition that {names.documents} does not have",
    }
    for name, count in unfit.items():
        note(f"{count:,} cannot be sent back: they {reasons[name]}.")
    if totals["again"]:
        note(
            f"{totals['again']:,} of them are behind a letter that was not selected: the next run "
            "that selects them sends them again, and they are judged unchanged."
        )
    if totals["twice"]:
        note(
            f"The outcome of a transaction is unknown: at most {totals['twice']:,} letters were sent "
            "twice."
        )
    if is_sent:
        note(
            f"{totals['letters']:,} dead letters were sent back to {names.documents}; each is "
            "judged as a new document."
        )
    else:
        note(f"{totals['letters']:,} would be sent back. Nothing was written; --yes sends them.")
