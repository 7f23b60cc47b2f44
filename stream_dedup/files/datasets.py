"""Find duplicates in a table, in rows of any type, or in files: with `dedup`, or in two steps with
`prints` and `judge`.

Invariants: the result has a row for each row of the source, in its order; the verdicts are those of
`check` on the same documents. An unreadable row of a file does not affect other documents.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.argument_types import checked, given_kind
from stream_dedup.domain.document import Reason, Verdict
from stream_dedup.domain.errors import ConfigurationError, InputError
from stream_dedup.domain.plan import Plan
from stream_dedup.files.keep import FIRST
from stream_dedup.files.offline import (
    FingerprintedBatch,
    Judged,
    RepeatedIds,
    fingerprint_batches,
    judge_batches,
    judge_documents,
    open_index,
    plan_of,
    short_texts_note,
)
from stream_dedup.files.rows import DocumentRows, is_table, rows_in, warn_caller
from stream_dedup.fingerprinting import Recipe, as_recipe
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.inputs.columnar import require_pyarrow
from stream_dedup.inputs.sources import not_read

UNREADABLE, MISSING = "unreadable", "missing"
COLUMNS = (
    "id",
    "is_duplicate",
    "reason",
    "duplicate_of",
    "duplicate_of_row",
    "distance",
    "similarity",
    "group",
)


def dedup(
    source: object,
    *,
    text: str = "text",
    id: str | None = None,  # noqa: A002 - the usual name of the column
    vector: str | None = None,
    site: str | None = None,
    title: str | None = None,
    recipe: Recipe | str | None = None,
    plan: Plan | str | None = None,
    similarity: float | None = None,
    keep: str = FIRST,
    nulls: Literal["error", "keep", "drop"] = "error",
    returns: Literal["columns", "mask", "kept"] = "columns",
) -> Any:
    """Return for each row of `source` whether it is a duplicate, and of which row.

    `source` can be:

    - a table: Arrow, pandas, polars (also lazy), a dataset of Hugging Face (its splits are judged one
      after another), or a dictionary of columns
    - a column of texts: a Series, a ChunkedArray, a NumPy array
    - an iterable of rows (dictionaries, texts, or pairs of id and text) or of tables
    - the path of a file or folder that `check` can read

    `text`, `id`: the names of the columns or fields, also nested ones (`page.text`). Without `id` the
    id of a row is its number. `vector`: the name of a column of vectors, which are compared instead
    of texts, with `Recipe("vector")`; a matrix (n, d) needs that recipe and no name. `site`, `title`:
    the names of columns. Pages of one site need a higher similarity to be copies, and pages with
    different titles a still higher one. The default site is the host of the id or of a column `url`;
    the default title is a column `title`.

    `similarity`: a multiple of 0.01 up to 1 that replaces two thresholds of the plan: that of
    documents on different sites, and that of documents with unknown sites or with the same site and
    title.
    `keep`: which of several copies is kept: the `first`, the `longest`, or the one with the greatest
    number or time in the column of this name.
    `nulls`: whether a row without a text is an error, is kept or is dropped. Such a row is not a
    duplicate and has the reason `missing`.

    `returns="columns"` returns a dictionary of lists of n values: `id` of the row; `is_duplicate`;
    `reason`, as in the header `dedup.reason`; `duplicate_of` and `duplicate_of_row`, the id and number of the kept row;
    `distance` in bits; `similarity` from 0 to 1; and `group`, a number that a kept row shares with
    its duplicates. `duplicate_of`, `duplicate_of_row`, `distance` and `similarity` are None for kept rows, `similarity`
    also for plans without sketches. `"mask"` returns a NumPy array (n,) of bool, True for kept rows.
    `"kept"` returns the kept rows as a table or column of the type of `source`, or as a list.

    The result and the fingerprints are in memory. A row that cannot be judged has the reason
    `unreadable` and is not a duplicate; a warning reports the number of such rows. In a mask, such
    a row is False if it could not be read from its file, and True if more than a fifth of its text
    is U+FFFD.

    Raises:
        InputError: the source has another type; a row has no text (the message contains the number
        of the first such row, from 0); or nothing in the files can be read.
        ConfigurationError: the plan compares more bits than the recipe computes; a similarity is
        given for a plan that compares no sketches; the recipe does not accept the values of the
        column; or an extra is not installed.
    """
    _check_choice("nulls", nulls, ("error", "keep", "drop"))
    _check_choice("returns", returns, ("columns", "mask", "kept"))
    if returns == "kept" and isinstance(source, str | os.PathLike):
        raise ConfigurationError(
            "returns='kept' is not possible for files: write the kept rows with `stream-dedup check "
            "FILE --to FOLDER`, or use returns='mask'."
        )
    if returns == "kept":  # the source is read twice
        if isinstance(source, Mapping) and any(
            isinstance(column, Iterator) for column in source.values()
        ):
            source = {
                name: list(column) if isinstance(column, Iterator) else column
                for name, column in source.items()
            }
        source = list(source) if isinstance(source, Iterator) else source
    recipe = _choose_recipe(recipe, vector)
    names = _ColumnNames(text, id, vector, site, title, keep)
    rows = _document_rows(source, names, recipe, allows_nulls=nulls != "error")
    chosen_plan = plan_of(plan, recipe, similarity=similarity, unsure=similarity)
    verdicts = judge_documents(rows.documents(), recipe, chosen_plan, is_ranked=keep != FIRST)
    columns = _to_columns(_count_repeated_ids(verdicts, rows.repeated_ids), rows.ids)
    if sentence := rows.repeated_ids.note():
        warn_caller(sentence)
    _warn_of_unreadable(rows, len(columns["id"]))
    short = sum(reason == Reason.TOO_SHORT.label for reason in columns["reason"])
    if sentence := short_texts_note(short, len(columns["reason"]), recipe.floor):
        warn_caller(sentence)
    for number in rows.unreadable:
        columns["reason"][number] = UNREADABLE
    for number in rows.null_rows:
        columns["reason"][number] = MISSING
    if returns == "columns":
        return columns
    mask = ~np.array(columns["is_duplicate"], np.bool_)
    mask[list(rows.damaged)] = False
    if nulls == "drop":
        mask[list(rows.null_rows)] = False
    return mask if returns == "mask" else _kept_rows(source, mask)


def prints(
    source: object,
    *,
    text: str = "text",
    id: str | None = None,  # noqa: A002 - as in `dedup`
    vector: str | None = None,
    site: str | None = None,
    title: str | None = None,
    recipe: Recipe | str | None = None,
) -> Any:
    """Return the prints of the rows of `source`, for `judge`, as a `pyarrow.Table`.

    `source`, `text`, `id`, `vector`, `site`, `title`: as for `dedup`. Columns: `id`, `recipe`,
    `print`, `features`, `digest`, `sketch`, `is_empty`, `scope`, and hashes of `site` and `title`.
    A row depends only on its document and the recipe, so several processes can compute tables in any
    order. Concatenate them in the order of the rows: the result equals that of one call.

    Raises:
        InputError: as for `dedup`; or a row of a file cannot be read.
        ConfigurationError: as for `dedup`.
    """
    require_pyarrow("Prints in a table")
    from stream_dedup.files.columns import to_table  # noqa: PLC0415 - which needs pyarrow

    recipe = _choose_recipe(recipe, vector)
    rows = _document_rows(source, _ColumnNames(text, id, vector, site, title), recipe)
    batch = FingerprintedBatch.join(recipe, list(fingerprint_batches(rows.documents(), recipe)))
    if rows.unread_names:
        warn_caller(not_read(rows.unread_names))
    if rows.unreadable:
        raise InputError(next(iter(rows.unreadable.values())))
    return to_table(recipe, batch, rows.ids)


def judge(
    source: object,
    *,
    recipe: Recipe | str | None = None,
    plan: Plan | str | None = None,
    similarity: float | None = None,
) -> dict[str, list[Any]]:
    """Return the columns of `dedup` for documents whose prints exist already.

    `source`: a table that `prints` returned, also if another library stored and read it; an iterable
    of such tables in order; or the path of a file or folder of prints, which are read in the order
    of their names. `recipe`: the recipe of the prints.

    Raises:
        InputError: the source contains no prints.
        ConfigurationError: the prints have another recipe.
    """
    require_pyarrow("Prints in a table")
    from stream_dedup.files.columns import read_printed_rows  # noqa: PLC0415 - which needs pyarrow

    prints_recipe = as_recipe(recipe)
    ids: list[Any] = []  # the ids of all rows that were read so far
    unreadable: list[int] = []

    def batches() -> Iterator[FingerprintedBatch]:
        for table, table_name in _read_tables(source):
            for rows in read_printed_rows(table, prints_recipe, table_name):
                unreadable.extend(
                    len(ids) + row
                    for row, (_, letter) in enumerate(rows.outcomes)
                    if letter is not None
                )
                ids.extend(rows.ids)
                yield rows.with_empty_rows(prints_recipe)

    index = open_index(MemoryStore(), prints_recipe, plan, similarity=similarity, unsure=similarity)
    columns = _to_columns(judge_batches(batches(), prints_recipe, index), ids)
    for number in unreadable:
        columns["reason"][number] = UNREADABLE
    return columns


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ConfigurationError(
            f"{name}={value!r} is not valid; it can be {', '.join(map(repr, choices))}."
        )


def _choose_recipe(recipe: Recipe | str | None, vector: str | None) -> Recipe:
    if vector is None:
        return as_recipe(recipe)
    vector_recipe = as_recipe(recipe, "vector")
    if not vector_recipe.method.takes_vectors:
        raise ConfigurationError(
            f"The recipe {vector_recipe.id} expects texts, but vector= names vectors; remove one of them."
        )
    return vector_recipe


class _ColumnNames(NamedTuple):
    """The names of the columns, as the caller gave them."""

    text: str
    id: str | None
    vector: str | None
    site: str | None
    title: str | None
    keep: str = FIRST


def _document_rows(
    source: object,
    names: _ColumnNames,
    recipe: Recipe,
    *,
    allows_nulls: bool = False,
) -> DocumentRows:
    """Return the rows of a source as documents, by the names of its columns.

    Raises:
        InputError: a name is not a text.
    """
    argument = "text" if names.vector is None else "vector"
    content = names.text if names.vector is None else names.vector
    column = checked(content, str, f"{argument}=", "the name of a column")
    checked(names.keep, str, "keep=", "first, longest, or the name of a column")
    for optional in ("id", "site", "title"):
        if getattr(names, optional) is not None:
            checked(getattr(names, optional), str, f"{optional}=", "the name of a column, or None")
    return DocumentRows(
        source,
        column,
        names.id,
        names.site,
        names.title,
        names.keep,
        takes_vectors=recipe.method.takes_vectors,
        allows_nulls=allows_nulls,
    )


def _to_columns(judged: Iterable[Judged], ids: Sequence[Any]) -> dict[str, list[Any]]:
    """Return verdicts as columns. `ids`: the ids of the documents; it grows while verdicts are read."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for row in judged:
        is_duplicate = row.verdict is Verdict.DUPLICATE
        of_row = row.kept_number if is_duplicate else None
        values = (
            ids[row.number],
            is_duplicate,
            row.reason.label,
            None if of_row is None else ids[of_row],
            of_row,
            row.distance if is_duplicate else None,
            row.similarity if is_duplicate else None,
            row.number if of_row is None else of_row,
        )
        for name, value in zip(COLUMNS, values, strict=True):
            columns[name].append(value)
    return columns


