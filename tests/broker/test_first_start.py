"""A group's offsets vanish, and the log's first records are of no document of this topic: nothing
leaves twice."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient

from stream_dedup.audit import live
from stream_dedup.domain.document import Headers
from stream_dedup.kafka import LogAppender
from stream_dedup.log import records
from stream_dedup.preflight.doctor import examine
from stream_dedup.preflight.finding import CheckState
from stream_dedup.settings.layers import load_settings
from tests.broker.harness import Filter, MakeFilter, Outcome, synthetic
from tests.broker.test_orders import told
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]


def seed_many(crawl: Filter) -> None:
    """Begin the log with a seed, and with more records of no document than anybody would look at
    one by one."""
    pages = crawl.folder / "pages.txt"
    pages.write_text("\n".join(value.decode() for _, _, value, _ in synthetic(60, 9, partitions=1)))
    assert told(crawl, "seed", str(pages), "--format", "lines")["seeded"] == 60
    appender = LogAppender(crawl.settings, crawl.names.fingerprints, "many")
    for _ in range(60):
        appender.send(
            records.encode_control(records.Control("forget", {"ids": [b"nobody".hex()]})),
            None,
            lambda _: None,
        )
    appender.flush()


def documents(count: int, seed: int) -> list[tuple[int, bytes | None, bytes | None, Headers]]:
    """Return documents for partition 0, and what becomes dead letters for partition 1: of that the
    log says nothing."""
    found: list[tuple[int, bytes | None, bytes | None, Headers]] = [
        (0, key, json.dumps({"text": value.decode()}).encode(), more)
        for _, key, value, more in synthetic(count, seed, partitions=1)
    ]
    return found + [(1, b"broken-%d" % number, b"{", []) for number in range(5)]


def forget_offsets(crawl: Filter) -> None:
    admin = AdminClient({"bootstrap.servers": crawl.bootstrap})
    for future in admin.delete_consumer_groups([crawl.settings.group]).values():
        future.result(20)


def make_again(crawl: Filter, topic: str) -> None:
    """Delete a topic and create it again."""
    admin = AdminClient({"bootstrap.servers": crawl.bootstrap})
    for future in admin.delete_topics([topic]).values():
        future.result(20)
    wait_until(lambda: not crawl.admin.topic_ids([topic]), "the topic is gone")
    crawl.create_topics()


def left(crawl: Filter) -> Counter[bytes | None]:
    """Return how often each value is on the outputs."""
    return Counter(one.value for name in crawl.names.outputs for one in crawl.read(name))


def refuses(crawl: Filter, partition: int) -> None:
    """A worker that starts now ends with 78 and says why."""
    worker = crawl.start("worker")
    assert worker.wait() == 78, worker.log[-3000:]
    assert (
        f"no committed offset for {crawl.names.documents}-{partition}, though {crawl.names.begun} "
        "records" in worker.log
    )
    assert f"stream-dedup rewind {partition}@0" in worker.log
    crawl.roles.remove(worker)


def work(crawl: Filter, total: int) -> None:
    """Let a worker read what there is, and end it."""
    worker = crawl.start("worker")
    worker.says("partitions assigned")
    crawl.wait_until_committed(total)
    assert worker.stop() == 0


def test_behind_many_seeds_nothing_leaves_twice(make_filter: MakeFilter) -> None:
    """Seeds are no documents: the first worker begins. Later it does not, and doctor says so
    before; restored, it goes on."""
    crawl = make_filter(partitions=2, value_format="json")
    seed_many(crawl)
    crawl.start("index")
    total = crawl.produce(documents(300, 10))
    work(crawl, total)
    once = left(crawl)
    ends = {
        key[1]: offset
        for key, (offset, _) in crawl.admin.committed_or_last_known(crawl.settings.group).items()
    }
    settings = load_settings(environ=crawl.environment)
    assert [one.sentence for one in examine(settings) if one.state is CheckState.REFUSED] == []
    forget_offsets(crawl)

    (found,) = [one for one in examine(settings) if one.state is CheckState.REFUSED]
    assert found.check == "offsets"
    wanted = f"no committed offset for {crawl.names.documents}-0, {crawl.names.documents}-1, though"
    assert wanted in found.sentence
    refuses(crawl, 0)
    assert left(crawl) == once

    told(crawl, "rewind", f"0@{ends[0]}")
    refuses(crawl, 1)
    told(crawl, "rewind", f"1@{ends[1]}")
    total += crawl.produce(documents(100, 11))
    work(crawl, total)
    Outcome(crawl).check()
    assert live.examine(settings, is_finished=True).findings.shown == []
