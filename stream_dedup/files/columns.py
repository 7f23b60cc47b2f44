"""Store fingerprints as the columns of a table. Many processes can run `prints`, in any order; one
process runs `judge`, which reads the tables in order.

The columns:

    id         the id of the document
    recipe     id of the recipe; prints of different recipes are never judged together
    print      the fingerprint (128 bits, or the recipe's width), as limbs of 8 bytes, lowest first,
               little-endian
    features   number of distinct features
    digest     digest of the normalised text, 16 bytes
    sketch     120 bytes, or none
    is_empty   whether the normalised text is empty
    length     length of the text in characters
    time_ms    time of the document for `judge --keep newest`; 0 if unknown
    scope      only documents of the same scope are compared; optional
    site       keyed hash of the web site as a signed number, 0 if unknown; optional
    title      keyed hash of the title as a signed number, 0 if unknown; optional
    location   file and line or row of the document; optional
    problem    null, or why the row cannot be judged: stage, class, message and number of lost
               documents; optional

Invariant: a row depends only on its document and the recipe, so every process writes the same row.
Callers call `require_pyarrow` before they import this module.
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
from stream_dedup.files.offline import FingerprintedBatch
from stream_dedup.files.parts import Pending, replace_file
from stream_dedup.fingerprinting import Prints, Recipe
from stream_dedup.inputs.columnar import columns_of, read_rows
from stream_dedup.inputs.remote_files import is_address
from stream_dedup.inputs.sources import SourceFile, find_files, once, shorten_names

PRINTS = ".parquet"
_MADE_OF = b"stream_dedup.made_of"
_SOURCE = b"stream_dedup.source"
_JUDGED_BY = b"stream_dedup.judged_by"
_GROUP_BATCHES = 20
_REQUIRED_COLUMNS = (
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
    """Rows of a table of prints: for each row its id and (location, dead letter or None), and a
    `batch` with the rows that can be judged.
    """

    ids: Sequence[Any]
    outcomes: Sequence[tuple[str, DeadLetter | None]]
    batch: FingerprintedBatch

    def with_empty_rows(self, recipe: Recipe) -> FingerprintedBatch:
        """Return a batch of all rows; rows that cannot be judged are empty documents."""
        padded = FingerprintedBatch.empty(recipe, len(self.outcomes))
        judged = [row for row, (_, letter) in enumerate(self.outcomes) if letter is None]
        ids = list(padded.ids)
        for row, identifier in zip(judged, self.batch.ids, strict=True):
            ids[row] = identifier
        for name in Prints.__slots__:
            getattr(padded.prints, name)[judged] = getattr(self.batch.prints, name)
        columns: Any = zip(padded[2:], self.batch[2:], strict=True)
        for column, values in columns:
            column[judged] = values
        return padded._replace(ids=ids)


def to_table(
    recipe: Recipe,
    batch: FingerprintedBatch,
    ids: Sequence[Any],
    outcomes: Sequence[tuple[str, DeadLetter | None]] | None = None,
) -> Any:
    """Return a `pyarrow.Table` of a batch with these ids. With `outcomes` it also has the rows that
    cannot be judged.
    """
    # Ids of mixed types become texts, so that tables can be concatenated.
    if {type(id_) for id_ in ids} not in ({int}, {bytes}):
        ids = [
            id_.decode("utf-8", "replace") if isinstance(id_, bytes) else str(id_) for id_ in ids
        ]
    prints = batch.prints
    columns: list[tuple[str, Any, Sequence[Any]]] = [
        (
            "id",
            pa.binary()
            if outcomes is not None
            else pa.array(ids, None if ids else pa.string()).type,
            ids,
        ),
        ("recipe", pa.string(), [recipe.id] * len(ids)),
        ("print", pa.binary(), [row.tobytes() for row in prints.prints.astype("<u8")]),
        ("features", pa.uint32(), prints.features.tolist()),
        ("digest", pa.binary(), [row.tobytes() for row in prints.digests]),
        ("sketch", pa.binary(), [row.tobytes() for row in prints.sketches]),
        ("is_empty", pa.bool_(), prints.empty.tolist()),
        ("length", pa.uint32(), batch.lengths.tolist()),
        ("time_ms", pa.int64(), batch.times.tolist()),
        ("scope", pa.uint64(), batch.scopes.tolist()),
        ("site", pa.int64(), batch.sites.view(np.int64).tolist()),
        ("title", pa.int64(), batch.titles.view(np.int64).tolist()),
    ]
    if outcomes is not None:
        columns = _add_outcomes(columns, outcomes)
    return pa.table(
        [pa.array(values, kind) for _, kind, values in columns],
        pa.schema([column[:2] for column in columns]),
    )


def _add_outcomes(
    columns: Sequence[tuple[str, Any, Sequence[Any]]],
    outcomes: Sequence[tuple[str, DeadLetter | None]],
) -> list[tuple[str, Any, Sequence[Any]]]:
    """Return the columns with a row for each outcome, null for a row with a problem, and the columns
    `location` and `problem`.
    """
    rows = list(itertools.accumulate((letter is None for _, letter in outcomes), initial=0))
    fields = ("stage", "error_class", "message", "count")
    letters = [
        None if letter is None else {name: getattr(letter, name) for name in fields}
        for _, letter in outcomes
    ]
    problem = pa.struct([(name, pa.int64() if name == "count" else pa.string()) for name in fields])
    spread = [
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
    return [
        *spread,
        ("location", pa.string(), [location for location, _ in outcomes]),
        ("problem", problem, letters),
    ]


def read_printed_rows(table: Any, recipe: Recipe, table_name: str) -> Iterator[PrintedRows]:
    """Yield the rows of a `pyarrow.RecordBatch` or `Table` of prints, up to `BATCH_DOCUMENTS` at a
    time.

    Raises:
        InputError: the table contains no prints, or damaged ones; the message starts with `table_name`.
        ConfigurationError: the prints have another recipe.
    """
    _require_prints(table.schema.names, table_name)
    for start in range(0, table.num_rows, offline.BATCH_DOCUMENTS):
        part = {
            name: table.column(name)[start : start + offline.BATCH_DOCUMENTS].to_pylist()
            for name in table.schema.names
        }
        count = len(part["id"])
        problems = part.get("problem", [None] * count)
        rows = [row for row, problem in enumerate(problems) if problem is None]
        for recipe_id in {str(part["recipe"][row]) for row in rows}:
            if recipe_id != recipe.id:
                raise ConfigurationError(
                    f"{table_name} contains prints of the recipe {recipe_id}, but the settings have "
                    f"{recipe.id}; judge prints with the recipe and key that computed them."
                )
        try:
            letters = [None if problem is None else DeadLetter(**problem) for problem in problems]
            prints = Prints(
                np.frombuffer(_join_rows(part["print"], rows), "<u8")
                .astype(np.uint64)
                .reshape(len(rows), recipe.limbs),
                np.frombuffer(_join_rows(part["sketch"], rows), np.uint8).reshape(
                    len(rows), recipe.sketch_bytes
                ),
                np.array([part["features"][row] for row in rows], np.uint32).reshape(len(rows)),
                np.frombuffer(_join_rows(part["digest"], rows), np.uint8).reshape(
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
                f"{table_name} contains damaged prints ({error}); make them again."
            ) from error
        ids = [_stored_id(part["id"][row]) for row in rows]
        locations = part.get("location") or [f"{table_name}:{start + row}" for row in range(count)]
        yield PrintedRows(
            _ids_for_callers(part),
            list(zip(locations, letters, strict=True)),
            FingerprintedBatch(
                ids, prints, scopes, sites, titles, lengths, times, ranks=np.zeros(len(ids))
            ),
        )


def _require_prints(names: Sequence[str], table_name: str) -> None:
    if missing := [name for name in _REQUIRED_COLUMNS if name not in names]:
        raise InputError(
            f"{table_name} contains no prints: it has no column {missing[0]!r}. Make prints with: "
            "stream-dedup prints"
        )


def find_prints(targets: Sequence[str], unread_names: list[str] | None = None) -> list[SourceFile]:
    """Return the files of prints, in the order in which `check` reads their sources.

    Append to `unread_names` the names of the files that contain no prints.

    Raises:
        InputError: there are no files of prints, or a table contains something else.
    """
    names: list[str] = []
    files = once(file for target in targets for file in find_files(target, "auto", names))
    tables = [file for file in files if file.form == "columns"]
    if targets and not tables:
        raise InputError(
            f"{shorten_names(targets)} contains no prints. Make prints with: stream-dedup prints DATA --to "
            "FOLDER"
        )
    for file in tables:
        if file.path is not None and file.remote is None:
            try:
                columns = columns_of(file.path)
            except (InputError, OSError):
                continue  # reported when the file is read
            _require_prints(columns, file.name)
    if unread_names is not None:
        names = sorted([*names, *(file.name for file in files if file.form != "columns")])
        unread_names += [name if name.endswith(")") else f"{name} (no prints)" for name in names]
    return sorted(tables, key=lambda file: Path(file.name.removesuffix(PRINTS)))


def batches_of(file: SourceFile) -> Iterator[Any]:
    """Yield the rows of a file of prints as `pyarrow.RecordBatch`.

    Raises:
        InputError: a part of the file is damaged. It cannot be skipped, because verdicts depend on
        all earlier documents.
    """
    with file.local_copy() as local:
        for rows in () if local.path is None else read_rows(local.path):
            if rows.lost:
                raise InputError(f"{rows.lost} Make the prints again.")
            yield rows.batch


def write_prints(
    path: Path,
    batches: Iterable[FingerprintedBatch],
    pending: Pending,
    recipe: Recipe,
    source_identity: str,
    source: str,
) -> int:
    """Write a file of prints atomically; return the number of its documents that can be judged.

    `pending`: when `batches` yields a batch, this contains the outcomes of its rows.
    `source_identity`, `source`: see `is_up_to_date`.
    """
    no_documents = FingerprintedBatch.empty(recipe)
    count = 0

    def tables() -> Iterator[Any]:
        nonlocal count
        for batch in itertools.chain(batches, [no_documents]):
            outcomes = list(pending)
            pending.clear()
            count += len(batch.ids)
            yield to_table(recipe, batch, batch.ids, outcomes)

    def write(temporary: Path) -> None:
        schema = to_table(recipe, no_documents, [], []).schema.with_metadata(
            {_MADE_OF: source_identity, _SOURCE: os.fsencode(source)}
        )
        remaining = tables()
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            while group := list(itertools.islice(remaining, _GROUP_BATCHES)):
                writer.write_table(pa.concat_tables(group).replace_schema_metadata(schema.metadata))

    replace_file(path, write)
    return count


def is_up_to_date(path: Path, source_identity: str, source: str) -> bool:
    """Return whether the file at `path` contains the prints of the current source.

    `source_identity`: identifies the source, the recipe and the settings; `source`: the absolute path
    or the URL of the source.

    Raises:
        InputError: `path` is not a file of prints, or contains those of another existing source.
    """
    schema = _existing_schema(path, "print", "prints")
    metadata = {} if schema is None else schema.metadata or {}
    other = os.fsdecode(metadata.get(_SOURCE, os.fsencode(source)))
    if other != source and (is_address(other) or Path(other).exists()):
        raise InputError(
            f"{path} contains the prints of {other}, and {source} has the same name; name another "
            "folder with --to, or run prints once, over a folder that contains both."
        )
    return (
        schema is not None
        and set(_REQUIRED_COLUMNS) <= set(schema.names)
        and metadata.get(_MADE_OF) == source_identity.encode()
    )


def _existing_schema(path: Path, column: str, content: str) -> Any:
    """Return the schema of the file at `path`; None without a file.

    Raises:
        InputError: `path` is not a Parquet file with this column.
    """
    if not os.path.lexists(path):
        return None
    try:
        schema = pq.read_schema(path) if path.is_file() else pa.schema([])
    except (pa.ArrowException, OSError):
        schema = pa.schema([])
    if column not in schema.names:
        raise InputError(
            f"{path} exists and is not a file of {content}; name another folder with --to."
        )
    return schema


def write_verdicts(path: Path, rows: Iterator[Mapping[str, object]], judged_by: str) -> None:
    """Write verdicts as a Parquet file atomically, some thousands of rows at a time. `judged_by`:
    identifies the plan and `--keep`.

    Raises:
        InputError: `path` is another file, or contains verdicts by another plan or `--keep`, or the
        file cannot be written.
    """
    existing = _existing_schema(path, "verdict", "verdicts")
    if (
        existing is not None
        and (existing.metadata or {}).get(_JUDGED_BY, judged_by.encode()) != judged_by.encode()
    ):
        raise InputError(
            f"{path} contains verdicts by another plan, similarity or --keep; name another folder with "
            "--to, or remove it."
        )
    sibling = pa.struct({"id": pa.string(), "number": pa.int64(), "similarity": pa.float64()})
    kinds = {"distance": pa.int32(), "similarity": pa.float64(), "duplicate_of_number": pa.int64()}
    kinds["sibling"] = sibling
    names = (
        "location",
        "id",
        "verdict",
        "reason",
        "duplicate_of",
        "duplicate_of_number",
        "distance",
        "similarity",
        "sibling",
        "fingerprint",
        "message",
    )
    schema = pa.schema(
        [(name, kinds.get(name, pa.string())) for name in names], {_JUDGED_BY: judged_by}
    )

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, schema) as writer:
            while group := list(itertools.islice(rows, _GROUP_BATCHES * offline.BATCH_DOCUMENTS)):
                writer.write_table(pa.Table.from_pylist(group, schema=schema))

    replace_file(path, write)


def _ids_for_callers(part: Mapping[str, Sequence[Any]]) -> Sequence[Any]:
    """Return the ids of rows as callers expect them. Ids in a file of the command `prints`, which are
    bytes because a shortened id can end inside a character, become texts.
    """
    if "location" not in part:
        return part["id"]
    return [id_.decode("utf-8", "replace") if isinstance(id_, bytes) else id_ for id_ in part["id"]]


def _stored_id(identifier: object) -> bytes:
    return shorten_id(
        identifier
        if isinstance(identifier, bytes)
        else str(identifier).encode("utf-8", "surrogatepass")
    )


def _join_rows(values: Sequence[bytes], rows: Sequence[int]) -> bytes:
    return b"".join(values[row] for row in rows)


def _numbers(part: Mapping[str, Sequence[Any]], name: str, rows: Sequence[int]) -> list[int]:
    """Return the values of a column in these rows; zeros if the column is missing."""
    return [part[name][row] for row in rows] if name in part else [0] * len(rows)
