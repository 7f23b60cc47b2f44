"""A worker with a backlog of documents of any size keeps within its memory limit."""

from __future__ import annotations

import pytest

from tests.broker.harness import MakeFilter, large_documents, peak_bytes

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

MEMORY_BYTES = 400 << 20
# Compressed, so that a fetched batch is larger in memory than on the network.
AS_CRAWLERS_SEND = {"compression.type": "lz4"}


@pytest.mark.parametrize(
    ("size", "count"), [(100, 300_000), (12_000, 20_000), (58_000, 4_000), (1_000_000, 250)]
)
def test_a_backlog_is_processed_within_the_memory_limit(
    make_filter: MakeFilter, size: int, count: int
) -> None:
    """With documents of any size, a worker uses no more memory than its limit."""
    crawl = make_filter(partitions=4, documents_bytes_max=2_000_000, memory=MEMORY_BYTES)
    crawl.produce(large_documents(count, size, 1, partitions=4), **AS_CRAWLERS_SEND)
    crawl.start("index")
    worker = crawl.start("worker")

    crawl.wait_until_committed(count)

    print(f"{size} bytes a document: {peak_bytes(worker) >> 20} MiB at most")
    assert 0 < peak_bytes(worker) < MEMORY_BYTES
    assert worker.stop() == 0
