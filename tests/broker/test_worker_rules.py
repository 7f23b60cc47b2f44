"""The worker's rules on a real broker: waiting, refusing, and what it does when offsets or
partitions are missing."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from stream_dedup.domain.document import TopicPartitionKey
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.kafka import CommittedOffset, SourceConsumer
from stream_dedup.log import records
from stream_dedup.settings.layers import load_settings
from tests.broker.harness import Filter, MakeFilter, run_in_process, synthetic
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]


def count_log_batches(crawl: Filter) -> int:
    """Return how many batches of documents the log contains."""
    return sum(
        isinstance(records.decode(message.value), records.Batch)
        for message in crawl.read(crawl.names.fingerprints)
    )


def test_workers_with_other_input_settings_are_refused(
    make_filter: MakeFilter,
) -> None:
    """`declare --reading` lets the second worker in, and keeps the old ones out."""
    crawl = make_filter(partitions=1, value_format="json", id_field="url")
    _, first = crawl.start_both()
    first.wait_for_log("partitions assigned")
    raw = {"STREAM_DEDUP_VALUE_FORMAT": "raw", "STREAM_DEDUP_ID_FIELD": ""}

    refused = crawl.start("worker", **raw)
    assert refused.wait() == 78
    assert "read with STREAM_DEDUP_VALUE_FORMAT=json" in refused.log
    assert first.process.poll() is None

    output = crawl.command("declare", "--reading", "--json", **raw).stdout
    assert json.loads(output)["reading"]["becomes"].startswith("STREAM_DEDUP_VALUE_FORMAT=raw")
    assert first.stop() == 0
    late = crawl.start("worker")
    assert late.wait() == 78
    for ended in (refused, late):
        crawl.roles.remove(ended)
    crawl.start("worker", **raw)
    crawl.wait_until_committed(crawl.produce(synthetic(20, 9, partitions=1)))


def test_an_index_of_another_log_is_refused_with_its_remedies(
    make_filter: MakeFilter, tmp_path: Path
) -> None:
    """The sentence has two remedies, and the worker logs where its state is."""
    crawl = make_filter(partitions=1)
    old = tmp_path / "old state" / "index"
    index = LogIndex(RocksStore(old))
    index.bind("another cluster/its log")
    index.flush()
    index.close()

    refused = crawl.start("index", STREAM_DEDUP_STATE_DIR=str(old.parent))
    assert refused.wait() == 78
    sentence = (
        f"The index in {old} does not belong to this cluster's log {crawl.names.fingerprints}"
    )
    assert sentence in refused.log
    assert f"rm -r '{old}'" in refused.log
    assert "STREAM_DEDUP_STATE_DIR" in refused.log
    crawl.start("worker").wait_for_log(f"state={crawl.environment['STREAM_DEDUP_STATE_DIR']}")


def test_a_worker_ends_although_its_client_does_not_close(make_filter: MakeFilter) -> None:
    """Leaving the group may wait for a coordinator that is gone; the worker ends anyway."""
    may_close = threading.Event()

    class NeverCloses(SourceConsumer):
        def close(self) -> None:
            may_close.wait()

    dependencies = {"make_source": NeverCloses, "close_seconds": 0.2, "drain_seconds": 0.0}
    crawl = make_filter(partitions=1)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(
            run_in_process, "worker", load_settings(environ=crawl.environment), stop, **dependencies
        )
        crawl.produce(synthetic(1, 4, partitions=1))
        wait_until(lambda: count_log_batches(crawl) or running.done(), "it has asked")
        stop.set()
        ended = running.result(60)
    may_close.set()

    assert ended is None


class Bystander:
    """A listener of a group member that ignores all changes of its assignment."""

    def assigned(self, keys: Sequence[TopicPartitionKey]) -> Mapping[TopicPartitionKey, int]:
        return dict.fromkeys(keys, 0)

    def revoked(self, keys: Sequence[TopicPartitionKey]) -> None: ...

    def lost(self, keys: Sequence[TopicPartitionKey]) -> None: ...

    def group_metadata_changed(self, group_metadata: bytes) -> None: ...


def test_committed_offsets_are_read_while_the_group_waits_for_a_member(
    make_filter: MakeFilter,
) -> None:
    """A worker that must read again during a rebalance continues at once; it does not wait until
    all have joined.

    A question on the member's own connection to the coordinator waits behind its JoinGroup, because
    Kafka answers one request of a connection at a time: for seconds, until the others' heartbeats,
    or until the session of one that has died is over.
    """
    crawl = make_filter(partitions=1)
    crawl.produce(synthetic(10, 5, partitions=1))
    key = (crawl.names.documents, 0)
    admin = AdminClient({"bootstrap.servers": crawl.settings.kafka_bootstrap_servers})

    def is_in(state: ConsumerGroupState) -> bool:
        found = admin.describe_consumer_groups([crawl.settings.group])[crawl.settings.group]
        return bool(found.result().state is state)

    slow = crawl.settings.model_copy(
        update={"kafka": {"heartbeat.interval.ms": "20000", "session.timeout.ms": "30000"}}
    )
    unresponsive = SourceConsumer(slow, crawl.names.documents, "deaf", Bystander())
    joining = None
    try:
        wait_until(lambda: len(unresponsive.take_messages(1, 0.1)) == 1, "the first member reads")
        unresponsive.commit_start({key: (7, "epoch")})
        joining = SourceConsumer(crawl.settings, crawl.names.documents, "joining", Bystander())
        wait_until(
            lambda: is_in(ConsumerGroupState.PREPARING_REBALANCING),
            "the group waits for its first member",
        )

        assert joining.committed([key]) == {key: CommittedOffset(7, "epoch")}
        assert is_in(ConsumerGroupState.PREPARING_REBALANCING)
    finally:
        unresponsive.close()
        if joining is not None:
            joining.close()
