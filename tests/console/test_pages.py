"""The console over HTTP: pages, their JSON twins, missing sources, access and invalid requests."""

from __future__ import annotations

import contextlib
import csv
import html
import http.client
import io
import itertools
import json
import re
import threading
import urllib.parse
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stream_dedup.console import app, rendering
from stream_dedup.console.app import ConsolePages
from stream_dedup.console.assembly import pages_of, parse_plans, sources_of
from stream_dedup.console.outputs import decision_of
from stream_dedup.console.recent_decisions import Recent
from stream_dedup.console.sources import ConsoleSources
from stream_dedup.console.tables import TABLES
from stream_dedup.console.values import (
    Decision,
    FoundDocument,
    FoundDocuments,
    GroupMember,
    HostEvent,
    HostPairs,
    IndexPlans,
    OpenedRecord,
    PastPlan,
)
from stream_dedup.domain.document import Message, shorten_id
from stream_dedup.domain.errors import BrokerError, ConfigurationError, StreamDedupError
from stream_dedup.domain.plan import PLANS
from stream_dedup.domain.printable import printable
from stream_dedup.fingerprinting import Languages
from stream_dedup.search.finding import Finder
from stream_dedup.settings.settings import Settings
from tests.console.sample import (
    COPY,
    EVIL,
    HOUR_MS,
    KEPT,
    SEARCH,
    decision,
    group,
    open_record,
    sources,
)
from tests.serving.serving import serving as serving_routes

DECISION = "decision?position=duplicates-2@8"
GROUP = "group?document=documents-0@1"
ADDRESSES = (
    "",
    "decisions",
    DECISION,
    "find?q=harbour",
    "groups",
    GROUP,
    "hosts",
    "copies",
    "copies?host=news.example",
    "dead-letters",
)


@contextmanager
def serving(console_sources: ConsoleSources, **options: Any) -> Iterator[int]:
    """Serve the console and yield its port."""
    with serving_routes(ConsolePages(console_sources, **options).routes()) as server:
        yield server.port


def get(
    port: int, address: str, headers: Mapping[str, str] | None = None, method: str = "GET"
) -> tuple[int, str, http.client.HTTPMessage]:
    """Send a request; return status, body and headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, "/" + address, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def get_page(address: str, console_sources: ConsoleSources | None = None, **changed: Any) -> str:
    """Return a page of the sample, or of other sources."""
    with serving(console_sources or sources(**changed)) as port:
        return get(port, address)[1]


def get_json(address: str, console_sources: ConsoleSources | None = None, **changed: Any) -> Any:
    """Return the JSON twin of a page."""
    return json.loads(get_page(address, console_sources, **changed))


def twin_of(address: str) -> str:
    """Return the address of the JSON twin."""
    name, _, query = address.partition("?")
    return f"{name or 'now'}.json?{query}"


def test_each_page_has_a_twin() -> None:
    """Both have the same policy; a page loads only its own files, and its links are relative."""
    with serving(sources()) as port:
        for address in ADDRESSES:
            status, page, headers = get(port, address)
            assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8"), address
            assert headers["content-security-policy"].startswith(
                "default-src 'none'; style-src 'self'; script-src 'self'"
            )
            assert "style=" not in page
            assert not re.search(r"\son\w+=", page)
            inside = re.sub(
                r'<a class="outside" rel="noopener noreferrer nofollow" href="https?://[^"]*"',
                "",
                page,
            )
            assert all(
                not re.match(r"/|https?:", link)
                for link in re.findall(r'(?:href|src|action)="([^"]*)"', inside)
            )
            status, body, headers = get(port, twin_of(address))
            assert (status, headers["content-type"]) == (200, "application/json"), address
            assert json.loads(body)
        for name, kind in (
            ("console.css", "text/css"),
            ("console.js", "text/javascript"),
            ("console.svg", "image/svg+xml"),
        ):
            status, _, headers = get(port, name)
            assert (status, headers["content-type"].split(";")[0]) == (200, kind)


def test_a_decision_shows_both_texts_and_their_differences() -> None:
    """Three clicks lead from an alert to the decision and the command that releases it."""
    assert 'href="decisions?reason=near"' in get_page("")
    assert 'href="decision?position=duplicates-0%40498"' in get_page("decisions?reason=near")
    page, kept = (
        get_page("decision?position=duplicates-0%40498"),
        get_page("decision?position=unique-1%401"),
    )
    assert "<del>eleven </del>" in page
    assert "<ins>twelve </ins>" in page
    assert "stream-dedup release documents-0@498" in page
    assert 'href="group?document=documents-0%401"' in page
    assert 'rel="noopener noreferrer nofollow" href="https://news.example/articles/498"' in page
    assert 'href="decisions?host=news.example"' in page
    assert 'href="decision?position=duplicates-0%40497"' in page
    assert 'href="decision?position=unique-1%401">its decision</a>' in page
    assert re.search(r'href="group\?document=documents-0%401">\d+ known</a>', kept)
    assert "<strong>duplicate</strong>" in get_page("decision?position=documents-0@498"), (
        "a log names the source's position"
    )


def test_a_decision_page_shows_similarity_before_details() -> None:
    """The id comes first, then similarity and threshold, then the texts; details are folded."""
    address = "decision?position=duplicates-2@8"
    page = get_page(address)
    assert "<title>https://mirror.example/articles/8 " in page
    assert "<h1>https://mirror.example/<wbr>articles/<wbr>8</h1>" in page, (
        "on a phone it breaks behind a slash"
    )
    places = [
        page.index(text)
        for text in (
            (
                "Similarity 0.78, of unknown sites. Documents that may be of one site are copies at a "
                "similarity of 0.70 or more"
            ),
            "<ins>",
            "<summary>",
            "0123456789abcdef",
        )
    ]
    assert places == sorted(places)
    for plan in (PLANS["bands"].with_similarity(80), PLANS["blocks"]):
        other_page = get_page(address, plans=lambda plan=plan: IndexPlans(plan))
        assert "Similarity 0.78." in other_page, (
            "another plan judged it, or one without a similarity"
        )


def test_hostile_texts_are_text() -> None:
    """Scripts and control characters in ids, headers, hosts and queries are shown as text."""
    recent = Recent(now_ms=lambda: HOUR_MS)
    bad = "\ud800"
    evil = dict.fromkeys(("host", "kept_id", "log", "recipe", "fingerprint"), EVIL)
    headers = ((EVIL, EVIL), ("x", bad))
    hostile_decision = decision(
        8, "near", id=EVIL + bad, headers=headers, kept_position="documents-0@1", **evil
    )
    recent.add([hostile_decision, decision(9, EVIL, verdict=EVIL)])

    def find_documents(_clue: str, _limit: int, **_: object) -> FoundDocuments:
        hostile_document = FoundDocument(
            "unique-0@1", EVIL, 1.0, ((EVIL, True), (EVIL + bad, False)), EVIL, 1 << 70, host=EVIL
        )
        return FoundDocuments((hostile_document,), 1, True, 1)

    given = sources(
        0,
        recent=recent,
        find=find_documents,
        read_record=lambda position: OpenedRecord(position, EVIL, EVIL + position + bad, EVIL),
    )
    clue = urllib.parse.quote(EVIL)
    addresses = [
        *ADDRESSES,
        f"find?q={clue}",
        f"decisions?host={clue}&id={clue}&header={clue}%3D",
        f"decision?position={clue}",
        clue,
    ]
    addresses.append("decision?position=unique-0@9")
    with serving(given) as port:
        for address in addresses:
            status, page, _ = get(port, address)
            assert status in (200, 400, 404), address
            assert "<script>alert" not in page
            assert "<img" not in page
            assert not set("\x1b\u202e\x00") & set(page), address
            assert "Traceback" not in page
            if address != clue:
                assert json.loads(get(port, twin_of(address))[1])


@pytest.mark.parametrize(
    "address", ["decision?position=duplicates-2@900008", "decision?position=unique-1@999999"]
)
def test_a_text_removed_by_retention_is_reported(address: str) -> None:
    recent = Recent(now_ms=lambda: HOUR_MS)
    recent.add(
        [
            decision(
                900_008,
                "near",
                output_position="duplicates-2@900008",
                kept_position="documents-0@900001",
            )
        ]
    )
    with serving(sources(0, recent=recent)) as port:
        status, page, _ = get(port, address)

    assert "is not kept any more (retention)" in page
    assert status == (200 if "900008" in address else 404)


def test_the_threshold_is_that_of_the_plan_in_force() -> None:
    """A newly declared plan shows at once; without sketches or a plan there is no threshold."""
    index_answer: dict[str, Any] = {
        "plan": "128:4:0:28~16:70%:64",
        "past_plans": [],
        "started_ms": 0,
    }
    with serving(sources(plans=lambda: parse_plans(index_answer))) as port:
        assert json.loads(get(port, "now.json")[1])["threshold"] == 0.7
        assert "threshold 0.7" in get(port, "")[1]
        index_answer["plan"] = "128:8:1:21:75%"
        assert json.loads(get(port, "now.json")[1])["threshold"] is None
        index_answer["plan"] = None
        assert json.loads(get(port, "now.json")[1])["threshold"] is None


def test_a_decision_shows_the_rule_that_judged_it() -> None:
    """It shows the plan in force at its log offset, not today's stricter plan."""
    strict, address = PLANS["bands"].with_similarity(80), "decision?position=duplicates-2@8"
    assert decision(8).log == "0/8"
    for end, expected in ((1, "of 0.70 or more, so this one is a copy"), (0, "Similarity 0.78.")):
        plans = IndexPlans(strict, (PastPlan(end, HOUR_MS, PLANS["bands"]),))
        assert expected in get_page(address, plans=lambda plans=plans: plans)


