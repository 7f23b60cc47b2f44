"""The role search on a real broker: it has what left exactly once, whenever it is killed, and says
whether it does its work."""

from __future__ import annotations

import shutil
import signal
import urllib.error
import urllib.parse
import urllib.request

import pytest

from tests.broker.harness import MakeFilter, Role, synthetic
from tests.broker.test_orders import run
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]


def is_ready(role: Role) -> bool:
    return role.asked("/readyz").get("ready") is True


@pytest.mark.parametrize("step", ["search.before-commit", "search.after-commit"])
def test_what_is_forgotten_is_found_no_more(step: str, make_filter: MakeFilter) -> None:
    """Through worker, index and the command `forget`: at once, killed on the way, filled anew;
    crawled anew it is found."""
    crawl = make_filter(partitions=1)
    folder = crawl.folder / "state" / "search"
    text, other = (value for _, _, value, _ in synthetic(2, 5, partitions=1, duplicate_share=0.0))
    clue = "+".join(text.decode().split()[:8])

    def shown(role: Role) -> set[tuple[str, str]]:
        found = role.asked(f"/v1/find?q={urllib.parse.quote(clue, safe='+')}")
        groups = role.asked("/v1/groups")
        return {("document", one["id"]) for one in found.get("documents", ())} | {
            ("group", one["id"]) for one in groups.get("groups", ())
        }

    crawl.start("index")
    crawl.start("worker")
    crawl.produce(
        [
            (0, b"kept", text, []),
            (0, b"copy", text, []),
            (0, b"mirror", text, []),
            (0, b"other", other, []),
        ]
    )
    crawl.wait_until_committed(4)
    search = crawl.start("search", STREAM_DEDUP_FAILPOINT=f"{step}:2:1")
    every = {("document", name) for name in ("kept", "copy", "mirror")} | {("group", "kept")}
    wait_until(lambda: shown(search) == every, "all are found")
    run(crawl, "forget", "kept")
    assert search.wait() == -signal.SIGKILL, search.log

    search = crawl.start("search")
    wait_until(
        lambda: shown(search) == {("document", "copy"), ("document", "mirror"), ("group", "")},
        "it is gone",
    )
    run(crawl, "forget", "copy")
    wait_until(lambda: shown(search) == {("document", "mirror"), ("group", "")}, "the copy is gone")
    assert search.stop() == 0

    shutil.rmtree(folder)
    search = crawl.start("search")
    wait_until(lambda: is_ready(search), "it is filled anew")
    assert shown(search) == {("document", "mirror"), ("group", "")}
    with pytest.raises(urllib.error.HTTPError) as raised:  # though Kafka has the copy still
        search.get(f"/decision.json?position={crawl.names.duplicates}-0@0")
    assert raised.value.code == 410
    raised.value.close()
    opened = search.asked(f"/decision.json?position={crawl.names.duplicates}-0@1")
    assert (opened["record"]["id"], opened["record"]["text"]) == ("mirror", text.decode())
    assert (
        opened["kept"]["is_forgotten"],
        opened["kept"]["text"],
        opened["decision"]["kept_id"],
    ) == (True, "", "")
    assert search.asked("/v1/groups")["groups"][0]["copies"] == 1
    crawl.produce([(0, b"kept", text, [])])
    crawl.wait_until_committed(5)
    wait_until(lambda: ("document", "kept") in shown(search), "what is crawled anew is found")
    assert search.stop() == 0
