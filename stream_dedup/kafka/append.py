"""Append records without transactions: to the log, to `verdicts`, and for `load`.

Invariant: the log and the verdicts are written by idempotent producers without transactions. A
transactional append would make the index wait for the worker and the worker for the index, and
would leave gaps in the offsets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from stream_dedup.domain.document import Headers
from stream_dedup.domain.errors import AbortableError, BrokerError
from stream_dedup.kafka.client import (
    RESTORE_TOPIC,
    TOPIC_GONE,
    make_producer,
    producer_config,
    translate,
)
from stream_dedup.kafka.retries import ATTEMPTS_ONLY, RetryPolicy
from stream_dedup.settings.settings import Settings

# A step is abandoned early: after a broker was killed in mid-transaction and restarted, librdkafka
# waited for 15 s and more in a step, while a new producer continued within a second.
STEP_SECONDS = 5.0
REFUSALS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)
# The errors of later steps of a transaction in which a record was refused.
_UNDELIVERED = REFUSALS | {KafkaError._INCONSISTENT}
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
TIMED_OUT = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT})
# Broker and client disagree on the transaction's state; seen after a coordinator's SIGKILL. Fencing has
# errors of its own.
_TRANSACTION_LOST = frozenset(
    {
        KafkaError.INVALID_TXN_STATE,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)


class StuckError(AbortableError):
    """The result of a transaction's step is unknown, and only a new producer can continue."""


class UndeliveredError(AbortableError):
    """A later step of the transaction reports that a record was not delivered.

    `is_refused`: the broker refused it because of its content.
    """

    def __init__(self, text: str, *, is_refused: bool) -> None:
        super().__init__(text)
        self.is_refused = is_refused


class BrokenError(UndeliveredError):
    """An earlier record has failed, so librdkafka accepts no more records of this transaction."""


class UnwrittenError(AbortableError):
    """Outputs were not written in time."""


def client_error(error: KafkaException | SystemError) -> KafkaError | None:
    """Return the client's error behind an exception, or None if it was lost.

    After a fatal error the client still calls its callbacks: Python turns that into a SystemError
    whose cause is the fatal error, or None.
    """
    cause = error if isinstance(error, KafkaException) else error.__cause__
    return cause.args[0] if isinstance(cause, KafkaException) else None


def write_acls(topics: Iterable[str]) -> str:
    """Return the ACLs for writing to these topics."""
    return " or ".join(f"Write on topic {topic}" for topic in sorted(topics))


def translate_step_error(error: KafkaError, doing: str, needs: str = "") -> BrokerError:
    """Return the exception for an error of a transaction; `needs` are the ACLs of the step."""
    if error.code() in _UNDELIVERED:
        text = f"While {doing}, Kafka reported: {error.str()} ({error.name()})."
        return UndeliveredError(text, is_refused=error.code() in REFUSALS)
    if error.code() in _TRANSACTION_LOST:
        return StuckError(f"While {doing}, Kafka reported: {error.str()} ({error.name()}).")
    return translate(error, doing, needs)


def classify_failures(errors: Sequence[tuple[str, KafkaError]]) -> BrokerError:
    """Return the exception for failed outputs, given as (topic, error): a refusal or a time-out
    aborts the transaction, any other error (an ACL, a fence) ends the worker.
    """
    # Outputs queued behind the failed one are purged, and may be reported before it.
    causes = [(topic, error) for topic, error in errors if error.code() not in PURGED] or list(
        errors
    )
    for topic, error in causes:
        if (
            error.code() not in REFUSALS
            and error.code() not in TIMED_OUT
            and error.code() not in PURGED
        ):
            return translate_step_error(error, f"writing to {topic}", f"Write on topic {topic}")
    first_error = causes[0][1]
    error_class = UnwrittenError if first_error.code() in TIMED_OUT else AbortableError
    return error_class(f"An output was not written: {first_error.str()} ({first_error.name()}).")


class LostTopicError(BrokerError):
    """The topic was deleted or created again: this client cannot write any more, a new one can."""


# The errors of a producer whose topic was deleted: unknown topic, unknown partition, or destroyed
# partition.
_TOPIC_LOST = TOPIC_GONE | {KafkaError._UNKNOWN_PARTITION, KafkaError._DESTROY}
_FLUSH_SECONDS = 25.0
_FLUSH_STEP_SECONDS = 1.0
STALLED_SECONDS = 10.0


