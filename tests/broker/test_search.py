"""The role search on a real broker contains each delivered document once, despite kills."""

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
    return role.get_json("/readyz").get("ready") is True


@pytest.mark.parametrize("step", ["search.before-commit", "search.after-commit"])
def test_search_does_not_find_forgotten_documents(step: str, make_filter: MakeFilter) -> None:
    """Also after a kill or a rebuild; a document that is crawled again is found."""
    crawl = make_filter(partitions=1)
    folder = crawl.folder / "state" / "search"
    text, other = (value for _, _, value, _ in synthetic(2, 5, partitions=1, duplicate_share=0.0))
    clue = "+".join(text.decode().split()[:8])

    def find_ids(role: Role) -> set[tuple[str, str]]:
        found = role.get_json(f"/v1/find?q={urllib.parse.quote(clue, safe='+')}")
        groups = role.get_json("/v1/groups")
        return {("document", document["id"]) for document in found.get("documents", ())} | {
            ("group", group["id"]) for group in groups.get("groups", ())
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
    expected = {("document", name) for name in ("kept", "copy", "mirror")} | {("group", "kept")}
    wait_until(lambda: find_ids(search) == expected, "all are found")
    run(crawl, "forget", "kept")
    assert search.wait() == -signal.SIGKILL, search.log

    search = crawl.start("search")
    wait_until(
        lambda: find_ids(search) == {("document", "copy"), ("document", "mirror"), ("group", "")},
        "it is gone",
    )
    run(crawl, "forget", "copy")
    wait_until(
        lambda: find_ids(search) == {("document", "mirror"), ("group", "")}, "the copy is gone"
    )
    assert search.stop() == 0

    shutil.rmtree(folder)
    search = crawl.start("search")
    wait_until(lambda: is_ready(search), "it is rebuilt")
    assert find_ids(search) == {("document", "mirror"), ("group", "")}
    with pytest.raises(urllib.error.HTTPError) as raised:  # though Kafka still contains the copy
        search.get(f"/decision.json?position={crawl.names.duplicates}-0@0")
    assert raised.value.code == 410
    raised.value.close()
    opened = search.get_json(f"/decision.json?position={crawl.names.duplicates}-0@1")
    assert (opened["record"]["id"], opened["record"]["text"]) == ("mirror", text.decode())
    assert (
        opened["kept"]["is_forgotten"],
        opened["kept"]["text"],
        opened["decision"]["kept_id"],
    ) == (True, "", "")
    assert search.get_json("/v1/groups")["groups"][0]["copies"] == 1
    crawl.produce([(0, b"kept", text, [])])
    crawl.wait_until_committed(5)
    wait_until(lambda: ("document", "kept") in find_ids(search), "a new crawl of it is found")
    assert search.stop() == 0
