"""Read tables, columns, rows and files as documents to judge.

Invariants: there is a document for each row, in order; a table of another library is recognised by
its methods, so no library is imported except pyarrow, whose interface the others implement; an
unreadable row of a file is an empty document, and does not affect others.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from stream_dedup.domain.argument_types import given_kind, kind_of
from stream_dedup.domain.document import DeadLetter
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.hosts import named_site, site_of
from stream_dedup.domain.printable import counted
from stream_dedup.files.keep import FIRST, LONGEST, NO_RANK, to_rank
from stream_dedup.files.offline import OfflineDocument, RepeatedIds, exceeds_one_percent
from stream_dedup.fingerprinting import Vector, as_vector
from stream_dedup.inputs.charset import describe_wrong_encoding, looks_like_markup
from stream_dedup.inputs.columnar import decoded_parts, require_pyarrow, values_in_utc
from stream_dedup.inputs.fields import MISSING, field_at, joined_texts, parse_json, scalar
from stream_dedup.inputs.html import Pages
from stream_dedup.inputs.sources import (
    RawDocument,
    find_files,
    form_of,
    is_file,
    key_of,
    read_documents,
)

_NULL: Final = object()
_HOW_TO_NAME_FILES: Final = (
    "Give files as the path of a folder, or as a pattern such as data/*.jsonl."
)


@dataclass(slots=True)
class VectorLengths:
    """Checks that all vectors of a column have the length of the first one."""

    _length: int = 0

    def problem_of(self, vector: Vector) -> str:
        """Return why a vector cannot be compared; empty if it can be compared, or has no numbers."""
        self._length = self._length or len(vector)
        if len(vector) in (0, self._length):
            return ""
        return (
            f"The vector has {len(vector):,} numbers, and the first one {self._length:,}; all "
            "vectors of a column must have the same length."
        )


@dataclass(slots=True)
class DocumentRows:
    """Reads the rows of `source` as documents.

    `content`, `id_column`, `site`, `title`: the names of the columns with the text (or vector), id,
    site and title. The default site of a row is the host of its id, else of its `url`; the default
    column of titles is `title`. `keep`: see `dedup`.

    Reading fills these attributes: `ids`, in their original type; `unreadable`, the problems by row
    number; `damaged`, the numbers of rows that could not be read from their file; `null_rows`, the
    numbers of rows without content, if `allows_nulls`; `unread_names`, the files that were not read.
    """

    source: object
    content: str
    id_column: str | None
    site: str | None = None
    title: str | None = None
    keep: str = FIRST
    takes_vectors: bool = False
    allows_nulls: bool = False
    ids: list[Any] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)
    null_rows: set[int] = field(default_factory=set)
    unread_names: list[str] = field(default_factory=list)
    repeated_ids: RepeatedIds = field(default_factory=RepeatedIds)
    _markup: int = 0
    _without_id: int = 0
    _without_rank: int = 0
    _found_names: set[str] = field(default_factory=set)
    _first_names: str = ""
    _first_markup: str = ""
    _vector_lengths: VectorLengths = field(default_factory=VectorLengths)

    def documents(self) -> Iterator[OfflineDocument]:
        """Yield a document for each row; an empty document for a row that is unreadable or null.

        Raises:
            InputError: the source has no rows, or a row cannot be used; the message contains the
            number of the first such row, from 0.
        """
        with closing(Pages()) as pages:
            for number, row in enumerate(self._rows()):
                location = row.name if isinstance(row, RawDocument) else f"Row {number}"
                original_id, content, title = self._read(number, row, location, pages)
                if content is _NULL:
                    self.null_rows.add(number)
                    content = as_vector([]) if self.takes_vectors else ""
                if isinstance(content, str) and (problem := describe_wrong_encoding(content)):
                    self.unreadable[number] = f"{location}: {problem}"
                    content = ""
                if (
                    isinstance(content, str)
                    and not (isinstance(row, RawDocument) and row.is_page)
                    and looks_like_markup(content)
                ):
                    self._markup += 1
                    self._first_markup = self._first_markup or location
                self.ids.append(original_id)
                fields = row.fields if isinstance(row, RawDocument) else row
                id_bytes = _encode_id(original_id)
                is_from_file = isinstance(row, RawDocument)
                self.repeated_ids.add_document(
                    location.rpartition(":")[0] or location if is_from_file else ""
                )
                yield OfflineDocument(
                    id_bytes,
                    content,
                    site=self._site_of(fields, id_bytes),
                    title=self._title_of(fields) or title,
                    rank=self._rank_of(fields, content),
                )
        self._warn()

    def _read(self, number: int, row: object, location: str, pages: Pages) -> tuple[Any, Any, str]:
        """Return (id, content, title of a web page) of a row."""
        original_id: object = str(number)
        if isinstance(row, RawDocument):
            try:
                return self._read_file_row(row, pages)
            except InputError as error:
                self.unreadable[number] = str(error)
                self.damaged.add(number)
                return location, as_vector([]) if self.takes_vectors else "", ""
        if isinstance(row, Mapping):
            content = _value_at(row, self.content)
            original_id = original_id if self.id_column is None else _value_at(row, self.id_column)
        elif (
            isinstance(row, tuple | list) and len(row) == 2 and not isinstance(row[1], int | float)
        ):
            original_id, content = row
        elif self.takes_vectors or isinstance(row, str) or _is_null(row):
            content = row
        else:
            what = (
                f"{location}: a dictionary, a text, or a pair of id and text is expected, and "
                f"{given_kind(row)}"
            )
            is_numbers = hasattr(row, "dtype") or (
                isinstance(row, tuple | list) and row and isinstance(row[0], int | float)
            )
            raise InputError(
                what
                + ('. Vectors need recipe=Recipe("vector").' if is_numbers else ".")
                + (f" {_HOW_TO_NAME_FILES}" if isinstance(row, os.PathLike) else "")
            )
        if _is_null(original_id) or original_id == "":
            self._without_id += 1
            original_id = location
        elif isinstance(original_id, float) and original_id.is_integer():
            # pandas makes floats of [1, None].
            original_id = int(original_id)
        if not isinstance(original_id, str | int | bytes | UUID):
            raise InputError(_id_problem(location, original_id))
        return original_id, self._check_content(location, content), ""

    def _site_of(self, fields: object, id_bytes: bytes) -> str:
        named = _text_at(fields, self.site) if self.site else ""
        address = _text_at(fields, "url").encode("utf-8", "surrogatepass")
        return named_site(named) or site_of(id_bytes) or site_of(address)

    def _title_of(self, fields: object) -> str:
        if self.title is None and "title" in (self.content, self.id_column):
            return ""
        return _text_at(fields, self.title or "title")

    def _rank_of(self, fields: object, content: Any) -> float:
        if self.keep in (FIRST, LONGEST):
            return float(len(content))
        rank = to_rank(_value_at(fields, self.keep) if isinstance(fields, Mapping) else None)
        self._without_rank += rank == NO_RANK
        return rank

    def _check_content(self, location: str, value: object) -> object:
        """Return a text or vector; `_NULL` for a null if nulls are allowed.

        Raises:
            InputError: the value is not a text or vector; the message starts with `location`.
        """
        if self.allows_nulls and _is_null(value):
            return _NULL
        if not self.takes_vectors:
            if isinstance(value, bytes):
                try:
                    return value.decode()
                except UnicodeDecodeError as error:
                    raise InputError(f"{location}: {bytes_problem(self.content)}") from error
            if not isinstance(value, str):
                remedy = (
                    ' Or use dedup(nulls="drop") or dedup(nulls="keep").' if _is_null(value) else ""
                )
                raise InputError(_text_problem(location, value, self.content) + remedy)
            return value
        if isinstance(value, str) or value is MISSING or _is_null(value):
            what = (
                f"has no column {self.content!r}"
                if value is MISSING
                else f"contains {kind_of(value)} instead of a vector"
            )
            raise InputError(f"{location} {what}; name the column of vectors with vector=.")
        try:
            vector = as_vector(value)  # type: ignore[arg-type]
            problem = self._vector_lengths.problem_of(vector)
        except InputError as error:
            problem = str(error)
        if problem:
            raise InputError(f"{location}: {problem}")
        return vector

    def _read_file_row(self, row: RawDocument, pages: Pages) -> tuple[Any, Any, str]:
        """Return (id, content, title of a web page) of a row of a file.

        Raises:
            InputError: the row has no content that can be read.
        """
        if row.lost is not None:
            raise InputError(row.lost.message)
        if row.form != "jsonl":
            if self.takes_vectors:
                raise InputError(f"{row.name} is a text, but the recipe expects vectors.")
            page = pages.read(row)
            if isinstance(page, DeadLetter):
                raise InputError(f"{row.name}: {page.message}")
            return row.name, page.text, page.title
        if row.fields is None:
            raise InputError(row.problem or f"{row.name} is not a JSON object.")
        if row.omits_bytes(self.content):
            raise InputError(f"{row.name}: {bytes_problem(self.content)}")
        value = field_at(row.fields, self.content)
        if not self.takes_vectors:
            value = joined_texts(value)
        content = self._check_content(row.name, value)
        self._first_names = self._first_names or ", ".join(row.fields)
        for path in {self.site, self.title} - self._found_names - {None}:
            if field_at(row.fields, str(path)) is not MISSING:
                self._found_names.add(str(path))
        key = named_id(row, self.id_column) if self.id_column else None
        if key is None:
            self._without_id += self.id_column is not None
            key = key_of(row.fields, None)
        return row.name if key is None else key, content, ""

    def _warn(self) -> None:
        """Warn of texts that look like web pages, and of rows without an id or rank.

        Raises:
            InputError: no row of the files has the field of the site or title, or no row has a rank.
        """
        for what, path in {"site": self.site, "title": self.title}.items():
            if path and self._first_names and path not in self._found_names:
                raise InputError(
                    f"No row has the field {path!r} that {what}= names; the fields of the first "
                    f"row are {self._first_names}."
                )
        if self._without_rank:
            what = f"no number or time in {self.keep!r}"
            if self._without_rank == len(self.ids):
                raise InputError(
                    f"All rows have {what}; keep= can be first, longest, or the name of a column "
                    "with numbers or times."
                )
            warn_caller(
                f"{self._without_rank:,} of {counted(len(self.ids), 'row')} have {what}; they rank "
                "last."
            )
        if self._without_id:
            warn_caller(
                f"{self._without_id:,} of {counted(len(self.ids), 'row')} have no "
                f"{self.id_column!r}; their id, url or position is used instead."
            )
        if self._markup and exceeds_one_percent(self._markup, len(self.ids)):
            warn_caller(
                f"{self._markup:,} of {counted(len(self.ids), 'row')} look like web pages, but are "
                f"judged with their tags; the first is {self._first_markup}. Extract their texts with "
                "stream_dedup.page_text first."
            )

    def _rows(self) -> Iterable[object]:
        if isinstance(self.source, str | os.PathLike):
            return read_documents(find_files(os.fspath(self.source), "auto", self.unread_names))
        if isinstance(self.source, list) and self.source and all(map(_is_file, self.source)):
            warn_caller(
                f"All {counted(len(self.source), 'text')} are names of files, such as "
                f"{self.source[0]}, but are judged as texts. {_HOW_TO_NAME_FILES}"
            )
        return self._rows_of(self.source)

    def _rows_of(self, source: Any) -> Iterator[object]:
        if hasattr(source, "collect") and hasattr(source, "lazy"):  # a LazyFrame of polars
            source = source.collect()
        if hasattr(source, "scanner"):  # a dataset of Arrow: read only the needed columns
            source = source.scanner(self._columns_to_read(source.schema.names)).to_reader()
        if isinstance(source, Mapping):
            if source and all(map(is_table, source.values())):  # a table for each split
                yield from itertools.chain.from_iterable(map(self._rows_of, source.values()))
            else:
                yield from self._rows_of_columns(source)
        elif is_table(source) and hasattr(
            source, "iloc"
        ):  # pandas: convert only the needed columns
            yield from self._rows_of_columns(
                {name: source[name].tolist() for name in self._columns_to_read(source.columns)}
            )
        elif is_table(source) and hasattr(source, "__arrow_c_stream__"):
            yield from self._rows_of_stream(source)
        elif not is_table(source) and (values := column_values(source)) is not None:
            yield from values
        else:
            for row in rows_in(source, "A table, rows or a path is expected"):
                yield from (
                    self._rows_of(row) if not isinstance(row, Mapping) and is_table(row) else (row,)
                )

    def _rows_of_columns(self, columns: Mapping[Any, Any]) -> Iterator[object]:
        names = self._columns_to_read(columns)
        needed = [column_of(columns[name], f"The column {name!r}") for name in names]
        for name, column in {**columns, **dict(zip(names, needed, strict=True))}.items():
            if hasattr(column, "__len__") and len(column) != len(needed[0]):
                raise InputError(f"The columns {names[0]} and {name} have different lengths.")
        for values in zip(*needed, strict=True):
            yield dict(zip(names, values, strict=True))

    def _rows_of_stream(self, source: Any) -> Iterator[object]:
        """Yield the rows of an Arrow stream as dictionaries of the needed columns.

        Raises:
            InputError: the stream cannot be read, or lacks a column.
        """
        require_pyarrow("Tables")
        import pyarrow as pa  # noqa: PLC0415 - an extra

        try:
            reader = pa.RecordBatchReader.from_stream(source)
            names = self._columns_to_read(reader.schema.names)
            for batch in itertools.chain.from_iterable(map(decoded_parts, reader)):
                columns = (values_in_utc(batch.column(name)) for name in names)
                for values in zip(*columns, strict=True):
                    yield dict(zip(names, values, strict=True))
        except pa.ArrowException as error:
            raise InputError(
                f"The table cannot be read through Arrow's interface for tables: {error}"
            ) from error

    def _columns_to_read(self, names: Iterable[Any]) -> list[str]:
        """Return the columns of `names` to read; for a nested field (`page.text`) its column (`page`).

        Raises:
            InputError: a column is missing in `names`, or is there twice.
        """
        available = list(names)
        needed = []
        paths = (self.content, self.id_column, self.site, self.title)
        usual = [name for name in ("url", "title") if available.count(name) == 1]
        ranking = [] if self.keep in (FIRST, LONGEST) else [self.keep]
        for path in [*filter(None, paths), *ranking, *usual]:
            name = path if path in available else path.split(".")[0]
            if name not in available:
                columns = (
                    f"the columns are {', '.join(map(str, available))}"
                    if available
                    else "there are no columns"
                )
                raise InputError(f"There is no column {path!r}; {columns}.")
            if available.count(name) > 1:
                raise InputError(
                    f"There are {available.count(name)} columns {name!r}; give one of them another "
                    "name."
                )
            needed.append(name)
        return list(dict.fromkeys(needed))


def warn_caller(sentence: str) -> None:
    """Issue a warning that points to the line that called the library."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(
        "stream_dedup."
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, stacklevel=level)


