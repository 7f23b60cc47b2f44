"""A worker under pressure, of large documents and of slow outputs: it keeps within its memory, and
goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.broker.harness import Filter, Outcome, large_documents, peak_bytes, wait_until
from tests.broker.quotas import producer_quota

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

MEMORY_BYTES = 400 << 20
QUOTA_BYTES = 250_000
# Compressed, so that what a fetch brings is larger than what it weighs.
AS_CRAWLERS_SEND = {"compression.type": "lz4"}


@pytest.mark.parametrize(
    ("size", "count"), [(100, 300_000), (12_000, 20_000), (58_000, 4_000), (1_000_000, 250)]
)
def test_a_backlog_is_carried_within_the_memory_limit(
    make_filter: Callable[..., Filter], size: int, count: int
) -> None:
    """Whatever the size of its documents, a worker takes no more memory than it was given."""
    crawl = make_filter(partitions=4, documents_bytes_max=2_000_000, memory=MEMORY_BYTES)
    crawl.produce(large_documents(count, size, 1, partitions=4), **AS_CRAWLERS_SEND)
    crawl.start("index")
    worker = crawl.start("worker")

    crawl.wait_until_committed(count)

    print(f"{size} bytes a document: {peak_bytes(worker) >> 20} MiB at most")
    assert 0 < peak_bytes(worker) < MEMORY_BYTES
    assert worker.stop() == 0


def test_slow_outputs_are_carried_in_smaller_transactions_within_the_memory_limit(
    make_filter: Callable[..., Filter],
) -> None:
    """Under a quota of 250 kB/s no transaction ends in time that fills what memory allows; smaller
    ones do."""
    crawl = make_filter(partitions=4, memory=MEMORY_BYTES)
    count = crawl.produce(large_documents(10_000, 12_000, 2, partitions=4), **AS_CRAWLERS_SEND)
    crawl.start("index")
    with producer_quota(crawl.bootstrap, f"{crawl.settings.group}-slow-outputs", QUOTA_BYTES):
        worker = crawl.start("worker", STREAM_DEDUP_WORKER_ID="slow")
        worker.says("partitions assigned")
        began = time.monotonic()
        moved = []

        def has_moved_often() -> bool:
            now = crawl.committed()
            if not moved or now > moved[-1]:
                moved.append(now)
            return len(moved) > 4

        wait_until(has_moved_often, "transactions fit what the quota lets through", 150)
        print(f"committed {moved} within {time.monotonic() - began:.0f} s")
    crawl.wait_until_committed(count)
    print(f"{peak_bytes(worker) >> 20} MiB at most")
    assert 0 < peak_bytes(worker) < MEMORY_BYTES
    Outcome(crawl).check()
    assert worker.stop() == 0
