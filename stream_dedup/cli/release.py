"""`release`: send wrongly dropped documents to `unique` (by `orders.run_release`)."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stream_dedup.cli.options import DryRunOption, JsonOption, command
from stream_dedup.domain.terminal import note, print_counts, print_json, print_table
from stream_dedup.domain.topics import TopicNames
from stream_dedup.orders.common import OrderDependencies
from stream_dedup.orders.run_release import ManyReleased, Released, release, release_many
from stream_dedup.settings.settings import Settings


@command("release", example="stream-dedup release documents-3@8812")
def release_command(
    settings: Settings,
    position: Annotated[
        str,
        typer.Argument(
            metavar="POSITION|ID|-",
            help="Position (documents-3@8812, duplicates-3@17) or id; - reads positions from "
            "standard input, one per line.",
            show_default=False,
        ),
    ],
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Send a wrongly dropped document to `unique`, once."""
    dependencies, names = OrderDependencies.of_process(), settings.topic_names
    if position == "-":
        many = release_many(settings, sys.stdin, dependencies, dry_run=dry_run)
        _print_many(names, many, dry_run=dry_run, as_json=as_json)
    else:
        released = release(settings, position, dependencies, dry_run=dry_run)
        _print(names, released, dry_run=dry_run, as_json=as_json)
    return 0


def _print(names: TopicNames, released: Released, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(released._asdict())
    else:
        log_offset = "-" if released.log_offset is None else str(released.log_offset)
        print_table(["position", "released at log offset"], [[released.position, log_offset]])
    if released.written:
        note(
            f"Written to {names.unique}. Later copies of the document are duplicates, unless you release "
            "them too."
        )
    elif dry_run:
        note("Nothing was written (--dry-run).")
    else:
        note(f"Nothing was written: the document was released before, and is in {names.unique}.")


def _print_many(names: TopicNames, many: ManyReleased, *, dry_run: bool, as_json: bool) -> None:
    figures = {
        "found": many.requested,
        "released_before": many.released_before,
        "written": many.written,
        "would_be_written": many.remaining,
    }
    if as_json:
        print_json(figures | {"refused": dict(many.refused)})
        return
    print_counts(figures, heading="documents")
    for reason, count in many.refused.items():
        note(f"{count:,} cannot be released: {reason}")
    if many.written:
        note(f"Written to {names.unique}: {many.written:,}.")
    else:
        note("Nothing was written." if not dry_run else "Nothing was written (--dry-run).")
