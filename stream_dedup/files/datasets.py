"""Duplicates in a table, in rows of any kind, or in files: `dedup`, and the same in two steps,
`prints` and `judge`.

Invariants: a row of the result for each row of the source, in its order, for each kind of source;
the verdicts are those of `check` on the same documents. What cannot be read of files costs no other
document.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.arguments import checked, given
from stream_dedup.domain.document import Reason, Verdict
from stream_dedup.domain.errors import ConfigurationError, InputError
from stream_dedup.domain.plan import Plan
from stream_dedup.files.offline import (
    Judged,
    PrintedBatch,
    RepeatedIds,
    fingerprinted,
    judge_batches,
    judge_documents,
    open_index,
    plan_of,
    short_texts_note,
)
from stream_dedup.files.rows import DocumentRows, is_table, rows_in, warn_caller
from stream_dedup.fingerprinting import Recipe, as_recipe
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.inputs.columnar import need_pyarrow
from stream_dedup.inputs.sources import not_read

UNREADABLE, MISSING = "unreadable", "missing"
COLUMNS = ("id", "is_duplicate", "reason", "of", "of_row", "distance", "similarity", "group")


def dedup(
    source: object,
    *,
    text: str = "text",
    id: str | None = None,  # noqa: A002 - what the column is called by those who have one
    vector: str | None = None,
    site: str | None = None,
    title: str | None = None,
    recipe: Recipe | str | None = None,
    plan: Plan | str | None = None,
    similarity: float | None = None,
    nulls: Literal["error", "keep", "drop"] = "error",
    returns: Literal["columns", "mask", "kept"] = "columns",
) -> Any:
    """Return for each row of `source` whether it is a duplicate, and of what.

    `source`: a table (Arrow, pandas, polars, also lazy, a dataset of Hugging Face, also of several
    splits, which are judged one after another, or a dictionary of columns); a column of texts
    (Series, ChunkedArray, NumPy); rows (dictionaries, texts, or pairs of id and text) or tables,
    also of an iterator; or the path of a file or folder that `check` reads. `text` and `id` name
    the columns or fields, also inside others (`page.text`). Without `id` a row is known by its
    number. `vector` names a column of vectors, which are judged instead of texts, by
    `Recipe("vector")`; a matrix (n, d) needs that recipe and no name. `site` and `title` name columns:
    pages of one site, and of different titles, must be more alike to be copies. Without them the
    site is the host of the id or of a column `url`, and the title that of a column `title`.

    `similarity`: from which share on, 0 to 1 in hundredths, two texts are near, in place of the
    plan's own. `nulls`: a row without a text is an error, or is kept, or dropped; then it is no
    duplicate, and its reason is `missing`.

    `returns="columns"`: a dictionary of lists of n values. `id`, as it was given; `is_duplicate`;
    `reason`, as in the header `dedup.reason`; `of` and `of_row`, id and number of the kept row,
    `distance` in bits, `similarity` from 0 to 1, None for kept rows (`similarity` also where the
    plan knows none); `group`, the number of the kept row, which a kept row shares with its
    duplicates. `"mask"`: a NumPy array (n,) of bool, True for rows that are kept. `"kept"`: the
    kept rows, as the kind of table or column that `source` is, or as a list.

    Memory holds the result and the fingerprints. What cannot be judged has the reason `unreadable`
    and is no duplicate; a warning says how many there are. A text of which more than a fifth is
    U+FFFD is kept; what cannot be read of a file is not.

    Raises:
        InputError: the source is nothing of that kind; a row has no text (the sentence names the
        first one, counted from 0); or
            nothing in the files can be read.
        ConfigurationError: the plan judges more bits than the recipe's prints have, or compares no
        sketches and a similarity is
            given; the recipe does not take what the column holds; or an extra is not installed.
    """
    _known("nulls", nulls, ("error", "keep", "drop"))
    _known("returns", returns, ("columns", "mask", "kept"))
    if returns == "kept" and isinstance(source, str | os.PathLike):
        raise ConfigurationError(
            "Kept rows of files are written by `stream-dedup check FILE --to FOLDER`; or take the "
            "mask."
        )
    if returns == "kept":  # then it is read twice
        if isinstance(source, Mapping) and any(
            isinstance(column, Iterator) for column in source.values()
        ):
            source = {
                name: list(column) if isinstance(column, Iterator) else column
                for name, column in source.items()
            }
        source = list(source) if isinstance(source, Iterator) else source
    made_by = _recipe(recipe, vector)
    named = _ColumnNames(text, id, vector, site, title)
    rows = _rows(source, named, made_by, allows_nulls=nulls != "error")
    judged = judge_documents(
        rows.documents(), made_by, plan_of(plan, made_by, similarity=similarity)
    )
    columns = _columns(_counted(judged, rows.repeated_ids), rows.ids)
    if sentence := rows.repeated_ids.note():
        warn_caller(sentence)
    _say_unreadable(rows, len(columns["id"]))
    short = sum(reason == Reason.TOO_SHORT.label for reason in columns["reason"])
    if sentence := short_texts_note(short, len(columns["reason"]), made_by.floor):
        warn_caller(sentence)
    for number in rows.unreadable:
        columns["reason"][number] = UNREADABLE
    for number in rows.missing:
        columns["reason"][number] = MISSING
    if returns == "columns":
        return columns
    mask = ~np.array(columns["is_duplicate"], np.bool_)
    mask[list(rows.gone)] = False
    if nulls == "drop":
        mask[list(rows.missing)] = False
    return mask if returns == "mask" else _kept(source, mask)


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
    """Return the prints of the rows of `source`, a `pyarrow.Table` of as many rows, for `judge`:
    anywhere, in any order.

    `source`, `text`, `id`, `vector`, `site`, `title`: as `dedup` takes them. Columns: `id`,
    `recipe`, `print`, `features`, `digest`, `sketch`, `is_empty`, `scope`, and hashes of `site` and
    `title`. A row depends on its document and the
    recipe only, so tables that were made in several places, put together in the order of the rows,
    are the table that one call would have made.

    Raises:
        InputError: as `dedup` raises it; or something in the files cannot be read.
        ConfigurationError: likewise.
    """
    need_pyarrow("Prints in a table")
    from stream_dedup.files.columns import table_of  # noqa: PLC0415 - which needs pyarrow

    made_by = _recipe(recipe, vector)
    rows = _rows(source, _ColumnNames(text, id, vector, site, title), made_by)
    batch = PrintedBatch.joined(made_by, list(fingerprinted(rows.documents(), made_by)))
    if rows.others:
        warn_caller(not_read(rows.others))
    if rows.unreadable:
        raise InputError(next(iter(rows.unreadable.values())))
    return table_of(made_by, batch, rows.ids)


def judge(
    source: object,
    *,
    recipe: Recipe | str | None = None,
    plan: Plan | str | None = None,
    similarity: float | None = None,
) -> dict[str, list[Any]]:
    """Return what `dedup` returns of documents, as columns, from their prints alone.

    `source`: a table that `prints` made, also by way of another library; several, in their order,
    also of an iterator; or the path of a file or folder of them, which are read in the order of
    their names. `recipe`: the one that made them.

    Raises:
        InputError: it holds no prints.
        ConfigurationError: they are of another recipe.
    """
    need_pyarrow("Prints in a table")
    from stream_dedup.files.columns import rows_of  # noqa: PLC0415 - which needs pyarrow

    made_by = as_recipe(recipe)
    ids: list[Any] = []
    unreadable: list[int] = []

    def batches() -> Iterator[PrintedBatch]:
        for table, what in _tables(source):
            for rows in rows_of(table, made_by, what):
                unreadable.extend(
                    len(ids) + row
                    for row, (_, letter) in enumerate(rows.outcomes)
                    if letter is not None
                )
                ids.extend(rows.ids)
                yield rows.whole(made_by)

    index = open_index(MemoryStore(), made_by, plan, similarity=similarity)
    columns = _columns(judge_batches(batches(), made_by, index), ids)
    for number in unreadable:
        columns["reason"][number] = UNREADABLE
    return columns


def _known(name: str, value: object, known: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise ConfigurationError(
            f"{name}={value!r} says nothing; it may be {', '.join(map(repr, known))}."
        )


def _recipe(recipe: Recipe | str | None, vector: str | None) -> Recipe:
    if vector is None:
        return as_recipe(recipe)
    made_by = as_recipe(recipe, "vector")
    if not made_by.method.takes_vectors:
        raise ConfigurationError(
            f"The recipe {made_by.id} takes texts, and vector= names vectors; leave one of the two "
            "out."
        )
    return made_by


class _ColumnNames(NamedTuple):
    """What a caller names the columns."""

    text: str
    id: str | None
    vector: str | None
    site: str | None
    title: str | None


def _rows(
    source: object,
    named: _ColumnNames,
    recipe: Recipe,
    *,
    allows_nulls: bool = False,
) -> DocumentRows:
    """Return the rows of a source by the names of its columns, which are texts."""
    name = "text" if named.vector is None else "vector"
    content = named.text if named.vector is None else named.vector
    column = checked(content, str, f"{name}=", "the name of a column")
    for what in ("id", "site", "title"):
        if getattr(named, what) is not None:
            checked(getattr(named, what), str, f"{what}=", "the name of a column, or None")
    return DocumentRows(
        source,
        column,
        named.id,
        named.site,
        named.title,
        takes_vectors=recipe.method.takes_vectors,
        allows_nulls=allows_nulls,
    )


def _columns(judged: Iterable[Judged], ids: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the columns of verdicts on documents with these ids, which are there when the verdict
    comes.
    """
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for one in judged:
        is_duplicate = one.verdict is Verdict.DUPLICATE
        of_row = one.of_number if is_duplicate else None
        values = (
            ids[one.number],
            is_duplicate,
            one.reason.label,
            None if of_row is None else ids[of_row],
            of_row,
            one.distance if is_duplicate else None,
            one.similarity if is_duplicate else None,
            one.number if of_row is None else of_row,
        )
        for name, value in zip(COLUMNS, values, strict=True):
            columns[name].append(value)
    return columns


