"""Rows of Parquet and Arrow files, one batch at a time. Needs `stream-dedup[data]` (pyarrow).

Arrow files are read in both of their formats: with a footer (Feather, `.arrow` of most programs) and as a stream (the shards
that Hugging Face `datasets` saves). Memory holds one batch of rows and the chunks of one row group.

Invariants: the order is that of the file; a row's JSON is a function of the row, so a row read again has the same bytes. NaN
and infinity become null. A column of bytes is text if it is UTF-8 throughout a batch; else the JSON leaves it out.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stream_dedup.ground.errors import InputError

PARQUET, ARROW = ("parquet", "pq"), ("arrow", "feather", "ipc")
SUFFIXES = tuple(f".{name}" for name in (*PARQUET, *ARROW))
_ROWS_AT_ONCE = 4096


class ColumnarRows(NamedTuple):
    """Some rows of a file: `batch` (a `pyarrow.RecordBatch`), the number of its first row, and those of the file or None."""

    batch: Any
    first: int
    rows_of_file: int | None


def need_pyarrow(what: str) -> None:
    """Raise `InputError`, with the remedy, if pyarrow is missing."""
    if importlib.util.find_spec("pyarrow") is None:
        raise InputError(f"{what} need the package pyarrow; run: pip install 'stream-dedup[data]'")


def columns_of(path: Path) -> list[str]:
    """Return the names of the columns of a file.

    Raises:
        InputError: pyarrow is not installed, or the file is damaged or of another format.
        OSError: it cannot be read.
    """
    need_pyarrow("Parquet and Arrow files")
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    with _sentences(path):
        if _is_parquet(path):
            return list(pq.read_schema(path).names)
        with _open_arrow(path) as opened:
            return list(opened.schema.names)


def read_rows(path: Path, first: int = 0) -> Iterator[ColumnarRows]:
    """Yield the rows of a file from number `first` on, in batches; whole batches before it are not turned into anything.

    Raises:
        InputError: pyarrow is not installed, or the file is damaged or of another format; rows before the damage were given.
        OSError: it cannot be read.
    """
    need_pyarrow("Parquet and Arrow files")
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    with _sentences(path):
        if _is_parquet(path):
            with pq.ParquetFile(path) as file:
                yield from _from(first, file.iter_batches(_ROWS_AT_ONCE), file.metadata.num_rows)
            return
        with _open_arrow(path) as opened:
            is_file = hasattr(opened, "num_record_batches")
            batches = (opened.get_batch(at) for at in range(opened.num_record_batches)) if is_file else opened
            parts = (batch.slice(at, _ROWS_AT_ONCE) for batch in batches for at in range(0, batch.num_rows, _ROWS_AT_ONCE))
            yield from _from(first, parts, None)


def json_of_rows(batch: Any) -> list[tuple[bytes, dict[str, Any]]]:
    """Return each row as JSON, and as the dictionary that it was made of.

    Raises:
        InputError: a column cannot be written as JSON; the sentence names its type.
    """
    names = batch.schema.names
    columns = [_values(batch.column(at)) for at in range(batch.num_columns)]
    kept = [(name, column) for name, column in zip(names, columns, strict=True) if column is not None]
    rows = [
        dict(zip([name for name, _ in kept], row, strict=True)) for row in zip(*(column for _, column in kept), strict=True)
    ]
    encode = msgspec.json.Encoder(decimal_format="number").encode
    try:
        return [(encode(row), row) for row in rows]
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise InputError(f"A column cannot be written as JSON: {error}. Read the file without that column.") from error


def _values(column: Any) -> list[Any] | None:
    """Return a column's values; None for bytes that are no text."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        try:
            column = column.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            return None
    found: list[Any] = column.to_pylist()
    return found


def _from(first: int, batches: Any, rows_of_file: int | None) -> Iterator[ColumnarRows]:
    number = 0
    for batch in batches:
        skipped = min(max(0, first - number), batch.num_rows)
        if skipped < batch.num_rows:
            yield ColumnarRows(batch.slice(skipped), number + skipped, rows_of_file)
        number += batch.num_rows


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower().lstrip(".") in PARQUET


def _open_arrow(path: Path) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    mapped = pa.memory_map(str(path))
    is_file = mapped.read(6) == b"ARROW1"
    mapped.seek(0)
    return pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)


@contextlib.contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into sentences that name the file."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        what = "a Parquet" if _is_parquet(path) else "an Arrow"
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"{path.name} cannot be read as {what} file: {reason}. It is damaged, cut off or of another format; fetch it again."
        ) from error
