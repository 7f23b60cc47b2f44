"""Options of the commands that read and write files."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import typer

from stream_dedup.cli.options import local_folder

AgainstOption = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="FILE|DIR",
        help="Documents to compare with, which are not listed. Repeatable.",
    ),
]
KeepOption = Annotated[
    str,
    typer.Option(
        "--keep",
        metavar="WHICH",
        help="Which copy to keep: first, longest, newest (TIME_FIELD), or the one with the greatest "
        "number or time in a COLUMN.",
    ),
]


def to_option(help_text: str) -> Any:
    """Return the option that names the folder to which a command writes."""
    return typer.Option("--to", parser=local_folder, metavar="FOLDER", help=help_text)


# typer takes choices as an enum.
WrittenAs = enum.StrEnum("WrittenAs", ["PARQUET", "JSONL"])
Compression = enum.StrEnum("Compression", ["ZSTD", "SNAPPY", "GZIP", "BROTLI", "LZ4", "NONE"])
AsOption = Annotated[
    WrittenAs | None,
    typer.Option(
        "--as",
        help="Format of the files written to --to; JSONL omits binary values.  [default: the "
        "source's]",
    ),
]
CompressionOption = Annotated[
    Compression | None,
    typer.Option(
        "--compression",
        help="Compression of the Parquet files written to --to.  [default: the source's]",
    ),
]
RowsPerFileOption = Annotated[
    int | None,
    typer.Option(
        "--rows-per-file",
        min=1,
        help="Largest number of rows of a file written to --to.  [default: 20000]",
    ),
]
