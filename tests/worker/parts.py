"""Stand-ins for what a part of a worker depends on, for tests of one part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from stream_dedup.domain.failpoints import Failpoints
from stream_dedup.domain.messages import Messages
from stream_dedup.domain.threads import SideThread
from stream_dedup.worker.allowance import Allowance, Amount
from stream_dedup.worker.budget import WorkerBudget
from stream_dedup.worker.dependencies import IntakePace, WorkerContext
from stream_dedup.worker.intake import Intake

MIB = 1 << 20
AT_ONCE = IntakePace(gather_seconds=0.0)


class VirtualClock:
    """A clock that moves when somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class ThreadStub:
    """Replaces a thread: a started function ends at once, or once `is_stuck` is False."""

    def __init__(self, clock: VirtualClock, *, is_stuck: bool = False) -> None:
        self.clock = clock
        self.is_stuck = is_stuck
        self.started: list[Callable[[], Any]] = []
        self._waits: list[Callable[[], Any]] = []

    def start(self, function: Callable[[], Any]) -> None:
        self.started.append(function)
        self._waits.append(function)
        if not self.is_stuck:
            self.ended(0.0)

    def ended(self, seconds: float) -> bool:
        if self.is_stuck:
            self.clock.now += seconds
        elif self._waits:
            self._result = self._waits.pop()()
        return not self.is_stuck

    def take_result(self) -> Any:
        return self._result

    def call(self, function: Callable[[], Any], _seconds: float) -> None:
        function()


def roomy_flow(wants: int = 5000, in_flight: int = 0) -> Any:
    """Return a flow with room for `wants` records, and with `in_flight` batches."""
    return SimpleNamespace(
        in_flight=in_flight,
        records_wanted=lambda _: wants,
        held_bytes=0,
        has_room=True,
        source=lambda _: None,
    )


def make_context(
    flow: Any, clock: Any = time, stop: threading.Event | None = None
) -> WorkerContext:
    """Return a context with this flow, clock and stop; failpoints, metrics and log do nothing."""
    return WorkerContext(
        flow,
        stop or threading.Event(),
        lambda: None,
        mock.MagicMock(),
        Failpoints(None),
        clock,
        mock.Mock(),
    )


def intake_of(
    take: Callable[[], Messages],
    thread: ThreadStub | SideThread,
    clock: VirtualClock,
    flow: Any,
    allowance: Any = None,
    pace: IntakePace | None = None,
    prepare: Callable[..., Any] | None = None,
    take_in: Callable[[Any], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> Intake:
    """Return an intake that reads what `take` returns and passes its batches to `take_in`."""
    return Intake(
        make_context(flow, clock, stop),
        mock.Mock(
            seek_to_unread=lambda _: False, source=mock.Mock(take_messages=lambda *_: take())
        ),
        mock.Mock(
            prepare=prepare or (lambda messages, *_: SimpleNamespace(messages=messages, passed={}))
        ),
        thread,  # type: ignore[arg-type]
        WorkerBudget(1 << 30, 10 * MIB),
        allowance or Allowance(Amount(8000, 10 * MIB)),
        take_in,
        pace or IntakePace(),
        threading.Event(),
    )
