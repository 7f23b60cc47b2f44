"""`index verify`: compare an index's volume with its log (by `indexer.verifying`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream_dedup.cli.options import JsonOption, VolumeArgument, command
from stream_dedup.domain.terminal import console, note, print_json
from stream_dedup.index.storage.place import volume_in
from stream_dedup.indexer.verifying import compare_with_log
from stream_dedup.settings.settings import Settings


@command("index verify", example="stream-dedup index verify --snapshots s3://backup/crawl")
def index_verify_command(
    settings: Settings,
    volume: VolumeArgument = None,
    snapshots: Annotated[
        str | None,
        typer.Option("--snapshots", metavar="PLACE", help="Start with the newest snapshot."),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option("--work", metavar="DIR", help="Temporary folder.  [default: TMPDIR]"),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Judge the log again and compare the state digests. Exits with 1 if they differ."""
    directory = volume_in(volume or settings.index_dir)
    stored, computed = compare_with_log(settings, directory, snapshots, work)
    is_same = stored == computed
    if as_json:
        print_json(
            {
                "volume": str(directory),
                "log_offset": stored.log_offset,
                "same": is_same,
                "state_digest": stored.digest,
                "log_gives": computed.digest,
            }
        )
    elif is_same:
        console().print(
            f"{directory} agrees with the log up to offset {stored.log_offset:,}: state digest "
            f"{stored.digest}."
        )
    else:
        note(
            f"{directory} differs from the log up to offset {stored.log_offset:,}: its state "
            f"digest is {stored.digest}, and that of the log is {computed.digest}. Keep a copy of "
            "the directory, and report this bug. Then start the index with an empty directory, "
            "or restore a snapshot that agrees with the log."
        )
    return 0 if is_same else 1