def _count_repeated_ids(judged: Iterable[Judged], repeated_ids: RepeatedIds) -> Iterator[Judged]:
    for verdict in judged:
        repeated_ids.count(verdict)
        yield verdict


def _warn_of_unreadable(rows: DocumentRows, count: int) -> None:
    if rows.unread_names:
        warn_caller(not_read(rows.unread_names))
    if rows.unreadable:
        first = next(iter(rows.unreadable.values()))
        if len(rows.unreadable) == count:
            raise InputError(f"No row can be read: {first}")
        warn_caller(
            f"{len(rows.unreadable):,} of {count:,} rows cannot be read, the first: {first}"
        )


def _kept_rows(source: Any, mask: NDArray[np.bool_]) -> Any:
    """Return the rows of a source for which `mask` is True, as a table or column of its type."""
    source = _collect(source)
    if isinstance(source, Mapping):
        if source and all(map(is_table, source.values())):
            return type(source)(zip(source, _kept_rows([*source.values()], mask), strict=True))  # type: ignore[call-arg]
        return {name: _kept_rows(column, mask) for name, column in source.items()}
    if hasattr(source, "iloc") or isinstance(source, np.ndarray):
        return source[mask]
    if hasattr(source, "cast_column"):  # a dataset of Hugging Face
        if hasattr(source, "select"):
            return source.select(np.flatnonzero(mask))
        return source.filter(_is_kept, with_indices=True, fn_kwargs={"mask": mask})
    if hasattr(source, "filter"):
        return _filter_arrow(source, mask) if hasattr(source, "to_pylist") else source.filter(mask)
    kept: list[Any] = []
    first = 0
    for row in source:
        if not isinstance(row, Mapping) and is_table(row):
            table = _collect(row)
            count = len(table) if hasattr(table, "__len__") else sum(1 for _ in table)
            kept.append(_kept_rows(table, mask[first : first + count]))
            first += count
        else:
            kept += [row] * int(mask[first])
            first += 1
    return kept


