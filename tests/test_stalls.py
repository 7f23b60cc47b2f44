"""The table of stalls: a stall belongs to the fault that began before it, and to no later one."""

from __future__ import annotations

from tests.broker.stalls import Stalls


def test_a_stall_belongs_to_the_fault_before_it() -> None:
    now, committed, sent = [0.0], [0], [100]
    stalls = Stalls(lambda: committed[0], lambda: sent[0], lambda: now[0])

    def passes(seconds: float, documents: int) -> None:
        now[0] += seconds
        committed[0] += documents
        stalls.look()

    passes(1, 10)
    stalls.strikes("kill worker")
    passes(1, 10)
    passes(5, 0)
    committed[0] = 0  # the coordinator is away, so that nobody knows
    stalls.strikes("nothing")
    stalls.look()
    committed[0] = 20
    passes(6, 0)
    passes(1, 80)
    passes(60, 0)  # there is nothing to do
    sent[0] = 200
    passes(2, 0)

    assert stalls.table() == {"kill worker": (1, 11.0, 11.0), "nothing": (1, 2.0, 2.0), "the start": (1, 0.0, 0.0)}

    passes(1, 100)
    sent[0] = 300
    passes(0.5, 0)
    stalls.strikes("broker away")
    passes(70, 0)
    stalls.strikes("broker away, once it is back", anew=True)
    passes(12, 0)

    assert stalls.table()["broker away"].longest == 70.5
    assert stalls.table()["broker away, once it is back"].longest == 12.0

    passes(1, 100)
    sent[0] = 400
    stalls.strikes("kill worker")
    passes(3, 0)
    passes(1, 50)
    stalls.strikes("kill worker")
    passes(1, 50)

    assert stalls.table()["kill worker"] == (3, 3.0, 11.0)
