"""Role one, the worker: a loop that carries events from Kafka to `flow` and its decisions back.

Its parts: `intake` reads and prepares, `questions` asks the log and hears the index, `delivery`
runs the transactions, `assignment` knows which partitions are read and from where. What more than
one part must do is done here: `drain`, an abort.

A batch passes these failpoints, in this order:

    consumed -> appended -> append-acked -> verdict-in -> begin -> outputs -> flushed -> offsets ->
    before-commit -> after-commit

States. Beside the batches in flight, whose states `flow` knows, four things are so or not:

    P  a batch is being prepared, in a thread of its own
    A  more was read ahead of its turn
    T  a transaction runs, in a thread of its own
    R  the committed offsets must be read again, before anything is read on

    P  A  T  R
    -  -  -  -   nothing to do, or all that was read waits for its verdicts
    P  -  -  -   the only batch, or the others wait for their verdicts
    P  A  -  -   the same, and the next one is read
    -  -  T  -   all that was read is in flight
    P  -  T  -   preparing and committing at once
    P  A  T  -   as much at once as there is
    -  -  -  R   nothing is in flight

    The other combinations do not exist, but for two moments in which A is without P: the rest of a
    batch that was cut off waits for room in flight, or the worker is to end. Else A begins to be
    prepared as soon as what came before it is in flight. R is alone because what sets it drains or
    aborts first, which ends P, A and T, and drops what is in flight.

Events, and what each does:

    records are there        read, if there is room: -> P, or A if P
    a batch is prepared      it goes in flight, its questions to the log; P ends, then its rest or A begins: -> P
    a slice of time is over  as if the batch were prepared; what is left of it comes before A
    verdicts come            the flow learns them; once the oldest batches have theirs: -> T
    T commits                the flow forgets its batches; T ends
    T does not commit        abort: P, A and all in flight are forgotten, and the committed offsets read again now
    partitions come or go    drain; the flow learns it; what was read and not prepared is read again at the next read
    partitions are lost      drain; all in flight is dropped: -> R, if others are left
    a generation was missed  drain; all in flight is dropped: -> R, if there was any
    a stale verdict          drain; the partition's records are dropped, and read again from its committed offset
    a new topic of answers   drain; all in flight is dropped, and the committed offsets read again now
    a stop                   P ends with the stretch in work; what is in flight is delivered, for a while; the rest, A and R are
                             left to the next owner

    drain: wait until P and T have ended. If T does not commit then: -> R. What was in A is read
    again at the next read.

Invariants: one thread owns all clients but the producers of transactions. While the worker waits it
keeps polling, so that it stays in its group. Nothing is committed but through `flow.ready`.
"""

from __future__ import annotations

from dataclasses import dataclass

from stream_dedup.domain.errors import BrokerError
from stream_dedup.serving.running import RunningRole
from stream_dedup.worker.allowance import Allowance
from stream_dedup.worker.assignment import Assignment
from stream_dedup.worker.awaited import Awaited
from stream_dedup.worker.delivery import Delivery
from stream_dedup.worker.dependencies import WorkerContext, WorkerDependencies
from stream_dedup.worker.identity import WorkerIdentity
from stream_dedup.worker.intake import Intake
from stream_dedup.worker.prepare import InFlight
from stream_dedup.worker.questions import Questions

_DRAIN_STEP_SECONDS = 0.1
_ANSWER_SECONDS = 0.003
_FULL_SECONDS = 0.02
_LAG_SECONDS = 1.0
_ABORT_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class WorkerParts:
    """The parts of a worker, made in `worker.role`."""

    assignment: Assignment
    intake: Intake
    questions: Questions
    delivery: Delivery
    allowance: Allowance
    awaited: Awaited
    identity: WorkerIdentity


