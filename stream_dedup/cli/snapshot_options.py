"""The argument and the output that the snapshot commands share."""

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
    """Return the place of snapshots from the argument, else from the settings.

    Raises:
        ConfigurationError: neither names a place.
    """
    place = argument or settings.snapshots
    if place is None:
        raise ConfigurationError(
            "There is no place for snapshots. Name a folder or a URL, or set "
            "STREAM_DEDUP_SNAPSHOTS."
        )
    with raise_as(place):  # refuses a URL with credentials
        return place


def print_snapshot(snapshot: Snapshot, location: str, seconds: float, *, as_json: bool) -> None:
    """Print a snapshot at `location`. `seconds`: how long the command took."""
    if snapshot.remark:
        note(snapshot.remark)
    if as_json:
        print_json({**snapshot_fields(snapshot, location), "seconds": round(seconds, 3)})
    else:
        print_table(["", "snapshot"], snapshot_rows(snapshot, location, seconds))
