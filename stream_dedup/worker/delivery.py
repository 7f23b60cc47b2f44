"""The worker's transactions, one at a time, each in these steps:

 1. Choose the oldest batches with verdicts, as many as one transaction may contain.
 2. Run, in a second thread: build the outputs, write them and the source offsets, commit
    (`kafka.transaction` lists these steps).
 3. Adapt the size of the next transactions to the result and the duration.
 4. If it committed: store the new committed offsets in the flow, and count the records.
 5. If it did not: retract a record that an output refused because of its content, so that it
    becomes a dead letter when it is read again; then `abort` drops everything in flight.

The code below names these steps. Invariants: the offsets and the group's metadata of a transaction
are those of its batches, fixed when it begins; a retraction is durable before its record can be
committed as a dead letter.
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

_RESULT_WAIT_SECONDS = 0.003


class Abort(Protocol):
    """The action after a transaction that did not commit."""

    def __call__(self, *, rereads: bool) -> None:
        """Drop everything in flight. Read the committed offsets again: now if `rereads`, otherwise
        at the next read.
        """


class _Transaction(NamedTuple):
    """A running transaction: its batches, and the (topic, partition, offset, metadata) to commit."""

    batches: Sequence[InFlight]
    offsets: Sequence[tuple[str, int, int, str]]

    @property
    def group_metadata(self) -> bytes:
        """The group's metadata that was read with its batches."""
        return self.batches[0].group_metadata

    @property
    def amount(self) -> Amount:
        """Number and bytes of its source records."""
        return Amount(
            sum(len(batch.messages) for batch in self.batches),
            sum(batch.messages.held_bytes for batch in self.batches),
        )


class _FinishedTransaction(NamedTuple):
    """The result of a transaction, the records it wrote, and its duration."""

    result: Result
    emitted: EmittedBatch
    seconds: float


