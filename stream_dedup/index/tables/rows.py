"""The input and output of the index's compiled functions, beside `storage.columns`.

Rows are in log order. Hashes and prints are uint64 throughout and places int64, because numba turns
a mixture of signed and unsigned numbers into floats.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

NONE: Final = np.int64(0xFFFFFFFF)  # no row: larger than every row number
OUTCOME_NEW: Final = 0
OUTCOME_SHORT: Final = 1
OUTCOME_DIGEST: Final = 2
OUTCOME_NEAR: Final = 3


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