class LogAppender:
    """An idempotent, non-transactional producer for partition 0 of a topic. Workers append to the log
    with it, and the index to `verdicts`.
    """

    def __init__(self, settings: Settings, topic: str, client: str) -> None:
        # Without a time-out records wait until Kafka is available again; only `flush` limits the wait.
        self._config = producer_config(
            settings, client, {"linger.ms": 0}, {"message.timeout.ms": 0}
        )
        # After a fatal error the delivery reports say only that records were purged; this callback
        # gets the cause. It refers to a list: a reference to this object would be a cycle, which keeps
        # the client and its threads alive until Python collects it.
        self._fatal: list[KafkaError] = []
        self._producer = make_producer(
            self._config | {"error_cb": partial(_record_fatal, self._fatal)}
        )
        self._topic = topic
        self._failed: KafkaError | None = None

    def send(self, raw: bytes, key: bytes | None, on_durable: Callable[[int], None]) -> None:
        """Append a record. Once it is durable, a later `poll` calls `on_durable` with its offset.

        Raises:
            BrokerError: an earlier append failed for good.
        """

        def report(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self._failed = self._failed or error
            else:
                on_durable(message.offset())

        while True:
            try:
                self._producer.produce(self._topic, raw, key, 0, report)
            except BufferError:
                self.poll(0.1)
            except KafkaException as error:
                self._failed = self._failed or error.args[0]
                self.poll()
            else:
                return

    def poll(self, timeout_seconds: float = 0.0) -> None:
        """Process delivery reports.

        Raises:
            BrokerError: an append failed for good.
        """
        self._serve(lambda: self._producer.poll(timeout_seconds))

    def flush(
        self, seconds: float = _FLUSH_SECONDS, retry_policy: RetryPolicy = ATTEMPTS_ONLY
    ) -> None:
        """Wait until all records are durable, at most for `seconds`. With a `retry_policy` that knows
        whether Kafka is unavailable, wait until it is available, and for `seconds` after that.

        Raises:
            BrokerError: a record was not delivered in time.
        """
        may_retry = retry_policy.limit_attempts(max(1, round(seconds / _FLUSH_STEP_SECONDS)))
        while remaining := self._serve(lambda: self._producer.flush(_FLUSH_STEP_SECONDS)):
            if may_retry():
                continue
            # The callbacks of queued records refer to this appender, so they would keep the client
            # alive.
            self._producer.purge()
            self._producer.poll(0)
            raise BrokerError(
                f"{remaining} records were not written to {self._topic} within {seconds:.0f} s. "
                "Is Kafka running?"
            )

    def _fatal_error(self) -> KafkaError | None:
        """Return the client's fatal error, if it has reported one."""
        return self._fatal[0] if self._fatal else None

    def _recover_fatal_error(self) -> KafkaError | None:
        """Return a fatal error that the client lost, or None. A new client gets the same error, and
        has no callbacks that hide it.
        """
        deadline = time.monotonic() + STEP_SECONDS
        try:
            producer = make_producer(self._config)
            while time.monotonic() < deadline:
                producer.poll(STEP_SECONDS)
        except KafkaException as error:
            return client_error(error)
        return None

    def _serve(self, call: Callable[[], int]) -> int:
        """Return the result of a call that runs the callbacks of delivery reports.

        Raises:
            LostTopicError: the topic was deleted or created again.
            BrokerError: an append failed, with its cause where it is known.
        """
        result = 0
        try:
            result = call()
        except (KafkaException, SystemError) as error:
            cause = client_error(error) or self._fatal_error() or self._recover_fatal_error()
            if cause is None:
                raise BrokerError(
                    f"While appending to {self._topic}, the client failed without a reason. See "
                    "its earlier log lines and the broker's log. A restart continues from the "
                    "committed offsets."
                ) from error
            self._failed = self._failed or cause
            self._fatal.append(cause)
        if self._failed is not None:
            failure = self._fatal_error() or self._failed
            if failure.code() in _TOPIC_LOST:
                raise LostTopicError(
                    f"The topic {self._topic} was deleted, or created again ({failure.str()}). "
                    f"{RESTORE_TOPIC}"
                )
            raise translate(failure, f"appending to {self._topic}", f"Write on topic {self._topic}")
        return result


def _record_fatal(errors: list[KafkaError], error: KafkaError) -> None:
    if error.fatal():
        errors.append(error)


# Kafka's default of linger.ms since 4.0 (KIP-1030). It adds to the age of each record.
LINGER_MS: Final = 5


class LoadProducer:
    """A producer for `load` and other commands: idempotent, with backpressure, counting failures.

    `report` is called with a message when Kafka accepts no record for `STALLED_SECONDS`, and when it
    accepts records again.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        linger_ms: int = 20,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._producer = make_producer(
            producer_config(settings, "load", {"linger.ms": linger_ms}, {})
        )
        self._report = report
        self._written = 0
        self._last_progress = (0, 0.0)  # the number of records written, and when it last grew
        self._is_stalled = False
        self.failed = 0
        self.first_failure = ""
        self.has_given_up = False  # a record timed out, or the producer had a fatal error
        self.too_large: list[tuple[str, int]] = []  # (label, bytes)

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        labelled_size: tuple[str, int] | None = None,
    ) -> None:
        """Send a record; wait while the queue is full.

        If `labelled_size`, its (label, bytes), is given and the record is too large for Kafka,
        it is added to `too_large` instead of being counted as failed, because a retry cannot succeed.
        """
        report = self._process_report
        options: dict[str, Any] = {
            "on_delivery": report
            if labelled_size is None
            else partial(report, labelled_size=labelled_size)
        }
        if timestamp_ms is not None:
            options["timestamp"] = timestamp_ms
        if partition is not None:
            options["partition"] = partition
        if headers is not None:
            options["headers"] = headers
        if not len(self._producer):
            self._last_progress = (self._written, time.monotonic())
        while True:
            try:
                self._producer.produce(topic, value, key, **options)
            except BufferError:
                self._producer.poll(0.1)
                self._report_backpressure()
            except KafkaException as error:
                self._count_failure(error.args[0], labelled_size)
                return
            else:
                self._producer.poll(0)
                return

    def poll(self) -> None:
        """Process delivery reports, without waiting."""
        self._producer.poll(0)

    def flush(self, seconds: float = 60.0) -> int:
        """Wait until every record is written or has failed; return the number of failures, with the
        first reason in `first_failure`.

        Records not written after `seconds` count as failed; Kafka's client abandons each record after
        `message.timeout.ms`.
        """
        deadline = time.monotonic() + seconds
        while (remaining := len(self._producer)) and (
            remaining_seconds := deadline - time.monotonic()
        ) > 0:
            self._producer.flush(min(1.0, remaining_seconds))
            self._report_backpressure()
        if remaining:
            self.failed += remaining
            self.first_failure = (
                self.first_failure
                or f"{remaining} records were not written within {seconds:.0f} s."
            )
        return self.failed

    def _report_backpressure(self) -> None:
        """Report when Kafka stops or resumes accepting records."""
        written, since = self._last_progress
        if self._written > written:
            self._last_progress = (self._written, time.monotonic())
            if self._is_stalled:
                self._report("Kafka accepts records again.")
            self._is_stalled = False
        elif (
            len(self._producer)
            and not self._is_stalled
            and time.monotonic() - since >= STALLED_SECONDS
        ):
            self._is_stalled = True
            self._report(
                f"Kafka has acknowledged none of {len(self._producer):,} records for "
                f"{STALLED_SECONDS:.0f} s. The client retries each for message.timeout.ms "
                "(default 5 minutes)."
            )

    def _process_report(
        self, error: KafkaError | None, _message: Any, labelled_size: tuple[str, int] | None = None
    ) -> None:
        if error is not None:
            self._count_failure(error, labelled_size)
        else:
            self._written += 1

    def _count_failure(self, error: KafkaError, labelled_size: tuple[str, int] | None) -> None:
        if labelled_size is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self.too_large.append(labelled_size)
            return
        self.failed += 1
        self.has_given_up = (
            self.has_given_up or error.code() == KafkaError._MSG_TIMED_OUT or error.fatal()
        )
        self.first_failure = self.first_failure or str(translate(error, "writing a record"))
