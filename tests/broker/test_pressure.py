"""A worker under pressure, of large documents and of slow outputs: it keeps within its memory, and goes on."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from stream_dedup.document import Headers
from tests.broker.harness import Filter, Outcome, Role, wait_until
from tests.broker.quotas import producer_quota
from tests.broker.test_overload import resident_bytes

pytestmark = pytest.mark.broker

MEMORY_BYTES = 500 << 20
BACKLOG_BYTES = 250_000_000
QUOTA_BYTES = 250_000


def documents_of(size: int, total: int, seed: int) -> Iterator[tuple[int, bytes, bytes, Headers]]:
    """Yield documents of some bytes each, which take half of that compressed, all different."""
    generator = random.Random(seed)
    words = [bytes(generator.choices(b"abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9))) for _ in range(20_000)]
    pool = b" ".join(generator.choices(words, k=max(50_000, size // 3)))
    for number in range(total // size):
        start = generator.randrange(len(pool) - size + 1)
        yield number % 4, b"https://site.example/%d" % number, (b"%d " % number + pool[start : start + size])[:size], []


@contextmanager
def peak_of(worker: Role) -> Iterator[list[int]]:
    """Watch the most memory that a worker takes: the one number in the list."""
    peak = [0]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.01) and worker.process.poll() is None:
            peak[0] = max(peak[0], resident_bytes(worker))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield peak
    finally:
        is_over.set()
        watching.join()


@pytest.mark.parametrize("size", [100, 12_000, 58_000, 1_000_000])
def test_a_backlog_is_carried_within_the_memory_limit(make_filter: Callable[..., Filter], size: int) -> None:
    """Whatever the size of its documents, a worker takes no more memory than it was given."""
    crawl = make_filter(partitions=4, documents_bytes_max=2_000_000, worker_memory=MEMORY_BYTES)
    count = crawl.produce(documents_of(size, min(BACKLOG_BYTES, 300_000 * size), 1), **{"compression.type": "lz4"})
    crawl.start("index")
    worker = crawl.start("worker")

    with peak_of(worker) as peak:
        crawl.wait_until_committed(count)

    print(f"{size} bytes a document: {peak[0] >> 20} MiB at most")
    assert peak[0] < MEMORY_BYTES
    assert worker.stop() == 0


def test_slow_outputs_are_carried_in_smaller_transactions_within_the_memory_limit(make_filter: Callable[..., Filter]) -> None:
    """Under a quota of 250 kB/s no transaction ends in time that fills what memory allows; smaller ones do."""
    crawl = make_filter(partitions=4, worker_memory=MEMORY_BYTES)
    count = crawl.produce(documents_of(12_000, 120_000_000, 2), **{"compression.type": "lz4"})
    crawl.start("index")
    with producer_quota(crawl.bootstrap, f"{crawl.settings.group}-slow-outputs", QUOTA_BYTES):
        worker = crawl.start("worker", STREAM_DEDUP_WORKER_ID="slow")
        with peak_of(worker) as peak:
            worker.says("partitions assigned")
            began = time.monotonic()
            moved = []

            def has_moved_often() -> bool:
                now = crawl.committed()
                if not moved or now > moved[-1]:
                    moved.append(now)
                return len(moved) > 4

            wait_until(has_moved_often, "transactions fit what the quota lets through", 150)
            print(f"committed {moved} within {time.monotonic() - began:.0f} s; {peak[0] >> 20} MiB at most")
            assert peak[0] < MEMORY_BYTES
    crawl.wait_until_committed(count)
    Outcome(crawl, by_plain_scan=False).check()
    assert worker.stop() == 0
