"""The role console on a real broker: it shows what Kafka contains, and a dead broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.broker.harness import run_broker_and_filter
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

TEXT = " ".join(f"word{number}" for number in range(200))


def test_the_console_shows_dead_letters_hosts_and_a_dead_broker(tmp_path: Path) -> None:
    """Without the broker, each page shows one notice and no all-clear."""
    with run_broker_and_filter(tmp_path, partitions=2, value_format="json") as (broker, crawl):
        crawl.start("index")
        worker = crawl.start("worker")
        crawl.wait_until_committed(
            crawl.produce([(0, b"a", b"{", []), (1, b"b", json.dumps({"text": TEXT}).encode(), [])])
        )
        console = crawl.start("console")
        wait_until(
            lambda: console.get_json("/now.json").get("remarks"), "the console shows a remark"
        )
        assert [remark["text"] for remark in console.get_json("/now.json")["remarks"]] == [
            "Dead letters that were not sent back: 1 (stage decode)."
        ]
        (kind,) = console.get_json("/dead-letters.json")["letters"]["kinds"]
        assert (kind["stage"], kind["count"], kind["not_sent_back"]) == ("decode", 1, 1)
        assert console.get_json("/hosts.json")["has_signals"] is False
        assert worker.stop() == 0
        broker.kill()
        pages = ("now", "decisions", "hosts", "dead-letters")
        for page in pages:
            wait_until(
                lambda page=page: console.get_json(f"/{page}.json").get("notices"),
                f"{page} shows a notice",
            )
            (notice,) = console.get_json(f"/{page}.json")["notices"]
            assert f"{broker.bootstrap} does not answer" in notice
        assert console.get_json("/now.json")["remarks"] is None
