"""How much a transaction may carry: it shrinks until it is written in time, and grows again."""

from __future__ import annotations

import random

import pytest

from stream_dedup.worker.allowance import SLOW_SECONDS, Allowance, Amount

MOST = Amount(8000, 30_000_000)
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
    allowance = Allowance(MOST)
    _, _, timed_out = run(allowance, rate, record_bytes, 150)
    assert timed_out <= 5

    took, written, timed_out = run(allowance, rate, record_bytes, 300)

    assert timed_out == 0
    assert written / took > 0.6 * rate


def test_transactions_grow_again() -> None:
    """A broker that is quick again is soon given all that one transaction may carry; and only
    then."""
    allowance = Allowance(MOST)
    run(allowance, 100_000, 12_000, 200)
    assert allowance.current.bytes < MOST.bytes / 20

    run(allowance, 1e9, 12_000, 1.0)

    assert allowance.current == MOST


def test_a_small_transaction_that_is_slow_says_nothing_of_size() -> None:
    allowance = Allowance(MOST)

    allowance.adapt_after_commit(Amount(10, 10_000), 4 * SLOW_SECONDS)

    assert allowance.current == MOST


def test_what_each_transaction_costs_by_itself_does_not_keep_them_small() -> None:
    """With 0.7 s for a commit, whatever it carries, seven documents become all that is allowed
    within some ten transactions."""
    allowance = Allowance(MOST)
    while allowance.current.documents > 7:
        allowance.shrink_after_timeout(allowance.current)

    for _ in range(12):
        allowance.adapt_after_commit(allowance.current, 0.7)

    assert allowance.current == MOST


def test_several_large_ones_that_were_under_way_count_once() -> None:
    allowance = Allowance(MOST)

    for _ in range(4):
        allowance.adapt_after_commit(MOST, 2 * SLOW_SECONDS)

    assert allowance.current == Amount(4000, 15_000_000)


def test_it_always_allows_a_record_and_never_more_than_the_most() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(200):
        most = Amount(dice.randint(1, 10_000), dice.randint(1, 1 << 26))
        allowance = Allowance(most)
        for _ in range(50):
            carried = Amount(dice.randint(1, 20_000), dice.randint(1, 1 << 27))
            if dice.random() < 0.5:
                allowance.adapt_after_commit(carried, dice.uniform(0, 30))
            else:
                allowance.shrink_after_timeout(carried)
            assert 1 <= allowance.current.documents <= most.documents
            assert 1 <= allowance.current.bytes <= most.bytes
