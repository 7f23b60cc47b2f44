"""Calls of the transactional producer that may never return."""

from __future__ import annotations

import math
import threading
import time
import weakref
from typing import Any

import pytest
from confluent_kafka import KafkaError

from stream_dedup.domain.errors import BrokerError, FencedError
from stream_dedup.domain.threads import SideThread
from stream_dedup.kafka import append, transaction
from stream_dedup.kafka.transaction import Outcome, Output, TransactionalOutput
from stream_dedup.settings.settings import Settings
from tests.kafka.scripted import Scripted, lost, put, refusal

FENCED = refusal(KafkaError._FENCED, "fenced by a newer instance", fatal=True)
DENIED = refusal(
    KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed", fatal=True
)
OFFSETS = [("documents", 0, 1, "")]
RECORD = Output("unique", 0, b"k", b"v", None, [])


def transactions(**more: Any) -> TransactionalOutput:
    return TransactionalOutput(Settings(), "worker-0", "outputs", **more)


def test_calls_are_made_in_turn_and_raise_what_they_raise() -> None:
    """One after another in the caller's thread; each ends before `call` does, and the next is
    served after an error too."""
    done: list[str] = []
    caller = SideThread("transactions")
    caller.call(lambda: done.append(threading.current_thread().name), 10)
    with pytest.raises(ZeroDivisionError):
        caller.call(lambda: 1 / 0, 10)
    caller.call(lambda: done.append("second"), 10)

    assert done == ["transactions", "second"]


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
    """A transaction's batches and outputs are as large as all else that a worker holds: they go
    when it has ended."""
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


@pytest.mark.parametrize(
    "steps",
    [{"flush": lost(FENCED)}, {"flush": lost(), "abort_transaction": FENCED}],
    ids=["raised in a report", "told by the next call"],
)
def test_a_fence_that_python_hides_is_a_fence(
    monkeypatch: pytest.MonkeyPatch, steps: dict[str, Any]
) -> None:
    """A flush that fails without a word counts as unwritten; what is fatal is told as what it
    is."""
    put(monkeypatch, transaction, lambda _: Scripted(**steps))

    with pytest.raises(FencedError, match="Another worker uses the same transactional id"):
        transactions().run([RECORD], [], b"")


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_fatal_error_that_python_loses_is_known_to_the_client(
    monkeypatch: pytest.MonkeyPatch, is_heard: bool
) -> None:
    """An append that may not be made is named: the callback was told or, where it was not, a new
    client meets the same and has no report in which it could be lost."""

    def make(config: dict[str, Any]) -> Scripted:
        def flush(_: float) -> int:
            if is_heard:
                config["error_cb"](DENIED.args[0])
            raise lost()

        return Scripted(poll=DENIED) if made else Scripted(flush=flush)

    made = put(monkeypatch, append, make)
    with pytest.raises(
        BrokerError,
        match=r"(?i)cluster authorization failed.* needs the ACL Write on topic verdicts",
    ):
        append.LogAppender(Settings(), "verdicts", "index").flush()
    assert len(made) == (1 if is_heard else 2)


@pytest.mark.parametrize(
    "step", ["begin_transaction", "flush", "send_offsets_to_transaction", "commit_transaction"]
)
def test_a_broker_that_forgot_the_transaction_gets_a_new_producer(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else has the id, so the process goes on: it asks what was committed, and begins again
    from there."""
    error = refusal(KafkaError.INVALID_TXN_STATE, "in an invalid state", fatal=True)
    made = put(monkeypatch, transaction, lambda _: Scripted(**{step: error}))

    result = transactions().run([], OFFSETS, b"")

    assert (result.outcome, result.is_late, len(made)) == (Outcome.UNKNOWN, False, 2)
    assert "INVALID_TXN_STATE" in result.why


def test_where_one_producer_was_lost_the_other_is_made_anew_at_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both know the same brokers: what made the one wait for ever makes the other wait as long, and
    then a third time."""
    names: list[str] = []
    told: list[str] = []

    def make(config: dict[str, Any]) -> Scripted:
        names.append(config["transactional.id"])
        name = f"{names[-1]} {names.count(names[-1])}"

        def send_offsets(*_: Any) -> None:
            if (
                name == "worker-0 1" and name in told
            ):  # the first one's broker forgets its third transaction
                raise refusal(KafkaError.INVALID_TXN_STATE)

        return Scripted(
            send_offsets_to_transaction=send_offsets, commit_transaction=lambda _: told.append(name)
        )

    put(monkeypatch, transaction, make)
    both = transactions(alternates=True)

    outcomes = [both.run([], OFFSETS, b"").outcome for _ in range(7)]

    assert outcomes == [Outcome.COMMITTED] * 2 + [Outcome.UNKNOWN] + [Outcome.COMMITTED] * 4
    assert told == [
        "worker-0 1",
        "worker-0~2 1",
        "worker-0 2",
        "worker-0~2 2",
        "worker-0 2",
        "worker-0~2 2",
    ]


def breaking(told: int | None) -> Scripted:
    """Return one whose first record is refused while it is written, and which takes none of the
    others."""
    reports: list[Any] = []

    def produce(
        _topic: str, _value: bytes, _key: bytes, _partition: int, report: Any, *_: Any
    ) -> None:
        if reports:
            raise refusal(KafkaError._STATE, "Erroneous state")
        reports.append(report)

    return Scripted(
        produce=produce,
        flush=lambda _: 0 if told is None else reports[0](KafkaError(told), None) or 0,
        send_offsets_to_transaction=0
        if told is not None
        else refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED),
        commit_transaction=AssertionError("what is half written is committed"),
    )


