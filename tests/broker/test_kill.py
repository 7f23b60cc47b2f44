"""Roles and the broker are killed in mid-stream: no record is lost or doubled."""

from __future__ import annotations

import itertools
import re
import signal
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from stream_dedup.domain.failpoints import STEPS
from stream_dedup.index.snapshot import REQUEST_FILE
from tests.broker.harness import (
    Filter,
    MakeFilter,
    Outcome,
    Role,
    run_broker_and_filter,
    synthetic,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

DOCUMENTS_MAX = 150_000
BATCH_DOCUMENTS = 15_000
# An index takes 16 records at a time: with three times as many there is something left to rebuild
# after the first.
REBUILT_RECORDS = 48
FAILPOINT = "STREAM_DEDUP_FAILPOINT"

# Every step of both roles, each killed once; the number says at which visit. Two workers halve the
# time, and each sees the other's partitions come and go.
PLANS = {
    "worker one": [
        "worker.append-acked:3",
        "worker.consumed:4",
        "worker.verdict-in:3",
        "worker.appended:4",
        "worker.flushed:2",
    ],
    "worker two": [
        "worker.offsets:2",
        "worker.before-commit:2",
        "worker.begin:2",
        "worker.outputs:2",
        "worker.after-commit:2",
    ],
    "index": [
        "index.after-write:3",
        "index.in-flush:1",
        "index.after-answer:3",
        "index.in-checkpoint:1",
        "index.before-write:3",
        "index.in-rebuild:1",
    ],
}


def log_end(crawl: Filter) -> int:
    """Return how many records the log has."""
    return int(
        crawl._uncommitted().get_watermark_offsets(
            TopicPartition(crawl.names.fingerprints, 0), timeout=20
        )[1]
    )


def was_killed_in_mid_stream(role: Role, plan: str) -> bool:
    """Return whether it killed itself at the planned step with two batches in flight."""
    reached = re.search(r"failpoint (\S+) reached with (\d+) batches in flight", role.log)
    return (
        role.process.returncode == -signal.SIGKILL
        and reached is not None
        and reached.group(1) == plan.partition(":")[0]
        and int(reached.group(2)) >= 2
    )


def test_the_plans_name_every_step() -> None:
    """The plans contain each step of the product."""
    found = sorted(plan.partition(":")[0] for plans in PLANS.values() for plan in plans)
    assert found == sorted(STEPS)


def test_kill_9_at_every_step_of_each_role(make_filter: MakeFilter) -> None:
    """Documents in one run, workers killed at each of their ten steps and the index at each of its
    six, always with two batches in flight: nothing lost, nothing twice, every verdict the log's.

    Documents are sent until each kill has happened: a fixed number was too small on some machines.
    """
    crawl = make_filter(partitions=4, batch_documents=250, kafka_session_timeout_ms=1500)
    documents = iter(synthetic(DOCUMENTS_MAX, 5, partitions=4))
    count = crawl.produce(itertools.islice(documents, 2 * BATCH_DOCUMENTS))
    remaining = {name: list(plans) for name, plans in PLANS.items()}
    volume = crawl.folder / "replica-0" / "index"
    running: dict[str, tuple[Role, str]] = {}

    def is_log_short() -> bool:
        return remaining["index"] == ["index.in-rebuild:1"] and log_end(crawl) < REBUILT_RECORDS

    def start(name: str) -> None:
        nonlocal volume
        is_deferred = name == "index" and is_log_short()
        plan = remaining[name].pop(0) if remaining[name] and not is_deferred else ""
        if plan.startswith("index.in-rebuild"):
            volume = crawl.folder / "replica-1" / "index"  # this one begins at the log's beginning
        environment = {FAILPOINT: plan} if plan else {}
        if name == "index":
            environment["STREAM_DEDUP_STATE_DIR"] = str(volume.parent)
        if "in-flush" in plan or "in-checkpoint" in plan:
            environment["STREAM_DEDUP_SNAPSHOTS"] = str(crawl.folder / "snapshots")
        running[name] = (crawl.start(name.partition(" ")[0], **environment), plan)

    for name in PLANS:
        start(name)

    def unfired() -> list[str]:
        return [plan for plans in remaining.values() for plan in plans] + [
            plan for _, plan in running.values() if plan
        ]

    def is_all_committed() -> bool:
        nonlocal count
        for name, (role, plan) in list(running.items()):
            if role.process.poll() is not None:
                assert was_killed_in_mid_stream(role, plan), f"{plan}: {role.log[-3000:]}"
                start(name)
        if remaining["index"] and not running["index"][1] and not is_log_short():
            running["index"][0].kill()
            start("index")
        if "in-flush" in running["index"][1] or "in-checkpoint" in running["index"][1]:
            (volume / REQUEST_FILE).touch()
        committed = crawl.committed()
        if unfired() and committed > count - 2 * BATCH_DOCUMENTS:
            count += crawl.produce(itertools.islice(documents, BATCH_DOCUMENTS))
        return committed >= count

    wait_until(is_all_committed, "every record is committed", 240)

    assert unfired() == [], "these failpoints did not fire"
    print(f"{count} documents")
    Outcome(crawl).check()


def test_a_broker_killed_in_mid_stream(tmp_path: Path) -> None:
    """No role ends, and no record is lost or doubled."""
    with run_broker_and_filter(tmp_path, partitions=4, batch_documents=500) as (broker, crawl):
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
