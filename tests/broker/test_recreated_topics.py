"""Topics that are not there when roles start, and topics that are deleted and created again under
them."""

from __future__ import annotations

import pytest

from tests.broker.harness import MakeFilter, Outcome, synthetic
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

LOT = 500


def test_indexes_wait_for_a_topic_of_answers_that_was_deleted(
    make_filter: MakeFilter,
) -> None:
    """Deleted under running roles: each index names the topic and waits, and goes on by itself once
    it is there again."""
    crawl = make_filter(partitions=2, batch_documents=100)
    documents = list(synthetic(2 * LOT, 25, partitions=2))
    indexes = [
        crawl.start("index", STREAM_DEDUP_STATE_DIR=str(crawl.folder / f"index-{at}"))
        for at in range(2)
    ]
    worker = crawl.start("worker")
    count = crawl.produce(documents[:LOT])
    crawl.wait_until_committed(count)

    crawl.delete_topic(crawl.names.verdicts)
    count += crawl.produce(documents[LOT:])
    for index in indexes:
        index.says("waiting for its topics", 180)
        assert f"The topic {crawl.names.verdicts} was deleted, or created again" in index.log
        assert "stream-dedup topics apply" in index.log
    crawl.create_topics()

    crawl.wait_until_committed(count, 180)
    assert [role.process.poll() for role in (*indexes, worker)] == [None] * 3
    Outcome(crawl).check()


def test_topics_that_grow_end_no_role(make_filter: MakeFilter) -> None:
    """With twice the partitions documents of the new ones leave too, and both workers are the ones
    that began."""
    crawl = make_filter(
        partitions=2, batch_documents=100, kafka_topic_metadata_refresh_interval_ms=2000
    )
    workers = [crawl.start("worker", STREAM_DEDUP_WORKER_ID=f"worker-{at}") for at in range(2)]
    crawl.start("index")
    count = crawl.produce(synthetic(LOT, 23, partitions=2))
    crawl.wait_until_committed(count)

    for name in (crawl.names.documents, *crawl.names.outputs):
        crawl.admin.add_partitions(name, 4)
    wait_until(
        lambda: crawl.admin.topic_ids([crawl.names.documents])[crawl.names.documents][1] == 4,
        "all have grown",
    )
    count += crawl.produce(
        synthetic(LOT, 24, partitions=4), **{"linger.ms": 6}
    )  # the old client does not know of them

    crawl.wait_until_committed(count)
    assert [one.process.poll() for one in workers] == [None, None]
