"""`/v1/find` and `/v1/groups`, asked over a real socket; and how a finder answers."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.console.app import CALLS_MAX
from stream_dedup.console.values import Decision, OpenedRecord
from stream_dedup.domain.document import digest_id, shorten_id
from stream_dedup.domain.errors import BrokerError, StreamDedupError
from stream_dedup.fingerprinting import Languages
from stream_dedup.search import finding
from stream_dedup.search.facts import EngineCheckpoint, TextFacts
from stream_dedup.search.finding import Finder
from stream_dedup.search.forgotten import ForgottenId, ForgottenIds, key_of, shown_key_of
from stream_dedup.search.query import QUERY_BYTES_MAX, words_of
from stream_dedup.search.texts import TextIndex
from stream_dedup.serving import http_client
from stream_dedup.serving.http import HttpServer
from tests.search.serving import serving_api
from tests.waiting import wait_until

LANGUAGES = Languages()
KEPT = "https://a.example/kept"
TEXTS = {
    "unique-0@0": (KEPT, "The quick brown fox <b>jumps</b> over the lazy dog."),
    "duplicates-0@0": ("https://b.example/copy", "The quick brown fox jumps over the lazy cat."),
    "duplicates-0@1": ("https://c.example/copy", "A quick brown fox jumps over the dog."),
    "unique-0@1": ("https://d.example/alone", "我们在北京大学学习中文"),
}


class Texts:
    """The texts that Kafka still contains."""

    def __init__(self) -> None:
        self.kept = {position: text for position, (_, text) in TEXTS.items()}
        self.is_away = False

    def texts_at(self, places: Iterable[str]) -> Mapping[str, str]:
        if self.is_away:
            raise BrokerError("nobody answers")
        return {position: self.kept[position] for position in places if position in self.kept}


@pytest.fixture
def texts() -> Texts:
    return Texts()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[TextIndex]:
    text_index = TextIndex(tmp_path / "engine")
    for number, (position, (identifier, text)) in enumerate(TEXTS.items()):
        is_copy = position.startswith("dup")
        facts = TextFacts(
            position,
            identifier,
            1000 + number,
            len(text),
            "duplicate" if is_copy else "unique",
            "near" if is_copy else "new",
        )._replace(source_position=f"documents-0@{number}")
        if is_copy:
            facts = facts._replace(similarity=0.9, group_position="documents-0@0", kept_id=KEPT)
        text_index.add_text(facts, words_of(text, LANGUAGES))
    text_index.commit(EngineCheckpoint({}, {}))
    yield text_index
    text_index.close()


@pytest.fixture
def finder(engine: TextIndex, texts: Texts) -> Finder:
    return Finder(engine, LANGUAGES, texts.texts_at)


@pytest.fixture
def server(finder: Finder) -> Iterator[HttpServer]:
    with serving_api(finder) as http_server:
        yield http_server


def ask(
    server: HttpServer, path: str, body: bytes | None = None, **query: object
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        path += "?" + urllib.parse.urlencode(query) if query else ""
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_find_returns_the_best_documents_first(server: HttpServer) -> None:
    """Where they lie, how much they hold, where, what became of them, and their group; asked by GET
    and by POST."""
    clue = "brown fox jumps over the lazy dog"
    status, found = ask(server, "/v1/find", q=clue)

    assert status == 200
    assert [
        (hit["output_position"], round(hit["share"], 2), hit["verdict"], hit["group_position"])
        for hit in found["documents"]
    ] == [
        ("duplicates-0@0", 0.83, "duplicate", "documents-0@0"),
        ("unique-0@0", 0.67, "unique", "documents-0@0"),
        ("duplicates-0@1", 0.67, "duplicate", "documents-0@0"),
    ]
    assert ["".join(text for text, _ in hit["snippet"]) for hit in found["documents"]] == [
        TEXTS[hit["output_position"]][1] for hit in found["documents"]
    ]
    assert ask(server, "/v1/find", clue.encode()) == (200, found)
    assert ask(server, "/v1/find", clue.encode(), limit=1)[1]["documents"] == found["documents"][:1]
    assert [
        hit["id"]
        for hit in ask(server, "/v1/find", q="在北京大学学习", min_share=1)[1]["documents"]
    ] == ["https://d.example/alone"]


def test_find_counts_orders_and_pages_all_matches(server: HttpServer, engine: TextIndex) -> None:
    """Each page says the total; the earliest first says who was first; one host, with its
    subdomains; without snippets a long list."""
    clue = "brown fox jumps over the lazy dog"

    def listed(**query: object) -> tuple[int, int, list[str]]:
        answer = ask(server, "/v1/find", q=clue, **query)[1]
        return answer["total"], answer["hosts"], [hit["host"] for hit in answer["documents"]]

    assert listed(order="earliest") == (3, 3, ["a.example", "b.example", "c.example"])
    assert listed(order="newest", limit=2) == (3, 3, ["c.example", "b.example"])
    assert listed(order="newest", limit=2, offset=2) == (3, 3, ["a.example"])
    assert listed(offset=3) == (3, 3, [])
    assert listed(host="https://B.example/") == (1, 1, ["b.example"])
    assert listed(host="example", order="earliest")[2] == ["a.example", "b.example", "c.example"]
    assert listed(host="other.example") == (0, 0, [])
    answer = ask(server, "/v1/find", q=clue, snippets="no", limit=10_000)[1]
    assert (answer["is_whole"], [hit["snippet"] for hit in answer["documents"]]) == (True, [[]] * 3)
    engine.add_text(
        TextFacts("unique-0@9", "no url", 1, 1, "unique", "new"), words_of(clue, LANGUAGES)
    )
    engine.commit(EngineCheckpoint({}, {}))
    assert listed(limit=1)[:2] == (4, 3), "an id without a host is of no host"


def test_a_page_that_was_fetched_again_is_listed_once(
    server: HttpServer, engine: TextIndex
) -> None:
    """With the number of its fetches and the times of the first and the newest; `find` lists the
    fetch that comes first in its order, a group the newest."""
    position, (identifier, text) = "duplicates-0@0", TEXTS["duplicates-0@0"]
    fetch = TextFacts(position, identifier, 0, len(text), "duplicate", "exact")._replace(
        group_position="documents-0@0", kept_id=KEPT
    )
    for offset, time_ms in ((5, 3000), (6, 2000), (7, 0)):
        again = fetch._replace(
            output_position=f"duplicates-0@{offset}",
            time_ms=time_ms,
            source_position=f"documents-0@{offset}",
        )
        engine.add_text(again, words_of(text, LANGUAGES))
    engine.commit(EngineCheckpoint({}, {}))

    for order, listed in (("earliest", position), ("newest", "duplicates-0@5")):
        found = ask(server, "/v1/find", q="quick brown fox jumps over the lazy cat", order=order)[1]
        (page,) = [hit for hit in found["documents"] if hit["id"] == identifier]
        assert (page["output_position"], page["fetches"]) == (listed, 4)
        assert (page["first_ms"], page["newest_ms"]) == (1001, 3000)
        assert found["total"] == len(found["documents"]) == 3
    group = ask(server, "/v1/groups", document=KEPT)[1]
    assert group["copies"] == 5
    assert [(hit["output_position"], hit["fetches"]) for hit in group["members"]] == [
        ("duplicates-0@5", 4),
        ("duplicates-0@1", 1),
    ]
    assert [
        hit["id"] for hit in ask(server, "/v1/groups", document=KEPT, limit=1)[1]["members"]
    ] == [identifier]


def test_a_total_at_its_limit_is_reported_as_incomplete(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "FOUND_MAX", 2)
    answer = ask(server, "/v1/find", q="quick brown fox")[1]
    assert (answer["total"], answer["is_whole"]) == (2, False)


def test_a_document_without_a_stored_text_has_no_snippet(server: HttpServer, texts: Texts) -> None:
    """The document is still found, also while Kafka is unavailable."""
    del texts.kept["unique-0@0"]
    found = {
        hit["output_position"]: hit["snippet"]
        for hit in ask(server, "/v1/find", q="quick brown fox")[1]["documents"]
    }
    assert (found["unique-0@0"], bool(found["duplicates-0@0"])) == ([], True)

    texts.is_away = True
    assert [
        hit["snippet"] for hit in ask(server, "/v1/find", q="quick brown fox")[1]["documents"]
    ] == [[], [], []]


@pytest.mark.parametrize(
    "named",
    [
        "documents-0@0",
        "documents-0@1",
        "duplicates-0@1",
        "unique-0@0",
        KEPT,
        "https://b.example/copy",
    ],
)
def test_a_group_is_returned_for_any_of_its_documents(server: HttpServer, named: str) -> None:
    """By where it or a copy lies in the source or left, and by either's id."""
    status, found = ask(server, "/v1/groups", document=named)

    assert status == 200
    assert (found["position"], found["id"], found["copies"], found["newest_ms"]) == (
        "documents-0@0",
        KEPT,
        2,
        1002,
    )
    assert [
        (member["host"], member["reason"], member["similarity"], member["size"])
        for member in found["members"]
    ] == [
        ("c.example", "near", 0.9, 37),
        ("b.example", "near", 0.9, 44),
    ]


