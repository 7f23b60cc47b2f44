"""Calls of the transactional producer that may never return."""

from __future__ import annotations

import math
import threading
import time
import weakref
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from stream_dedup.ground.errors import BrokerError, FencedError
from stream_dedup.ground.threads import SideThread
from stream_dedup.kafka import append, transaction
from stream_dedup.kafka.transaction import Outcome, Output, TransactionalOutput
from stream_dedup.settings.settings import Settings


def test_a_call_that_returns_is_waited_for() -> None:
    """Calls are made one after another in the caller's thread, and end before `call` does."""
    done: list[str] = []
    caller = SideThread("transactions")
    caller.call(lambda: done.append(threading.current_thread().name), 10)
    caller.call(lambda: done.append("second"), 10)

    assert done == ["transactions", "second"]


def test_what_a_call_raises_is_raised() -> None:
    """An error comes out where the call was made, and the next call is served."""
    caller = SideThread("transactions")
    with pytest.raises(ZeroDivisionError):
        caller.call(lambda: 1 / 0, 10)

    caller.call(lambda: None, 10)


def test_a_call_that_never_returns_is_left_behind() -> None:
    """A stuck call costs its time and no more; another caller goes on."""
    stuck = threading.Event()
    with pytest.raises(TimeoutError):
        SideThread("transactions").call(stuck.wait, 0.05)
    SideThread("transactions").call(lambda: None, 10)

    stuck.set()


