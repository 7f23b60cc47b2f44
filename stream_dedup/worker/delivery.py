"""The worker's transactions, one at a time, each in these steps:

 1. choose: the oldest batches whose verdicts are in, as many as one transaction may carry
 (`Delivery.go_on`). 2. carry out, in a thread of its own: make the outputs, write them and the
 source offsets, commit. `kafka.transaction` numbers
    the steps of that.
 3. learn how it ended, and how long it took: so the next ones carry less or more. 4. committed: the
 flow moves the committed offsets on, and what was carried is counted. 5. not committed: a record
 that an output refuses for what it is is retracted in the log, so that it becomes a dead letter
    when it is read again; then `abort` drops all that is in flight.

Invariants: the offsets and the group's metadata of a transaction are those of its batches, fixed
when it begins; a retraction is durable before its record can be committed as a dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from stream_dedup.domain.document import DeadLetter, Message
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.threads import SideThread
from stream_dedup.kafka import LogAppender, Outcome, Result, TransactionalOutput
from stream_dedup.log import epochs, records
from stream_dedup.log.records import value_digest
from stream_dedup.worker.allowance import Allowance, Amount
from stream_dedup.worker.dependencies import WorkerContext
from stream_dedup.worker.outputs import EmittedBatch, OutputWriter
from stream_dedup.worker.prepare import InFlight

_ANSWER_SECONDS = 0.003


class Abort(Protocol):
    """What is done after a transaction that did not commit."""

    def __call__(self, *, rereads: bool) -> None:
        """Drop all that is in flight; read the committed offsets again, now if it `rereads`, else
        before the next read.
        """


class _Transaction(NamedTuple):
    """A transaction that runs: what it carries, and what it commits."""

    batches: Sequence[InFlight]
    offsets: Sequence[tuple[str, int, int, str]]

    @property
    def stamp(self) -> bytes:
        """The group's metadata that was read with its batches."""
        return self.batches[0].stamp

    @property
    def amount(self) -> Amount:
        """How much it carries."""
        messages = [batch.messages for batch in self.batches]
        return Amount(sum(map(len, messages)), sum(one.held_bytes for one in messages))


class _Ended(NamedTuple):
    """How a transaction has ended, what it was to write, and how long it took."""

    result: Result
    leaving: EmittedBatch
    seconds: float