def test_limit_bounds_the_listed_copies_of_a_group(server: HttpServer) -> None:
    """The newest copies are listed; the number of all copies is returned too."""
    found = ask(server, "/v1/groups", document=KEPT, limit=1)[1]

    assert (found["copies"], [member["time_ms"] for member in found["members"]]) == (2, [1002])
    assert (found["host"], found["earliest"]["output_position"]) == ("a.example", "duplicates-0@0")
    assert ask(server, "/v1/groups", document=KEPT, limit=0)[0] == 400


def test_a_finder_knows_older_and_exact_copies_and_releases(
    finder: Finder, engine: TextIndex
) -> None:
    """A copy that is older than the kept page, one of the same text, and a document's release."""
    given = ("duplicates-0@2", "https://e.example/1", 999, 99, "duplicate", "exact", None)
    copy = TextFacts(*given, "documents-0@0", KEPT, source_position="documents-0@7")
    engine.add_text(copy, (), "", ["e.example", "a.example"])
    engine.commit(EngineCheckpoint({}, {}))
    assert finder.released_position("documents-0@7") == ""
    (pair,) = finder.host_pairs("").pairs
    assert (pair.example, pair.is_older_than_kept) == ("duplicates-0@2", True)
    group = finder.group(KEPT)
    assert group is not None
    assert (group.earliest and group.earliest.similarity, group.hosts) == (1.0, 4)

    released = TextFacts("unique-0@9", copy.id, 1010, 99, "unique", "released")
    engine.add_text(released._replace(source_position="documents-0@7"), ())
    engine.commit(EngineCheckpoint({}, {}))
    assert finder.released_position("documents-0@7") == "unique-0@9"
    assert finder.host_pairs("").pairs == ()
    for named in (KEPT, "unique-0@9", "duplicates-0@2", "documents-0@7", copy.id):
        group = finder.group(named)
        assert group is not None, named
        assert (group.copies, group.released, len(group.members), group.hosts) == (2, 1, 2, 3)
        (member,) = group.released_members
        assert (member.output_position, member.reason) == ("unique-0@9", "released")
    second = finder.group(KEPT, 1, 1)
    assert second is not None
    assert second.released_members == (), "they are listed on the first page"
    copy_of_itself = copy._replace(
        output_position="duplicates-0@3", source_position="documents-0@8"
    )
    engine.add_text(copy_of_itself._replace(group_position="documents-0@7", id="copy of it"), ())
    engine.commit(EngineCheckpoint({}, {}))
    group = finder.group("unique-0@9")
    assert group is not None
    assert (group.position, group.copies) == ("documents-0@7", 1)


