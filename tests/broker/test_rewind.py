"""`rewind` on a real Apache Kafka: what it repeats, what it refuses, what it repairs."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from stream_dedup.console.outputs import count_uncommitted
from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import BrokerError
from stream_dedup.kafka import Admin
from stream_dedup.log import epochs
from stream_dedup.orders.common import OrderDependencies
from stream_dedup.orders.run_rewind import rewind_group
from tests.broker.harness import Filter, MakeFilter, Outcome, header, synthetic
from tests.waiting import wait_until

pytestmark = pytest.mark.broker


def run_rewind(crawl: Filter, *arguments: str) -> list[dict[str, Any]]:
    """Run the command, which must succeed, and return its rows."""
    rows: list[dict[str, Any]] = json.loads(crawl.command("rewind", *arguments, "--json").stdout)
    return rows


def read_committed(crawl: Filter) -> dict[int, tuple[int, int | None]]:
    """Return (committed offset, epoch) by partition, once no transaction moves them."""
    found = crawl.stable_committed()
    assert len(found) == crawl.partitions
    return {
        part: (offset, epochs.from_metadata(metadata))
        for (_, part), (offset, metadata) in found.items()
    }


def run_worker_until(crawl: Filter, count: int) -> None:
    """Run a worker until it has committed this many records."""
    worker = crawl.start("worker")

    def is_there() -> bool:
        assert worker.process.poll() is None, worker.log[-3000:]
        return crawl.committed() >= count

    wait_until(is_there, f"{count} records are committed")
    assert worker.stop() == 0


def group_by_id(messages: list[Message]) -> dict[bytes | None, list[Message]]:
    """Return the records of each id, in their order."""
    found: dict[bytes | None, list[Message]] = defaultdict(list)
    for message in messages:
        found[message.key].append(message)
    return found


def parse_log_place(value: str) -> tuple[int, ...]:
    """Return the (log offset, place) that a header `dedup.log` names."""
    return tuple(map(int, value.split("/")))


VERDICT = (
    "dedup.verdict",
    "dedup.reason",
    "dedup.distance",
    "dedup.of.position",
    "dedup.of.id",
    "dedup.fingerprint",
)


def test_documents_come_out_again_with_their_verdicts(make_filter: MakeFilter) -> None:
    crawl = make_filter(partitions=2, batch_documents=500)
    count = crawl.produce(synthetic(3000, 21, partitions=2))
    crawl.start("index")
    run_worker_until(crawl, count)
    first = Outcome(crawl)
    first.check()
    ends = read_committed(crawl)
    start = ends[0][0] // 3

    (row,) = run_rewind(crawl, f"{crawl.names.documents}-0@{start}")

    assert row["offset"] == {"current": ends[0][0], "new": start}
    assert row["epoch"] == {"current": 0, "new": 1}
    assert read_committed(crawl) == {0: (start, 1), 1: ends[1]}

    run_worker_until(crawl, count)
    second = Outcome(crawl)

    second._check_verdicts()
    assert read_committed(crawl) == {0: (ends[0][0], 1), 1: ends[1]}
    reread_keys = {
        message.key
        for message in second.source
        if message.partition == 0 and message.offset >= start
    }
    assert len(reread_keys) == ends[0][0] - start
    outputs = group_by_id([*second.unique, *second.duplicates])
    assert len(outputs) == count
    assert second.dead == []
    log_by_position = {
        header(message, "dedup.position"): header(message, "dedup.log") for message in first.unique
    }
    judged_again = closer = 0
    for key, found in outputs.items():
        assert len(found) == (2 if key in reread_keys else 1)
        log = [header(message, "dedup.log") for message in found]
        verdicts = [tuple(header(message, name) for name in VERDICT) for message in found]
        if len(set(verdicts)) > 1:
            # Judged again, it may find a closer original that was kept after its first verdict.
            assert {verdict[0] for verdict in verdicts} == {"duplicate"}
            assert int(verdicts[-1][2]) < int(verdicts[0][2]), "not a closer original"
            assert parse_log_place(log[0]) < parse_log_place(log_by_position[verdicts[-1][3]])
            closer += 1
        if header(found[0], "dedup.verdict") == "unique":
            assert len(set(log)) == 1, "a unique document got another place in the log"
        elif key in reread_keys:
            assert len(set(log)) == 2, "a duplicate's verdict was kept over the rewind"
            judged_again += 1
    assert 100 < judged_again < len(reread_keys) - 100
    assert closer < judged_again // 20


@pytest.mark.thorough
def test_rewind_writes_nothing_while_a_transaction_is_open(make_filter: MakeFilter) -> None:
    """An open transaction may still move the offsets, so `rewind` refuses and writes nothing."""
    crawl = make_filter(partitions=1)
    crawl.produce(synthetic(10, 24, partitions=1))
    topic, group = crawl.names.documents, crawl.settings.group
    crawl.admin.write_committed(group, topic, {0: (8, epochs.to_metadata(3))})
    producer = Producer(
        {
            "bootstrap.servers": crawl.bootstrap,
            "transactional.id": group,
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    member = Consumer({"bootstrap.servers": crawl.bootstrap, "group.id": group})
    offsets = [TopicPartition(topic, 0, 9, epochs.to_metadata(3))]
    producer.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), 20)

    refused = crawl.command("rewind", "0@5", code=1)

    assert count_uncommitted(crawl.settings, crawl.admin) == {0: 2}, (
        "of ten records, eight are committed"
    )
    assert (
        f"An open transaction will change the committed offsets of group {group} for {topic}-0"
        in refused.stderr
    )
    producer.commit_transaction(20)
    member.close()
    assert read_committed(crawl) == {0: (9, 3)}, "something was written beside the transaction"
    run_rewind(crawl, "0@5")
    assert read_committed(crawl) == {0: (5, 4)}


@pytest.mark.thorough
def test_rewind_writes_nothing_if_offsets_change_meanwhile(make_filter: MakeFilter) -> None:
    """A commit between the read and the write of `rewind` makes it fail without writing."""
    crawl = make_filter(partitions=1)
    crawl.produce(synthetic(10, 28, partitions=1))
    topic, group = crawl.names.documents, crawl.settings.group
    crawl.admin.write_committed(group, topic, {0: (4, epochs.to_metadata(3))})

    class CommitsAfterRead(Admin):
        def stable_committed(self, group: str) -> dict[tuple[str, int], tuple[int, str | None]]:
            found = super().stable_committed(group)
            crawl.admin.write_committed(group, topic, {0: (8, epochs.to_metadata(3))})
            return found

    with pytest.raises(BrokerError, match="changed during this command, so a worker was running"):
        rewind_group(
            crawl.settings, ["0@2"], OrderDependencies(make_admin=CommitsAfterRead), dry_run=False
        )

    assert read_committed(crawl) == {0: (8, 3)}


@pytest.mark.thorough
def test_an_offset_set_by_another_tool_is_repaired(make_filter: MakeFilter) -> None:
    """The worker names the command, which sets an epoch above all in the log."""
    crawl = make_filter(partitions=2)
    count = crawl.produce(synthetic(300, 25, partitions=2))
    crawl.admin.write_committed(
        crawl.settings.group, crawl.names.documents, {0: (0, epochs.to_metadata(6))}
    )
    crawl.start("index")
    run_worker_until(crawl, count)
    ends = read_committed(crawl)
    assert (ends[0][1], ends[1][1]) == (6, 0)
    crawl.admin.write_committed(crawl.settings.group, crawl.names.documents, {0: (20, "")})

    worker = crawl.start("worker")

    assert worker.wait(60) == 78, worker.log[-3000:]
    assert f"stream-dedup rewind {crawl.names.documents}-0@20" in worker.log

    (row,) = run_rewind(crawl, f"{crawl.names.documents}-0@20")

    assert row["epoch"] == {"current": None, "new": 7}
    assert read_committed(crawl) == {0: (20, 7), 1: ends[1]}
    run_worker_until(crawl, count)
    outcome = Outcome(crawl)
    outcome._check_verdicts()
    assert len(outcome.unique) + len(outcome.duplicates) == count + ends[0][0] - 20
    assert read_committed(crawl) == {0: (ends[0][0], 7), 1: ends[1]}
