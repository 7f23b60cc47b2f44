"""`judge`: find the duplicates among fingerprints that `prints` wrote; the results equal `check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream_dedup.cli.file_options import AgainstOption, to_option
from stream_dedup.cli.options import (
    CommandLine,
    IndexOption,
    JsonOption,
    RowsOption,
    StrictOption,
    command,
)
from stream_dedup.cli.setting_options import JUDGING_OPTIONS
from stream_dedup.files.checking import FileRequest
from stream_dedup.files.keep import FIRST
from stream_dedup.inputs.columnar import require_pyarrow


@command(
    "judge",
    example="stream-dedup judge prints/ --to verdicts/",
    asks_kafka=False,
    flags=JUDGING_OPTIONS,
)
def judge_command(
    command_line: CommandLine,
    targets: Annotated[
        list[str], typer.Argument(metavar="FILE|DIR...", help="Files of fingerprints.")
    ],
    against: AgainstOption = None,
    index: IndexOption = None,
    rows: RowsOption = 50,
    to: Annotated[
        Path | None,
        to_option("Write verdicts there: a Parquet file for each file, a row for each document."),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="WHICH",
            help="Copy to keep: first, longest, or newest.",
        ),
    ] = FIRST,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> int:
    """Find the duplicates among fingerprints of `prints`, with the same results as `check`.

    Documents are judged in the order of the file names.
    """
    require_pyarrow("Files of fingerprints")
    from stream_dedup.files.printing import judge_files  # which needs pyarrow

    request = FileRequest(
        targets=targets,
        against=against or [],
        index=index,
        to=to,
        keep=keep,
        rows_max=rows,
        as_json=as_json,
        is_strict=strict,
    )
    return judge_files(request, command_line.settings())