@pytest.mark.parametrize(
    ("told", "refused", "why"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, (0,), "MSG_SIZE_TOO_LARGE"),
        (KafkaError._MSG_TIMED_OUT, (), ""),
    ],
)
def test_a_transaction_that_breaks_while_it_is_written_is_aborted(
    monkeypatch: pytest.MonkeyPatch, told: int, refused: tuple[int, ...], why: str
) -> None:
    """The first record is refused before the second is handed over: it is named, and the process
    goes on."""
    made = put(monkeypatch, transaction, lambda _: breaking(told))

    result = transactions().run([RECORD] * 3, OFFSETS, b"")

    assert (result.outcome, result.refused, made[0].calls.count("abort_transaction")) == (
        Outcome.ABORTED,
        refused,
        1,
    )
    assert why in result.why


def test_a_transaction_that_breaks_for_want_of_an_acl_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No record has a report then, and the next call tells."""
    put(monkeypatch, transaction, lambda _: breaking(None))

    with pytest.raises(BrokerError, match="needs the ACL Write on topic unique"):
        transactions().run([RECORD] * 3, OFFSETS, b"")


class Clock:
    """A clock that moves when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("count", [3, 4])
def test_outputs_are_waited_for_no_longer_than_kafka_leaves_a_transaction_open(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Whether they all fit into the queue of three or not: after 30 s Kafka ends it, and takes the
    worker for one that was replaced. Fewer may be written in time, so the transaction counts as
    late."""
    clock, queued, aborted_at = Clock(), [], []

    def produce(*_: Any) -> None:
        if len(queued) == 3:
            raise BufferError("Local: Queue full")
        queued.append(1)

    silent = Scripted(
        produce=produce,
        poll=clock.wait,
        flush=lambda seconds: clock.wait(seconds) or len(queued),
        send_offsets_to_transaction=AssertionError(
            "offsets of what was not written are sent, and may be committed later"
        ),
        abort_transaction=lambda _: aborted_at.append(clock.now),
    )
    put(monkeypatch, transaction, lambda _: silent)

    result = transactions(monotonic=clock.monotonic).run([RECORD] * count, OFFSETS, b"")

    assert (result.outcome, result.is_late) == (Outcome.ABORTED, True)
    assert 20 < aborted_at[0] - 1000.0 < 27
    assert f" of {count} outputs" in result.why


@pytest.mark.parametrize(("seconds", "made_in_all"), [(0.3, 1), (0.5, 2)])
def test_a_producer_that_may_have_sent_its_offsets_twice_begins_nothing_more(
    monkeypatch: pytest.MonkeyPatch, seconds: float, made_in_all: int
) -> None:
    """The client sends them again when its connection broke; the first copy must not come into the
    next transaction."""
    clock = Clock()
    made = put(
        monkeypatch,
        transaction,
        lambda _: Scripted(send_offsets_to_transaction=lambda *_: clock.wait(seconds)),
    )
    output = transactions(monotonic=clock.monotonic)

    assert [output.run([RECORD], OFFSETS, b"").outcome for _ in range(2)] == [Outcome.COMMITTED] * 2
    assert len(made) == made_in_all


def test_a_topic_that_has_grown_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is aborted, and the next one is written: nothing was deleted."""
    asked: list[str] = []

    def produce(*_: Any) -> None:
        if not asked:
            raise refusal(KafkaError._UNKNOWN_PARTITION)

    outdated = Scripted(produce=produce, list_topics=lambda topic, timeout: asked.append(topic))
    put(monkeypatch, transaction, lambda _: outdated)
    output = transactions()

    assert output.run([RECORD], [], b"").outcome is Outcome.ABORTED
    assert asked == ["unique"]
    assert output.run([RECORD], [], b"").outcome is Outcome.COMMITTED


def test_a_load_says_that_kafka_takes_nothing_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for ever: each record is tried for as long as Kafka's client tries it."""
    monkeypatch.setattr(append, "STALLED_SECONDS", 0.2)
    said: list[str] = []
    settings = Settings(kafka_bootstrap_servers="127.0.0.1:1", kafka={"message.timeout.ms": "1500"})
    producer = append.LoadProducer(settings, report=said.append)
    for number in range(3):
        producer.send("documents", None, b"%d" % number)

    assert producer.flush(math.inf) == 3
    assert [one.partition(" for ")[0] for one in said] == [
        "Kafka has acknowledged none of 3 records"
    ]
    assert ("timed out" in producer.first_failure, producer.has_given_up) == (True, True)


@pytest.mark.parametrize(
    "code",
    [KafkaError._DESTROY, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART],
)
def test_a_topic_deleted_under_a_producer_is_named(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """librdkafka says that a partition is unknown, or destroyed; the cause is that its topic is
    gone, and what helps is to create it."""
    reports: list[Any] = []
    steps = {
        "produce": lambda *given: reports.append(given[-1]),
        "poll": lambda _: reports.pop()(KafkaError(code), None),
    }
    put(monkeypatch, append, lambda _: Scripted(**steps))
    writer = append.LogAppender(Settings(), "verdicts", "index")
    writer.send(b"answer", b"index", print)

    with pytest.raises(
        append.LostTopicError,
        match=r"^The topic verdicts was deleted, or created again .*with: stream-dedup topics appl",
    ):
        writer.poll()
