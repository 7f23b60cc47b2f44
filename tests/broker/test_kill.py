"""The power is pulled in mid-stream: nothing lost, nothing twice, and every verdict is still the log's."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest

from tests.broker.harness import Filter, Outcome, Role, synthetic

pytestmark = pytest.mark.broker

DOCUMENTS = 50_000
FAILPOINT = "STREAM_DEDUP_FAILPOINT"


def wait_for_the_kill(role: Role) -> None:
    """The role killed itself at the step asked for, with at least two batches in flight."""
    assert role.wait() == -signal.SIGKILL, role.log[-3000:]
    said = re.search(r"failpoint \S+ reached with (\d+) batches in flight", role.log)
    assert said is not None, role.log[-3000:]
    assert int(said.group(1)) >= 2


def test_kill_9_of_each_role_in_mid_stream(make_filter: Callable[..., Filter]) -> None:
    """50,000 documents, the worker killed three times and the index three times on the way, the last of both at once."""
    crawl = make_filter(partitions=4, batch_documents=1000)
    count = crawl.produce(synthetic(DOCUMENTS, 5, partitions=4))
    index = crawl.start("index", **{FAILPOINT: "index.after-write:4"})
    worker = crawl.start("worker", **{FAILPOINT: "worker.append-acked:6"})
    wait_for_the_kill(worker)
    worker = crawl.start("worker", **{FAILPOINT: "worker.offsets:5"})
    wait_for_the_kill(index)
    index = crawl.start("index", **{FAILPOINT: "index.after-answer:3"})
    wait_for_the_kill(worker)
    worker = crawl.start("worker", **{FAILPOINT: "worker.before-commit:6"})
    wait_for_the_kill(index)
    index = crawl.start("index")
    wait_for_the_kill(worker)
    index.kill()
    crawl.start("index")
    crawl.start("worker")
    crawl.wait_until_committed(count)

    Outcome(crawl).check()


def test_restart_in_mid_stream(make_filter: Callable[..., Filter]) -> None:
    """SIGTERM ends both roles cleanly in mid-stream, and the next ones go on where they stood."""
    crawl = make_filter(partitions=4, batch_documents=500)
    count = crawl.produce(synthetic(20_000, 6, partitions=4))
    index = crawl.start("index")
    worker = crawl.start("worker")
    crawl.wait_until_committed(2000)
    assert worker.stop() == 0
    assert index.stop() == 0
    assert crawl.committed() < count, "the roles were too quick to be stopped in mid-stream"
    crawl.start("index")
    crawl.start("worker")
    crawl.wait_until_committed(count)

    Outcome(crawl).check()


def test_a_lost_volume_is_rebuilt_from_the_log(make_filter: Callable[..., Filter]) -> None:
    """An index whose volume is gone reads the log again and gives later documents the verdicts that it would have given."""
    crawl = make_filter(partitions=2)
    documents = synthetic(6000, 7, partitions=2)
    first = crawl.produce(documents[:3000])
    index = crawl.start("index", STREAM_DEDUP_INDEX_DIR=str(crawl.folder / "volume-1"))
    crawl.start("worker")
    crawl.wait_until_committed(first)
    index.kill()
    second = crawl.produce(documents[3000:])
    crawl.start("index", STREAM_DEDUP_INDEX_DIR=str(crawl.folder / "volume-2"))
    crawl.wait_until_committed(first + second)

    Outcome(crawl).check()


def test_two_replicas_answer_alike_and_either_may_die(make_filter: Callable[..., Filter]) -> None:
    """Two index replicas with volumes of their own: the worker takes the first answer, and goes on when one is killed."""
    crawl = make_filter(partitions=2, batch_documents=500)
    one = crawl.start("index", STREAM_DEDUP_INDEX_DIR=str(crawl.folder / "volume-1"))
    crawl.start("index", STREAM_DEDUP_INDEX_DIR=str(crawl.folder / "volume-2"))
    worker = crawl.start("worker")
    count = crawl.produce(synthetic(10_000, 8, partitions=2))
    crawl.wait_until_committed(2000)
    one.kill()
    crawl.wait_until_committed(count)

    Outcome(crawl).check()
    assert worker.stop() == 0


def test_a_worker_redelivers_to_another(make_filter: Callable[..., Filter]) -> None:
    """A second worker joins in mid-stream and the first is killed: partitions move twice, records leave once."""
    crawl = make_filter(partitions=4, batch_documents=500)
    count = crawl.produce(synthetic(20_000, 9, partitions=4))
    crawl.start("index")
    first = crawl.start("worker")
    crawl.wait_until_committed(1000)
    second = crawl.start("worker")
    second.says("partitions assigned")
    crawl.wait_until_committed(6000)
    first.kill()
    crawl.wait_until_committed(count)

    Outcome(crawl).check()
