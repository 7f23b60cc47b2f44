"""`index stats`: print figures of an index."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from stream_dedup.cli.options import JsonOption, VolumeArgument, command
from stream_dedup.domain.terminal import console, print_json, print_table
from stream_dedup.index import report
from stream_dedup.index.digest import state_digest
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.place import volume_in
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.settings.settings import Settings


@command(
    "index stats", example="stream-dedup index stats --hottest 20 --no-digest", asks_kafka=False
)
def index_stats_command(
    settings: Settings,
    volume: VolumeArgument = None,
    hottest: Annotated[
        int, typer.Option("--hottest", min=0, help="Number of fullest buckets to show.")
    ] = 10,
    digest: Annotated[
        bool,
        typer.Option("--digest/--no-digest", help="Compute the state digest."),
    ] = True,
    as_json: JsonOption = False,
) -> int:
    """Print figures of an index: entries, bytes, buckets, offsets, recipe, plan, state digest."""
    directory = volume_in(volume or settings.index_dir)
    with closing(RocksStore(directory, read_only=True)) as store:
        index = LogIndex(store)
        found = report.stats(index, hottest) | report.digest_field(
            state_digest(store) if digest else None
        )
    if as_json:
        print_json({"volume": str(directory), **found})
        return 0
    buckets = found["buckets"]
    print_table(["", "index"], report.stats_rows(directory, found))
    if buckets["sizes"]:
        console().print()
        print_table(
            ["entries", "buckets"],
            [[f"up to {size['up_to']:,}", f"{size['buckets']:,}"] for size in buckets["sizes"]],
        )
    if buckets["hottest"]:
        console().print()
        print_table(
            ["hottest: table", "key", "entries"],
            [[str(key["table"]), key["key"], f"{key['entries']:,}"] for key in buckets["hottest"]],
        )
    return 0
