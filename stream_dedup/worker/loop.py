"""The worker's loop: it passes events from Kafka to `flow` and carries out its decisions.

Its parts: `intake` reads and prepares, `questions` appends to the log and reads the verdicts,
`delivery` runs the transactions, `assignment` tracks the partitions and their offsets. Actions that
involve several parts are here: `drain`, `abort`.

A batch passes these failpoints, in this order:

    consumed -> appended -> append-acked -> verdict-in -> begin -> outputs -> flushed -> offsets ->
    before-commit -> after-commit

States. `flow` tracks the batches in flight. In addition, four flags describe the worker:

    P  a batch is being prepared, in a second thread
    A  more records were read ahead
    T  a transaction runs, in a third thread
    R  the committed offsets must be read again before the next read

    P  A  T  R
    -  -  -  -   idle, or every batch waits for its verdicts
    P  -  -  -   one batch is prepared; others may wait for their verdicts
    P  A  -  -   the same, and the next records are read
    -  -  T  -   every record read is in flight
    P  -  T  -   preparing and committing at the same time
    P  A  T  -   reading, preparing and committing at the same time
    -  -  -  R   nothing is in flight

    The other combinations do not occur, with two exceptions in which A is set without P: the
    remainder of a split batch waits for a place in flight, or the worker is stopping. Otherwise A is
    prepared as soon as the batch before it is in flight. R is set alone because a drain or an abort
    comes first, which ends P, A and T and drops the batches in flight.

Events and their effects:

    records arrive           read them, if there is space: -> P, or A if P is set
    a batch is prepared      it goes in flight, its questions to the log; P ends, then A is prepared: -> P
    a time slice ends        the records prepared so far go in flight likewise; the remainder is prepared before A
    verdicts arrive          the flow stores them; once the oldest batches have theirs: -> T
    T commits                the flow removes its batches; T ends
    T does not commit        abort: P, A and everything in flight are dropped, and the committed offsets read again now
    partitions change        drain; the flow is updated; records that were not prepared are read again at the next read
    partitions are lost      drain; everything in flight is dropped: -> R, if other partitions remain
    a generation was missed  drain; everything in flight is dropped: -> R, if anything was in flight
    a stale verdict          drain; the partition's records are dropped, and read again from its committed offset
    a new topic of answers   drain; everything in flight is dropped, and the committed offsets read again now
    a stop                   P ends with the current chunk; batches in flight are delivered within a time limit; the
                             remainder, A and R are left to the next owner

    drain: wait until P and T have ended. If T does not commit: -> R. The records in A are read again
    at the next read.

Invariants: one thread owns all clients except the producers of transactions. The worker polls while
it waits, so that it stays in its group. Only `flow.ready` releases batches for a commit.
"""

from __future__ import annotations

from stream_dedup.domain.errors import BrokerError
from stream_dedup.serving.kafka_role import RunningRole
from stream_dedup.worker.allowance import Allowance
from stream_dedup.worker.assignment import Assignment
from stream_dedup.worker.delivery import Delivery
from stream_dedup.worker.dependencies import WorkerContext, WorkerDependencies
from stream_dedup.worker.identity import WorkerIdentity
from stream_dedup.worker.intake import Intake
from stream_dedup.worker.prepare import InFlight
from stream_dedup.worker.questions import Questions
from stream_dedup.worker.wait_reporter import WaitReporter

_DRAIN_STEP_SECONDS = 0.1
_ANSWER_SECONDS = 0.003
_FULL_SECONDS = 0.02
_LAG_SECONDS = 1.0
_ABORT_PAUSE_SECONDS = 0.5


