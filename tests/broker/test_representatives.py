"""The topic `representatives` on a real Kafka: exact after kills at each step, beside another
index, and after it was away."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable

import pytest

from stream_dedup.cli.audit import examine
from stream_dedup.ground.failpoints import REPRESENTATIVES_STEPS
from stream_dedup.kafka import LoadProducer
from tests.broker.harness import Filter, Outcome, Role, synthetic, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

LOT = 500
VOLUME = "STREAM_DEDUP_INDEX_DIR"


def test_killed_at_each_step_it_ends_as_the_log_says(make_filter: Callable[..., Filter]) -> None:
    """Killed within a transaction, in front of its commit and behind it, twice each; then another
    index takes over."""
    crawl = make_filter(partitions=2, batch_documents=250, count_copies=True, representatives=True)
    # As many as it takes until each kill: how many those are depends on the machine.
    documents = itertools.chain.from_iterable(
        synthetic(10 * LOT, seed, partitions=2) for seed in itertools.count(11)
    )
    count = crawl.produce(itertools.islice(documents, LOT))
    crawl.start("worker")
    volume = str(crawl.folder / "volume-0")
    for step in REPRESENTATIVES_STEPS:
        for times in (1, 2):
            index = crawl.start(
                "index", **{VOLUME: volume, "STREAM_DEDUP_FAILPOINT": f"{step}:{times}"}
            )

            def is_killed(index: Role = index) -> bool:
                nonlocal count
                if crawl.committed() >= count:  # something to write has to come, until it happens
                    count += crawl.produce(itertools.islice(documents, LOT))
                return index.process.poll() is not None

            wait_until(is_killed, f"{step} has killed the index")
            assert index.process.returncode == -signal.SIGKILL, index.log
            assert f"failpoint {step} reached" in index.log
    first = crawl.start("index", **{VOLUME: volume})
    crawl.wait_until_committed(count)
    other = crawl.start("index", **{VOLUME: str(crawl.folder / "volume-1")})
    crawl.wait_until_published(first, other)
    first.kill()
    count += crawl.produce(itertools.islice(documents, LOT))
    other.says("this index writes the topic")  # once nobody has written for half a minute
    count += crawl.produce(itertools.islice(documents, LOT))
    crawl.wait_until_committed(count)
    crawl.wait_until_published(other)

    Outcome(crawl).check()


def test_documents_do_not_wait_for_a_topic_that_is_not_there(
    make_filter: Callable[..., Filter],
) -> None:
    """Without the topic there is a warning, and every document gets its verdict; created, it has
    everything. The audit says nothing of it until it is there, and then what in it is wrong.
    """
    crawl = make_filter(partitions=2, batch_documents=250, count_copies=True, representatives=True)
    crawl.delete_topic(crawl.names.representatives)
    count = crawl.produce(synthetic(LOT, 12, partitions=2))
    crawl.start("worker")
    index = crawl.start("index")
    crawl.wait_until_committed(count)

    index.says("does not exist; create it with")
    assert 'stream_dedup_representatives_transactions_total{result="failed"} 0.0' not in index.get(
        "/metrics"
    )
    without = examine(crawl.settings)
    assert (without.is_clean, without.published) == (True, None)
    crawl.create_topics()
    index.says("this index writes the topic")
    crawl.wait_until_published(index)
    Outcome(crawl).check()
    whole = examine(crawl.settings)
    assert whole.findings.shown == []
    assert whole.published is not None
    assert whole.published.compared > 10
    producer = LoadProducer(crawl.settings)
    producer.send(crawl.names.representatives, b"documents-9@9", b"{}", None, 0, [])
    assert producer.flush() == 0
    (wrong,) = examine(crawl.settings).findings.shown
    assert wrong.kind == "published"
    assert "Of documents-9@9 the topic says {}, and the log leads to nothing" in wrong.sentence
