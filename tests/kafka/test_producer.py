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
from tests.kafka.scripted import Scripted, lost_error, patch_producers, refusal

FENCED = refusal(KafkaError._FENCED, "fenced by a newer instance", fatal=True)
DENIED = refusal(
    KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed", fatal=True
)
OFFSETS = [("documents", 0, 1, "")]
RECORD = Output("unique", 0, b"k", b"v", None, [])


def make_output(**more: Any) -> TransactionalOutput:
    return TransactionalOutput(Settings(), "worker-0", "outputs", **more)


def test_calls_run_in_turn_and_raise_their_errors() -> None:
    """Calls run one after another in one thread, also after an error; each ends before `call`
    returns."""
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
    """Once the call has ended, its result can be taken once, or its error is raised."""
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
    """An object whose release a test can observe."""


def test_a_caller_keeps_nothing_of_a_call_that_has_ended() -> None:
    """A transaction's batches and outputs are large, so they are freed when it has ended."""
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
        time.sleep(0.01)  # its thread frees them a moment after the end

    assert (carried(), made()) == (None, None)


@pytest.mark.parametrize(
    "steps",
    [{"flush": lost_error(FENCED)}, {"flush": lost_error(), "abort_transaction": FENCED}],
    ids=["raised in a report", "told by the next call"],
)
def test_a_fence_that_python_hides_is_raised(
    monkeypatch: pytest.MonkeyPatch, steps: dict[str, Any]
) -> None:
    """A flush that fails without a cause counts as unwritten; a fatal error is raised as it is."""
    patch_producers(monkeypatch, transaction, lambda _: Scripted(**steps))

    with pytest.raises(FencedError, match="Another worker uses the same transactional id"):
        make_output().run([RECORD], [], b"")


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_fatal_error_that_python_loses_is_raised(
    monkeypatch: pytest.MonkeyPatch, is_heard: bool
) -> None:
    """The denied append is named: the callback got the error, or a new client gets it again."""

    def make(config: dict[str, Any]) -> Scripted:
        def flush(_: float) -> int:
            if is_heard:
                config["error_cb"](DENIED.args[0])
            raise lost_error()

        return Scripted(poll=DENIED) if made else Scripted(flush=flush)

    made = patch_producers(monkeypatch, append, make)
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
    made = patch_producers(monkeypatch, transaction, lambda _: Scripted(**{step: error}))

    result = make_output().run([], OFFSETS, b"")

    assert (result.outcome, result.is_late, len(made)) == (Outcome.UNKNOWN, False, 2)
    assert "INVALID_TXN_STATE" in result.why


