"""The role console on a real broker: decisions come, a killed one is replaced, and what is away is
told in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.broker.harness import own_filter
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

TEXT = " ".join(f"word{number}" for number in range(200))


def test_a_console_tells_dead_letters_hosts_and_a_dead_broker(tmp_path: Path) -> None:
    """From what really lies in Kafka; with the broker gone, once on each page, and no page gives an
    all-clear."""
    with own_filter(tmp_path, partitions=2, value_format="json") as (broker, crawl):
        crawl.start("index")
        worker = crawl.start("worker")
        crawl.wait_until_committed(
            crawl.produce([(0, b"a", b"{", []), (1, b"b", json.dumps({"text": TEXT}).encode(), [])])
        )
        console = crawl.start("console")
        wait_until(
            lambda: console.asked("/now.json").get("remarks"), "something is to be looked at"
        )
        assert [one["text"] for one in console.asked("/now.json")["remarks"]] == [
            "Dead letters that were not sent back: 1 (stage decode)."
        ]
        (kind,) = console.asked("/dead-letters.json")["letters"]["kinds"]
        assert (kind["stage"], kind["count"], kind["not_sent_back"]) == ("decode", 1, 1)
        assert console.asked("/hosts.json")["has_signals"] is False
        assert worker.stop() == 0
        broker.kill()
        pages = ("now", "decisions", "hosts", "dead-letters")
        for page in pages:
            wait_until(
                lambda page=page: console.asked(f"/{page}.json").get("notices"), "the page says it"
            )
            (notice,) = console.asked(f"/{page}.json")["notices"]
            assert f"{broker.bootstrap} does not answer" in notice
        assert console.asked("/now.json")["remarks"] is None