def test_a_group_lists_no_kept_page(finder: Finder, engine: TextIndex) -> None:
    """A fetch of the kept page counts for the kept page: it is no member and not the earliest."""
    given = ("duplicates-0@2", KEPT, 999, 99, "duplicate", "revised", 0.9)
    engine.add_text(TextFacts(*given, "documents-0@0", KEPT), ())
    engine.commit(EngineCheckpoint({}, {}))
    group = finder.group(KEPT)
    assert group is not None
    assert (group.copies, group.fetched_again, group.member_count) == (2, 1, 2)
    assert [member.id for member in group.members if member.id == KEPT] == []
    assert (group.oldest_ms, group.earliest and group.earliest.time_ms) == (1001, 1001)


def test_a_group_is_found_by_a_long_id(finder: Finder, engine: TextIndex) -> None:
    """The log shortens an id of more than 512 bytes; a page's whole address names the group."""
    kept_id, copy_id = (f"https://a.example/{letter * 2000}" for letter in "ko")
    short = shorten_id(kept_id.encode()).decode()
    copy = TextFacts(
        "duplicates-0@5", copy_id, 1003, 9, "duplicate", "near", 0.9, "documents-0@5", short
    )
    engine.add_text(copy, (), "", ["a.example"])
    long_id = f"https://a.example/{'p' * 2000}"
    stored = copy._replace(
        output_position="duplicates-0@6", id=shorten_id(long_id.encode()).decode()
    )
    engine.add_text(stored, (), "", ["a.example"])
    engine.commit(EngineCheckpoint({}, {}))

    for named in (kept_id, short, copy_id, long_id, stored.id):
        group = finder.group(named)
        assert group is not None, named
        assert group.position == "documents-0@5"