def _counted(judged: Iterable[Judged], repeated_ids: RepeatedIds) -> Iterator[Judged]:
    for verdict in judged:
        repeated_ids.count(verdict)
        yield verdict


def _say_unreadable(rows: DocumentRows, count: int) -> None:
    if rows.others:
        warn_caller(not_read(rows.others))
    if rows.unreadable:
        first = next(iter(rows.unreadable.values()))
        if len(rows.unreadable) == count:
            raise InputError(f"Nothing can be read: {first}")
        warn_caller(
            f"{len(rows.unreadable):,} of {count:,} rows cannot be read, the first: {first}"
        )


def _kept(source: Any, mask: NDArray[np.bool_]) -> Any:
    """Return the rows of a source that are True in `mask`, as the kind that it is."""
    source = _carried_out(source)
    if isinstance(source, Mapping):
        if source and all(map(is_table, source.values())):
            return type(source)(zip(source, _kept([*source.values()], mask), strict=True))  # type: ignore[call-arg]
        return {name: _kept(column, mask) for name, column in source.items()}
    if hasattr(source, "iloc") or isinstance(source, np.ndarray):
        return source[mask]
    if hasattr(source, "cast_column"):  # a dataset of Hugging Face
        if hasattr(source, "select"):
            return source.select(np.flatnonzero(mask))
        return source.filter(_is_kept, with_indices=True, fn_kwargs={"mask": mask})
    if hasattr(source, "filter"):
        if hasattr(source, "to_pylist"):
            import pyarrow as pa  # noqa: PLC0415 - an extra

            return source.filter(pa.array(mask))
        return source.filter(mask)
    kept: list[Any] = []
    first = 0
    for row in source:
        if not isinstance(row, Mapping) and is_table(row):
            table = _carried_out(row)
            count = len(table) if hasattr(table, "__len__") else sum(1 for _ in table)
            kept.append(_kept(table, mask[first : first + count]))
            first += count
        else:
            kept += [row] * int(mask[first])
            first += 1
    return kept


