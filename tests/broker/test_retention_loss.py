"""Kafka removes log records under running roles: they report it, and go on as long as they can."""

from __future__ import annotations

import urllib.error

import pytest
from confluent_kafka import TopicPartition

from tests.broker.harness import Filter, MakeFilter, Role, synthetic
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

BATCH_DOCUMENTS = 500
LOOK_SECONDS = 120.0


def readiness(role: Role) -> tuple[bool, str]:
    """Return whether a role is ready, and its sentence."""
    try:
        return True, role.get("/readyz")
    except urllib.error.HTTPError as error:
        return False, error.read().decode()


def wait_until_unready(*roles: Role, why: str) -> None:
    """Wait until roles are not ready for this reason and have logged it as an error."""
    for role in roles:
        wait_until(lambda role=role: why in readiness(role)[1], f"{role.name}: {why}", LOOK_SECONDS)  # type: ignore[misc]
        assert not readiness(role)[0]
        assert any("[error" in line and why in line for line in role.log.splitlines())


def wait_until_ready(*roles: Role) -> None:
    for role in roles:
        wait_until(lambda role=role: readiness(role)[0], f"{role.name} is ready", LOOK_SECONDS)  # type: ignore[misc]


def delete_records(crawl: Filter, topic: str, partition: int, before: int) -> None:
    """Have Kafka remove the records of a partition below an offset."""
    wanted = [TopicPartition(topic, partition, before)]
    for future in crawl.admin._client.delete_records(wanted).values():
        assert future.result(30).low_watermark == before


def test_roles_go_on_after_log_records_are_removed(make_filter: MakeFilter) -> None:
    """Running roles go on, and so does an index with its volume; a new index refuses."""
    crawl = make_filter(partitions=2, batch_documents=100)
    log = crawl.names.fingerprints
    documents = list(synthetic(4 * BATCH_DOCUMENTS, 21, partitions=2))
    index, worker = crawl.start_both()
    count = crawl.produce(documents[:BATCH_DOCUMENTS])
    crawl.wait_until_committed(count)
    wait_until_ready(index, worker)
    assert "stream_dedup_oldest_unread_seconds 0.0" in worker.get("/metrics")

    crawl.admin.set_config(log, {"retention.ms": "86400000"})

    wait_until_unready(
        index, worker, why=f"The topic {log} has retention.ms=86400000, and must have -1"
    )
    for role in (index, worker):
        assert f'stream_dedup_topic_unkept{{topic="{log}"}} 1.0' in role.get("/metrics")
    crawl.command("topics", "apply")
    wait_until_ready(index, worker)

    low = crawl.admin.end_offset(log, 0)
    delete_records(crawl, log, 0, low)
    for role in (index, worker):
        role.wait_for_log(f"The log {log} begins at offset {low}", LOOK_SECONDS)
        assert readiness(role)[0], "removed records that it has applied do not matter"
    count += crawl.produce(documents[BATCH_DOCUMENTS : 2 * BATCH_DOCUMENTS])
    crawl.wait_until_committed(count)

    assert index.stop() == 0
    index = crawl.start("index")
    count += crawl.produce(documents[2 * BATCH_DOCUMENTS :])
    crawl.wait_until_committed(count)
    wait_until_ready(index)
    assert index.stop() == 0
    fresh = crawl.start("index", STREAM_DEDUP_STATE_DIR=str(crawl.folder / "fresh"))
    assert fresh.process.wait(LOOK_SECONDS) == 78
    assert f"but {log} contains offsets {low} to" in fresh.log
