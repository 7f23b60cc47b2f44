"""`rewind`: the committed offsets of an idle group set back. The work: `orders.rewinding`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from stream_dedup.cli.options import DryRunOption, JsonOption, command
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.terminal import note, print_json, print_table
from stream_dedup.orders.orders import OrderDependencies
from stream_dedup.orders.rewind import OffsetChange, parse
from stream_dedup.orders.rewinding import rewind_group
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
            help="For lost offsets: continue after the documents that outputs and log contain.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Make workers read partitions of `documents` again from an offset, while no worker runs.

    Documents that left already leave again. Do not set the group's offsets with other tools.
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
        print_json([_row(topic, change, is_written=is_written) for change in changes])
    elif not changes:
        note("No partition lacks its committed offset.")
    else:
        print_table(
            ["partition", "committed", "becomes", "epoch", "becomes", "offsets to read again"],
            [
                [
                    f"{topic}-{change.partition}",
                    _or_none(change.committed),
                    str(change.new_offset),
                    _or_none(change.epoch),
                    str(change.new_epoch),
                    _or_none(_again(change)),
                ]
                for change in changes
            ],
        )
    for change in changes:
        if change.warning:
            note(f"{topic}-{change.partition}: {change.warning}")
    if is_written and any(change.is_change for change in changes):
        note(
            "Written. The workers begin there; what they read again is delivered again, and a "
            "duplicate among it counts in "
            "dedup.copies once more."
        )
    elif is_written:
        note("Nothing was written.")
    else:
        note("Nothing was written (--dry-run).")


def _row(topic: str, change: OffsetChange, *, is_written: bool) -> dict[str, object]:
    return {
        "topic": topic,
        "partition": change.partition,
        "offset": {"now": change.committed, "wanted": change.new_offset},
        "epoch": {"now": change.epoch, "wanted": change.new_epoch},
        "offsets_again": _again(change),
        "warning": change.warning,
        "written": is_written and change.is_change,
    }


def _again(change: OffsetChange) -> int | None:
    return None if change.committed is None else max(0, change.committed - change.new_offset)


def _or_none(number: int | None) -> str:
    return "none" if number is None else str(number)