class Worker:
    """One worker: `run` is its loop."""

    def __init__(
        self,
        context: WorkerContext,
        parts: WorkerParts,
        running: RunningRole,
        around: WorkerDependencies,
        *,
        delivers: bool,
    ) -> None:
        """`delivers`: the outputs are written; else documents are judged alone."""
        self._flow = context.flow
        self._assignment = parts.assignment
        self._intake = parts.intake
        self._questions = parts.questions
        self._delivery = parts.delivery
        self._allowance = parts.allowance
        self._awaited = parts.awaited
        self._identity = parts.identity
        self._metrics = context.metrics
        self._clock = context.clock
        self._logger = context.logger
        self._health = running.health
        self._watch = running.watch
        self._stop = running.stop
        self._around = around
        self._delivers = delivers
        self._next_lag = 0.0

    # -- the loop

    def run(self) -> None:
        """Turn until the worker is to stop; then deliver what is in flight, for a while, and leave
        the group.
        """
        try:
            while not self._stop.is_set():
                self._turn(reads=True)
            until = self._clock.monotonic() + self._around.drain_seconds
            self._intake.hurry()
            while (
                self._intake.is_preparing or self._flow.in_flight
            ) and self._clock.monotonic() < until:
                self._turn(reads=False)
            self._logger.info("worker stopped", dropped_in_flight=self._flow.in_flight)
        except BrokerError as error:
            if not (self._stop.is_set() and self._watch.is_silent()):
                raise
            self._logger.warning(
                "worker stopped while Kafka was away; the next owner reads on", reason=str(error)
            )
        finally:
            seconds = self._around.close_seconds
            try:
                # In a thread that can be left behind: leaving the group waits for a coordinator
                # that may be gone.
                self._around.make_thread("closing").call(self._close, seconds)
            except TimeoutError:
                self._logger.warning(
                    "the clients did not close in time and are left behind", waited_seconds=seconds
                )
            finally:
                self._identity.release()

    def _turn(self, *, reads: bool) -> None:
        self._health.beat()
        self._intake.turn(reads=reads)
        self._questions.poll()
        self._questions.hear(self._seconds_to_hear())
        if self._flow.stale():
            self._assignment.resolve_stale()
        self._delivery.go_on()
        self._do_chores()
        if reads:
            self._intake.rest()

    def _seconds_to_hear(self) -> float:
        """Return how long answers are waited for: not at all if none is due, and longer if nothing
        else can be done.
        """
        is_running = self._delivery.is_running
        is_due = (
            self._flow.awaits if is_running else self._flow.in_flight and not self._flow.ready()
        )
        if not is_due:
            return 0.0
        return (
            _ANSWER_SECONDS
            if self._intake.wanted() or is_running or self._intake.is_preparing
            else _FULL_SECONDS
        )

    def _close(self) -> None:
        self._delivery.leave()
        self._intake.leave()
        self._assignment.source.close()
        self._questions.close()
        self._delivery.close()

    # -- what more than one part must do

    def drain(self) -> None:
        """Wait until no batch is prepared and no transaction runs: the flow must not change under
        them.

        What they leave to be read again is read later.
        """
        self._intake.finish()
        while not self._delivery.wait_until_none_runs(_DRAIN_STEP_SECONDS, rereads=False):
            self._health.beat()

    def abort(self, *, rereads: bool) -> None:
        """Drop all that is in flight, and what is prepared or read behind it."""
        self._intake.forget()
        dropped = self._flow.drop_all()
        if rereads and not self._stop.is_set():
            self._assignment.reread(dropped)
        else:
            self._assignment.reread_later()
        if not self._stop.is_set():
            self._clock.sleep(_ABORT_PAUSE_SECONDS)

    def hear_anew(self) -> None:
        """Answers come in another topic of the same name: what waits for one may have had it in the
        one that is gone.
        """
        if self._questions.begin_anew():
            self._logger.warning(
                "the topic of answers was created again; what waits for one is asked anew"
            )
            self.drain()
            self.abort(rereads=True)

    def take_in(self, batch: InFlight) -> None:
        """Take in flight a batch that is prepared."""
        self._delivery.retract_timed(batch)
        self._questions.ask(batch)

    # -- now and then

    def _do_chores(self) -> None:
        now = self._clock.monotonic()
        if now >= self._next_lag:
            self._next_lag = now + _LAG_SECONDS
            self._show(now)
        self._assignment.look_at_topics(
            soon=self._questions.are_late, is_deaf=bool(self._questions.deaf)
        )

    def _show(self, now: float) -> None:
        """Set the gauges, and what the health pages say."""
        owned = self._flow.owned()
        for key in owned:
            lag = self._assignment.source.lag(key, self._flow.committed_offset(key))
            if lag is not None:
                self._metrics.lag(key[0], key[1], lag)
        self._metrics.in_flight(
            self._flow.in_flight, self._flow.documents_in_flight, self._flow.held_bytes
        )
        self._metrics.allowed.set(self._allowance.now.documents)
        self._metrics.unemitted.set(self._flow.unemitted if self._delivers else 0)
        self._health.startup(1.0, "started")
        self._metrics.unanswered.set(self._awaited.look(self._flow, self._questions.deaf, now))
        if not self._assignment.has_joined:
            self._health.ready(
                False, "joining the group, or waiting for it to say what is read here"
            )
        elif owned:
            self._health.ready(
                True, f"{len(owned)} partitions, {self._flow.in_flight} batches in flight"
            )
        else:
            self._health.ready(True, "a member of the group without partitions")
