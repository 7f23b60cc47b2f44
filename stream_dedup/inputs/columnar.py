"""Read rows of Parquet and Arrow files, one batch at a time. Needs `crawl-dedup[data]` (pyarrow).

Arrow files are read in both formats: with a footer (Feather, `.arrow` of most programs) and as a
stream (the shards that Hugging Face `datasets` saves). Memory holds the chunks of one row group and
some decoded rows. A file can store a value once and repeat it in every row or list element, so
batches are sized by the bytes of their JSON, and a row of more than 64 MiB is not decoded.

Invariants: the order is that of the file; a row's JSON is a function of the row, so a row read again
has the same bytes. NaN and infinity become null, times are truncated to microseconds. Bytes are text
if they are UTF-8; otherwise the JSON omits them, like times that Python cannot express. If a row, a
batch or a row group is damaged, all others are read. Batches of Arrow are validated before use:
pyarrow crashes the process on invalid ones.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from stream_dedup.domain.errors import InputError
from stream_dedup.domain.extras import install_command
from stream_dedup.inputs.warc_records import RECORD_BYTES_MAX

PARQUET, ARROW = ("parquet", "pq"), ("arrow", "arrows", "feather", "ipc")
SUFFIXES = tuple(f".{name}" for name in (*PARQUET, *ARROW))
_ROWS_AT_ONCE = 256
_READ_BYTES: Final = 512 << 20  # of one read; assumes that each row has all bytes of its row group
_BYTES_AT_ONCE: Final = 16 << 20  # of the rows that are decoded to Python objects at once
# Types whose rows may share their bytes.
_SHARING: Final = ("dictionary", "run_end_encoded", "view")
_OMITTED = object()
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


class ColumnarRows(NamedTuple):
    """Some rows of a file: `batch` (a `pyarrow.RecordBatch`), the number of its first row, and the
    number of rows of the file or None.

    `lost` is an error message if `lost_rows` rows cannot be read; there is no batch then.
    `is_single_row`: one row is lost; `is_large`: that row is larger than a record may be. `codec`
    is the compression of a Parquet file.
    """

    batch: Any
    first: int
    rows_of_file: int | None
    lost: str = ""
    is_single_row: bool = False
    is_large: bool = False
    codec: str | None = None
    lost_rows: int = 1


def require_pyarrow(what: str) -> None:
    """Raise `InputError`, with the remedy, if pyarrow is missing."""
    if importlib.util.find_spec("pyarrow") is None:
        raise InputError(f"{what} need the package pyarrow; run: {install_command('data')}")


def columns_of(path: Path) -> list[str]:
    """Return the names of the columns of a file.

    Raises:
        InputError: pyarrow is not installed, or the file is damaged or of another format.
        OSError: it cannot be read.
    """
    return list(_schema_of(path).names)


def paths_to(path: Path, name: str) -> list[str]:
    """Return the paths of the fields `name` within the structs of a file, such as `page.text`; errors
    are those of `columns_of`.
    """
    return [
        f"{column.name}.{name}"
        for column in _schema_of(path)
        if str(column.type).startswith("struct<") and column.type.get_field_index(name) >= 0
    ]


def _schema_of(path: Path) -> Any:
    require_pyarrow("Parquet and Arrow files")
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    with _raise_as_input_error(path):
        if _is_parquet(path):
            return pq.read_schema(path)
        with _open_arrow(path) as opened:
            return opened.schema


def read_rows(path: Path, first: int = 0) -> Iterator[ColumnarRows]:
    """Yield the rows of a file from number `first`, in batches. In `first`, a group of rows that are
    lost together counts as one row.

    Raises:
        InputError: pyarrow is not installed, or the file is damaged or of another format; rows
        before the damage were yielded. OSError: it cannot be read.
    """
    require_pyarrow("Parquet and Arrow files")
    number = 0
    with _raise_as_input_error(path):
        for rows in _read_parquet(path) if _is_parquet(path) else _read_arrow(path):
            count = 1 if rows.lost else rows.batch.num_rows
            skipped = min(max(0, first - number), count)
            if skipped < count:
                if rows.lost:
                    yield rows
                else:
                    batch = _plain_columns(rows.batch.slice(skipped))
                    yield rows._replace(batch=batch, first=rows.first + skipped)
            number += count


def _plain_columns(batch: Any) -> Any:
    """Return a batch with plain columns for views and run-end-encoded columns: Arrow cannot select
    their rows.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra

    schema = _plain_schema(batch.schema)
    if schema.equals(batch.schema):
        return batch
    columns = [
        pa.array(column.to_pylist(), kind)  # Arrow has no cast of nested runs
        if "run_end_encoded" in str(column.type)
        else column.cast(kind)
        for column, kind in zip(batch.columns, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain_schema(schema: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    return pa.schema(
        [field.with_type(_plain_type(field.type)) for field in schema], schema.metadata
    )


def _plain_type(kind: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _plain_type(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    for is_list, list_of in (
        (pa.types.is_list, pa.list_),
        (pa.types.is_large_list, pa.large_list),
    ):
        if is_list(kind):
            return list_of(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind


def _read_parquet(path: Path) -> Iterator[ColumnarRows]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    with pq.ParquetFile(path) as file:
        metadata, schema = file.metadata, _plain_schema(file.schema_arrow)
    listed = _text_lists(metadata.schema)
    with pq.ParquetFile(path, metadata=metadata, read_dictionary=listed) as file:
        file_rows, end, codec = file.metadata.num_rows, 0, _codec(file.metadata)
        for group in range(file.num_row_groups):
            row_group = file.metadata.row_group(group)
            number, end = end, end + row_group.num_rows
            if _has_too_many_values(row_group):
                yield _too_large(path, number, file_rows, row_group.num_rows)
                continue
            count = max(1, min(_ROWS_AT_ONCE, _READ_BYTES // max(1, row_group.total_byte_size)))
            try:
                for batch in file.iter_batches(count, row_groups=[group]):
                    for part in decoded_parts(batch):
                        if _is_large(part):
                            yield _too_large(path, number, file_rows)
                        else:
                            plain = part.cast(schema) if listed else part
                            yield ColumnarRows(plain, number, file_rows, codec=codec)
                        number += part.num_rows
            except _damage_errors() as error:
                why = _lost(path, f"rows {number:,} to {end - 1:,}", error)
                yield ColumnarRows(None, number, file_rows, why, lost_rows=end - number)


def _text_lists(schema: Any) -> list[str]:
    """Return the paths of the columns of texts within lists, by the schema of a Parquet file.

    They are read as dictionaries, in which elements with an equal value share its memory.
    """
    columns = [schema.column(index) for index in range(len(schema))]
    return [
        column.path
        for column in columns
        if column.max_repetition_level and column.physical_type == "BYTE_ARRAY"
    ]


def _has_too_many_values(row_group: Any) -> bool:
    """Return whether the lists in the rows of a row group are, on average, larger than a record may
    be.

    A value of a list has at least two bytes as JSON. Only metadata is read, because a
    kilobyte can decode to gigabytes.
    """
    values = max(
        (column.num_values for column in map(row_group.column, range(row_group.num_columns))),
        default=0,
    )
    return bool(
        values > row_group.num_rows and 2 * values > row_group.num_rows * RECORD_BYTES_MAX > 0
    )


def _codec(metadata: Any) -> str | None:
    """Return the compression of the first column of a Parquet file; None if it has no rows."""
    if not (metadata.num_row_groups and metadata.num_columns):
        return None
    return str(metadata.row_group(0).column(0).compression)


def _read_arrow(path: Path) -> Iterator[ColumnarRows]:
    number = 0
    with _open_arrow(path) as opened:
        count = getattr(opened, "num_record_batches", None)  # a stream has none
        batches = (
            _read_stream(opened)
            if count is None
            else (_read_batch(opened, i) for i in range(count))
        )
        for index, batch in enumerate(batches):
            damage = batch if isinstance(batch, Exception) else _find_damage(batch, full=False)
            if damage is not None:
                lost_rows = 1 if batch is damage else batch.num_rows
                why = _lost(path, f"batch {index + 1:,}", damage)
                yield ColumnarRows(None, number, None, why, lost_rows=lost_rows)
                continue
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                for rows in _split_damaged(path, batch.slice(start, _ROWS_AT_ONCE), number):
                    number = rows.first
                    for part in [rows.batch] if rows.lost else decoded_parts(rows.batch):
                        is_large = not rows.lost and _is_large(part)
                        yield (
                            _too_large(path, number, None)
                            if is_large
                            else rows._replace(batch=part, first=number)
                        )
                        number += 1 if rows.lost else part.num_rows


def decoded_parts(batch: Any) -> Iterator[Any]:
    """Yield the rows in parts that have at most `_BYTES_AT_ONCE` after decoding, or one row."""
    is_shared = any(word in str(kind) for kind in batch.schema.types for word in _SHARING)
    size = max(0 if is_shared else batch.nbytes, _json_bytes_of(batch))
    if size <= _BYTES_AT_ONCE or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from decoded_parts(batch.slice(0, half))
    yield from decoded_parts(batch.slice(half))


def _is_large(batch: Any) -> bool:
    return batch.num_rows == 1 and _json_bytes_of(batch) > RECORD_BYTES_MAX


def _too_large(path: Path, number: int, rows_of_file: int | None, count: int = 1) -> ColumnarRows:
    """Report one row, or a row group of `count` rows, as lost because it is too large."""
    size = f"larger than {RECORD_BYTES_MAX >> 20} MiB"
    why = f"{path.name}:{number} is {size}, and was not read. Split it, or remove it."
    if count > 1:
        why = f"{path.name}: rows {number:,} to {number + count - 1:,} are {size} on average."
    is_single_row = count == 1
    return ColumnarRows(
        None,
        number,
        rows_of_file,
        why,
        is_single_row=is_single_row,
        is_large=is_single_row,
        lost_rows=count,
    )


def _json_bytes_of(batch: Any) -> int:
    return sum(map(_json_bytes, batch.columns))


def _json_bytes(array: Any) -> int:
    """Return a lower bound of the bytes of a column as JSON, without decoding it."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    kind, types = array.type, pa.types
    if isinstance(array, pa.ExtensionArray):
        return _json_bytes(array.storage)
    if types.is_dictionary(kind):
        places = array.indices.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
        return _shared_bytes(array.dictionary, np.bincount(places))
    if types.is_run_end_encoded(kind):
        ends = array.run_ends.to_numpy().astype(np.int64)
        return _shared_bytes(
            array.values,
            np.diff(np.clip(ends - array.offset, 0, len(array)), prepend=0),
        )
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        least = int(np.sum(array.sizes.to_numpy(zero_copy_only=False), dtype=np.int64))
        return least if least > RECORD_BYTES_MAX else _json_bytes(array.flatten())
    if types.is_struct(kind):
        names = sum(len(field.name) + 3 for field in kind)
        return _nested_bytes(array, names, array.flatten())
    if types.is_map(kind):
        pairs = array.drop_null() if array.null_count else array
        parts = [pairs.keys, pairs.items]  # both ignore a slice; the offsets apply it
        lists = [pa.ListArray.from_arrays(pairs.offsets, part).flatten() for part in parts]
        return _nested_bytes(array, 0, lists)
    if hasattr(array, "flatten"):
        return _nested_bytes(array, 0, [array.flatten()])
    if _is_text(kind):
        return int(_text_bytes(array).sum(dtype=np.int64))
    return len(array) * (4 if types.is_null(kind) else 1)


def _nested_bytes(array: Any, names: int, children: list[Any]) -> int:
    """Return the bytes of objects or lists: brackets, names, commas and contents."""
    brackets_and_names = 2 * len(array) + names * (len(array) - array.null_count)
    commas = max(0, max(map(len, children), default=0) - len(array))
    return int(brackets_and_names + commas + sum(map(_json_bytes, children)))


def _shared_bytes(values: Any, counts: Any) -> int:
    """Return the bytes as JSON of values that occur `counts` times each."""
    if _is_text(values.type):
        return int(np.dot(_text_bytes(values)[: len(counts)], counts))
    return sum(
        int(counts[index]) * _json_bytes(values.slice(index, 1)) for index in np.flatnonzero(counts)
    )


def _is_text(kind: Any) -> bool:
    return any(word in str(kind) for word in ("string", "binary")) and not kind.num_fields


def _text_bytes(array: Any) -> Any:
    """Return the number of bytes of each text, (n,) int64."""
    import pyarrow.compute as pc  # noqa: PLC0415 - an extra

    if "view" not in str(array.type):
        return pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    # A view has 16 bytes and begins with its length; Arrow has no function for it.
    sizes = np.frombuffer(array.buffers()[1] or b"", np.int32)[::4]
    return sizes[array.offset : array.offset + len(array)].astype(np.int64)


def _read_stream(opened: Any) -> Iterator[Any]:
    """Yield the batches of an Arrow stream, and an error for the rest after a damaged one."""
    try:
        yield from opened
    except _damage_errors() as error:
        yield error


def _read_batch(opened: Any, index: int) -> Any:
    """Return a batch of an Arrow file, or the error of reading it."""
    try:
        return opened.get_batch(index)
    except _damage_errors() as error:
        return error


def _split_damaged(path: Path, batch: Any, number: int) -> Iterator[ColumnarRows]:
    """Yield the valid rows in parts as large as possible, and each invalid row as lost."""
    damage = _find_damage(batch, full=True)
    if damage is None:
        yield ColumnarRows(batch, number, None)
    elif batch.num_rows == 1:
        yield ColumnarRows(
            None, number, None, _lost(path, f"row {number:,}", damage), is_single_row=True
        )
    else:
        half = batch.num_rows // 2
        yield from _split_damaged(path, batch.slice(0, half), number)
        yield from _split_damaged(path, batch.slice(half), number + half)


def _find_damage(batch: Any, *, full: bool) -> Exception | None:
    try:
        batch.validate(full=full)
    except _damage_errors() as error:
        return error
    return None


def _damage_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that pyarrow raises for damaged bytes."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    return (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError)


def _lost(path: Path, part: str, error: Exception) -> str:
    return f"{part.capitalize()} of {path.name} cannot be read: {_reason(error)}."


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def json_of(value: object) -> str:
    """Return the JSON of a value of a column of any type: times as ISO 8601, bytes as Base64, NaN as
    null.
    """
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:  # lone surrogates
        return json.dumps(value, default=msgspec.to_builtins)


def json_of_rows(batch: Any) -> list[tuple[bytes, dict[str, Any]]]:
    """Return each row as JSON and as its dictionary, without values that Python or JSON cannot express.

    Raises:
        InputError: a column cannot be written as JSON; the sentence names its type.
    """
    names = batch.schema.names
    columns = [_expressible_values(column) for column in batch.columns]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    for name, values in zip(names, columns, strict=True):
        for row, value in zip(rows, values, strict=True):
            if value is _OMITTED:
                row.pop(name, None)
    try:
        return [(_ENCODER.encode(row), row) for row in rows]
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"A column cannot be written as JSON: {error}. Read the file without that column."
        ) from error


def _expressible_values(column: Any) -> list[Any]:
    """Return the values of a column; `_OMITTED` for those that Python cannot express, such as dates
    after the year 9999.
    """
    try:
        return _values(column)
    except Exception as error:
        if not isinstance(error, (ValueError, TypeError, LookupError, *_damage_errors())):
            raise
        if len(column) == 1:
            in_utc = _in_utc(column)
            return [_OMITTED] if in_utc.type == column.type else _expressible_values(in_utc)
        half = len(column) // 2
        return _expressible_values(column[:half]) + _expressible_values(column[half:])


def _in_utc(column: Any) -> Any:
    """Return a column of times with a zone in UTC, because eastern zones reach the year 10000, which
    Python cannot express, some hours earlier; any other column unchanged.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra

    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        return column
    unit = "us" if kind.unit == "ns" else kind.unit  # Python's times have microseconds
    return column.cast(pa.timestamp(unit, "UTC"), safe=False)


def values_in_utc(column: Any) -> list[Any]:
    """Return the values of a column; times with a zone are in UTC.

    Raises:
        InputError: Python cannot express a value, such as a date after the year 9999.
    """
    errors: tuple[type[Exception], ...] = (ValueError, *_damage_errors())
    try:
        values: list[Any] = _in_utc(column).to_pylist()
    except errors as error:
        raise InputError(
            f"A column of type {column.type} cannot be read: {_reason(error)}."
        ) from error
    return values


def _values(column: Any) -> list[Any]:
    """Return the values of a column; `_OMITTED` for bytes that are not UTF-8."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if _is_binary(kind):
        return [_text_of(value) for value in column.to_pylist()]
    if getattr(kind, "unit", "") == "ns":  # Python's times have microseconds
        coarse = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else None
        column = column.cast(
            coarse or (pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")),
            safe=False,
        )
    found: list[Any] = column.to_pylist()
    return found


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _text_of(value: bytes | None) -> object:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return _OMITTED


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower().lstrip(".") in PARQUET


def _open_arrow(path: Path) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    mapped = pa.memory_map(str(path))
    is_file = mapped.read(6) == b"ARROW1"
    mapped.seek(0)
    return pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)


@contextlib.contextmanager
def _raise_as_input_error(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into sentences that name the file."""
    try:
        yield
    except _damage_errors() as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        kind = "a Parquet file" if _is_parquet(path) else "an Arrow file"
        raise InputError(
            f"{path.name} cannot be read as {kind}: {_reason(error)}. It is damaged, truncated or in "
            "another format; fetch it again."
        ) from error
