"""A worker is told to stop at any moment: what it read it prepares in the order in which it was read, or not at all."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stream_dedup.ground.document import Message
from stream_dedup.ground.messages import Messages
from tests.worker.parts import AT_ONCE, Aside, VirtualClock, intake_of, roomy_flow


def records(first: int) -> Messages:
    """Return two records of one partition."""
    return Messages.of([Message("documents", 0, offset, None, b"value", None, []) for offset in (first, first + 1)])


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_what_is_read_as_the_stop_comes_does_not_overtake_what_waits(turns: int) -> None:
    reads, taken = [records(2 * number) for number in range(10)], list[Any]()
    clock, stop = VirtualClock(), threading.Event()
    aside = Aside(clock, is_stuck=True)
    intake = intake_of(lambda: reads.pop(0), aside, clock, roomy_flow(), pace=AT_ONCE, take_in=taken.append, stop=stop)
    for _ in range(turns):
        intake.turn(reads=True)  # the first is prepared, the others wait

    stop.set()
    aside.is_stuck = False
    intake.turn(reads=True)
    while intake.is_preparing:
        intake.turn(reads=False)

    offsets = [offset for batch in taken for offset in batch.messages.offsets.tolist()]
    assert offsets == list(range(len(offsets)))
    assert offsets[:2] == [0, 1]
