"""Find live representatives by text digest, position and id, and those near a document.

Invariants: entry numbers are assigned in log order and never reused; `judge` finds the lowest near
entry in the document's scope, as a plain scan over all live entries would; a removed entry is not
found; a change of plan moves no entry and only rebuilds the tables.

Each live entry has a row, in the order of their numbers; its values are in columns, which can be in
files. Removing an entry only marks its row. Once there are a third as many marked rows as live ones,
the rows are compacted: so memory is proportional to the live entries, and the cost of removals to
their number. Text digests, positions and ids are not in memory: rows found by tags are compared with
the stored entries (`identities`).

For memory per entry, see docs/explanation/index-layout.md and `bytes_used`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import ConfigurationError, InvariantError
from stream_dedup.domain.plan import Plan
from stream_dedup.index.storage.columns import (
    FULL,
    ORIGIN_BYTES,
    REMOVED,
    SHORT,
    Columns,
    StoredRows,
    make_columns,
    same_digest,
    same_position,
    select_rows,
    stored_rows,
)
from stream_dedup.index.storage.table_files import RowsInFiles, TableFiles
from stream_dedup.index.storage.tags import Tags, digest_tags, id_tags, keys_of, position_tags
from stream_dedup.index.tables.blocks import compile_plan, table_count
from stream_dedup.index.tables.budget import Budget
from stream_dedup.index.tables.entry_columns import ROOM_SHARE, TAGS, EntryColumns
from stream_dedup.index.tables.finder import FROM_THE_END, RowFinder
from stream_dedup.index.tables.keyed import PlanTables
from stream_dedup.index.tables.rows import (
    NONE,
    OUTCOME_NEW,
    OUTCOME_SHORT,
    EarlierResults,
    JudgedEntries,
    make_judged_rows,
)

ROWS_MAX: Final = 0xFFFFFFF0
# An active segment is merged once it has `_ACTIVE_MIN` entries, and one for every `MERGE_SHARE`
# frozen entries (`MERGE_SHARE_IN_FILES` if row numbers are in files). See
# `RowFinder.tables_to_merge`.
MERGE_SHARE: Final = 12
MERGE_SHARE_IN_FILES: Final = 36
_ACTIVE_MIN: Final = 32_768
_THREAD_DOCUMENTS: Final = 128
_BY_DIGEST: Final = 0
_BY_POSITION: Final = 1
_BY_ID: Final = 2
_ROWS_AT_ONCE: Final = 1 << 20
_LOW_BITS: Final = 0xFFFF
# Class k counts searches that compared 2^(k-1) to 2^k - 1 prints; class 0 counts those without any.
CANDIDATE_CLASSES: Final = 33

Identities = Callable[[NDArray[np.int64]], Columns]
"""Returns digests, scopes, sources, offsets and values of entries by their numbers."""
IsSame = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]
"""Compares documents, given by their places (k,), with entries, given by their numbers (k,), pair
by pair; returns the mask (k,) of equal pairs."""


class Neighbours:
    """The tables over the live representatives of one index; not thread-safe.

    `live` is their number, `full` the number of those that are compared by similarity too.

    A search first compares all documents of a batch with the entries before it, on up to `threads`
    threads, and then, in order, each with the new entries of the batch. Results do not depend on the
    number of threads.
    """

    def __init__(
        self,
        plan: Plan,
        limbs: int,
        identities: Identities,
        threads: int | None = None,
        budget: Budget | None = None,
        sketch_bytes: int = 0,
        beat: Callable[[], None] = lambda: None,
        files: TableFiles | None = None,
    ) -> None:
        """Create empty tables for prints of `limbs` limbs and sketches of `sketch_bytes` bytes, 0 for
        none.

        `beat` is called to show progress during long work. With `files`, rows and tables are also
        in table files.
        """
        self.plan = plan
        self.limbs = limbs
        self.sketch_bytes = sketch_bytes
        self.entries = 0
        self.live = 0
        self.full = 0
        self._identities = identities
        self._budget = budget
        self._beat = beat
        self._threads = threads or min(2, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads - 1) if self._threads > 1 else None
        self._base = 0  # an entry's number is this plus the number in its row
        self._rows = 0
        self._files = files
        self._row_bytes = sketch_bytes + ORIGIN_BYTES if sketch_bytes else 0
        folder = budget.folder if budget else None
        self._columns = EntryColumns(limbs, self._row_bytes, folder, files)
        self._tag_finder = RowFinder(len(TAGS), files)
        self._in_files = False
        self._searches = np.zeros(CANDIDATE_CLASSES, np.int64)
        self.candidates = 0  # entries that the searches visited since the index was opened
        self._create_tables()

    @property
    def searches(self) -> tuple[int, ...]:
        """Histogram, since opening: the number of documents by how many entries each was compared
        with; for the classes see `CANDIDATE_CLASSES`.
        """
        return tuple(self._searches.tolist())

    def load_rows(self, live: int) -> tuple[int, int]:
        """Load rows from table files, unless `live` is 0; only in a new object.

        Return (how many of the rows are live, the number of the first entry after them).
        """
        rows_in_files = self._columns.row_count_in_files if live else 0
        try:
            self._fit_budget(rows_in_files, rows_in_files)
        except ConfigurationError:  # without the rows of removed entries, they may fit
            rows_in_files = 0
        self._rows, self._base = self._columns.load_files(rows_in_files, self._run_parts)
        if not self._rows:
            return 0, 0
        loaded = self._columns.rows
        self.live = int(np.count_nonzero(loaded.states[: self._rows] != REMOVED))
        return self.live, self._base + int(loaded.numbers[self._rows - 1]) + 1

    def load(self, parts: Iterable[StoredRows], live: int, entries: int) -> None:
        """Load the live entries that `load_rows` did not load, in parts, and build the tables.

        `live` is the number of all live entries, `entries` that of all entries so far.
        """
        self.entries = entries
        row_count = self._rows + live - self.live
        self._base = self._base if self._rows else entries
        for part in parts:
            if not self._rows:
                self._base = int(part.numbers[0])
                self._fit_budget(live, live)
            if self._columns.room_rows < row_count:
                self._columns.reserve(row_count)
            self._columns.write(
                self._rows, part._replace(numbers=(part.numbers - self._base).astype(np.uint32))
            )
            self._rows += len(part.numbers)
            self._beat()
        if not live:
            return
        states = self._columns.rows.states[: self._rows]
        self.live, self.full = live, int(np.count_nonzero(states == FULL))
        self._fit_budget(self._rows, self.full)
        self._tag_finder.build(self._keys_of_tags, states, SHORT, live, self._run_parts, self._beat)
        self._tables.finder.build(
            self._tables.key_reader(self._columns.read),
            states,
            FULL,
            self.full,
            self._run_parts,
            self._beat,
        )

    def rows_in_files(self) -> RowsInFiles:
        """Return the rows and digests that the volume records for its table files."""
        return self._columns.rows_in_files(self._rows, self._base)

    def wipe(self, entries: NDArray[np.int64]) -> None:
        """Set the rows of removed entries, given in ascending order, to zeros."""
        self._columns.wipe(self._rows, entries - self._base)

    def judge(
        self, batch: Columns, features: NDArray[np.uint32], features_min: int
    ) -> JudgedEntries:
        """Judge documents in order. Each is also compared with new representatives before it.

        A document is a duplicate of the entry with its digest and scope; otherwise of the lowest near
        entry in its scope; otherwise it becomes an entry. A document with fewer than `features_min`
        features is compared by its digest alone.
        """
        count = len(features)
        batch = batch._replace(features=features)
        tags = digest_tags(batch.digests, batch.scopes)
        same_row = self._find(_BY_DIGEST, tags, self._comparer(batch, same_digest))
        keys = self._tables.keys(batch)
        earlier = EarlierResults(
            features_min=features_min,
            next_row=self._rows,
            same_row=same_row,
            best=np.full(count, NONE),
            best_distance=np.zeros(count, np.int64),
            sibling=np.full(count, NONE),
            is_only_match=np.zeros(count, np.bool_),
            tags=tags,
        )
        self._search(
            batch, keys, np.flatnonzero((same_row < 0) & (features >= features_min)), earlier
        )
        judged = make_judged_rows(count)
        self._tables.judge_in_order(self._columns.rows, batch, earlier, keys, judged)
        self._add(batch, judged.outcome, keys)
        entries, siblings = self._entries_at(judged.row), self._entries_at(judged.sibling)
        self._merge_if_due()
        return JudgedEntries(
            outcome=judged.outcome,
            entry=entries,
            distance=judged.distance,
            similarity=judged.similarity,
            sibling=siblings,
        )

    def find_positions(self, batch: Columns) -> NDArray[np.int64]:
        """Return, for each document, the live entry with its source position and value digest, or
        -1.
        """
        tags = position_tags(batch.sources, batch.offsets, batch.value_digests)
        return self._entries_at(
            self._find(_BY_POSITION, tags, self._comparer(batch, same_position))
        )

    def find_digests(self, batch: Columns) -> NDArray[np.int64]:
        """Return, for each document, the live entry with its text digest in its scope, or -1."""
        tags = digest_tags(batch.digests, batch.scopes)
        return self._entries_at(self._find(_BY_DIGEST, tags, self._comparer(batch, same_digest)))

    def find_ids(
        self, crcs: Tags, scopes: NDArray[np.uint64], is_same: IsSame, added: int
    ) -> NDArray[np.int64]:
        """Return for each id the latest live entry that `is_same` confirms, or -1.

        `crcs` (n,) are from `crcs_of`. The last `added` entries are ignored.
        """
        return self._entries_at(
            self._find(_BY_ID, id_tags(crcs, scopes, crcs), is_same, self._rows - added)
        )

    def find_crcs(self, crcs: Tags) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return (entries whose ids have one of these CRC-32s, mask of the live ones), ascending."""
        low_bits, found = np.zeros(_LOW_BITS + 1, np.bool_), []
        low_bits[crcs & _LOW_BITS] = True  # rules out nearly all rows before the exact comparison
        for first in range(0, self._rows, _ROWS_AT_ONCE):
            ids = self._columns.read("ids", first, min(self._rows, first + _ROWS_AT_ONCE))
            likely = np.flatnonzero(low_bits[ids & _LOW_BITS])
            found.append(first + likely[np.isin(ids[likely], crcs)])
            self._beat()
        rows = np.concatenate([*found, np.empty(0, np.int64)])
        return self._entries_at(rows), self._columns.rows.states[rows] != REMOVED

    def find_digest(self, text_digest: bytes, scope: int) -> int:
        """Return the live entry with a text digest in a scope, or -1."""
        document = make_columns(self.limbs, 1)
        document.digests[0] = np.frombuffer(text_digest, np.uint64)
        document.scopes[0] = scope
        return int(self.find_digests(document)[0])

    def find_near(
        self,
        print_limbs: NDArray[np.uint64],
        scope: int,
        features: int,
        sketch: bytes = b"",
        alike_min: int | None = None,
    ) -> list[tuple[int, int]]:
        """Return (distance, entry) of all near entries in a scope, nearest first, of equally near ones
        the lowest first.

        `alike_min`, the smallest similarity in parts of `ALIKE`, replaces the plan's.

        Raises:
            InvariantError: the plan compares sketches, and there is none.
        """
        document = make_columns(self.limbs, 1, self._row_bytes)
        if sketch or self.plan.needs_sketch:
            if len(sketch) != self.sketch_bytes:
                raise InvariantError(
                    f"The sketch has {len(sketch)} bytes, but those of the index have "
                    f"{self.sketch_bytes}."
                )
            document.sketches[0, : len(sketch)] = np.frombuffer(sketch, np.uint8)
        document.prints[0], document.scopes[0], document.features[0] = print_limbs, scope, features
        alike_parts = self.plan.alike_mins[0] if alike_min is None else alike_min
        rows, distances, _ = self._tables.collect_near(self._columns.rows, document, alike_parts)
        entries = self._columns.rows.numbers[rows].astype(np.int64) + self._base
        return sorted(set(zip(distances.tolist(), entries.tolist(), strict=True)))

    def add(self, columns: Columns, is_full: NDArray[np.bool_]) -> None:
        """Add entries without judging them. No live entry may have the digest or position of one
        of them.

        `is_full` (n,) is the mask of those that are compared by similarity too.
        """
        outcome = np.where(is_full, np.uint8(OUTCOME_NEW), np.uint8(OUTCOME_SHORT))
        self._add(columns, outcome, self._tables.keys(columns))
        self._merge_if_due()

    def live_below(self, entry: int) -> NDArray[np.int64]:
        """Return the live entries below a number, ascending."""
        rows = int(
            np.searchsorted(self._columns.rows.numbers[: self._rows], max(0, entry - self._base))
        )
        numbers: NDArray[np.uint32] = self._columns.rows.numbers[:rows][
            self._columns.rows.states[:rows] != REMOVED
        ]
        return numbers.astype(np.int64) + self._base

    def drop(self, entries: NDArray[np.int64]) -> None:
        """Remove live entries, given in ascending order, from all searches.

        Raises:
            InvariantError: one of them is not live.
        """
        states = self._columns.rows.states
        rows = np.minimum(
            np.searchsorted(self._columns.rows.numbers[: self._rows], entries - self._base),
            self._rows - 1,
        )
        if (
            not np.array_equal(self._columns.rows.numbers[rows] + self._base, entries)
            or not states[rows].all()
        ):
            raise InvariantError(
                "Entries were removed that are not live; this is an internal error."
            )
        self.live -= len(rows)
        self.full -= int(np.count_nonzero(states[rows] == FULL))
        states[rows] = REMOVED
        if self._files is not None:
            self._files.note_removed(rows)
        if self._rows - self.live > max(_ACTIVE_MIN, self.live // 3):
            self._compact()

    def least_bytes(self, plan: Plan) -> int:
        """Return the smallest number of bytes of memory that the entries need with a plan."""
        shares = (
            {True: MERGE_SHARE_IN_FILES}
            if self._in_files
            else {True: MERGE_SHARE_IN_FILES, False: MERGE_SHARE}
        )
        counts = (table_count(compile_plan(plan)), self._rows, self.full)
        return min(
            self._columns.bytes_for(*counts, in_files=in_files, active_share=1 / share)
            for in_files, share in shares.items()
        )

    def check_memory(self, plan: Plan) -> None:
        """Raise ConfigurationError if the entries do not fit into the budget with a plan."""
        if self._budget is not None and self._budget.memory_bytes:
            self._budget.require(self.least_bytes(plan))

    def change_plan(self, plan: Plan) -> None:
        """Rebuild the tables for another plan over the same entries.

        Raises:
            ConfigurationError: the budget is too small; nothing has changed.
            StoreError: there is no room for files.
        """
        self.check_memory(plan)
        self.plan = plan
        if self._files is not None:
            self._files.drop_tables(self._tag_finder.count)
        self._create_tables()
        self._freeze()

    def _create_tables(self) -> None:
        """Create empty tables for the plan."""
        self._tables = PlanTables(compile_plan(self.plan), self._files, len(TAGS), self.plan.id)
        self._longest, self._overfull = np.zeros((2, self._tables.count), np.int64)
        self._next_table = 0

    def _fit_budget(self, rows: int, full: int) -> None:
        """Move columns and row numbers to files if `rows` rows do not fit into memory; `full` of them
        are in the plan's tables.

        Raises:
            ConfigurationError: the budget is too small even with files.
            StoreError: there is no room for the files.
        """
        budget, columns = self._budget, self._columns
        if budget is None or not budget.memory_bytes:
            return
        count, share = self._tables.count, 1 / MERGE_SHARE
        if (
            not self._in_files
            and budget.free_bytes(
                columns.bytes_for(count, rows, full, in_files=False, active_share=share)
            )
            >= 0
        ):
            return
        budget.require(
            columns.bytes_for(
                count, rows, full, in_files=True, active_share=1 / MERGE_SHARE_IN_FILES
            )
        )
        self._in_files = True
        self._columns.move_to_files(budget.folder)
        self._tag_finder.move_to_files(budget.folder)
        self._tables.finder.move_to_files(budget.folder)

    @property
    def bytes_used(self) -> int:
        """Bytes of memory that the arrays use, without files."""
        return (
            self._columns.bytes_used + self._tag_finder.bytes_used + self._tables.finder.bytes_used
        )

    @property
    def bytes_mapped(self) -> int:
        """Bytes in files: sketches, and other columns that exceed the memory budget."""
        return (
            self._columns.bytes_in_file
            + self._tag_finder.bytes_in_file
            + self._tables.finder.bytes_in_file
        )

    def measure_next_table(self) -> int:
        """Measure the buckets of the next table. Return the largest number of entries that a look-up
        reads in one bucket of any table, each as last measured.
        """
        number = self._next_table
        self._longest[number] = self._tables.finder.longest(number)
        self._overfull[number] = self.full_blocks(number)
        self._next_table = (number + 1) % self._tables.count
        return int(self._longest.max())

    def full_blocks(self, table: int | None = None) -> int:
        """Return how many blocks of a table have more entries than the plan compares; by default of all
        tables, as last measured.
        """
        return int(self._overfull.sum()) if table is None else self._tables.full_blocks(table)

    def _find(
        self, number: int, tags: NDArray[np.uint32], is_same: IsSame, row_below: int | None = None
    ) -> NDArray[np.int64]:
        """Return for each tag the first row that `is_same` confirms, or -1; with `row_below`, the last
        one before that row.
        """
        keys, states = keys_of(tags), self._columns.rows.states
        cursors = np.full(len(tags), 0 if row_below is None else FROM_THE_END)
        rows = self._tag_finder.find(number, keys, states, cursors, row_below)
        unconfirmed = np.flatnonzero(rows >= 0)
        while len(unconfirmed):
            wrong = unconfirmed[~is_same(unconfirmed, self._entries_at(rows[unconfirmed]))]
            next_cursors = cursors[wrong]
            rows[wrong] = self._tag_finder.find(
                number, keys[wrong], states, next_cursors, row_below
            )
            cursors[wrong] = next_cursors
            unconfirmed = wrong[rows[wrong] >= 0]
        return rows

    def _comparer(
        self, batch: Columns, rule: Callable[[Columns, Columns], NDArray[np.bool_]]
    ) -> IsSame:
        """Return a function that compares documents of a batch with stored identities by a rule."""
        return lambda documents, entries: rule(
            self._identities(entries), select_rows(batch, documents)
        )

    def _entries_at(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the entries in these rows, -1 for -1."""
        return np.where(
            rows < 0, -1, self._columns.rows.numbers[rows].astype(np.int64) + self._base
        )

    def _search(
        self, batch: Columns, keys: NDArray[Any], docs: NDArray[np.int64], earlier: EarlierResults
    ) -> None:
        parts = min(self._threads, max(1, len(docs) // _THREAD_DOCUMENTS))
        candidates = np.zeros(len(earlier.best), np.int64)

        def search(part_docs: NDArray[np.int64]) -> None:
            self._tables.search(self._columns.rows, batch, keys, part_docs, earlier, candidates)

        self._run_parts(search, np.array_split(docs, parts))
        compared = candidates[docs]
        self.candidates += int(compared.sum())
        classes = np.frexp(compared.astype(np.float64))[1]
        self._searches += np.bincount(
            np.minimum(classes, CANDIDATE_CLASSES - 1), minlength=CANDIDATE_CLASSES
        )

    def _add(self, batch: Columns, outcome: NDArray[np.uint8], keys: NDArray[Any]) -> None:
        """Add the documents that became entries, in their order."""
        new_docs = np.flatnonzero(outcome <= OUTCOME_SHORT)
        count, first = len(new_docs), self._rows
        if not count:
            return
        self._reserve(count)
        rows = stored_rows(
            np.arange(self.entries - self._base, self.entries - self._base + count),
            select_rows(batch, new_docs),
            np.where(outcome[new_docs] == OUTCOME_SHORT, SHORT, FULL).astype(np.uint8),
        )
        self._columns.write(first, rows)
        tag_keys = [self._tag_keys(number, rows._asdict()) for number in range(len(TAGS))]
        self._tag_finder.add(np.arange(first, first + count), np.stack(tag_keys, axis=1))
        is_full = outcome[new_docs] != OUTCOME_SHORT
        added = first + np.flatnonzero(is_full)
        self._tables.finder.add(added, keys[new_docs[is_full]])
        self._rows += count
        self.entries += count
        self.live += count
        self.full += len(added)

    @property
    def numbers_used(self) -> int:
        """The number of row numbers in use: those of live entries, and of entries removed since the
        last compaction.
        """
        return max(self._rows, self.entries - self._base)

    def _reserve(self, count: int) -> None:
        needed = self._rows + count
        if self.numbers_used + count > ROWS_MAX:
            raise ConfigurationError(
                f"The index has used {self.numbers_used} of {ROWS_MAX} row numbers for kept "
                "documents. Nothing is lost, but documents wait. Start a new log with another "
                "STREAM_DEDUP_TOPIC_PREFIX, and seed it with the documents to keep "
                "(`stream-dedup seed`)."
            )
        if needed > self._columns.room_rows:
            self._columns.reserve(needed + needed // ROOM_SHARE)

    def _compact(self) -> None:
        """Drop the rows of removed entries, and rebuild the tables."""
        self._columns.keep_rows(self._columns.rows.states[: self._rows] != REMOVED)
        self._rows = self.live
        if self.live:
            self._base += self._columns.renumber(self.live)
        self._freeze_tag_tables()
        self._freeze()

    def _merge_if_due(self) -> None:
        """Merge active segments that have grown. One table at a time, because verdicts wait for it."""
        merge_share = MERGE_SHARE_IN_FILES if self._in_files else MERGE_SHARE
        for finder, freeze in (
            (self._tag_finder, self._freeze_tag_tables),
            (self._tables.finder, self._freeze),
        ):
            for number in finder.tables_to_merge(_ACTIVE_MIN, merge_share):
                self._fit_budget(self._rows, self.full)
                if not finder.merge(number):
                    freeze([number])
                self._beat()

    def _freeze_tag_tables(self, numbers: Sequence[int] | None = None) -> None:
        """Sort the tables that find rows by digest, position and id, or some of them."""
        states = self._columns.rows.states[: self._rows]
        self._tag_finder.freeze(
            self._keys_of_tags, states, SHORT, self.live, self._run_parts, numbers
        )

    def _freeze(self, numbers: Sequence[int] | None = None) -> None:
        """Sort the plan's tables, or some of them."""
        self._fit_budget(self._rows, self.full)
        read_keys = self._tables.key_reader(self._columns.read)
        states = self._columns.rows.states[: self._rows]
        self._tables.finder.freeze(read_keys, states, FULL, self.full, self._run_parts, numbers)

    def _keys_of_tags(self, numbers: Sequence[int], first: int, end: int) -> NDArray[np.uint64]:
        names = {TAGS[number] for number in numbers}
        if TAGS[_BY_ID] in names:
            names |= {"scopes", TAGS[_BY_DIGEST]}
        columns = {name: self._columns.read(name, first, end) for name in names}
        return np.stack([self._tag_keys(number, columns) for number in numbers])

    def _tag_keys(self, number: int, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
        """Return the keys of rows in one of the tables of tags, from their columns."""
        tags = columns[TAGS[number]]
        if number == _BY_ID:
            scopes = columns["scopes"] if len(columns["scopes"]) else np.zeros(len(tags), np.uint64)
            tags = id_tags(tags, scopes, columns[TAGS[_BY_DIGEST]])
        return keys_of(tags)

    def _run_parts(self, work: Callable[[Any], None], parts: Sequence[Any]) -> None:
        """Call `work` for each part, on all threads, and `beat` in this thread after each part."""
        futures = (
            [self._pool.submit(work, part) for part in parts]
            if self._pool and len(parts) > 1
            else []
        )
        for part, future in itertools.zip_longest(reversed(parts), reversed(futures)):
            # This thread works too, from the last part on, because waking other threads takes time.
            if future is None or future.cancel():
                work(part)
            else:
                future.result()
            self._beat()
