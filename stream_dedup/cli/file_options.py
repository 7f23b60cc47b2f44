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
        help="Of copies: first, longest, newest (TIME_FIELD), or, of documents, the greatest in a "
        "COLUMN.",
    ),
]


def to_option(what: str) -> Any:
    """Return the option that names the folder to which a command writes `what`."""
    return typer.Option("--to", parser=local_folder, metavar="FOLDER", help=what)


class WrittenAs(enum.StrEnum):
    """In which format files are written."""

    PARQUET = "parquet"
    JSONL = "jsonl"


class Compression(enum.StrEnum):
    """A compression of Parquet files."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    GZIP = "gzip"
    BROTLI = "brotli"
    LZ4 = "lz4"
    NONE = "none"


AsOption = Annotated[
    WrittenAs | None,
    typer.Option(
        "--as",
        help="Write all files of --to so; JSONL without bytes that are no text.  [default: as "
        "their source]",
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
        help="Most rows of a file written to --to.  [default: 20000]",
    ),
]
