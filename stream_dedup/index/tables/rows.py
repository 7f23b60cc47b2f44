"""Columns of documents and of entries: the input and output of the index's compiled functions.

Rows are in log order. Hashes and prints are uint64 throughout and places int64, because numba turns
a mixture of signed and unsigned numbers into floats.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

NONE: Final = np.int64(0xFFFFFFFF)  # no row: larger than every row number
OUTCOME_NEW: Final = 0
OUTCOME_SHORT: Final = 1
OUTCOME_DIGEST: Final = 2
OUTCOME_NEAR: Final = 3
ORIGIN_BYTES: Final = 20
REMOVED: Final = 0
SHORT: Final = 1
FULL: Final = 2


class Columns(NamedTuple):
    """Documents to be judged.

    Shapes: `prints` (n, W), `digests` (n, 2), `sketches` (n, S), where S may be 0, the others (n,).
    `ids` are CRC-32s of the ids, 0 for none (`tags.crcs_of`). A row of `sketches` is a sketch,
    followed, if S is not 0, by the document's site, title and id (`with_origins`).
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

    If S is 0, `sketches` is returned.
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
    """Return zeros for `count` documents with prints of `limbs` limbs and sketches of `values`
    values.
    """
    tails: Any = ((limbs,), (), (2,), (), (), (), (), (sketch_bytes,), ())
    return Columns(
        *(np.zeros((count, *tail), dtype) for tail, dtype in zip(tails, _DTYPES, strict=True))
    )


def copy_columns(columns: Columns) -> Columns:
    """Return aligned, writable copies of columns.

    Decoded columns are unaligned and read-only parts of a record, which numba sees as another type.
    """
    return Columns(
        *(np.array(column, dtype) for column, dtype in zip(columns, _DTYPES, strict=True))
    )


def select_rows(columns: Columns, rows: slice | NDArray[np.int64]) -> Columns:
    """Return some rows of columns: views for a slice, copies for row numbers."""
    selected: list[Any] = [column[rows] for column in columns]
    return Columns(*selected)


class RowBuffer(NamedTuple):
    """One row, copied from memory or read from files, for comparisons with documents.

    Shapes: `prints` (1, W), `features` (1,), `sketches` (1, S); `rows` (3,) int64, the row of which
    each of these three is, -1 for none; `number` (1,) uint32, a row number that was read from a
    file; `failed` (1,) int64, not 0 once a file could not be read.
    """

    prints: NDArray[np.uint64]
    features: NDArray[np.uint32]
    sketches: NDArray[np.uint8]
    rows: NDArray[np.int64]
    number: NDArray[np.uint32]
    failed: NDArray[np.int64]


def make_row_buffer(limbs: int = 0, sketch_bytes: int = 0) -> RowBuffer:
    """Return a buffer that contains no row yet."""
    return RowBuffer(
        prints=np.zeros((1, limbs), np.uint64),
        features=np.zeros(1, np.uint32),
        sketches=np.zeros((1, sketch_bytes), np.uint8),
        rows=np.full(3, -1, np.int64),
        number=np.zeros(1, np.uint32),
        failed=np.zeros(1, np.int64),
    )


class LoadedRows(NamedTuple):
    """The columns of all entries, by row.

    Shapes: `prints` (C, W), `sketches` (C, S), the others (C,); `scopes` (0,) while all are 0.
    `states` are REMOVED, SHORT or FULL; `numbers` are entry numbers, counted from the first row's
    at the time when the rows were laid out. `prints`, `features` and `sketches` have no rows if
    they are in files; `files` (3,) int64 are the numbers of these files, or -1, and `buffer`
    contains the row that a search compares.
    """

    prints: NDArray[np.uint64]
    scopes: NDArray[np.uint64]
    features: NDArray[np.uint32]
    numbers: NDArray[np.uint32]
    states: NDArray[np.uint8]
    sketches: NDArray[np.uint8]
    files: NDArray[np.int64]
    buffer: RowBuffer


class StoredRows(NamedTuple):
    """Live entries as a volume stores them for opening: their `numbers`, ascending, and their
    columns.

    Shapes: `prints` (n, W), `sketches` (n, S), the others (n,); the tags are those of `tags`.
    """

    numbers: NDArray[np.int64]
    prints: NDArray[np.uint64]
    scopes: NDArray[np.uint64]
    features: NDArray[np.uint32]
    states: NDArray[np.uint8]
    sketches: NDArray[np.uint8]
    digest_tags: NDArray[np.uint32]
    position_tags: NDArray[np.uint32]
    id_tags: NDArray[np.uint32]