def _is_kept(_: object, number: int, mask: NDArray[np.bool_]) -> bool:
    """Return whether row `number` of a stream of rows is kept."""
    return bool(mask[number])


def _carried_out(source: Any) -> Any:
    """Return a lazy frame of polars or a dataset of Arrow as a table, all else as it is."""
    if hasattr(source, "collect") and hasattr(source, "lazy"):
        return source.collect()
    return source.to_table() if hasattr(source, "scanner") else source


def _tables(source: Any) -> Iterator[tuple[Any, str]]:
    """Yield (table or batch of Arrow, what it is called)."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    from stream_dedup.files.columns import batches_of, files_of_prints  # noqa: PLC0415 - which needs pyarrow

    if isinstance(source, str | os.PathLike):
        for file in files_of_prints([os.fspath(source)]):
            for batch in batches_of(file):
                yield batch, file.name
    elif hasattr(source, "__arrow_c_stream__"):
        for batch in pa.RecordBatchReader.from_stream(source):
            yield batch, "The table"
    elif is_table(source) and hasattr(source, "to_dict"):
        try:
            yield pa.Table.from_pandas(source), "The table"
        except pa.ArrowException as error:
            raise InputError(f"The table holds no prints: {error}") from error
    elif is_table(source) and hasattr(source, "to_pylist"):
        yield source, "The table"
    else:
        needed = "Prints in a table are needed"
        if isinstance(source, Mapping):
            raise InputError(f"{needed}, and {given(source)}.")
        for one in rows_in(source, needed):
            yield from _tables(one)