def test_its_owner_goes_on_while_a_call_runs() -> None:
    """Nothing has ended until it has; then its result is there, once, or what it raised."""
    caller, go_on = SideThread("transactions"), threading.Event()
    caller.start(lambda: go_on.wait(10) and "done")

    assert not caller.ended(0.0)
    assert not caller.ended(0.01)
    go_on.set()
    assert caller.ended(10)
    assert caller.take_result() == "done"
    assert not caller.ended(0.0)

    caller.start(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        caller.ended(10)


class Large:
    """Something that can be looked for."""


def test_a_caller_keeps_nothing_of_a_call_that_has_ended() -> None:
    """A transaction's batches and outputs are as large as all else that a worker holds: they go when it has ended."""
    caller = SideThread("transactions")

    def start() -> tuple[weakref.ref[Large], weakref.ref[Large]]:
        carried, made = Large(), [Large()]
        result = weakref.ref(made[0])
        caller.start(lambda: made.pop() if carried else None)
        return weakref.ref(carried), result

    carried, made = start()
    assert caller.ended(10)
    caller.take_result()
    until = time.monotonic() + 10
    while (carried() or made()) and time.monotonic() < until:
        time.sleep(0.01)  # its thread lets go a moment after it has said so

    assert (carried(), made()) == (None, None)


class Fenced:
    """A producer that learns within a delivery report that another one has its transactional id."""

    def __init__(self, *_: Any) -> None: ...

    def init_transactions(self, *_: Any) -> None: ...

    begin_transaction = init_transactions

    def flush(self, *_: Any) -> int:
        raise SystemError("a method returned a result with an exception set") from KafkaException(
            KafkaError(KafkaError._FENCED, "fenced by a newer instance", fatal=True)
        )


def test_a_fence_inside_a_report_is_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client raises what is fatal while a report is given, which Python calls a SystemError: it is told as what it is."""
    monkeypatch.setattr(transaction, "make_producer", Fenced)

    with pytest.raises(FencedError, match="Another worker uses the same transactional id"):
        TransactionalOutput(Settings(), "worker-0", "outputs").run([], [], b"")


class Mute(Fenced):
    """A producer whose fatal error Python loses on the way out of a call; the callback was told, another call raises it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._hear = config.get("error_cb")

    def produce(self, *_: Any, **__: Any) -> None: ...

    def flush(self, *_: Any) -> int:
        if self._hear is not None:
            self._hear(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed", fatal=True))
        raise SystemError("a method returned NULL without setting an exception")

    poll = flush

    def send_offsets_to_transaction(self, *_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer instance", fatal=True))

    abort_transaction = send_offsets_to_transaction


def test_a_fatal_error_that_python_loses_is_told_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that fails without a word counts as unwritten; the abort says what it was."""
    monkeypatch.setattr(transaction, "make_producer", Mute)
    output = Output("unique", 0, None, b"text", None, [])

    with pytest.raises(FencedError, match="Another worker uses the same transactional id"):
        TransactionalOutput(Settings(), "worker-0", "outputs").run([output], [], b"")


def test_a_fatal_error_that_python_loses_was_told_to_the_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that may not be made is named, though the flush fails without a word."""
    monkeypatch.setattr(append, "make_producer", Mute)

    with pytest.raises(BrokerError, match=r"(?i)cluster authorization failed"):
        append.VerdictWriter(Settings(), "verdicts", "index").flush()


class Silent(Mute):
    """A producer of whose fatal error Python loses all, which one made after it is told."""

    made = 0

    def __init__(self, *_: Any) -> None:
        type(self).made += 1
        self._has_reports = type(self).made == 1

    def flush(self, *_: Any) -> int:
        if self._has_reports:
            raise SystemError("a method returned NULL without setting an exception")
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed", fatal=True))

    poll = flush


def test_a_fatal_error_of_which_nothing_was_told_is_asked_of_a_new_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """It meets the same, and has no report in which it could be lost."""
    monkeypatch.setattr(Silent, "made", 0)
    monkeypatch.setattr(append, "make_producer", Silent)

    with pytest.raises(BrokerError, match="needs the ACL Write on topic verdicts"):
        append.VerdictWriter(Settings(), "verdicts", "index").flush()


def test_counts_are_sent_by_a_new_client_after_a_fatal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts per host may be lost; a worker does not end for them."""
    made = []
    monkeypatch.setattr(append, "make_producer", lambda config: made.append(config) or Mute({}))

    append.InsightsSender(Settings(), "insights", "worker", lambda _: None).poll()

    assert len(made) == 2


class Forgotten:
    """A producer of whose transaction the broker knows nothing any more, at the `step` that fails."""

    made = 0

    def __init__(self, step: str) -> None:
        type(self).made += 1
        self._step = step

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> int:
            if name == self._step:
                raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE, "in an invalid state", fatal=True))
            return 0

        return call


@pytest.mark.parametrize("step", ["begin_transaction", "flush", "send_offsets_to_transaction", "commit_transaction"])
def test_a_broker_that_forgot_the_transaction_gets_a_new_producer(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else has the id, so the process goes on: it asks what was committed, and begins again from there."""
    monkeypatch.setattr(transaction, "make_producer", lambda _: Forgotten(step))
    monkeypatch.setattr(Forgotten, "made", 0)

    result = TransactionalOutput(Settings(), "worker-0", "outputs").run([], [("documents", 0, 1, "")], b"")

    assert (result.outcome, Forgotten.made) == (Outcome.UNKNOWN, 2)
    assert "INVALID_TXN_STATE" in result.why


class Turn:
    """A producer that tells who commits; the first one's broker forgets its third transaction."""

    def __init__(self, made: list[str], told: list[str], name: str) -> None:
        made.append(name)
        self._name, self._told = f"{name} {made.count(name)}", told

    def send_offsets_to_transaction(self, *_: Any) -> None:
        if self._name == "worker-0 1" and self._name in self._told:
            raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE, "in an invalid state"))

    def commit_transaction(self, *_: Any) -> None:
        self._told.append(self._name)

    def __getattr__(self, _: str) -> Any:
        return lambda *_: 0


def test_where_one_producer_was_lost_the_other_is_made_anew_at_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both know the same brokers: what made the one wait for ever makes the other wait as long, and then a third time."""
    made: list[str] = []
    told: list[str] = []
    monkeypatch.setattr(transaction, "make_producer", lambda config: Turn(made, told, config["transactional.id"]))
    transactions = TransactionalOutput(Settings(), "worker-0", "outputs", in_turns=True)

    outcomes = [transactions.run([], [("documents", 0, 1, "")], b"").outcome for _ in range(7)]

    assert outcomes == [Outcome.COMMITTED] * 2 + [Outcome.UNKNOWN] + [Outcome.COMMITTED] * 4
    assert told == ["worker-0 1", "worker-0~2 1", "worker-0 2", "worker-0~2 2", "worker-0 2", "worker-0~2 2"]


class Broken(Fenced):
    """A producer whose transaction breaks while it is written: a record is refused, and it takes no more of the others."""

    def __init__(self, told: int | None) -> None:
        self._told = told
        self._reports: list[Any] = []
        self.aborted = 0

    def produce(self, _topic: str, _value: bytes, _key: bytes, _partition: int, report: Any, *_: Any) -> None:
        if self._reports:
            raise KafkaException(KafkaError(KafkaError._STATE, "Erroneous state"))
        self._reports.append(report)

    def flush(self, *_: Any) -> int:
        if self._told is not None:
            self._reports[0](KafkaError(self._told), None)
        return 0

    def send_offsets_to_transaction(self, *_: Any) -> None:
        if self._told is None:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    def commit_transaction(self, *_: Any) -> None:
        raise AssertionError("what is half written is committed")

    def abort_transaction(self, *_: Any) -> None:
        self.aborted += 1


@pytest.mark.parametrize(
    ("told", "refused", "why"),
    [(KafkaError.MSG_SIZE_TOO_LARGE, (0,), "MSG_SIZE_TOO_LARGE"), (KafkaError._MSG_TIMED_OUT, (), "")],
)
def test_a_transaction_that_breaks_while_it_is_written_is_aborted(
    monkeypatch: pytest.MonkeyPatch, told: int, refused: tuple[int, ...], why: str
) -> None:
    """The first record is refused before the second is handed over: it is named, and the process goes on."""
    made = Broken(told)
    monkeypatch.setattr(transaction, "make_producer", lambda _: made)
    outputs = [Output("unique", 0, b"k", b"v", None, []) for _ in range(3)]

    result = TransactionalOutput(Settings(), "worker-0", "outputs").run(outputs, [("documents", 0, 1, "")], b"")

    assert (result.outcome, result.refused, made.aborted) == (Outcome.ABORTED, refused, 1)
    assert why in result.why


class Full(Fenced):
    """A producer with room for three records, of a broker that takes none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queued = 0
        self.aborted_at = 0.0

    def send_offsets_to_transaction(self, *_: Any) -> None:
        raise AssertionError("offsets of what was not written are sent, and may be committed with what is written next")

    def produce(self, *_: Any) -> None:
        if self._queued == 3:
            raise BufferError("Local: Queue full")
        self._queued += 1

    def poll(self, seconds: float) -> None:
        self._clock.now += seconds

    def flush(self, seconds: float) -> int:
        self._clock.now += seconds
        return self._queued

    def abort_transaction(self, *_: Any) -> None:
        self.aborted_at = self._clock.now


class Clock:
    """A clock that moves when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("count", [3, 4])
def test_outputs_are_waited_for_no_longer_than_kafka_leaves_a_transaction_open(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Whether they all fit into the queue or not: after 30 s Kafka ends it, and takes the worker for one that was replaced."""
    clock = Clock()
    made = Full(clock)
    monkeypatch.setattr(transaction, "make_producer", lambda _: made)
    outputs = [Output("unique", 0, b"k", b"v", None, []) for _ in range(count)]

    transactions = TransactionalOutput(Settings(), "worker-0", "outputs", monotonic=clock.monotonic)
    result = transactions.run(outputs, [("documents", 0, 1, "")], b"")

    assert result.outcome is Outcome.ABORTED
    assert 20 < made.aborted_at - 1000.0 < 27
    assert f" of {count} outputs" in result.why


def test_a_transaction_that_breaks_for_want_of_an_acl_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """No record has a report then, and the next call tells."""
    monkeypatch.setattr(transaction, "make_producer", lambda _: Broken(None))
    outputs = [Output("unique", 0, b"k", b"v", None, []) for _ in range(3)]

    with pytest.raises(BrokerError, match="needs the ACL Write on topic unique"):
        TransactionalOutput(Settings(), "worker-0", "outputs").run(outputs, [("documents", 0, 1, "")], b"")


class Late(Full):
    """A producer whose offsets are taken after so many seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__(clock)
        self._seconds = seconds

    def flush(self, *_: Any) -> int:
        return 0

    def send_offsets_to_transaction(self, *_: Any) -> None:
        self._clock.now += self._seconds

    def commit_transaction(self, *_: Any) -> None: ...


@pytest.mark.parametrize(("seconds", "made_in_all"), [(0.3, 1), (0.5, 2)])
def test_a_producer_that_may_have_sent_its_offsets_twice_begins_nothing_more(
    monkeypatch: pytest.MonkeyPatch, seconds: float, made_in_all: int
) -> None:
    """The client sends them again when its connection broke; the first copy must not come into the next transaction."""
    clock = Clock()
    made: list[Late] = []
    monkeypatch.setattr(transaction, "make_producer", lambda _: made.append(Late(clock, seconds)) or made[-1])
    transactions = TransactionalOutput(Settings(), "worker-0", "outputs", monotonic=clock.monotonic)

    for _ in range(2):
        result = transactions.run([Output("unique", 0, b"k", b"v", None, [])], [("documents", 0, 1, "")], b"")
        assert result.outcome is Outcome.COMMITTED

    assert len(made) == made_in_all


class Outdated(Fenced):
    """A producer that knows fewer partitions than a topic has, until it asks."""

    asked: list[str]

    def produce(self, *_: Any, **__: Any) -> None:
        if not self.asked:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, "Unknown partition"))

    def flush(self, *_: Any) -> int:
        return 0

    def list_topics(self, topic: str, timeout: float) -> None:
        self.asked.append(topic)

    abort_transaction = commit_transaction = Fenced.init_transactions


def test_a_topic_that_has_grown_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is aborted, and the next one is written: nothing was deleted."""
    Outdated.asked = []
    monkeypatch.setattr(transaction, "make_producer", Outdated)
    output = TransactionalOutput(Settings(), "worker-0", "outputs")
    record = Output("unique", 5, None, b"text", None, [])

    first = output.run([record], [], b"")

    assert first.outcome is Outcome.ABORTED
    assert Outdated.asked == ["unique"]
    assert output.run([record], [], b"").outcome is Outcome.COMMITTED


class Slow(Fenced):
    """A producer whose outputs are never written."""

    def produce(self, *_: Any, **__: Any) -> None: ...

    def flush(self, *_: Any) -> int:
        return 1

    abort_transaction = Fenced.init_transactions


def test_outputs_that_are_late_are_told_from_steps_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer outputs may be written in time; of a step behind them, which hangs, nobody can say that."""
    monkeypatch.setattr(transaction, "make_producer", Slow)
    clock = iter(range(0, 10_000, 10))
    output = TransactionalOutput(Settings(), "worker-0", "outputs", monotonic=lambda: next(clock))

    result = output.run([Output("unique", 0, None, b"text", None, [])], [("documents", 0, 1, "")], b"")

    assert (result.outcome, result.is_late) == (Outcome.ABORTED, True)
    monkeypatch.setattr(transaction, "make_producer", lambda *_: Forgotten("send_offsets_to_transaction"))
    output = TransactionalOutput(Settings(), "worker-0", "outputs")
    result = output.run([], [("documents", 0, 1, "")], b"")
    assert (result.outcome, result.is_late) == (Outcome.UNKNOWN, False)


def test_a_load_says_that_kafka_takes_nothing_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for ever: each record is tried for as long as Kafka's client tries it."""
    monkeypatch.setattr(append, "QUIET_SECONDS", 0.2)
    said: list[str] = []
    settings = Settings(kafka_bootstrap_servers="127.0.0.1:1", kafka={"message.timeout.ms": "1500"})
    producer = append.LoadProducer(settings, told=said.append)
    for number in range(3):
        producer.send("documents", None, b"%d" % number)

    assert producer.flush(math.inf) == 3
    assert [one.partition(" for ")[0] for one in said] == ["Kafka has taken none of 3 records"]
    assert ("timed out" in producer.first_failure, producer.is_given_up) == (True, True)
