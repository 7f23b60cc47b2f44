"""More than can be judged, or nobody who judges: the group holds together, the log does not fill, memory stays flat."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from stream_dedup.ground.document import Message
from stream_dedup.settings.layers import load_settings
from tests.broker.harness import Filter, Outcome, Role, run_in_process, synthetic, wait_until
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
    """Return how many partitions each member has, once no rebalance is under way: one would drop what is in flight."""
    group = described(crawl)
    if group.state is not ConsumerGroupState.STABLE:
        return []
    return [len(one.assignment.topic_partitions) for one in group.members]


def resident_bytes(one: Role) -> int:
    """Return the memory that a role has now."""
    pages = int(Path(f"/proc/{one.process.pid}/statm").read_text().split()[1])
    return pages * 4096


def test_an_index_that_is_away_changes_nothing(make_filter: Callable[..., Filter]) -> None:
    """Three minutes are longer than a session of 45 s; here the index is away for longer than a session of 12 s, and than the
    poll interval, in mid-stream: both workers stay the same members, nothing is appended meanwhile, nothing twice after."""
    session_ms, interval_ms = 12_000, 14_000
    crawl = make_filter(
        partitions=4, batch_documents=250, kafka_session_timeout_ms=session_ms, kafka_max_poll_interval_ms=interval_ms
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


def test_twenty_restarts_beside_a_dead_index_append_twenty_batches(
    make_filter: Callable[..., Filter],
) -> None:
    """Twenty workers, one after another, each ended while it waits for an index: each leaves at most one record."""
    crawl = make_filter(partitions=2, kafka_session_timeout_ms=1000)
    count = crawl.produce(synthetic(4000, 16, partitions=2))
    appended = []
    for _ in range(20):
        stop = threading.Event()
        before = len(crawl.read(crawl.names.fingerprints))
        with ThreadPoolExecutor(1) as thread:
            settings = load_settings(environ=crawl.environment)
            # Nobody answers, so there is nothing to wait for at the end.
            running = thread.submit(run_in_process, "worker", settings, stop, drain_seconds=0.0)
            try:
                wait_until(lambda low=before: len(crawl.read(crawl.names.fingerprints)) > max(1, low), "it has asked")
            finally:
                stop.set()
            assert running.result() is None
        appended.append(log_batches(crawl))

    assert appended == sorted(appended)
    assert appended[-1] <= 20
    crawl.start("index")
    crawl.start("worker")
    crawl.wait_until_committed(count)
    Outcome(crawl).check()


def test_what_cannot_be_judged_in_time_waits_in_kafka(make_filter: Callable[..., Filter]) -> None:
    """150 MB of documents, far more than is in flight, lie before a worker whose index is away: its memory grows by what is in
    flight and fetched ahead, not by the backlog; told to stop in mid-stream, it drains within its grace period."""
    crawl = make_filter(partitions=4, batch_documents=500, batches_in_flight=2)
    text = ("words that are said again and again in every document of this backlog " * 220).encode()
    backlog = 10_000
    index = crawl.start("index")
    worker = crawl.start("worker")
    crawl.produce((part % 4, b"%d" % part, b"%d " % part + text, []) for part in range(500))
    crawl.wait_until_committed(500)
    index.kill()
    warm = resident_bytes(worker)
    crawl.produce((part % 4, b"%d" % part, b"%d " % part + text, []) for part in range(backlog))
    wait_until(lambda: log_batches(crawl) > 1, "the worker waits")
    peaks: list[int] = []
    until = time.monotonic() + 3

    def watched() -> bool:
        peaks.append(resident_bytes(worker))
        return time.monotonic() > until

    wait_until(watched, "the memory was watched")
    grown = max(peaks) - warm
    print(f"backlog {backlog * len(text) / 1e6:.0f} MB, memory {warm / 1e6:.0f} MB and {grown / 1e6:.0f} MB more")
    assert grown < backlog * len(text) / 2
    lag = sum(one.offset + 1 for one in last_of_each(crawl)) - crawl.committed()
    assert lag == backlog

    crawl.start("index")
    crawl.wait_until_committed(2000)
    assert worker.stop(40) == 0
    said = re.search(r"worker stopped.*dropped_in_flight=(\d+)", re.sub(r"\x1b\[[0-9;]*m", "", worker.log))
    assert said is not None
    assert said[1] == "0", "what was in flight was not finished"
    crawl.start("worker")
    crawl.wait_until_committed(500 + backlog)
    Outcome(crawl).check()


def last_of_each(crawl: Filter) -> list[Message]:
    found = {one.partition: one for one in crawl.read(crawl.names.documents)}
    return list(found.values())
