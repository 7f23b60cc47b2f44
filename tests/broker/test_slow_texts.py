"""Texts that take long to prepare: the worker lives and stays in its group, and gets further
whenever it ends."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from stream_dedup.domain.document import Headers
from stream_dedup.log import records
from tests.broker.harness import Filter, Outcome, Role, wait_until
from tests.broker.test_operating import text

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

LIVEZ_SECONDS = 3.0
# The extractor's work grows with the square of the depth: this page would keep it busy for a
# quarter of a minute. It is given two seconds of CPU; eight such pages take more than one interval,
# and one takes less on a machine that is five times too busy.
HANGS = "<div>" * 15_000
HANGS_POLL_MS = 12_000


@contextmanager
def probed(worker: Role) -> Iterator[list[int]]:
    """Ask the worker ten times a second whether it lives, as Kubernetes would; gives the answers'
    status codes."""
    answers: list[int] = []
    is_over = threading.Event()
    url = f"{worker.address()}/livez"

    def ask() -> None:
        while not is_over.wait(0.1):
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own address
                    answers.append(answer.status)
            except urllib.error.HTTPError as error:
                answers.append(error.code)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        is_over.set()
        thread.join()


def page(content: str) -> tuple[int, bytes, bytes, Headers]:
    return 0, content[-20:].encode(), json.dumps({"text": content}).encode(), []


def stays(worker: Role) -> None:
    """The group never took the partition away."""
    assert worker.process.poll() is None
    assert not re.search(r"partitions (lost|revoked)", worker.log)


def test_pages_that_hang_the_extractor_end_no_worker(make_filter: Callable[..., Filter]) -> None:
    crawl = make_filter(
        partitions=1,
        text_is="html",
        constants={"stream_dedup.serving.health.STALLED_SECONDS": LIVEZ_SECONDS},
        kafka_max_poll_interval_ms=HANGS_POLL_MS,
        log_level="info",
    )
    pages = [page(f"<p>{text(at)}</p>" if at % 2 else f"{HANGS}page {at}") for at in range(16)]
    count = crawl.produce(pages)
    crawl.start("index")
    worker = crawl.start("worker")
    with probed(worker) as answers:
        wait_until(lambda: 0 < crawl.committed() < count, "a part of the batch is committed")
        stays(worker)
    before = crawl.committed()
    worker.kill()

    worker = crawl.start("worker")
    with probed(worker) as more:
        wait_until(lambda: crawl.committed() > before, "the next worker gets further")
        crawl.wait_until_committed(count)
        stays(worker)
    outcome = Outcome(crawl)
    outcome.check()

    assert set(answers + more) == {200}
    assert outcome.reasons() == {"dead:fingerprint": 8, "new": 8}
    log = [records.decode(one.value) for one in crawl.read(crawl.names.fingerprints)]
    orders = [
        one.fields for one in log if isinstance(one, records.Control) and one.type == "retract"
    ]
    assert sum(len(fields["positions"]) for fields in orders) >= 8
