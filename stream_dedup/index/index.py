"""The index: log records in, answers out, everything that they led to in one atomic write.

The order of `LogIndex.apply`:
  1  check that the records follow on what was applied
  2  decode them
  3  step by step: `apply.step`, in memory
  4  gather entries, verdicts, watermarks, answers, chain and the next log offset into one write
  5  write it; only then the answers are given out

Invariants: the volume always holds the state after a whole number of log records, and says which;
an answer given out can be read back until its delivery was confirmed; after any failure between 3
and 5 memory may be ahead of the volume, so the index refuses all further work until it is opened
again.

Threads: one thread applies; `similar` and `statistics` may be called from others at any time. A
lock is held for one log record at a time (some milliseconds), so a look-up never waits for a whole
backlog; it may see entries whose write is still under way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stream_dedup.domain.errors import (
    ConfigurationError,
    FormatError,
    InvariantError,
    OtherFormatError,
    StoreError,
    VolumeError,
)
from stream_dedup.domain.plan import Plan
from stream_dedup.index import contents
from stream_dedup.index.digest import StateDigest, state_digest
from stream_dedup.index.look_up import (
    BucketSizes,
    Similar,
    asked_limbs,
    check_sketch,
    described,
    ids_of,
)
from stream_dedup.index.rules.apply import check_offsets, step
from stream_dedup.index.rules.declaration import Declaration
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.rules.window import Window
from stream_dedup.index.tables.budget import Budget, PlanMemory
from stream_dedup.index.tables.neighbours import Neighbours
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.beside import KeptFiles
from stream_dedup.index.volume.contract import Store, Undelivered, Writes
from stream_dedup.index.volume.entries import Entries
from stream_dedup.log.records import LogRecord, decode


class LogIndex:
    """An index on one store. Opening it reads the volume; an empty one begins at log offset 0.

    `budget` bounds the process's memory: see `index.tables.budget`. `beat` is called now and then
    in a step that may take long. In the folder `keep_in`, which is this index's alone, rows and tables
    are kept, so that opening is quick: see `beside`.

    Raises:
        ConfigurationError: the entries do not fit into the budget.
        OtherFormatError: the volume is of a newer version, or of a log in a newer format.
        StoreError: the volume is damaged or cannot be read.
    """

    def __init__(
        self,
        store: Store,
        budget: Budget | None = None,
        beat: Callable[[], None] = lambda: None,
        *,
        keep_in: Path | None = None,
    ) -> None:
        self._store = store
        self._beat = beat
        self._budget = budget
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._writes = Writes()
        self._applied = self._answered = 0
        self._log: str | None = None
        self._restored = False
        with contents.damage_refuses_the_volume():
            self._read_volume(keep_in)

    @property
    def applied(self) -> int:
        """The next log offset to read; 0 for a new volume."""
        return self._applied

    @property
    def answered_offset(self) -> int:
        """All answers to log offsets below it were delivered."""
        return self._answered

    @property
    def declared(self) -> Declaration | None:
        """What the log declared; None before its first declaration."""
        return self._state.declared

    @property
    def plan(self) -> Plan | None:
        """The plan in force: the declared one, or what a control record changed it to."""
        return self._state.plan

    @property
    def past_plans(self) -> list[tuple[int, int, str]]:
        """The plans before it: (log offset and log time of the record that ended it, its id)."""
        return self._state.past_plans

    @property
    def window(self) -> Window | None:
        """The window in force, likewise; None is no window."""
        return self._state.window

    @property
    def format(self) -> int:
        """The format in which answers are written, likewise."""
        return self._state.format

    @property
    def chain(self) -> bytes:
        """The running digest of all answers."""
        return self._state.chain

    @property
    def log(self) -> str | None:
        """The log that the volume follows, as `bind` named it."""
        return self._log

    @property
    def restored(self) -> bool:
        """Whether the volume came from a snapshot and nobody was told since from where it answers;
        see `announced`.
        """
        return self._restored

    def announced(self, answers_from: int) -> None:
        """Take note that the answers below a log offset, which others gave long ago, are not owed;
        durable at once.
        """
        self.answered(answers_from)
        self._writes.delete(layout.KEY_RESTORED)
        self.flush()
        self._restored = False

    def bind(self, log: str) -> None:
        """Tie the volume to one log, named by its cluster and topic id; the first call writes it
        down.

        Raises:
            ConfigurationError: the volume follows another log.
        """
        self._check()
        if self._log is None:
            if self._applied:
                raise InvariantError(
                    "The index applied records of a log that was not named; call bind() first."
                )
            self._writes.put(layout.KEY_LOG, log.encode("utf-8"))
            self.flush()
            self._log = log
        elif self._log != log:
            raise ConfigurationError(
                f"The index volume follows the log {self._log!r}, and this is {log!r}: the topic "
                "was made anew, or the volume belongs to another cluster. Give the index the "
                "volume of this log, or an "
                "empty one to rebuild."
            )

    def apply(self, records: Sequence[tuple[int, int, bytes | None]]) -> list[tuple[int, bytes]]:
        """Apply (log offset, append time in ms, value) in log order and return (log offset, answer)
        where there is one.

        Everything is durable when it returns. How records are grouped into calls changes nothing.

        Raises:
            InvariantError: the records do not follow on `applied`: some were trimmed, skipped, or
            applied before. OtherFormatError: a record says what this version does not know; those
            before it are applied, and their
                answers can be read with `answers_since`.
            StoreError: the volume failed; open it again.
        """
        self._check()
        check_offsets(self._applied, records)
        future: OtherFormatError | None = None
        decoded: list[tuple[int, int, LogRecord | FormatError]] = []
        for log_offset, append_ms, value in records:
            record = _decode(log_offset, value)
            if isinstance(record, OtherFormatError):
                future = record
                break
            decoded.append((log_offset, append_ms, record))
        try:
            answers = self._apply(decoded)
            if answers or future is None or self._applied > records[0][0]:
                self._write()
        except FormatError as error:  # a page of the volume, not a record: those are values
            self._failure = str(error)
            raise VolumeError(str(error)) from error
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            raise
        if future is None:
            return answers
        raise future

    def _apply(
        self, records: Sequence[tuple[int, int, LogRecord | FormatError]]
    ) -> list[tuple[int, bytes]]:
        answers: list[tuple[int, bytes]] = []
        for log_offset, append_ms, record in records:
            with self._lock:
                answer = step(self._state, log_offset, append_ms, record, self._open_rooms)
                self._applied = log_offset + 1
            if answer is not None:
                answers.append((log_offset, answer))
                if log_offset >= self._answered:
                    self._unanswered.keep(self._writes, log_offset, answer)
        return answers

    def answers_since(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Return (log offset, answer) of the stored answers from a log offset on, as they were
        first given out.
        """
        self._check()
        yield from self._unanswered.since(offset)

    def answered(self, offset: int) -> None:
        """Take note that all answers below a log offset were delivered; the next write makes it
        durable.

        An offset above `applied` says that nobody waits for the answers up to there: they are not
        stored at all.
        """
        if offset <= self._answered:
            return
        self._answered = offset
        self._unanswered.delivered(self._writes, offset)

    def flush(self) -> None:
        """Write the answered offset now."""
        self._check()
        try:
            self._write()
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            raise

    def keep_up(self) -> None:
        """Have the volume name the files beside it that were finished since the last write; costs
        nothing if there are none.
        """
        if self._beside is not None and self._beside.is_behind:
            self.flush()

    @property
    def made_anew(self) -> tuple[str, ...]:
        """What of the files beside the volume did not fit at opening, and was made anew; empty
        after most openings.
        """
        return () if self._beside is None else tuple(self._beside.refused)

    def similar(
        self,
        print_limbs: Sequence[int],
        text_digest: bytes,
        features: int,
        scope: int = 0,
        most: int = 100,
        sketch: bytes = b"",
        similarity: int | None = None,
    ) -> Similar:
        """Return what the index keeps of a text: the representative with its digest, then those
        within reach, nearest first.

        `print_limbs` are the print's 64-bit limbs, low limb first; `features` its feature count:
        below the floor it is found by its digest alone. `similarity`, in per cent, takes the place
        of the plan's. Safe from any thread.

        Raises:
            ConfigurationError: the print has not as many limbs as those in the index, or nothing
            was declared yet; or the plan
                compares no sketches, and a similarity is given.
        """
        self._check()
        with self._lock:
            state, tables, entries = self._state, self._state.neighbours, self._state.entries
            if state.declared is None or state.plan is None:
                raise ConfigurationError(
                    "No record of the log declares a recipe yet, so nothing can be looked up in "
                    "this index."
                )
            plan = state.plan if similarity is None else state.plan.with_similarity(similarity)
            is_short = features < state.declared.floor
            if tables is None or entries is None:
                return Similar(self._applied, plan, (), 0, by_digest_only=is_short)
            limbs = asked_limbs(tables, print_limbs)
            number = tables.find_digest(text_digest, scope)
            if not is_short:
                check_sketch(state.plan, tables, sketch)
            near = (
                [] if is_short else tables.alike(limbs, scope, features, sketch, plan.alike_mins[0])
            )
            # The same text has the same print, unless the entry is short: then only its digest was
            # kept to be compared.
            found = [(distance, entry) for distance, entry in near if entry != number]
            found = [(0, number), *found] if number >= 0 else found
            shown = tuple(described(entries, state.sources, found[:most]))
            return Similar(self._applied, plan, shown, len(found), is_short)

    def kept_ids(self, ids: Sequence[bytes] | None = None) -> list[bytes]:
        """Return the id of each representative, in log order; with `ids` of those that have one of
        these. Any thread.
        """
        self._check()
        with self._lock:
            return [] if self._state.entries is None else ids_of(self._state.entries, ids)

    def memory_for(self, plan: Plan) -> PlanMemory:
        """Return what the live entries need under a plan, and what there is. Safe from any thread;
        changes nothing.
        """
        self._check()
        with self._lock:
            tables = self._state.neighbours
            entries, least = (0, 0) if tables is None else (tables.live, tables.least_bytes(plan))
            allowed, beside = (
                (self._budget.memory_bytes, self._budget.beside_bytes) if self._budget else (0, 0)
            )
            return PlanMemory(entries, Budget.least_for(least + beside), allowed)

    def buckets(self, most: int = 10) -> BucketSizes:
        """Return how full the buckets are, with the `most` hottest. Safe from any thread: one table
        is held at a time.
        """
        self._check()
        parts: list[BucketSizes] = []
        counted: Plan | None = None
        while True:
            with self._lock:
                tables = self._state.neighbours
                if tables is None:
                    break
                if counted != tables.plan:  # other tables than those before
                    counted = tables.plan
                    parts.clear()
                lengths, count = tables.bucket_lengths(len(parts)), tables.tables
                full = tables.full_blocks(len(parts))
            parts.append(BucketSizes.of(len(parts), lengths, most, full))
            if len(parts) == count:
                break
        return BucketSizes.together(parts, most)

    def state_digest(self) -> StateDigest:
        """Return the digest of the stored state (see `digest`), by a pass over the volume; call it
        from the applying thread.
        """
        self._check()
        return state_digest(self._store)

    def checkpoint(self, path: Path) -> None:
        """Make a second volume at `path`, which must not exist, of what is stored; the index goes
        on whether it works or not.

        Raises:
            StoreError: it could not be made; there is nothing at `path` that could be taken for a
            whole one.
        """
        self._check()
        self._store.checkpoint(path)

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics and `stats`; sizes in bytes. One table's buckets are looked
        at, another at each call.
        """
        self._check()
        with self._lock:
            state, tables = self._state, self._state.neighbours
            entries = 0 if state.entries is None else state.entries.count
            return {
                "applied": self._applied,
                "answered": self._answered,
                "unanswered": len(self._unanswered),
                "entries": entries,
                "numbers_used": 0 if tables is None else tables.numbers_used,
                "representatives_full": 0 if tables is None else tables.full,
                "representatives_digest_only": 0 if tables is None else tables.live - tables.full,
                "removed": 0 if tables is None else entries - tables.live,
                "evicted_window": state.evicted["window"],
                "evicted_forget": state.evicted["forget"],
                "evicted_retract": state.evicted["retract"],
                "generations": len(state.generations),
                "log_time_ms": state.generations.now_ms,
                "kept_verdicts": len(state.positions),
                "rejected": state.rejected,
                "rejected_at": state.rejected_at,
                "ignored_control_records": state.ignored,
                "candidates": 0 if tables is None else tables.candidates,
                "hottest_bucket": 0 if tables is None else tables.look_at_buckets(),
                "full_blocks": 0 if tables is None else tables.full_blocks(),
                "bytes_in_memory": 0 if tables is None else tables.bytes_used,
                "bytes_mapped": 0 if tables is None else tables.bytes_mapped,
                "bytes_on_disk": self._store.size_bytes()
                + (self._beside.size_bytes() if self._beside else 0),
                "tables_unwritten": self._beside.unwritten if self._beside else 0,
            }

    def searches(self) -> tuple[int, ...]:
        """Return how many documents were searched for since opening, by how many prints that
        compared.

        Place k counts those with 2^(k-1) to 2^k - 1, place 0 those with none; empty before the
        first batch. Any thread.
        """
        with self._lock:
            tables = self._state.neighbours
            return () if tables is None else tables.searches

    def close(self) -> None:
        """Release the volume; what `answered` noted since the last write is lost unless `flush` was
        called.
        """
        with self._lock:
            self._failure = "It was closed."
            if self._beside is not None:
                self._beside.close()
            self._store.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise StoreError(
                f"The index cannot go on: {self._failure} Open it again; it resumes from its "
                "volume."
            )

    def _write(self) -> None:
        writes = self._writes
        with self._lock:
            self._state.add_writes(writes, self._applied, self._answered)
            if self._beside is not None and self._state.neighbours is not None:
                self._beside.add_writes(writes, self._state.neighbours.as_kept())
            self._store.write(writes.puts, writes.deletes, writes.ranges)
            if self._beside is not None:
                self._beside.written()
        self._writes = Writes()

    def _open_rooms(self, state: IndexState, live: int = 0) -> tuple[int, int]:
        """Make the rooms of a state; return how many of its `live` entries files gave, and the
        first entry after them.
        """
        if state.plan is None:
            raise InvariantError(
                "A batch was judged before a plan was declared; this is a fault of the program."
            )
        entries = state.entries = Entries(
            self._store, state.print_limbs, state.sketch_bytes, self._beat
        )
        held = state.plan, state.print_limbs, entries.identities
        limits = self._budget, state.sketch_bytes, self._beat
        state.neighbours = Neighbours(*held, None, *limits, beside=self._beside)
        state.neighbours.ask_for_memory(state.plan)
        return state.neighbours.take_rows(live)

    def _read_volume(self, keep_in: Path | None) -> None:
        found = contents.read(self._store)
        meta = found.meta
        self._beside = None if keep_in is None else KeptFiles(self._store, keep_in)
        self._state = found.state
        self._applied, self._answered = meta.applied, meta.answered
        self._unanswered = Undelivered(self._store, layout.answer_key, found.unanswered)
        self._log, self._restored = found.log, found.restored
        if meta.print_limbs:
            self._read_entries(meta.entries, meta.live)

    def _read_entries(self, count: int, live: int) -> None:
        """Read the rows beside the volume, and the entries that came after them; all of these where
        that does not fit.
        """
        state = self._state
        kept, first = self._open_rooms(state, live)
        entries, neighbours = state.rooms()
        try:
            neighbours.load(entries.load(count, live - kept, first), live, count)
        except FormatError as error:
            if self._beside is None or not kept:
                raise
            self._beside.refused.append(str(error))
            self._beside.begin()
            self._read_entries(count, live)
            return
        if self._beside is not None:
            said = Writes()
            self._beside.add_writes(said, neighbours.as_kept())
            self._store.write(said.puts, said.deletes, said.ranges)
            self._beside.written()


def _decode(log_offset: int, value: bytes | None) -> LogRecord | FormatError:
    """Return what a log record holds; a malformed one is a value too, because it is answered like
    any other.
    """
    try:
        return decode(value, f"Log record {log_offset}")
    except FormatError as error:
        return error
