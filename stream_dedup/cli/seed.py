"""`seed`: add documents that were delivered elsewhere as representatives (by `loading.seeds`)."""

from __future__ import annotations

from typing import Annotated

import typer

from stream_dedup.cli.options import DocumentFormat, FormatOption, JsonOption, StrictOption, command
from stream_dedup.loading.seeds import print_seeded, seed
from stream_dedup.settings.settings import Settings

_INTERRUPTED = 130


@command("seed", example="stream-dedup seed delivered.jsonl.gz --key-field url")
def seed_command(
    settings: Settings,
    target: Annotated[
        str,
        typer.Argument(metavar="FILE|DIR|-|TOPIC", help="Documents as for `load`, or a topic."),
    ],
    document_format: FormatOption = DocumentFormat.AUTO,
    key_field: Annotated[
        str | None,
        typer.Option(
            "--key-field",
            metavar="PATH",
            help="Field with the key.  [default: ID_FIELD, else id, else url]",
        ),
    ] = None,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> int:
    """Add documents that were delivered elsewhere, so that their copies are duplicates.

    If stopped, run it again to continue.
    """
    totals = seed(settings, target, document_format.value, key_field)
    print_seeded(totals, as_json=as_json)
    read = totals.seeded + totals.resumed + totals.empty
    return _INTERRUPTED if totals.is_interrupted else totals.lost.exit_code(read, is_strict=strict)
