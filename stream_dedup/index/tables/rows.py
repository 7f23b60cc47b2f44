"""Documents to be judged and entries that are held, as columns: what the compiled code of the index
takes in and gives out.

Rows are in log order. Hashes and prints are uint64 throughout and places int64, because numba turns
a mixture of signed and unsigned numbers into floats.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

NONE: Final = np.int64(0xFFFFFFFF)  # no row: later than every row
OUTCOME_NEW: Final = 0
OUTCOME_SHORT: Final = 1
OUTCOME_DIGEST: Final = 2
OUTCOME_NEAR: Final = 3
ORIGIN_BYTES: Final = 20
REMOVED: Final = 0
SHORT: Final = 1
FULL: Final = 2


class Columns(NamedTuple):
    """Documents to be judged. Shapes: `prints` (n, W), `digests` (n, 2), `sketches` (n, S), S maybe
    0, the rest (n,).

    `ids` are their CRC-32, 0 for none (`tags.crcs_of`). A row of `sketches` is a sketch and, where
    there is one, behind it the document's site, title and id (`with_origins`).
    """

    prints: NDArray[np.uint64]
    scopes: NDArray[np.uint64]
    digests: NDArray[np.uint64]
    sources: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    values: NDArray[np.uint64]
    features: NDArray[np.uint32]
    sketches: NDArray[np.uint8]
    ids: NDArray[np.uint32]


_KINDS: Final = (
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
    """Return sketches (n, S) with `ORIGIN_BYTES` behind each: site, title and CRC-32 of the id; as
    they are where S is 0.
    """
    count, size = sketches.shape
    if not size:
        return sketches
    whole = np.empty((count, size + ORIGIN_BYTES), np.uint8)
    whole[:, :size] = sketches
    for at, column in ((size, sites), (size + 8, titles), (size + 16, ids)):
        little = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
        whole[:, at : at + column.itemsize] = little.view(np.uint8).reshape(count, column.itemsize)
    return whole


def no_columns(limbs: int, count: int, values: int = 0) -> Columns:
    """Return columns for `count` documents with prints of `limbs` limbs and sketches of `values`
    values, all zero.
    """
    tails: Any = ((limbs,), (), (2,), (), (), (), (), (values,), ())
    return Columns(
        *(np.zeros((count, *tail), kind) for tail, kind in zip(tails, _KINDS, strict=True))
    )


def fresh_columns(*columns: NDArray[Any]) -> Columns:
    """Return columns that are copied: what was decoded lies unaligned and read-only in a record,
    another type to numba.
    """
    return Columns(*(np.array(column, kind) for column, kind in zip(columns, _KINDS, strict=True)))


def take_rows(columns: Columns, rows: slice | NDArray[np.int64]) -> Columns:
    """Return some rows of columns: views for a slice, copies for row numbers."""
    taken: list[Any] = [column[rows] for column in columns]
    return Columns(*taken)


class HeldRow(NamedTuple):
    """One held row, taken from memory or from files, by which documents are compared with it.

    Shapes: `prints` (1, W), `features` (1,), `sketches` (1, S); `rows` (3,) int64, of which row
    each of them is, -1 for none; `number` (1,) uint32, a row number on its way out of a file;
    `failed` (1,) int64, not 0 once a file could not be read.
    """

    prints: NDArray[np.uint64]
    features: NDArray[np.uint32]
    sketches: NDArray[np.uint8]
    rows: NDArray[np.int64]
    number: NDArray[np.uint32]
    failed: NDArray[np.int64]


def no_row_taken(limbs: int = 0, values: int = 0) -> HeldRow:
    """Return room for one row, which is none yet."""
    return HeldRow(
        prints=np.zeros((1, limbs), np.uint64),
        features=np.zeros(1, np.uint32),
        sketches=np.zeros((1, values), np.uint8),
        rows=np.full(3, -1, np.int64),
        number=np.zeros(1, np.uint32),
        failed=np.zeros(1, np.int64),
    )


class HeldRows(NamedTuple):
    """What is held of every entry, by row. Shapes: `prints` (C, W), `sketches` (C, S), the rest
    (C,); `scopes` (0,) while all are 0.

    `states` are REMOVED, SHORT or FULL; `numbers` are entry numbers, counted from the first row's
    when they were laid out. `prints`, `features` and `sketches` have no rows where they lie in
    files; `files` (3,) int64 are the numbers of these, or -1, and `taken` is where a search has the
    row that it looks at.
    """

    prints: NDArray[np.uint64]
    scopes: NDArray[np.uint64]
    features: NDArray[np.uint32]
    numbers: NDArray[np.uint32]
    states: NDArray[np.uint8]
    sketches: NDArray[np.uint8]
    files: NDArray[np.int64]
    taken: HeldRow


class StoredRows(NamedTuple):
    """Live entries as a volume keeps them for opening: `numbers` of theirs, ascending, and of each
    what is held and found by.

    Shapes: `prints` (n, W), `sketches` (n, S), the rest (n,); the tags are those of `tags`.
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


