"""The role console on a real broker: decisions come, a killed one is replaced, and what is away is told in a sentence."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.broker import LocalBroker
from tests.broker.harness import Filter, Role, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

TEXT = " ".join(f"word{number}" for number in range(200))


def asked(role: Role, path: str) -> Any:
    """Return what a page's JSON twin says; {} while it does not answer."""
    try:
        with urllib.request.urlopen(f"{role.address()}{path}", timeout=10) as answer:  # noqa: S310 - our own address
            return json.loads(answer.read())
    except OSError:
        return {}


def test_a_console_tells_dead_letters_hosts_and_a_dead_broker(tmp_path: Path) -> None:
    """From what really lies in Kafka; with the broker gone, once on each page, and no page gives an all-clear."""
    with LocalBroker(tmp_path / "kafka") as broker:
        crawl = Filter(broker.bootstrap, tmp_path, partitions=2, value_format="json")
        crawl.create_topics()
        try:
            crawl.start("index")
            worker = crawl.start("worker")
            crawl.wait_until_committed(crawl.produce([(0, b"a", b"{", []), (1, b"b", json.dumps({"text": TEXT}).encode(), [])]))
            console = crawl.start("console")
            wait_until(lambda: asked(console, "/now.json").get("remarks"), "something is to be looked at")
            assert [one["text"] for one in asked(console, "/now.json")["remarks"]] == [
                "Dead letters that were not sent back: 1 (stage decode)."
            ]
            (kind,) = asked(console, "/dead-letters.json")["letters"]["kinds"]
            assert (kind["stage"], kind["count"], kind["waiting"]) == ("decode", 1, 1)
            assert asked(console, "/hosts.json")["is_told"] is False
            assert worker.stop() == 0
            broker.kill()
            pages = ("now", "decisions", "hosts", "groups", "dead-letters")
            for page in pages:
                wait_until(lambda page=page: asked(console, f"/{page}.json").get("notices"), "the page says it")
                (notice,) = asked(console, f"/{page}.json")["notices"]
                assert f"{broker.bootstrap} does not answer" in notice
            assert asked(console, "/now.json")["remarks"] is None
        finally:
            crawl.stop()
