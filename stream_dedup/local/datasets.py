"""Duplicates in a table, in rows of any kind, or in files: `dedup`, which returns columns.

Invariants: a row of the result for each row of the source, in its order, whatever the source is; the verdicts are those of
`check` on the same documents. What cannot be read of files costs no other document.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from stream_dedup.fingerprinting import Recipe
from stream_dedup.ground.document import DeadLetter, Reason, Verdict
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.plan import Plan
from stream_dedup.inputs.columnar import need_pyarrow
from stream_dedup.inputs.markup import looks_like_markup
from stream_dedup.inputs.pages import Pages
from stream_dedup.inputs.sources import RawDocument, find_files, key_of, read_documents
from stream_dedup.local.offline import Judged, OfflineDocument, judge_documents, plan_of

_MISSING = object()
UNREADABLE = "unreadable"
COLUMNS = ("id", "is_duplicate", "reason", "of", "of_row", "distance", "similarity", "group")


def dedup(
    source: object,
    *,
    text: str = "text",
    id: str | None = None,  # noqa: A002 - what the column is called by those who have one
    recipe: Recipe | None = None,
    plan: Plan | str | None = None,
    similarity: float | None = None,
) -> dict[str, list[Any]]:
    """Return for each row of `source` whether it is a duplicate, and of what: columns, a list of n values each.

    `source`: a table (Arrow, pandas, polars, or a dictionary of columns); rows (dictionaries, texts, or pairs of id and
    text), also of a generator; or the path of a file or folder that `check` reads, of whose web pages the main text is taken.
    `text` and `id` name the columns or fields, also inside others (`page.text`). Without `id` a row is known by its number.

    `similarity`: from which share on, 0 to 1 in hundredths, two texts are near, in place of the plan's own.

    Columns: `id`; `is_duplicate`; `reason`, as in the header `dedup.reason`; `of` and `of_row`, id and number of the kept
    row, `distance` in bits, `similarity` from 0 to 1, None for kept rows (`similarity` also where the plan knows none);
    `group`, the number of the kept row, which a kept row shares with its duplicates. Memory holds the result and the
    fingerprints. What cannot be read of a file has the reason `unreadable` and is no duplicate; a warning says how many.

    Raises:
        InputError: the source is nothing of that kind; a row has no text (the sentence names the first one, counted from 0); or
            nothing in the files can be read.
        ConfigurationError: the plan judges more bits than the recipe's prints have, or compares no sketches and a similarity is
            given; or an extra is not installed.
    """
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    made_by = recipe or Recipe()
    unreadable: dict[int, str] = {}
    rows = _documents(source, text, id, unreadable)
    for judged in judge_documents(rows, made_by, plan_of(plan, similarity, made_by)):
        _add(columns, judged)
    for number in unreadable:
        columns["reason"][number] = UNREADABLE
    if unreadable:
        count, first = len(columns["id"]), next(iter(unreadable.values()))
        if len(unreadable) == count:
            raise InputError(f"Nothing can be read: {first}")
        warnings.warn(f"{len(unreadable):,} of {count:,} rows cannot be read, the first: {first}", stacklevel=2)
    return columns


def similarity_of(judged: Judged) -> float | None:
    """Return how similar a duplicate is to the kept one, 0 to 1, where the recipe makes sketches; 1 for the same text."""
    return 1.0 if judged.reason in (Reason.EXACT, Reason.UNCHANGED) else judged.similarity


def _add(columns: dict[str, list[Any]], judged: Judged) -> None:
    is_duplicate = judged.verdict is Verdict.DUPLICATE
    of = judged.of_id.decode("utf-8", "replace") if is_duplicate and judged.of_id is not None else None
    of_row = judged.of_number if is_duplicate else None
    values = (
        judged.id.decode("utf-8", "replace"),
        is_duplicate,
        judged.reason.label,
        of,
        of_row,
        judged.distance if is_duplicate else None,
        similarity_of(judged) if is_duplicate else None,
        judged.number if of_row is None else of_row,
    )
    for name, value in zip(COLUMNS, values, strict=True):
        columns[name].append(value)


def _documents(source: object, text: str, identifier: str | None, unreadable: dict[int, str]) -> Iterator[OfflineDocument]:
    """Yield the rows; of files also those that cannot be read, as empty ones, of which `unreadable` says why, by number."""
    with closing(Pages()) as pages:
        yield from _read_rows(_rows_of(source, text, identifier), text, identifier, pages, unreadable)


def _read_rows(
    rows: Iterable[object], text: str, identifier: str | None, pages: Pages, unreadable: dict[int, str]
) -> Iterator[OfflineDocument]:
    name: object
    content: object
    is_told = False
    for number, row in enumerate(rows):
        name = number
        if isinstance(row, RawDocument):
            where = row.name
            try:
                name, content = _of_file(row, text, identifier, pages)
            except InputError as error:
                unreadable[number] = str(error)
                name, content = where, ""
        elif isinstance(row, str):
            content, where = row, f"Row {number}"
        elif isinstance(row, Mapping):
            where = f"Row {number}"
            content = _at(row, text)
            name = number if identifier is None else _at(row, identifier)
        elif isinstance(row, tuple | list) and len(row) == 2:
            where, (name, content) = f"Row {number}", row
        else:
            raise InputError(
                f"Row {number} is a {type(row).__name__}; a dictionary, a text, or a pair of id and text is needed."
            )
        if not isinstance(content, str):
            raise InputError(_without_text(where, content, text))
        if not isinstance(name, str | int):
            raise InputError(_without_id(where, name))
        if not is_told and not (isinstance(row, RawDocument) and row.is_page) and looks_like_markup(content):
            is_told = True
            warnings.warn(f"{where} looks like a web page, and is judged with its tags; extract its text first.", stacklevel=2)
        yield OfflineDocument(str(name).encode("utf-8", "replace"), content)


def _of_file(row: RawDocument, text: str, identifier: str | None, pages: Pages) -> tuple[object, str]:
    """Return id and text; raise InputError if it has none that can be read."""
    if row.lost is not None:
        raise InputError(row.lost.message)
    if row.form != "jsonl":
        content = pages.text_of(row)
        if isinstance(content, DeadLetter):
            raise InputError(f"{row.name}: {content.message}")
        return row.name, content
    if row.fields is None:
        raise InputError(row.problem or f"{row.name} is no JSON object.")
    found = _at(row.fields, text)
    if not isinstance(found, str):
        raise InputError(_without_text(row.name, found, text))
    if identifier is None:
        named: object = key_of(row.fields, None)
        return row.name if named is None else named, found
    named = _at(row.fields, identifier)
    if not isinstance(named, str | int):
        raise InputError(_without_id(row.name, named))
    return named, found


def _without_id(where: str, found: object) -> str:
    what = "has no id" if found is _MISSING else f"has the id {found!r}"
    return f"{where} {what}; a text or a whole number is needed, in the column that id= names."


def _without_text(where: str, found: object, text: str) -> str:
    what = f"has no column {text!r}" if found is _MISSING else f"holds no text in {text!r} but {type(found).__name__}"
    return f"{where} {what}; drop such rows first, or name another column with text=."


def _rows_of(source: object, text: str, identifier: str | None) -> Iterable[object]:
    if isinstance(source, str | os.PathLike):
        return read_documents(find_files(os.fspath(source), "auto"))
    if isinstance(source, Mapping):
        return _rows_of_columns(source, text, identifier)
    if hasattr(source, "__arrow_c_stream__"):
        need_pyarrow("Tables")
        import pyarrow as pa  # noqa: PLC0415 - an extra

        return _rows_of_table(pa.RecordBatchReader.from_stream(source), text, identifier)
    if hasattr(source, "columns") and hasattr(source, "iloc"):  # pandas before it spoke Arrow
        return _rows_of_columns({name: source[name].tolist() for name in source.columns}, text, identifier)  # type: ignore[index]
    if isinstance(source, bytes) or not isinstance(source, Iterable):
        raise InputError(f"A table, rows or a path is needed, and a {type(source).__name__} was given.")
    return source


def _rows_of_columns(columns: Mapping[Any, Any], text: str, identifier: str | None) -> Iterator[object]:
    names = [text] if identifier is None else [text, identifier]
    for name in names:
        if name not in columns:
            raise InputError(f"There is no column {name!r}; the columns are {', '.join(map(str, columns))}.")
    if len({len(columns[name]) for name in names}) != 1:
        raise InputError(f"The columns {' and '.join(names)} are not equally long.")
    for values in zip(*(columns[name] for name in names), strict=True):
        yield dict(zip(names, values, strict=True))


def _rows_of_table(reader: Any, text: str, identifier: str | None) -> Iterator[object]:
    """Yield rows with the columns that are needed only; of a nested field, its outermost one."""
    names = reader.schema.names
    wanted = []
    for path in [text] if identifier is None else [text, identifier]:
        name = path if path in names else path.split(".")[0]
        if name not in names:
            raise InputError(f"There is no column {path!r}; the columns are {', '.join(names)}.")
        wanted.append(name)
    for batch in reader:
        for values in zip(*(batch.column(name).to_pylist() for name in wanted), strict=True):
            yield dict(zip(wanted, values, strict=True))


def _at(fields: Mapping[Any, Any], path: str) -> object:
    if path in fields:
        return fields[path]
    found: object = fields
    for name in path.split("."):
        found = found.get(name, _MISSING) if isinstance(found, Mapping) else _MISSING
    return found
