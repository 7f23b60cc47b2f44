"""Run the role search: it fills the full-text engine from `unique` and `duplicates`, and answers
queries. It writes nothing to Kafka.

The states of the role:

    opening      opens the folder, and exits if it has other tokenisation settings; the documents in
                 it can be found at once
    waiting      for Kafka; exits if the folder was filled from another cluster's topics
    forgetting   reads the log to its end for forgotten ids, before documents are added
    catching up  reads the outputs to the ends that they had at the start; not ready
    held up      the object store of texts does not answer; only the log is read
    following    ready; adds new documents within seconds; removes forgotten and expired ones

Invariants: the partitions of outputs and log are assigned, and read from the offsets in the engine's
last commit; a forgotten document is not shown, even if its `forget` is read before the document; no
verdict waits for this role, whose process has a lower priority than those of other roles; after a
failure of the engine the process ends, and a restart continues from the last commit.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Self

import structlog
from structlog.typing import FilteringBoundLogger

from stream_dedup.console.assembly import pages_of, sources_of
from stream_dedup.console.outputs import decision_of
from stream_dedup.domain.document import Message, TopicPartitionKey, shorten_id
from stream_dedup.domain.errors import (
    AwayError,
    BrokerError,
    ConfigurationError,
    StreamDedupError,
)
from stream_dedup.domain.failpoints import VARIABLE, Failpoints
from stream_dedup.domain.hosts import HostNames
from stream_dedup.fingerprinting import Languages
from stream_dedup.kafka import Admin, PartitionsReader, ReusedAdmin, require_topics
from stream_dedup.log.headers import parse_log_place
from stream_dedup.orders.forget import id_in_log
from stream_dedup.search.api import SearchApi
from stream_dedup.search.facts import EngineCheckpoint, TextFacts
from stream_dedup.search.finding import Finder
from stream_dedup.search.forgotten import ForgottenId, ForgottenIds, forgotten_in, key_of
from stream_dedup.search.metrics import SearchMetrics
from stream_dedup.search.output_texts import OutputText, OutputTexts
from stream_dedup.search.query import words_of
from stream_dedup.search.texts import TextIndex
from stream_dedup.serving.health import Health
from stream_dedup.serving.kafka_role import RoleFrame, RunningRole, run_role
from stream_dedup.serving.process import trim_memory
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

_logger = structlog.get_logger("stream_dedup.search")

_NICENESS: Final = 10
_RECORDS_MAX: Final = 500
_IDLE_SECONDS: Final = 0.2
_COMMIT_SECONDS: Final = 1.0
_CATCH_UP_COMMIT_SECONDS: Final = 15.0
COMMIT_DOCUMENTS: Final = 20_000
_CHECK_SECONDS: Final = 2.0
_DROP_SECONDS: Final = 600.0
_TEXT_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 2.0
_QUIET_SECONDS: Final = 60.0
_TITLE_CHARACTERS_MAX: Final = 200


def run(settings: Settings, stop: threading.Event) -> None:
    """Run a search until `stop` is set.

    Raises:
        ConfigurationError: an operator must change a setting (exit 78).
        StreamDedupError: the search cannot continue; a restart continues from the engine's last
        commit.
    """
    os.nice(_NICENESS)  # a worker or index on the same machine has priority
    dependencies = SearchDependencies.of_process()
    with closing(LocalSearch(settings, dependencies)) as local:
        metrics = SearchMetrics()
        metrics.set_size(local.engine.documents, local.engine.size_bytes)
        finder = local.finder
        api = SearchApi(finder, metrics.answers.observe)
        pages = pages_of(settings, sources_of(settings, stop, finder), api.answers)
        opening = (
            f"{local.engine.documents:,} documents and groups can be searched; new ones are read "
            "once Kafka answers"
        )
        if local.engine.checkpoint is None:
            opening = "waiting for Kafka to read the outputs"
            finder.engine = (
                None  # queries must fail, not find nothing, until outputs have been read
            )

        def log_address(port: int) -> None:
            _logger.info("console started", address=f"http://{settings.http_host}:{port}/")

        topic = settings.topic_names.unique
        frame = RoleFrame(
            topic,
            opening,
            metrics.registry,
            _logger,
            pages.routes(),
            dependencies.failpoint,
            on_serving=log_address,
        )

        def make_loop(role: RunningRole) -> Callable[[], None]:
            filler = role.watch.begin(
                stop,
                lambda: TextFiller(
                    settings, local, metrics, role.health, role.watch.is_silent, dependencies
                ),
            )
            finder.engine = local.engine
            return lambda: filler.run(stop)

        try:
            run_role(settings, stop, frame, make_loop)
        finally:
            finder.engine = None


@dataclass(frozen=True)
class SearchDependencies:
    """The dependencies of a search: its host, clocks and Kafka clients."""

    host: str
    failpoint: str | None
    monotonic: Callable[[], float] = time.monotonic
    now_seconds: Callable[[], float] = time.time
    make_admin: Callable[[Settings], Admin] = Admin
    make_reader: Callable[[Settings, str], PartitionsReader] = PartitionsReader
    make_texts: Callable[[Settings], OutputTexts] = OutputTexts
    logger: FilteringBoundLogger = _logger

    @classmethod
    def of_process(cls) -> Self:
        """Return the dependencies of this process."""
        return cls(os.uname().nodename, os.environ.get(VARIABLE))


class LocalSearch:
    """The parts of a search that need no Kafka: the engine in its folder, the forgotten ids, and the
    `finder` that answers queries from both.
    """

    def __init__(self, settings: Settings, dependencies: SearchDependencies) -> None:
        """Open the folder.

        Raises:
            ConfigurationError: the folder was filled with other tokenisation settings; or an extra
            that the settings need is not installed. StoreError: the folder is damaged, or another
            process has it open.
        """
        recipe = recipe_of(settings)
        self._folder = settings.search_dir
        self._tokenisation = {"words": recipe.languages.digest.hex()}
        self.languages: Languages = recipe.languages
        self.log_ids = (settings.log_ids, recipe.key)
        self.texts = dependencies.make_texts(settings)

        def now_ms() -> int:
            return int(dependencies.now_seconds() * 1000)

        self.engine = TextIndex(settings.search_dir, now_ms)
        try:
            self.check_identity({})
            self.forgotten = ForgottenIds(self.engine.forgotten(), is_complete=False, now_ms=now_ms)
        except BaseException:
            self.engine.close()
            raise
        id_key = recipe.key if settings.log_ids == "digest" else None
        self.finder = Finder(
            self.engine, self.languages, self.texts.texts_at, id_key, self.forgotten
        )

    def check_identity(self, topics: Mapping[str, str]) -> dict[str, str]:
        """Return what an engine must be built for: the ids in `topics` and the tokenisation settings.

        Raises:
            ConfigurationError: the engine in the folder was built for others.
        """
        built_for = {**topics, **self._tokenisation}
        checkpoint = self.engine.checkpoint
        changed = sorted(
            name
            for name in built_for
            if checkpoint is not None and checkpoint.built_for.get(name) != built_for[name]
        )
        if changed:
            raise ConfigurationError(
                f"The full-text engine in {self._folder} was built for other topics or settings "
                f"({', '.join(changed)} differ). Delete the folder, and the search fills a new one "
                "from Kafka; or name another folder with STREAM_DEDUP_STATE_DIR."
            )
        return built_for

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()


class TextFiller:
    """Fills the engine from Kafka. `run` is the role's loop."""

    def __init__(
        self,
        settings: Settings,
        local: LocalSearch,
        metrics: SearchMetrics,
        health: Health,
        is_silent: Callable[[], bool],
        dependencies: SearchDependencies,
    ) -> None:
        """Read the topics' ends from Kafka, and continue at the engine's checkpoint.

        Raises:
            ConfigurationError: the engine was built for other topics, or has read records that the
                topics no longer contain. BrokerError: Kafka does not answer.
        """
        self._settings = settings
        self._local = local
        self._engine = local.engine
        self._forgotten = local.forgotten
        self._hosts = HostNames()
        self._metrics = metrics
        self._health = health
        self._is_silent = is_silent
        self._dependencies = dependencies
        self._logger = dependencies.logger
        self._failpoints = Failpoints(dependencies.failpoint)
        names = settings.topic_names
        self._topics = (names.unique, names.duplicates, names.fingerprints)
        self._log = (names.fingerprints, 0)
        self._kafka = ReusedAdmin(settings, dependencies.make_admin)
        self._built_for = local.check_identity(self._kafka.ask(self._existing_topics))
        ends = self._kafka.ask(lambda admin: admin.bounds(self._partitions(admin)))
        self._catch_up_to = {key: high for key, (_, high) in ends.items()}
        self._unread_at_start = 0
        # Outputs are read only after the log, so that forgotten documents are never shown.
        self._paused = self._start_offsets(ends)
        self._reader = dependencies.make_reader(settings, f"search-{dependencies.host}")
        try:
            self._reader.start({self._log: self._paused.pop(self._log)})
        except BaseException:
            self._reader.close()
            raise
        self._is_caught_up = False
        self._stop = threading.Event()
        self._away: AwayError | None = None  # why outputs are not read now
        self._resume_at = self._quiet_until = 0.0
        self._next_commit = dependencies.monotonic() + _CATCH_UP_COMMIT_SECONDS
        self._next_check = self._next_drop = 0.0
        self._logger.info(
            "search started", folder=str(settings.search_dir), documents=self._engine.documents
        )

    def _existing_topics(self, admin: Admin) -> dict[str, str]:
        ids = require_topics(admin, self._topics)
        return {
            "cluster": admin.cluster_id(),
            **{name: topic_id.hex() for name, (topic_id, _) in ids.items()},
        }

    def _partitions(self, admin: Admin) -> list[TopicPartitionKey]:
        ids = admin.topic_ids(self._topics)
        recreated = [
            name for name, (topic_id, _) in ids.items() if topic_id.hex() != self._built_for[name]
        ]
        if recreated:
            raise StreamDedupError(
                f"The topics {' and '.join(recreated)} were deleted and created again, so this search "
                "exits: its documents are from the deleted topics."
            )
        return [
            (name, partition)
            for name, (_, partitions) in ids.items()
            for partition in range(partitions)
        ]

    def _start_offsets(
        self, ends: Mapping[TopicPartitionKey, tuple[int, int]]
    ) -> dict[TopicPartitionKey, int]:
        """Return the offset from which each partition is read; warn if retention deleted records
        before they were read.
        """
        checkpoint = self._engine.checkpoint
        folder = self._settings.search_dir
        next_offsets = {} if checkpoint is None else checkpoint.next_offsets
        shortened = next(
            (key for key, (_, high) in ends.items() if next_offsets.get(key, 0) > high), None
        )
        if shortened is not None:
            raise ConfigurationError(
                f"The full-text engine in {folder} has read {shortened[0]}-{shortened[1]} up to "
                f"offset {next_offsets[shortened]}, but the partition ends at {ends[shortened][1]}, so "
                "it has lost records. Delete the folder, and the search fills a new one."
            )
        lost = sum(
            max(0, low - next_offsets[key]) for key, (low, _) in ends.items() if key in next_offsets
        )
        if lost:
            self._logger.warning(
                "retention deleted records before the search read them; they cannot be found",
                records=lost,
            )
        return {key: max(low, next_offsets.get(key, low)) for key, (low, _) in ends.items()}

    def run(self, stop: threading.Event) -> None:
        """Read and answer until `stop` is set."""
        self._stop = stop
        try:
            while not stop.is_set():
                self._read_batch()
            if self._engine.added:
                self._commit(self._dependencies.monotonic())
            self._logger.info("search stopped", documents=self._engine.documents)
        finally:
            self._reader.close()

    def _read_batch(self) -> None:
        """Read and add some records, and do the periodic work that is due."""
        self._health.beat()
        log_offset = self._next_offsets[self._log]
        forgotten_ids: list[ForgottenId] = []
        documents: list[Message] = []
        for message in self._reader.take_messages(_RECORDS_MAX, _IDLE_SECONDS):
            if message.topic == self._log[0]:
                forgotten_ids += forgotten_in(message)
            else:
                documents.append(message)
        self._add_documents(documents)
        now = self._dependencies.monotonic()
        if forgotten_ids:
            self._forget(forgotten_ids, log_offset, now)
        if (
            self._paused
            and now >= self._resume_at
            and not self._count_unread({self._log: self._catch_up_to[self._log]})
        ):
            self._reader.start(self._next_offsets)
            self._paused = {}
            self._forgotten.is_complete = True
        if not self._is_caught_up and not self._count_unread(self._catch_up_to):
            self._is_caught_up = True
            self._commit(now)
        elif self._engine.added >= COMMIT_DOCUMENTS or (
            self._engine.added and now >= self._next_commit
        ):
            self._commit(now)
        if now >= self._next_check:
            self._next_check = now + _CHECK_SECONDS
            self._check_topics()
        if self._is_caught_up and now >= self._next_drop:
            self._next_drop = now + _DROP_SECONDS
            self._drop_expired(now)

    @property
    def _next_offsets(self) -> dict[TopicPartitionKey, int]:
        """The next offset of each partition, also of those that are not read now."""
        return self._paused | self._reader.next_offsets

    def _forget(self, forgotten_ids: Sequence[ForgottenId], log_offset: int, now: float) -> None:
        """Commit the added documents, then forget the ids in a second commit. `log_offset`: the
        next offset of the log in the first commit, so that a restart reads their `forget` again.
        """
        if self._engine.added:
            self._commit(now, log_offset=log_offset)
        for forgotten_id in forgotten_ids:
            self._forgotten.add_forgotten(forgotten_id)
            self._engine.forget(forgotten_id)
        self._commit(now, removed=len(forgotten_ids))
        self._logger.info("ids forgotten", ids=len(forgotten_ids))

    def _add_documents(self, documents: Sequence[Message]) -> None:
        """Add documents. If the text of one cannot be fetched now, this document and all after it are
        read again later.
        """
        added = 0
        deadline = self._dependencies.monotonic() + _TEXT_SECONDS

        def is_hurried() -> bool:
            self._health.beat()
            return self._stop.is_set() or self._dependencies.monotonic() >= deadline

        try:
            for output_text in self._local.texts.decode_each(documents, is_hurried):
                self._health.beat()
                self._add(documents[added], output_text)
                added += 1
                deadline = self._dependencies.monotonic() + _TEXT_SECONDS
        except AwayError as error:
            self._wait_for_texts(documents[added:], error)
        else:
            if added and self._away is not None:
                self._logger.info(f"{self._away.back} again")
                self._metrics.set_away(type(self._away), False)
                self._away = None

    def _wait_for_texts(self, documents: Sequence[Message], away: AwayError) -> None:
        """Read these documents again after `_RETRY_SECONDS`; until then read only the log."""
        next_offsets = self._next_offsets
        for document in reversed(documents):
            next_offsets[document.topic, document.partition] = document.offset
        self._reader.start({self._log: next_offsets.pop(self._log)})
        self._paused = next_offsets
        self._resume_at = self._dependencies.monotonic() + _RETRY_SECONDS
        if self._stop.is_set():
            return
        if self._away is None:
            self._logger.warning(
                f"{away.away} unavailable; no documents are added until it answers",
                reason=str(away),
            )
        elif type(self._away) is not type(away):
            self._metrics.set_away(type(self._away), False)
        self._metrics.set_away(type(away), True)
        self._away = away

    def _add(self, message: Message, output_text: OutputText) -> None:
        if output_text.unreadable_reason:
            self._report_missing_text(message, output_text.unreadable_reason)
        decision = decision_of(message, shorten_id(output_text.id))
        log_place = parse_log_place(decision.log)
        log_offset = -1 if log_place is None else log_place.offset
        id_key = key_of(id_in_log(output_text.id, *self._local.log_ids))
        if self._forgotten.covers(id_key, log_offset, decision.time_ms):
            return
        hides_kept_id = self._forgotten.hides_displayed_id(
            decision.kept_id, log_offset, decision.time_ms
        )
        facts = TextFacts(
            output_position=decision.output_position,
            id=decision.id,
            time_ms=decision.time_ms,
            size=decision.size,
            verdict=decision.verdict,
            reason=decision.reason,
            similarity=decision.similarity,
            group_position=decision.kept_position,
            kept_id="" if hides_kept_id else decision.kept_id,
            log_offset=log_offset,
            source_position=decision.source_position,
            log_row=0 if log_place is None else log_place.place,
            better=decision.better,
            counted=decision.copies or 0,
            title=output_text.title[:_TITLE_CHARACTERS_MAX],
        )
        hosts = [
            self._hosts.of(name.encode("utf-8", "replace")) for name in (facts.id, facts.kept_id)
        ]
        is_of_other_host = facts.group_position and all(hosts) and hosts[0] != hosts[1]
        words = words_of(output_text.text, self._local.languages)
        self._engine.add_text(facts, words, id_key, hosts if is_of_other_host else ())

    def _report_missing_text(self, message: Message, reason: str) -> None:
        """Count a document that can be found by its id and group but not by its words; log a warning
        at most once a minute.
        """
        self._metrics.without_text.inc()
        now = self._dependencies.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET_SECONDS
            self._logger.warning(
                "a document's text cannot be read, so its words are not searched (logged at most once "
                "a minute)",
                position=message.position,
                reason=reason,
            )

    def _commit(self, now: float, *, log_offset: int | None = None, removed: int = 0) -> None:
        """Commit the added documents and the next offsets. `log_offset`, if given, is committed as the
        next offset of the log.
        """
        self._next_commit = now + (
            _COMMIT_SECONDS if self._is_caught_up else _CATCH_UP_COMMIT_SECONDS
        )
        added = self._engine.added
        self._failpoints.hit("search.before-commit", added + removed)
        next_offsets = (
            self._next_offsets
            if log_offset is None
            else self._next_offsets | {self._log: log_offset}
        )
        self._engine.commit(EngineCheckpoint(self._built_for, next_offsets))
        self._failpoints.hit("search.after-commit", added + removed)
        self._metrics.added.inc(added)
        self._metrics.set_size(self._engine.documents, self._engine.size_bytes)
        self._update_health()

    def _count_unread(self, ends: Mapping[TopicPartitionKey, int]) -> int:
        """Return the number of records that are unread before `ends`."""
        next_offsets = self._next_offsets
        return sum(max(0, end - next_offsets.get(key, 0)) for key, end in ends.items())

    def _update_health(self) -> None:
        unread = self._count_unread(self._catch_up_to)
        if self._is_caught_up:
            self._health.set_startup(1.0, "caught up")
            note = (
                ""
                if self._away is None
                else f"; no documents are added, because {self._away.away} unavailable"
            )
            self._health.set_ready(
                True, f"{self._engine.documents:,} documents and groups can be searched{note}"
            )
            return
        self._unread_at_start = max(self._unread_at_start, unread)
        progress = 1 - unread / self._unread_at_start if self._unread_at_start else 0.0
        self._health.set_startup(
            min(progress, 0.999), f"reading earlier records: {unread:,} remain"
        )
        self._health.set_ready(False, f"reading earlier records: {unread:,} remain")

    def _check_topics(self) -> None:
        """Update the lag, start to read new partitions, and return free memory to the system."""
        # The C library keeps the memory that ended threads of the engine and the clients freed.
        trim_memory()
        if self._is_silent():
            return
        try:
            ends = self._kafka.ask(lambda admin: admin.bounds(self._partitions(admin)))
        except BrokerError as error:
            self._logger.warning("the ends of the outputs could not be read", reason=str(error))
            return
        new = {key: low for key, (low, _) in ends.items() if key not in self._next_offsets}
        if new:
            self._logger.info("new partitions are read", partitions=len(new))
            if self._paused:
                self._paused |= new
            else:
                self._reader.start(self._next_offsets | new)
        self._metrics.lag.set(
            self._count_unread({key: high for key, (_, high) in ends.items() if key != self._log})
        )
        self._update_health()

    def _drop_expired(self, now: float) -> None:
        keep = self._settings.search_keep
        if keep is not None:
            oldest = self._dependencies.now_seconds() - keep.total_seconds()
            self._engine.drop_before(int(1000 * oldest))
            self._commit(now)
