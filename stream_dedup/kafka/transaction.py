"""The worker's transaction: outputs and source offsets are written atomically.

Invariants: the outputs are flushed before the offsets are sent, because a torn transaction
(KAFKA-17754) then duplicates a record at worst, and never commits an offset without its output. A
producer that may have sent its offsets or its EndTxn request twice does not begin another
transaction: the broker could receive the second request during that transaction, and commit the
older offsets with it or end it early.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from stream_dedup.domain.document import Headers
from stream_dedup.domain.errors import AbortableError, BrokerError, FencedError
from stream_dedup.domain.messages import NO_TIMESTAMP
from stream_dedup.domain.threads import SideThread
from stream_dedup.kafka.append import (
    PURGED,
    REFUSALS,
    STEP_SECONDS,
    BrokenError,
    StuckError,
    UndeliveredError,
    UnwrittenError,
    classify_failures,
    client_error,
    translate_step_error,
    write_acls,
)
from stream_dedup.kafka.bulk import BulkWriter, RecordColumns
from stream_dedup.kafka.client import is_retriable, make_producer, producer_config, translate
from stream_dedup.kafka.retries import ATTEMPTS_ONLY, RetryPolicy
from stream_dedup.settings.settings import Settings

# Limit for writing all outputs of a transaction. It is below the 30 s after which Kafka ends the
# transaction and fences its producer.
_OUTPUT_SECONDS = 25.0
_FLUSH_SLICE_SECONDS = 1.0
_MESSAGE_SECONDS = 20.0
_TRANSACTION_SECONDS = 30.0
_INIT_ATTEMPTS_MAX = 6
_INIT_SECONDS = 10.0
_GRACE_SECONDS = 2.0
# After a broken connection or a time-out, librdkafka waits this long, plus or minus a fifth, and
# repeats the request. So a step that took less than four fifths of it has sent its request once. The
# default of 100 ms would not show that, because many steps with one request take as long.
_RETRY_MS = 500
_SENT_ONCE_SECONDS = 0.8 * _RETRY_MS / 1000


class Output(NamedTuple):
    """A record to write; with a timestamp of None it has none."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: Headers


class PackedOutputs(Sequence[Output]):
    """Outputs with columns: the `packed` ones are written from columns, the others item by item."""

    @property
    @abstractmethod
    def columns(self) -> RecordColumns:
        """The columns, with a row for each output."""


