"""Role one, the worker: a loop that carries events from Kafka to `flow` and its decisions back. No decisions here.

The steps of a batch, in this order (the names are those of `failpoints`):

    consumed -> appended -> append-acked -> verdict-in -> begin -> outputs -> flushed -> offsets -> before-commit
    -> after-commit

Invariants: one thread owns all clients, but for the outputs': a transaction runs in a thread of its own, one at a time, while
the next batch is read and judged. Batches are prepared in one more, one at a time, while what lies behind is read. What takes
long is cut after a slice of time: what is prepared goes on its way, and the rest comes next, so that a worker that ends has got
further. What would change the flow under them (a rebalance, a stale record) first waits until the transaction has ended and the
stretch in work is prepared; what was read and is not in flight then is read again. An abort drops all of it. While the worker
waits it keeps polling, so that it stays in its group; nothing is committed but through `flow.ready`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import structlog

from stream_dedup.control.beginnings import Beginnings
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.ground.document import NONCE_BYTES, DeadLetter, Message, TopicPartitionKey, UnreadableHeaders
from stream_dedup.ground.errors import (
    BrokerError,
    ConfigurationError,
    FirstStartError,
    FormatError,
    InvariantError,
    StreamDedupError,
)
from stream_dedup.ground.failpoints import VARIABLE, Failpoints
from stream_dedup.ground.messages import Messages
from stream_dedup.ground.threads import SideThread
from stream_dedup.ground.topics import TopicNames
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.kafka import (
    Admin,
    LogAppender,
    Outcome,
    OwnedOffset,
    Patience,
    Result,
    SourceConsumer,
    TransactionalOutput,
    VerdictReader,
)
from stream_dedup.kafka.source import generation
from stream_dedup.log import answers, epochs, records
from stream_dedup.service.collector import collect_rarely
from stream_dedup.service.health import Health
from stream_dedup.service.http import HttpServer
from stream_dedup.service.memory import FreedMemory
from stream_dedup.service.memory_limit import limit_of_group, machine_bytes, resident_bytes
from stream_dedup.service.waits import Waits
from stream_dedup.service.watch import Watch
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings
from stream_dedup.worker import identity, startup
from stream_dedup.worker.allowance import Allowance, Amount
from stream_dedup.worker.awaited import Awaited
from stream_dedup.worker.budget import RecordSizes, WorkerBudget, limit_of
from stream_dedup.worker.flow import Flow
from stream_dedup.worker.insights import counter_of
from stream_dedup.worker.metrics import WorkerMetrics
from stream_dedup.worker.outputs import EmittedBatch, OutputWriter, warm_up
from stream_dedup.worker.prepare import InFlight, Part, Preparer, value_digest

_logger = structlog.get_logger("stream_dedup.worker")

_IDLE_SECONDS = 0.1
_ANSWER_SECONDS = 0.003
_FULL_SECONDS = 0.02
# What comes after a read is gathered for so long: each small batch costs broker and index as much as a large one.
_GATHER_SECONDS = 0.02
# A batch of fewer records is waited for so long: it is usually prepared before the loop has turned.
_ASIDE_RECORDS = 500
_SOON_SECONDS = 0.02
# What is prepared after so long goes on its way, and the rest of the batch comes next.
_SLICE_SECONDS = 1.0
_PAUSE_AFTER_SECONDS = 1.0
_CHECK_TOPICS_SECONDS = 30.0
_LAG_SECONDS = 1.0
_DRAIN_SECONDS = 20.0
_CLOSE_SECONDS = 8.0
_ABORT_PAUSE_SECONDS = 0.5


Inspect: TypeAlias = Callable[[Settings, TopicNames, Recipe], startup.SourceCluster]


def run(settings: Settings, stop: threading.Event) -> None:
    """Run a worker until `stop` is set; what is in flight is finished first.

    Raises:
        ConfigurationError: something must be changed by an operator (exit 78).
        StreamDedupError: the worker cannot go on; a restart begins at the committed offsets.
    """
    recipe = recipe_of(settings)
    metrics = WorkerMetrics(recipe.id)
    health = Health(stalled_after_seconds=settings.livez_after.total_seconds())
    health.startup(0.0, "connecting")
    server = HttpServer(settings.http_host, settings.http_port, health, metrics.registry)
    server.start()
    waits = Waits(health, _logger)
    try:
        Failpoints(os.environ.get(VARIABLE))  # one that is none is told at once, also where Kafka is waited for
        with Watch(settings, waits) as watch:
            if watch.wait(stop):
                worker = _Worker(settings, recipe, metrics, health, waits, watch, stop, WorkerSurroundings.of_process())
                collect_rarely()
                worker.run(stop)
    finally:
        server.stop()


class Clock(Protocol):
    """The time, as the module `time` tells it."""

    def monotonic(self) -> float:
        """Return seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Wait so long."""


@dataclass(frozen=True)
class WorkerSurroundings:
    """What a worker finds around it: the clock, chance, threads, Kafka's administrator, and what reads texts."""

    failpoint: str | None
    clock: Clock = time
    random_bytes: Callable[[int], bytes] = os.urandom
    make_thread: Callable[[str], SideThread] = SideThread
    make_admin: Callable[[Settings], Admin] = Admin
    make_fingerprinter: Callable[[Recipe], Fingerprinter] = Fingerprinter
    make_decoder: Callable[..., Decoder] = Decoder
    inspect: Inspect = startup.inspect
    logger: Any = _logger

    @classmethod
    def of_process(cls) -> Self:
        """Return those of this process."""
        return cls(os.environ.get(VARIABLE), make_fingerprinter=Fingerprinter)


