"""The role search on a real broker: it has what left exactly once, whenever it is killed, and says whether it does its work."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.fingerprinting import Languages
from stream_dedup.ground.document import Headers
from stream_dedup.search.clue import clue_of
from stream_dedup.search.facts import FoundText
from stream_dedup.search.texts import TextIndex
from tests.broker.harness import Filter, Role, synthetic, wait_until
from tests.broker.test_orders import run

pytestmark = [pytest.mark.broker, pytest.mark.thorough]


def copy_of(kept: int) -> Headers:
    """Return the headers of a copy of a kept document, as a worker writes them."""
    of = {"of.id": f"kept{kept}", "of.position": f"documents-0@{kept}", "similarity": "0.87"}
    own = {"verdict": "duplicate", "reason": "near"} | of
    return [(f"dedup.{name}", value.encode()) for name, value in own.items()]


KEPT: Headers = [("dedup.verdict", b"unique"), ("dedup.reason", b"new")]


def asked(role: Role, path: str) -> Any:
    """Return what a role answers; {} while it does not."""
    try:
        with urllib.request.urlopen(f"{role.address()}{path}", timeout=10) as answer:  # noqa: S310 - our own address
            return json.loads(answer.read())
    except OSError:
        return {}


def is_ready(role: Role) -> bool:
    return asked(role, "/readyz").get("ready") is True


def found_in(folder: Path, clue: str) -> tuple[list[FoundText], dict[str, int]]:
    """Return the documents in a folder that nobody has open, and the copies of each group."""
    engine = TextIndex(folder)
    try:
        found = engine.find(clue_of(clue, Languages()), 10_000)
        return found, {one.position: one.copies for one in engine.groups("largest", 1000)}
    finally:
        engine.close()


def test_a_killed_search_has_everything_exactly_once(make_filter: Callable[..., Filter]) -> None:
    crawl = make_filter(partitions=2)
    folder = crawl.folder / "state" / "search"
    texts = [f"quick brown fox number{number}" for number in range(60)]
    kept = [(number % 2, b"kept%d" % number, text.encode(), KEPT) for number, text in enumerate(texts)]
    copies = [(number % 2, b"copy%d" % number, texts[number % 7].encode(), copy_of(number % 7)) for number in range(60)]
    kills = ["search.before-commit:1:1", "search.after-commit:1:1", "search.before-commit:2:1", "search.after-commit:2:1"]
    for part, kill in enumerate(kills):
        own = slice(15 * part, 15 * part + 15)
        crawl.produce(kept[own], topic=crawl.names.unique)
        crawl.produce(copies[own], topic=crawl.names.duplicates)
        role = crawl.start("search", STREAM_DEDUP_FAILPOINT=kill)
        if ":2:" in kill:
            wait_until(lambda role=role: is_ready(role) or role.process.poll(), "it has read what there was")
            crawl.produce([(0, b"late%d" % part, b"late comer", KEPT)], topic=crawl.names.unique)
        assert role.wait() == -signal.SIGKILL, role.log

    last = crawl.start("search")
    wait_until(lambda: is_ready(last), "it is ready")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, last.process.pid) == min(19, own + 10), "those that judge come first"
    assert last.stop() == 0
    found, groups = found_in(folder, "quick brown")

    written = [*crawl.read(crawl.names.unique), *crawl.read(crawl.names.duplicates)]
    places = [one.at for one in written if b"quick" in (one.value or b"")]
    assert sorted(one.facts.at for one in found) == sorted(places)
    assert groups == {f"documents-0@{kept}": count for kept, count in Counter(number % 7 for number in range(60)).items()}
    assert [one.facts.reason for one in found] == ["new"] * 60 + ["near"] * 60, "of equals the kept ones come first"
    assert len(found_in(folder, "late comer")[0]) == 2


@pytest.mark.parametrize("step", ["search.before-commit", "search.after-commit"])
def test_what_is_forgotten_is_found_no_more(step: str, make_filter: Callable[..., Filter]) -> None:
    """Through worker, index and the command `forget`: at once, killed on the way, filled anew; crawled anew it is found."""
    crawl = make_filter(partitions=1)
    folder = crawl.folder / "state" / "search"
    text, other = (value for _, _, value, _ in synthetic(2, 5, partitions=1, duplicate_share=0.0))
    clue = "+".join(text.decode().split()[:8])

    def shown(role: Role) -> set[tuple[str, str]]:
        found = asked(role, f"/v1/find?q={urllib.parse.quote(clue, safe='+')}")
        groups = asked(role, "/v1/groups")
        return {("document", one["id"]) for one in found.get("documents", ())} | {
            ("group", one["id"]) for one in groups.get("groups", ())
        }

    crawl.start("index")
    crawl.start("worker")
    crawl.produce([(0, b"kept", text, []), (0, b"copy", text, []), (0, b"mirror", text, []), (0, b"other", other, [])])
    crawl.wait_until_committed(4)
    search = crawl.start("search", STREAM_DEDUP_FAILPOINT=f"{step}:2:1")
    every = {("document", name) for name in ("kept", "copy", "mirror")} | {("group", "kept")}
    wait_until(lambda: shown(search) == every, "all are found")
    run(crawl, "forget", "kept")
    assert search.wait() == -signal.SIGKILL, search.log

    search = crawl.start("search")
    wait_until(lambda: shown(search) == {("document", "copy"), ("document", "mirror"), ("group", "")}, "it is gone")
    run(crawl, "forget", "copy")
    wait_until(lambda: shown(search) == {("document", "mirror"), ("group", "")}, "the copy is gone")
    assert search.stop() == 0

    shutil.rmtree(folder)
    search = crawl.start("search")
    wait_until(lambda: is_ready(search), "it is filled anew")
    assert shown(search) == {("document", "mirror"), ("group", "")}
    with pytest.raises(urllib.error.HTTPError) as raised:  # though Kafka has the copy still
        urllib.request.urlopen(f"{search.address()}/decision.json?at={crawl.names.duplicates}-0@0", timeout=10)  # noqa: S310
    assert raised.value.code == 410
    raised.value.close()
    opened = asked(search, f"/decision.json?at={crawl.names.duplicates}-0@1")
    assert (opened["own"]["id"], opened["own"]["text"]) == ("mirror", text.decode())
    assert (opened["kept"]["is_forgotten"], opened["kept"]["text"], opened["decision"]["of_id"]) == (True, "", "")
    assert asked(search, "/v1/groups")["groups"][0]["copies"] == 1
    crawl.produce([(0, b"kept", text, [])])
    crawl.wait_until_committed(5)
    wait_until(lambda: ("document", "kept") in shown(search), "what is crawled anew is found")
    assert search.stop() == 0
