"""The commands of docs/how-to/disaster.md recover lost data on a real Apache Kafka."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.admin import AdminClient

from tests.broker.harness import Filter, MakeFilter, synthetic
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]


def forget_group(crawl: Filter) -> None:
    """Lose the committed offsets, as Kafka does after seven idle days."""
    cluster = AdminClient({"bootstrap.servers": crawl.bootstrap})
    for future in cluster.delete_consumer_groups([crawl.settings.group]).values():
        future.result(20)


def test_rewind_restores_lost_offsets_from_the_outputs(make_filter: MakeFilter) -> None:
    """After a kill in mid-stream, `rewind --from-outputs` loses no document and repeats none."""
    crawl = make_filter(partitions=3, batch_documents=100)
    count = crawl.produce(synthetic(4000, 31, partitions=3))
    _, worker = crawl.start_both()
    wait_until(lambda: crawl.committed() >= count // 4, "a part is committed")
    worker.kill()
    wait_until(lambda: not crawl.admin.group_members(crawl.settings.group), "the session has ended")
    assert len(crawl.stable_committed()) == 3
    forget_group(crawl)

    planned = json.loads(crawl.command("rewind", "--from-outputs", "--dry-run", "--json").stdout)
    applied = json.loads(crawl.command("rewind", "--from-outputs", "--json").stdout)

    found = [(row["offset"], row["epoch"]) for row in planned]
    assert found == [(row["offset"], row["epoch"]) for row in applied]
    assert [row["warning"] for row in applied] == [None] * 3
    assert sum(row["offset"]["new"] for row in applied) >= count // 4
    next_worker = crawl.start("worker", STREAM_DEDUP_WORKER_ID="next")
    crawl.outcome()
    assert next_worker.stop() == 0
    assert json.loads(crawl.command("rewind", "--from-outputs", "--dry-run", "--json").stdout) == []
