"""Writing: appends to the log, answers to `verdicts`, and the worker's transaction.

Invariants: the log and the verdicts are written by idempotent producers without transactions (a transactional append
would make the index wait for the worker and the worker for the index, and would leave gaps in the offsets); in a
transaction the outputs are flushed before the offsets are sent, because a torn transaction (KAFKA-17754) then leaves at
worst a record twice, never an offset without its output; a producer whose commit or abort took as long as the socket
timeout is thrown away, because a late EndTxn could end its next transaction.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from stream_dedup.ground.document import Headers
from stream_dedup.ground.errors import AbortableError, BrokerError, FencedError
from stream_dedup.ground.messages import NO_TIMESTAMP
from stream_dedup.kafka.bulk import BulkWriter, RecordColumns
from stream_dedup.kafka.client import is_retriable, make_producer, producer_config, translate
from stream_dedup.kafka.patience import IMPATIENT, Patience
from stream_dedup.settings.settings import Settings

_FLUSH_SECONDS = 25.0
_FLUSH_STEP_SECONDS = 1.0
# From the first output to the last acknowledgement: Kafka ends a transaction after 30 s, and takes its owner for a zombie then.
_OUTPUT_SECONDS = 25.0
_FLUSH_SLICE_SECONDS = 1.0
_MESSAGE_SECONDS = 20.0
_TRANSACTION_SECONDS = 30.0
_BEGIN_TIMES = 6
_BEGIN_SECONDS = 10.0
_INSIGHTS_MAX = 10
# A broker that was killed in mid-transaction and came back left librdkafka waiting for 15 s and more in one step, while a
# new producer went on within a second: so a step is given up soon.
_STEP_SECONDS = 5.0
_GRACE_SECONDS = 2.0

_REFUSALS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)

# What a later step says of a transaction in which a record was refused; the commit counts them, and says no more.
_UNDELIVERED = _REFUSALS | {KafkaError._INCONSISTENT}
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_TIMED_OUT = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT})
# Broker and client disagree on what has been; seen when a coordinator comes back from a SIGKILL. Nobody else has our id then:
# who has been replaced is told that he is fenced.
_FORGOTTEN = frozenset(
    {
        KafkaError.INVALID_TXN_STATE,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)


class Output(NamedTuple):
    """One record to write. With a timestamp of None it is written without one, as it came."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: Headers


class PackedOutputs(Sequence[Output]):
    """Outputs that lie in columns: those that are `packed` are written from there, and the others are asked for by place."""

    @property
    @abstractmethod
    def columns(self) -> RecordColumns:
        """The columns, with a place for each of them."""


