"""Documents in shadow mode, and while the index is silent, on a real broker."""

from __future__ import annotations

import signal

import pytest

from stream_dedup.domain.document import Mode
from stream_dedup.domain.topics import TopicNames
from stream_dedup.log import records
from tests.broker.harness import MakeFilter, Outcome, header, synthetic
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]


def test_a_shadow_does_not_change_the_delivering_filter(make_filter: MakeFilter) -> None:
    """It judges every document on a separate log, beside a filter that delivers."""
    crawl = make_filter(partitions=2)
    names = TopicNames(crawl.names.prefix, is_shadow=True)
    crawl.create_topics(names)
    shadow = {
        "STREAM_DEDUP_MODE": "shadow",
        "STREAM_DEDUP_PLAN": "classic",
        "STREAM_DEDUP_STATE_DIR": str(crawl.folder / "shadow"),
    }
    for role in ("index", "worker"):
        crawl.start(role)
        crawl.start(role, **shadow)
    count = crawl.produce(synthetic(1000, 12, partitions=2))
    crawl.wait_until_committed(count)

    def count_judged() -> int:
        batches = (records.decode(message.value) for message in crawl.read(names.fingerprints))
        return sum(
            len(batch)
            for batch in batches
            if isinstance(batch, records.Batch) and batch.mode is Mode.SHADOW
        )

    wait_until(lambda: count_judged() == count, "the shadow has asked for every document")
    Outcome(crawl).check()


def test_fail_open_delivers_while_the_index_is_silent(make_filter: MakeFilter) -> None:
    """Copies of what was delivered are found once the index is back."""
    crawl = make_filter(partitions=2, fail_open="3s")
    index = crawl.start("index")
    index.wait_for_log("index started")
    worker = crawl.start("worker")
    first = crawl.produce(synthetic(500, 13, partitions=2))
    crawl.wait_until_committed(first)
    index.process.send_signal(signal.SIGSTOP)
    second = crawl.produce(synthetic(500, 14, partitions=2))
    crawl.wait_until_committed(first + second)
    worker.wait_for_log("the index does not answer")
    index.process.send_signal(signal.SIGCONT)
    wait_until(
        lambda: (
            worker.log.count("the index answers again")
            == worker.log.count("the index does not answer")
        ),
        "the worker waits for verdicts again",
    )
    third = crawl.produce(synthetic(500, 14, partitions=2))
    outcome = crawl.outcome()
    failed_open = [
        message for message in outcome.unique if header(message, "dedup.reason") == "fail-open"
    ]
    assert len(failed_open) >= second / 2
    assert len(outcome.duplicates) >= third / 2
