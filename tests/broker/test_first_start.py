"""Offsets are lost, and the log begins with records of no document: nothing leaves twice."""

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
from tests.broker.test_orders import run_json
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]


def seed_many(crawl: Filter) -> None:
    """Begin the log with a seed and many control records."""
    pages = crawl.folder / "pages.txt"
    pages.write_text("\n".join(value.decode() for _, _, value, _ in synthetic(60, 9, partitions=1)))
    assert run_json(crawl, "seed", str(pages), "--format", "lines")["seeded"] == 60
    appender = LogAppender(crawl.settings, crawl.names.fingerprints, "many")
    for _ in range(60):
        appender.send(
            records.encode_control(records.Control("forget", {"ids": [b"nobody".hex()]})),
            None,
            lambda _: None,
        )
    appender.flush()


def documents(count: int, seed: int) -> list[tuple[int, bytes | None, bytes | None, Headers]]:
    """Return documents for partition 0, and dead letters for partition 1."""
    readable: list[tuple[int, bytes | None, bytes | None, Headers]] = [
        (0, key, json.dumps({"text": value.decode()}).encode(), more)
        for _, key, value, more in synthetic(count, seed, partitions=1)
    ]
    return readable + [(1, b"broken-%d" % number, b"{", []) for number in range(5)]


def forget_offsets(crawl: Filter) -> None:
    admin = AdminClient({"bootstrap.servers": crawl.bootstrap})
    for future in admin.delete_consumer_groups([crawl.settings.group]).values():
        future.result(20)


def recreate_topic(crawl: Filter, topic: str) -> None:
    """Delete a topic and create it again."""
    admin = AdminClient({"bootstrap.servers": crawl.bootstrap})
    for future in admin.delete_topics([topic]).values():
        future.result(20)
    wait_until(lambda: not crawl.admin.topic_ids([topic]), "the topic is gone")
    crawl.create_topics()


def count_outputs(crawl: Filter) -> Counter[bytes | None]:
    """Return how often each value is in the outputs."""
    return Counter(message.value for name in crawl.names.outputs for message in crawl.read(name))


def assert_refused(crawl: Filter, partition: int) -> None:
    """Assert that a worker that starts now ends with 78 and names the missing offset."""
    worker = crawl.start("worker")
    assert worker.wait() == 78, worker.log[-3000:]
    assert (
        f"no committed offset for {crawl.names.documents}-{partition}, though {crawl.names.begun} "
        "records" in worker.log
    )
    assert f"stream-dedup rewind {partition}@0" in worker.log
    crawl.roles.remove(worker)


def run_worker(crawl: Filter, total: int) -> None:
    """Run a worker until it has committed `total` records."""
    worker = crawl.start("worker")
    worker.wait_for_log("partitions assigned")
    crawl.wait_until_committed(total)
    assert worker.stop() == 0


def test_no_document_leaves_twice_when_the_log_begins_with_seeds(make_filter: MakeFilter) -> None:
    """A first worker starts; without offsets, doctor and workers refuse until `rewind`."""
    crawl = make_filter(partitions=2, value_format="json")
    seed_many(crawl)
    crawl.start("index")
    total = crawl.produce(documents(300, 10))
    run_worker(crawl, total)
    outputs_before = count_outputs(crawl)
    ends = {
        key[1]: offset
        for key, (offset, _) in crawl.admin.committed_or_last_known(crawl.settings.group).items()
    }
    settings = load_settings(environ=crawl.environment)
    assert [
        finding.sentence for finding in examine(settings) if finding.state is CheckState.REFUSED
    ] == []
    forget_offsets(crawl)

    (found,) = [finding for finding in examine(settings) if finding.state is CheckState.REFUSED]
    assert found.check == "offsets"
    wanted = f"no committed offset for {crawl.names.documents}-0, {crawl.names.documents}-1, though"
    assert wanted in found.sentence
    assert_refused(crawl, 0)
    assert count_outputs(crawl) == outputs_before

    run_json(crawl, "rewind", f"0@{ends[0]}")
    assert_refused(crawl, 1)
    run_json(crawl, "rewind", f"1@{ends[1]}")
    total += crawl.produce(documents(100, 11))
    run_worker(crawl, total)
    Outcome(crawl).check()
    assert live.examine(settings, is_finished=True).findings.shown == []
