"""The role console on a real broker: decisions come, a killed one is replaced, and what is away is
told in a sentence."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from tests.broker.harness import own_filter, wait_until

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
        assert (kind["stage"], kind["count"], kind["waiting"]) == ("decode", 1, 1)
        assert console.asked("/hosts.json")["is_told"] is False
        assert worker.stop() == 0
        broker.kill()
        pages = ("now", "decisions", "hosts", "groups", "dead-letters")
        for page in pages:
            wait_until(
                lambda page=page: console.asked(f"/{page}.json").get("notices"), "the page says it"
            )
            (notice,) = console.asked(f"/{page}.json")["notices"]
            assert f"{broker.bootstrap} does not answer" in notice
        assert console.asked("/now.json")["remarks"] is None


def test_a_decision_tells_what_its_crowd_says(tmp_path: Path) -> None:
    """Of a page of a large site, why it was kept, with the page most like it beside it; of a copy,
    what else it shares."""
    chance = random.Random(47)

    def words(count: int) -> list[str]:
        return [f"w{chance.randrange(10**6)}" for _ in range(count)]

    template = words(160)
    pages = [[*template, *words(30)] for _ in range(25)]
    copy = [*pages[7][:100], "word", *pages[7][101:]]
    with own_filter(tmp_path, partitions=1, similarity="0.95") as (_, crawl):
        index = crawl.start("index")
        crawl.start("worker")

        def send(number: int, text: list[str]) -> None:
            crawl.produce([(0, b"http://site/%d" % number, " ".join(text).encode(), [])])

        for number, page in enumerate(pages[:24]):
            send(number, page)
        crawl.wait_until_committed(24)
        crawl.command("declare", "--similarity", "0.65", "--index", index.address())
        send(24, pages[24])
        send(25, copy)
        crawl.wait_until_committed(26)
        console = crawl.start("console", STREAM_DEDUP_CONSOLE_INDEX=index.address())
        wait_until(
            lambda: len(console.asked("/decisions.json").get("decisions", ())) == 26,
            "the decisions are there",
        )
        newest = {one["id"]: one["at"] for one in console.asked("/decisions.json")["decisions"]}
        kept, near = (
            console.asked(f"/decision.json?at={newest[f'http://site/{number}']}")
            for number in (24, 25)
        )
        assert (kept["kept"]["at"], kept["witness"]["others"]) == (kept["witness"]["position"], 23)
        assert near["decision"]["of_position"] == near["witness"]["position"]
        of_others, asked = r"f what 2[23] others do not share, 0\.", r" copy has 0\.40 of it\."
        like = r"Kept beside others like it: http://site/\d+ is 0\.[6-9]\d alike; o"
        assert re.fullmatch(
            rf"{like}{of_others}[0-3]\d: not a copy\. A{asked}", kept["witness"]["said"]
        )
        assert re.fullmatch(
            rf"And o{of_others}[6-9]\d is in both; a{asked}", near["witness"]["said"]
        )
        assert kept["comparison"]["changes"] > 0
        index.kill()
        assert console.asked(f"/decision.json?at={newest['http://site/24']}")["witness"] is None