def _is_file(text: object) -> bool:
    """Return whether a value is the name of an existing file of documents."""
    return isinstance(text, str) and form_of(Path(text)) is not None and is_file(text)


def column_values(source: Any) -> list[Any] | None:
    """Return a column of any library as a list; None if `source` is not a column."""
    dimensions = getattr(source, "ndim", 1)
    if dimensions == 2:
        return list(source)  # a row of a matrix is a vector
    if dimensions != 1:
        return None
    for name in ("to_pylist", "to_list", "tolist"):
        if callable(as_list := getattr(source, name, None)):
            return list(as_list())
    return None


def column_of(values: Any, name: str) -> list[Any]:
    """Return a column or an iterable as a list.

    Raises:
        InputError: `values` is neither; the message starts with `name`.
    """
    column = column_values(values)
    return list(rows_in(values, f"{name} must be a column or a list")) if column is None else column


def rows_in(values: Any, needed: str) -> Iterator[Any]:
    """Return an iterator over an iterable that is not a text.

    Raises:
        InputError: `values` is a text or not iterable; the message starts with `needed`.
    """
    if not isinstance(values, str | bytes):
        with suppress(TypeError):  # not iterable, such as an array of no dimensions
            return iter(values)
    raise InputError(f"{needed}, and {given_kind(values)}.")