class Worker:
    """A worker; `run` is its loop."""

    def __init__(
        self,
        context: WorkerContext,
        running: RunningRole,
        dependencies: WorkerDependencies,
        *,
        assignment: Assignment,
        intake: Intake,
        questions: Questions,
        delivery: Delivery,
        allowance: Allowance,
        identity: WorkerIdentity,
        delivers: bool,
    ) -> None:
        """Connect the parts. Unless it `delivers`, documents are judged and no outputs written."""
        self._flow = context.flow
        self._assignment, self._intake = assignment, intake
        self._questions, self._delivery = questions, delivery
        self._allowance, self._identity = allowance, identity
        self._wait_reporter = WaitReporter(running.waits)
        self._metrics = context.metrics
        self._clock = context.clock
        self._logger = context.logger
        self._health = running.health
        self._watch = running.watch
        self._stop = running.stop
        self._dependencies = dependencies
        self._delivers = delivers
        self._next_lag = 0.0

    # -- the loop

    def run(self) -> None:
        """Run until the worker is to stop; then deliver the batches in flight within
        `drain_seconds`, and leave the group.
        """
        try:
            while not self._stop.is_set():
                self._run_once(reads=True)
            deadline = self._clock.monotonic() + self._dependencies.drain_seconds
            self._intake.hurry()
            while (
                self._intake.is_preparing or self._flow.in_flight
            ) and self._clock.monotonic() < deadline:
                self._run_once(reads=False)
            self._logger.info("worker stopped", dropped_in_flight=self._flow.in_flight)
        except BrokerError as error:
            if not (self._stop.is_set() and self._watch.is_silent()):
                raise
            self._logger.warning(
                "worker stopped while Kafka was unavailable; the next owner continues",
                reason=str(error),
            )
        finally:
            seconds = self._dependencies.close_seconds
            try:
                # In a thread that can be abandoned: leaving the group waits for a coordinator that
                # may not answer.
                self._dependencies.make_thread("closing").call(self._close, seconds)
            except TimeoutError:
                self._logger.warning(
                    "the Kafka clients did not close in time; exiting without waiting for them",
                    waited_seconds=seconds,
                )
            finally:
                self._identity.release()

    def _run_once(self, *, reads: bool) -> None:
        self._health.beat()
        self._intake.read_and_prepare(reads=reads)
        self._questions.poll()
        self._questions.process_answers(self._seconds_to_wait_for_answers())
        if self._flow.stale():
            self._assignment.resolve_stale()
        self._delivery.advance()
        self._do_periodic_tasks()
        if reads:
            self._intake.sleep_until_next_read()

    def _seconds_to_wait_for_answers(self) -> float:
        """Return how long to wait for answers: 0 if none is due, and longest if no record can be
        read, prepared or committed meanwhile.
        """
        is_running = self._delivery.is_running
        is_due = (
            self._flow.has_unanswered
            if is_running
            else self._flow.in_flight and not self._flow.ready()
        )
        if not is_due:
            return 0.0
        return (
            _ANSWER_SECONDS
            if self._intake.records_wanted() or is_running or self._intake.is_preparing
            else _FULL_SECONDS
        )

    def _close(self) -> None:
        self._delivery.abandon()
        self._intake.abandon()
        self._assignment.source.close()
        self._questions.close()
        self._delivery.close()

    # -- actions that involve several parts

    def drain(self) -> None:
        """Wait until no batch is being prepared and no transaction runs, so that the flow may
        change.

        Records that must be read again are read at the next read.
        """
        self._intake.finish()
        while not self._delivery.wait_until_none_runs(_DRAIN_STEP_SECONDS, rereads=False):
            self._health.beat()

    def abort(self, *, rereads: bool) -> None:
        """Drop everything in flight, being prepared or read ahead."""
        self._intake.discard()
        dropped = self._flow.drop_all()
        if rereads and not self._stop.is_set():
            self._assignment.reread(dropped)
        else:
            self._assignment.schedule_reread()
        if not self._stop.is_set():
            self._clock.sleep(_ABORT_PAUSE_SECONDS)

    def reopen_verdicts(self) -> None:
        """Read the topic of answers after it was created again, and ask again: the deleted topic
        may have contained the answers.
        """
        if self._questions.reopen():
            self._logger.warning(
                "the topic of answers was created again; requesting the verdicts of waiting "
                "documents again"
            )
            self.drain()
            self.abort(rereads=True)

    def take_in(self, batch: InFlight) -> None:
        """Put a prepared batch in flight."""
        self._delivery.retract_varying(batch)
        self._questions.ask(batch)

    # -- periodic tasks

    def _do_periodic_tasks(self) -> None:
        now = self._clock.monotonic()
        if now >= self._next_lag:
            self._next_lag = now + _LAG_SECONDS
            self._update_gauges(now)
        self._assignment.watch_topics(
            soon=self._questions.are_late, is_unreadable=bool(self._questions.read_error)
        )

    def _update_gauges(self, now: float) -> None:
        """Update the gauges and the health pages."""
        owned = self._flow.owned()
        for key in owned:
            lag = self._assignment.source.lag(key, self._flow.committed_offset(key))
            if lag is not None:
                self._metrics.set_lag(key[0], key[1], lag)
        self._metrics.set_in_flight(
            self._flow.in_flight, self._flow.documents_in_flight, self._flow.held_bytes
        )
        self._metrics.allowed.set(self._allowance.current.documents)
        self._metrics.unemitted.set(self._flow.unemitted if self._delivers else 0)
        self._health.set_startup(1.0, "started")
        self._metrics.unanswered.set(
            self._wait_reporter.report(self._flow, self._questions.read_error, now)
        )
        if not self._assignment.has_joined:
            self._health.set_ready(False, "joining the group, or waiting for its assignment")
        elif owned:
            self._health.set_ready(
                True, f"{len(owned)} partitions, {self._flow.in_flight} batches in flight"
            )
        else:
            self._health.set_ready(True, "a member of the group without partitions")
