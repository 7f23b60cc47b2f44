"""`rewind`: set the committed offsets of an idle group (by `orders.run_rewind`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from stream_dedup.cli.options import DryRunOption, JsonOption, command
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.terminal import note, print_json, print_table
from stream_dedup.orders.common import OrderDependencies
from stream_dedup.orders.rewind import OffsetChange, parse
from stream_dedup.orders.run_rewind import rewind_group
from stream_dedup.settings.settings import Settings


@command("rewind", example="stream-dedup rewind --dry-run documents-3@8812")
def rewind_command(
    settings: Settings,
    positions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PARTITION@OFFSET",
            help="Where to start reading: 3@8812 or documents-3@8812. Repeatable.",
        ),
    ] = None,
    from_outputs: Annotated[
        bool,
        typer.Option(
            "--from-outputs",
            help="For lost offsets: continue after the last documents in outputs and log.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Set the offsets from which workers read `documents` again. Stop the workers first.

    Documents that were already delivered are delivered again. Do not set the group's offsets with other tools.
    """
    if bool(positions) == from_outputs:
        raise typer.BadParameter(
            "Give either positions or --from-outputs.", param_hint="PARTITION@OFFSET"
        )
    topic = settings.topic_names.documents
    try:
        parse(positions or (), topic)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="PARTITION@OFFSET") from error
    changes = rewind_group(settings, positions, OrderDependencies.of_process(), dry_run=dry_run)
    _print(topic, changes, is_written=not dry_run, as_json=as_json)
    return 0


def _print(topic: str, changes: Sequence[OffsetChange], *, is_written: bool, as_json: bool) -> None:
    if as_json:
        print_json([change.to_fields(topic, is_written=is_written) for change in changes])
    elif not changes:
        note("Every partition has its committed offset.")
    else:
        print_table(
            ["partition", "committed", "becomes", "epoch", "becomes", "offsets to read again"],
            [change.to_row(topic) for change in changes],
        )
    for change in changes:
        if change.warning:
            note(f"{topic}-{change.partition}: {change.warning}")
    if is_written and any(change.is_change for change in changes):
        note(
            "Written. Workers start at the new offsets. Documents that they read again are delivered "
            "again, and their duplicates are counted again in dedup.copies."
        )
    else:
        note("Nothing was written." if is_written else "Nothing was written (--dry-run).")
