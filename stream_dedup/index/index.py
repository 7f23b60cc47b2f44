"""The index: reads log records, returns answers, and writes all their effects in one atomic write.

The steps of `LogIndex.apply`:
  1  check that the records follow the applied ones
  2  decode them
  3  apply them in memory, one by one (`apply.step`)
  4  collect entries, verdicts, watermarks, answers, chain and the next log offset into one write
  5  perform that write, and return the answers

Invariants: the volume always contains the state after a whole number of log records, and that
number. A returned answer can be read again until its delivery is confirmed. After a failure in
steps 3 to 5 memory may be ahead of the volume, so the index rejects all calls until it is opened
again.

Threads: one thread applies records; others may call `similar` and `statistics` at any time. `apply`
takes the lock for one log record at a time (some milliseconds), so that a look-up never waits for a
whole backlog. A look-up may see entries that are not written yet.
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
    Similar,
    check_limbs,
    check_sketch,
    describe_entries,
    read_ids,
)
from stream_dedup.index.rules.apply import check_offsets, step
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.storage import layout
from stream_dedup.index.storage.contract import Store, Undelivered, Writes
from stream_dedup.index.storage.entries import Entries
from stream_dedup.index.storage.table_files import TableFiles
from stream_dedup.index.tables.budget import Budget, PlanMemory
from stream_dedup.index.tables.neighbours import Neighbours
from stream_dedup.log.controls import Declaration, Window
from stream_dedup.log.records import LogRecord, decode


class LogIndex:
    """An index on one store. Opening it reads the volume; an empty one begins at log offset 0.

    `budget` limits the process's memory: see `index.tables.budget`. `beat` is called during long
    work, so that the role counts as alive. With `table_folder`, a folder for this index alone, rows
    and tables are also written to table files, which make opening quick: see `table_files`.

    Raises:
        ConfigurationError: the entries do not fit into the budget.
        OtherFormatError: a newer version wrote the volume, or its log has a newer format.
        StoreError: the volume is damaged or cannot be read.
    """

    def __init__(
        self,
        store: Store,
        budget: Budget | None = None,
        beat: Callable[[], None] = lambda: None,
        *,
        table_folder: Path | None = None,
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
        with contents.raise_volume_errors():
            self._read_volume(table_folder)

    @property
    def applied(self) -> int:
        """The next log offset to read; 0 for a new volume."""
        return self._applied

    @property
    def answered_offset(self) -> int:
        """The lowest log offset whose answer may be undelivered; all earlier answers are delivered."""
        return self._answered

    @property
    def declared(self) -> Declaration | None:
        """The log's declaration; None before the first."""
        return self._state.declared

    @property
    def plan(self) -> Plan | None:
        """The plan in force: the declared one, or that of a later control record."""
        return self._state.plan

    @property
    def past_plans(self) -> list[tuple[int, int, str]]:
        """Earlier plans: (log offset and log time of the record that ended it, plan id)."""
        return self._state.past_plans

    @property
    def window(self) -> Window | None:
        """The window in force; None for no window."""
        return self._state.window

    @property
    def format(self) -> int:
        """The format of answers in force."""
        return self._state.format

    @property
    def chain(self) -> bytes:
        """The running digest of all answers."""
        return self._state.chain

    @property
    def log(self) -> str | None:
        """The log that the volume follows, as passed to `bind`."""
        return self._log

    @property
    def restored(self) -> bool:
        """Whether the volume is from a snapshot, and its index has not yet announced the first log
        offset that it answers (`mark_announced`).
        """
        return self._restored

    def mark_announced(self, first_answered_offset: int) -> None:
        """Record that this index does not deliver answers below a log offset, because other replicas
        do. This is durable at once.
        """
        self.mark_delivered(first_answered_offset)
        self._writes.delete(layout.KEY_RESTORED)
        self.flush()
        self._restored = False

    def bind(self, log: str) -> None:
        """Bind the volume to one log, named by its cluster and topic id; the first call stores the
        name.

        Raises:
            ConfigurationError: the volume follows another log.
        """
        self._check()
        if self._log is None:
            if self._applied:
                raise InvariantError(
                    "The index applied records before bind() named their log; this is an "
                    "internal error."
                )
            self._writes.put(layout.KEY_LOG, log.encode("utf-8"))
            self.flush()
            self._log = log
        elif self._log != log:
            raise ConfigurationError(
                f"The index volume belongs to the log {self._log!r}, but the log of this cluster "
                f"is {log!r}: the topic was created again, or the volume belongs to another "
                "cluster. Start the index with the volume of this log, or with an empty one; it "
                "is then rebuilt from the log."
            )

    def apply(self, records: Sequence[tuple[int, int, bytes | None]]) -> list[tuple[int, bytes]]:
        """Apply (log offset, append time in ms, value) in log order; return (log offset, answer) of
        each answer.

        Everything is durable when it returns. The result does not depend on how records are grouped
        into calls.

        Raises:
            InvariantError: the records do not follow `applied`: some are missing, or applied already.
            OtherFormatError: a record is of a newer format. Those before it are applied, and
                `answers_since` yields their answers.
            StoreError: the volume failed; open it again.
        """
        self._check()
        check_offsets(self._applied, records)
        newer_format_error: OtherFormatError | None = None
        decoded: list[tuple[int, int, LogRecord | FormatError]] = []
        for log_offset, append_ms, value in records:
            record = _decode(log_offset, value)
            if isinstance(record, OtherFormatError):
                newer_format_error = record
                break
            decoded.append((log_offset, append_ms, record))
        try:
            answers = self._apply(decoded)
            # Write nothing if the first record already is of a newer format.
            if answers or newer_format_error is None or self._applied > records[0][0]:
                self._write()
        except FormatError as error:  # in stored data; the records are decoded already
            self._failure = str(error)
            raise VolumeError(str(error)) from error
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            raise
        if newer_format_error is None:
            return answers
        raise newer_format_error

    def _apply(
        self, records: Sequence[tuple[int, int, LogRecord | FormatError]]
    ) -> list[tuple[int, bytes]]:
        answers: list[tuple[int, bytes]] = []
        for log_offset, append_ms, record in records:
            with self._lock:
                answer = step(self._state, log_offset, append_ms, record, self._open_entries)
                self._applied = log_offset + 1
            if answer is not None:
                answers.append((log_offset, answer))
                if log_offset >= self._answered:
                    self._unanswered.add(self._writes, log_offset, answer)
        return answers

    def answers_since(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield (log offset, answer) of the stored answers from a log offset on, with the bytes that
        `apply` returned.
        """
        self._check()
        yield from self._unanswered.since(offset)

    def mark_delivered(self, offset: int) -> None:
        """Record that all answers below a log offset are delivered; the next write makes this
        durable.

        The offset may be higher than `applied`: then the answers up to it are never stored, because
        nobody waits for them.
        """
        if offset <= self._answered:
            return
        self._answered = offset
        self._unanswered.delete_below(self._writes, offset)

    def flush(self) -> None:
        """Write the answered offset now."""
        self._check()
        try:
            self._write()
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            raise

    def record_finished_tables(self) -> None:
        """Record in the volume the table files that were finished since the last write, if there are
        any.
        """
        if self._files is not None and self._files.has_unnamed_files:
            self.flush()

    @property
    def rebuild_reasons(self) -> tuple[str, ...]:
        """Why parts of the table files were rebuilt at opening; empty after most openings."""
        return () if self._files is None else tuple(self._files.rebuild_reasons)

    def similar(
        self,
        print_limbs: Sequence[int],
        text_digest: bytes,
        features: int,
        scope: int = 0,
        limit: int = 100,
        sketch: bytes = b"",
        similarity: int | None = None,
    ) -> Similar:
        """Return the representatives near a text, at most `limit`: the one with the same digest, then
        others, nearest first.

        `print_limbs` are the fingerprint's 64-bit limbs, low limb first. `features` is the text's
        number of features: with fewer than the floor, only an equal text is found. `similarity`, in
        per cent, replaces the plan's. Any thread may call it.

        Raises:
            ConfigurationError: the print has another number of limbs than those in the index, nothing was
                declared yet, or the plan compares no sketches and a similarity is given.
        """
        self._check()
        with self._lock:
            state, neighbours, entries = self._state, self._state.neighbours, self._state.entries
            if state.declared is None or state.plan is None:
                raise ConfigurationError(
                    "The log is empty, so the index contains no documents. Try again after the "
                    "first worker has started."
                )
            plan = state.plan if similarity is None else state.plan.with_similarity(similarity)
            is_short = features < state.declared.floor
            if neighbours is None or entries is None:
                return Similar(self._applied, plan, (), 0, by_digest_only=is_short)
            limbs = check_limbs(neighbours, print_limbs)
            same_text = neighbours.find_digest(text_digest, scope)
            if not is_short:
                check_sketch(state.plan, neighbours, sketch)
            near = (
                []
                if is_short
                else neighbours.find_near(limbs, scope, features, sketch, plan.alike_mins[0])
            )
            # The entry with the same text is listed first, with distance 0.
            ranked = [(distance, entry) for distance, entry in near if entry != same_text]
            ranked = [(0, same_text), *ranked] if same_text >= 0 else ranked
            results = tuple(describe_entries(entries, state.sources, ranked[:limit]))
            return Similar(self._applied, plan, results, len(ranked), is_short)

    def representative_ids(self, ids: Sequence[bytes] | None = None) -> list[bytes]:
        """Return the ids of the representatives, in log order; with `ids`, only those. Any thread
        may call it.
        """
        self._check()
        with self._lock:
            return read_ids(self._state, ids)

    def memory_for(self, plan: Plan) -> PlanMemory:
        """Return the memory that the live entries need with a plan, and the memory allowed. Any thread
        may call it.
        """
        self._check()
        with self._lock:
            neighbours = self._state.neighbours
            entries, least_bytes = (
                (0, 0) if neighbours is None else (neighbours.live, neighbours.least_bytes(plan))
            )
            allowed, other_process = (
                (self._budget.memory_bytes, self._budget.other_process_bytes)
                if self._budget
                else (0, 0)
            )
            return PlanMemory(entries, Budget.least_for(least_bytes + other_process), allowed)

    def state_digest(self) -> StateDigest:
        """Return the digest of the stored state (see `digest`). Call it in the thread that applies
        records.
        """
        self._check()
        return state_digest(self._store)

    def checkpoint(self, path: Path) -> None:
        """Copy the volume to `path`, which must not exist; the index continues even if this fails.

        Raises:
            StoreError: it failed; `path` does not contain a volume that could be opened.
        """
        self._check()
        self._store.checkpoint(path)

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics and `stats`, sizes in bytes. Each call measures the buckets of
        one table, the next one in turn.
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
                "hottest_bucket": 0 if tables is None else tables.measure_next_table(),
                "full_blocks": 0 if tables is None else tables.full_blocks(),
                "bytes_in_memory": 0 if tables is None else tables.bytes_used,
                "bytes_mapped": 0 if tables is None else tables.bytes_mapped,
                "bytes_on_disk": self._store.size_bytes()
                + (self._files.size_bytes() if self._files else 0),
                "tables_unwritten": self._files.unwritten if self._files else 0,
            }

    def searches(self) -> tuple[int, ...]:
        """Return a histogram since opening: how many documents were compared with how many
        fingerprints.

        Bucket 0 counts documents that were compared with none, bucket k those with 2^(k-1) to
        2^k - 1. It is empty before the first batch. Any thread may call it.
        """
        with self._lock:
            tables = self._state.neighbours
            return () if tables is None else tables.searches

    def close(self) -> None:
        """Close the volume. Call `flush` before, or the offset of the last `mark_delivered` is
        lost.
        """
        with self._lock:
            self._failure = "It was closed."
            if self._files is not None:
                self._files.close()
            self._store.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise StoreError(f"The index has stopped: {self._failure}")

    def _write(self) -> None:
        writes = self._writes
        with self._lock:
            self._state.add_writes(writes, self._applied, self._answered)
            if self._files is not None and self._state.neighbours is not None:
                self._files.add_writes(writes, self._state.neighbours.rows_in_files())
            self._store.write(writes.puts, writes.deletes, writes.ranges)
            if self._files is not None:
                self._files.note_written()
        self._writes = Writes()

    def _open_entries(self, state: IndexState, live: int = 0) -> tuple[int, int]:
        """Open the entries of a state.

        Return (how many of the `live` entries were loaded from table files, the first entry after
        them).
        """
        if state.plan is None:
            raise InvariantError(
                "A batch was judged before a plan was declared; this is an internal error."
            )
        entries = state.entries = Entries(self._store, state.print_limbs, state.sketch_bytes)
        state.neighbours = Neighbours(
            state.plan,
            state.print_limbs,
            entries.identities,
            budget=self._budget,
            sketch_bytes=state.sketch_bytes,
            beat=self._beat,
            files=self._files,
        )
        state.neighbours.check_memory(state.plan)
        return state.neighbours.load_rows(live)

    def _read_volume(self, table_folder: Path | None) -> None:
        stored = contents.read(self._store)
        meta = stored.meta
        self._files = None if table_folder is None else TableFiles(self._store, table_folder)
        self._state = stored.state
        self._applied, self._answered = meta.applied, meta.answered
        self._unanswered = Undelivered(self._store, layout.answer_key, stored.unanswered)
        self._log, self._restored = stored.log, stored.restored
        if meta.print_limbs:
            self._read_entries(meta.entries, meta.live)

    def _read_entries(self, count: int, live: int) -> None:
        """Load rows from table files, and the entries after them from the volume. If a file is wrong,
        load all from the volume.
        """
        state = self._state
        loaded, first = self._open_entries(state, live)
        entries, neighbours = state.require_stores()
        try:
            neighbours.load(entries.load(count, live - loaded, first), live, count)
        except FormatError as error:
            if self._files is None or not loaded:
                raise
            self._files.rebuild_reasons.append(str(error))
            self._files.withdraw_names()
            self._read_entries(count, live)
            return
        if self._files is not None:
            writes = Writes()
            self._files.add_writes(writes, neighbours.rows_in_files())
            self._store.write(writes.puts, writes.deletes, writes.ranges)
            self._files.note_written()


def name_log(cluster_id: str, topic_id: bytes) -> str:
    """Return the name of a log for `LogIndex.bind`, from its cluster and the id of its topic."""
    return f"{cluster_id}/{topic_id.hex()}"


def _decode(log_offset: int, value: bytes | None) -> LogRecord | FormatError:
    """Return the decoded log record, or its error: a damaged record gets an answer too."""
    try:
        return decode(value, f"Log record {log_offset}")
    except FormatError as error:
        return error
