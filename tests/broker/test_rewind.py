"""`rewind` on a real Apache Kafka: what it gives back, what it refuses, and what it repairs."""

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


def done(crawl: Filter, *arguments: str) -> list[dict[str, Any]]:
    """Run the command, which must succeed, and return its rows."""
    rows: list[dict[str, Any]] = json.loads(crawl.command("rewind", *arguments, "--json").stdout)
    return rows


def committed(crawl: Filter) -> dict[int, tuple[int, int | None]]:
    """Return (committed offset, epoch) by partition, once no transaction moves them."""
    found = crawl.stable_committed()
    assert len(found) == crawl.partitions
    return {
        part: (offset, epochs.from_metadata(metadata))
        for (_, part), (offset, metadata) in found.items()
    }


def run_to(crawl: Filter, count: int) -> None:
    """Have a worker commit that many records and end."""
    worker = crawl.start("worker")

    def is_there() -> bool:
        assert worker.process.poll() is None, worker.log[-3000:]
        return crawl.committed() >= count

    wait_until(is_there, f"{count} records are committed")
    assert worker.stop() == 0


def by_id(messages: list[Message]) -> dict[bytes | None, list[Message]]:
    """Return the records of each id, in their order."""
    found: dict[bytes | None, list[Message]] = defaultdict(list)
    for one in messages:
        found[one.key].append(one)
    return found


def place_in_log(value: str) -> tuple[int, ...]:
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
    run_to(crawl, count)
    first = Outcome(crawl)
    first.check()
    ends = committed(crawl)
    start = ends[0][0] // 3

    (row,) = done(crawl, f"{crawl.names.documents}-0@{start}")

    assert row["offset"] == {"current": ends[0][0], "new": start}
    assert row["epoch"] == {"current": 0, "new": 1}
    assert committed(crawl) == {0: (start, 1), 1: ends[1]}

    run_to(crawl, count)
    second = Outcome(crawl)

    second._check_verdicts()
    assert committed(crawl) == {0: (ends[0][0], 1), 1: ends[1]}
    again = {one.key for one in second.source if one.partition == 0 and one.offset >= start}
    assert len(again) == ends[0][0] - start
    outputs = by_id([*second.unique, *second.duplicates])
    assert len(outputs) == count
    assert second.dead == []
    kept_at = {header(one, "dedup.position"): header(one, "dedup.log") for one in first.unique}
    judged_again = closer = 0
    for key, found in outputs.items():
        assert len(found) == (2 if key in again else 1)
        log = [header(one, "dedup.log") for one in found]
        verdicts = [tuple(header(one, name) for name in VERDICT) for one in found]
        if len(set(verdicts)) > 1:
            # A page of its site that another title kept is the better original, once it is there.
            assert {verdict[0] for verdict in verdicts} == {"duplicate"}
            assert int(verdicts[-1][2]) < int(verdicts[0][2]), "not a closer original"
            assert place_in_log(log[0]) < place_in_log(kept_at[verdicts[-1][3]])
            closer += 1
        if header(found[0], "dedup.verdict") == "unique":
            assert len(set(log)) == 1, "a unique document got another place in the log"
        elif key in again:
            assert len(set(log)) == 2, "a duplicate's verdict was kept over the rewind"
            judged_again += 1
    assert 100 < judged_again < len(again) - 100
    assert closer < judged_again // 20


@pytest.mark.thorough
def test_an_open_transaction_is_waited_for(make_filter: MakeFilter) -> None:
    """What a killed worker left open holds the offsets; whether it will count is unknown, so
    nothing is written."""
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

    held = crawl.command("rewind", "0@5", code=1)

    assert count_uncommitted(crawl.settings, crawl.admin) == {0: 2}, (
        "of ten records, eight are committed"
    )
    assert (
        f"An open transaction will change the committed offsets of group {group} for {topic}-0"
        in held.stderr
    )
    producer.commit_transaction(20)
    member.close()
    assert committed(crawl) == {0: (9, 3)}, "something was written beside the transaction"
    done(crawl, "0@5")
    assert committed(crawl) == {0: (5, 4)}


@pytest.mark.thorough
def test_a_commit_while_it_looks_is_noticed(make_filter: MakeFilter) -> None:
    """A worker that came and went between the look and the write makes the plan void; nothing is
    written."""
    crawl = make_filter(partitions=1)
    crawl.produce(synthetic(10, 28, partitions=1))
    topic, group = crawl.names.documents, crawl.settings.group
    crawl.admin.write_committed(group, topic, {0: (4, epochs.to_metadata(3))})

    class LookedWhileItMoves(Admin):
        def stable_committed(self, group: str) -> dict[tuple[str, int], tuple[int, str | None]]:
            found = super().stable_committed(group)
            crawl.admin.write_committed(group, topic, {0: (8, epochs.to_metadata(3))})
            return found

    with pytest.raises(BrokerError, match="changed during this command, so a worker was running"):
        rewind_group(
            crawl.settings, ["0@2"], OrderDependencies(make_admin=LookedWhileItMoves), dry_run=False
        )

    assert committed(crawl) == {0: (8, 3)}


@pytest.mark.thorough
def test_an_offset_set_by_another_tool_is_repaired(make_filter: MakeFilter) -> None:
    """A worker refuses an offset without an epoch and names the command; that finds an epoch above
    all in the log."""
    crawl = make_filter(partitions=2)
    count = crawl.produce(synthetic(300, 25, partitions=2))
    crawl.admin.write_committed(
        crawl.settings.group, crawl.names.documents, {0: (0, epochs.to_metadata(6))}
    )
    crawl.start("index")
    run_to(crawl, count)
    ends = committed(crawl)
    assert (ends[0][1], ends[1][1]) == (6, 0)
    crawl.admin.write_committed(crawl.settings.group, crawl.names.documents, {0: (20, "")})

    worker = crawl.start("worker")

    assert worker.wait(60) == 78, worker.log[-3000:]
    assert f"stream-dedup rewind {crawl.names.documents}-0@20" in worker.log

    (row,) = done(crawl, f"{crawl.names.documents}-0@20")

    assert row["epoch"] == {"current": None, "new": 7}
    assert committed(crawl) == {0: (20, 7), 1: ends[1]}
    run_to(crawl, count)
    outcome = Outcome(crawl)
    outcome._check_verdicts()
    assert len(outcome.unique) + len(outcome.duplicates) == count + ends[0][0] - 20
    assert committed(crawl) == {0: (ends[0][0], 7), 1: ends[1]}
