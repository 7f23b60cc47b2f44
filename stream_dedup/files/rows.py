"""The rows of tables, columns, rows and files, as documents to judge.

Invariants: a document for each row, in their order; libraries of tables are known by their methods
and never imported, but for pyarrow, whose interface the others speak. What cannot be read of a file
stands as an empty document, and costs no other.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from stream_dedup.domain.arguments import given, kind_of
from stream_dedup.domain.document import DeadLetter
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.hosts import named_site, site_of
from stream_dedup.domain.printable import counted
from stream_dedup.files.offline import OfflineDocument, RepeatedIds, is_worth_a_remark
from stream_dedup.fingerprinting import Vector, as_vector
from stream_dedup.inputs.charset import looks_like_markup, lost_letters
from stream_dedup.inputs.columnar import decoded_parts, need_pyarrow
from stream_dedup.inputs.fields import scalar
from stream_dedup.inputs.html import Pages
from stream_dedup.inputs.sources import RawDocument, find_files, key_of, read_documents

_MISSING: Final = object()
_NULL: Final = object()


@dataclass(slots=True)
class EquallyLong:
    """Vectors of one column: as long as the first, or they cannot be compared."""

    _length: int = 0

    def refuses(self, vector: Vector) -> str:
        """Return why a vector is none of them; nothing if it is one, or holds nothing."""
        self._length = self._length or len(vector)
        if len(vector) in (0, self._length):
            return ""
        return f"The vector has {len(vector):,} numbers, and the first one {self._length:,}; those of a column are of one length."


@dataclass(slots=True)
class DocumentRows:
    """The rows of `source`: `content`, `identifier`, `site` and `title` name the columns of text (or
    vector), id, site and title. Without a site in its column a row has the host of its id, else of
    its `url`. Where no column is named for titles it is `title`, if there is one.

    What is noted while they are read: the `ids`, in their own type; by number of row which are
    `unreadable`, and why, which of these are `gone`, as what is damaged in a file, and which are
    `missing`, if they may be (`allows_nulls`); `others` are files that are not read.
    """

    source: object
    content: str
    identifier: str | None
    site: str | None = None
    title: str | None = None
    takes_vectors: bool = False
    allows_nulls: bool = False
    ids: list[Any] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    others: list[str] = field(default_factory=list)
    repeated_ids: RepeatedIds = field(default_factory=RepeatedIds)
    _markup: int = 0
    _first_markup: str = ""
    _equally_long: EquallyLong = field(default_factory=EquallyLong)

    def documents(self) -> Iterator[OfflineDocument]:
        """Yield a document for each row; an empty one for what is unreadable or missing.

        Raises:
            InputError: the source holds no rows, or one cannot be used; the sentence names the
            first one, counted from 0.
        """
        with closing(Pages()) as pages:
            for number, row in enumerate(self._rows()):
                where = row.name if isinstance(row, RawDocument) else f"Row {number}"
                name, content, title = self._read(number, row, where, pages)
                if content is _NULL:
                    self.missing.add(number)
                    content = as_vector([]) if self.takes_vectors else ""
                if isinstance(content, str) and (why := lost_letters(content)):
                    self.unreadable[number] = f"{where}: {why}"
                    content = ""
                if (
                    isinstance(content, str)
                    and not (isinstance(row, RawDocument) and row.is_page)
                    and looks_like_markup(content)
                ):
                    self._markup += 1
                    self._first_markup = self._first_markup or where
                self.ids.append(name)
                fields = row.fields if isinstance(row, RawDocument) else row
                identifier = _written(name)
                is_file = isinstance(row, RawDocument)
                self.repeated_ids.read(where.rpartition(":")[0] or where if is_file else "")
                yield OfflineDocument(
                    identifier,
                    content,
                    site=self._site_of(fields, identifier),
                    title=self._title_of(fields) or title,
                )
        self._warn_of_markup()

    def _read(self, number: int, row: object, where: str, pages: Pages) -> tuple[Any, Any, str]:
        """Return id and content of a row, and the title of a web page."""
        name: object = str(number)
        if isinstance(row, RawDocument):
            try:
                return self._of_file(row, pages)
            except InputError as error:
                self.unreadable[number] = str(error)
                self.gone.add(number)
                return where, as_vector([]) if self.takes_vectors else "", ""
        if isinstance(row, Mapping):
            content = _at(row, self.content)
            name = name if self.identifier is None else _at(row, self.identifier)
        elif (
            isinstance(row, tuple | list) and len(row) == 2 and not isinstance(row[1], int | float)
        ):
            name, content = row
        elif self.takes_vectors or isinstance(row, str) or (self.allows_nulls and _is_null(row)):
            content = row
        else:
            what = f"{where}: a dictionary, a text, or a pair of id and text is needed, and {given(row)}"
            is_numbers = hasattr(row, "dtype") or (
                isinstance(row, tuple | list) and row and isinstance(row[0], int | float)
            )
            raise InputError(
                what + ('. Vectors need recipe=Recipe("vector").' if is_numbers else ".")
            )
        if not isinstance(name, str | int | bytes | UUID):
            raise InputError(_without_id(where, name))
        return name, self._content(where, content), ""

    def _site_of(self, fields: object, identifier: bytes) -> str:
        named = _text_at(fields, self.site) if self.site else ""
        address = _text_at(fields, "url").encode("utf-8", "surrogatepass")
        return named_site(named) or site_of(identifier) or site_of(address)

    def _title_of(self, fields: object) -> str:
        if self.title is None and "title" in (self.content, self.identifier):
            return ""
        return _text_at(fields, self.title or "title")

    def _content(self, where: str, found: object) -> object:
        if self.allows_nulls and _is_null(found):
            return _NULL
        if not self.takes_vectors:
            if not isinstance(found, str):
                raise InputError(_without_text(where, found, self.content))
            return found
        if isinstance(found, str) or found is _MISSING or _is_null(found):
            what = (
                f"has no column {self.content!r}"
                if found is _MISSING
                else f"holds no vector but {kind_of(found)}"
            )
            raise InputError(f"{where} {what}; name the column of vectors with vector=.")
        try:
            vector = as_vector(found)  # type: ignore[arg-type]
            why = self._equally_long.refuses(vector)
        except InputError as error:
            why = str(error)
        if why:
            raise InputError(f"{where}: {why}")
        return vector

    def _of_file(self, row: RawDocument, pages: Pages) -> tuple[Any, Any, str]:
        """Return id and content of a document of a file, and the title of a web page; raise
        InputError if it has none that can be read.
        """
        if row.lost is not None:
            raise InputError(row.lost.message)
        if row.form != "jsonl":
            if self.takes_vectors:
                raise InputError(f"{row.name} is a text, and the recipe takes vectors.")
            read = pages.read(row)
            if isinstance(read, DeadLetter):
                raise InputError(f"{row.name}: {read.message}")
            return row.name, read.text, read.title
        if row.fields is None:
            raise InputError(row.problem or f"{row.name} is no JSON object.")
        found = _at(row.fields, self.content)
        if not self.takes_vectors and not isinstance(found, str):
            raise InputError(_without_text(row.name, found, self.content))
        content = self._content(row.name, found)
        if self.identifier is None:
            named: object = key_of(row.fields, None)
            return row.name if named is None else str(named), content, ""
        named = _at(row.fields, self.identifier)
        if not isinstance(named, str | int):
            raise InputError(_without_id(row.name, named))
        return str(named), content, ""

    def _warn_of_markup(self) -> None:
        if self._markup and is_worth_a_remark(self._markup, len(self.ids)):
            warn_caller(
                f"{self._first_markup} looks like a web page, and is judged with its tags, as "
                f"{self._markup:,} of {counted(len(self.ids), 'row')} are; take the text with "
                "stream_dedup.page_text first."
            )

    def _rows(self) -> Iterable[object]:
        if isinstance(self.source, str | os.PathLike):
            return read_documents(find_files(os.fspath(self.source), "auto", self.others))
        return self._rows_of(self.source)

    def _rows_of(self, source: Any) -> Iterator[object]:
        if hasattr(source, "collect") and hasattr(source, "lazy"):  # a LazyFrame of polars
            source = source.collect()
        if hasattr(source, "scanner"):  # a dataset of Arrow: only the columns that are needed
            source = source.scanner(self._outermost(source.schema.names)).to_reader()
        if isinstance(source, Mapping):
            if source and all(map(is_table, source.values())):  # a table for each split
                yield from itertools.chain.from_iterable(map(self._rows_of, source.values()))
            else:
                yield from self._rows_of_columns(source)
        elif is_table(source) and hasattr(
            source, "iloc"
        ):  # pandas: only the columns that are needed are turned into anything
            yield from self._rows_of_columns(
                {name: source[name].tolist() for name in self._outermost(source.columns)}
            )
        elif is_table(source) and hasattr(source, "__arrow_c_stream__"):
            yield from self._rows_of_stream(source)
        elif not is_table(source) and (values := column_values(source)) is not None:
            yield from values
        else:
            for row in rows_in(source, "A table, rows or a path is needed"):
                yield from (
                    self._rows_of(row) if not isinstance(row, Mapping) and is_table(row) else (row,)
                )

    def _rows_of_columns(self, columns: Mapping[Any, Any]) -> Iterator[object]:
        names = self._outermost(columns)
        found = [column_of(columns[name], f"The column {name!r}") for name in names]
        for name, column in {**columns, **dict(zip(names, found, strict=True))}.items():
            if hasattr(column, "__len__") and len(column) != len(found[0]):
                raise InputError(f"The columns {names[0]} and {name} are not equally long.")
        for values in zip(*found, strict=True):
            yield dict(zip(names, values, strict=True))

    def _rows_of_stream(self, source: Any) -> Iterator[object]:
        """Yield rows with the columns that are needed only."""
        need_pyarrow("Tables")
        import pyarrow as pa  # noqa: PLC0415 - an extra

        try:
            reader = pa.RecordBatchReader.from_stream(source)
            names = self._outermost(reader.schema.names)
            for batch in itertools.chain.from_iterable(map(decoded_parts, reader)):
                for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                    yield dict(zip(names, values, strict=True))
        except pa.ArrowException as error:
            raise InputError(
                f"The table cannot be read as Arrow's libraries exchange tables: {error}"
            ) from error

    def _outermost(self, names: Iterable[Any]) -> list[str]:
        """Return the columns that are needed; of a nested field, its outermost one."""
        there = list(names)
        wanted = []
        named = (self.content, self.identifier, self.site, self.title)
        usual = [name for name in ("url", "title") if there.count(name) == 1]
        for path in [*filter(None, named), *usual]:
            name = path if path in there else path.split(".")[0]
            if name not in there:
                are = (
                    f"the columns are {', '.join(map(str, there))}"
                    if there
                    else "there are no columns"
                )
                raise InputError(f"There is no column {path!r}; {are}.")
            if there.count(name) > 1:
                raise InputError(
                    f"There are {there.count(name)} columns {name!r}; give one of them another "
                    "name."
                )
            wanted.append(name)
        return list(dict.fromkeys(wanted))


def warn_caller(sentence: str) -> None:
    """Warn of a thing at the line that called the library."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(
        "stream_dedup."
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, stacklevel=level)


