"""`forget`: delete an id and its representatives (by `orders.run_forget`)."""

from __future__ import annotations

from typing import Annotated

import typer

from stream_dedup.cli.options import DryRunOption, JsonOption, command
from stream_dedup.domain.terminal import note, print_json, print_table
from stream_dedup.orders.run_forget import forget
from stream_dedup.settings.settings import Settings


@command("forget", example="stream-dedup forget https://example.org/page --dry-run")
def forget_command(
    settings: Settings,
    identifier: Annotated[
        str,
        typer.Argument(metavar="ID", help="Id of the document: the record's key, or its id field."),
    ],
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Delete an id and its representatives from every index and search.

    Prints which data remains where, and until when.
    """
    found = forget(settings, identifier, dry_run=dry_run)
    if as_json:
        print_json(
            {
                "id": identifier,
                "documents": found.documents,
                "since_forgotten": found.since,
                "forgotten_at": found.forgotten_at,
                "log_offset": found.log_offset,
                "stays": [kept._asdict() for kept in found.remaining],
            }
        )
    else:
        print_table(
            ["id", "documents in the log", "since it was last forgotten"],
            [[identifier, str(found.documents), str(found.since)]],
        )
        print_table(["remains in", "contents", "until"], [list(kept) for kept in found.remaining])
    if found.log_offset is not None:
        note(
            f"Written at log offset {found.log_offset}. Indexes and searches delete the id when they "
            "read this record."
        )
    elif not found.since:
        note(
            f"Nothing was written: the id was forgotten at log offset {found.forgotten_at}, and no "
            "document with this id was read since."
        )
    else:
        note("Nothing was written (--dry-run).")
    if settings.log_ids == "plain":
        note(
            "This log contains ids and keeps them. Start a new log with "
            "STREAM_DEDUP_LOG_IDS=digest if it must contain none."
        )
    return 0