class Known(NamedTuple):
    """What is known of the documents of a batch from the entries before it.

    `floor` of features; `next_row`, which the first gets that becomes an entry; `same` (n,) int64,
    the row with its digest or -1; `best` (n,) int64, the earliest row within reach or NONE, and its
    `best_distance` (n,) int64; `sibling` (n,) int64, the earliest row that only site or title keeps
    from being near, or NONE; `is_alone` (n,) bool: no row but the best passed by its tags; `tags`
    (n,) uint32 of the digests.
    """

    floor: int
    next_row: int
    same: NDArray[np.int64]
    best: NDArray[np.int64]
    best_distance: NDArray[np.int64]
    sibling: NDArray[np.int64]
    is_alone: NDArray[np.bool_]
    tags: NDArray[np.uint32]


class Chains(NamedTuple):
    """How the new entries of a batch find each other; all -1 to begin with, but `links`, which are
    filled as they are made.

    By digest: `seen` (S,) int64, S a power of two above 2n. By the keys of T tables: `heads`,
    `tails` (T, S) int32, `links` (n, T) int32 to the next one, `backs` (n, T) int32 to the one
    before.
    """

    seen: NDArray[np.int64]
    heads: NDArray[np.int32]
    tails: NDArray[np.int32]
    links: NDArray[np.int32]
    backs: NDArray[np.int32]


def new_chains(count: int, tables: int) -> Chains:
    """Return chains for a batch of `count` documents, by the keys of `tables`."""
    seen = np.full(2 << count.bit_length(), -1, np.int64)
    heads, tails = np.full((2, tables, len(seen)), -1, np.int32)
    return Chains(seen, heads, tails, *np.empty((2, count, tables), np.int32))


class JudgedRows(NamedTuple):
    """What became of a batch: `outcome` (n,) uint8, `row` (n,) int64, `distance` (n,) uint8 in
    bits, `similarity` (n,) uint8 of the sketches of a document and of the row that it is near, or
    of its sibling, in per cent, else `NOT_COMPARED`; `sibling` (n,) int64, the row of who is new,
    or -1; and the documents that became entries, `made` (n,) int64, of which only those that were
    written count.
    """

    outcome: NDArray[np.uint8]
    row: NDArray[np.int64]
    distance: NDArray[np.uint8]
    similarity: NDArray[np.uint8]
    sibling: NDArray[np.int64]
    made: NDArray[np.int64]


def new_judged(count: int) -> JudgedRows:
    """Return room for what becomes of `count` documents."""
    outcome, distance, similarity = np.empty((3, count), np.uint8)
    row, sibling, made = np.empty((3, count), np.int64)
    return JudgedRows(outcome, row, distance, similarity, sibling, made)


class Found(NamedTuple):
    """What became of a batch, as `JudgedRows` tells it, with the `entry` (n,) int64 of each row, and
    that of each `sibling` (n,) int64, -1 for none.
    """

    outcome: NDArray[np.uint8]
    entry: NDArray[np.int64]
    distance: NDArray[np.uint8]
    similarity: NDArray[np.uint8]
    sibling: NDArray[np.int64]


class NearRows(NamedTuple):
    """Rows that are near a document, (n,) each, and how many bits apart; `sibling` (1,), the first
    row that only site or title keeps from being near, or NONE.
    """

    rows: NDArray[np.int64]
    distances: NDArray[np.int64]
    sibling: NDArray[np.int64]


def room_for_near(count: int) -> NearRows:
    """Return room for `count` rows."""
    rows, distances = np.empty((2, count), np.int64)
    return NearRows(rows, distances, np.empty(1, np.int64))


def same_digest(one: Columns, other: Columns) -> NDArray[np.bool_]:
    """Return which rows have the same text in the same scope."""
    same: NDArray[np.bool_] = np.logical_and(
        (one.digests == other.digests).all(axis=1), one.scopes == other.scopes
    )
    return same


def same_position(one: Columns, other: Columns) -> NDArray[np.bool_]:
    """Return which rows have the same source position and value."""
    same: NDArray[np.bool_] = np.logical_and(
        one.sources == other.sources, one.offsets == other.offsets
    )
    same &= one.values == other.values
    return same
