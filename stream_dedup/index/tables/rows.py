"""The arrays that the index's kernels read and fill, besides `storage.columns`.

Rows are in log order. Hashes and prints are uint64 and places int64 everywhere, because numba
converts an expression of signed and unsigned numbers to floats.
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

    `prints` (1, W), `features` (1,) and `sketches` (1, S) are values of a row; `rows` (3,) int64 says
    of which row each of the three is, -1 for none. `number` (1,) uint32 is a row number that was read
    from a file. `failed` (1,) int64 is not 0 once a file could not be read.
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

    Shapes: `prints` (C, W), `sketches` (C, S), the others (C,); `scopes` is empty while all are 0.
    `states` are REMOVED, SHORT or FULL. `numbers` are entry numbers less that of the first row at
    the last compaction. If `prints`, `features` and `sketches` are in files, their arrays are
    empty; `files` (3,) int64 are the descriptors, or -1. `buffer` contains the row that a search
    compares.
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

    Documents with fewer features than `features_min` are compared by digest only. `next_row` is the
    row of the batch's first new entry. `same_row` (n,) int64 is the row with the document's digest,
    or -1. `best` (n,) int64 is the earliest near row, or NONE, and `best_distance` (n,) int64 its
    distance. `sibling` (n,) int64 is the earliest row that would be near but for its site or title,
    or NONE. `is_only_match` (n,) bool: no row but the best one matched by its tags. `tags` (n,)
    uint32 are those of the digests.
    """

    features_min: int
    next_row: int
    same_row: NDArray[np.int64]
    best: NDArray[np.int64]
    best_distance: NDArray[np.int64]
    sibling: NDArray[np.int64]
    is_only_match: NDArray[np.bool_]
    tags: NDArray[np.uint32]


class Chains(NamedTuple):
    """Hash chains over the new entries of a batch.

    By digest: `digest_slots` (S,) int64 are new entries, S a power of two above 2n. By the keys of
    T tables: `heads` and `tails` (T, S) int32, `links` (n, T) int32 to the next entry, `backs` (n,
    T) int32 to the one before. All are -1 at first, except `links` and `backs`, which are set when
    an entry is added.
    """

    digest_slots: NDArray[np.int64]
    heads: NDArray[np.int32]
    tails: NDArray[np.int32]
    links: NDArray[np.int32]
    backs: NDArray[np.int32]


def make_chains(count: int, tables: int) -> Chains:
    """Return empty chains for a batch of `count` documents, by the keys of `tables` tables."""
    digest_slots = np.full(2 << count.bit_length(), -1, np.int64)
    heads, tails = np.full((2, tables, len(digest_slots)), -1, np.int32)
    return Chains(digest_slots, heads, tails, *np.empty((2, count, tables), np.int32))


class NewEntries(NamedTuple):
    """New entries of a batch: the row of the first one, their chains, and the documents `new_docs` (k,)
    that became these entries.
    """

    next_row: int
    chains: Chains
    new_docs: NDArray[np.int64]


class JudgedRows(NamedTuple):
    """Verdicts on the documents of a batch.

    `outcome` (n,) uint8; `row` (n,) int64, that of the representative; `distance` (n,) uint8 in bits;
    `similarity` (n,) uint8, in per cent, of the document's sketch and that of its near row or
    sibling, otherwise `NOT_COMPARED`; `sibling` (n,) int64, the row of a new document's sibling, or
    -1; `new_docs` (n,) int64, the documents that became entries, followed by undefined values.
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
    """Verdicts as in `JudgedRows`, with the numbers of entries instead of rows; -1 for no sibling."""

    outcome: NDArray[np.uint8]
    entry: NDArray[np.int64]
    distance: NDArray[np.uint8]
    similarity: NDArray[np.uint8]
    sibling: NDArray[np.int64]


class NearRows(NamedTuple):
    """Rows near a document, (n,) each, and their distances in bits.

    `sibling` (1,) is the first row that would be near but for its site or title, or NONE.
    """

    rows: NDArray[np.int64]
    distances: NDArray[np.int64]
    sibling: NDArray[np.int64]


def make_near_rows(count: int) -> NearRows:
    """Return uninitialised arrays for `count` rows."""
    rows, distances = np.empty((2, count), np.int64)
    return NearRows(rows, distances, np.empty(1, np.int64))