def test_groups_are_listed(server: HttpServer) -> None:
    found = ask(server, "/v1/groups", order="newest")[1]

    assert [
        (group_found["position"], group_found["copies"], group_found["bytes_wasted"])
        for group_found in found["groups"]
    ] == [("documents-0@0", 2, 81)]
    assert [
        (group_found["oldest_ms"], group_found["newest_ms"], group_found["counted"])
        for group_found in found["groups"]
    ] == [(1001, 1002, None)]
    assert [group_found["best"] for group_found in found["groups"]] == [None]


def test_a_group_has_its_best_copy_and_the_count_of_the_log(
    server: HttpServer, engine: TextIndex
) -> None:
    copy = TextFacts(
        "duplicates-0@2",
        "https://e.example/full",
        1009,
        99,
        "duplicate",
        "near",
        0.8,
        "documents-0@0",
        KEPT,
    )
    engine.add_text(copy._replace(better="longest", counted=7, log_offset=5), ["fox"])
    engine.commit(EngineCheckpoint({}, {}))

    group = ask(server, "/v1/groups", document=KEPT)[1]
    assert (group["copies"], group["counted"]) == (3, 7)
    where = {
        "output_position": "duplicates-0@2",
        "id": "https://e.example/full",
        "host": "e.example",
        "time_ms": 1009,
        "size": 99,
        "fetches": 1,
        "first_ms": 1009,
        "newest_ms": 1009,
    }
    assert group["best"] == where | {
        "reason": "near",
        "similarity": 0.8,
        "better": "longest",
        "title": "",
    }
    assert group["members"][0] == group["best"]
    assert ask(server, "/v1/groups")[1]["groups"][0]["best"] == group["best"]


def test_a_group_is_found_by_the_digest_of_its_kept_id(engine: TextIndex, texts: Texts) -> None:
    key = b"k" * 16
    digest = digest_id(b"https://d.example/alone", key).decode()
    engine.add_text(
        TextFacts("duplicates-0@9", "x", 9, 9, "duplicate", "exact", None, "documents-0@7", digest),
        ["a"],
    )
    engine.commit(EngineCheckpoint({}, {}))

    found = Finder(engine, LANGUAGES, texts.texts_at, key).group("https://d.example/alone")
    assert found is not None
    assert found.position == "documents-0@7"


