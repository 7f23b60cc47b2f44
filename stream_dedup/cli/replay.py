"""`replay`: print the verdicts that another plan or rule would change (by `audit.live`)."""

from __future__ import annotations

from typing import Annotated

import typer

from stream_dedup.audit.live import replay_log
from stream_dedup.audit.replay import Alternative, Difference, judgement_text
from stream_dedup.cli.options import JsonOption, WorkOption, command
from stream_dedup.domain.terminal import console, note, print_json, print_table, progress
from stream_dedup.settings.settings import Settings


@command("replay", example="stream-dedup replay --diff plan=classic")
def replay_command(
    settings: Settings,
    diff: Annotated[
        list[str],
        typer.Option(
            "--diff",
            metavar="NAME=VALUE",
            help="A change of the plan (plan=classic) or a rule (better=newest). Repeatable.",
        ),
    ],
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", min=1, help="Number of samples of each change."),
    ] = 10,
    work: WorkOption = None,
    as_json: JsonOption = False,
) -> int:
    """Judge the log again under another plan or rule, and print the verdicts that differ.

    Changes nothing.
    """
    alternative, difference = Alternative.parse(diff), Difference(limit)
    with progress("judging the log twice", None) as advance:
        plan = replay_log(settings, alternative, difference, work, advance)
    plan_id = None if plan is None else plan.id
    if as_json:
        print_json(difference.to_fields(plan_id))
    else:
        _print(difference, plan_id)
    return 0


def _print(difference: Difference, plan: str | None) -> None:
    for sample in difference.samples:
        console().print(
            f"{sample.kind}: {sample.position} {sample.id!r}: {judgement_text(sample.was)}; would "
            f"be {judgement_text(sample.would_be)}",
            soft_wrap=True,
        )
    print_table(["reason", "as judged", f"under {plan}"], difference.to_rows())
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in difference.kinds.items()) or "none"
    note(
        f"The verdicts of {difference.kinds.total():,} of {difference.documents:,} documents would "
        f"change: {kinds}."
    )
