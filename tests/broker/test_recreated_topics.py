"""Topics that are not there when roles start, and topics that are deleted and created again under
them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.broker.harness import Filter, Outcome, synthetic, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

LOT = 500


def test_answers_that_their_topic_lost_are_asked_for_anew(
    make_filter: Callable[..., Filter],
) -> None:
    """Deleted and created again while questions wait: the worker sees it and asks again."""
    crawl = make_filter(partitions=2, batch_documents=100)
    documents = list(synthetic(3 * LOT, 21, partitions=2))
    count = crawl.produce(documents[:LOT])
    worker, index = crawl.start("worker"), crawl.start("index")
    crawl.wait_until_committed(count)
    index.kill()
    asked = crawl.admin.end_offset(crawl.names.fingerprints, 0)
    count += crawl.produce(documents[LOT:])
    wait_until(
        lambda: crawl.admin.end_offset(crawl.names.fingerprints, 0) > asked, "the worker has asked"
    )

    crawl.delete_topic(crawl.names.verdicts)
    crawl.create_topics()
    crawl.start("index")

    crawl.wait_until_committed(count)
    assert worker.process.poll() is None
    assert "waiting documents are asked again" in worker.log
    wait_until(
        lambda: "stream_dedup_unanswered_seconds 0.0" in worker.get("/metrics"),
        "nothing waits any more",
    )
    Outcome(crawl).check()


def test_indexes_wait_for_a_topic_of_answers_that_was_deleted(
    make_filter: Callable[..., Filter],
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


def test_roles_wait_for_topics_that_are_not_there_yet(make_filter: Callable[..., Filter]) -> None:
    """Started by the command that makes the topics, too, they begin once the last one is there."""
    crawl = make_filter(partitions=2, batch_documents=100)
    for name in crawl.admin.topic_ids([*crawl.names.outputs, crawl.names.verdicts]):
        crawl.delete_topic(name)
    worker, index = crawl.start("worker"), crawl.start("index")
    worker.says("waiting for its topics")
    index.says("waiting for its topics")
    assert "do not exist; create them with: stream-dedup topics apply" in worker.log

    crawl.create_topics()
    count = crawl.produce(synthetic(LOT, 22, partitions=2))

    crawl.wait_until_committed(count)
    assert (worker.process.poll(), index.process.poll()) == (None, None)
    worker.says("the wait for its topics is over")


def test_topics_that_grow_end_no_role(make_filter: Callable[..., Filter]) -> None:
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
