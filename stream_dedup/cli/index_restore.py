"""`index restore`: restore an index volume from a snapshot."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from stream_dedup.cli.options import JsonOption, command
from stream_dedup.cli.snapshot_options import PlaceArgument, place_of, print_snapshot
from stream_dedup.domain.terminal import progress
from stream_dedup.index import snapshot
from stream_dedup.index.storage.place import volume_in
from stream_dedup.indexer.verifying import log_name
from stream_dedup.settings.settings import Settings


@command("index restore", example="stream-dedup index restore s3://backup/crawl /data/index")
def index_restore_command(
    settings: Settings,
    place: PlaceArgument = None,
    volume: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Empty directory.  [default: index in STATE_DIR]",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--snapshot",
            metavar="NAME",
            help="Name of the snapshot.  [default: the newest]",
            show_default=False,
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            help="Do not compare the snapshot with Kafka. The index compares it at its start.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Restore an index volume from a snapshot."""
    started = time.monotonic()
    directory, source = volume_in(volume or settings.index_dir), place_of(settings, place)
    log = None if offline else log_name(settings)
    with progress(f"restoring {source}", None) as advance:
        copy = snapshot.restore(
            source, directory, name=name, log=log, advance=lambda size: advance(0, size)
        )
    print_snapshot(copy, str(directory), time.monotonic() - started, as_json=as_json)
    return 0
