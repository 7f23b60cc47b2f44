"""`/v1/similar` and `/v1/stats`, asked over a real socket."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.look_up import Similar
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.indexer import api as index_api
from stream_dedup.indexer.api import IndexApi
from stream_dedup.serving.http import HttpServer
from tests.index.logs import APPEND_MS, RECIPE, Doc, batch, declare
from tests.serving.serving import serving
from tests.serving.test_http import ask

BASE = 3**70
DOCS = [
    Doc(0, 0, 1, b"a" * 16, BASE, id=b"http://a/"),
    Doc(0, 1, 2, b"b" * 16, 1 << 90, id=b"\xff", scope=255, time_ms=-1),
    Doc(0, 2, 3, b"c" * 16, 0, features=1, id=b"short"),
]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[LogIndex]:
    log_index = LogIndex(RocksStore(tmp_path / "volume"))
    log_index.bind("cluster/0123")
    log_index.apply([(0, APPEND_MS, declare(PLANS["blocks"])), (1, APPEND_MS, batch(DOCS))])
    yield log_index
    log_index.close()


@pytest.fixture
def api(tmp_path: Path, index: LogIndex) -> IndexApi:
    new_api = IndexApi()
    new_api.serve(index)
    return new_api


@pytest.fixture
def server(api: IndexApi) -> Iterator[HttpServer]:
    with serving(api.routes()) as http_server:
        yield http_server


def similar(server: HttpServer, **changed: object) -> tuple[int, Any]:
    query = {
        "recipe": RECIPE,
        "print": f"{BASE ^ 0b111:032x}",
        "digest": b"x".hex() * 16,
        "features": 100,
        **changed,
    }
    query = {name: value for name, value in query.items() if value is not None}
    status, body, _ = ask(server, "/v1/similar?" + urllib.parse.urlencode(query))
    return status, json.loads(body)


def test_similar_returns_near_entries_with_all_fields(server: HttpServer) -> None:
    """Id, position, distance, time and log place of a representative, and what the answer holds
    for."""
    status, found = similar(server)

    assert status == 200
    assert (found["applied"], found["recipe"], found["plan"], found["total"]) == (
        2,
        RECIPE,
        PLANS["blocks"].id,
        1,
    )
    assert found["found"] == [
        {
            "id": "http://a/",
            "position": "documents-0@0",
            "topic_id": bytes(range(16)).hex(),
            "distance": 3,
            "similarity": None,
            "is_copy": True,
            "explanation": "",
            "time": "2026-09-21T14:13:15.000Z",
            "log": "1/0",
            "fingerprint": f"{BASE:032x}",
            "text_digest": "61" * 16,
            "scope": "0" * 16,
            "features": 100,
        }
    ]


def test_similar_applies_scope_digest_and_floor(server: HttpServer) -> None:
    """Another scope sees other documents; a short text is found by its digest, with a word why; ids
    are always text."""
    scoped = similar(server, print=f"{1 << 90:032x}", scope="ff")[1]
    short = similar(server, print="0" * 32, digest="63" * 16, features=1)[1]

    assert [(entry["id"], entry["time"]) for entry in scoped["found"]] == [
        ("\ufffd", "1969-12-31T23:59:59.999Z")
    ]
    assert ([entry["id"] for entry in short["found"]], short["by_digest_only"]) == (["short"], True)


@pytest.mark.parametrize(
    ("changed", "status", "sentence"),
    [
        ({"print": "zz"}, 400, "print must be 16 or 32 or 48 or 64 hexadecimal digits, not 'zz'"),
        ({"print": "0" * 33}, 400, "print must be"),
        ({"print": None}, 400, "print must be"),
        (
            {"print": "0" * 16},
            409,
            "contains fingerprints of 128 bits, but the request has one of 64",
        ),
        ({"digest": "ab"}, 400, "digest must be 32"),
        ({"features": "-1"}, 400, "features must be a whole number"),
        ({"features": None}, 400, "features must be"),
        ({"features": "9" * 5000}, 400, "features must be"),
        ({"scope": "1" * 17}, 400, "scope must be 1 to 16"),
        ({"limit": "0"}, 400, "limit must be a whole number from 1 to 1000"),
        ({"limit": "1001"}, 400, "limit must be"),
        ({"similarity": "7"}, 400, "A similarity is written as a share from 0.01 to 1"),
        ({"similarity": "0.7"}, 409, "The plan blocks compares no sketches"),
        ({"similarity": "0.7"}, 409, "Leave out the parameter similarity."),
        ({"similarity": "7"}, 400, "The parameter similarity: A similarity is written as a share"),
        (
            {"recipe": "words:128:other"},
            409,
            "'words:128:other', but this index contains fingerprints of 'words:128:test:000000'",
        ),
        ({"recipe": None}, 409, "cannot be compared"),
    ],
)
def test_a_bad_query_is_refused_with_its_reason(
    server: HttpServer, changed: dict[str, object], status: int, sentence: str
) -> None:
    found = similar(server, **changed)

    assert found[0] == found[1]["status"] == status
    assert sentence in found[1]["detail"]
    assert set(found[1]) == {"type", "title", "status", "detail"}


def test_only_get_is_allowed(server: HttpServer) -> None:
    """Only GET is answered; a body is not read."""
    for path in ("/v1/similar", "/v1/stats"):
        for method in ("POST", "PUT", "DELETE"):
            assert ask(server, path, method)[0] == 405


def test_stats_describe_the_index(server: HttpServer, index: LogIndex) -> None:
    """Counts, offsets, recipe and plan; nobody has the whole volume read by asking."""
    plain = json.loads(ask(server, "/v1/stats")[1])
    index._store.scan = None  # type: ignore[method-assign, assignment]
    assert json.loads(ask(server, "/v1/stats?digest=true")[1]) == plain

    assert plain["entries"] == {"live": 3, "with_neighbours": 2, "digest_only": 1, "removed": 0}
    assert (plain["log"], plain["applied"], plain["answered"], plain["recipe"]) == (
        "cluster/0123",
        2,
        0,
        RECIPE,
    )
    assert plain["chain"] == index.chain.hex()


def test_memory_returns_what_a_plan_needs(server: HttpServer, index: LogIndex) -> None:
    """For the entries that there are; without a bound any plan is held."""
    status, body, _ = ask(server, "/v1/memory?plan=bands")
    needed = index.memory_for(PLANS["bands"]).needed_bytes

    assert (status, json.loads(body)) == (
        200,
        {
            "plan": PLANS["bands"].id,
            "applied": 2,
            "is_enough": True,
            "entries": 3,
            "needed_bytes": needed,
            "allowed_bytes": 0,
        },
    )
    assert needed > 480 << 20
    for wrong in ("", "plan=none"):
        status, body, _ = ask(server, f"/v1/memory?{wrong}")
        assert status == 400
        assert "There is no plan" in json.loads(body)["detail"]


def test_an_index_that_is_opening_or_closed_returns_503(
    server: HttpServer, api: IndexApi, index: LogIndex
) -> None:
    """Before it is open, while it is being closed, and after it failed: 503 with why."""
    api.serve(None)
    assert similar(server)[0] == 503
    assert "opening its volume" in similar(server)[1]["detail"]
    api.serve(index)
    index.close()

    assert similar(server)[0] == 503
    assert "The index has stopped" in similar(server)[1]["detail"]


def test_look_ups_above_the_limit_are_refused(
    server: HttpServer, index: LogIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While as many as may be are under way, the next is told to try again; when they are done it
    is answered."""
    monkeypatch.setattr(index_api, "_WAIT_SECONDS", 0.05)
    inside, go_on = threading.Semaphore(0), threading.Event()

    def slow(*_: object) -> Similar:
        inside.release()
        go_on.wait(30)
        return Similar(2, PLANS["blocks"], (), 0, by_digest_only=False)

    monkeypatch.setattr(index, "similar", slow)
    threads = [
        threading.Thread(target=similar, args=(server,)) for _ in range(index_api.LOOKUPS_MAX)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        inside.acquire(timeout=30)
    refused = similar(server)
    go_on.set()
    for thread in threads:
        thread.join()

    assert (refused[0], "try again" in refused[1]["detail"]) == (503, True)
    assert similar(server)[0] == 200
