"""What a killed broker costs a role that goes on: no client stays behind."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.broker.harness import own_filter, synthetic, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1800)]

KILLS = 10
LOT = 100
SPARE = ((2, 2), (24, 14))
"""Descriptors and threads more, of the index and of the worker. A worker's transactions take turns
on two producers; the one that a kill replaced may have its last step still."""


def test_ten_kills_leave_no_client_behind(tmp_path: Path) -> None:
    """File descriptors and threads of an index come back to where they were, and those of a worker do
    not grow from kill to kill."""
    documents = synthetic((KILLS + 1) * LOT, 41, partitions=1)
    with own_filter(tmp_path, partitions=1) as (broker, crawl):
        roles = crawl.start_both()
        processes = [psutil.Process(role.process.pid) for role in roles]
        sent = 0

        def flow(lot: int) -> None:
            nonlocal sent
            sent += crawl.produce(documents[lot * LOT : (lot + 1) * LOT])
            crawl.wait_until_committed(sent, 180)

        def used() -> list[tuple[int, int]]:
            return [(process.num_fds(), process.num_threads()) for process in processes]

        flow(0)
        before = used()
        counts = [before]
        for kill in range(1, KILLS + 1):
            broker.kill()
            broker.start()
            flow(kill)
            counts.append(used())
            print(f"descriptors and threads of index and worker: {counts[-1]}", flush=True)

        def is_back() -> bool:
            return all(
                now <= then + more
                for found, first, spare in zip(used(), before, SPARE, strict=True)
                for now, then, more in zip(found, first, spare, strict=True)
            )

        wait_until(is_back, f"what was used before the kills, not {counts}", 120)