def _filter_arrow(source: Any, mask: NDArray[np.bool_]) -> Any:
    """Return the rows of a table, batch or column of Arrow for which `mask` is True. If Arrow cannot
    filter a type, such as views and run-end-encoded columns, join slices instead.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra

    try:
        return source.filter(pa.array(mask))
    except pa.ArrowNotImplementedError:
        has_batches = isinstance(source, pa.Table)
        slices: list[Any] = []
        first = 0
        for chunk in source.to_batches() if has_batches else getattr(source, "chunks", [source]):
            changes = np.diff(mask[first : first + len(chunk)], prepend=False, append=False)
            slices += [
                chunk.slice(begin, end - begin)
                for begin, end in np.flatnonzero(changes).reshape(-1, 2).tolist()
            ]
            first += len(chunk)
        if has_batches:
            return pa.Table.from_batches(slices, source.schema)
        if isinstance(source, pa.ChunkedArray):
            return pa.chunked_array(slices, source.type)
        join = pa.concat_batches if isinstance(source, pa.RecordBatch) else pa.concat_arrays
        return join([*slices, source.slice(0, 0)])


def _is_kept(_: object, number: int, mask: NDArray[np.bool_]) -> bool:
    """Return whether row `number` of a stream of rows is kept."""
    return bool(mask[number])


def _collect(source: Any) -> Any:
    """Return a lazy frame of polars, a relation of DuckDB or a dataset of Arrow as a table, any other
    value unchanged.
    """
    if hasattr(source, "collect") and hasattr(source, "lazy"):
        return source.collect()
    if hasattr(source, "to_arrow_table"):
        return source.to_arrow_table()
    return source.to_table() if hasattr(source, "scanner") else source


def _read_tables(source: Any) -> Iterator[tuple[Any, str]]:
    """Yield (table or batch of Arrow, its name for messages)."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    from stream_dedup.files.columns import batches_of, find_prints  # noqa: PLC0415 - which needs pyarrow

    if isinstance(source, str | os.PathLike):
        for file in find_prints([os.fspath(source)]):
            for batch in batches_of(file):
                yield batch, file.name
    elif hasattr(source, "__arrow_c_stream__"):
        for batch in pa.RecordBatchReader.from_stream(source):
            yield batch, "The table"
    elif is_table(source) and hasattr(source, "to_dict"):
        try:
            yield pa.Table.from_pandas(source), "The table"
        except pa.ArrowException as error:
            raise InputError(f"The table contains no prints: {error}") from error
    elif is_table(source) and hasattr(source, "to_pylist"):
        yield source, "The table"
    else:
        needed = "A table with prints is expected"
        if isinstance(source, Mapping):
            raise InputError(f"{needed}, and {given_kind(source)}.")
        for table in rows_in(source, needed):
            yield from _read_tables(table)
