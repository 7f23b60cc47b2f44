"""Columns of documents and of stored entries, with the same types in tables, storage and rules.

Hashes and prints are uint64 and places int64 everywhere, because numba converts an expression of
signed and unsigned numbers to floats.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.index.storage.tags import digest_tags, position_tags

ORIGIN_BYTES: Final = 20
REMOVED: Final = 0
SHORT: Final = 1
FULL: Final = 2


class Columns(NamedTuple):
    """Documents to be judged.

    Shapes: `prints` (n, W), `digests` (n, 2), `sketches` (n, S), the others (n,). `ids` are CRC-32s
    of the ids, 0 for none (`tags.crcs_of`). A row of `sketches` is a sketch, followed by the
    document's site, title and id (`with_origins`); S is 0 if the recipe makes no sketches.
    """

    prints: NDArray[np.uint64]
    scopes: NDArray[np.uint64]
    digests: NDArray[np.uint64]
    sources: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    value_digests: NDArray[np.uint64]
    features: NDArray[np.uint32]
    sketches: NDArray[np.uint8]
    ids: NDArray[np.uint32]


_DTYPES: Final = (
    np.uint64,
    np.uint64,
    np.uint64,
    np.uint32,
    np.int64,
    np.uint64,
    np.uint32,
    np.uint8,
    np.uint32,
)


def with_origins(
    sketches: NDArray[np.uint8],
    sites: NDArray[np.uint64],
    titles: NDArray[np.uint64],
    ids: NDArray[np.uint32],
) -> NDArray[np.uint8]:
    """Return sketches (n, S) with `ORIGIN_BYTES` appended to each: site, title and CRC-32 of the
    id.

    If S is 0, nothing is appended.
    """
    count, size = sketches.shape
    if not size:
        return sketches
    rows = np.empty((count, size + ORIGIN_BYTES), np.uint8)
    rows[:, :size] = sketches
    for begin, column in ((size, sites), (size + 8, titles), (size + 16, ids)):
        column_bytes = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
        rows[:, begin : begin + column.itemsize] = column_bytes.view(np.uint8).reshape(
            count, column.itemsize
        )
    return rows


def make_columns(limbs: int, count: int, sketch_bytes: int = 0) -> Columns:
    """Return zeros for `count` documents with prints of `limbs` limbs and sketches of `sketch_bytes`
    bytes.
    """
    row_shapes: Any = ((limbs,), (), (2,), (), (), (), (), (sketch_bytes,), ())
    return Columns(
        *(
            np.zeros((count, *row_shape), dtype)
            for row_shape, dtype in zip(row_shapes, _DTYPES, strict=True)
        )
    )


def copy_columns(columns: Columns) -> Columns:
    """Return aligned, writable copies of columns.

    Decoded columns are unaligned, read-only parts of a record, which numba treats as another type.
    """
    return Columns(
        *(np.array(column, dtype) for column, dtype in zip(columns, _DTYPES, strict=True))
    )


def select_rows(columns: Columns, rows: slice | NDArray[np.int64]) -> Columns:
    """Return some rows of columns: views for a slice, copies for row numbers."""
    selected: list[Any] = [column[rows] for column in columns]
    return Columns(*selected)


class StoredRows(NamedTuple):
    """The columns of live entries from which the tables in memory are built, by ascending `numbers`.

    Shapes: `prints` (n, W), `sketches` (n, S), the others (n,). For the tags see `tags`; `ids` are as
    in `Columns`.
    """

    numbers: NDArray[np.int64]
    prints: NDArray[np.uint64]
    scopes: NDArray[np.uint64]
    features: NDArray[np.uint32]
    states: NDArray[np.uint8]
    sketches: NDArray[np.uint8]
    digest_tags: NDArray[np.uint32]
    position_tags: NDArray[np.uint32]
    ids: NDArray[np.uint32]


def stored_rows(
    numbers: NDArray[np.int64], columns: Columns, states: NDArray[np.uint8]
) -> StoredRows:
    """Return entries of these numbers and states, (n,) each, with their tags."""
    return StoredRows(
        numbers=numbers,
        prints=columns.prints,
        scopes=columns.scopes,
        features=columns.features,
        states=states,
        sketches=columns.sketches,
        digest_tags=digest_tags(columns.digests, columns.scopes),
        position_tags=position_tags(columns.sources, columns.offsets, columns.value_digests),
        ids=columns.ids,
    )


def same_digest(columns: Columns, others: Columns) -> NDArray[np.bool_]:
    """Return which rows have the same text in the same scope."""
    is_same: NDArray[np.bool_] = np.logical_and(
        (columns.digests == others.digests).all(axis=1), columns.scopes == others.scopes
    )
    return is_same


def same_position(columns: Columns, others: Columns) -> NDArray[np.bool_]:
    """Return which rows have the same source position and value digest."""
    is_same: NDArray[np.bool_] = np.logical_and(
        columns.sources == others.sources, columns.offsets == others.offsets
    )
    is_same &= columns.value_digests == others.value_digests
    return is_same
