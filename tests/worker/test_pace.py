"""How often a worker reads: what comes after a read is gathered, and the loop rests where nothing is on its way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stream_dedup.worker import role
from stream_dedup.worker.allowance import Allowance, Amount
from stream_dedup.worker.budget import RecordSizes, WorkerBudget

READ_SECONDS = 0.001
TURNS_MAX = 5000


class Clock:
    """A clock that moves when somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Paced(role._Worker):
    """A worker's loop around nothing: there are always records to read, and reading is all that takes time."""

    def __init__(self, clock: Clock, *, in_flight: int = 0, is_preparing: bool = False) -> None:
        nothing = SimpleNamespace(beat=lambda: None, poll=lambda: None)
        self._health = self._appender = nothing
        self._flow = SimpleNamespace(in_flight=in_flight, awaits=in_flight > 0, wants=lambda _: 10, stale=dict, held_bytes=0)
        self._is_preparing = is_preparing
        self._ahead = None
        self._prepared_bytes = 0
        self._left = None
        self._budget = WorkerBudget(1 << 30, 1 << 20)
        self._sizes = RecordSizes()
        self._allowance = Allowance(Amount(10, 1 << 20))
        self._read_at = 0.0
        self.clock = self._clock = clock
        self.reads: list[float] = []
        self.turns = 0

    def _none_prepares(self, wait_seconds: float) -> bool:
        self.clock.now += wait_seconds if self._is_preparing else 0.0
        return not self._is_preparing

    def _take(self, wanted: int) -> None:
        self.reads.append(self.clock.now)
        self._read_at = self.clock.now
        self.clock.now += READ_SECONDS

    def _hear(self) -> None:
        if self._flow.in_flight:
            self.clock.now += role._ANSWER_SECONDS

    def _commit(self) -> None:
        pass

    def _look_around(self) -> None:
        pass

    def turn_until(self, end: float) -> None:
        while self.clock.now < end and self.turns < TURNS_MAX:
            self.turns += 1
            self._turn(take_in=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(("in_flight", "is_preparing"), [(0, False), (1, False), (0, True), (2, True)])
def test_what_comes_is_read_once_in_a_while(clock: Clock, in_flight: int, is_preparing: bool) -> None:
    """However quickly verdicts and commits come, two reads lie as far apart as records are gathered."""
    worker = Paced(clock, in_flight=in_flight, is_preparing=is_preparing)

    worker.turn_until(clock.now + 1.0)

    apart = [after - before for before, after in zip(worker.reads, worker.reads[1:], strict=False)]
    assert len(apart) > 30
    assert min(apart) >= role._GATHER_SECONDS - 1e-9


def test_the_loop_rests_while_nothing_is_on_its_way(clock: Clock) -> None:
    """It sleeps until it may read again: a turn for each read, and one behind it."""
    worker = Paced(clock)

    worker.turn_until(clock.now + 1.0)

    assert worker.turns <= 2 * len(worker.reads) + 1
    assert max(clock.slept) <= role._GATHER_SECONDS


@pytest.mark.parametrize(("in_flight", "is_preparing"), [(1, False), (0, True)])
def test_the_loop_is_awake_while_something_is_on_its_way(clock: Clock, in_flight: int, is_preparing: bool) -> None:
    """A verdict, a commit or a prepared batch is not slept over; those who wait for it wait for a moment each."""
    worker = Paced(clock, in_flight=in_flight, is_preparing=is_preparing)

    worker.turn_until(clock.now + 1.0)

    assert clock.slept == []


def test_the_first_record_after_a_pause_is_read_at_once(clock: Clock) -> None:
    worker = Paced(clock)
    worker.turn_until(clock.now + 0.1)
    clock.now += 5.0
    before = len(worker.reads)

    resumed = clock.now

    worker.turn_until(clock.now + READ_SECONDS / 2)

    assert worker.reads[before:] == [resumed]


def test_a_worker_that_is_to_end_gathers_nothing(clock: Clock) -> None:
    """What is left is drained without waiting for more."""
    worker = Paced(clock)
    worker._take(1)

    worker._turn(take_in=False)

    assert clock.slept == []
