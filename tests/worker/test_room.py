"""How much a worker reads: as many records as its memory and its transactions have room for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream_dedup.ground.messages import Messages
from stream_dedup.worker import role
from stream_dedup.worker.allowance import Allowance, Amount
from stream_dedup.worker.budget import RecordSizes, WorkerBudget

MIB = 1 << 20
RECORD = 20_000


def of_records(count: int) -> Messages:
    """Return records of which each takes 20 kB."""
    values = [bytes(RECORD - 700)] * count
    return Messages(
        "documents", np.zeros(count, np.int32), np.arange(count), [None] * count, values, np.zeros(count, np.int64), {}, {}
    )


def reading(*, flight: int = 0, prepared: int | None = None, ahead: int = 0, allowed: Amount | None = None) -> Any:
    """Return a worker with so many bytes in flight and being prepared, and so many records read ahead."""
    sizes = RecordSizes()
    for _ in range(20):
        sizes.read(of_records(5))
    allowance = Allowance(Amount(8000, 10 * MIB)) if allowed is None else SimpleNamespace(now=allowed)
    return SimpleNamespace(
        _flow=SimpleNamespace(wants=lambda _: 8000, held_bytes=flight),
        _budget=WorkerBudget(1 << 30, 10 * MIB),
        _allowance=allowance,
        _sizes=sizes,
        _is_preparing=prepared is not None,
        _prepared_bytes=prepared or 7 * MIB,
        _left=None,
        _ahead=role._Read([of_records(ahead)], {}, b"") if ahead else None,
    )


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        pytest.param(reading(), 10 * MIB, id="nothing is under way"),
        pytest.param(reading(flight=50 * MIB), 10 * MIB, id="five batches are"),
        pytest.param(reading(flight=51 * MIB), 0, id="more than five are"),
        pytest.param(reading(flight=45 * MIB, prepared=6 * MIB), 0, id="one is being prepared"),
        pytest.param(reading(prepared=10 * MIB, ahead=300), 10 * MIB - 300 * RECORD, id="some are read ahead"),
        pytest.param(reading(prepared=10 * MIB, ahead=600), 0, id="a whole batch is read ahead"),
        pytest.param(reading(allowed=Amount(8000, MIB)), MIB, id="transactions are small"),
        pytest.param(reading(allowed=Amount(7, MIB)), 7 * RECORD, id="transactions are of few records"),
    ],
)
def test_a_read_brings_what_there_is_room_for(worker: Any, expected: int) -> None:
    wanted = role._Worker._wanted(worker)

    assert wanted * RECORD <= expected + 1000
    assert wanted * RECORD > expected - 1.1 * RECORD


def test_what_is_being_prepared_is_counted() -> None:
    """Until it is in flight."""
    started: list[Any] = []
    worker = SimpleNamespace(
        _preparing=SimpleNamespace(start=started.append),
        _is_preparing=False,
    )

    role._Worker._make(worker, role._Read([of_records(100)], {}, b""))

    assert (len(started), worker._is_preparing, worker._prepared_bytes) == (1, True, 100 * RECORD)