def test_the_chart_marks_plan_changes_and_restarts() -> None:
    """Marks are lines and a list below the chart; those outside the span are omitted."""
    past = ((7, HOUR_MS - 60_000, "128:4:0:28~16:70%:64"), (9, 1, "128:4:0:28~16:65%:64"))
    index_answer = {"plan": PLANS["bands"].id, "past_plans": past, "started_ms": HOUR_MS - 120_000}
    given = sources(plans=lambda: parse_plans(index_answer))
    given.recent.add_mark("Workers joined or left; their number is 2.")
    page, marks = get_page("", given), get_json("now.json", given)["figures"]["marks"]
    assert [mark["text"] for mark in marks] == [
        "The index started.",
        "The plan changed from 128:4:0:28~16:70%:64 to 128:4:0:28~16:65%:64.",
        "Workers joined or left; their number is 2.",
    ]
    assert page.count('<line class="mark"') == 3
    assert all(f": {mark['text']}</li>" in page for mark in marks)


def test_only_the_console_of_a_search_marks_its_start() -> None:
    """The search joins no group, so only a console in its own process marks its start."""
    stop = threading.Event()
    stop.set()
    for engine, marks in ((None, []), (Finder(None, Languages(), dict), ["The search started."])):
        figures = sources_of(Settings(), stop, engine).recent.figures_of()
        assert [mark.text for mark in figures.marks] == marks


def test_a_delay_has_its_unit() -> None:
    """With a backlog the delay may be minutes."""
    assert ">49 ms <span" in get_page("")
    assert ">Age when shown</dt>" in get_page("")
    given = sources(0)
    given.recent.add([decision(1, latency_ms=75_871)])
    assert '>76 s <span class="faint whole">p99 76 s<' in get_page("", given)
    assert rendering.delay(3_148_546) == "52 min"


def test_no_rate_is_shown_while_nothing_is_read() -> None:
    """The rate is unknown then, not 0."""
    for given, expected in (
        (sources(), 0.0),
        (sources(kafka_problem=lambda: "Kafka does not answer."), None),
        (sources(decisions_problem=lambda: "A topic is missing."), None),
    ):
        given.recent._read_in_second.clear()
        assert get_json("now.json", given)["figures"]["per_second"] == expected
        assert ("<dd>0.0</dd>" in get_page("", given)) == (expected is not None)


