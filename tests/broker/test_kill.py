"""The power is pulled in mid-stream: nothing lost, nothing twice, and every verdict is still the log's."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_dedup.broker import LocalBroker
from tests.broker.harness import Filter, Outcome, Role, synthetic, wait_until

pytestmark = pytest.mark.broker

DOCUMENTS = 50_000
FAILPOINT = "STREAM_DEDUP_FAILPOINT"


# Each role's failpoints, one after another: step, and how often it is reached before it kills.
PLANS = {
    "worker": ["worker.append-acked:6", "worker.offsets:5", "worker.before-commit:6", "worker.verdict-in:9"],
    "index": ["index.after-write:4", "index.after-answer:3", "index.before-write:5"],
}


def was_killed_in_mid_stream(role: Role) -> bool:
    """Whether the role killed itself at the step asked for, with at least two batches in flight."""
    said = re.search(r"failpoint \S+ reached with (\d+) batches in flight", role.log)
    return role.process.returncode == -signal.SIGKILL and said is not None and int(said.group(1)) >= 2


def test_kill_9_of_each_role_in_mid_stream(make_filter: Callable[..., Filter]) -> None:
    """50,000 documents, the worker killed four times and the index three times on the way, at different steps."""
    crawl = make_filter(partitions=4, batch_documents=1000)
    count = crawl.produce(synthetic(DOCUMENTS, 5, partitions=4))
    plans = {name: [{FAILPOINT: plan} for plan in plan_list] + [{}] for name, plan_list in PLANS.items()}
    running = {name: crawl.start(name, **plans[name].pop(0)) for name in ("index", "worker")}

    def all_committed() -> bool:
        for name, role in running.items():
            if role.process.poll() is not None:
                assert was_killed_in_mid_stream(role), role.log[-3000:]
                running[name] = crawl.start(name, **plans[name].pop(0))
        return crawl.committed() >= count

    wait_until(all_committed, f"{count} records are committed", 200)

    assert plans == {"worker": [], "index": []}, "a failpoint was not reached"
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


def test_a_broker_killed_in_mid_stream(tmp_path: Path) -> None:
    """The broker is killed while batches are in flight and comes back: nobody ends, nothing is lost or doubled."""
    with LocalBroker(tmp_path / "kafka") as broker:
        crawl = Filter(broker.bootstrap, tmp_path, partitions=4, batch_documents=500)
        crawl.create_topics()
        try:
            documents = synthetic(8000, 10, partitions=4)
            index, worker = crawl.start("index"), crawl.start("worker")
            crawl.produce(documents[:4000])
            crawl.wait_until_committed(4000)
            crawl.produce(documents[4000:])
            broker.kill()
            broker.start()
            crawl.wait_until_committed(8000)
            assert (index.process.poll(), worker.process.poll()) == (None, None)

            Outcome(crawl).check()
        finally:
            crawl.stop()
