"""`index stats`: print figures of an index."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from stream_dedup.cli.options import JsonOption, VolumeArgument, command
from stream_dedup.domain.terminal import print_json, print_table
from stream_dedup.index import report
from stream_dedup.index.digest import state_digest
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.place import volume_in
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.settings.settings import Settings


@command("index stats", example="stream-dedup index stats --no-digest", asks_kafka=False)
def index_stats_command(
    settings: Settings,
    volume: VolumeArgument = None,
    digest: Annotated[
        bool,
        typer.Option("--digest/--no-digest", help="Compute the state digest."),
    ] = True,
    as_json: JsonOption = False,
) -> int:
    """Print figures of an index: entries, bytes, offsets, recipe, plan, state digest."""
    directory = volume_in(volume or settings.index_dir)
    with closing(RocksStore(directory, read_only=True)) as store:
        index = LogIndex(store)
        found = report.stats(index) | report.digest_field(state_digest(store) if digest else None)
    if as_json:
        print_json({"volume": str(directory), **found})
    else:
        print_table(["", "index"], report.stats_rows(directory, found))
    return 0
