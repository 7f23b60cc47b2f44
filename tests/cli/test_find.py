"""`find` and `group`: asked of a running search, shown to people and to programs."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.cli.find_lines import line_of
from stream_dedup.fingerprinting import Languages
from stream_dedup.search.facts import EngineCheckpoint, TextFacts
from stream_dedup.search.finding import Finder
from stream_dedup.search.group_table import summarise_group
from stream_dedup.search.query import words_of
from stream_dedup.search.texts import TextIndex
from stream_dedup.serving.http import HttpServer
from tests.search.serving import serving_api
from tests.serving.serving import serving

TEXT = "It was the best of times,\nit was the worst of \x1b[31mtimes."


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpServer]:
    engine = TextIndex(tmp_path / "engine")
    facts = TextFacts(
        "unique-0@0", "https://a.example/\x1b[2J", 1_700_000_000_000, 50, "unique", "new"
    )
    engine.add_text(facts, words_of(TEXT, Languages()))
    copy = TextFacts(
        "duplicates-1@7",
        "https://b.example/",
        1_700_000_000_000,
        50,
        "duplicate",
        "near",
        0.9,
        "documents-0@3",
        "kept",
    )
    engine.add_text(copy._replace(better="longest", counted=3), ["other"])
    for offset, reason in enumerate(("near", "exact", "unchanged")):
        member = copy._replace(
            output_position=f"duplicates-2@{offset}",
            reason=reason,
            group_position="documents-0@5",
            id=f"https://b.example/{offset}",
        )
        engine.add_text(member._replace(time_ms=copy.time_ms + offset), ["other"])
    released = copy._replace(output_position="duplicates-2@9", source_position="documents-0@9")
    engine.add_text(released._replace(group_position="documents-0@5", id="released"), ["other"])
    engine.add_text(
        TextFacts(
            "unique-0@9",
            "released",
            copy.time_ms,
            50,
            "unique",
            "released",
            source_position="documents-0@9",
        ),
        ["other"],
    )
    engine.commit(EngineCheckpoint({}, {}))
    finder = Finder(engine, Languages(), lambda _: {"unique-0@0": TEXT})
    token = tmp_path / "token"
    token.write_text("secret\n")
    with serving_api(finder, token) as http_server:
        yield http_server
    engine.close()


@pytest.fixture
def ask(run: Callable[..., Any], server: HttpServer, tmp_path: Path) -> Callable[..., Any]:
    def ask_server(*arguments: object) -> Any:
        token = f"console_token_file={tmp_path / 'token'}"
        return run(*arguments, "--search", f"http://127.0.0.1:{server.port}", "--set", token)

    return ask_server


def test_a_clue_is_found_as_an_argument_and_in_a_file(
    ask: Callable[..., Any], tmp_path: Path
) -> None:
    """The output has share, position and snippet, and no escape sequences of texts or ids."""
    (tmp_path / "clue.txt").write_text("the best of times it was the WORST")
    shown = ask("find", "the best of times it was the WORST")

    assert shown.code == 0, shown.err
    assert "100%  https://a.example/\\x1b[2J  2023-11-14 22:13:20Z  unique-0@0  unique" in shown.out
    assert "It was the best of times, it was the worst of \\x1b[31mtimes." in shown.out
    assert "1 document on 1 host contains the text" in shown.err + shown.out
    answer = json.loads(ask("find", tmp_path / "clue.txt", "--json").out)
    assert [
        (document["output_position"], document["share"]) for document in answer["documents"]
    ] == [("unique-0@0", 1.0)]


def test_documents_are_paged_ordered_and_written_as_csv(ask: Callable[..., Any]) -> None:
    """The summary says of how many; the CSV has all of them and nothing else."""
    shown = ask("find", "best of times", "--order", "earliest", "--host", "a.example")
    assert "1 document on 1 host contains the text, or most of it." in shown.err + shown.out
    for page in ("2", "999", "10000"):
        beyond = ask("find", "best of times", "--page", page)
        assert "This page is after the last one." in beyond.err + beyond.out
    assert "No document contains" in "".join(
        ask("find", "best of times", "--host", "b.example")[1:]
    )
    (row,) = csv.DictReader(io.StringIO(ask("find", "best of times", "--csv").out))
    assert [row[name] for name in ("fetches", "first", "newest")] == ["1", row["time"], row["time"]]
    assert (row["time"], row["host"], row["share"]) == (
        "2023-11-14 22:13:20Z",
        "a.example",
        "1.0000",
    )
    assert "order must be one of" in ask("find", "best of times", "--order", "oldest").err
    assert "use only one of --csv and --json" in ask("find", "a b", "--csv", "--json").err


def test_find_reports_no_match_and_refuses_invalid_queries(ask: Callable[..., Any]) -> None:
    assert "No document contains the text" in "".join(ask("find", "no such words here at all")[1:])
    refused = ask("find", "--text", "***")
    assert (refused.code, "The search text has no word" in refused.err) == (1, True)
    assert "min_share must be a share" in ask("find", "best of times", "--min-share", "2").err


def test_a_group_and_the_groups_are_shown(ask: Callable[..., Any]) -> None:
    shown = ask("group", "duplicates-1@7")

    assert shown.code == 0, shown.err
    for part in (
        "https://b.example/",
        "b.example",
        "2023-11-14 22:13:20Z",
        "0.90",
        "near",
        "longest",
        "duplicates-1@7",
    ):
        assert part in shown.out
    assert (
        "kept was kept and has 1 copy. Its position is documents-0@3. The log counted 3 duplicates "
        "of it, including repeated fetches. "
        "Record time: "
        "2023-11-14 "
        "22:13:20Z. The best copy so far, by the rule longest, is https://b.example/."
    ) in " ".join((shown.out + shown.err).split())
    listed = ask("group", "--newest").out
    for part in ("documents-0@3", "https://b.example/ (longest)", "2023-11-14 22:13:20Z"):
        assert part in listed
    assert [group["copies"] for group in json.loads(ask("group", "--json").out)["groups"]] == [2, 1]
    unknown = ask("group", "documents-0@99")
    assert (unknown.code, "No copies of 'documents-0@99'" in unknown.err) == (1, True)


def test_the_line_of_a_page_counts_its_fetches() -> None:
    document = {
        "share": 1,
        "id": "a",
        "output_position": "unique-0@0",
        "time_ms": 0,
        "verdict": "unique",
    }
    document |= {"group_position": "", "snippet": [], "fetches": 1, "first_ms": 0, "newest_ms": 0}
    assert "fetches" not in line_of(document).plain
    times = {"first_ms": 1_700_000_000_000, "newest_ms": 1_700_000_060_000}
    assert (
        "  3 fetches, 2023-11-14 22:13:20Z to 2023-11-14 22:14:20Z"
        in line_of(document | {"fetches": 3} | times).plain
    )


def test_limit_bounds_the_shown_pages_and_groups(ask: Callable[..., Any]) -> None:
    """Its newest members, and of how many; the kept page fetched again is no copy."""
    shown = ask("group", "documents-0@5", "--limit", "1")

    output = " ".join((shown.out + shown.err).split())
    assert [f"duplicates-2@{offset}" in output for offset in range(3)] == [False, True, False]
    assert (
        "kept was kept and has 2 copies; it was fetched again 1 time; an operator released 1 other. "
        "Shown: 1 to 1 of 2 pages (--page, --limit). Its position is documents-0@5."
    ) in output
    assert "unique-0@9" in output
    rest = ask("group", "documents-0@5", "--limit", "1", "--page", "2")
    output = " ".join((rest.out + rest.err).split())
    assert [f"duplicates-2@{offset}" in output for offset in range(3)] == [True, False, False]
    assert "Shown: 2 to 2 of 2 pages (--page, --limit)." in output
    for number, group in enumerate(("documents-0@5", "documents-0@3"), 1):
        listed = " ".join(ask("group", "--limit", "1", "--page", number)[1:])
        assert group in listed
        assert f"Shown: {number} to {number} of 2 groups (--page, --limit)." in listed
    for asked in (("documents-0@5",), ()):
        beyond = ask("group", *asked, "--page", "10000", "--limit", "1000")
        assert "This page is after the last one." in beyond.err + beyond.out


def test_pages_that_were_fetched_more_than_once_are_counted(ask: Callable[..., Any]) -> None:
    """Beside the copies, as on the web page, if the table lists fewer pages than copies."""
    answer = json.loads(ask("group", "documents-0@5", "--json").out)
    assert "pages" not in summarise_group(answer)
    twice = answer | {"copies": 3}
    assert "has 3 copies (2 pages, some fetched more than once);" in summarise_group(twice)


def test_a_search_that_does_not_answer_is_reported_with_a_remedy(
    run: Callable[..., Any], server: HttpServer
) -> None:
    nobody = run("find", "a clue", "--search", "http://127.0.0.1:9")
    assert (nobody.code, "Start one with: stream-dedup run search" in nobody.err) == (1, True)
    assert "is not the URL of a search" in run("find", "a clue", "--search", "localhost").err
    assert (
        "needs its token"
        in run("find", "a clue", "--search", f"http://127.0.0.1:{server.port}").err
    )
    with serving() as other:
        assert (
            "another role answers there"
            in run("group", "x", "--search", f"http://127.0.0.1:{other.port}").err
        )


@pytest.mark.parametrize("command", ["find", "group"])
def test_find_and_group_need_no_package_of_the_console(command: str) -> None:
    """A client of a search on another machine has not installed the extra."""
    code = f"import sys; sys.modules['jinja2'] = None; import stream_dedup.cli.{command}"
    subprocess.run([sys.executable, "-c", code], check=True)
