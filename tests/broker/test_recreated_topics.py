"""Topics that are deleted and created again, or get more partitions, under running roles."""

from __future__ import annotations

import pytest

from tests.broker.harness import MakeFilter, Outcome, synthetic
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

BATCH_DOCUMENTS = 500


def test_indexes_wait_while_the_topic_verdicts_is_deleted(
    make_filter: MakeFilter,
) -> None:
    """Each index names the deleted topic and waits, and goes on once the topic exists again."""
    crawl = make_filter(partitions=2, batch_documents=100)
    documents = list(synthetic(2 * BATCH_DOCUMENTS, 25, partitions=2))
    indexes = [
        crawl.start("index", STREAM_DEDUP_STATE_DIR=str(crawl.folder / f"index-{number}"))
        for number in range(2)
    ]
    worker = crawl.start("worker")
    count = crawl.produce(documents[:BATCH_DOCUMENTS])
    crawl.wait_until_committed(count)

    crawl.delete_topic(crawl.names.verdicts)
    count += crawl.produce(documents[BATCH_DOCUMENTS:])
    for index in indexes:
        index.wait_for_log("waiting for its topics", 180)
        assert f"The topic {crawl.names.verdicts} was deleted, or created again" in index.log
        assert "stream-dedup topics apply" in index.log
    crawl.create_topics()

    crawl.wait_until_committed(count, 180)
    assert [role.process.poll() for role in (*indexes, worker)] == [None] * 3
    Outcome(crawl).check()


def test_no_role_ends_when_topics_get_more_partitions(make_filter: MakeFilter) -> None:
    """With twice the partitions, documents of the new ones leave too, and no worker ends."""
    crawl = make_filter(
        partitions=2, batch_documents=100, kafka_topic_metadata_refresh_interval_ms=2000
    )
    workers = [
        crawl.start("worker", STREAM_DEDUP_WORKER_ID=f"worker-{number}") for number in range(2)
    ]
    crawl.start("index")
    count = crawl.produce(synthetic(BATCH_DOCUMENTS, 23, partitions=2))
    crawl.wait_until_committed(count)

    for name in (crawl.names.documents, *crawl.names.outputs):
        crawl.admin.add_partitions(name, 4)
    wait_until(
        lambda: crawl.admin.topic_ids([crawl.names.documents])[crawl.names.documents][1] == 4,
        "all have grown",
    )
    count += crawl.produce(
        synthetic(BATCH_DOCUMENTS, 24, partitions=4), **{"linger.ms": 6}
    )  # the old client does not know of them

    crawl.wait_until_committed(count)
    assert [worker.process.poll() for worker in workers] == [None, None]
