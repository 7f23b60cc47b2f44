"""The console page and its JSON: readable, escaped, and nothing loaded from elsewhere."""

from __future__ import annotations

import json
import re
import urllib.request
from email.message import Message

from stream_dedup.insights.counts import ReasonCounts
from stream_dedup.insights.ledger import BegunEvent, Signals, View
from stream_dedup.insights.metrics import InsightsMetrics
from stream_dedup.insights.page import Console, page_of
from stream_dedup.insights.row import Event
from tests.service.serving import serving

EVIL = "<script>alert(1)</script>"
EVENT = Event("one-page", 5_000, 37, f"javascript:{EVIL}\x1b[31m", "documents-0@1")


def view() -> View:
    hosts = (
        Signals(
            "a.example", ReasonCounts(10, 4, 1, 2, 0, 12_345, 6_789), 1_000, 86_400, 2_000, (EVENT,)
        ),
        Signals(EVIL, ReasonCounts(1), None, 86_400, 2_000),
    )
    return View(
        hosts,
        (BegunEvent(EVIL, EVENT),),
        2,
        ReasonCounts(11, 4, 1, 2, 0, 12_345, 6_789),
        ReasonCounts(3),
    )


def test_the_page_shows_the_hosts() -> None:
    """A row a host, with shares and sizes that people read."""
    page = page_of(view(), owns=True)

    cells = re.findall(r"<td>(.*?)</td>", page)
    assert cells[:12] == [
        "a.example",
        "10",
        "70.0 %",
        "20.0 %",
        "4",
        "1",
        "0",
        "0",
        "12.3 kB",
        "6.8 kB",
        "1970-01-01T00:00:01Z",
        "one-page",
    ]
    assert "another one has the partition" not in page
    assert "another one has the partition" in page_of(view(), owns=False)


def test_nothing_of_a_crawl_is_code() -> None:
    """Names and ids are text: no tag, no link, no control character."""
    page = page_of(view(), owns=True)

    assert "<script" not in page
    assert "href" not in page
    assert "src=" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page


def test_both_are_served() -> None:
    console = Console()

    def get(path: str) -> tuple[str, Message]:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.read().decode(), answer.headers

    with serving(console.routes(), registry=InsightsMetrics().registry) as server:
        assert json.loads(get("/v1/hosts")[0])["hosts"] == []
        assert "None." in get("/")[0]
        console.show(view(), owns=True)

        page, headers = get("/")
        body = json.loads(get("/v1/hosts")[0])

    assert page == page_of(view(), owns=True)
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["content-type"].startswith("text/html")
    assert (body["counting"], body["known"], body["other"]["documents"]) == (True, 2, 3)
    assert body["hosts"][0]["duplicate_ratio"] == 0.7
    assert body["events"][0]["documents"] == 37