def test_the_chart_hatches_columns_that_were_not_read() -> None:
    """A column whose records were read is not hatched, even if it has no decisions."""
    recent = Recent(now_ms=lambda: HOUR_MS)
    recent.add([decision(490)], HOUR_MS - 30 * 60_000)
    page, figures = get_page("", sources(0, recent=recent)), recent.figures_of()
    assert page.count('class="unread"') == 29
    assert [column.is_read for column in figures.columns].count(False) == 29
    assert "(not read)</title>" in page
    assert 'class="unread"' not in get_page("")


def test_missing_sources_are_explained() -> None:
    def fail(*_: object, **__: object) -> Any:
        raise BrokerError("The broker kafka:9092 does not answer.")

    calls = ("read_record", "lag", "dead_letters", "host_events", "remarks", "plans")
    away = ConsoleSources(
        decisions_problem=lambda: "The broker kafka:9092 does not answer.",
        search=SimpleNamespace(**dict.fromkeys(SEARCH, fail)),
        **dict.fromkeys(calls, fail),
    )
    for given, pattern in (
        (
            ConsoleSources(),
            r"No decisions yet|no full-text index|Dead letters",
        ),
        (away, "does not answer"),
    ):
        with serving(given) as port:
            for address in ADDRESSES:
                status, page, _ = get(port, address)
                assert re.search(pattern + r"|No copies of|Texts cannot be read now", page), address
                assert status == (
                    200 if not re.match("decision\\?|group\\?", address) else status
                ), address
                assert status in (200, 404, 503)


def test_an_unreachable_broker_is_reported_once_and_asked_no_more() -> None:
    """Each further request would take seconds and fail in the same way."""
    calls: list[object] = []
    problem = "Kafka at kafka:9092 does not answer (Connection refused)."

    def fail(*given: object) -> Any:
        calls.append(given)
        raise BrokerError(problem)

    working = sources()
    given = ConsoleSources(
        recent=working.recent,
        search=working.search,
        kafka_problem=lambda: problem,
        decisions_problem=fail,
        read_record=fail,
        lag=fail,
        dead_letters=fail,
        host_events=fail,
        remarks=fail,
    )
    with serving(given) as port:
        for address in ADDRESSES:
            _, page, _ = get(port, address)
            of_search = address.startswith(("find", "groups", "copies"))
            assert page.count(problem) == (not of_search), address
        assert calls == []
        assert "The checks could not run" in get(port, "")[1]
        assert json.loads(get(port, "now.json")[1])["remarks"] is None
        assert get(port, "decision?position=unique-0@900")[0] == 503


def test_the_lag_is_shown_by_partition() -> None:
    assert "Lag by partition: 2: 30, 0: 12</p>" in get_page("")
    assert get_json("now.json")["lag"] == 42
    assert ", 11: 7, and 28 more</p>" in get_page("", lag=lambda: dict.fromkeys(range(40), 7))
    assert "Lag by partition" not in get_page("", lag=lambda: {0: 0})


def test_only_checks_that_ran_report_no_problems() -> None:
    """Without checks there is no all-clear, and a finding links to its details."""
    clear = "No problems found."
    assert '<a href="dead-letters">Details</a>' in get_page("")
    assert [
        clear in page
        for page in (get_page(""), get_page("", remarks=None), get_page("", remarks=list))
    ] == [False, False, True]


def test_dead_letters_show_the_command_that_sends_them_back() -> None:
    page, twin = get_page("dead-letters"), get_json("dead-letters.json")
    assert "stream-dedup dlq redrive --stage fetch --class GivenUp" in page
    assert "documents-0@14" in page
    assert page.count('<td class="extra">yes</td>') == 1
    assert [kind["not_sent_back"] for kind in twin["letters"]["kinds"]] == [5, 1]


def test_incomplete_figures_say_so() -> None:
    recent = Recent(now_ms=lambda: HOUR_MS)
    recent.add([decision(place) for place in range(350)], HOUR_MS - 1_000)
    given = sources(0, recent=recent)
    page, twin = get_page("", given), get_json("now.json", given)
    assert "Decisions shown" in page
    assert "Decided in the last hour" not in page
    assert "at least" in page
    assert (twin["figures"]["total"], twin["figures"]["is_whole"]) == (350, False)


def test_the_address_selects_the_span_of_the_figures() -> None:
    """The page marks its span and refreshes itself; an unknown span names the known ones."""
    assert [
        len(get_json(f"now.json{span}")["figures"]["columns"]) for span in ("", "?span=15m")
    ] == [
        60,
        15,
    ]
    page = get_page("?span=7d")
    assert '<a href="./?span=7d" aria-current="true">7 days</a>' in page
    assert '<main id="content" tabindex="-1" data-refresh="2">' in page
    assert (
        get_json("now.json?span=2w")["detail"]
        == "span must be one of 15m, 1h, 6h, 1d, 7d, not '2w'."
    )