class Outcome(enum.Enum):
    """The result of a transaction. After UNKNOWN, read the committed offsets from the broker first."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Result(NamedTuple):
    """The outcome of a transaction, and the indices of the outputs that the broker refused because
    of their content.

    `is_late`: outputs were not written in time; unless Kafka was unavailable, the next transaction
    should be smaller.
    """

    outcome: Outcome
    refused: tuple[int, ...] = ()
    why: str = ""
    is_late: bool = False


class TransactionalOutput:
    """Runs the worker's transactions: outputs and source offsets are written atomically.

    With `alternates`, two producers take turns, the second with the id `<transactional_id>~2`; one
    transaction still ends before the next one begins. A single producer would have to wait: while
    Kafka writes the markers of its last transaction, the next one gets CONCURRENT_TRANSACTIONS, and
    librdkafka retries only after 20 ms (AddPartitionsToTxn). If the result of a transaction is
    unknown, both producers are replaced, because their coordinator may be the same broker.
    """

    def __init__(
        self,
        settings: Settings,
        transactional_id: str,
        client: str,
        *,
        alternates: bool = False,
        retry_policy: RetryPolicy = ATTEMPTS_ONLY,
        monotonic: Callable[[], float] = time.monotonic,
        make_thread: Callable[[str], SideThread] = SideThread,
    ) -> None:
        self._retry_policy = retry_policy
        self._monotonic = monotonic
        self._make_thread = make_thread

        def make(name: str) -> tuple[dict[str, Any], Producer]:
            config = producer_config(
                settings,
                client,
                # `flush` returns how many records remain, so reports of delivered records are not
                # needed; each would cost 1.3 us.
                {"queue.buffering.max.messages": 1_000_000, "delivery.report.only.error": True},
                {
                    "transactional.id": name,
                    "transaction.timeout.ms": int(1000 * _TRANSACTION_SECONDS),
                    "message.timeout.ms": int(1000 * _MESSAGE_SECONDS),
                    "retry.backoff.ms": _RETRY_MS,
                },
            )
            return config, self._make_producer(config)

        self._config, self._producer = make(transactional_id)
        self._other_producer = make(f"{transactional_id}~2") if alternates else None
        # Producers that may have sent a request twice; each is replaced before its next transaction.
        self._doubtful: set[Producer] = set()
        self._outputs_deadline = 0.0
        self._is_late = False  # whether outputs of the running transaction were not written in time
        self._call_thread = self._make_thread("transactions")

    def run(
        self,
        outputs: Sequence[Output],
        offsets: Sequence[tuple[str, int, int, str]],
        group_metadata: bytes,
        *,
        one_by_one: bool = False,
        report_step: Callable[[str], None] = lambda _: None,
    ) -> Result:
        """Write the outputs and commit the source offsets (topic, partition, offset, metadata) in
        one transaction.

        The steps, in this order: 1 begin, 2 outputs, 3 flush, 4 offsets, 5 commit. With `one_by_one`
        each output is flushed alone, so that `Result.refused` contains exactly the refused outputs;
        otherwise it may contain their neighbours too. `report_step` is called with the name of each
        finished step.

        Raises:
            FencedError: another worker has the same transactional id.
            BrokerError: the producer cannot continue.
        """
        began = self._monotonic()
        self._is_late = False
        try:
            return self._run(
                outputs, offsets, group_metadata, one_by_one=one_by_one, report_step=report_step
            )
        except FencedError as error:
            # Kafka does not report why it fenced the producer. If the transaction exceeded its
            # time-out, Kafka has ended it, because Kafka was unavailable or this machine was
            # suspended. Otherwise another worker has the same id.
            if self._monotonic() - began < _TRANSACTION_SECONDS:
                raise
            return self._end_as_unknown(str(error))

    def _run(
        self,
        outputs: Sequence[Output],
        offsets: Sequence[tuple[str, int, int, str]],
        group_metadata: bytes,
        *,
        one_by_one: bool,
        report_step: Callable[[str], None],
    ) -> Result:
        if self._producer in self._doubtful:
            self._replace_producer()
        positions = [
            TopicPartition(topic, partition, offset, metadata)
            for topic, partition, offset, metadata in offsets
        ]
        bulk = None
        if isinstance(outputs, PackedOutputs) and not one_by_one:
            bulk = BulkWriter.of(self._producer, outputs.columns)
        if bulk is None:
            return self._attempt(
                outputs, positions, group_metadata, report_step, one_by_one=one_by_one
            )
        began = self._monotonic()
        try:
            return self._attempt(outputs, positions, group_metadata, report_step, bulk)
        except UndeliveredError as error:
            # If this took as long as a record's time-out, the cause is a slow broker, not a record.
            self._is_late = self._monotonic() - began >= _MESSAGE_SECONDS
            aborted = self._abort(error, [])
            if aborted.outcome is not Outcome.ABORTED or (self._is_late and not error.is_refused):
                return aborted
            self._is_late = False
        # Write again one by one, because only then delivery reports show which record failed and
        # why. Use a new producer, because librdkafka would continue with a gap in its sequence
        # numbers.
        self._replace_producer()
        return self._attempt(outputs, positions, group_metadata, report_step)

    def _attempt(
        self,
        outputs: Sequence[Output],
        positions: list[TopicPartition],
        group_metadata: bytes,
        report_step: Callable[[str], None],
        bulk: BulkWriter | None = None,
        *,
        one_by_one: bool = False,
    ) -> Result:
        """Run the transaction once.

        Raises:
            UndeliveredError: in bulk, a record failed; the transaction is still open.
        """
        failures: list[tuple[int, KafkaError]] = []
        # In bulk no record reports why it was refused, and a missing ACL refuses all.
        needs = "" if bulk is None else write_acls(bulk.topics)
        try:
            self._producer.begin_transaction()  # step 1
            self._outputs_deadline = self._monotonic() + _OUTPUT_SECONDS
            report_step("begin")
            if bulk is None:
                try:
                    # step 2
                    self._write(outputs, range(len(outputs)), failures, one_by_one=one_by_one)
                except BrokenError:
                    # The delivery report with the reason may not have arrived yet.
                    with contextlib.suppress(UnwrittenError):
                        self._flush(len(outputs), failures)
                    raise
            else:
                self._write_in_bulk(outputs, bulk, failures)  # step 2
            report_step("outputs")
            self._flush(len(outputs), failures)  # step 3
            report_step("flushed")
            if failures:
                return self._abort_failed(None, failures, outputs, positions, group_metadata)
            if positions:
                with self._mark_doubtful_if_slow():
                    self._try_twice(  # step 4
                        lambda seconds: self._producer.send_offsets_to_transaction(
                            positions, group_metadata, seconds
                        ),
                        "sending the source offsets",
                        needs,
                    )
            report_step("offsets")
        except KafkaException as error:
            self._refresh_grown_topics(error.args[0], outputs)
            return self._abort(
                translate_step_error(error.args[0], "writing a transaction"), failures
            )
        except AbortableError as error:
            if bulk is not None and isinstance(error, UndeliveredError):
                raise
            if isinstance(error, UnwrittenError | BrokenError):
                return self._abort_failed(error, failures, outputs, positions, group_metadata)
            return self._abort(error, failures)
        report_step("before-commit")
        return self._commit(needs, in_bulk=bulk is not None)  # step 5

    def _refresh_grown_topics(self, error: KafkaError, outputs: Sequence[Output]) -> None:
        """Refresh the topics' metadata after an unknown partition: the client itself refreshes it
        twice a minute.
        """
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            for topic in {output.topic for output in outputs}:
                with contextlib.suppress(KafkaException):
                    self._producer.list_topics(topic, timeout=STEP_SECONDS)

    def _abort_failed(
        self,
        why: AbortableError | None,
        failures: list[tuple[int, KafkaError]],
        outputs: Sequence[Output],
        positions: list[TopicPartition],
        group_metadata: bytes,
    ) -> Result:
        """Abort a transaction whose outputs failed. The reason is a missing ACL if there is one,
        otherwise the error of a failed output, otherwise `why`.
        """
        errors = [(outputs[index].topic, error) for index, error in failures]
        failure = classify_failures(errors) if why is None or errors else why
        self._is_late = isinstance(failure, UnwrittenError)
        # If outputs are only late, do not look for a missing ACL: the search sends the offsets of a
        # valid transaction, and a late duplicate of this request could commit them with the next,
        # smaller transaction.
        is_only_late = isinstance(why, UnwrittenError) and not errors
        missing_acl = (
            None
            if is_only_late
            else self._find_missing_acl(errors, outputs, positions, group_metadata)
        )
        return self._abort(missing_acl or failure, failures)

    def _write_in_bulk(
        self, outputs: Sequence[Output], bulk: BulkWriter, failures: list[tuple[int, KafkaError]]
    ) -> None:
        """Write the outputs in their order: runs of packed ones at once, all others one by one."""
        packed = bulk.packed
        edges = (np.flatnonzero(packed[1:] != packed[:-1]) + 1).tolist()
        for start, stop in itertools.pairwise([0, *edges, len(packed)] if len(packed) else []):
            if not packed[start]:
                self._write(outputs, range(start, stop), failures)
                continue
            written = bulk.write(start, stop)
            while written < stop:
                # The queue is full, or this record is refused. Written alone, it waits for the queue,
                # or fails with the reason.
                self._write(outputs, range(written, written + 1), failures)
                written = bulk.write(written + 1, stop)

    def _write(
        self,
        outputs: Sequence[Output],
        places: range,
        failures: list[tuple[int, KafkaError]],
        *,
        one_by_one: bool = False,
    ) -> None:
        producer: Any = self._producer  # its type stubs require another type of headers
        for index in places:
            topic, partition, key, value, timestamp_ms, headers = outputs[index]

            def report(error: KafkaError | None, _message: Any, index: int = index) -> None:
                if error is not None:
                    failures.append((index, error))

            while True:
                try:
                    # Positional arguments take two thirds of the time of keywords; `report` is
                    # `callback`, and None is `on_delivery`.
                    producer.produce(
                        topic,
                        value,
                        key,
                        partition,
                        report,
                        None,
                        timestamp_ms or NO_TIMESTAMP,
                        headers,
                    )
                except BufferError:
                    producer.poll(0.1)
                    if self._monotonic() >= self._outputs_deadline and not failures:
                        raise UnwrittenError(
                            f"Only {index} of {len(outputs)} outputs fitted into the client's "
                            f"queue within {_OUTPUT_SECONDS:.0f} s."
                        ) from None
                except KafkaException as error:
                    if error.args[0].code() == KafkaError._STATE:
                        raise BrokenError(
                            "An output was not written, so Kafka's client accepts no more outputs "
                            "of the transaction.",
                            is_refused=False,
                        ) from error
                    if error.args[0].code() not in REFUSALS:
                        raise
                    failures.append((index, error.args[0]))
                    break
                else:
                    break
            if one_by_one:
                self._flush(1, failures)
                if failures:
                    return

    def _flush(self, count: int, failures: list[tuple[int, KafkaError]]) -> None:
        remaining = count
        try:
            # Stop at the first failure: librdkafka keeps the other records until they time out.
            while True:
                remaining = self._producer.flush(_FLUSH_SLICE_SECONDS)
                if not remaining or failures or self._monotonic() >= self._outputs_deadline:
                    break
        except SystemError as error:
            cause = client_error(error)
            if cause is not None:
                raise KafkaException(cause) from None
            remaining = count  # the abort reports the cause
        if remaining and not failures:
            raise UnwrittenError(
                f"{remaining} of {count} outputs were not written within {_OUTPUT_SECONDS:.0f} s."
            )

    def _find_missing_acl(
        self,
        errors: Sequence[tuple[str, KafkaError]],
        outputs: Sequence[Output],
        positions: list[TopicPartition],
        group_metadata: bytes,
    ) -> BrokerError | None:
        """Return the exception for a missing ACL, if every output was purged because of it. The
        caller aborts the transaction in any case.

        Without the ACL for a topic the transaction fails as a whole, and only its next call reports
        the reason. So make that call: send the source offsets or, if there are none, commit. The
        commit fails in any case, because outputs have failed.
        """
        if (not errors and not positions) or any(error.code() not in PURGED for _, error in errors):
            return None
        try:
            with self._mark_doubtful_if_slow():
                if positions:
                    self._call_thread.call(
                        lambda: self._producer.send_offsets_to_transaction(
                            positions, group_metadata, STEP_SECONDS
                        ),
                        STEP_SECONDS + _GRACE_SECONDS,
                    )
                else:
                    self._call_thread.call(
                        lambda: self._producer.commit_transaction(STEP_SECONDS),
                        STEP_SECONDS + _GRACE_SECONDS,
                    )
        except KafkaException as error:
            if is_retriable(error):
                raise StuckError(
                    "While the outputs failed, Kafka did not accept the source offsets in time."
                ) from error
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return translate(
                    error, "writing the outputs", write_acls({output.topic for output in outputs})
                )
        except TimeoutError as error:
            raise StuckError("While the outputs failed, the client did not return.") from error
        return None

    def _commit(self, needs: str, *, in_bulk: bool) -> Result:
        try:
            with self._mark_doubtful_if_slow():
                self._try_twice(self._producer.commit_transaction, "committing", needs)
        except AbortableError as error:
            if in_bulk and isinstance(error, UndeliveredError):
                raise
            if self._producer in self._doubtful:
                return self._end_as_unknown(str(error))
            return self._abort(error, [])
        if self._other_producer is not None:
            (self._config, self._producer), self._other_producer = (
                self._other_producer,
                (self._config, self._producer),
            )
        return Result(Outcome.COMMITTED)

    def _abort(self, why: BrokerError, failures: list[tuple[int, KafkaError]]) -> Result:
        if not isinstance(why, AbortableError):
            raise why
        if isinstance(why, StuckError):
            return self._end_as_unknown(str(why))
        try:
            with self._mark_doubtful_if_slow():
                self._try_twice(self._producer.abort_transaction, "aborting")
        except AbortableError as error:
            return self._end_as_unknown(str(error))
        refused = tuple(sorted({index for index, error in failures if error.code() in REFUSALS}))
        if refused:
            # librdkafka continues with a gap in its sequence numbers, and the next transaction would
            # fail.
            self._replace_producer()
        return Result(Outcome.ABORTED, refused, str(why), self._is_late)

    def _end_as_unknown(self, why: str) -> Result:
        """Return the result UNKNOWN. Replace this producer now, and the other one before its next
        transaction.
        """
        self._call_thread.leave()
        self._call_thread = self._make_thread("transactions")
        self._replace_producer()
        self._doubtful = set() if self._other_producer is None else {self._other_producer[1]}
        return Result(Outcome.UNKNOWN, why=why, is_late=self._is_late)

    def _replace_producer(self) -> None:
        """Replace the producer. The new one has a higher epoch, which fences late requests of the
        old one.
        """
        self._doubtful.discard(self._producer)
        self._producer = self._make_producer(self._config)

    @contextlib.contextmanager
    def _mark_doubtful_if_slow(self) -> Iterator[None]:
        """Mark the producer for replacement if the body takes so long that librdkafka may have sent
        its request twice.
        """
        began = self._monotonic()
        try:
            yield
        finally:
            if self._monotonic() - began >= _SENT_ONCE_SECONDS:
                self._doubtful.add(self._producer)

    def _make_producer(self, config: dict[str, Any]) -> Producer:
        producer = make_producer(config)
        doing = f"initialising the transactional id {config['transactional.id']}"
        needs = f"Write and Describe on transactionalId {config['transactional.id']}"
        try:
            self._retry_policy.retry(
                _INIT_ATTEMPTS_MAX, lambda: producer.init_transactions(_INIT_SECONDS), is_retriable
            )
        except KafkaException as error:
            raise translate(error, doing, needs) from error
        return producer

    def _try_twice(self, call: Callable[[float], Any], doing: str, needs: str = "") -> None:
        """Make a call, and repeat it once after a time-out; `needs` is the ACL for it.

        Raises:
            UndeliveredError: a record written before was not delivered.
            StuckError: it timed out twice, or the broker has forgotten the transaction.
            BrokerError: it failed otherwise.
        """
        for attempt in (1, 2):
            try:
                self._call_thread.call(lambda: call(STEP_SECONDS), STEP_SECONDS + _GRACE_SECONDS)
            except TimeoutError as error:
                raise StuckError(
                    f"While {doing}, the client did not return within its timeout."
                ) from error
            except KafkaException as error:
                if not is_retriable(error):
                    raise translate_step_error(error.args[0], doing, needs) from error
                if attempt == 2:
                    raise StuckError(str(translate(error, doing))) from error
            else:
                return

    def close(self) -> None:
        """Flush; the broker or the next producer with this id aborts an open transaction."""
        with contextlib.suppress(KafkaException):
            self._producer.flush(1.0)