class Delivery:
    """Runs the transactions. Unless it `delivers`, they commit the offsets without outputs."""

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
        self._retry_policy = context.retry_policy
        self._delivers = delivers
        self._running: _Transaction | None = None
        self._was_kafka_silent = False  # whether Kafka was unavailable while the transaction ran

    @property
    def is_running(self) -> bool:
        """Whether a transaction runs, or its result was not processed yet."""
        return self._running is not None

    def advance(self) -> None:
        """Process the result of the running transaction if it has ended, and begin the next one."""
        if self.wait_until_none_runs(0.0 if self._flow.has_unanswered else _RESULT_WAIT_SECONDS):
            self._begin()
            self.wait_until_none_runs(0.0)

    def wait_until_none_runs(self, wait_seconds: float, *, rereads: bool = True) -> bool:
        """Wait at most `wait_seconds` for the running transaction and process its result; return
        whether none runs.
        """
        if self._running is None:
            return True
        self._was_kafka_silent = self._was_kafka_silent or self._retry_policy.is_silent()
        try:
            has_ended = self._thread.ended(wait_seconds)
        except BaseException:
            self._running = None
            raise
        if has_ended:
            self._process_result(self._running, rereads=rereads)
        return has_ended

    def retract_varying(self, batch: InFlight) -> None:
        """Retract the documents whose dead letter `can_vary`: an earlier attempt may have
        succeeded, so that the index has judged them.
        """
        varying = [
            batch.messages[row]
            for row, decision in batch.decided_locally()
            if isinstance(decision, DeadLetter) and decision.can_vary
        ]
        if varying:
            self._send_retractions(varying)

    def abandon(self) -> None:
        """Stop waiting for the running transaction: the next owner sees its result in the committed
        offsets.
        """
        self._running = None

    def close(self) -> None:
        """Close the producers."""
        self._transactions.close()

    def _begin(self) -> None:
        ready = self._flow.ready(self._allowance.current)  # step 1
        if not ready:
            return
        now = self._clock.monotonic()
        for batch in ready:
            self._metrics.observe_wait(now - batch.waiting_since)
        offsets = [
            (topic, partition, offset, epochs.to_metadata(epoch))
            for (topic, partition), (offset, epoch) in self._flow.offsets(ready).items()
        ]
        running = self._running = _Transaction(ready, offsets)
        self._was_kafka_silent = False
        self._thread.start(lambda: self._carry_out(running))  # step 2

    def _carry_out(self, transaction: _Transaction) -> _FinishedTransaction:
        """Run one transaction; called in the second thread."""
        emitted = self._outputs.of(*transaction.batches)
        began = self._clock.monotonic()
        return _FinishedTransaction(
            self._transact(emitted, transaction), emitted, self._clock.monotonic() - began
        )

    def _transact(
        self, emitted: EmittedBatch, transaction: _Transaction, *, one_by_one: bool = False
    ) -> Result:
        with self._metrics.stage("transaction"):
            return self._transactions.run(
                emitted.outputs if self._delivers else [],
                transaction.offsets,
                transaction.group_metadata,
                one_by_one=one_by_one,
                report_step=lambda step: self._failpoints.hit(
                    f"worker.{step}", lambda: self._flow.in_flight
                ),
            )

    def _process_result(self, transaction: _Transaction, *, rereads: bool) -> None:
        self._running = None
        finished: _FinishedTransaction = self._thread.take_result()
        result, emitted, seconds = finished
        amount = transaction.amount
        self._metrics.transactions.labels(result.outcome.value).inc()  # step 3
        self._adapt_allowance(result, amount, seconds)
        if result.outcome is Outcome.COMMITTED:  # step 4
            self._flow.committed(transaction.batches)
            self._metrics.records.inc(sum(batch.live_records for batch in transaction.batches))
            self._metrics.count_committed(emitted.counts())
            self._failpoints.hit("worker.after-commit", self._flow.in_flight + 1)
            return
        self._logger.warning(
            "a transaction did not commit; its records are read again",
            outcome=result.outcome.value,
            reason=result.why,
            documents=amount.documents,
            seconds=round(seconds, 1),
            next_documents_max=self._allowance.current.documents,
        )
        if result.refused:  # step 5
            self._retract(emitted, transaction, result)
        self._abort(rereads=rereads)

    def _adapt_allowance(self, result: Result, amount: Amount, seconds: float) -> None:
        """Adapt the size of the next transactions to the speed of the outputs, unless Kafka was
        unavailable meanwhile.
        """
        if self._was_kafka_silent:
            return
        if result.outcome is Outcome.COMMITTED:
            self._allowance.adapt_after_commit(amount, seconds)
        elif result.is_late:
            self._allowance.shrink_after_timeout(amount)

    def _retract(self, emitted: EmittedBatch, transaction: _Transaction, result: Result) -> None:
        """Find the record that an output refused because of its content, and retract it in the
        log.

        If Kafka refused a group of records, write them one by one to find it.

        Raises:
            ConfigurationError: the output topic refuses records that the index did not judge.
        """
        if len(result.refused) > 1:
            began = self._clock.monotonic()
            result = self._transact(emitted, transaction, one_by_one=True)
            # If this took too long, the next transaction is smaller, and finds the record.
            self._adapt_allowance(result, transaction.amount, self._clock.monotonic() - began)
        refused = [emitted[row] for row in result.refused]
        for record in refused:
            position = record.message.position
            if not record.is_judged:
                raise ConfigurationError(
                    f"The topic {record.output.topic} refuses the record {position}: {result.why} "
                    "Correct the topic's settings with: stream-dedup topics apply"
                )
            self._logger.error(
                "an output refused a record; it is retracted and becomes a dead letter",
                position=position,
                topic=record.output.topic,
                reason=result.why,
            )
        self._send_retractions([record.message for record in refused])

    def _send_retractions(self, messages: Sequence[Message]) -> None:
        """Append retractions of these records' documents to the log, and wait until they are
        durable.
        """
        positions_by_topic: dict[tuple[str, bytes], list[tuple[int, int, int]]] = {}
        for message in messages:
            source = self._flow.source((message.topic, message.partition))
            positions = positions_by_topic.setdefault((source.topic, source.topic_id), [])
            positions.append((source.partition, message.offset, value_digest(message.value)))
        for (topic, topic_id), positions in positions_by_topic.items():
            for first in range(0, len(positions), records.DOCUMENTS_MAX):
                chunk = positions[first : first + records.DOCUMENTS_MAX]
                fields = {"topic": topic, "topic_id": topic_id.hex(), "positions": chunk}
                self._appender.send(
                    records.encode_control(records.Control("retract", fields)), None, lambda _: None
                )
        self._appender.flush(retry_policy=self._retry_policy)
