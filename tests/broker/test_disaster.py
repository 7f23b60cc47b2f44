"""What is lost for good, and the commands of docs/how-to/disaster.md that bring the filter back, on
a real Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stream_dedup.domain.document import Message
from stream_dedup.index.digest import StateDigest, state_digest
from stream_dedup.index.storage.store import RocksStore
from tests.broker.harness import Filter, header, synthetic, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]


def forget_group(crawl: Filter) -> None:
    """Lose the committed offsets, as Kafka does after seven idle days."""
    cluster = AdminClient({"bootstrap.servers": crawl.bootstrap})
    for future in cluster.delete_consumer_groups([crawl.settings.group]).values():
        future.result(20)


def make_topic(crawl: Filter, name: str, partitions: int, **config: str) -> None:
    cluster = AdminClient({"bootstrap.servers": crawl.bootstrap})
    for future in cluster.create_topics([NewTopic(name, partitions, 1, config=config)]).values():
        future.result(20)


def copy_to(crawl: Filter, topic: str, messages: list[Message]) -> None:
    """Write records as MirrorMaker does: partition, key, value, headers and timestamp as they
    were."""
    producer = Producer({"bootstrap.servers": crawl.bootstrap, "linger.ms": 5})
    for one in sorted(messages, key=lambda one: (one.partition, one.offset)):
        producer.produce(
            topic,
            one.value,
            one.key,
            one.partition,
            timestamp=one.timestamp_ms or 0,
            headers=one.headers,
        )
    assert producer.flush(30) == 0


def test_lost_offsets_come_back_from_the_outputs(make_filter: Callable[..., Filter]) -> None:
    """After a kill in full flight: nothing is left out, and nothing leaves twice."""
    crawl = make_filter(partitions=3, batch_documents=100)
    count = crawl.produce(synthetic(4000, 31, partitions=3))
    _, worker = crawl.start_both()
    wait_until(lambda: crawl.committed() >= count // 4, "a part is committed")
    worker.kill()
    wait_until(lambda: not crawl.admin.group_members(crawl.settings.group), "the session has ended")
    assert len(crawl.stable_committed()) == 3
    forget_group(crawl)

    shown = json.loads(crawl.command("rewind", "--from-outputs", "--dry-run", "--json").stdout)
    done = json.loads(crawl.command("rewind", "--from-outputs", "--json").stdout)

    assert [(one["offset"], one["epoch"]) for one in shown] == [
        (one["offset"], one["epoch"]) for one in done
    ]
    assert [one["warning"] for one in done] == [None] * 3
    assert sum(one["offset"]["wanted"] for one in done) >= count // 4
    following = crawl.start("worker", STREAM_DEDUP_WORKER_ID="next")
    crawl.outcome()
    assert following.stop() == 0
    assert json.loads(crawl.command("rewind", "--from-outputs", "--dry-run", "--json").stdout) == []


@pytest.mark.thorough
@pytest.mark.parametrize("stamps", ["CreateTime", "LogAppendTime"])
def test_a_log_from_a_mirror_keeps_its_window(
    make_filter: Callable[..., Filter], stamps: str
) -> None:
    """Copied into a topic that keeps the records' times, and stamps its own only then, it leads to
    the same state, times and generations included. Copied into one that stamps them, its window
    would start with an empty log."""
    crawl = make_filter(partitions=1, batch_documents=100, window="1h")
    count = crawl.produce(synthetic(500, 34, partitions=1))
    index, worker = crawl.start_both()
    crawl.wait_until_committed(count)
    assert (worker.stop(), index.stop()) == (0, 0)
    original = Path(crawl.environment["STREAM_DEDUP_STATE_DIR"])
    mirror = original.with_name("mirror")
    own = {
        "STREAM_DEDUP_TOPIC_PREFIX": "mirrored." + crawl.settings.topic_prefix,
        "STREAM_DEDUP_GROUP": crawl.settings.group,
        "STREAM_DEDUP_STATE_DIR": str(mirror),
    }
    log = crawl.read(crawl.names.fingerprints)
    name = own["STREAM_DEDUP_TOPIC_PREFIX"] + "fingerprints"
    make_topic(crawl, name, 1, **{"message.timestamp.type": stamps, "retention.ms": "-1"})
    copy_to(crawl, name, log)
    crawl.command("topics", "apply", "--fit-brokers", **own)

    def digest(state_dir: Path) -> StateDigest:
        with closing(RocksStore(state_dir / "index", read_only=True)) as store:
            return state_digest(store)

    there = crawl.start("index", **own)
    applied = f"stream_dedup_index_applied_offset {float(len(log))}"
    wait_until(lambda: applied in there.get("/metrics"), "the copy is applied")
    assert there.stop() == 0

    assert (digest(mirror) == digest(original)) == (stamps == "CreateTime")


@pytest.mark.thorough
def test_another_region_takes_over(make_filter: Callable[..., Filter]) -> None:
    """Of the first region come its documents and, a part behind, what it kept; the second is seeded
    with that and reads all.

    What the first delivered is known; what it did not, or what did not come over in time, is kept
    here; nothing is lost.
    """
    first = make_filter(partitions=2, batch_documents=100)
    count = first.produce(synthetic(1200, 35, partitions=2))
    first.start_both()
    first.wait_until_committed(count)
    for role in first.roles:
        role.kill()
    kept, alias = first.read(first.names.unique), first.settings.topic_prefix + "eu."
    came = [one for one in kept if one.offset < max(other.offset for other in kept) // 2]
    for name, messages in (("documents", first.read(first.names.documents)), ("unique", came)):
        make_topic(first, alias + name, 2)
        copy_to(first, alias + name, messages)

    second = make_filter(partitions=2, batch_documents=100, documents=alias + "documents")
    second.command("seed", alias + "unique")
    second.start_both()

    def left() -> tuple[list[Message], list[Message]] | None:
        found = second.read(second.names.unique), second.read(second.names.duplicates)
        return found if sum(map(len, found)) >= count else None

    unique, duplicates = wait_until(left, "all have left")
    assert len(unique) + len(duplicates) == count
    assert not {one.key for one in unique} & {one.key for one in came}
    known = {one.key.decode() for one in (*unique, *came) if one.key}
    assert {header(one, "dedup.of.id") for one in duplicates} <= known
    assert len(unique) > len(kept) // 4