def test_after_one_producer_is_lost_the_other_is_replaced_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both know the same brokers, so what made one wait for ever would make the other wait as
    well."""
    names: list[str] = []
    committed_by: list[str] = []

    def make(config: dict[str, Any]) -> Scripted:
        names.append(config["transactional.id"])
        name = f"{names[-1]} {names.count(names[-1])}"

        def send_offsets(*_: Any) -> None:
            if (
                name == "worker-0 1" and name in committed_by
            ):  # the first one's broker forgets its third transaction
                raise refusal(KafkaError.INVALID_TXN_STATE)

        return Scripted(
            send_offsets_to_transaction=send_offsets,
            commit_transaction=lambda _: committed_by.append(name),
        )

    patch_producers(monkeypatch, transaction, make)
    both = make_output(alternates=True)

    outcomes = [both.run([], OFFSETS, b"").outcome for _ in range(7)]

    assert outcomes == [Outcome.COMMITTED] * 2 + [Outcome.UNKNOWN] + [Outcome.COMMITTED] * 4
    assert committed_by == [
        "worker-0 1",
        "worker-0~2 1",
        "worker-0 2",
        "worker-0~2 2",
        "worker-0 2",
        "worker-0~2 2",
    ]


def make_breaking_producer(code: int | None) -> Scripted:
    """Return a producer whose first record is refused later, and which accepts no other record."""
    reports: list[Any] = []

    def produce(
        _topic: str, _value: bytes, _key: bytes, _partition: int, report: Any, *_: Any
    ) -> None:
        if reports:
            raise refusal(KafkaError._STATE, "Erroneous state")
        reports.append(report)

    return Scripted(
        produce=produce,
        flush=lambda _: 0 if code is None else reports[0](KafkaError(code), None) or 0,
        send_offsets_to_transaction=0
        if code is not None
        else refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED),
        commit_transaction=AssertionError("what is half written is committed"),
    )


@pytest.mark.parametrize(
    ("code", "refused", "why"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, (0,), "MSG_SIZE_TOO_LARGE"),
        (KafkaError._MSG_TIMED_OUT, (), ""),
    ],
)
def test_a_transaction_that_breaks_while_it_is_written_is_aborted(
    monkeypatch: pytest.MonkeyPatch, code: int, refused: tuple[int, ...], why: str
) -> None:
    """The first record is refused before the second is handed over: it is named, and the process
    goes on."""
    made = patch_producers(monkeypatch, transaction, lambda _: make_breaking_producer(code))

    result = make_output().run([RECORD] * 3, OFFSETS, b"")

    assert (result.outcome, result.refused, made[0].calls.count("abort_transaction")) == (
        Outcome.ABORTED,
        refused,
        1,
    )
    assert why in result.why


def test_a_transaction_that_breaks_without_an_acl_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No record has a report then; the next call raises the error."""
    patch_producers(monkeypatch, transaction, lambda _: make_breaking_producer(None))

    with pytest.raises(BrokerError, match="needs the ACL Write on topic unique"):
        make_output().run([RECORD] * 3, OFFSETS, b"")


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
    """After 30 s Kafka ends a transaction and fences its worker, even if the outputs fit into the
    queue of three. Fewer may be written in time, so the transaction counts as late."""
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
    patch_producers(monkeypatch, transaction, lambda _: silent)

    result = make_output(monotonic=clock.monotonic).run([RECORD] * count, OFFSETS, b"")

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
    made = patch_producers(
        monkeypatch,
        transaction,
        lambda _: Scripted(send_offsets_to_transaction=lambda *_: clock.wait(seconds)),
    )
    output = make_output(monotonic=clock.monotonic)

    assert [output.run([RECORD], OFFSETS, b"").outcome for _ in range(2)] == [Outcome.COMMITTED] * 2
    assert len(made) == made_in_all


def test_a_topic_with_new_partitions_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is aborted, and the next one is written: nothing was deleted."""
    asked: list[str] = []

    def produce(*_: Any) -> None:
        if not asked:
            raise refusal(KafkaError._UNKNOWN_PARTITION)

    outdated = Scripted(produce=produce, list_topics=lambda topic, timeout: asked.append(topic))
    patch_producers(monkeypatch, transaction, lambda _: outdated)
    output = make_output()

    assert output.run([RECORD], [], b"").outcome is Outcome.ABORTED
    assert asked == ["unique"]
    assert output.run([RECORD], [], b"").outcome is Outcome.COMMITTED


def test_a_load_reports_that_kafka_accepts_nothing_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not wait for ever: each record is tried for as long as Kafka's client tries it."""
    monkeypatch.setattr(append, "STALLED_SECONDS", 0.2)
    report_lines: list[str] = []
    settings = Settings(kafka_bootstrap_servers="127.0.0.1:1", kafka={"message.timeout.ms": "1500"})
    producer = append.LoadProducer(settings, report=report_lines.append)
    for number in range(3):
        producer.send("documents", None, b"%d" % number)

    assert producer.flush(math.inf) == 3
    assert [line.partition(" for ")[0] for line in report_lines] == [
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
    """librdkafka reports an unknown or destroyed partition; the error names the deleted topic."""
    reports: list[Any] = []
    steps = {
        "produce": lambda *given: reports.append(given[-1]),
        "poll": lambda _: reports.pop()(KafkaError(code), None),
    }
    patch_producers(monkeypatch, append, lambda _: Scripted(**steps))
    writer = append.LogAppender(Settings(), "verdicts", "index")
    writer.send(b"answer", b"index", print)

    with pytest.raises(
        append.LostTopicError,
        match=r"^The topic verdicts was deleted, or created again .*with: stream-dedup topics appl",
    ):
        writer.poll()