def test_a_record_that_was_forgotten_is_not_opened(engine: TextIndex, texts: Texts) -> None:
    """By the log's place that decided on it, or, where its record names none, by its time; also
    where the log has digests, and for an id that is no UTF-8. What came later is opened, and
    nothing is before all take-downs are known."""
    key, long = b"k" * 16, b"https://a.example/" + b"x" * 5000
    for id_key, ids in (
        (None, [KEPT.encode(), b"\xff", shorten_id(long)]),
        (
            key,
            [
                digest_id(KEPT.encode(), key),
                digest_id("\ufffd".encode(), key),
                digest_id(shorten_id(long), key),
            ],
        ),
    ):
        known = [
            ForgottenId(key_of(raw), shown_key_of(raw.decode("utf-8", "replace")), 7, 1000)
            for raw in ids
        ]
        forgotten = ForgottenIds(known)
        finder = Finder(engine, LANGUAGES, texts.texts_at, id_key, forgotten)
        for identifier in (KEPT, "\ufffd", long.decode()):
            decided = Decision(
                "unique-0@0", "unique", 0, 0, identifier, "", "unique", "new", 9999, 9, log="6/999"
            )
            record = OpenedRecord("unique-0@0", identifier, "a text", "", decided, 9999)
            source = OpenedRecord("documents-0@0", identifier, "a text", time_ms=1000)
            result = finder.redact_record(record)
            assert (result.id, result.text, result.decision, result.is_forgotten) == (
                "",
                "",
                None,
                True,
            )
            assert "unique-0@0 was forgotten" in result.missing_reason
            assert finder.redact_record(source).is_forgotten
            for later in (
                replace(record, decision=replace(decided, log="7/0")),
                replace(source, time_ms=1001),
            ):
                assert finder.redact_record(later) is later
            assert finder.redact_decision(decided) is None
            later_one = replace(decided, log="7/0")
            assert finder.redact_decision(later_one) is later_one
        for log_id in ids:
            kept_id = log_id.decode("utf-8", "replace")
            copy = replace(
                decided, id="other", kept_id=kept_id, headers=(("dedup.of.id", kept_id), ("a", "b"))
            )
            result = finder.redact_decision(copy)
            assert result == replace(
                copy, kept_id="", headers=(("a", "b"),), is_kept_forgotten=True
            )
        other = OpenedRecord("unique-0@1", "other", "a text")
        assert finder.redact_record(other) is other
        forgotten.is_complete = False
        with pytest.raises(StreamDedupError, match="still reading which ids were forgotten"):
            finder.redact_decision(decided)
        with pytest.raises(StreamDedupError, match="still reading which ids were forgotten"):
            finder.redact_record(other)


def test_two_kept_documents_of_one_id_have_their_own_groups(
    engine: TextIndex, texts: Texts
) -> None:
    """A page that came twice, too far apart to be a copy of itself: each has the copies that name
    it."""
    for number in (7, 8):
        kept = TextFacts(
            f"unique-0@{number}",
            "https://e.example/",
            number,
            9,
            "unique",
            "new",
            source_position=f"documents-0@{number}",
        )
        engine.add_text(kept, ["first" if number == 7 else "second", "edition"])
    engine.add_text(
        TextFacts(
            "duplicates-0@9", "x", 9, 9, "duplicate", "exact", None, "documents-0@7", kept.id
        ),
        ["a"],
    )
    engine.commit(EngineCheckpoint({}, {}))
    finder = Finder(engine, LANGUAGES, texts.texts_at)

    assert [
        finder.find(f"{word} edition", 9).documents[0].group_position
        for word in ("first", "second")
    ] == [
        "documents-0@7",
        "",
    ]


