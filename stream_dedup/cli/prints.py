"""`prints`: compute the fingerprints of files for `judge`, possibly on many machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream_dedup.cli.file_options import to_option
from stream_dedup.cli.options import (
    CommandLine,
    DocumentFormat,
    FormatOption,
    JsonOption,
    RowsOption,
    StrictOption,
    command,
)
from stream_dedup.cli.setting_options import PRINTING_OPTIONS
from stream_dedup.files.checking import FileRequest
from stream_dedup.inputs.columnar import require_pyarrow


@command(
    "prints",
    example="stream-dedup prints data/ --to prints/ --jobs 8",
    asks_kafka=False,
    flags=PRINTING_OPTIONS,
)
def prints_command(
    command_line: CommandLine,
    targets: Annotated[
        list[str], typer.Argument(metavar="FILE|DIR...", help="Documents as for `check`.")
    ],
    to: Annotated[Path, to_option("Write a file of fingerprints there for each source file.")],
    jobs: Annotated[
        int,
        typer.Option("--jobs", min=1, help="Number of processes; each reads one file at a time."),
    ] = 1,
    document_format: FormatOption = DocumentFormat.AUTO,
    rows: RowsOption = 50,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> int:
    """Compute the fingerprints of documents in files for `judge`, possibly on many machines.

    A repeated run skips unchanged files.
    """
    require_pyarrow("Files of fingerprints")
    from stream_dedup.files.printing import write_prints_of_files  # which needs pyarrow

    request = FileRequest(targets=targets, rows_max=rows, as_json=as_json, is_strict=strict)
    return write_prints_of_files(
        request, to, document_format.value, jobs, command_line.overrides(), command_line.config
    )
