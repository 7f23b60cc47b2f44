"""Appending without transactions: to the log, to `verdicts`, and what `load` sends.

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
from stream_dedup.kafka.asking import IMPATIENT, Patience
from stream_dedup.kafka.bulk import BulkWriter, RecordColumns
from stream_dedup.kafka.client import GONE, RESTORE, make_producer, producer_config, translate
from stream_dedup.settings.settings import Settings

# A broker that was killed in mid-transaction and came back left librdkafka waiting for 15 s and
# more in one step, while a new producer went on within a second: so a step is given up soon.
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


# What a later step says of a transaction in which a record was refused; the commit counts them, and
# says no more.
_UNDELIVERED = REFUSALS | {KafkaError._INCONSISTENT}
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
TIMED_OUT = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT})
# Broker and client disagree on what has been; seen when a coordinator comes back from a SIGKILL.
# Nobody else has our id then: who has been replaced is told that he is fenced.
_FORGOTTEN = frozenset(
    {
        KafkaError.INVALID_TXN_STATE,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)


class StuckError(AbortableError):
    """Nobody knows what the broker made of a step of a transaction, and only a new producer gets
    further.
    """


class UndeliveredError(AbortableError):
    """A record was not delivered, of which a later step tells; `is_refused`: for what it is, which
    that step knows too.
    """

    def __init__(self, text: str, *, is_refused: bool) -> None:
        super().__init__(text)
        self.is_refused = is_refused


class BrokenError(UndeliveredError):
    """A record that was written before has failed already, so librdkafka takes no more of this
    transaction.
    """


class UnwrittenError(AbortableError):
    """Outputs were not written in time."""


def told_by(error: KafkaException | SystemError) -> KafkaError | None:
    """Return what the client raised, if Python was being called back meanwhile: it may be lost on
    the way.

    The client raises a fatal error inside its call, and then still gives its reports: Python calls
    that a SystemError, whose cause is the fatal error, or nothing.
    """
    raised = error if isinstance(error, KafkaException) else error.__cause__
    return raised.args[0] if isinstance(raised, KafkaException) else None


def write_acls(topics: Iterable[str]) -> str:
    """Return the ACLs for writing to these topics."""
    return " or ".join(f"Write on topic {topic}" for topic in sorted(topics))


def translated(error: KafkaError, doing: str, needs: str = "") -> BrokerError:
    """Return what an error means for a transaction; `needs` are the ACLs for what was done."""
    if error.code() in _UNDELIVERED:
        text = f"While {doing}, Kafka said: {error.str()} ({error.name()})."
        return UndeliveredError(text, is_refused=error.code() in REFUSALS)
    if error.code() in _FORGOTTEN:
        return StuckError(f"While {doing}, Kafka said: {error.str()} ({error.name()}).")
    return translate(error, doing, needs)


def failure_of(errors: Sequence[tuple[str, KafkaError]]) -> BrokerError:
    """Return what failed outputs mean: a refusal or a time-out aborts, anything else (an ACL, a
    fence) is the end.

    Outputs queued behind the one that failed are purged, and may be reported before it.
    """
    causes = [(topic, error) for topic, error in errors if error.code() not in PURGED] or list(
        errors
    )
    for topic, error in causes:
        if (
            error.code() not in REFUSALS
            and error.code() not in TIMED_OUT
            and error.code() not in PURGED
        ):
            return translated(error, f"writing to {topic}", f"Write on topic {topic}")
    first = causes[0][1]
    kind = UnwrittenError if first.code() in TIMED_OUT else AbortableError
    return kind(f"An output was not written: {first.str()} ({first.name()}).")


class LostTopicError(BrokerError):
    """The topic that is written to was deleted, or created again: this client writes nothing more,
    and another one can.
    """


# What a producer says whose topic is deleted under it: that it is unknown, or only that its
# partition is, or nothing but that the partition is destroyed.
_TOPIC_LOST = GONE | {KafkaError._UNKNOWN_PARTITION, KafkaError._DESTROY}
_FLUSH_SECONDS = 25.0
_FLUSH_STEP_SECONDS = 1.0
QUIET_SECONDS = 10.0


class LogAppender:
    """An idempotent, non-transactional producer for one partition of one topic: of the worker for
    the log.
    """

    def __init__(self, settings: Settings, topic: str, client: str) -> None:
        # No time-out: who must not wait for a Kafka that is away uses `flush`, and the others go on
        # when it is back.
        self._config = producer_config(
            settings, client, {"linger.ms": 0}, {"message.timeout.ms": 0}
        )
        # What a fatal error makes of the records is that they are purged; only here does the client
        # say why. A list, and not a method: a client that holds its owner would stay behind, with
        # its threads, until Python looks for cycles.
        self._fatal: list[KafkaError] = []
        self._producer = make_producer(
            self._config | {"error_cb": partial(_keep_fatal, self._fatal)}
        )
        self._topic = topic
        self._failed: KafkaError | None = None

    def send(self, raw: bytes, key: bytes | None, delivered: Callable[[int], None]) -> None:
        """Append one record; `delivered(offset)` is called inside a later `poll` once it is
        durable.

        Raises:
            BrokerError: an earlier append failed for good.
        """

        def report(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self._failed = self._failed or error
            else:
                delivered(message.offset())

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
        """Serve delivery reports.

        Raises:
            BrokerError: an append failed for good.
        """
        self._serve(lambda: self._producer.poll(timeout_seconds))

    def flush(self, seconds: float = _FLUSH_SECONDS, patience: Patience = IMPATIENT) -> None:
        """Wait until everything sent is durable: for `seconds`, and with `patience` for as long as
        Kafka is away besides.

        Raises:
            BrokerError: something was not delivered in time.
        """
        lasts = patience.begin(max(1, round(seconds / _FLUSH_STEP_SECONDS)))
        while left := self._serve(lambda: self._producer.flush(_FLUSH_STEP_SECONDS)):
            if lasts():
                continue
            # What is still to be written has reports that hold this appender, and its client holds
            # them.
            self._producer.purge()
            self._producer.poll(0)
            raise BrokerError(
                f"{left} records were not written to {self._topic} within {seconds:.0f} s; is "
                "Kafka up?"
            )

    def _cause(self) -> KafkaError | None:
        """Return what ended the client, if it has said it."""
        return self._fatal[0] if self._fatal else None

    def _ask_again(self) -> KafkaError | None:
        """Return the fatal error that was lost on its way: a new client meets it too, and has no
        reports that hide it.
        """
        until = time.monotonic() + STEP_SECONDS
        try:
            asked = make_producer(self._config)
            while time.monotonic() < until:
                asked.poll(STEP_SECONDS)
        except KafkaException as error:
            return told_by(error)
        return None

    def _serve(self, call: Callable[[], int]) -> int:
        """Make a call in which the client reports, and raise what has failed, by its cause where
        that is known.
        """
        result = 0
        try:
            result = call()
        except (KafkaException, SystemError) as error:
            told = told_by(error) or self._cause() or self._ask_again()
            if told is None:
                raise BrokerError(
                    f"While appending to {self._topic}, the client failed without saying why. See "
                    "what it logged before, and "
                    "the broker's log; a restart begins again from the committed offsets."
                ) from error
            self._failed = self._failed or told
            self._fatal.append(told)
        if self._failed is not None:
            failed = self._cause() or self._failed
            if failed.code() in _TOPIC_LOST:
                raise LostTopicError(
                    f"The topic {self._topic} was deleted, or created again ({failed.str()}). "
                    f"{RESTORE}"
                )
            raise translate(failed, f"appending to {self._topic}", f"Write on topic {self._topic}")
        return result


def _keep_fatal(kept: list[KafkaError], error: KafkaError) -> None:
    if error.fatal():
        kept.append(error)


class VerdictWriter(LogAppender):
    """The same of the index, for the answers to the workers."""


# How long producers of Kafka gather records unless told otherwise (linger.ms of 4.0, KIP-1030): it
# is part of a record's age.
LINGER_MS: Final = 5


class LoadProducer:
    """A producer for `load` and other commands: idempotent, with back-pressure, counting what
    failed.

    Where Kafka takes nothing for `QUIET_SECONDS`, `told` is called with a sentence, and again once
    it does.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        linger_ms: int = 20,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._producer = make_producer(
            producer_config(settings, "load", {"linger.ms": linger_ms}, {})
        )
        self._told = told
        self._written = 0
        self._quiet = (0, 0.0)  # how many were written, and when that was last seen to change
        self._is_quiet = False
        self.failed = 0
        self.first_failure = ""
        # a record was tried for as long as it may be, or Kafka takes none of this producer any more
        self.is_given_up = False
        self.too_large: list[tuple[str, int]] = []

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        name: tuple[str, int] | None = None,
    ) -> None:
        """Send one record; waits while the queue is full.

        `name` is how a record is called, and its bytes. A record with one that is larger than Kafka
        takes is no failure: its name is added to `too_large`, because it would fail for ever.
        """
        more: dict[str, Any] = {
            "on_delivery": self._delivered if name is None else partial(self._delivered, name=name)
        }
        if timestamp_ms is not None:
            more["timestamp"] = timestamp_ms
        if partition is not None:
            more["partition"] = partition
        if headers is not None:
            more["headers"] = headers
        if not len(self._producer):
            self._quiet = (self._written, time.monotonic())
        while True:
            try:
                self._producer.produce(topic, value, key, **more)
            except BufferError:
                self._producer.poll(0.1)
                self._look()
            except KafkaException as error:
                self._count(error.args[0], name)
                return
            else:
                self._producer.poll(0)
                return

    def in_bulk(self, columns: RecordColumns) -> BulkWriter | None:
        """Return what hands such records over at a tenth of the cost, or None where only `send`
        can.

        They are not counted when they fail; who hands them over looks whether they arrive, and
        calls `poll` meanwhile.
        """
        return BulkWriter.of(self._producer, columns)

    def poll(self) -> None:
        """Serve delivery reports, without waiting."""
        self._producer.poll(0)

    def flush(self, seconds: float = 60.0) -> int:
        """Wait until all is written or has failed; return how many records failed, `first_failure`
        says why.

        What is not written after `seconds` counts as failed; Kafka's client gives each record up
        after `message.timeout.ms`.
        """
        until = time.monotonic() + seconds
        while (left := len(self._producer)) and (rest := until - time.monotonic()) > 0:
            self._producer.flush(min(1.0, rest))
            self._look()
        if left:
            self.failed += left
            self.first_failure = (
                self.first_failure or f"{left} records were not written within {seconds:.0f} s."
            )
        return self.failed

    def _look(self) -> None:
        """Say whether Kafka has taken anything, where that is news."""
        written, since = self._quiet
        if self._written > written:
            self._quiet = (self._written, time.monotonic())
            if self._is_quiet:
                self._told("Kafka takes records again.")
            self._is_quiet = False
        elif (
            len(self._producer) and not self._is_quiet and time.monotonic() - since >= QUIET_SECONDS
        ):
            self._is_quiet = True
            self._told(
                f"Kafka has taken none of {len(self._producer):,} records for {QUIET_SECONDS:.0f} "
                "s; each is tried for "
                "message.timeout.ms, five minutes by default."
            )

    def _delivered(
        self, error: KafkaError | None, _message: Any, name: tuple[str, int] | None = None
    ) -> None:
        if error is not None:
            self._count(error, name)
        else:
            self._written += 1

    def _count(self, error: KafkaError, name: tuple[str, int] | None) -> None:
        if name is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self.too_large.append(name)
            return
        self.failed += 1
        self.is_given_up = (
            self.is_given_up or error.code() == KafkaError._MSG_TIMED_OUT or error.fatal()
        )
        self.first_failure = self.first_failure or str(translate(error, "writing a record"))
