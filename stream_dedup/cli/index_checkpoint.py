"""`index checkpoint`: copy an index's volume to a folder or a URL."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from stream_dedup.cli.options import JsonOption, VolumeOption, command
from stream_dedup.cli.snapshot_options import PlaceArgument, place_of, print_snapshot
from stream_dedup.domain.terminal import progress
from stream_dedup.index import snapshot
from stream_dedup.index.storage.place import volume_in
from stream_dedup.indexer.snapshots import SNAPSHOTS_KEPT
from stream_dedup.settings.settings import Settings
from stream_dedup.settings.units import parse_duration


@command(
    "index checkpoint",
    example="stream-dedup index checkpoint s3://backup/crawl --volume /data/index",
    asks_kafka=False,
)
def index_checkpoint_command(
    settings: Settings,
    place: PlaceArgument = None,
    volume: VolumeOption = None,
    wait: Annotated[
        str, typer.Option("--wait", metavar="TIME", help="Time limit for a running index.")
    ] = "1h",
    as_json: JsonOption = False,
) -> int:
    """Copy an index's volume to a folder or a URL; if the index is running, it makes the copy."""
    try:
        seconds = parse_duration(wait).total_seconds()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--wait") from error
    started = time.monotonic()
    directory, destination = volume_in(volume or settings.index_dir), place_of(settings, place)
    with progress(f"copying {directory} to {destination}", None) as advance:
        if snapshot.is_running(directory):
            copy = snapshot.request_snapshot(directory, destination, seconds)
        else:
            copy = snapshot.take(
                directory,
                destination,
                keep=SNAPSHOTS_KEPT,
                advance=lambda size: advance(0, size),
            )
    print_snapshot(copy, destination, time.monotonic() - started, as_json=as_json)
    return 0