def is_table(source: object) -> bool:
    """Return whether an object has the attributes of a table of any library."""
    return any(hasattr(source, name) for name in ("columns", "column_names", "schema"))


def named_id(row: RawDocument, path: str) -> str | None:
    """Return the id in the field `path` of a file's row, as the decoder reads it; None if it is
    missing or empty.
    """
    found = scalar(field_at(row.fields, path))
    if found is None and row.row is not None:  # a time in a column is a text in the row's JSON
        found = scalar(field_at(parse_json(row.raw), path))
    return found or None


def _is_null(value: object) -> bool:
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float) and value != value)
    )


def _encode_id(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def _id_problem(location: str, value: object) -> str:
    what = "has no id" if value is MISSING else f"has the id {value!r}"
    return f"{location} {what}; convert the column that id= names to texts or whole numbers."


def bytes_problem(column: str) -> str:
    """Return the problem of a row whose bytes are not text."""
    return f"The column {column!r} contains bytes that are not UTF-8 text."


def _text_problem(location: str, value: object, column: str) -> str:
    kind = "null" if _is_null(value) else kind_of(value)
    what = (
        f"has no column {column!r}"
        if value is MISSING
        else f"contains {kind} instead of a text in {column!r}"
    )
    return f"{location} {what}; remove such rows first, or name another column with text=."


def _text_at(fields: object, path: str) -> str:
    """Return the text or number at a path as text; empty without one."""
    value = _value_at(fields, path) if isinstance(fields, Mapping) else None
    return "" if _is_null(value) else scalar(value) or ""


def _value_at(fields: Mapping[Any, Any], path: str) -> object:
    if path in fields:
        return fields[path]
    value: object = fields
    for name in path.split("."):
        value = value.get(name, MISSING) if isinstance(value, Mapping) else MISSING
    return value
