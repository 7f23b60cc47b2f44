"""The live representatives in memory, findable by text digest, by position, by id, and by print
within a plan's reach.

Invariants: entry numbers are handed out in log order and never again; what `judge` finds equals a
plain scan over the live entries with the plan's predicate, taking the lowest number in the same
scope; a removed entry is found by nothing; a change of plan moves no entry, it only lays the tables
out anew.

Rows are in the order of the numbers, column by column, and columns may lie in files. Removing marks
rows; when a third as many are marked as are live, the rows are laid out anew without them, so
memory follows the live entries and not the number ever made, and removing costs, on the whole, in
proportion to what is removed. Digests, positions and ids are not held: what their tags find is
compared with what is stored (`identities`).

Memory per entry, and what it was measured to be: docs/explanation/index-layout.md. `bytes_used`
tells.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import ConfigurationError, InvariantError
from stream_dedup.domain.plan import Plan
from stream_dedup.index.tables.blocks import table_count, tables_of
from stream_dedup.index.tables.budget import Budget
from stream_dedup.index.tables.finder import FROM_THE_END, RowFinder
from stream_dedup.index.tables.held import GROWN, TAGS, HeldColumns
from stream_dedup.index.tables.kept import FilesKept, RowsAsKept
from stream_dedup.index.tables.keyed import Keyed
from stream_dedup.index.tables.rows import (
    FULL,
    NONE,
    ORIGIN_BYTES,
    OUTCOME_NEW,
    OUTCOME_SHORT,
    REMOVED,
    SHORT,
    Columns,
    Found,
    Known,
    StoredRows,
    new_judged,
    no_columns,
    same_digest,
    same_position,
    take_rows,
)
from stream_dedup.index.tables.tags import Tags, digest_tags, id_tags, keys_of, position_tags

ROWS_MAX: Final = 0xFFFFFFF0
# A table is merged when its active segment is such a part of what is frozen, in memory, or with its
# row numbers in a file; and when the active segment has at least this many entries. See
# `RowFinder.due`.
MERGED_AGAIN: Final = 12
MERGED_AGAIN_IN_FILES: Final = 36
_ACTIVE_MIN: Final = 32_768
_THREAD_DOCUMENTS: Final = 128
_BY_DIGEST: Final = 0
_BY_POSITION: Final = 1
_BY_ID: Final = 2
# Class k counts searches that compared 2^(k-1) to 2^k - 1 prints; class 0 those that compared none.
CANDIDATE_CLASSES: Final = 33

Identities = Callable[[NDArray[np.int64]], Columns]
"""Returns digests, scopes, sources, offsets and values of entries by their numbers."""
Same = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]
"""Says which of what is looked for, by its places, is what the entries of these numbers are, (k,)
each."""


class Neighbours:
    """The tables over the live representatives of one index; not safe for use by several threads at
    once.

    A search goes through all documents of a batch, one table after the other, on up to `threads`
    threads: what was there before the batch first, then, in order, what the batch itself adds. What
    is found does not depend on their number.
    """

    def __init__(
        self,
        plan: Plan,
        limbs: int,
        identities: Identities,
        threads: int | None = None,
        budget: Budget | None = None,
        values: int = 0,
        beat: Callable[[], None] = lambda: None,
        beside: FilesKept | None = None,
    ) -> None:
        """`limbs` of a print, `values` bytes of a sketch; 0 for recipes without. `beat` says that
        what takes long goes on.

        With `beside` rows and tables are kept in files.
        """
        self.plan = plan
        self.limbs = limbs
        self.values = values
        self.entries = 0
        self.live = 0
        self.full = 0
        self._identities = identities
        self._budget = budget
        self._beat = beat
        self._threads = threads or min(2, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads - 1) if self._threads > 1 else None
        self._base = 0  # the entry number from which the rows' numbers count
        self._rows = 0
        self._beside = beside
        self._row_bytes = values + ORIGIN_BYTES if values else 0
        folder = budget.folder if budget else None
        self._columns = HeldColumns(limbs, self._row_bytes, folder, beside)
        self._known = RowFinder(len(TAGS), beside)
        self._in_files = False
        self._searches = np.zeros(CANDIDATE_CLASSES, np.int64)
        self.candidates = 0  # entries that the searches visited since the index was opened
        self._lay_tables()

    @property
    def searches(self) -> tuple[int, ...]:
        """How many documents were searched for since then, by the class of how many entries that
        visited.
        """
        return tuple(self._searches.tolist())

    def take_rows(self, live: int) -> tuple[int, int]:
        """Take over rows from files, if `live` entries are to be taken over at all; only on a new
        object.

        Returns how many of the rows are live, and the number of the first entry after them.
        """
        wanted = self._columns.rows_in_files if live else 0
        try:
            self._fit(wanted, wanted)
        except (
            ConfigurationError
        ):  # rows of removed entries are among them, which are not laid out anew
            wanted = 0
        self._rows, self._base = self._columns.take(wanted, self._each)
        if not self._rows:
            return 0, 0
        rows = self._columns.rows
        self.live = int(np.count_nonzero(rows.states[: self._rows] != REMOVED))
        return self.live, self._base + int(rows.numbers[self._rows - 1]) + 1

    def load(self, parts: Iterable[StoredRows], live: int, entries: int) -> None:
        """Take over the `live` ones of `entries` ever made, those that came after the rows that
        were taken part after part.
        """
        self.entries = entries
        rows = self._rows + live - self.live
        self._base = self._base if self._rows else entries
        for part in parts:
            if not self._rows:
                self._base = int(part.numbers[0])
                self._fit(live, live)
            if self._columns.room < rows:
                self._columns.reserve(rows)
            self._columns.write(
                self._rows, part._replace(numbers=(part.numbers - self._base).astype(np.uint32))
            )
            self._rows += len(part.numbers)
            self._beat()
        if not live:
            return
        states = self._columns.rows.states[: self._rows]
        self.live, self.full = live, int(np.count_nonzero(states == FULL))
        self._fit(self._rows, self.full)
        self._known.open(self._keys_of_tags, states, SHORT, live, self._each, self._beat)
        self._tables.finder.open(
            self._tables.keys_of(self._columns.read),
            states,
            FULL,
            self.full,
            self._each,
            self._beat,
        )

    def as_kept(self) -> RowsAsKept:
        """Return the rows as far as they are in files."""
        return self._columns.as_kept(self._rows, self._base)

    def wipe(self, entries: NDArray[np.int64]) -> None:
        """Leave nothing of removed entries, given in ascending order, in the rows that there are of
        them.
        """
        self._columns.wipe(self._rows, entries - self._base)

    def judge(self, batch: Columns, features: NDArray[np.uint32], floor: int) -> Found:
        """Judge documents in order, each new representative being found by those after it.

        A document is a duplicate of the entry with its digest and scope, else of the lowest entry
        within reach in its scope; else it becomes an entry. One with fewer than `floor` features
        has no neighbours, only its digest.
        """
        count = len(features)
        batch = batch._replace(features=features)
        tags = digest_tags(batch.digests, batch.scopes)
        same = self._find(_BY_DIGEST, tags, self._same(batch, same_digest))
        buckets = self._tables.keys(batch)
        known = Known(
            floor,
            self._rows,
            same,
            np.full(count, NONE),
            np.zeros(count, np.int64),
            np.full(count, NONE),
            np.zeros(count, np.bool_),
            tags,
        )
        self._search(batch, buckets, np.flatnonzero((same < 0) & (features >= floor)), known)
        judged = new_judged(count)
        self._tables.judge_in_order(self._columns.rows, batch, known, buckets, judged)
        self._add(batch, tags, judged.outcome, buckets)
        entries, siblings = self._entries_at(judged.row), self._entries_at(judged.sibling)
        self._seal_if_due()
        return Found(judged.outcome, entries, judged.distance, judged.similarity, siblings)

    def find_positions(self, batch: Columns) -> NDArray[np.int64]:
        """Return, for each document, the live entry at its own source position and with its value
        digest, or -1.
        """
        tags = position_tags(batch.sources, batch.offsets, batch.values)
        return self._entries_at(self._find(_BY_POSITION, tags, self._same(batch, same_position)))

    def find_digests(self, batch: Columns) -> NDArray[np.int64]:
        """Return, for each document, the live entry with its text digest in its scope, or -1."""
        tags = digest_tags(batch.digests, batch.scopes)
        return self._entries_at(self._find(_BY_DIGEST, tags, self._same(batch, same_digest)))

    def find_ids(
        self, crcs: Tags, scopes: NDArray[np.uint64], same: Same, added: int
    ) -> NDArray[np.int64]:
        """Return for each id, of which `crcs_of` made `crcs` (n,), the latest live entry that is
        the `same`, or -1.

        The `added` latest entries are passed over.
        """
        return self._entries_at(
            self._find(_BY_ID, id_tags(crcs, scopes, crcs), same, self._rows - added)
        )

    def find_digest(self, text_digest: bytes, scope: int) -> int:
        """Return the live entry with a text digest in a scope, or -1."""
        wanted = no_columns(self.limbs, 1)
        wanted.digests[0] = np.frombuffer(text_digest, np.uint64)
        wanted.scopes[0] = scope
        return int(self.find_digests(wanted)[0])

    def alike(
        self,
        print_limbs: NDArray[np.uint64],
        scope: int,
        features: int,
        sketch: bytes = b"",
        alike_min: int | None = None,
    ) -> list[tuple[int, int]]:
        """Return (distance, entry) of everything within the plan's reach in a scope, nearest and
        then lowest first.

        InvariantError without a sketch, where the plan compares them. `alike_min`: in parts of
        `ALIKE`, instead of the plan's.
        """
        wanted = no_columns(self.limbs, 1, self._row_bytes)
        if sketch or self.plan.needs_sketch:
            if len(sketch) != self.values:
                raise InvariantError(
                    f"A sketch of {len(sketch)} bytes was looked up among sketches of "
                    f"{self.values}."
                )
            wanted.sketches[0, : len(sketch)] = np.frombuffer(sketch, np.uint8)
        wanted.prints[0], wanted.scopes[0], wanted.features[0] = print_limbs, scope, features
        parts = self.plan.alike_mins[0] if alike_min is None else alike_min
        rows, distances, _ = self._tables.collect_near(self._columns.rows, wanted, parts)
        entries = self._columns.rows.numbers[rows].astype(np.int64) + self._base
        return sorted(set(zip(distances.tolist(), entries.tolist(), strict=True)))

    def add(self, columns: Columns, full: NDArray[np.bool_]) -> None:
        """Add entries without judging them; no live one has the digest or position of any. `full`
        (n,): has neighbours.
        """
        outcome = np.where(full, np.uint8(OUTCOME_NEW), np.uint8(OUTCOME_SHORT))
        tags = digest_tags(columns.digests, columns.scopes)
        self._add(columns, tags, outcome, self._tables.keys(columns))
        self._seal_if_due()

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
        """Make live entries, given in ascending order, unfindable.

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
                "Entries were removed that are not live; this is a fault of the program."
            )
        self.live -= len(rows)
        self.full -= int(np.count_nonzero(states[rows] == FULL))
        states[rows] = REMOVED
        if self._beside is not None:
            self._beside.removed(entries)
        if self._rows - self.live > max(_ACTIVE_MIN, self.live // 3):
            self._compact()

    def least_bytes(self, plan: Plan) -> int:
        """Return how many bytes of memory the entries need at least under a plan, with what may lie
        in files there.
        """
        shares = (
            {True: MERGED_AGAIN_IN_FILES}
            if self._in_files
            else {True: MERGED_AGAIN_IN_FILES, False: MERGED_AGAIN}
        )
        rows, bytes_for = (
            (table_count(tables_of(plan)), self._rows, self.full),
            self._columns.bytes_for,
        )
        return min(
            bytes_for(*rows, in_files=where, active_share=1 / share)
            for where, share in shares.items()
        )

    def ask_for_memory(self, plan: Plan) -> None:
        """Raise ConfigurationError unless the budget holds the entries under a plan."""
        if self._budget is not None and self._budget.memory_bytes:
            self._budget.demand(self.least_bytes(plan))

    def change_plan(self, plan: Plan) -> None:
        """Lay the tables out anew for another plan over the same entries.

        Raises:
            ConfigurationError: the budget does not hold them; nothing has changed.
            StoreError: there is no room for files.
        """
        self.ask_for_memory(plan)
        self.plan = plan
        if self._beside is not None:
            self._beside.drop(self._known.count)
        self._lay_tables()
        self._seal()

    def _lay_tables(self) -> None:
        """Make empty tables for the plan."""
        self._tables = Keyed(tables_of(self.plan), self._beside, len(TAGS), self.plan.id)
        (self._longest, self._full), self._next_table = (
            np.zeros((2, self._tables.count), np.int64),
            0,
        )

    def _fit(self, rows: int, full: int) -> None:
        """Move to files what the budget does not hold of `rows` rows, `full` of them in the plan's
        tables.

        Raises:
            ConfigurationError: the budget does not even hold what has to stay in memory.
            StoreError: there is no room for the files.
        """
        budget, columns = self._budget, self._columns
        if budget is None or not budget.memory_bytes:
            return
        count, share = self._tables.count, 1 / MERGED_AGAIN
        if (
            not self._in_files
            and budget.room(
                columns.bytes_for(count, rows, full, in_files=False, active_share=share)
            )
            >= 0
        ):
            return
        budget.demand(
            columns.bytes_for(
                count, rows, full, in_files=True, active_share=1 / MERGED_AGAIN_IN_FILES
            )
        )
        self._in_files = True
        self._columns.to_files(budget.folder)
        self._known.to_file(budget.folder)
        self._tables.finder.to_file(budget.folder)

    @property
    def bytes_used(self) -> int:
        """Bytes of memory that the arrays hold, without what lies in files."""
        return self._columns.bytes_used + self._known.bytes_used + self._tables.finder.bytes_used

    @property
    def bytes_mapped(self) -> int:
        """Bytes that lie in files: sketches, and what the memory budget does not hold."""
        return (
            self._columns.bytes_in_file
            + self._known.bytes_in_file
            + self._tables.finder.bytes_in_file
        )

    @property
    def tables(self) -> int:
        """How many tables the plan has."""
        return self._tables.count

    def bucket_lengths(self, table: int) -> NDArray[np.int64]:
        """Return how many entries each bucket of one table holds."""
        return self._tables.finder.lengths(table)

    def look_at_buckets(self) -> int:
        """Look at the buckets of the next table; return the most that a look-up reads of one, in
        any table as last seen.
        """
        number = self._next_table
        self._longest[number], self._full[number] = (
            self._tables.finder.longest(number),
            self.full_blocks(number),
        )
        self._next_table = (number + 1) % self._tables.count
        return int(self._longest.max())

    def full_blocks(self, table: int | None = None) -> int:
        """Return how many blocks of a table more entries share than are asked; without a table of
        all, as last seen.
        """
        return int(self._full.sum()) if table is None else self._tables.full_blocks(table)

    def _find(
        self, number: int, tags: NDArray[np.uint32], same: Same, below: int | None = None
    ) -> NDArray[np.int64]:
        """Return the row of each tag, or -1: the first that it finds and `same` confirms, or the
        last one `below` a row.
        """
        keys, states = keys_of(tags), self._columns.rows.states
        at = np.full(len(tags), 0 if below is None else FROM_THE_END)
        found = self._known.find(number, keys, states, at, below)
        unsure = np.flatnonzero(found >= 0)
        while len(unsure):
            wrong = unsure[~same(unsure, self._entries_at(found[unsure]))]
            next_at = at[wrong]
            found[wrong] = self._known.find(number, keys[wrong], states, next_at, below)
            at[wrong] = next_at
            unsure = wrong[found[wrong] >= 0]
        return found

    def _same(self, batch: Columns, rule: Callable[[Columns, Columns], NDArray[np.bool_]]) -> Same:
        """Return what compares documents of a batch with stored identities by a rule."""
        return lambda documents, entries: rule(
            self._identities(entries), take_rows(batch, documents)
        )

    def _entries_at(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the entries in these rows, -1 for -1."""
        return np.where(
            rows < 0, -1, self._columns.rows.numbers[rows].astype(np.int64) + self._base
        )

    def _search(
        self, batch: Columns, buckets: NDArray[Any], docs: NDArray[np.int64], known: Known
    ) -> None:
        parts = min(self._threads, max(1, len(docs) // _THREAD_DOCUMENTS))
        candidates = np.zeros(len(known.best), np.int64)

        def search(own: NDArray[np.int64]) -> None:
            self._tables.search(self._columns.rows, batch, buckets, own, known, candidates)

        self._each(search, np.array_split(docs, parts))
        compared = candidates[docs]
        self.candidates += int(compared.sum())
        classes = np.frexp(compared.astype(np.float64))[1]
        self._searches += np.bincount(
            np.minimum(classes, CANDIDATE_CLASSES - 1), minlength=CANDIDATE_CLASSES
        )

    def _add(
        self, batch: Columns, tags: Tags, outcome: NDArray[np.uint8], buckets: NDArray[Any]
    ) -> None:
        """Take in the documents whose outcome says so, in their order."""
        made = np.flatnonzero(outcome <= OUTCOME_SHORT)
        count, first = len(made), self._rows
        if not count:
            return
        self._reserve(count)
        rows = StoredRows(
            numbers=np.arange(self.entries - self._base, self.entries - self._base + count),
            prints=batch.prints[made],
            scopes=batch.scopes[made],
            features=batch.features[made],
            states=np.where(outcome[made] == OUTCOME_SHORT, SHORT, FULL).astype(np.uint8),
            sketches=batch.sketches[made],
            digest_tags=tags[made],
            position_tags=position_tags(
                batch.sources[made], batch.offsets[made], batch.values[made]
            ),
            id_tags=id_tags(batch.ids[made], batch.scopes[made], tags[made]),
        )
        self._columns.write(first, rows)
        keys = np.stack([keys_of(getattr(rows, name)) for name in TAGS], axis=1)
        self._known.add(np.arange(first, first + count), keys)
        is_full = outcome[made] != OUTCOME_SHORT
        added = first + np.flatnonzero(is_full)
        self._tables.finder.add(added, buckets[made[is_full]])
        self._rows += count
        self.entries += count
        self.live += count
        self.full += len(added)

    @property
    def numbers_used(self) -> int:
        """The number of row numbers that are in use: of live entries, and of those that left since
        the rows were last compacted.
        """
        return max(self._rows, self.entries - self._base)

    def _reserve(self, count: int) -> None:
        needed = self._rows + count
        if self.numbers_used + count > ROWS_MAX:
            raise ConfigurationError(
                f"The index has numbered {self.numbers_used} kept documents, and can number "
                f"{ROWS_MAX}. Nothing is lost, and documents wait. Begin a new log under another "
                "topic_prefix, and seed it with the documents that matter (`stream-dedup seed`)."
            )
        if needed > self._columns.room:
            self._columns.reserve(needed + needed // GROWN)

    def _compact(self) -> None:
        """Lay the rows out anew without the removed ones."""
        self._columns.keep(self._columns.rows.states[: self._rows] != REMOVED)
        self._rows = self.live
        if self.live:
            self._base += self._columns.renumber(self.live)
        self._seal_known()
        self._seal()

    def _seal_if_due(self) -> None:
        """Freeze active segments that have grown, table by table: verdicts wait meanwhile."""
        again = MERGED_AGAIN_IN_FILES if self._in_files else MERGED_AGAIN
        for finder, seal in (self._known, self._seal_known), (self._tables.finder, self._seal):
            for number in finder.due(_ACTIVE_MIN, again):
                self._fit(self._rows, self.full)
                if not finder.merge(number):
                    seal([number])
                self._beat()

    def _seal_known(self, numbers: Sequence[int] | None = None) -> None:
        """Sort what finds rows by digest, position and id, or some of these tables, from
        nothing.
        """
        states = self._columns.rows.states[: self._rows]
        self._known.freeze(self._keys_of_tags, states, SHORT, self.live, self._each, numbers)

    def _seal(self, numbers: Sequence[int] | None = None) -> None:
        """Sort everything into the frozen segments of the tables, or of some of them."""
        self._fit(self._rows, self.full)
        keys_of, states = (
            self._tables.keys_of(self._columns.read),
            self._columns.rows.states[: self._rows],
        )
        self._tables.finder.freeze(keys_of, states, FULL, self.full, self._each, numbers)

    def _keys_of_tags(self, numbers: Sequence[int], first: int, end: int) -> NDArray[np.uint64]:
        return np.stack(
            [keys_of(self._columns.read(TAGS[number], first, end)) for number in numbers]
        )

    def _each(self, work: Callable[[Any], None], parts: Sequence[Any]) -> None:
        """Do the work for each part, on all threads, and beat once a part: always from the caller's
        thread.
        """
        waiting = (
            [self._pool.submit(work, part) for part in parts]
            if self._pool and len(parts) > 1
            else []
        )
        for part, done in itertools.zip_longest(reversed(parts), reversed(waiting)):
            if (
                done is None or done.cancel()
            ):  # here too, from the end: a thread that only waits has to be woken
                work(part)
            else:
                done.result()
            self._beat()
