"""Texts on a web server: each record leaves once, though server and worker go away."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.harness import Filter, MakeFilter, Outcome, Role, header
from tests.broker.test_operating import text
from tests.inputs.store_server import Pages, Reply, serving
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

COUNT = 60
AWAY, GONE, REFUSED, COPY = 30, 11, 12, 40


@pytest.fixture
def pages() -> Iterator[Pages]:
    with serving() as pages:
        yield pages


def make_claim_check_filter(make_filter: MakeFilter, pages: Pages, **settings: Any) -> Filter:
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


def read_metric(role: Role, name: str) -> str:
    return next(
        line.split()[1] for line in role.get("/metrics").splitlines() if line.startswith(f"{name} ")
    )


def test_an_unavailable_text_delays_its_partition_and_each_record_leaves_once(
    make_filter: MakeFilter, pages: Pages
) -> None:
    crawl = make_claim_check_filter(make_filter, pages)
    for number in range(COUNT):
        pages.by_path[f"/pages/{number}"] = Reply(gzip.compress(text(number).encode()))
    pages.by_path[f"/pages/{COPY}"] = Reply(text(0).encode() + b" more")
    pages.by_path[f"/pages/{AWAY}"] = Reply(status=503)
    del pages.by_path[f"/pages/{GONE}"]
    records = [record(number, f"{pages.url}/pages/{number}") for number in range(COUNT)]
    records[REFUSED] = record(REFUSED, f"{pages.url}/secret")
    count = crawl.produce(records)
    _, worker = crawl.start_both()
    worker.wait_for_log("the store of the texts is unavailable; the records wait")
    wait_until(lambda: crawl.committed() == AWAY, "what was read before it is committed")
    wait_until(lambda: read_metric(worker, "stream_dedup_texts_away") == "1.0", "the gauge says so")
    worker.kill()

    worker = crawl.start("worker")
    worker.wait_for_log("the store of the texts is unavailable; the records wait")
    assert crawl.committed() == AWAY
    pages.by_path[f"/pages/{AWAY}"] = Reply(text(AWAY).encode())
    crawl.wait_until_committed(count)
    wait_until(lambda: read_metric(worker, "stream_dedup_texts_away") == "0.0", "the gauge says so")
    assert worker.stop() == 0
    outcome = Outcome(crawl)
    outcome.check()

    assert outcome.reasons() == {"new": COUNT - 3, "near": 1, "dead:fetch": 2}
    found = [(message.key, header(message, "dedup.of.id")) for message in outcome.duplicates]
    assert found == [(b"%d" % COPY, "0")]
    found = {message.key: header(message, "dedup.error.class") for message in outcome.dead}
    assert found == {b"11": "NotFound", b"12": "AddressRefused"}
    assert all(pages.url in header(message, "__dlq.errors.message") for message in outcome.dead)
    assert "/secret" not in pages.asked
