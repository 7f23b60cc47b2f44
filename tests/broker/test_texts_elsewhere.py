"""Texts that lie on a web server: each record leaves once with its verdict, whatever the server and
the worker do meanwhile."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.broker.harness import Filter, Outcome, Role, header, peak_bytes, wait_until
from tests.broker.test_operating import text
from tests.broker.test_orders import run
from tests.broker.test_search import is_ready
from tests.inputs.store_server import Pages, Reply, serving

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

COUNT = 60
AWAY, GONE, REFUSED, COPY = 30, 11, 12, 40
MEMORY_BYTES = 400 << 20


@pytest.fixture
def pages() -> Iterator[Pages]:
    with serving() as pages:
        yield pages


def elsewhere(make_filter: Callable[..., Filter], pages: Pages, **settings: Any) -> Filter:
    return make_filter(
        partitions=1,
        value_format="json",
        text_at="uri",
        text_prefixes=f"{pages.url}/pages",
        log_level="info",
        **settings,
    )


def record(number: int, uri: str) -> tuple[int, bytes, bytes, list[Any]]:
    return 0, b"%d" % number, json.dumps({"uri": uri}).encode(), []


def measured(role: Role, name: str) -> str:
    return next(
        line.split()[1] for line in role.get("/metrics").splitlines() if line.startswith(f"{name} ")
    )


def test_one_that_is_away_holds_and_every_record_leaves_once(
    make_filter: Callable[..., Filter], pages: Pages
) -> None:
    crawl = elsewhere(make_filter, pages)
    for number in range(COUNT):
        pages.by_path[f"/pages/{number}"] = Reply(gzip.compress(text(number).encode()))
    pages.by_path[f"/pages/{COPY}"] = Reply(text(0).encode() + b" more")
    pages.by_path[f"/pages/{AWAY}"] = Reply(status=503)
    del pages.by_path[f"/pages/{GONE}"]
    records = [record(number, f"{pages.url}/pages/{number}") for number in range(COUNT)]
    records[REFUSED] = record(REFUSED, f"{pages.url}/secret")
    count = crawl.produce(records)
    _, worker = crawl.start_both()
    worker.says("the store of the texts is unavailable; the records wait")
    wait_until(lambda: crawl.committed() == AWAY, "what was read before it is committed")
    wait_until(lambda: measured(worker, "stream_dedup_texts_away") == "1.0", "the gauge says so")
    worker.kill()

    worker = crawl.start("worker")
    worker.says("the store of the texts is unavailable; the records wait")
    assert crawl.committed() == AWAY
    pages.by_path[f"/pages/{AWAY}"] = Reply(text(AWAY).encode())
    crawl.wait_until_committed(count)
    wait_until(lambda: measured(worker, "stream_dedup_texts_away") == "0.0", "the gauge says so")
    assert worker.stop() == 0
    outcome = Outcome(crawl)
    outcome.check()

    assert outcome.reasons() == {"new": COUNT - 3, "near": 1, "dead:fetch": 2}
    assert [(one.key, header(one, "dedup.of.id")) for one in outcome.duplicates] == [
        (b"%d" % COPY, "0")
    ]
    assert {one.key: header(one, "dedup.error.class") for one in outcome.dead} == {
        b"11": "NotFound",
        b"12": "AddressRefused",
    }
    assert all(pages.url in header(one, "__dlq.errors.message") for one in outcome.dead)
    assert "/secret" not in pages.asked


def test_one_that_never_comes_holds_nobody_and_comes_by_redrive(
    make_filter: Callable[..., Filter], pages: Pages
) -> None:
    """One address answers 401 and one drips, among others that come: their records are dead
    letters, those behind them leave, and a search has all of it, also what was sent back."""
    crawl = elsewhere(
        make_filter,
        pages,
        constants={
            "stream_dedup.inputs.claim_checks.PATIENCE_SECONDS": 3.0,
            "stream_dedup.inputs.claim_checks.ATTEMPT_SECONDS": 2.0,
        },
        text_bytes="1MB",
    )
    for number in range(COUNT):
        pages.by_path[f"/pages/{number}"] = Reply(text(number).encode())
    pages.by_path["/pages/7"] = Reply(status=401)
    pages.by_path["/pages/30"] = Reply(worse=pages.silent)
    count = crawl.produce(record(number, f"{pages.url}/pages/{number}") for number in range(COUNT))
    _, worker = crawl.start_both()
    outcome = crawl.outcome()
    assert outcome.reasons() == {"new": COUNT - 2, "dead:fetch": 2}
    assert {one.key: header(one, "dedup.error.class") for one in outcome.dead} == {
        b"7": "GivenUp",
        b"30": "GivenUp",
    }
    assert worker.process.poll() is None

    for number in (7, 30):
        pages.by_path[f"/pages/{number}"] = Reply(text(number).encode())
    search = crawl.start("search")
    wait_until(lambda: is_ready(search), "the search has read what left")
    sent = json.loads(run(crawl, "dlq", "redrive", "--class", "GivenUp", "--yes", "--json")[0])
    assert sent["letters"] == 2
    crawl.wait_until_committed(count + 2)
    wait_until(
        lambda: measured(search, "stream_dedup_search_documents") == f"{COUNT}.0",
        "the search has what was sent back",
    )
    assert measured(search, "stream_dedup_search_without_text_total") == "0.0"


def test_large_texts_stay_within_the_worker_s_memory(
    make_filter: Callable[..., Filter], pages: Pages
) -> None:
    """160 MB of texts, packed so that they come much faster than they are read, and a bomb among
    them."""
    crawl = elsewhere(make_filter, pages, memory=str(MEMORY_BYTES), text_bytes="5MB")
    for number in range(40):
        content = " ".join(f"{number}word{place}" for place in range(300_000))[:4_000_000]
        pages.by_path[f"/pages/{number}"] = Reply(gzip.compress(content.encode(), 1))
    pages.by_path["/pages/20"] = Reply(gzip.compress(bytes(1 << 30), 9))
    count = crawl.produce(record(number, f"{pages.url}/pages/{number}") for number in range(40))
    _, worker = crawl.start_both()
    crawl.wait_until_committed(count)
    peak = peak_bytes(worker)
    outcome = Outcome(crawl)
    outcome.check()

    print(f"{peak >> 20} MiB at most")
    assert outcome.reasons() == {"new": 39, "dead:fetch": 1}
    assert 0 < peak < MEMORY_BYTES