def test_decisions_are_exported_as_csv() -> None:
    """The CSV has all decisions that match, and no cell that a spreadsheet would calculate."""
    given = sources()
    given.recent.add([decision(8, "near", id="=HYPERLINK(1)", host="evil.example")])
    with serving(given) as port:
        status, body, headers = get(port, "decisions.csv?reason=near")
        refused = get(port, "decisions.csv?until=never")
    rows = list(csv.DictReader(io.StringIO(body)))

    assert (status, headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert len(rows) == 101
    assert (rows[0]["id"], rows[0]["kept_id"]) == ("'=HYPERLINK(1)", decision(8, "near").kept_id)
    assert (refused[0], json.loads(refused[1])["status"]) == (400, 400)


@pytest.mark.parametrize("sign", [*"=+-@", *"＝＋－＠"])
@pytest.mark.parametrize(
    "before", ["", " ", "\u00a0", "\t", "\r", "\n", '"', "' ", "a;", 'a,"', "a\n", "a; "]
)
def test_no_cell_is_calculated(before: str, sign: str) -> None:
    """Signs of OWASP's list are escaped wherever a spreadsheet may start a cell."""
    cell = f"{before}{sign}cmd|' /C calc'!A0"
    table = rendering.table("decisions", [decision(8, "near", id=cell)]).decode()
    (row,) = csv.DictReader(io.StringIO(table, newline=""))
    parts = re.split(r"[;,|\t\r\n]", row["id"])
    assert not any(part.lstrip("\"' \u00a0")[:1] == sign and part[:1] != "'" for part in parts)
    assert row["id"].replace("'", "") == printable(cell.replace("'", "")).replace(r"\xa0", "\u00a0")
    assert rendering.table("decisions", [decision(8, "near", id="a-b=c@d;e")]).count(b"'") == 0


def test_no_cell_changes_a_terminal() -> None:
    """`find --csv` prints to terminals; each row is one line, for tools that read lines."""
    cell = "a\x1b[31m\x00\x9b\u202eb\tc\nd\r\ne\u2028\x85"
    table = rendering.table("decisions", [decision(8, "near", id=cell)]).decode()
    assert len(table.splitlines()) == 2
    (row,) = csv.DictReader(io.StringIO(table, newline=""))
    assert row["id"] == printable(cell)


def test_find_results_have_pages() -> None:
    """A page has 20 results and links that keep order and host; the CSV has all results."""
    calls = []

    def find(_: str, limit: int, *, offset: int = 0, **others: object) -> FoundDocuments:
        calls.append((limit, offset, others))
        documents = [
            FoundDocument(f"unique-0@{place}", f"id-{place}", 1.0, host="a.example")
            for place in range(70)
        ]
        return FoundDocuments(tuple(documents[offset : offset + limit]), 70, True, 1)

    query = "q=harbour&order=earliest&host=a.example"
    first, last = get_page(f"find?{query}", find=find), get_page(f"find?{query}&page=4", find=find)
    assert (first.count("<li>"), last.count("<li>")) == (20, 10)
    assert "70 documents on 1 host contain the text, or most of it. Shown: 1 to 20." in first
    assert f'rel="next" href="find?{query.replace("&", "&amp;")}&amp;page=2"' in first
    assert "Page 4 of 4" in last
    assert 'rel="next"' not in last
    assert "The texts of some documents cannot be read now" in first
    rows = list(csv.DictReader(io.StringIO(get_page(f"find.csv?{query}", find=find))))
    assert [row["id"] for row in rows] == [f"id-{place}" for place in range(70)]
    named = {"order": "earliest", "host": "a.example"}
    assert calls == [
        (20, 0, {**named, "snippets": True}),
        (20, 60, {**named, "snippets": True}),
        (10_000, 0, {**named, "snippets": False}),
    ]
    assert "order must be one of best, earliest, newest" in get_page("find?q=a&order=oldest")


@pytest.mark.parametrize("name", TABLES)
def test_each_table_can_be_sorted_and_exported_as_csv(name: str) -> None:
    """Any column sorts the page, its twin and the CSV, both ways; empty values come last."""
    base = TABLES[name].page or name
    address = {"find": "find?q=harbour", "group": "group?document=documents-0@1", "now": "?"}.get(
        base, f"{base}?"
    )
    page, _, query = address.partition("?")
    with serving(sources()) as port:
        for column in TABLES[name].columns:
            for sort in (column, f"-{column}"):
                rows = json.loads(get(port, f"{base}.json?{query}&sort={sort}")[1])
                cells = [row[column] for row in rows[TABLES[name].rows]]
                known = [cell for cell in cells if cell not in (None, "", [])]
                assert known == sorted(known, reverse=sort[0] == "-")
                assert cells[: len(known)] == known
        status, body, _ = get(port, f"{name}.csv?{query}")
        assert status == 200
        assert len(list(csv.DictReader(io.StringIO(body)))) >= len(cells) > 0
        assert get(port, f"{page}?{query}&sort=shoe-size")[0] == 400
        shown_page = get(port, address)[1]
        assert f'href="{name}.csv' in shown_page
        assert not re.search(r'<th scope="col"[^>]*>(?!<a)', shown_page)
        for link in re.findall(r'<th scope="col"[^>]*><a href="([^"]*)"', shown_page):
            assert get(port, html.unescape(link).removeprefix("./"))[0] == 200


def test_groups_distinguish_copies_from_pages_fetched_again() -> None:
    page = get_page("groups", groups=lambda *_: [group(fetched_again=1)])
    of_group = get_page(
        "group?document=documents-0@1", group=partial(group, fetched_again=1, counted=5)
    )

    assert re.search(r'>3</td><td class="number extra">1</td><td class="number extra">3</td>', page)
    assert "It has 3 copies, 9.0 kB in total." in of_group
    assert "It was fetched again once. The log counted 5 duplicates of it" in " ".join(
        of_group.split()
    )
    assert "The kept page and the listed copies come from 3 hosts." in of_group
    again = {"copies": 0, "fetched_again": 2, "members": ()}
    alone = get_page("group?document=documents-0@1", group=partial(group, **again, earliest=None))
    assert "No copies of it are known. It was fetched again 2 times." in alone
    assert "<table" not in alone


def test_groups_have_pages() -> None:
    """A page has 50 groups and links to its neighbours; the CSV file has all."""

    def listed(address: str) -> list[str]:
        return [listed_group["position"] for listed_group in get_json(address)["groups"]]

    parts = [listed(f"groups.json?page={page}") for page in (1, 2, 3, 4)]
    assert list(map(len, parts)) == [50, 50, 20, 0]
    assert len(set(itertools.chain.from_iterable(parts))) == 120
    assert listed("groups.json") == parts[0]
    first, last = get_page("groups"), get_page("groups?page=3")
    assert 'rel="next" href="groups?page=2"' in first
    assert 'rel="prev"' not in first
    assert 'rel="prev" href="groups?page=2"' in last
    assert 'rel="next"' not in last
    assert "This page is after the last one." in get_page("groups?page=4")
    assert len(get_page("groups.csv").splitlines()) == 121


def test_a_host_that_only_signals_name_is_listed_first() -> None:
    """A host that vanished sends little, so few remembered decisions name it."""
    hosts = get_json("hosts.json")["hosts"]
    assert {host["host"] for host in hosts[:2]} == {"mirror.example", "silent.example"}
    assert [bool(host["events"]) for host in hosts] == [True, True, False, False]
    two = (HostEvent("b", 1), HostEvent("a", 2))
    given = sources(host_events=lambda: {"b.example": two[:1], "a.example": two})
    sorted_hosts = get_json("hosts.json?sort=events", given)["hosts"]
    assert [host["host"] for host in sorted_hosts[:2]] == ["b.example", "a.example"]
    rows = csv.DictReader(io.StringIO(get_page("hosts.csv", given)))
    assert [row["events"] for row in rows if row["events"]] == ["b", "b; a"]
    for given, column, expected in (
        (sources(), True, "Hosts"),
        (sources(host_events=dict), False, "The signals of the last day contain no event."),
        (sources(host_events=None), False, "it has written no signals yet"),
        (
            sources(host_events=dict, insights_problem=lambda: "Nobody reads."),
            False,
            "Nobody reads.",
        ),
    ):
        page = get_page("hosts", given)
        assert (">Events</a>" in page, expected in page) == (column, True)
    assert "contain no event" not in page, "since nobody looks"


def test_a_forgotten_decision_is_410() -> None:
    """The id of a forgotten kept document is hidden on the page of its copy, too."""
    gone: set[str] = set()

    def redact_record(position: str) -> OpenedRecord:
        return (
            OpenedRecord(
                position, "", "", f"The record at {position} was forgotten.", is_forgotten=True
            )
            if position in gone
            else open_record(position)
        )

    with serving(sources(read_record=redact_record)) as port:
        gone.add("documents-0@1")
        for address in (
            "decision.json?position=duplicates-2@8",
            "decision?position=duplicates-2@8",
        ):
            status, body, _ = get(port, address)
            assert (status, "articles/1" in body.replace("articles/8", "")) == (200, False)
            assert "The record at documents-0@1 was forgotten." in body
        gone.add("duplicates-2@8")
        status, body, _ = get(port, "decision.json?position=duplicates-2@8")
        assert (status, json.loads(body)["detail"]) == (
            410,
            "The record at duplicates-2@8 was forgotten.",
        )
        assert "articles/8" not in get(port, "decision?position=duplicates-2@8")[1]


def test_forgotten_documents_are_not_listed() -> None:
    """Their ids appear nowhere; nothing is listed until the forgotten ids are known."""
    kept = "https://gone.example/kept"

    def keep_all(entry: Decision) -> Decision | None:
        return entry

    def drop_forgotten(entry: Decision) -> Decision | None:
        return (
            None
            if entry.id == kept
            else entry.without_kept_id()
            if entry.kept_id == kept
            else entry
        )

    def fail(_: Decision) -> Decision | None:
        raise StreamDedupError("The search still reads what was forgotten.")

    redact = keep_all
    given = sources(redact_decision=lambda entry: redact(entry))  # noqa: PLW0108 - it changes below
    copy = decision(
        8,
        "near",
        id="https://copy.example/",
        kept_id=kept,
        headers=(("dedup.of.id", kept), ("crawl", "x")),
    )
    given.recent.add([decision(1, "new", id=kept, host="gone.example"), copy])
    with serving(given) as port:
        assert "gone.example" in get(port, "hosts.json")[1]
        assert kept in get(port, "decisions.json?id=copy.example")[1]
        redact = drop_forgotten
        for address in (
            "decisions",
            "decisions.json",
            "decisions.json?id=copy.example",
            "hosts.json",
        ):
            status, body, _ = get(port, address)
            assert (status, "gone.example" in body) == (200, False), address
        assert "(forgotten)" in get(port, "decision?position=duplicates-2@8")[1]
        (listed,) = json.loads(get(port, "decisions.json?id=copy.example")[1])["decisions"]
        assert (listed["kept_id"], listed["headers"]) == ("", [["crawl", "x"]])
        redact = fail
        status, body, _ = get(port, "decisions.json")
        assert (status, json.loads(body)["detail"]) == (
            503,
            "The search still reads what was forgotten.",
        )
        assert get(port, "")[0] == 200


def test_invalid_requests_get_a_problem() -> None:
    """The twin returns RFC 9457 problems, the page a sentence, and neither a stack trace."""
    statuses = {
        "decision.json": 400,
        "decision.json?position=../../etc/passwd": 400,
        "decision.json?position=other-0@1": 400,
        "decision.json?position=duplicates-0@1%0a": 200,
        "decisions.json?before=-1": 400,
        "decisions.json?before=%F0%9F%98%80": 400,
        "decisions.json?from=2": 400,
        "decisions.json?from=0.9&to=0.1": 400,
        "decisions.json?reason=zzz": 400,
        "decisions.json?reason=other": 200,
        "decisions.json?verdict=zzz": 400,
        "decisions.json?header=%3Dx": 400,
        "decisions.json?page=-1": 400,
        "decisions.json?until=abc": 400,
        "decisions.json?id=%3Cb%3E": 200,
        "decisions.json?partition=999": 400,
        "now.json?span=bogus": 400,
        "hosts.json?host=a.example": 400,
        f"decision.json?position=duplicates-0@{'9' * 30}": 400,
        "groups.json?order=best": 400,
        "group.json?document=documents-0@900777": 404,
        "group.json?document=https://nobody.example/%00": 404,
        "group.json": 400,
        f"find.json?q={'x' * 8001}": 400,
        "find.json?q=": 200,
        "find.json?q=%FF%00": 200,
        "find.json?q=nothing": 200,
    }
    with serving(sources()) as port:
        for address, wanted in statuses.items():
            status, body, headers = get(port, address)
            assert status == wanted, (address, body)
            if status != 200:
                assert headers["content-type"] == "application/problem+json"
                problem = json.loads(body)
                assert (problem["status"], problem["type"]) == (status, "about:blank")
                assert problem["detail"].endswith(".")
            page = address.replace("now.json", "").replace(".json", "")
            assert get(port, page)[0] == wanted
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert get(port, "find", method=method)[0] == 405
        with contextlib.suppress(ConnectionError):  # the server may close the connection early
            assert get(port, "find?q=" + "x" * 100_000)[0] >= 400
        assert get(port, "decisions", method="HEAD")[0] == 200
        assert get(port, "")[0] == 200


def test_an_internal_error_shows_no_stack_trace(caplog: pytest.LogCaptureFixture) -> None:
    del caplog
    with serving(sources(find=lambda *_, **__: 1 // 0)) as port:
        status, page, _ = get(port, "find?q=a")

    assert status == 500
    assert "internal error" in page
    assert "ZeroDivision" not in page


def test_a_source_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page reports it, other pages load, and the number of hanging calls is limited."""
    monkeypatch.setattr(app, "WAIT_SECONDS", 0.2)
    free = threading.Event()
    given = sources(find=lambda *_, **__: FoundDocuments(total=free.wait(30) * 0))
    try:
        with serving(given) as port:
            for _ in range(app.CALLS_MAX):
                assert "No answer arrived within" in get(port, "find?q=a")[1]
            assert "The console already answers" in get(port, "find?q=a")[1]
            assert get(port, "decisions")[0] == 200
            free.set()
            until = threading.Event()
            while "already" in get(port, "find?q=a")[1]:
                until.wait(0.01)
    finally:
        free.set()


def test_the_token_is_read_from_a_file(tmp_path: Path) -> None:
    """A bearer token or password is accepted and can be replaced; without a file nobody gets in."""
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    with serving(sources(), token_file=path) as port:

        def status(authorization: str = "") -> int:
            return get(
                port, "decisions", {"Authorization": authorization} if authorization else {}
            )[0]

        basic = "Basic " + b64encode(b"anybody:s3cret").decode()
        assert get(port, "")[2]["www-authenticate"].startswith("Basic ")
        assert [status(), status("Bearer s3cret"), status(basic)] == [401, 200, 200]
        invalid = [
            "Bearer wrong",
            "Bearer ",
            "Basic %%%",
            "Basic " + b64encode(b"s3cret").decode(),
            "s3cret",
            "Bearer \xe9",
        ]
        assert {status(header) for header in invalid} == {401}
        assert get(port, "livez")[0] == 200  # probes need none
        path.write_text("another one\n")
        assert [status("Bearer s3cret"), status("Bearer another one")] == [401, 200]
        path.write_text("")
        assert [status("Bearer "), status("Basic " + b64encode(b"a:").decode())] == [401, 401]
        path.unlink()
        assert status("Bearer another one") == 401


@pytest.mark.parametrize(("token", "why"), [(None, "cannot be read"), (" ", "is empty")])
def test_a_console_without_its_token_does_not_start(
    token: str | None, why: str, tmp_path: Path
) -> None:
    """Otherwise it would be ready and refuse every request."""
    path = tmp_path / "token"
    if token is not None:
        path.write_text(token)
    with pytest.raises(ConfigurationError, match=rf"{path}.*{why}|{why} from {path}"):
        pages_of(Settings(console_token_file=path), sources())


def test_a_prefix_is_served_beside_the_root() -> None:
    """A proxy may keep or remove the prefix; the address without a slash redirects to the page."""
    with serving(sources(), prefix="/tools/dedup/") as port:
        for address in ("", "decisions", "console.css", "now.json"):
            assert get(port, address)[0] == get(port, f"tools/dedup/{address}")[0] == 200
        status, _, headers = get(port, "tools/dedup")

    assert (status, headers["location"]) == (308, "dedup/")


def test_an_unknown_address_gets_a_page_or_a_problem() -> None:
    """A browser gets a page with links, and a program the list of paths."""
    with serving(sources(), prefix="/tools/dedup") as port:
        for address in ("decision%20s", "tools/dedup/nothing"):
            status, body, headers = get(
                port, address, {"Accept": "text/html,application/xhtml+xml"}
            )
            assert (status, headers["content-type"]) == (404, "text/html; charset=utf-8")
            assert "There is no such page" in body
            assert 'href="decisions"' in body
            assert "as JSON" not in body

            status, body, headers = get(port, address)
            assert (status, headers["content-type"]) == (404, "application/problem+json")
            assert "/decisions.json" in json.loads(body)["paths"]
            assert not [path for path in json.loads(body)["paths"] if "{" in path]
        assert get(port, "find", {"Accept": "text/html"}, "POST")[0] == 405
        assert get(port, "tools/dedup", {"Accept": "text/html"})[0] == 308


def test_remarks_are_dismissed_by_host() -> None:
    """The address selects the hosts; other remarks stay."""
    page = get_page("")
    assert "mirror.example: about 60 pages" in page
    assert 'href="./?dismissed=mirror.example">Dismiss' in page
    page = get_page("?dismissed=mirror.example")
    assert "mirror.example: about 60 pages" not in page
    assert "Dead letters that were not sent back" in page
    assert "Dismissed hosts: <bdi>mirror.example" in page
    assert "Checked at 2025-11-24" in page


@pytest.mark.parametrize(
    ("identifier", "address"),
    [
        ("https://bücher.example/straße", "https://b%C3%BCcher.example/stra%C3%9Fe"),
        ("http://例え.example/?q=桟橋", "http://%E4%BE%8B%E3%81%88.example/?q=%E6%A1%9F%E6%A9%8B"),
        ("https://a.example/%20", "https://a.example/%20"),
        ("https://a.example/\u202egnp", ""),
        ('https://a.example/"><b>', ""),
        ('https://a.example/"onclick="x', ""),
        ("https://a.example/ x", ""),
        (shorten_id(b"https://a.example/" + b"x" * 600).decode(), ""),
        ("file:///etc/passwd", ""),
        ("javascript:alert(1)", ""),
    ],
)
def test_an_address_in_any_script_is_linked(identifier: str, address: str) -> None:
    """The link is percent-encoded; an address that could mislead a reader is not linked."""
    assert rendering.web(identifier) == address
    given = sources(0)
    given.recent.add([decision(8, "near", id=identifier)])
    page = get_page("decision?position=duplicates-2@8", given)
    outside = re.findall(r'href="([a-z]+:[^"]*)"', page)
    assert {html.unescape(link) for link in outside if "news.example" not in link} <= {address}
    assert not re.search(r"<a [^>]*onclick=", page)


def test_hosts_that_copy_other_hosts() -> None:
    """The table covers all hosts or one, with its time, or says why it is not known."""
    requested_hosts = []

    def asked_pairs(host: str) -> HostPairs:
        requested_hosts.append(host)
        found: HostPairs = SEARCH["host_pairs"](host)
        return found

    def fail(_: str) -> HostPairs:
        raise StreamDedupError("The search holds nothing yet.")

    page = get_page("copies?host=a.example", host_pairs=asked_pairs)
    assert requested_hosts == ["a.example"]
    assert (
        "The table counts all documents that Find can search, as of 2025-11-24 16:00:00Z." in page
    )
    assert ">1,234</td>" in page
    assert "older than the kept page</span>" in page
    unknown = get_page("copies", host_pairs=fail)
    assert "The copies are not known: The search holds nothing yet." in unknown
    assert "The table counts" not in unknown
    assert "The table counts" not in get_page("copies", replace(sources(), search=None))
    alone = get_page("copies?host=a.example", host_pairs=lambda _: HostPairs((), HOUR_MS))
    assert "This host copied no other host, and no other host copied it." in alone
    assert 'href="decisions?host=a.example&amp;verdict=copy">its copies</a>' in alone
    assert 'href="groups">the groups of copies</a>' in get_page(
        "copies", host_pairs=lambda _: HostPairs((), HOUR_MS)
    )


def test_a_console_without_a_search_says_what_needs_one() -> None:
    """Its decisions show no number of copies and can still be released."""
    given = replace(sources(), search=None)
    for address in ("find", "groups", "copies", GROUP):
        assert "Start one with: stream-dedup run search" in get_page(address, given), address
    assert "<form" not in get_page("find", given)
    assert "Command to release it" in get_page(DECISION, given)
    assert "known</dd>" not in get_page("decision?position=unique-1@1", given)


def test_known_titles_are_shown() -> None:
    """Titles appear beside the ids of decisions, found documents, kept documents and copies."""
    title, given = "Pier to <close>", sources(0)
    given.recent.add([decision(8, "near", title=title, kept_position="documents-0@1")])
    member = GroupMember("duplicates-2@8", "id", "", 1, "near", 0.9, 1, title=title)
    known = replace(
        sources(
            read_record=lambda position: OpenedRecord(
                position, "id", KEPT, "", decision(8, "near"), title=title
            ),
            find=lambda *_, **__: FoundDocuments(
                (FoundDocument("unique-0@1", "id", 1.0, title=title),), 1, True, 1
            ),
            group=partial(group, members=(member,)),
        ),
        recent=given.recent,
    )
    for address in ("decisions", "find?q=a", "decision?position=duplicates-2@8", GROUP):
        assert get_page(address, known).count("Pier to &lt;close&gt;") == 1 + (address == GROUP)


def test_a_kept_document_without_copies_has_a_page() -> None:
    """A signal may name it: many pages resemble it, and were kept because of their titles."""
    page = get_page("group?document=documents-0@777", group=lambda _: None)
    assert "Kept document:" in page
    assert "No copies of it are known." in page
    assert "404" in str(
        get_json("group.json?document=documents-0@900777", group=lambda _: None)["status"]
    )


ALIKE_PAGES = {
    ("new", "https://shop.example/1", "Two"): (
        "Similarity 0.78, both on shop.example with different titles. Pages of one site with different "
        "titles are copies at a similarity of 0.97 or more, so this one was kept."
    ),
    ("new", "https://shop.example/1", "One"): "Similarity 0.78.",  # the plan has changed since
    ("near", "https://other.example/1", "Two"): (
        "Similarity 0.78, on different sites (other.example and shop.example). Pages of different sites "
        "are copies at a similarity of 0.62 or more, so this one is a copy."
    ),
    ("near", "https://shop.example/1", "Two"): "Similarity 0.78.",
}


@pytest.mark.parametrize(("case", "sentence"), ALIKE_PAGES.items())
def test_a_decision_explains_its_rule_and_links_the_sibling(
    case: tuple[str, str, str], sentence: str
) -> None:
    reason, address, title = case
    other_position, other_id = "documents-0@1", "https://shop.example/0"
    names: dict[str, object] = (
        {"sibling_position": other_position, "sibling_id": other_id, "sibling_similarity": 0.78}
        if reason == "new"
        else {"kept_position": other_position, "kept_id": other_id, "similarity": 0.78}
    )
    page_decision = decision(9, reason, id=address, **names)

    def open_page(position: str) -> OpenedRecord:
        if position == other_position:
            return OpenedRecord(position, other_id, KEPT, site="shop.example", title="One")
        site = address.split("/")[2]
        return OpenedRecord(position, address, COPY, "", page_decision, site=site, title=title)

    page = get_page(
        f"decision?position={page_decision.output_position}", sources(0, read_record=open_page)
    )

    assert sentence in page
    assert ("so this one" in page) == ("so this one" in sentence)
    assert f'href="{other_id}"' in page
    if reason == "new":
        assert 'href="decision?position=documents-0%401">its decision</a>' in page
        assert "Earliest similar kept page" in page


def test_copies_that_are_older_than_the_kept_page_are_marked() -> None:
    """After a backlog the kept page may be newer; a page fetched twice counts as two copies."""
    known = group()
    assert known is not None
    members = (
        replace(known.members[0], fetches=2, first_ms=HOUR_MS - 9 * 60_000),
        *known.members[1:],
    )
    page = get_page(
        GROUP,
        group=partial(group, copies=4, members=members, member_count=3),
        read_record=lambda position: replace(open_record(position), time_ms=HOUR_MS - 10 * 60_000),
    )

    assert "It has 4 copies (3 pages, some fetched more than once)" in page
    assert re.search(r'The earliest page is <a href="decision\?position=duplicates-2%4014">', page)
    assert "2 of the listed copies are older than the kept page" in page
    assert re.search(
        r'data-unit="fetches">2</td><td class="times" data-unit="first"><span class="whole">20',
        page,
    )
    assert re.search(
        r'data-unit="fetch">1</td><td class="times" data-unit="first"><span class="whole">20', page
    )
    assert "are not listed" not in page
    page = get_page(GROUP, group=partial(group, copies=9, member_count=7))
    assert "It has 9 copies, 9.0 kB in total." in page
    assert "4 more pages are not listed." in page


def test_an_exact_copy_has_similarity_1_everywhere() -> None:
    """In the list and in the CSV, as `tap` prints it."""
    headers = [("dedup.verdict", b"duplicate"), ("dedup.reason", b"exact")]
    found = decision_of(Message("duplicates", 0, 1, None, b"", 1, headers), b"id", "", 1)
    assert found.similarity == 1.0
    given = sources(0)
    given.recent.add([replace(found, kept_position="documents-0@1")])
    assert ">1.00</td>" in get_page("decisions", given)
    (row,) = csv.DictReader(io.StringIO(get_page("decisions.csv", given)))
    assert float(row["similarity"]) == 1


def test_a_released_decision_says_so() -> None:
    """It no longer shows the command to release it."""
    page = get_page(
        DECISION,
        released_position=lambda position: "unique-0@77" if position == "documents-0@8" else "",
    )
    assert "Command to release it" in get_page(DECISION)
    assert 'also at <a href="decision?position=unique-0%4077">' in page
    assert "Command to release it" not in page


def test_a_released_copy_is_marked_in_its_group() -> None:
    """It is listed among the copies and not counted, even if it is the only one."""
    known = group()
    assert known is not None
    released = replace(known.members[0], output_position="unique-0@77", reason="released")
    given = {"released": 1, "released_members": (released,), "counted": 4}
    page = get_page(GROUP, group=partial(group, **given))
    assert "It has 3 copies, 9.0 kB in total. 1 former copy was released by an operator." in page
    assert "The log counted" not in page
    assert '<span class="key r-released"></span>released</td>' in page
    assert 'href="decision?position=unique-0%4077"' in page
    (row,) = [
        row
        for row in csv.DictReader(
            io.StringIO(
                get_page(GROUP.replace("group?", "group.csv?"), group=partial(group, **given))
            )
        )
        if row["reason"] == "released"
    ]
    assert row["output_position"] == "unique-0@77"
    alone = get_page(GROUP, group=partial(group, **given, copies=0, members=(), earliest=None))
    assert "No copies of it are known. 1 former copy was released" in alone
    assert '<span class="key r-released"></span>released</td>' in alone


def test_lists_link_to_groups_and_duplicates() -> None:
    """They link to kept pages and to a host's duplicates, and state the threshold."""
    given = sources(0)
    copy = {"kept_position": "documents-0@1", "kept_id": "https://a.example/1", "host": "b.example"}
    given.recent.add(decision(place, "near", **copy) for place in range(5))
    page, hosts = get_page("decisions?verdict=duplicate", given), get_page("hosts", given)

    assert (
        '<a href="group?document=documents-0%401"><bdi>https://a.example/<wbr>1</bdi></a>' in page
    )
    assert '<option value="duplicate" selected>all duplicates</option>' in page
    assert "Pages of different sites are copies at a similarity of 0.62 or more" in page
    assert 'href="decisions?host=b.example&amp;verdict=copy">5</a>' in hosts
    assert '<option value="copy" selected>copies (without fetched again)</option>' in get_page(
        "decisions?verdict=copy", given
    )
    assert "Fetched again" in hosts
    assert "Wasted bytes are the bytes of copies" in hosts


@pytest.mark.parametrize("number", ["-1", "0", "1.5", "x"])
def test_a_page_number_is_one_or_higher(number: str) -> None:
    sentence = f"page must be a whole number from 1, not '{number}'."
    assert sentence in html.unescape(get_page(f"groups?page={number}"))


def test_without_a_search_nothing_leads_to_its_tables() -> None:
    for name in ("groups", "copies?host=a.example"):
        page = get_page(name, replace(sources(), search=None))
        assert "This role has no full-text index." in page
        assert [part for part in ("As CSV", "order=newest", "<form") if part in page] == []


def test_a_list_says_how_many_decisions_match() -> None:
    """Without forgotten ones, as the CSV; filtered, sorted, and on any page."""

    def redacted(listed: Decision) -> Decision | None:
        return None if listed.offset == 7 else listed

    for query, count in (("", 499), ("reason=exact", 50), ("reason=exact&sort=id", 50)):
        given = sources(redact_decision=redacted)
        page = " ".join(get_page(f"decisions?{query}", given).split())
        of = f"{count} of the latest 499 decisions" if query else "The latest 499 decisions"
        assert f"{of}, {'sorted' if 'sort' in query else 'newest first'}." in page
        rows = list(csv.DictReader(io.StringIO(get_page(f"decisions.csv?{query}", given))))
        assert len(rows) == count
    assert "in the latest 499 decisions" in get_page("hosts", sources(redact_decision=redacted))
    given = sources()
    first = get_json("decisions.json", given)
    second = get_json(f"decisions.json?before={first['before']}", given)
    assert first["matching"] == second["matching"] == 500
    assert [row["offset"] for row in second["decisions"]] == list(range(449, 399, -1))


def test_a_kept_page_without_copies_says_so() -> None:
    """If the search fails, the number is left out and a notice says why."""
    page = get_page("decision?position=unique-1@1", group=lambda _: None)
    assert "none known</dd>" in page

    def fail(_: str) -> None:
        raise StreamDedupError("The search has read nothing yet.")

    page = get_page("decision?position=unique-1@1", group=fail)
    assert "none known" not in page
    assert "The number of copies is not known: The search has read nothing yet." in page
    assert get_json("decision.json?position=unique-1@1", group=fail)["copies"] is None