class _Read(NamedTuple):
    """What was read, in one or more reads, and is not yet prepared; the stamp is that of its first record."""

    messages: list[Messages]
    sources: dict[TopicPartitionKey, records.Source]
    stamp: bytes

    @property
    def amount(self) -> Amount:
        """How much was read."""
        return Amount(sum(map(len, self.messages)), sum(one.held_bytes for one in self.messages))


class _Committing(NamedTuple):
    """The transaction that runs."""

    batches: list[InFlight]
    offsets: list[tuple[str, int, int, str]]


class _Ended(NamedTuple):
    """A transaction that has ended, what it was to carry, and how long it took."""

    result: Result
    leaving: EmittedBatch
    seconds: float


def _budget_of(settings: Settings, logger: Any) -> WorkerBudget:
    """Return what the worker may hold, from what it takes now that its dictionary is read."""
    budget = WorkerBudget.of(limit_of(settings.worker_memory, limit_of_group(), machine_bytes()), resident_bytes())
    sizes = {"limit_mib": budget.limit_bytes >> 20, "batch_mib": budget.part_bytes >> 20}
    if budget.is_tight:
        logger.warning("memory is tight: raise the limit, or set STREAM_DEDUP_WORKER_MEMORY to what may be taken", **sizes)
    else:
        logger.info("memory is divided", **sizes)
    return budget


def _inspected(
    inspect: Inspect, settings: Settings, recipe: Recipe, watch: Watch, stop: threading.Event
) -> startup.SourceCluster:
    """Return what the topics allow; where Kafka goes away while it is asked, it is asked again when it is back.

    Raises:
        ConfigurationError, BrokerError: as `startup.inspect`.
    """
    while True:
        try:
            return inspect(settings, settings.topic_names, recipe)
        except BrokerError:
            if not watch.is_silent() or not watch.wait(stop):
                raise


