"""More than can be judged, or nobody who judges: the group holds together, the log does not fill,
memory stays flat."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from tests.broker.harness import Filter, Outcome, synthetic, wait_until
from tests.broker.test_worker_rules import log_batches

pytestmark = [pytest.mark.broker, pytest.mark.thorough]


def described(crawl: Filter) -> ConsumerGroupDescription:
    """Return what the broker says of the group."""
    group = crawl.settings.group
    admin = AdminClient({"bootstrap.servers": crawl.bootstrap})  # must outlive its answers
    return admin.describe_consumer_groups([group])[group].result(20)


def members(crawl: Filter) -> set[str]:
    """Return the ids of the group's members."""
    return {one.member_id for one in described(crawl).members}


def shares(crawl: Filter) -> list[int]:
    """Return how many partitions each member has, once no rebalance is under way: one would drop
    what is in flight."""
    group = described(crawl)
    if group.state is not ConsumerGroupState.STABLE:
        return []
    return [len(one.assignment.topic_partitions) for one in group.members]


def test_an_index_that_is_away_changes_nothing(make_filter: Callable[..., Filter]) -> None:
    """Three minutes are longer than a session of 45 s; here the index is away for longer than a
    session of 12 s, and than the poll interval, in mid-stream: both workers stay the same members,
    nothing is appended meanwhile, nothing twice after."""
    session_ms, interval_ms = 12_000, 14_000
    crawl = make_filter(
        partitions=4,
        batch_documents=250,
        kafka_session_timeout_ms=session_ms,
        kafka_max_poll_interval_ms=interval_ms,
    )
    documents = synthetic(12_000, 15, partitions=4)
    index = crawl.start("index")
    workers = [crawl.start("worker"), crawl.start("worker")]
    for worker in workers:
        worker.says("partitions assigned")
    wait_until(lambda: shares(crawl) == [2, 2], "both workers have their partitions")
    crawl.produce(documents[:2000])
    crawl.wait_until_committed(2000)
    index.kill()
    before = members(crawl)
    crawl.produce(documents[2000:])
    filled = [0, 0.0]

    def is_full() -> bool:
        if (now := log_batches(crawl)) != filled[0]:
            filled[:] = [now, time.monotonic()]
        return time.monotonic() - filled[1] > 1.0

    wait_until(is_full, "the workers append nothing more")
    # Time itself is what is tested: a worker that stopped polling is thrown out after the interval.
    until = time.monotonic() + 1.2 * interval_ms / 1000
    wait_until(lambda: time.monotonic() > until, "the time has passed")

    assert members(crawl) == before
    assert log_batches(crawl) == filled[0]
    assert all("partitions lost" not in worker.log for worker in workers)

    crawl.start("index")
    crawl.wait_until_committed(len(documents))
    assert members(crawl) == before
    outcome = Outcome(crawl)
    outcome.check()
    judged = sum(len(batch) for batch in outcome.outline.batches.values())
    aborted = any(
        "a transaction did not commit" in worker.log for worker in workers
    )  # whose documents are read and asked again
    assert judged == len(documents) or aborted, "a document stands in the log twice"
    assert [worker.stop() for worker in workers] == [0, 0]
