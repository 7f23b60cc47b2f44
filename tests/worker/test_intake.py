"""What a worker reads, how often and how much, and how it prepares what it has read."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import RegistryAwayError
from stream_dedup.domain.messages import Messages
from stream_dedup.worker import intake as intake_module
from stream_dedup.worker.allowance import Amount
from stream_dedup.worker.dependencies import IntakePace
from stream_dedup.worker.intake import Intake
from tests.worker.parts import AT_ONCE, MIB, ThreadStub, VirtualClock, intake_of, roomy_flow

READ_SECONDS = 0.001
ANSWER_SECONDS = 0.003
GATHER_SECONDS = IntakePace().gather_seconds
TURNS_MAX = 5000


class Paced:
    """An intake that always has records to read; only reads and waits for answers take time."""

    def __init__(
        self, clock: VirtualClock, *, in_flight: int = 0, is_preparing: bool = False
    ) -> None:
        self.clock = clock
        self.reads: list[float] = []
        self.turns = 0
        self._flow = roomy_flow(in_flight=in_flight)
        self._intake = intake_of(
            self._take, ThreadStub(clock, is_stuck=is_preparing), clock, self._flow
        )

    def _take(self) -> Messages:
        self.reads.append(self.clock.now)
        self.clock.now += READ_SECONDS
        return Messages.of([Message("documents", 0, len(self.reads), None, b"value", None, [])])

    def turn(self, *, reads: bool) -> None:
        """Run the intake's part of a turn of the worker's loop."""
        self._intake.read_and_prepare(reads=reads)
        if self._flow.in_flight:
            self.clock.now += ANSWER_SECONDS
        if reads:
            self._intake.sleep_until_next_read()

    def turn_until(self, end: float) -> None:
        while self.clock.now < end and self.turns < TURNS_MAX:
            self.turns += 1
            self.turn(reads=True)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.mark.parametrize(
    ("in_flight", "is_preparing"), [(0, False), (1, False), (0, True), (2, True)]
)
def test_two_reads_are_a_gathering_time_apart(
    clock: VirtualClock, in_flight: int, is_preparing: bool
) -> None:
    """Two reads are a gathering time apart, however quickly verdicts and commits arrive."""
    worker = Paced(clock, in_flight=in_flight, is_preparing=is_preparing)

    worker.turn_until(clock.now + 1.0)

    apart = [after - before for before, after in zip(worker.reads, worker.reads[1:], strict=False)]
    assert len(apart) > 30
    assert min(apart) >= GATHER_SECONDS - 1e-9


@pytest.mark.parametrize(("in_flight", "is_preparing"), [(1, False), (0, True)])
def test_the_loop_does_not_sleep_while_something_is_in_flight(
    clock: VirtualClock, in_flight: int, is_preparing: bool
) -> None:
    """The loop does not sleep while it waits for a verdict, a commit or a prepared batch."""
    worker = Paced(clock, in_flight=in_flight, is_preparing=is_preparing)

    worker.turn_until(clock.now + 1.0)

    assert clock.slept == []


def test_the_first_record_after_a_pause_is_read_at_once(clock: VirtualClock) -> None:
    worker = Paced(clock)
    worker.turn_until(clock.now + 0.1)
    clock.now += 5.0
    before = len(worker.reads)

    resumed = clock.now

    worker.turn_until(clock.now + READ_SECONDS / 2)

    assert worker.reads[before:] == [resumed]


def test_a_worker_that_is_to_end_gathers_nothing(clock: VirtualClock) -> None:
    """The remaining records are processed without waiting for more."""
    worker = Paced(clock)
    worker.turn(reads=True)
    before = list(clock.slept)

    worker.turn(reads=False)

    assert clock.slept == before


RECORD_BYTES = 20_000


def of_records(count: int) -> Messages:
    """Return records of which each takes 20 kB."""
    values = [bytes(RECORD_BYTES - 700)] * count
    return Messages(
        "documents",
        np.zeros(count, np.int32),
        np.arange(count),
        [None] * count,
        values,
        np.zeros(count, np.int64),
        {},
        {},
    )


def make_busy_intake(
    *, flight: int = 0, prepared: int = 0, ahead: int = 0, allowed: Amount | None = None
) -> Intake:
    """Return an intake that is preparing `prepared` records and has read `ahead` records more,
    while `flight` bytes are in flight.

    It has read records before, so that it knows their size.
    """
    flow = roomy_flow(8000)
    reads = [of_records(5)] * 20
    clock = VirtualClock()
    thread = ThreadStub(clock)
    allowance = None if allowed is None else SimpleNamespace(current=allowed)
    intake = intake_of(lambda: reads.pop(0), thread, clock, flow, allowance, AT_ONCE)
    while reads:
        intake.read_and_prepare(reads=True)
    thread.is_stuck = True
    for count in filter(None, (prepared, ahead)):
        reads.append(of_records(count))
        intake.read_and_prepare(reads=True)
    assert not reads
    flow.held_bytes = flight
    return intake


@pytest.mark.parametrize(
    ("intake", "expected"),
    [
        pytest.param(make_busy_intake(), 10 * MIB, id="nothing is under way"),
        pytest.param(make_busy_intake(flight=50 * MIB), 10 * MIB, id="five batches are"),
        pytest.param(make_busy_intake(flight=51 * MIB), 0, id="more than five are"),
        pytest.param(
            make_busy_intake(flight=45 * MIB, prepared=315), 0, id="one is being prepared"
        ),
        pytest.param(
            make_busy_intake(prepared=524, ahead=300),
            10 * MIB - 300 * RECORD_BYTES,
            id="some are read ahead",
        ),
        pytest.param(
            make_busy_intake(prepared=524, ahead=600), 0, id="a whole batch is read ahead"
        ),
        pytest.param(make_busy_intake(allowed=Amount(8000, MIB)), MIB, id="transactions are small"),
        pytest.param(
            make_busy_intake(allowed=Amount(7, MIB)),
            7 * RECORD_BYTES,
            id="transactions are of few records",
        ),
    ],
)
def test_a_read_is_as_large_as_the_room(intake: Intake, expected: int) -> None:
    records_wanted = intake.records_wanted()

    assert records_wanted * RECORD_BYTES <= expected + 1000
    assert records_wanted * RECORD_BYTES > expected - 1.1 * RECORD_BYTES


def test_records_that_are_being_prepared_are_counted() -> None:
    """They count until they are in flight."""
    flow = roomy_flow(8000)
    clock = VirtualClock()
    thread = ThreadStub(clock, is_stuck=True)
    intake = intake_of(lambda: of_records(100), thread, clock, flow)

    intake.read_and_prepare(reads=True)

    assert (len(thread.started), intake.is_preparing, intake.prepared_bytes) == (
        1,
        True,
        100 * RECORD_BYTES,
    )
    thread.is_stuck = False
    intake.read_and_prepare(reads=False)
    assert (intake.is_preparing, intake.prepared_bytes) == (False, 0)


def records(first: int) -> Messages:
    """Return two records of one partition."""
    return Messages.of(
        [Message("documents", 0, offset, None, b"value", None, []) for offset in (first, first + 1)]
    )


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_records_read_at_the_stop_do_not_overtake_waiting_ones(turns: int) -> None:
    reads, taken = [records(2 * number) for number in range(10)], list[Any]()
    clock, stop = VirtualClock(), threading.Event()
    thread = ThreadStub(clock, is_stuck=True)
    intake = intake_of(
        lambda: reads.pop(0),
        thread,
        clock,
        roomy_flow(),
        pace=AT_ONCE,
        take_in=taken.append,
        stop=stop,
    )
    for _ in range(turns):
        intake.read_and_prepare(reads=True)  # the first is prepared, the others wait

    stop.set()
    thread.is_stuck = False
    intake.read_and_prepare(reads=True)
    while intake.is_preparing:
        intake.read_and_prepare(reads=False)

    offsets = [offset for batch in taken for offset in batch.messages.offsets.tolist()]
    assert offsets == list(range(len(offsets)))
    assert offsets[:2] == [0, 1]


def test_records_are_prepared_once_the_registry_answers(monkeypatch: Any) -> None:
    monkeypatch.setattr(intake_module, "_RETRY_SECONDS", 0.001)
    asked: list[int] = []
    taken: list[Any] = []

    def prepare(messages: Messages, *_: Any) -> Any:
        asked.append(len(messages))
        if len(asked) < 4:
            raise RegistryAwayError("away")
        return SimpleNamespace(messages=messages, passed={})

    clock = VirtualClock()
    intake = intake_of(
        read_one, ThreadStub(clock), clock, roomy_flow(), prepare=prepare, take_in=taken.append
    )
    intake.read_and_prepare(reads=True)
    intake.finish()
    assert (asked[:4], len(taken[0].messages)) == ([1, 1, 1, 1], 1)


def test_finish_does_not_wait_for_an_unavailable_registry() -> None:
    taken: list[Any] = []
    asked: list[int] = []

    def prepare(messages: Messages, *_: Any) -> Any:
        asked.append(len(messages))
        raise RegistryAwayError("away")

    clock = VirtualClock()
    thread = ThreadStub(clock, is_stuck=True)
    intake = intake_of(read_one, thread, clock, roomy_flow(), prepare=prepare, take_in=taken.append)
    intake.read_and_prepare(reads=True)
    assert intake.is_preparing
    thread.is_stuck = False
    intake.finish()
    assert (asked, taken, intake.is_preparing) == ([1], [], False)


def read_one() -> Messages:
    return Messages.of([Message("documents", 0, 0, None, b"value", None, [])])