def column_values(source: Any) -> list[Any] | None:
    """Return a column as a list, None if it is none; each library has a method for that, by a name
    of its own.
    """
    dimensions = getattr(source, "ndim", 1)
    if dimensions == 2:
        return list(source)  # a row of a matrix is a vector
    if dimensions != 1:
        return None
    for name in ("to_pylist", "to_list", "tolist"):
        if callable(as_list := getattr(source, name, None)):
            return list(as_list())
    return None


def column_of(values: Any, what: str) -> list[Any]:
    """Return a column, or what can be read as one, as a list.

    Raises:
        InputError: it is none; the sentence begins with `what`.
    """
    found = column_values(values)
    return list(rows_in(values, f"{what} must be a column or a list")) if found is None else found


def rows_in(values: Any, needed: str) -> Iterator[Any]:
    """Return what there is one after another, but for the characters of a text.

    Raises:
        InputError: there is nothing such; the sentence begins with what is `needed`.
    """
    if not isinstance(values, str | bytes):
        with suppress(
            TypeError
        ):  # what only looks as if it had rows, such as an array of no dimensions
            return iter(values)
    raise InputError(f"{needed}, and {given(values)}.")


def is_table(source: object) -> bool:
    """Return whether something has columns, as the tables of all libraries say."""
    return any(hasattr(source, name) for name in ("columns", "column_names", "schema"))


def _is_null(value: object) -> bool:
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float) and value != value)
    )


def _written(name: object) -> bytes:
    return name if isinstance(name, bytes) else str(name).encode("utf-8", "surrogatepass")


def _without_id(where: str, found: object) -> str:
    what = "has no id" if found is _MISSING else f"has the id {found!r}"
    return f"{where} {what}; a text or a whole number is needed, in the column that id= names."


def _without_text(where: str, found: object, text: str) -> str:
    what = (
        f"has no column {text!r}"
        if found is _MISSING
        else f"holds no text in {text!r} but {kind_of(found)}"
    )
    return f"{where} {what}; drop such rows first, or name another column with text=."


def _text_at(fields: object, path: str) -> str:
    """Return the text or the number at a path; empty if there is none."""
    found = _at(fields, path) if isinstance(fields, Mapping) else None
    return "" if _is_null(found) else scalar(found) or ""


def _at(fields: Mapping[Any, Any], path: str) -> object:
    if path in fields:
        return fields[path]
    found: object = fields
    for name in path.split("."):
        found = found.get(name, _MISSING) if isinstance(found, Mapping) else _MISSING
    return found
