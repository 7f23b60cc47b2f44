"""What the commands of snapshots share: the argument for their place, and the output."""

from __future__ import annotations

from typing import Annotated

import typer

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.terminal import note, print_json, print_table
from stream_dedup.index.report import snapshot_fields, snapshot_rows
from stream_dedup.index.snapshot import Snapshot
from stream_dedup.inputs.remote_files import raise_as
from stream_dedup.settings.settings import Settings

PlaceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PLACE",
        help="Folder or URL of snapshots.  [default: SNAPSHOTS]",
        show_default=False,
    ),
]


def place_of(settings: Settings, argument: str | None) -> str:
    """Return the place of snapshots that the argument or the settings name.

    Raises:
        ConfigurationError: neither does.
    """
    place = argument or settings.snapshots
    if place is None:
        raise ConfigurationError(
            "No place for snapshots is set. Name a folder or a URL, or set STREAM_DEDUP_SNAPSHOTS."
        )
    with raise_as(place):
        return place


def print_snapshot(snapshot: Snapshot, where: str, seconds: float, *, as_json: bool) -> None:
    """Print a snapshot at `where`, which took `seconds`."""
    if snapshot.remark:
        note(snapshot.remark)
    if as_json:
        print_json({**snapshot_fields(snapshot, where), "seconds": round(seconds, 3)})
    else:
        print_table(["", "snapshot"], snapshot_rows(snapshot, where, seconds))
