"""`dlq redrive`: send dead letters back (by `orders.run_redrive`)."""

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
from stream_dedup.domain.terminal import print_json, print_table
from stream_dedup.orders.run_redrive import OBSTACLES, Selection, print_remarks, redrive
from stream_dedup.settings.settings import Settings


@command("dlq redrive", example="stream-dedup dlq redrive --stage decode --yes")
def dlq_redrive_command(
    settings: Settings,
    stages: StagesOption = None,
    classes: ClassesOption = None,
    contains: ContainsOption = "",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Send at most N dead letters.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Send them. Without it they are only counted.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Send dead letters back to `documents` in their original form.

    Fix the cause first: each is judged as a new document. If --stage, --class or
    --contains skips a letter, the next run starts at it, and sends matching later ones again.
    """
    selection = Selection(tuple(stages or ()), tuple(classes or ()), contains)
    totals: Counter[str] = Counter()
    letters = redrive(settings, selection, limit, totals, sends=yes)
    not_sendable = {name: totals[name] for name in OBSTACLES if totals[name]}
    if as_json:
        print_json(
            {
                "letters": totals["letters"],
                "sent": yes,
                "may_be_sent_again": totals["again"],
                "sent_twice_at_most": totals["twice"],
                "unfit": {name.replace(" ", "_"): count for name, count in not_sendable.items()},
                "sources": [letter.source for letter in letters],
            }
        )
    else:
        counts = Counter((letter.stage, letter.error_class) for letter in letters)
        if counts:
            print_table(
                ["stage", "class", "sent back" if yes else "would be sent back"],
                [
                    [stage or "-", kind or "-", f"{count:,}"]
                    for (stage, kind), count in counts.most_common()
                ],
            )
    print_remarks(settings, totals, is_sent=yes)
    return 0