class Delivery:
    """Runs the transactions. With `delivers` False they write no outputs, and commit the offsets
    alone.
    """

    def __init__(
        self,
        context: WorkerContext,
        outputs: OutputWriter,
        transactions: TransactionalOutput,
        appender: LogAppender,
        thread: SideThread,
        allowance: Allowance,
        abort: Abort,
        *,
        delivers: bool,
    ) -> None:
        self._flow = context.flow
        self._metrics = context.metrics
        self._failpoints = context.failpoints
        self._clock = context.clock
        self._logger = context.logger
        self._outputs = outputs
        self._transactions = transactions
        self._appender = appender
        self._thread = thread
        self._allowance = allowance
        self._abort = abort
        self._patience = context.patience
        self._delivers = delivers
        self._running: _Transaction | None = None
        self._was_away = False  # Kafka, at some time while it ran

    @property
    def is_running(self) -> bool:
        """Whether a transaction runs, or its end was not taken in yet."""
        return self._running is not None

    def go_on(self) -> None:
        """Take in how the transaction that runs has ended, if it has, and begin that of what is
        ready.
        """
        if self.wait_until_none_runs(0.0 if self._flow.awaits else _ANSWER_SECONDS):
            self._begin()
            self.wait_until_none_runs(0.0)

    def wait_until_none_runs(self, wait_seconds: float, *, rereads: bool = True) -> bool:
        """Return whether no transaction runs, after at most `wait_seconds`, and taking in how it
        ended.
        """
        if self._running is None:
            return True
        self._was_away = self._was_away or self._patience.is_silent()
        try:
            has_ended = self._thread.ended(wait_seconds)
        except BaseException:
            self._running = None
            raise
        if has_ended:
            self._end(self._running, rereads=rereads)
        return has_ended

    def retract_timed(self, batch: InFlight) -> None:
        """Tell the log of what a limit of time made a dead letter: another worker may have had it
        judged, uncommitted.
        """
        decided = batch.decided_here()
        timed = [
            batch.messages[row]
            for row, one in decided
            if isinstance(one, DeadLetter) and one.is_timed
        ]
        if timed:
            self._send_retractions(timed)  # before the dead letters can be committed

    def leave(self) -> None:
        """Wait no more for a transaction that runs: who reads on finds in the committed offsets how
        it ended.
        """
        self._running = None

    def close(self) -> None:
        """Close the producers."""
        self._transactions.close()

    def _begin(self) -> None:
        ready = self._flow.ready(self._allowance.now)  # 1
        if not ready:
            return
        now = self._clock.monotonic()
        for batch in ready:
            self._metrics.waited(now - batch.taken)
        offsets = [
            (topic, partition, offset, epochs.to_metadata(epoch))
            for (topic, partition), (offset, epoch) in self._flow.offsets(ready).items()
        ]
        running = self._running = _Transaction(ready, offsets)
        self._was_away = False
        self._thread.start(lambda: self._carry_out(running))  # 2

    def _carry_out(self, transaction: _Transaction) -> _Ended:
        """Run one transaction, in its own thread."""
        leaving = self._outputs.of(*transaction.batches)
        began = self._clock.monotonic()
        return _Ended(
            self._transact(leaving, transaction), leaving, self._clock.monotonic() - began
        )

    def _transact(
        self, leaving: EmittedBatch, transaction: _Transaction, *, one_by_one: bool = False
    ) -> Result:
        with self._metrics.stage("transaction"):
            return self._transactions.run(
                leaving.outputs if self._delivers else [],
                transaction.offsets,
                transaction.stamp,
                one_by_one=one_by_one,
                reached=lambda step: self._failpoints.hit(
                    f"worker.{step}", lambda: self._flow.in_flight
                ),
            )

    def _end(self, transaction: _Transaction, *, rereads: bool) -> None:
        self._running = None
        ended: _Ended = self._thread.take_result()
        result, leaving, seconds = ended
        carried = transaction.amount
        self._metrics.transactions.labels(result.outcome.value).inc()  # 3
        self._learn(result, carried, seconds)
        if result.outcome is Outcome.COMMITTED:  # 4
            self._flow.committed(transaction.batches)
            self._metrics.records.inc(sum(batch.live_records for batch in transaction.batches))
            self._metrics.left(leaving.left())
            self._failpoints.hit("worker.after-commit", self._flow.in_flight + 1)
            return
        self._logger.warning(
            "a transaction did not commit; its records are read again",
            outcome=result.outcome.value,
            reason=result.why,
            documents=carried.documents,
            seconds=round(seconds, 1),
            next_documents_max=self._allowance.now.documents,
        )
        if result.refused:  # 5
            self._retract(leaving, transaction, result)
        self._abort(rereads=rereads)

    def _learn(self, result: Result, carried: Amount, seconds: float) -> None:
        """Let the next transactions carry as much as can be written in time; while Kafka was away,
        no size would have been.
        """
        if self._was_away:
            return
        if result.outcome is Outcome.COMMITTED:
            self._allowance.committed(carried, seconds)
        elif result.is_late:
            self._allowance.was_late(carried)

    def _retract(self, leaving: EmittedBatch, transaction: _Transaction, result: Result) -> None:
        """An output refused a record for what it is: find it, and tell the log that it represents
        nobody.
        """
        if len(result.refused) > 1:
            began = self._clock.monotonic()
            result = self._transact(leaving, transaction, one_by_one=True)
            # Written one by one, all of them may take too long; of fewer it is found.
            self._learn(result, transaction.amount, self._clock.monotonic() - began)
        for index in result.refused:
            emitted = leaving[index]
            where = emitted.message.at
            if not emitted.is_judged:
                raise ConfigurationError(
                    f"The topic {emitted.output.topic} refuses the record {where}: {result.why} "
                    "Correct the topic's "
                    "settings with: stream-dedup topics apply"
                )
            self._logger.error(
                "an output refused a record; it is retracted and becomes a dead letter",
                position=where,
                topic=emitted.output.topic,
                reason=result.why,
            )
        self._send_retractions([leaving[index].message for index in result.refused])

    def _send_retractions(self, messages: Sequence[Message]) -> None:
        """Have the log retract the documents of these records, and wait until it holds that."""
        positions: dict[tuple[str, bytes], list[tuple[int, int, int]]] = {}
        for message in messages:
            source = self._flow.source((message.topic, message.partition))
            named = positions.setdefault((source.topic, source.topic_id), [])
            named.append((source.partition, message.offset, value_digest(message.value)))
        for (topic, topic_id), named in positions.items():
            for first in range(0, len(named), records.DOCUMENTS_MAX):
                some = named[first : first + records.DOCUMENTS_MAX]
                fields = {"topic": topic, "topic_id": topic_id.hex(), "positions": some}
                self._appender.send(
                    records.encode_control(records.Control("retract", fields)), None, lambda _: None
                )
        self._appender.flush(patience=self._patience)