class _Worker:
    def __init__(
        self,
        settings: Settings,
        recipe: Recipe,
        metrics: WorkerMetrics,
        health: Health,
        waits: Waits,
        watch: Watch,
        stop: threading.Event,
        surroundings: WorkerSurroundings,
    ) -> None:
        self._settings = settings
        self._clock = surroundings.clock
        self._logger = surroundings.logger
        self._make_admin = surroundings.make_admin
        self._make_thread = surroundings.make_thread
        self._watch = watch
        self._awaited = Awaited(waits)
        self._metrics = metrics
        self._health = health
        self._failpoints = Failpoints(surroundings.failpoint)
        names = settings.topic_names
        self._patience = Patience(watch.is_silent, stop, health.beat)
        self._cluster = _inspected(surroundings.inspect, settings, recipe, watch, stop)
        self._beginnings = Beginnings(settings, names, self._cluster.log_id, self._cluster.source_id)
        self._beginnings.open(self._cluster.source_partitions)
        health.startup(0.3, "loading the recipe")
        fingerprinter = surroundings.make_fingerprinter(recipe)
        self._budget = _budget_of(settings, self._logger)
        self._memory = FreedMemory(self._budget.limit_bytes, self._budget.part_bytes)
        self._sizes = RecordSizes()
        self._allowance = Allowance(Amount(settings.batch_documents, self._budget.part_bytes))
        # The clients' queues are part of the budget.
        settings = self._budget.settings_for_clients(settings, self._cluster.record_bytes_max)
        health.startup(0.8, "joining the group")
        self._identity = identity.claim(settings)
        nonce = surroundings.random_bytes(NONCE_BYTES)
        self._flow = Flow(settings.batches_in_flight, settings.batch_documents, nonce)
        self._preparer = Preparer(
            surroundings.make_decoder(settings, takes_vectors=recipe.method.takes_vectors),
            fingerprinter,
            nonce,
            self._cluster.record_bytes_max,
            settings.judging_mode,
            digests_ids=settings.log_ids == "digest",
        )
        warm_up()
        self._outputs = OutputWriter(
            names.unique,
            names.duplicates,
            names.dead_letters,
            settings.group,
            recipe.id,
            self._cluster.dead_bytes_max,
            settings.judging_mode,
        )
        client = self._identity.name
        # The end of `verdicts` is read before anything is asked, so that no answer can be missed.
        self._verdicts = VerdictReader(settings, names.verdicts, f"{client}-verdicts")
        self._appender = LogAppender(settings, names.fingerprints, f"{client}-log")
        self._transactions = TransactionalOutput(
            settings,
            f"{settings.group}-{client}",
            f"{client}-outputs",
            in_turns=True,
            patience=Patience(watch.is_silent, stop),
        )
        self._committing: _Committing | None = None
        self._committer = surroundings.make_thread("committing")
        self._preparing = surroundings.make_thread("preparing")
        self._is_preparing = False
        self._prepared_bytes = 0  # of the batch that is being prepared
        self._hurries = threading.Event()  # what prepares ends after the stretch in work
        self._left: _Read | None = None  # what preparing has not come to
        self._ahead: _Read | None = None  # what was read behind that, and behind what is being prepared
        self._unread: dict[TopicPartitionKey, int] = {}  # from where what was given back is read again
        self._read_at = 0.0
        self._fail_open_seconds = None if settings.fail_open is None else settings.fail_open.total_seconds()
        self._must_reread = False
        self._stop = stop
        self._unserved: set[TopicPartitionKey] = set()
        self._full_since: float | None = None
        self._paused = False
        self._next_check = self._clock.monotonic() + _CHECK_TOPICS_SECONDS
        self._next_lag = 0.0
        self._hosts = counter_of(settings, client, metrics.insights)
        self._source = SourceConsumer(settings, names.documents, client, self, self._patience)
        self._logger.info(
            "worker started",
            name=client,
            recipe=recipe.id,
            plan=self._cluster.plan.id,
            topic=names.documents,
            group=settings.group,
        )

    # -- the loop

    def run(self, stop: threading.Event) -> None:
        self._stop = stop
        try:
            while not stop.is_set():
                self._turn(take_in=True)
            until = self._clock.monotonic() + _DRAIN_SECONDS
            self._hurries.set()
            while (self._is_preparing or self._flow.in_flight) and self._clock.monotonic() < until:
                self._turn(take_in=False)
            self._logger.info("worker stopped", dropped_in_flight=self._flow.in_flight)
        except BrokerError as error:
            if not (stop.is_set() and self._watch.is_silent()):
                raise
            self._logger.warning("worker stopped while Kafka was away; whoever comes next reads on", reason=str(error))
        finally:
            try:
                # In a thread that can be left behind: leaving the group waits for a coordinator that may be gone.
                self._make_thread("closing").call(self._close, _CLOSE_SECONDS)
            except TimeoutError:
                self._logger.warning("the clients did not close in time and are left behind", waited_seconds=_CLOSE_SECONDS)
            finally:
                self._identity.release()

    def _close(self) -> None:
        self._committing = None  # who reads on finds in the committed offsets how it ended
        self._is_preparing, self._left, self._ahead = False, None, None
        self._hurries.set()
        self._source.close()
        self._verdicts.close()
        self._hosts.close()
        self._transactions.close()

    def _turn(self, *, take_in: bool) -> None:
        self._health.beat()
        none_prepares = self._none_prepares(0.0 if self._flow.in_flight else _ANSWER_SECONDS)
        wanted = self._wanted() if take_in else 0
        if (none_prepares or wanted) and not self._gathers_for():
            self._take(wanted)
        self._appender.poll()
        self._hear()
        if self._flow.stale():
            self._resolve_stale()
        self._commit()
        self._look_around()
        if take_in and not (self._flow.in_flight or self._is_preparing) and (rest := self._gathers_for()):
            self._clock.sleep(rest)  # nothing is on its way

    def _wanted(self) -> int:
        """How many records there is room for, beside what is being prepared and what was read ahead of it."""
        most = self._flow.wants(1 if self._is_preparing or self._ahead is not None else 0)
        if not most:
            return 0
        allowed = self._allowance.now
        prepared = self._prepared_bytes if self._is_preparing else 0
        left = 0 if self._left is None else self._left.amount.bytes
        room = self._budget.room(self._flow.held_bytes + prepared + left)
        ahead = Amount(0, 0) if self._ahead is None else self._ahead.amount
        return self._sizes.records(min(most, allowed.documents) - ahead.documents, min(room, allowed.bytes) - ahead.bytes)

    def _take(self, wanted: int) -> None:
        """Read what there is room for; when there is none, stay in the group without reading."""
        if wanted:
            self._full_since = None
            if self._paused:
                self._paused = False
                self._source.resume([key for key in self._flow.owned() if key not in self._unserved])
            is_busy = self._flow.in_flight or self._is_preparing
            messages = self._source.take(wanted, 0.0 if is_busy else _IDLE_SECONDS)
        else:
            messages = Messages.of([])
            self._wait()
        if self._must_reread:
            # Whatever was just read lies behind records that were dropped.
            if self._stop.is_set():
                return  # whoever comes next reads them again; asking Kafka where, which may be away, would only delay the end
            self._must_reread = False
            self._reread(self._flow.owned())
            return
        if self._unread:
            self._read_again(messages)
            return
        if not messages:
            return
        for one in messages.unreadable.values():
            if isinstance(one, UnreadableHeaders):
                continue  # like any other dead letter: a crawler may send many
            where = f"{one.topic}-{one.partition}@{one.offset}"
            self._logger.error("a record cannot be read; it becomes a dead letter", position=where, reason=one.why)
        self._failpoints.hit("worker.consumed", self._flow.in_flight + 1)
        self._read_at = self._clock.monotonic()
        self._sizes.read(messages)
        sources = {key: self._flow.source(key) for key in messages.last_offsets()}
        read = _Read([messages], sources, self._source.stamp())
        if not self._is_preparing and self._left is None:
            self._make(read)
            if len(messages) < _ASIDE_RECORDS:
                self._none_prepares(_SOON_SECONDS)
        elif self._ahead is None:
            self._ahead = read
        else:
            self._ahead.messages.append(messages)
            self._ahead.sources.update(sources)

    def _gathers_for(self) -> float:
        """How many seconds longer what comes is left to gather, because a batch was read a moment ago."""
        return max(0.0, self._read_at + _GATHER_SECONDS - self._clock.monotonic())

    def _make(self, read: _Read) -> None:
        """Make a batch of what was read, in a thread of its own."""
        self._is_preparing = True
        self._prepared_bytes = read.amount.bytes
        self._preparing.start(lambda: self._prepare(read))

    def _prepare(self, read: _Read) -> tuple[InFlight, _Read | None]:
        """Make a batch, and return what is left of the records once a slice of time is over.

        Nothing of the flow or a client may be touched in here.
        """
        until = self._clock.monotonic() + _SLICE_SECONDS
        messages = Messages.joined(read.messages)
        with self._metrics.stage("prepare"):
            batch = self._preparer.prepare(
                messages, read.sources, read.stamp, lambda: self._hurries.is_set() or self._clock.monotonic() >= until
            )
        done = len(batch.messages)
        if done == len(messages):
            return batch, None
        return batch, _Read([messages.part(done, len(messages))], read.sources, read.stamp)

    def _none_prepares(self, wait_seconds: float) -> bool:
        """Return whether no batch is being prepared, after waiting so long at most; one that is done is taken in, and what was
        left of it and read ahead comes next.
        """
        if self._is_preparing and self._preparing.ended(wait_seconds):
            self._take_prepared()
        if not self._is_preparing and not self._stop.is_set():
            if self._left is not None:
                if self._flow.has_room:  # what was read ahead has its room, and a batch that came in parts needs more
                    left, self._left = self._left, None
                    self._make(left)
            elif self._ahead is not None:
                ahead, self._ahead = self._ahead, None
                self._make(ahead)
        return not self._is_preparing

    def _take_prepared(self) -> None:
        """Take in flight the batch that is done."""
        batch, self._left = self._preparing.take_result()
        self._is_preparing = False
        self._retract_timed(batch)
        self._admit(batch)

    def _finish_preparing(self) -> None:
        """Take in what is prepared once the stretch in work is done; what was read behind it is to be read again."""
        self._hurries.set()
        while self._is_preparing:
            self._health.beat()
            if self._preparing.ended(_IDLE_SECONDS):
                self._take_prepared()
        self._hurries.clear()
        for read in (self._ahead, self._left):
            if read is not None:
                self._unread |= Messages.joined(read.messages).first_offsets()
        self._left = self._ahead = None

    def _forget_prepared(self) -> None:
        """Wait until no batch is being prepared, and forget the one that was, and what was read behind it."""
        self._hurries.set()
        while self._is_preparing:
            self._health.beat()
            self._is_preparing = not self._preparing.ended(_IDLE_SECONDS)
        self._preparing.take_result()
        self._hurries.clear()
        self._left = self._ahead = None

    def _read_again(self, messages: Messages) -> None:
        """Go back to what was given back unprepared; what was read meanwhile may lie behind it."""
        starts, self._unread = messages.first_offsets() | self._unread, {}
        owned = set(self._flow.owned())
        self._source.restart_at({key: offset for key, offset in starts.items() if key in owned})

    def _admit(self, batch: InFlight) -> None:
        """Take a batch in flight, and ask the log."""
        batch.taken = self._clock.monotonic()
        for part in self._flow.admit(batch):
            self._append(part)
        self._appender.poll()
        self._memory.used(int(batch.messages.value_bytes.sum()))
        self._failpoints.hit("worker.appended", self._flow.in_flight)

    def _wait(self) -> None:
        """Poll without taking records in. What was fetched ahead is kept for a moment, then given up by a pause."""
        now = self._clock.monotonic()
        if self._full_since is None:
            self._full_since = now
        if not self._paused and now - self._full_since < _PAUSE_AFTER_SECONDS:
            return
        if not self._paused:
            self._paused = True
            self._source.pause(self._flow.owned())
        messages = self._source.take(1, 0.0)
        if messages:
            # Read between our pause and its effect: it comes again.
            self._source.restart_at({(one.topic, one.partition): one.offset for one in reversed(messages)})

    def _append(self, part: Part) -> None:
        def delivered(log_offset: int) -> None:
            self._failpoints.hit("worker.append-acked", self._flow.in_flight)
            for again in self._flow.appended(part.number, log_offset):
                self._append(again)

        self._appender.send(part.raw, None, delivered)

    def _hear(self) -> None:
        is_busy = self._committing is not None
        waits = self._flow.awaits if is_busy else self._flow.in_flight and not self._flow.ready()
        was_open = self._flow.is_open
        wait = (_ANSWER_SECONDS if self._wanted() or is_busy or self._is_preparing else _FULL_SECONDS) if waits else 0.0
        for message in self._verdicts.take(1000, wait):
            try:
                answer = answers.decode(message.value, f"The record {message.topic}-0@{message.offset}")
            except FormatError as error:
                if type(error) is not FormatError:
                    raise
                self._logger.error("a record of verdicts was skipped", reason=str(error))  # noqa: TRY400 - a sentence, no traceback
                continue
            if isinstance(answer, answers.Announce):
                for part in self._flow.announced(answer):
                    self._logger.warning("asking again: a replica will not answer an older record", number=part.number)
                    self._append(part)
            elif self._flow.answered(answer):
                self._failpoints.hit("worker.verdict-in", self._flow.in_flight)
        self._fail_open(was_open=was_open)

    def _fail_open(self, *, was_open: bool) -> None:
        """Stop waiting for an index that has been silent for too long, if the settings say so."""
        if was_open and not self._flow.is_open:
            self._logger.warning("the index answers again: documents wait for their verdicts")
        waits = self._flow.oldest_unanswered
        if self._fail_open_seconds is None or waits is None or self._clock.monotonic() - waits.taken < self._fail_open_seconds:
            return
        passed = self._flow.fail_open()
        if passed:
            self._logger.error("the index is silent: documents leave as unique, unjudged", documents=passed,
                       waited_seconds=self._fail_open_seconds)  # fmt: skip

    # -- transactions

    def _commit(self) -> None:
        """Take in how the transaction that runs has ended, if it has, and begin that of what is ready."""
        if self._none_runs(0.0 if self._flow.awaits else _ANSWER_SECONDS):
            self._begin()
            self._none_runs(0.0)

    def _begin(self) -> None:
        ready = self._flow.ready(self._allowance.now)
        if not ready:
            return
        now = self._clock.monotonic()
        for batch in ready:
            self._metrics.waited(now - batch.taken)
        offsets = [
            (topic, partition, offset, epochs.to_metadata(epoch))
            for (topic, partition), (offset, epoch) in self._flow.offsets(ready).items()
        ]
        self._committing = _Committing(ready, offsets)
        self._committer.start(lambda: self._carry_out(ready, offsets))

    def _carry_out(self, ready: Sequence[InFlight], offsets: Sequence[tuple[str, int, int, str]]) -> _Ended:
        """Run one transaction, in its own thread."""
        leaving = self._outputs.of(*ready)
        began = self._clock.monotonic()
        return _Ended(self._transact(leaving, offsets, ready[0].stamp), leaving, self._clock.monotonic() - began)

    def _none_runs(self, wait_seconds: float, *, rereads: bool = True) -> bool:
        """Return whether no transaction runs, after waiting so long at most, and taking in how it ended."""
        if self._committing is None:
            return True
        try:
            has_ended = self._committer.ended(wait_seconds)
        except BaseException:
            self._committing = None
            raise
        if has_ended:
            self._end(self._committing, rereads=rereads)
        return has_ended

    def _settle(self) -> None:
        """Wait until no batch is prepared and no transaction runs: the flow must not change under them.

        What they leave to be read again is read later.
        """
        self._finish_preparing()
        while not self._none_runs(_IDLE_SECONDS, rereads=False):
            self._health.beat()

    def _end(self, committing: _Committing, *, rereads: bool = True) -> None:
        (ready, offsets), self._committing = committing, None
        ended: _Ended = self._committer.take_result()
        result, leaving, seconds = ended
        self._metrics.transaction(result.outcome.value)
        carried = Amount(sum(len(batch.messages) for batch in ready), sum(batch.messages.held_bytes for batch in ready))
        self._allowance.ended(carried, seconds, is_committed=result.outcome is Outcome.COMMITTED)
        if result.outcome is Outcome.COMMITTED:
            self._flow.committed(ready)
            self._metrics.took(sum(batch.live_records for batch in ready))
            self._metrics.left(leaving.left())
            self._hosts.committed(ready)
            self._failpoints.hit("worker.after-commit", self._flow.in_flight + 1)
            return
        self._logger.warning("a transaction did not commit; its records are read again", outcome=result.outcome.value,
                     reason=result.why, documents=carried.documents, seconds=round(seconds, 1),
                     next_documents_max=self._allowance.now.documents)  # fmt: skip
        if result.refused:
            self._retract(leaving, offsets, ready[0].stamp, result, carried)
        self._forget_prepared()
        dropped = self._flow.drop_all()
        if rereads and not self._stop.is_set():
            self._reread(dropped)
        else:
            self._must_reread = True  # nothing more is taken in before that
        if not self._stop.is_set():
            self._clock.sleep(_ABORT_PAUSE_SECONDS)

    def _transact(
        self,
        leaving: EmittedBatch,
        offsets: Sequence[tuple[str, int, int, str]],
        stamp: bytes,
        *,
        one_by_one: bool = False,
    ) -> Result:
        with self._metrics.stage("transaction"):
            return self._transactions.run(
                leaving.outputs if self._settings.judging_mode.delivers else [],
                offsets,
                stamp,
                one_by_one=one_by_one,
                reached=lambda step: self._failpoints.hit(f"worker.{step}", lambda: self._flow.in_flight),
            )

    def _retract(
        self,
        leaving: EmittedBatch,
        offsets: Sequence[tuple[str, int, int, str]],
        stamp: bytes,
        result: Result,
        carried: Amount,
    ) -> None:
        """An output refused a record for what it is: find it, and tell the log that it represents nobody."""
        if len(result.refused) > 1:
            began = self._clock.monotonic()
            result = self._transact(leaving, offsets, stamp, one_by_one=True)
            if not result.refused:  # written one by one so many take too long; of fewer it is found
                self._allowance.ended(carried, self._clock.monotonic() - began, is_committed=False)
        for index in result.refused:
            one = leaving[index]
            where = f"{one.message.topic}-{one.message.partition}@{one.message.offset}"
            if not one.is_judged:
                raise ConfigurationError(
                    f"The topic {one.output.topic} refuses the record {where}: {result.why} Correct the topic's "
                    "settings with: stream-dedup topics apply"
                )
            self._logger.error("an output refused a record; it is retracted and becomes a dead letter", position=where,
                       topic=one.output.topic, reason=result.why)  # fmt: skip
            self._send_retraction(one.message)
        self._appender.flush(patience=self._patience)

    def _retract_timed(self, batch: InFlight) -> None:
        """Tell the log of what a limit of time made a dead letter: another worker may have had it judged, uncommitted."""
        timed = [row for row, one in batch.decided_here() if isinstance(one, DeadLetter) and one.is_timed]
        for row in timed:
            self._send_retraction(batch.messages[row])
        if timed:
            self._appender.flush(patience=self._patience)  # before the dead letter can be committed

    def _send_retraction(self, message: Message) -> None:
        source = self._flow.source((message.topic, message.partition))
        fields = {
            "topic": source.topic,
            "topic_id": source.topic_id.hex(),
            "partition": source.partition,
            "offset": message.offset,
            "value_digest": value_digest(message.value),
        }
        self._appender.send(records.encode_control(records.Control("retract", fields)), None, lambda _: None)

    def _reread(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Go back to the committed offsets, as the broker has them now."""
        self._unread.clear()
        self._source.restart_at(self._learn(self._source.committed(keys)))

    def _learn(self, found: Mapping[TopicPartitionKey, OwnedOffset]) -> dict[TopicPartitionKey, int]:
        """Take over what the broker has for each partition; a partition without a commit is begun."""
        starts: dict[TopicPartitionKey, int] = {}
        begun: dict[TopicPartitionKey, tuple[int, str]] = {}
        found = self._behind_what_was_begun(found)
        for key, owned in found.items():
            offset, epoch = owned.offset, epochs.from_metadata(owned.metadata)
            if offset is None:
                epoch = self._first_epoch(key)
                offset = self._source.low_watermark(key)
                begun[key] = (offset, epochs.to_metadata(epoch))
            elif epoch is None:
                raise ConfigurationError(
                    f"The committed offset {offset} of group {self._settings.group} for {key[0]}-{key[1]} carries no "
                    "epoch, so it was not written by stream_dedup. Stop the workers and set it with: "
                    f"stream-dedup rewind {key[0]}-{key[1]}@{offset}"
                )
            self._flow.assigned(key, self._cluster.source_id, offset, epoch)
            starts[key] = offset
        if begun:
            self._source.commit_start(begun)
            self._logger.info("partitions begun", partitions=sorted(f"{topic}-{part}" for topic, part in begun))
        self._beginnings.note(part for _, part in found)
        return starts

    def _behind_what_was_begun(self, found: Mapping[TopicPartitionKey, OwnedOffset]) -> Mapping[TopicPartitionKey, OwnedOffset]:
        """Ask anew what was begun, which this worker may have known months ago, and then once more for the missing offsets.

        Asked in the other order, a partition that another worker begins in between looks as if its offset had vanished.
        """
        lacking = [key for key, owned in found.items() if owned.offset is None]
        if not lacking:
            return found
        self._beginnings.look()
        return {**found, **self._source.committed(lacking)}

    def _first_epoch(self, key: TopicPartitionKey) -> int:
        try:
            return startup.first_epoch(self._settings, self._cluster, self._beginnings, key, self._health.beat)
        except FirstStartError:
            self._check_topics()  # the offsets of a topic that was created again went with the old one
            raise

    def _resolve_stale(self) -> None:
        self._settle()
        keys = list(self._flow.stale())
        if not keys:
            return  # what the transaction left behind is read again as a whole
        found = self._source.committed(keys)
        known = {key: (owned.offset or 0, epochs.from_metadata(owned.metadata) or 0) for key, owned in found.items()}
        try:
            self._flow.resolve_stale(known)
        except InvariantError:
            self._check_topics()  # of a topic that was created again the index knows positions that nobody has committed
            raise
        self._logger.warning("stale records dropped; reading again from the committed offset",
                     partitions=[f"{topic}-{part}" for topic, part in keys])  # fmt: skip
        self._source.restart_at(self._learn(found))
        self._no_longer_unread(found)

    def _no_longer_unread(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Forget where these partitions were to be read again: they are gone, or begin at their committed offsets."""
        for key in keys:
            self._unread.pop(key, None)

    # -- RebalanceListener

    def assigned(self, keys: Sequence[TopicPartitionKey]) -> Mapping[TopicPartitionKey, int]:
        """Take over partitions at their committed offsets; pause those that the outputs lack."""
        self._settle()
        self._no_longer_unread(keys)
        self._metrics.rebalanced()
        starts = self._learn(self._source.committed(keys))
        lacking = [key for key in keys if key[1] >= self._cluster.output_partitions]
        if lacking:
            self._unserved.update(lacking)
            self._source.pause(lacking)
            self._logger.error(
                "the output topics have fewer partitions than the source; these wait: grow the outputs with "
                "`stream-dedup topics apply`",
                partitions=[f"{topic}-{part}" for topic, part in lacking],
                output_partitions=self._cluster.output_partitions,
            )
        self._logger.info("partitions assigned", partitions=sorted(part for _, part in keys))
        return starts

    def revoked(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Give up partitions."""
        self._settle()
        self._metrics.rebalanced()
        self._flow.revoked(keys)
        self._no_longer_unread(keys)
        self._unserved.difference_update(keys)
        self._logger.info("partitions revoked", partitions=sorted(part for _, part in keys))

    def lost(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Give up partitions that somebody else may own already."""
        self._settle()
        self._metrics.rebalanced()
        self._flow.lost(keys)
        self._no_longer_unread(keys)
        self._unserved.difference_update(keys)
        self._must_reread = bool(self._flow.owned())
        self._logger.warning("partitions lost", partitions=sorted(part for _, part in keys))

    def settled(self, stamp: bytes) -> None:
        """Stamp what survived."""
        self._settle()
        self._awaited.has_joined = (generation(stamp) or 0) >= 0
        if self._flow.settled(stamp, generation(stamp)):
            self._must_reread = True

    # -- now and then

    def _look_around(self) -> None:
        self._hosts.send()
        now = self._clock.monotonic()
        if now >= self._next_lag:
            self._next_lag = now + _LAG_SECONDS
            owned = self._flow.owned()
            for key in owned:
                lag = self._source.lag(key, self._flow.committed_offset(key))
                if lag is not None:
                    self._metrics.lag(key[0], key[1], lag)
            self._metrics.in_flight(self._flow.in_flight, self._flow.documents_in_flight, self._flow.held_bytes)
            self._metrics.allowed(self._allowance.now.documents)
            self._metrics.unemitted(self._flow.unemitted if self._settings.judging_mode.delivers else 0)
            self._health.startup(1.0, "started")
            self._awaited.look(self._flow, now)
            if not self._awaited.has_joined:
                self._health.ready(False, "joining the group")
            elif owned:
                self._health.ready(True, f"{len(owned)} partitions, {self._flow.in_flight} batches in flight")
            else:
                self._health.ready(True, "a member of the group without partitions")
        if now >= self._next_check:
            self._next_check = now + _CHECK_TOPICS_SECONDS
            self._check_topics()

    def _check_topics(self) -> None:
        """Notice a source topic that was created again, and outputs that have grown."""
        names = self._cluster.names
        if self._watch.is_silent():
            return  # asked for in vain, it would hold up the loop
        try:
            found = self._make_admin(self._settings).topic_ids(
                [names.documents, names.unique, names.duplicates, names.dead_letters]
            )
        except BrokerError as error:
            self._logger.warning("the topics could not be checked", reason=str(error))
            return
        source = found.get(names.documents)
        if source is not None and source[0] != self._cluster.source_id:
            raise StreamDedupError(
                f"The topic {names.documents} was deleted and created again; this worker ends so that a restart begins "
                "with the new topic's own positions."
            )
        outputs = [found[name][1] for name in (names.unique, names.duplicates, names.dead_letters) if name in found]
        served = {key for key in self._unserved if len(outputs) == 3 and key[1] < min(outputs)}
        if served:
            self._unserved -= served
            self._source.resume(served)
            self._logger.info("the outputs have grown; reading on", partitions=sorted(part for _, part in served))