@pytest.mark.parametrize(
    ("path", "query", "status", "sentence"),
    [
        ("/v1/find", {}, 400, "The search text has no word"),
        ("/v1/find", {"q": "*?"}, 400, "The search text has no word"),
        ("/v1/find", {"q": "fox", "limit": "0"}, 400, "limit must be a whole number from 1 to 100"),
        ("/v1/find", {"q": "fox", "min_share": "nan"}, 400, "min_share must be a share"),
        ("/v1/find", {"q": "fox", "min_share": "x"}, 400, "min_share must be a share"),
        (
            "/v1/find",
            {"q": "fox", "lest": "0.9"},
            400,
            "There is no parameter 'lest'; the parameters are q, limit, offset, order, host, min_share, snippets.",
        ),
        (
            "/v1/groups",
            {"id": "https://a.example/1"},
            400,
            "There is no parameter 'id'; the parameters are document, order, limit, offset.",
        ),
        ("/v1/groups", {"order": "best"}, 400, "order must be largest or newest, not 'best'"),
        (
            "/v1/groups",
            {"document": "documents-9@9"},
            404,
            "No copies of 'documents-9@9' are known",
        ),
    ],
)
def test_invalid_requests_return_a_problem_with_a_sentence(
    server: HttpServer, path: str, query: dict[str, str], status: int, sentence: str
) -> None:
    found_status, problem = ask(server, path, **query)

    assert (found_status, problem["status"]) == (status, status)
    assert sentence in problem["detail"]


def test_a_request_that_breaks_off_logs_no_failure(
    server: HttpServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as client:
        client.sendall(
            b"POST /v1/find HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\nquick"
        )
        wait_until(lambda: server.connections == 1, "it was taken")
    wait_until(lambda: server.connections == 0, "nothing waits any more")

    assert ask(server, "/v1/find", q="quick")[0] == 200
    output = capfd.readouterr()
    assert "failed" not in output.out + output.err


def test_strange_queries_are_answered_and_invalid_ones_are_refused(
    server: HttpServer,
) -> None:
    """Of one letter, of operators, right to left, of marks: answered, never an error of the
    engine."""
    strange = (
        "a",
        "title:fox AND (",
        '"brown fox"~3',
        "\u202eחתול\u202c",
        "e\u0301\u0302\u0303",
        "\u0000fox",
        "👍 fox",
    )
    assert {clue: ask(server, "/v1/find", clue.encode())[0] for clue in strange} == dict.fromkeys(
        strange, 200
    )
    assert ask(server, "/v1/find", b"word " * (QUERY_BYTES_MAX // 5 + 1))[0] == 413
    assert "not UTF-8" in ask(server, "/v1/find", b"\xff")[1]["detail"]


def test_the_api_needs_its_token_and_an_open_index(tmp_path: Path, finder: Finder) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    with serving_api(finder, token) as server:
        assert ask(server, "/v1/find", q="fox")[0] == 401
    with serving_api(Finder(None, LANGUAGES, dict)) as server:
        status, problem = ask(server, "/v1/groups")
        assert (status, "has read nothing yet" in problem["detail"]) == (503, True)


def test_requests_above_the_concurrency_limit_are_refused(
    server: HttpServer, finder: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused request is answered when it is sent again later."""
    go_on = threading.Event()
    taken = threading.Semaphore(0)

    def wait(order: str, limit: int, offset: int) -> list[Any]:
        taken.release()
        go_on.wait(30)
        return []

    monkeypatch.setattr(finder, "groups", wait)
    threads = [threading.Thread(target=ask, args=(server, "/v1/groups")) for _ in range(CALLS_MAX)]
    for thread in threads:
        thread.start()
        assert taken.acquire(timeout=20)
    status, problem = ask(server, "/v1/groups")
    go_on.set()
    for thread in threads:
        thread.join(20)

    assert (status, "try again" in problem["detail"]) == (503, True)
    assert ask(server, "/v1/groups")[0] == 200


def test_the_api_answers_with_and_without_the_console_prefix(finder: Finder) -> None:
    """A proxy may pass the prefix on."""
    with serving_api(finder, prefix="/tools/dedup") as server:
        for base in ("", "/tools/dedup"):
            status, body = http_client.ask(
                f"http://127.0.0.1:{server.port}{base}", "/v1/find?q=quick+brown", 10, 1 << 20
            )
            assert (status, len(json.loads(body)["documents"])) == (200, 3)
            status, body = http_client.ask(
                f"http://127.0.0.1:{server.port}{base}", "/v1/groups", 10, 1 << 20
            )
            assert (status, len(json.loads(body)["groups"])) == (200, 1)