class EarlierResults(NamedTuple):
    """Results for the documents of a batch from the entries before it.

    `features_min`: documents with fewer features have no neighbours. `next_row`: the row of the
    batch's first new entry. `same_row` (n,) int64: the row with the document's digest, or -1.
    `best` (n,) int64: the earliest row within reach, or NONE, and `best_distance` (n,) int64 its
    distance. `sibling` (n,) int64: the earliest row that only site or title keeps from being near,
    or NONE. `is_alone` (n,) bool: no row but the best matched by its tags. `tags` (n,) uint32: of
    the digests.
    """

    features_min: int
    next_row: int
    same_row: NDArray[np.int64]
    best: NDArray[np.int64]
    best_distance: NDArray[np.int64]
    sibling: NDArray[np.int64]
    is_alone: NDArray[np.bool_]
    tags: NDArray[np.uint32]


class Chains(NamedTuple):
    """Hash chains over the new entries of a batch.

    All values are -1 at first, except `links` and `backs`, which are set for each entry. By digest:
    `seen` (S,) int64, S a power of two above 2n. By the keys of T tables: `heads`, `tails` (T, S)
    int32, `links` (n, T) int32 to the next entry, `backs` (n, T) int32 to the entry before.
    """

    seen: NDArray[np.int64]
    heads: NDArray[np.int32]
    tails: NDArray[np.int32]
    links: NDArray[np.int32]
    backs: NDArray[np.int32]


def make_chains(count: int, tables: int) -> Chains:
    """Return empty chains for a batch of `count` documents, by the keys of `tables` tables."""
    seen = np.full(2 << count.bit_length(), -1, np.int64)
    heads, tails = np.full((2, tables, len(seen)), -1, np.int32)
    return Chains(seen, heads, tails, *np.empty((2, count, tables), np.int32))


class NewEntries(NamedTuple):
    """New entries of a batch: the row of the first, their chains, and their documents `new_docs`."""

    next_row: int
    chains: Chains
    new_docs: NDArray[np.int64]


class JudgedRows(NamedTuple):
    """Verdicts on the documents of a batch.

    `outcome` (n,) uint8, `row` (n,) int64, `distance` (n,) uint8 in bits, `similarity` (n,) uint8
    in per cent of the sketches of a document and of the row that it is near, or of its sibling,
    else `NOT_COMPARED`; `sibling` (n,) int64, the row of a new document's sibling, or -1; `new_docs`
    (n,) int64, the documents that became entries: as many values as there are, the others are not
    set.
    """

    outcome: NDArray[np.uint8]
    row: NDArray[np.int64]
    distance: NDArray[np.uint8]
    similarity: NDArray[np.uint8]
    sibling: NDArray[np.int64]
    new_docs: NDArray[np.int64]


def make_judged_rows(count: int) -> JudgedRows:
    """Return uninitialised arrays for the verdicts on `count` documents."""
    outcome, distance, similarity = np.empty((3, count), np.uint8)
    row, sibling, new_docs = np.empty((3, count), np.int64)
    return JudgedRows(outcome, row, distance, similarity, sibling, new_docs)


class JudgedEntries(NamedTuple):
    """Verdicts on the documents of a batch, as in `JudgedRows`.

    `entry` (n,) int64 is the entry of each row, `sibling` (n,) int64 that of each sibling, or -1.
    """

    outcome: NDArray[np.uint8]
    entry: NDArray[np.int64]
    distance: NDArray[np.uint8]
    similarity: NDArray[np.uint8]
    sibling: NDArray[np.int64]


class NearRows(NamedTuple):
    """Rows near a document, (n,) each, and their distances in bits.

    `sibling` (1,): the first row that only site or title keeps from being near, or NONE.
    """

    rows: NDArray[np.int64]
    distances: NDArray[np.int64]
    sibling: NDArray[np.int64]


def make_near_rows(count: int) -> NearRows:
    """Return uninitialised arrays for `count` rows."""
    rows, distances = np.empty((2, count), np.int64)
    return NearRows(rows, distances, np.empty(1, np.int64))


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
