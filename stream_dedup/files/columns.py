"""Prints as the columns of a table: what `prints` makes anywhere, in any order, and `judge` takes
in one process, in order.

    id         as it was given
    recipe     the recipe's id; prints of two recipes are never judged together
    print      of 128 bits, or as many as the recipe makes: limbs of 8 bytes, little-endian, the low one first
    features   how many distinct ones
    digest     of the normalised text, 16 bytes
    sketch     120 bytes, or none
    is_empty   whether normalising left nothing
    length     characters of the text
    time_ms    time of the document, by which `judge --keep newest` goes; 0 for none
    scope      only documents of the same one are compared; may be missing
    site       keyed hash of the web site as a signed number, 0 for none; may be missing
    title      the same of the title
    where      the place of the document; may be missing
    problem    null, or why it cannot be judged: stage, class and sentence; may be missing

Invariant: a row is a function of its document and the recipe, so it is the same wherever it is
made. Who loads this module has asked `need_pyarrow` before.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stream_dedup.domain.document import DIGEST_BYTES, DeadLetter, shorten_id
from stream_dedup.domain.errors import ConfigurationError, InputError
from stream_dedup.files import offline
from stream_dedup.files.offline import PrintedBatch
from stream_dedup.files.parts import Pending, replace_file
from stream_dedup.fingerprinting import Prints, Recipe
from stream_dedup.inputs.columnar import columns_of, read_rows
from stream_dedup.inputs.sources import SourceFile, find_files, first_of

PRINTS = ".parquet"
_MADE_OF = b"stream_dedup.made_of"
_BATCHES_OF_GROUP = 20
_NEEDED = (
    "id",
    "recipe",
    "print",
    "features",
    "digest",
    "sketch",
    "is_empty",
    "length",
    "time_ms",
)


class PrintedRows(NamedTuple):
    """Some rows of such a table: for each its id and (place, None or why it cannot be judged); the
    others are the batch.
    """

    ids: Sequence[Any]
    outcomes: Sequence[tuple[str, DeadLetter | None]]
    batch: PrintedBatch

    def whole(self, recipe: Recipe) -> PrintedBatch:
        """Return a batch of all rows, in which those that cannot be judged are empty."""
        whole = PrintedBatch.empty(recipe, len(self.outcomes))
        judged = [row for row, (_, letter) in enumerate(self.outcomes) if letter is None]
        ids = list(whole.ids)
        for row, identifier in zip(judged, self.batch.ids, strict=True):
            ids[row] = identifier
        for name in Prints.__slots__:
            getattr(whole.prints, name)[judged] = getattr(self.batch.prints, name)
        columns: Any = zip(whole[2:], self.batch[2:], strict=True)
        for column, values in columns:
            column[judged] = values
        return whole._replace(ids=ids)


def table_of(
    recipe: Recipe,
    batch: PrintedBatch,
    ids: Sequence[Any],
    outcomes: Sequence[tuple[str, DeadLetter | None]] | None = None,
) -> Any:
    """Return a `pyarrow.Table` of a batch with these ids; with `outcomes` of rows that cannot be
    judged, too.
    """
    if {type(one) for one in ids} not in (
        {int},
        {bytes},
    ):  # else columns of two kinds could not be put together
        ids = [
            one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in ids
        ]
    made = batch.prints
    columns: list[tuple[str, Any, Sequence[Any]]] = [
        (
            "id",
            pa.binary()
            if outcomes is not None
            else pa.array(ids, None if ids else pa.string()).type,
            ids,
        ),
        ("recipe", pa.string(), [recipe.id] * len(ids)),
        ("print", pa.binary(), [row.tobytes() for row in made.prints.astype("<u8")]),
        ("features", pa.uint32(), made.features.tolist()),
        ("digest", pa.binary(), [row.tobytes() for row in made.digests]),
        ("sketch", pa.binary(), [row.tobytes() for row in made.sketches]),
        ("is_empty", pa.bool_(), made.empty.tolist()),
        ("length", pa.uint32(), batch.lengths.tolist()),
        ("time_ms", pa.int64(), batch.times.tolist()),
        ("scope", pa.uint64(), batch.scopes.tolist()),
        ("site", pa.int64(), batch.sites.view(np.int64).tolist()),
        ("title", pa.int64(), batch.titles.view(np.int64).tolist()),
    ]
    if outcomes is not None:
        rows = list(itertools.accumulate((letter is None for _, letter in outcomes), initial=0))
        told = ("stage", "error_class", "message")
        letters = [
            None if letter is None else {name: getattr(letter, name) for name in told}
            for _, letter in outcomes
        ]
        problem = pa.struct([(name, pa.string()) for name in told])
        columns = [
            (
                name,
                kind,
                [
                    values[row] if letter is None else None
                    for row, letter in zip(rows, letters, strict=False)
                ],
            )
            for name, kind, values in columns
        ]
        columns += [
            ("where", pa.string(), [where for where, _ in outcomes]),
            ("problem", problem, letters),
        ]
    return pa.table(
        [pa.array(values, kind) for _, kind, values in columns],
        pa.schema([column[:2] for column in columns]),
    )


def rows_of(table: Any, recipe: Recipe, what: str) -> Iterator[PrintedRows]:
    """Yield the rows of a `pyarrow.RecordBatch` or `Table` of prints, as many at once as a batch
    holds.

    Raises:
        InputError: it holds no prints; the sentence begins with `what`.
        ConfigurationError: they are of another recipe.
    """
    _need_prints(table.schema.names, what)
    for start in range(0, table.num_rows, offline.BATCH_DOCUMENTS):
        part = {
            name: table.column(name)[start : start + offline.BATCH_DOCUMENTS].to_pylist()
            for name in table.schema.names
        }
        count = len(part["id"])
        problems = part.get("problem", [None] * count)
        rows = [row for row, problem in enumerate(problems) if problem is None]
        for made_by in {str(part["recipe"][row]) for row in rows}:
            if made_by != recipe.id:
                raise ConfigurationError(
                    f"{what} holds prints of the recipe {made_by}, and {recipe.id} was asked for; "
                    "judge them with the recipe "
                    "and the key that made them."
                )
        try:
            letters = [None if problem is None else DeadLetter(**problem) for problem in problems]
            prints = Prints(
                np.frombuffer(_joined(part["print"], rows), "<u8")
                .astype(np.uint64)
                .reshape(len(rows), recipe.limbs),
                np.frombuffer(_joined(part["sketch"], rows), np.uint8).reshape(
                    len(rows), recipe.sketch_bytes
                ),
                np.array([part["features"][row] for row in rows], np.uint32).reshape(len(rows)),
                np.frombuffer(_joined(part["digest"], rows), np.uint8).reshape(
                    len(rows), DIGEST_BYTES
                ),
                np.array([part["is_empty"][row] for row in rows], np.bool_).reshape(len(rows)),
            )
            scopes = np.array(_numbers(part, "scope", rows), np.uint64)
            sites, titles = (
                np.array(_numbers(part, name, rows), np.int64).view(np.uint64)
                for name in ("site", "title")
            )
            lengths = np.array([part["length"][row] for row in rows], np.uint32)
            times = np.array([part["time_ms"][row] for row in rows], np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"{what} holds prints that are damaged ({error}); make them anew."
            ) from error
        ids = [_stored(part["id"][row]) for row in rows]
        places = part.get("where") or [f"{what}:{start + row}" for row in range(count)]
        yield PrintedRows(
            part["id"],
            list(zip(places, letters, strict=True)),
            PrintedBatch(
                ids, prints, scopes, sites, titles, lengths, times, ranks=np.zeros(len(ids))
            ),
        )


def _need_prints(names: Sequence[str], what: str) -> None:
    if missing := [name for name in _NEEDED if name not in names]:
        raise InputError(
            f"{what} holds no prints: it has no column {missing[0]!r}. Make them with prints."
        )


def files_of_prints(targets: Sequence[str], others: list[str] | None = None) -> list[SourceFile]:
    """Return files of prints in the order in which `check` reads their documents: of the names of
    these.

    `others` gets the names of files that were found and hold none.

    Raises:
        InputError: there are none, or a table of something else.
    """
    names: list[str] = []
    files = [file for target in targets for file in find_files(target, "auto", names)]
    found = [file for file in files if file.form == "columns"]
    if targets and not found:
        raise InputError(
            f"There are no prints in {first_of(targets)}. Make them: stream-dedup prints DATA --to "
            "FOLDER"
        )
    for file in found:
        if file.path is not None and file.elsewhere is None:
            try:
                columns = columns_of(file.path)
            except (InputError, OSError):
                continue  # told where it is read
            _need_prints(columns, file.name)
    if others is not None:
        names = sorted([*names, *(file.name for file in files if file.form != "columns")])
        others += [name if name.endswith(")") else f"{name} (no prints)" for name in names]
    return sorted(found, key=lambda file: Path(file.name.removesuffix(PRINTS)))


def batches_of(file: SourceFile) -> Iterator[Any]:
    """Yield the rows of a file of prints as `pyarrow.RecordBatch`.

    Raises:
        InputError: a part of it is damaged, which may not be passed over, because the order counts.
    """
    with file.here() as there:
        for rows in () if there.path is None else read_rows(there.path):
            if rows.lost:
                raise InputError(f"{rows.lost} Make the prints anew.")
            yield rows.batch


def write_prints(
    path: Path, batches: Iterable[PrintedBatch], pending: Pending, recipe: Recipe, made_of: str
) -> int:
    """Write a file of prints, whole or not at all; return how many documents it has that can be
    judged.

    `pending` has the outcomes of a batch when that comes, as `rows_of` gives them back. `made_of`:
    see `is_made_of`.
    """
    nothing = PrintedBatch.empty(recipe)
    count = 0

    def tables() -> Iterator[Any]:
        nonlocal count
        for batch in itertools.chain(batches, [nothing]):
            outcomes = list(pending)
            pending.clear()
            count += len(batch.ids)
            yield table_of(recipe, batch, batch.ids, outcomes)

    def write(beside: Path) -> None:
        schema = table_of(recipe, nothing, [], []).schema.with_metadata({_MADE_OF: made_of})
        made = tables()
        with pq.ParquetWriter(beside, schema, compression="zstd") as writer:
            while group := list(itertools.islice(made, _BATCHES_OF_GROUP)):
                writer.write_table(pa.concat_tables(group).replace_schema_metadata(schema.metadata))

    replace_file(path, write)
    return count


def is_made_of(path: Path, made_of: str) -> bool:
    """Return whether there is a file of prints that `write_prints` wrote with the same words.

    Raises:
        InputError: there is something else.
    """
    schema = _schema_there(path, "print", "prints")
    return (
        schema is not None
        and set(_NEEDED) <= set(schema.names)
        and (schema.metadata or {}).get(_MADE_OF) == made_of.encode()
    )


def _schema_there(path: Path, column: str, what: str) -> Any:
    """Return the schema of the file of ours that is there, None if nothing is.

    Raises:
        InputError: something else is there.
    """
    if not os.path.lexists(path):
        return None
    try:
        schema = pq.read_schema(path) if path.is_file() else pa.schema([])
    except (pa.ArrowException, OSError):
        schema = pa.schema([])
    if column not in schema.names:
        raise InputError(
            f"{path} is there already, and is no file of {what}; name another folder with --to."
        )
    return schema


def write_verdicts(path: Path, rows: Iterator[Mapping[str, object]]) -> None:
    """Write verdicts as a Parquet file, whole or not at all, some thousands at a time.

    Raises:
        InputError: there is another file of that name, or it cannot be written.
    """
    _schema_there(path, "verdict", "verdicts")
    sibling = pa.struct({"id": pa.string(), "number": pa.int64(), "similarity": pa.float64()})
    kinds = {"distance": pa.int32(), "similarity": pa.float64(), "of_number": pa.int64()}
    kinds["sibling"] = sibling
    names = (
        "where",
        "id",
        "verdict",
        "reason",
        "of",
        "of_number",
        "distance",
        "similarity",
        "sibling",
        "fingerprint",
        "message",
    )
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in names])

    def write(beside: Path) -> None:
        with pq.ParquetWriter(beside, schema) as writer:
            while group := list(
                itertools.islice(rows, _BATCHES_OF_GROUP * offline.BATCH_DOCUMENTS)
            ):
                writer.write_table(pa.Table.from_pylist(group, schema=schema))

    replace_file(path, write)


def _stored(identifier: object) -> bytes:
    return shorten_id(
        identifier
        if isinstance(identifier, bytes)
        else str(identifier).encode("utf-8", "surrogatepass")
    )


def _joined(values: Sequence[bytes], rows: Sequence[int]) -> bytes:
    return b"".join(values[row] for row in rows)


def _numbers(part: Mapping[str, Sequence[Any]], name: str, rows: Sequence[int]) -> list[int]:
    """Return the values of a column at some rows; 0 for all if it is missing."""
    return [part[name][row] for row in rows] if name in part else [0] * len(rows)