class Outcome(enum.Enum):
    """How a transaction ended. UNKNOWN: ask the broker for the committed offsets before anything else."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Result(NamedTuple):
    """How a transaction ended, and which of its outputs (by index) the broker refused for what they are."""

    outcome: Outcome
    refused: tuple[int, ...] = ()
    why: str = ""


class _StuckError(AbortableError):
    """Nobody knows what the broker made of a step of a transaction, and only a new producer gets further."""


class _UndeliveredError(AbortableError):
    """A record was not delivered, of which a later step tells; `is_refused`: for what it is, which that step knows too."""

    def __init__(self, text: str, *, is_refused: bool) -> None:
        super().__init__(text)
        self.is_refused = is_refused


class _BrokenError(_UndeliveredError):
    """A record that was written before has failed already, so librdkafka takes no more of this transaction."""


class _UnwrittenError(AbortableError):
    """Outputs were not written in time, and nothing says why."""


class Caller:
    """Makes blocking calls, one at a time, in a thread of its own: its owner goes on meanwhile, or leaves a call behind.

    librdkafka forgets the transaction's coordinator when a broker that was killed is missing from one metadata answer; then
    send_offsets_to_transaction waits for ever, whatever time-out it was given (seen with 2.16.0 at a broker's restart).
    """

    def __init__(self, name: str = "transactions") -> None:
        self._result: Any = None
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def start(self, function: Callable[[], Any]) -> None:
        """Run `function`; whoever starts asks `ended` until it has, before anything else is started."""
        self._calls.put(function)

    def ended(self, seconds: float) -> bool:
        """Return whether it has ended, after waiting so long at most, and raise what it raised."""
        try:
            self._result, error = self._done.get(timeout=seconds)
        except queue.Empty:
            return False
        if error is not None:
            raise error
        return True

    def take_result(self) -> Any:
        """Return what the call gave that ended last. It is not kept: a batch and its transaction are large."""
        result, self._result = self._result, None
        return result

    def call(self, function: Callable[[], Any], seconds: float) -> None:
        """Run `function` and raise what it raises.

        Raises:
            TimeoutError: it has not returned; this object must not be used again.
        """
        self.start(function)
        if not self.ended(seconds):
            raise TimeoutError

    def _serve(self) -> None:
        while True:
            self._done.put(_outcome(self._calls.get()))


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Return what a function gave, and what it raised. So its caller keeps nothing of it while it waits for the next."""
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
        return None, error


def _told(error: KafkaException | SystemError) -> KafkaError | None:
    """Return what the client raised, if Python was being called back meanwhile: it may be lost on the way.

    The client raises a fatal error inside its call, and then still gives its reports: Python calls that a SystemError, whose
    cause is the fatal error, or nothing.
    """
    raised = error if isinstance(error, KafkaException) else error.__cause__
    return raised.args[0] if isinstance(raised, KafkaException) else None


class _Appender:
    """An idempotent, non-transactional producer for one partition of one topic."""

    def __init__(self, settings: Settings, topic: str, client: str) -> None:
        # No time-out: who must not wait for a Kafka that is away uses `flush`, and the others go on when it is back.
        self._config = producer_config(settings, client, {"linger.ms": 0}, {"message.timeout.ms": 0})
        self._producer = make_producer(self._config | {"error_cb": self._hear})
        self._topic = topic
        self._cause: KafkaError | None = None
        self._failed: KafkaError | None = None

    def send(self, raw: bytes, key: bytes | None, delivered: Callable[[int], None]) -> None:
        """Append one record; `delivered(offset)` is called inside a later `poll` once it is durable.

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
        """Wait until everything sent is durable: so long, and with `patience` for as long as Kafka is away besides.

        Raises:
            BrokerError: something was not delivered in time.
        """
        lasts = patience.begin(max(1, round(seconds / _FLUSH_STEP_SECONDS)))
        while left := self._serve(lambda: self._producer.flush(_FLUSH_STEP_SECONDS)):
            if lasts():
                continue
            raise BrokerError(f"{left} records were not written to {self._topic} within {seconds:.0f} s; is Kafka up?")

    def _hear(self, error: KafkaError) -> None:
        # What a fatal error makes of the records is that they are purged; only here does the client say why.
        if error.fatal():
            self._cause = error

    def _ask_again(self) -> KafkaError | None:
        """Return the fatal error that was lost on its way: a new client meets it too, and has no reports that hide it."""
        until = time.monotonic() + _STEP_SECONDS
        try:
            asked = make_producer(self._config)
            while time.monotonic() < until:
                asked.poll(_STEP_SECONDS)
        except KafkaException as error:
            return _told(error)
        return None

    def _serve(self, call: Callable[[], int]) -> int:
        """Make a call in which the client reports, and raise what has failed, by its cause where that is known."""
        result = 0
        try:
            result = call()
        except (KafkaException, SystemError) as error:
            told = _told(error) or self._cause or self._ask_again()
            if told is None:
                raise BrokerError(
                    f"While appending to {self._topic}, the client failed without saying why. See what it logged before, and "
                    "the broker's log; a restart begins again from the committed offsets."
                ) from error
            self._failed = self._failed or told
            self._cause = self._cause or told
        if self._failed is not None:
            raise translate(self._cause or self._failed, f"appending to {self._topic}", f"Write on topic {self._topic}")
        return result


class LogAppender(_Appender):
    """The worker's way into the log."""


class VerdictWriter(_Appender):
    """The index's way to the workers."""


class InsightsSender:
    """The worker's way to `insights`: nothing waits for it; a record that fails for half a minute is lost, none is there twice.

    `report` is told `delivered` or `lost` of each record, inside a later `poll`.
    """

    def __init__(self, settings: Settings, topic: str, client: str, report: Callable[[str], None]) -> None:
        fixed = {
            # The reader is aiokafka, which has no other codec without more libraries.
            "compression.type": "gzip",
            "message.timeout.ms": 30_000,
            "queue.buffering.max.messages": _INSIGHTS_MAX,
        }
        self._config = producer_config(settings, client, {"linger.ms": 0}, fixed)
        self._producer = make_producer(self._config)
        self._topic = topic
        self._report = report

    @property
    def has_room(self) -> bool:
        """Whether a record would be taken; while Kafka is away, soon none is."""
        return len(self._producer) < _INSIGHTS_MAX

    def send(self, raw: bytes) -> None:
        """Send one record, or lose it."""
        try:
            self._producer.produce(self._topic, raw, None, 0, self._delivered)
        except BufferError:
            self._report("lost")
        except KafkaException:
            self._report("lost")
            self._producer = make_producer(self._config)  # the old one cannot go on

    def poll(self) -> None:
        """Serve delivery reports, without waiting."""
        try:
            self._producer.poll(0)
        except (KafkaException, SystemError):  # see `_told`
            self._producer = make_producer(self._config)

    def close(self, seconds: float) -> None:
        """Wait so long at most for what was sent."""
        self._producer.flush(seconds)

    def _delivered(self, error: KafkaError | None, _message: Any) -> None:
        self._report("lost" if error is not None else "delivered")


class TransactionalOutput:
    """The worker's transactions: outputs and source offsets together, or not at all.

    With `in_turns` two producers take turns, the second with the id `<transactional_id>~2`. Still one transaction ends before
    the next one begins; but a producer whose last one is still being marked in its topics is told CONCURRENT_TRANSACTIONS
    and asks again only after 20 ms (librdkafka's AddPartitionsToTxn), and the other need not wait for that. When one was
    thrown away, so is the other at its turn: it may have lost its coordinator with the same broker, and be waited for too.
    """

    def __init__(
        self,
        settings: Settings,
        transactional_id: str,
        client: str,
        *,
        in_turns: bool = False,
        patience: Patience = IMPATIENT,
    ) -> None:
        self._patience = patience

        def make(name: str) -> tuple[dict[str, Any], Producer]:
            config = producer_config(
                settings,
                client,
                # What was delivered is what the flush did not leave; a call back into Python for each record would cost 1.3 us.
                {"queue.buffering.max.messages": 1_000_000, "delivery.report.only.error": True},
                {
                    "transactional.id": name,
                    "transaction.timeout.ms": int(1000 * _TRANSACTION_SECONDS),
                    "message.timeout.ms": int(1000 * _MESSAGE_SECONDS),
                },
            )
            return config, self._new_producer(config)

        self._config, self._producer = make(transactional_id)
        self._other = make(f"{transactional_id}~2") if in_turns else None
        self._doubtful: Producer | None = None
        self._outputs_until = 0.0
        self._socket_timeout_seconds = float(self._config["socket.timeout.ms"]) / 1000
        self._caller = Caller()

    def run(
        self,
        outputs: Sequence[Output],
        offsets: Sequence[tuple[str, int, int, str]],
        stamp: bytes,
        *,
        one_by_one: bool = False,
        reached: Callable[[str], None] = lambda _: None,
    ) -> Result:
        """Write the outputs and commit the source offsets (topic, partition, offset, metadata) in one transaction.

        The order matters: 1 begin, 2 outputs, 3 flush, 4 offsets, 5 commit. With `one_by_one` each output is flushed
        alone, so that `Result.refused` names exactly the ones that the broker does not take; otherwise it may name
        their neighbours too. `reached` is told the name of each step when it is done.

        Raises:
            FencedError: another worker has the same transactional id.
            BrokerError: the producer cannot go on.
        """
        began = time.monotonic()
        try:
            return self._run(outputs, offsets, stamp, one_by_one=one_by_one, reached=reached)
        except FencedError as error:
            # Kafka fences for two reasons and names neither. After so long it has ended the transaction itself, because the
            # time-out had passed while Kafka was away or this machine stood still; nobody else has our id.
            if time.monotonic() - began < _TRANSACTION_SECONDS:
                raise
            return self._recycle(str(error))

    def _run(
        self,
        outputs: Sequence[Output],
        offsets: Sequence[tuple[str, int, int, str]],
        stamp: bytes,
        *,
        one_by_one: bool,
        reached: Callable[[str], None],
    ) -> Result:
        if self._producer is self._doubtful:
            self._doubtful = None
            self._producer = self._new_producer(self._config)
        positions = [TopicPartition(topic, part, offset, metadata) for topic, part, offset, metadata in offsets]
        bulk = None
        if isinstance(outputs, PackedOutputs) and not one_by_one:
            bulk = BulkWriter.of(self._producer, outputs.columns)
        if bulk is None:
            return self._attempt(outputs, positions, stamp, reached, one_by_one=one_by_one)
        began = time.monotonic()
        try:
            return self._attempt(outputs, positions, stamp, reached, bulk)
        except _UndeliveredError as error:
            ended = self._abort(error, [])
            is_slow = time.monotonic() - began >= _MESSAGE_SECONDS  # then Kafka is not there, and no record is at fault
            if ended.outcome is not Outcome.ABORTED or (is_slow and not error.is_refused):
                return ended
        # Which record it was, and why, is known once each has a report. librdkafka goes on with a gap in its sequence numbers.
        self._producer = self._new_producer(self._config)
        return self._attempt(outputs, positions, stamp, reached)

    def _attempt(
        self,
        outputs: Sequence[Output],
        positions: list[TopicPartition],
        stamp: bytes,
        reached: Callable[[str], None],
        bulk: BulkWriter | None = None,
        *,
        one_by_one: bool = False,
    ) -> Result:
        """Run the transaction once.

        Raises:
            _UndeliveredError: in bulk, a record failed; the transaction is open still.
        """
        failures: list[tuple[int, KafkaError]] = []
        # A record that was written in bulk does not say why it was refused, and a missing ACL refuses all.
        needs = "" if bulk is None else _needs(bulk.topics)
        try:
            self._producer.begin_transaction()  # 1
            self._outputs_until = time.monotonic() + _OUTPUT_SECONDS
            reached("begin")
            if bulk is None:
                try:
                    self._write(outputs, range(len(outputs)), failures, one_by_one=one_by_one)  # 2
                except _BrokenError:
                    with contextlib.suppress(_UnwrittenError):
                        self._flush(len(outputs), failures)  # the report that says why may be on its way
                    raise
            else:
                self._write_in_bulk(outputs, bulk, failures)  # 2
            reached("outputs")
            self._flush(len(outputs), failures)  # 3
            reached("flushed")
            if failures:
                return self._fail(None, failures, outputs, positions, stamp)
            if positions:
                self._again(  # 4
                    lambda seconds: self._producer.send_offsets_to_transaction(positions, stamp, seconds),
                    "sending the source offsets",
                    needs,
                )
            reached("offsets")
        except KafkaException as error:
            return self._abort(_translated(error.args[0], "writing a transaction"), failures)
        except AbortableError as error:
            if bulk is not None and isinstance(error, _UndeliveredError):
                raise
            if isinstance(error, _UnwrittenError | _BrokenError):
                return self._fail(error, failures, outputs, positions, stamp)
            return self._abort(error, failures)
        reached("before-commit")
        return self._commit(needs, in_bulk=bulk is not None)  # 5

    def _fail(
        self,
        why: AbortableError | None,
        failures: list[tuple[int, KafkaError]],
        outputs: Sequence[Output],
        positions: list[TopicPartition],
        stamp: bytes,
    ) -> Result:
        """Abort a transaction whose outputs failed: for want of an ACL, as they say themselves, or for `why`."""
        errors = [(outputs[index].topic, error) for index, error in failures]
        said = _failure(errors) if why is None or errors else why
        return self._abort(self._denied(errors, outputs, positions, stamp) or said, failures)

    def _write_in_bulk(self, outputs: Sequence[Output], bulk: BulkWriter, failures: list[tuple[int, KafkaError]]) -> None:
        """Write the outputs in their order: runs of those that are packed at once, all others one by one."""
        packed = bulk.packed
        edges = (np.flatnonzero(packed[1:] != packed[:-1]) + 1).tolist()
        for start, stop in itertools.pairwise([0, *edges, len(packed)] if len(packed) else []):
            if not packed[start]:
                self._write(outputs, range(start, stop), failures)
                continue
            written = bulk.write(start, stop)
            while written < stop:
                # The queue is full, or something is wrong with this one; by itself it is waited for, or says what it is.
                self._write(outputs, range(written, written + 1), failures)
                written = bulk.write(written + 1, stop)

    def _write(
        self, outputs: Sequence[Output], places: range, failures: list[tuple[int, KafkaError]], *, one_by_one: bool = False
    ) -> None:
        producer: Any = self._producer  # its stubs want headers in a list of another type
        for index in places:
            topic, partition, key, value, timestamp_ms, headers = outputs[index]

            def report(error: KafkaError | None, _message: Any, index: int = index) -> None:
                if error is not None:
                    failures.append((index, error))

            while True:
                try:
                    # By place, not by name, which takes two thirds of the time: `report` is the callback, and None its other
                    # name.
                    producer.produce(topic, value, key, partition, report, None, timestamp_ms or NO_TIMESTAMP, headers)
                except BufferError:
                    producer.poll(0.1)
                    if time.monotonic() >= self._outputs_until and not failures:
                        raise _UnwrittenError(
                            f"Only {index} of {len(outputs)} outputs had room in the queue within {_OUTPUT_SECONDS:.0f} s."
                        ) from None
                except KafkaException as error:
                    if error.args[0].code() == KafkaError._STATE:
                        raise _BrokenError(
                            "An output was not written, so Kafka's client takes no more of the transaction.", is_refused=False
                        ) from error
                    if error.args[0].code() not in _REFUSALS:
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
        left = count
        try:
            # Once one has failed, librdkafka holds the others back until they time out.
            while True:
                left = self._producer.flush(_FLUSH_SLICE_SECONDS)
                if not left or failures or time.monotonic() >= self._outputs_until:
                    break
        except SystemError as error:
            told = _told(error)
            if told is not None:
                raise KafkaException(told) from None
            left = count  # whatever it was, the abort says it
        if left and not failures:
            raise _UnwrittenError(f"{left} of {count} outputs were not written within {_OUTPUT_SECONDS:.0f} s.")

    def _denied(
        self,
        errors: Sequence[tuple[str, KafkaError]],
        outputs: Sequence[Output],
        positions: list[TopicPartition],
        stamp: bytes,
    ) -> BrokerError | None:
        """Return the ACL that is missing, if that is why every output was purged; the transaction will be aborted anyway.

        A transaction that may not write to a topic fails as a whole, and only the next call with it says why.
        """
        if any(error.code() not in _PURGED for _, error in errors):
            return None
        try:
            self._caller.call(
                lambda: self._producer.send_offsets_to_transaction(positions, stamp, _STEP_SECONDS),
                _STEP_SECONDS + _GRACE_SECONDS,
            )
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return translate(error, "writing the outputs", _needs({output.topic for output in outputs}))
        except TimeoutError as error:
            raise _StuckError("While the outputs failed, the client did not come back.") from error
        return None

    def _commit(self, needs: str, *, in_bulk: bool) -> Result:
        began = time.monotonic()
        try:
            self._again(self._producer.commit_transaction, "committing", needs)
        except AbortableError as error:
            if in_bulk and isinstance(error, _UndeliveredError):
                raise
            if time.monotonic() - began >= self._socket_timeout_seconds:
                return self._recycle(str(error))
            return self._abort(error, [])
        if time.monotonic() - began >= self._socket_timeout_seconds:
            return self._recycle("The commit took as long as the socket timeout.")
        if self._other is not None:
            (self._config, self._producer), self._other = self._other, (self._config, self._producer)
        return Result(Outcome.COMMITTED)

    def _abort(self, why: BrokerError, failures: list[tuple[int, KafkaError]]) -> Result:
        if not isinstance(why, AbortableError):
            raise why
        if isinstance(why, _StuckError):
            return self._recycle(str(why))
        began = time.monotonic()
        try:
            self._again(self._producer.abort_transaction, "aborting")
        except AbortableError as error:
            return self._recycle(str(error))
        if time.monotonic() - began >= self._socket_timeout_seconds:
            return self._recycle("The abort took as long as the socket timeout.")
        refused = tuple(sorted({index for index, error in failures if error.code() in _REFUSALS}))
        if refused:
            # librdkafka goes on with a gap in its sequence numbers, at which the next transaction would fail.
            self._producer = self._new_producer(self._config)
        return Result(Outcome.ABORTED, refused, str(why))

    def _recycle(self, why: str) -> Result:
        """Throw the producer away: its late EndTxn is fenced by the epoch that the next one gets."""
        self._caller = Caller()
        self._producer = self._new_producer(self._config)
        if self._other is not None:
            self._doubtful = self._other[1]
        return Result(Outcome.UNKNOWN, why=why)

    def _new_producer(self, config: dict[str, Any]) -> Producer:
        producer = make_producer(config)
        doing = f"beginning as transactional id {config['transactional.id']}"
        needs = f"Write and Describe on transactionalId {config['transactional.id']}"
        lasts = self._patience.begin(_BEGIN_TIMES)
        while True:
            try:
                producer.init_transactions(_BEGIN_SECONDS)
            except KafkaException as error:
                if not is_retriable(error) or not lasts():
                    raise translate(error, doing, needs) from error
            else:
                return producer

    def _again(self, call: Callable[[float], Any], doing: str, needs: str = "") -> None:
        """Make a call that may be made again once after a time-out; `needs` is the ACL for it.

        Raises:
            _UndeliveredError: a record that was written before was not delivered.
            _StuckError: it timed out twice, or the broker has forgotten the transaction.
            BrokerError: it failed otherwise.
        """
        for attempt in (1, 2):
            try:
                self._caller.call(lambda: call(_STEP_SECONDS), _STEP_SECONDS + _GRACE_SECONDS)
            except TimeoutError as error:
                raise _StuckError(f"While {doing}, the client did not come back within its own time-out.") from error
            except KafkaException as error:
                if not is_retriable(error):
                    raise _translated(error.args[0], doing, needs) from error
                if attempt == 2:
                    raise _StuckError(str(translate(error, doing))) from error
            else:
                return

    def close(self) -> None:
        """Let go; an open transaction is aborted by the broker or by the next producer with this id."""
        with contextlib.suppress(KafkaException):
            self._producer.flush(1.0)


def _needs(topics: Iterable[str]) -> str:
    """Return the ACLs for writing to these topics."""
    return " or ".join(f"Write on topic {topic}" for topic in sorted(topics))


def _translated(error: KafkaError, doing: str, needs: str = "") -> BrokerError:
    if error.code() in _UNDELIVERED:
        text = f"While {doing}, Kafka said: {error.str()} ({error.name()})."
        return _UndeliveredError(text, is_refused=error.code() in _REFUSALS)
    if error.code() in _FORGOTTEN:
        return _StuckError(f"While {doing}, Kafka said: {error.str()} ({error.name()}).")
    return translate(error, doing, needs)


def _failure(errors: Sequence[tuple[str, KafkaError]]) -> BrokerError:
    """Return what failed outputs mean: a refusal or a time-out aborts, anything else (an ACL, a fence) is the end.

    Outputs queued behind the one that failed are purged, and may be reported before it.
    """
    causes = [(topic, error) for topic, error in errors if error.code() not in _PURGED] or list(errors)
    for topic, error in causes:
        if error.code() not in _REFUSALS and error.code() not in _TIMED_OUT and error.code() not in _PURGED:
            return _translated(error, f"writing to {topic}", f"Write on topic {topic}")
    first = causes[0][1]
    return AbortableError(f"An output was not written: {first.str()} ({first.name()}).")


# How long producers of Kafka gather records unless told otherwise (linger.ms of 4.0, KIP-1030): it is part of a record's age.
LINGER_MS: Final = 5


class LoadProducer:
    """A producer for `load` and other commands: idempotent, with back-pressure, counting what failed."""

    def __init__(self, settings: Settings, *, linger_ms: int = 20) -> None:
        self._producer = make_producer(producer_config(settings, "load", {"linger.ms": linger_ms}, {}))
        self.failed = 0
        self.first_failure = ""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Send one record; waits while the queue is full."""
        more: dict[str, Any] = {"on_delivery": self._delivered}
        if timestamp_ms is not None:
            more["timestamp"] = timestamp_ms
        if partition is not None:
            more["partition"] = partition
        if headers is not None:
            more["headers"] = headers
        while True:
            try:
                self._producer.produce(topic, value, key, **more)
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                self._count(error.args[0])
                return
            else:
                self._producer.poll(0)
                return

    def in_bulk(self, columns: RecordColumns) -> BulkWriter | None:
        """Return what hands such records over at a tenth of the cost, or None where only `send` can.

        They are not counted when they fail; who hands them over looks whether they arrive, and calls `poll` meanwhile.
        """
        return BulkWriter.of(self._producer, columns)

    def poll(self) -> None:
        """Serve delivery reports, without waiting."""
        self._producer.poll(0)

    def flush(self, seconds: float = 60.0) -> int:
        """Wait until all is written; return how many records failed, `first_failure` says why."""
        left = int(self._producer.flush(seconds))
        if left:
            self.failed += left
            self.first_failure = self.first_failure or f"{left} records were not written within {seconds:.0f} s."
        return self.failed

    def _delivered(self, error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            self._count(error)

    def _count(self, error: KafkaError) -> None:
        self.failed += 1
        self.first_failure = self.first_failure or str(translate(error, "writing a record"))
