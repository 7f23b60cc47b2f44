"""The index role: a loop that reads the log, applies it with `LogIndex`, and writes answers to
`verdicts`.

Invariants: the log is read by assignment from the offset that the volume stores, never from a
committed offset; an answer is sent only after it was stored with its entries; after any failure of
the volume the process exits, and a restart replays the log. An index with a new volume, or one restored
from a snapshot, answers only records after the log's end at its start, and announces that offset
first. A snapshot is taken between two calls of `LogIndex.apply` (`snapshots`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import ConfigurationError, GoneError, StreamDedupError
from stream_dedup.domain.failpoints import Failpoints
from stream_dedup.index.index import LogIndex, name_log
from stream_dedup.index.snapshot import announce_place, clear_unfinished
from stream_dedup.index.storage.place import volume_in
from stream_dedup.index.tables.budget import Budget
from stream_dedup.index.tables.neighbours import ROWS_MAX
from stream_dedup.indexer.api import IndexApi
from stream_dedup.indexer.dependencies import IndexerDependencies
from stream_dedup.indexer.metrics import IndexMetrics
from stream_dedup.indexer.snapshots import CHILD_BYTES, Snapshots
from stream_dedup.kafka import LogAppender, LostTopicError, TopicIds, TopicIdWatcher, is_recreated
from stream_dedup.log import answers
from stream_dedup.log.records import DOCUMENTS_MAX
from stream_dedup.preflight.volume import other_log_message
from stream_dedup.serving.health import Health
from stream_dedup.serving.kafka_role import RoleFrame, RunningRole, run_role
from stream_dedup.serving.retention import RetentionWatch
from stream_dedup.settings.settings import Settings

NUMBERS_MAX = 4_200_000_000
"""Limit of the numbers of kept documents for an index without a window."""

_RECORDS_MAX = 16
_IDLE_SECONDS = 0.1
_GAUGES_SECONDS = 1.0
_LOG_SECONDS = 30.0
_HOT_BUCKET_ENTRIES = 20_000


def run(settings: Settings, stop: threading.Event) -> None:
    """Run an index until `stop` is set.

    Raises:
        ConfigurationError: an operator must change a setting (exit 78).
        StreamDedupError: the index cannot continue; a restart replays the log from the volume's
        offset.
    """
    dependencies = IndexerDependencies.of_process()
    metrics = IndexMetrics()
    api = IndexApi()
    topic = settings.topic_names.fingerprints
    frame = RoleFrame(
        topic,
        "opening the volume",
        metrics.registry,
        dependencies.logger,
        api.routes(),
        dependencies.failpoint,
        make_retention_watch=lambda health: RetentionWatch(
            settings, health, metrics, dependencies.logger
        ),
    )

    def make(role: RunningRole) -> Callable[[], None]:
        indexer = role.watch.begin(
            stop,
            lambda: Indexer(
                settings, metrics, role.health, api, dependencies, partial(role.watch.begin, stop)
            ),
        )
        return lambda: indexer.run(stop)

    run_role(settings, stop, frame, make)


class Indexer:
    """An index; `run` is its loop."""

    def __init__(
        self,
        settings: Settings,
        metrics: IndexMetrics,
        health: Health,
        api: IndexApi,
        dependencies: IndexerDependencies,
        retry: Callable[[Callable[[], LogAppender]], LogAppender] = lambda make: make(),
    ) -> None:
        """Open the volume and the Kafka clients, and announce the first answered offset if the
        volume is new.

        `retry(make)` calls `make`, which creates the writer, until the topic of answers exists.
        """
        self._metrics = metrics
        self._api = api
        self._health = health
        self._monotonic = dependencies.monotonic
        self._logger = dependencies.logger
        self._failpoints = Failpoints(dependencies.failpoint)
        self._memory = settings.memory
        self._warned: set[str] = set()
        self._announce_offset: int | None = None
        self._durable_by_offset: dict[int, bool] = {}  # whether each sent answer is durable
        self._next_gauges = self._next_log = 0.0
        self._recipe, self._rejected = "", 0
        names = settings.topic_names
        # Query Kafka before opening the volume, so that a failure leaves nothing open.
        admin = dependencies.make_admin(settings)
        topics = dependencies.check_topics("index", settings, names, admin)
        self._log, self._log_topic_id = names.fingerprints, topics[names.fingerprints].topic_id
        log_id = name_log(admin.cluster_id(), self._log_topic_id)
        self._topic_ids = TopicIdWatcher(
            lambda: dependencies.make_admin(settings).topic_ids([names.fingerprints]),
            dependencies.make_thread("asking"),
            dependencies.monotonic,
            self._logger,
        )
        client = f"index-{dependencies.host}"
        self._name = client.encode()
        self._log_reader = dependencies.make_log_reader(settings, names.fingerprints, client)
        # The index has caught up once it has applied the log to this end.
        low, self._end_at_start = self._log_reader.watermarks()
        self._retry, self._settings, self._dependencies = retry, settings, dependencies
        self._writer = self._make_writer()
        folder = volume_in(settings.index_dir)
        self._snapshots: Snapshots | None = None
        self._index = self._open_index(folder, log_id)
        try:
            self._start_at_volume_offset(folder, log_id, low, names.fingerprints)
        except BaseException:
            self._index.close()
            raise
        api.serve(self._index)
        for reason in self._index.rebuild_reasons:
            self._logger.warning("rebuilt from the volume: a slower start, no loss", what=reason)
        metrics.rebuilt_files.inc(len(self._index.rebuild_reasons))
        self._logger.info(
            "index started",
            folder=str(folder),
            applied=self._index.applied,
            log_end=self._end_at_start,
        )

    def _open_index(self, folder: Path, log_id: str) -> LogIndex:
        """Open the volume in `folder`; fill an empty one from a snapshot if that is configured."""
        settings = self._settings
        if folder != settings.index_dir:
            self._logger.warning(
                "the folder was created by a version with another layout. Its volume is kept for "
                "a rollback; if you do not need it, delete the other files of the folder",
                volume=str(folder),
                files=str(settings.index_dir),
            )
        clear_unfinished(folder)
        if settings.snapshots is not None:
            self._snapshots = Snapshots(
                settings, folder, self._dependencies.host, self._metrics, self._logger
            )
            if not (folder / "CURRENT").exists():
                self._snapshots.restore(log_id, self._report_restore)
        store = self._dependencies.open_store(folder)
        announce_place(folder, settings.snapshots)
        return LogIndex(
            store,
            Budget(self._memory or 0, folder, 0 if self._snapshots is None else CHILD_BYTES),
            self._health.beat,
            table_folder=self._dependencies.table_folder(folder),
        )

    def _start_at_volume_offset(self, folder: Path, log_id: str, low: int, topic: str) -> None:
        """Check that the volume belongs to this log, announce the first answered offset if needed,
        and read from the volume's offset.

        Raises:
            ConfigurationError: the volume belongs to another log, or its offset is outside the log,
            because records were deleted.
        """
        try:
            self._index.bind(log_id)
        except ConfigurationError as error:
            raise ConfigurationError(other_log_message(folder, topic)) from error
        applied = self._index.applied
        if low > applied or applied > self._end_at_start:
            raise ConfigurationError(_gap_message(folder, applied, topic, low, self._end_at_start))
        self._first_answered_offset = self._announce_if_new(applied)
        # Every index announces itself before its first answer. If the announcement has offset 0 in
        # the topic of answers, no index has answered before, and so no volume was lost.
        if not applied and self._end_at_start and self._announce_offset != 0:
            self._metrics.restored_empty.inc()
            self._logger.warning(
                "the volume is empty and the log was answered before: the index is rebuilt from "
                "the log's beginning. If this is not a new replica, its volume was lost; with "
                "STREAM_DEDUP_SNAPSHOTS it would start from a snapshot",
                folder=str(folder),
                log_end=self._end_at_start,
            )
        self._log_reader.start_at(applied)

    def _report_restore(self, size_bytes: int) -> None:
        self._health.beat()
        self._health.set_startup(0.0, f"restoring a snapshot: {size_bytes / 1e6:,.0f} MB so far")

    def _announce_if_new(self, applied: int) -> int:
        """Return the first log offset that this replica answers, and announce it if the volume is
        new or restored.
        """
        if applied > 0 and not self._index.restored:
            return self._index.answered_offset
        announce = answers.encode_announce(answers.Announce(self._end_at_start), self._index.format)
        self._writer.send(announce, self._name, self._record_announce_offset)
        self._writer.flush()
        self._index.mark_announced(self._end_at_start)
        return self._end_at_start

    def _record_announce_offset(self, offset: int) -> None:
        self._announce_offset = offset

    def run(self, stop: threading.Event) -> None:
        """Apply the log and answer until `stop` is set."""
        try:
            are_stored_answers_sent = False
            while not stop.is_set():
                try:
                    if not are_stored_answers_sent:
                        for offset, raw in self._index.answers_since(self._index.answered_offset):
                            self._send(offset, raw)
                        are_stored_answers_sent = True
                    self._run_once()
                except LostTopicError as error:
                    are_stored_answers_sent = False
                    self._reopen_writer(error)
            self._writer.flush()
            self._index.flush()
            self._logger.info(
                "index stopped", applied=self._index.applied, answered=self._index.answered_offset
            )
        finally:
            self._api.serve(None)
            if self._snapshots is not None:
                self._snapshots.close()
            self._log_reader.close()
            self._index.close()

    def _make_writer(self) -> LogAppender:
        topic = self._settings.topic_names.verdicts
        client = f"{self._name.decode()}-verdicts"
        return self._dependencies.make_verdict_writer(self._settings, topic, client)

    def _fetch_answers_topic(self) -> TopicIds:
        topic = self._settings.topic_names.verdicts
        return self._dependencies.make_admin(self._settings).topic_ids([topic])

    def _reopen_writer(self, error: LostTopicError) -> None:
        """Wait until the deleted topic of answers exists again, and open a writer for it. `run` then
        sends the answers again that were not durable; workers request the others again.

        Raises:
            GoneError: the role was stopped meanwhile.
        """
        self._logger.error("answers cannot be written", reason=str(error))

        def make() -> LogAppender:
            self._health.beat()
            if not self._fetch_answers_topic():
                raise GoneError(str(error))
            return self._make_writer()

        self._writer = self._retry(make)
        self._durable_by_offset.clear()
        self._logger.warning("answers are written again", since=self._index.answered_offset)

    def _run_once(self) -> None:
        self._health.beat()
        try:
            messages = self._log_reader.take_messages(_RECORDS_MAX, _IDLE_SECONDS)
        except GoneError as error:
            low, end = self._log_reader.watermarks()
            if low <= self._index.applied:
                raise
            raise ConfigurationError(
                _gap_message(self._settings.index_dir, self._index.applied, self._log, low, end)
            ) from error
        if messages:
            self._apply(messages)
        self._writer.poll()
        self._do_periodic_tasks()

    def _apply(self, messages: list[Message]) -> None:
        self._failpoints.hit("index.before-write", self._in_flight)
        with self._metrics.stage("judge"):
            new_answers = self._index.apply(
                [(message.offset, message.timestamp_ms or 0, message.value) for message in messages]
            )
        self._failpoints.hit("index.after-write", self._in_flight)
        if self._index.applied < self._end_at_start:
            self._failpoints.hit("index.in-rebuild", self._end_at_start - self._index.applied)
        for offset, raw in new_answers:
            if offset >= self._first_answered_offset:
                self._send(offset, raw)
        self._writer.poll()
        self._failpoints.hit("index.after-answer", self._in_flight)

    def _in_flight(self) -> int:
        """Return a lower bound of the number of log records whose documents are not committed, as
        far as the index knows.
        """
        return -(-self._index.statistics()["kept_verdicts"] // DOCUMENTS_MAX)

    def _send(self, offset: int, raw: bytes) -> None:
        """Send a stored answer; the answered offset advances past it once it and all earlier ones
        are durable.
        """
        self._durable_by_offset[offset] = False

        def mark_durable(_: int) -> None:
            self._durable_by_offset[offset] = True
            last_durable = None
            for sent_offset in list(self._durable_by_offset):
                if not self._durable_by_offset[sent_offset]:
                    break
                del self._durable_by_offset[sent_offset]
                last_durable = sent_offset
            if last_durable is not None:
                self._index.mark_delivered(last_durable + 1)

        self._writer.send(raw, self._name, mark_durable)

    def _do_periodic_tasks(self) -> None:
        now = self._monotonic()
        if now < self._next_gauges:
            return
        self._next_gauges = now + _GAUGES_SECONDS
        topic_ids = self._topic_ids.poll()
        if is_recreated(topic_ids, self._log, self._log_topic_id):
            raise StreamDedupError(
                f"The topic {self._log} was deleted and created again, so this index exits: its "
                "volume belongs to the old log."
            )
        if self._snapshots is not None:
            self._snapshots.advance(
                self._index,
                has_caught_up=self._index.applied >= max(1, self._end_at_start),
                report_step=lambda step: self._failpoints.hit(f"index.{step}", self._in_flight),
            )
        self._index.record_finished_tables()
        applied = self._index.applied
        statistics = self._index.statistics()
        self._metrics.update(statistics, self._index.searches())
        self._metrics.threshold.set(
            0.0 if self._index.plan is None else self._index.plan.similarity / 100
        )
        self._warn(statistics)
        declared = self._index.declared
        if declared is not None and declared.recipe != self._recipe:
            self._recipe = declared.recipe
            self._metrics.set_recipe(declared.recipe)
        behind = max(0, self._end_at_start - applied)
        if behind:
            self._report_replay(applied, now)
            self._health.set_ready(False, f"replaying the log: {behind} records remain")
        else:
            self._check_numbers(statistics["numbers_used"])
            self._health.set_startup(1.0, "caught up")
            self._health.set_ready(*self._readiness(applied, statistics))

    def _check_numbers(self, used: int) -> None:
        """Raise before the numbers of kept documents run out, unless a window frees some.

        Only an index that has caught up checks this, so that it first reads a window that was
        declared while it was down. The limit leaves numbers for the records that it applies before.

        Raises:
            ConfigurationError: the limit is reached.
        """
        if used > NUMBERS_MAX and self._index.window is None:
            raise ConfigurationError(
                f"The index has used {used} of {ROWS_MAX} row numbers for kept documents, and "
                "exits while it can still apply an order. Nothing is lost, but documents wait. "
                "Let old documents expire (`stream-dedup declare --window 365d`) and start the "
                "index again; or start a new log with another STREAM_DEDUP_TOPIC_PREFIX, and "
                "seed it with the documents to keep (`stream-dedup seed`)."
            )

    def _report_replay(self, applied: int, now: float) -> None:
        """Report how far the index has caught up."""
        sentence = f"replaying the log: {applied} of {self._end_at_start}"
        self._health.set_startup(applied / self._end_at_start, sentence)
        if now >= self._next_log:
            self._next_log = now + _LOG_SECONDS
            self._logger.info("replaying the log", applied=applied, log_end=self._end_at_start)

    def _readiness(self, applied: int, statistics: Mapping[str, int]) -> tuple[bool, str]:
        """Return whether an index that has caught up is ready, and the message; log a warning about
        newly rejected records.
        """
        rejected, last_offset = statistics["rejected"], statistics["rejected_at"]
        if rejected > self._rejected:
            self._logger.warning(
                "records of the log were rejected, because this version writes no such batches; "
                "the answers contain the reason",
                rejected=rejected,
                last_log_offset=last_offset,
            )
        self._rejected = rejected
        suffix = (
            f"; {rejected} records of the log were rejected, the last at log offset {last_offset}"
            if rejected
            else ""
        )
        if applied and self._index.declared is None:
            return False, (
                f"applied up to log offset {applied}, but no record of {self._log} declares a "
                f"recipe{suffix}"
            )
        return True, f"applied up to log offset {applied}{suffix}"

    def _warn(self, statistics: dict[str, int]) -> None:
        """Warn once about each cause that makes the index slow: memory, table files, a large
        bucket.
        """
        if self._memory and statistics["bytes_in_memory"] > 0.6 * self._memory:
            self._warn_once(
                "The index approaches its memory budget; beyond it, tables are moved to files and "
                "look-ups become slower. Raise STREAM_DEDUP_MEMORY.",
                bytes_in_memory=statistics["bytes_in_memory"],
                bytes_mapped=statistics["bytes_mapped"],
                memory=self._memory,
            )
        if statistics["tables_unwritten"]:
            self._warn_once(
                "A table file could not be written, so the next start takes longer; nothing is "
                "lost. Free space on that disk.",
                tables=statistics["tables_unwritten"],
            )
        full = statistics["representatives_full"]
        if statistics["hottest_bucket"] > max(_HOT_BUCKET_ENTRIES, full // 100):
            self._warn_once(
                "One bucket contains far more representatives than the others; each look-up of it "
                "reads all of them. Many documents share a block of their fingerprints, because of "
                "a common template or an attack.",
                hottest_bucket=statistics["hottest_bucket"],
                representatives=full,
            )

    def _warn_once(self, sentence: str, **figures: int) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._logger.warning(sentence, **figures)


def _gap_message(folder: Path, applied: int, topic: str, low: int, end: int) -> str:
    """Return the message about a volume whose offset is outside the log, with the remedy."""
    return (
        f"The volume {folder} has applied the log up to offset {applied}, but {topic} contains "
        f"offsets {low} to {end}: the volume belongs to another log, or the log lost records. If "
        "the topic is correct, delete the folder, and the index is rebuilt; if records are lost, "
        "restore the topic first."
    )
