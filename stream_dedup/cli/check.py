"""`check`: find the duplicates in files, without Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream_dedup.cli.file_options import (
    AgainstOption,
    AsOption,
    CompressionOption,
    KeepOption,
    RowsPerFileOption,
    to_option,
)
from stream_dedup.cli.options import (
    CommandLine,
    DocumentFormat,
    FormatOption,
    IndexOption,
    JsonOption,
    RowsOption,
    StrictOption,
    command,
)
from stream_dedup.cli.setting_options import JUDGING_OPTIONS, READING_OPTIONS
from stream_dedup.files.checking import FileRequest, check
from stream_dedup.files.keep import FIRST
from stream_dedup.files.parts import PartFormat


@command(
    "check",
    example="stream-dedup check pages.jsonl --text-field body --plan classic",
    asks_kafka=False,
    flags=(*READING_OPTIONS, *JUDGING_OPTIONS),
)
def check_command(
    command_line: CommandLine,
    targets: Annotated[
        list[str],
        typer.Argument(metavar="FILE|DIR|-...", help="JSONL, Parquet, Arrow, WARC, text or HTML."),
    ],
    against: AgainstOption = None,
    index: IndexOption = None,
    document_format: FormatOption = DocumentFormat.AUTO,
    rows: RowsOption = 50,
    to: Annotated[
        Path | None,
        to_option("Write kept rows and duplicates there. After a kill, run it again to continue."),
    ] = None,
    written_as: AsOption = None,
    compression: CompressionOption = None,
    rows_per_file: RowsPerFileOption = None,
    keep: KeepOption = FIRST,
    strict: StrictOption = False,
    skip_damaged: Annotated[
        bool,
        typer.Option("--skip-damaged", help="Exit with 0 even if files are incomplete."),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Find duplicates in files without Kafka. --json prints each document, or with --to only totals."""
    request = FileRequest(
        targets=targets,
        against=against or [],
        index=index,
        to=to,
        keep=keep,
        rows_max=rows,
        as_json=as_json,
        is_strict=strict,
        skips_damaged=skip_damaged,
    )
    part_format = PartFormat(written_as, compression and compression.value.upper(), rows_per_file)
    return check(
        request, document_format.value, command_line.overrides(), command_line.config, part_format
    )
