"""How much a worker reads: as many records as its memory and its transactions have room for."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from stream_dedup.ground.messages import Messages
from stream_dedup.worker.allowance import Amount
from stream_dedup.worker.intake import Intake
from tests.worker.parts import AT_ONCE, MIB, Aside, VirtualClock, intake_of, roomy_flow

RECORD = 20_000


def of_records(count: int) -> Messages:
    """Return records of which each takes 20 kB."""
    values = [bytes(RECORD - 700)] * count
    return Messages(
        "documents", np.zeros(count, np.int32), np.arange(count), [None] * count, values, np.zeros(count, np.int64), {}, {}
    )


def reading(*, flight: int = 0, prepared: int = 0, ahead: int = 0, allowed: Amount | None = None) -> Intake:
    """Return an intake that prepares so many records and has read so many ahead, beside so many bytes in flight.

    Before that it has read some, so that it knows how large they are.
    """
    flow = roomy_flow(8000)
    reads = [of_records(5)] * 20
    clock = VirtualClock()
    aside = Aside(clock, is_stuck=False)
    allowance = None if allowed is None else SimpleNamespace(now=allowed)
    intake = intake_of(lambda: reads.pop(0), aside, clock, flow, allowance, AT_ONCE)
    while reads:
        intake.turn(reads=True)
    aside.is_stuck = True
    for count in filter(None, (prepared, ahead)):
        reads.append(of_records(count))
        intake.turn(reads=True)
    assert not reads
    flow.held_bytes = flight
    return intake


@pytest.mark.parametrize(
    ("intake", "expected"),
    [
        pytest.param(reading(), 10 * MIB, id="nothing is under way"),
        pytest.param(reading(flight=50 * MIB), 10 * MIB, id="five batches are"),
        pytest.param(reading(flight=51 * MIB), 0, id="more than five are"),
        pytest.param(reading(flight=45 * MIB, prepared=315), 0, id="one is being prepared"),
        pytest.param(reading(prepared=524, ahead=300), 10 * MIB - 300 * RECORD, id="some are read ahead"),
        pytest.param(reading(prepared=524, ahead=600), 0, id="a whole batch is read ahead"),
        pytest.param(reading(allowed=Amount(8000, MIB)), MIB, id="transactions are small"),
        pytest.param(reading(allowed=Amount(7, MIB)), 7 * RECORD, id="transactions are of few records"),
    ],
)
def test_a_read_brings_what_there_is_room_for(intake: Intake, expected: int) -> None:
    wanted = intake.wanted()

    assert wanted * RECORD <= expected + 1000
    assert wanted * RECORD > expected - 1.1 * RECORD


def test_what_is_being_prepared_is_counted() -> None:
    """Until it is in flight."""
    flow = roomy_flow(8000)
    clock = VirtualClock()
    aside = Aside(clock, is_stuck=True)
    intake = intake_of(lambda: of_records(100), aside, clock, flow)

    intake.turn(reads=True)

    assert (len(aside.started), intake.is_preparing, intake.prepared_bytes) == (1, True, 100 * RECORD)
    aside.is_stuck = False
    intake.turn(reads=False)
    assert (intake.is_preparing, intake.prepared_bytes) == (False, 0)
