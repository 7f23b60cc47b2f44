"""How often a worker reads: what comes after a read is gathered, and the loop rests where nothing is on its way."""

from __future__ import annotations

import pytest

from stream_dedup.ground.document import Message
from stream_dedup.ground.messages import Messages
from stream_dedup.worker.dependencies import IntakePace
from tests.worker.parts import Aside, VirtualClock, intake_of, roomy_flow

READ_SECONDS = 0.001
ANSWER_SECONDS = 0.003
GATHER_SECONDS = IntakePace().gather_seconds
TURNS_MAX = 5000


class Paced:
    """The turns of an intake: there are always records to read, and reading and waiting for answers is all that takes time."""

    def __init__(self, clock: VirtualClock, *, in_flight: int = 0, is_preparing: bool = False) -> None:
        self.clock = clock
        self.reads: list[float] = []
        self.turns = 0
        self._flow = roomy_flow(in_flight=in_flight)
        self._intake = intake_of(self._take, Aside(clock, is_stuck=is_preparing), clock, self._flow)

    def _take(self) -> Messages:
        self.reads.append(self.clock.now)
        self.clock.now += READ_SECONDS
        return Messages.of([Message("documents", 0, len(self.reads), None, b"value", None, [])])

    def turn(self, *, reads: bool) -> None:
        """What the worker's loop does, but for what it does in between."""
        self._intake.turn(reads=reads)
        if self._flow.in_flight:
            self.clock.now += ANSWER_SECONDS
        if reads:
            self._intake.rest()

    def turn_until(self, end: float) -> None:
        while self.clock.now < end and self.turns < TURNS_MAX:
            self.turns += 1
            self.turn(reads=True)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.mark.parametrize(("in_flight", "is_preparing"), [(0, False), (1, False), (0, True), (2, True)])
def test_what_comes_is_read_once_in_a_while(clock: VirtualClock, in_flight: int, is_preparing: bool) -> None:
    """However quickly verdicts and commits come, two reads lie as far apart as records are gathered."""
    worker = Paced(clock, in_flight=in_flight, is_preparing=is_preparing)

    worker.turn_until(clock.now + 1.0)

    apart = [after - before for before, after in zip(worker.reads, worker.reads[1:], strict=False)]
    assert len(apart) > 30
    assert min(apart) >= GATHER_SECONDS - 1e-9


@pytest.mark.parametrize(("in_flight", "is_preparing"), [(1, False), (0, True)])
def test_the_loop_is_awake_while_something_is_on_its_way(clock: VirtualClock, in_flight: int, is_preparing: bool) -> None:
    """A verdict, a commit or a prepared batch is not slept over; those who wait for it wait for a moment each."""
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
    """What is left is drained without waiting for more."""
    worker = Paced(clock)
    worker.turn(reads=True)
    before = list(clock.slept)

    worker.turn(reads=False)

    assert clock.slept == before
