"""How much a transaction may carry: it shrinks until it is written in time, and grows again."""

from __future__ import annotations

import random

import pytest

from stream_dedup.worker.allowance import SLOW_SECONDS, Allowance, Amount

MAXIMUM = Amount(8000, 30_000_000)
MESSAGE_SECONDS = 20.0


def run(
    allowance: Allowance, rate: float, record_bytes: int, seconds: float
) -> tuple[float, int, int]:
    """Write a backlog at `rate` bytes a second; return the time, the bytes committed and how many
    timed out."""
    now, written, timed_out = 0.0, 0, 0
    while now < seconds:
        documents = max(
            1, min(allowance.current.documents, allowance.current.bytes // record_bytes)
        )
        carried = Amount(documents, documents * record_bytes)
        took = 0.02 + carried.bytes / rate
        is_committed = took < MESSAGE_SECONDS
        if is_committed:
            allowance.adapt_after_commit(carried, took)
        else:
            allowance.shrink_after_timeout(carried)
        now += min(took, MESSAGE_SECONDS)
        written += carried.bytes if is_committed else 0
        timed_out += not is_committed
    return now, written, timed_out


@pytest.mark.parametrize("rate", [30_000, 250_000, 1_000_000, 10_000_000])
@pytest.mark.parametrize("record_bytes", [1000, 12_000, 100_000])
def test_transactions_shrink_until_they_are_written_in_time(rate: int, record_bytes: int) -> None:
    """After some time-outs nothing times out any more, and most of what the broker takes is
    used."""
    allowance = Allowance(MAXIMUM)
    _, _, timed_out = run(allowance, rate, record_bytes, 150)
    assert timed_out <= 5

    took, written, timed_out = run(allowance, rate, record_bytes, 300)

    assert timed_out == 0
    assert written / took > 0.6 * rate


def test_transactions_grow_again() -> None:
    """Transactions reach their maximum size soon after the broker is quick again, and only then."""
    allowance = Allowance(MAXIMUM)
    run(allowance, 100_000, 12_000, 200)
    assert allowance.current.bytes < MAXIMUM.bytes / 20

    run(allowance, 1e9, 12_000, 1.0)

    assert allowance.current == MAXIMUM


def test_a_slow_small_transaction_does_not_shrink_the_allowance() -> None:
    allowance = Allowance(MAXIMUM)

    allowance.adapt_after_commit(Amount(10, 10_000), 4 * SLOW_SECONDS)

    assert allowance.current == MAXIMUM


def test_a_fixed_cost_of_each_transaction_does_not_keep_them_small() -> None:
    """With 0.7 s for each commit, the allowance grows from seven documents to the maximum within
    some ten transactions."""
    allowance = Allowance(MAXIMUM)
    while allowance.current.documents > 7:
        allowance.shrink_after_timeout(allowance.current)

    for _ in range(12):
        allowance.adapt_after_commit(allowance.current, 0.7)

    assert allowance.current == MAXIMUM


def test_several_slow_transactions_in_flight_count_once() -> None:
    allowance = Allowance(MAXIMUM)

    for _ in range(4):
        allowance.adapt_after_commit(MAXIMUM, 2 * SLOW_SECONDS)

    assert allowance.current == Amount(4000, 15_000_000)


def test_the_allowance_stays_between_one_record_and_the_maximum() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(200):
        maximum = Amount(dice.randint(1, 10_000), dice.randint(1, 1 << 26))
        allowance = Allowance(maximum)
        for _ in range(50):
            carried = Amount(dice.randint(1, 20_000), dice.randint(1, 1 << 27))
            if dice.random() < 0.5:
                allowance.adapt_after_commit(carried, dice.uniform(0, 30))
            else:
                allowance.shrink_after_timeout(carried)
            assert 1 <= allowance.current.documents <= maximum.documents
            assert 1 <= allowance.current.bytes <= maximum.bytes
