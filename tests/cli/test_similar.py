"""`similar`: a text in, the kept documents near it out, from an index over HTTP, its volume, or
files."""

from __future__ import annotations

import gzip
import io
import json
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.domain.document import Mode
from stream_dedup.domain.plan import PLANS, Plan
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.indexer.api import IndexApi
from stream_dedup.log import records
from stream_dedup.serving.http import HttpServer
from tests.cli.running import Run, jsonl
from tests.cli.test_check import OTHER, PAGE, edited, text
from tests.index.logs import APPEND_MS, Doc, batch, declare
from tests.serving.serving import serving

FAR = text()
TEXTS = {"http://a/": PAGE, "http://b/": OTHER, "http://c/": "just a few words"}


def make_docs(texts: dict[str, str]) -> list[Doc]:
    made = Fingerprinter(Recipe()).fingerprint(list(texts.values()))
    numbers = [int(high) << 64 | int(low) for low, high in made.prints]
    rows = zip(texts, made.digests, numbers, made.features, made.sketches, strict=True)
    return [
        Doc(
            0,
            row,
            row,
            digest.tobytes(),
            number,
            int(features),
            id=name.encode(),
            sketch=sketch.tobytes(),
        )
        for row, (name, digest, number, features, sketch) in enumerate(rows)
    ]


def write_index(folder: Path, texts: dict[str, str], plan: Plan, *after: bytes) -> Path:
    """Write an index of these documents to a folder, as a worker and an index do."""
    docs, recipe = make_docs(texts), Recipe()
    assert len(docs) <= records.DOCUMENTS_MAX
    index = LogIndex(RocksStore(folder))
    index.bind("cluster/0123")
    begun = declare(plan, recipe=recipe.id, floor=recipe.floor, mode=int(Mode.ENFORCE))
    log = [begun, batch(docs, recipe=recipe.id), *after]
    index.apply([(offset, APPEND_MS, record) for offset, record in enumerate(log)])
    index.close()
    return folder


@contextmanager
def serving_index(volume: Path) -> Iterator[HttpServer]:
    index, api = LogIndex(RocksStore(volume)), IndexApi()
    api.serve(index)
    with serving(api.routes()) as server:
        yield server
    index.close()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return write_index(tmp_path / "state" / "index", TEXTS, PLANS["blocks"])


def hits(ended: Any) -> list[tuple[str, int]]:
    assert ended.code == 0, ended.err
    return [(document["id"], document["distance"]) for document in ended.json["found"]]


def test_a_text_is_looked_up_in_a_volume(run: Run, volume: Path, tmp_path: Path) -> None:
    """As an argument, as a file, and a near text as well as the same; nothing for another text."""
    (tmp_path / "page.txt").write_text(PAGE)
    near = hits(run("similar", edited(PAGE), "--volume", volume, "--json"))

    shown = hits(run("similar", tmp_path / "page.txt", "--volume", volume, "--json"))
    assert shown == [("http://a/", 0)]
    assert hits(run("similar", PAGE.upper(), "--volume", volume, "--json")) == [("http://a/", 0)]
    assert [name for name, _ in near] == ["http://a/"]
    assert 0 < near[0][1] <= PLANS["blocks"].threshold
    assert hits(run("similar", FAR, "--volume", volume, "--json")) == []
    assert hits(run("similar", PAGE, "--volume", volume, "--scope", "other", "--json")) == []


def test_a_page_is_looked_up_by_its_main_text(run: Run, volume: Path, tmp_path: Path) -> None:
    """As `check` judges it, without a setting; packed it is refused."""
    page = tmp_path / "page.html"
    menu = "".join(f"<li><a href='/{n}'>Section {n}</a></li>" for n in range(40))
    page.write_text(f"<body><nav><ul>{menu}</ul></nav><article><p>{PAGE}</p></article></body>")
    (tmp_path / "page.html.gz").write_bytes(gzip.compress(page.read_bytes()))

    assert hits(run("similar", page, "--volume", volume, "--json")) == [("http://a/", 0)]
    ended = run("similar", tmp_path / "page.html.gz", "--volume", volume)
    assert (ended.code, ended.err.startswith("page.html.gz is compressed")) == (1, True)


def test_a_record_s_text_is_looked_up_as_explain_reads_it(
    run: Run, volume: Path, tmp_path: Path
) -> None:
    """A .json file is a record: its text is at the settings' field, its scope at theirs; `--scope`
    wins."""
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"url": "http://a/", "page": {"body": PAGE}, "site": "other"}))
    where = (
        "--set",
        "text_field=page.body",
        "--set",
        "value_format=json",
        "--volume",
        volume,
        "--json",
    )

    assert hits(run("similar", record, *where)) == [("http://a/", 0)]
    assert hits(run("similar", record, "--set", "scope_field=site", *where)) == []
    ended = run("similar", record, "--set", "value_format=json", "--volume", volume)
    assert (ended.code, "would become a dead letter (field)" in ended.err) == (1, True)


def test_a_running_index_answers_the_same(
    run: Run, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run("similar", edited(PAGE), "--volume", volume, "--json").json
    monkeypatch.setattr("sys.stdin", type("In", (), {"buffer": io.BytesIO(edited(PAGE).encode())}))

    with serving_index(volume) as server:
        commands = [("-", "--index", f"http://127.0.0.1:{server.port}")]
        commands += [
            (edited(PAGE), "--set", f"http_port={port}") for port in (server.port, server.port - 1)
        ]
        assert [run("similar", *command, "--json").json for command in commands] == [expected] * 3


@pytest.mark.parametrize("name", ["typo.txt", "./typo", "pages/typo.html"])
def test_the_name_of_a_missing_file_is_not_searched(run: Run, volume: Path, name: str) -> None:
    """With `--text` it is; words with a full stop are a text."""
    ended = run("similar", name, "--volume", volume)

    assert (ended.code, f"There is no file {name}" in ended.err) == (1, True)
    assert run("similar", name, "--text", "--volume", volume).code == 0
    assert run("similar", "Some words. And more.", "--volume", volume).code == 0


@pytest.mark.parametrize("place", ["--index", "--volume"])
def test_similarity_replaces_the_threshold_of_the_index(
    run: Run, tmp_path: Path, place: str
) -> None:
    """A stricter one turns a near page away, a looser one finds one more; each is told with how
    alike it is."""
    chance = random.Random(4)
    words = [f"word{chance.randrange(3000)}" for _ in range(200)]
    pages = {f"http://{first}/": " ".join(words[first : first + 150]) for first in (0, 8, 24)}
    declared = PLANS["bands"].with_similarity(95)
    volume = write_index(tmp_path / "index", pages, declared)

    def run_similar(*more: str) -> Any:
        if place == "--volume":
            return run("similar", pages["http://0/"], place, volume, "--json", *more)
        with serving_index(volume) as server:
            return run(
                "similar",
                pages["http://0/"],
                place,
                f"http://127.0.0.1:{server.port}",
                "--json",
                *more,
            )

    def find(*more: str) -> tuple[str, list[tuple[str, bool]]]:
        answer = run_similar(*more).json
        for document in answer["found"]:
            assert (document["similarity"] == 1) == (document["distance"] == 0)
        return answer["plan"], [document["id"] for document in answer["found"]]

    assert find() == (declared.id, ["http://0/"])
    shown = find("--similarity", "0.8")
    assert shown == (PLANS["bands"].with_similarity(80).id, ["http://0/", "http://8/"])
    assert find("--similarity", "50%") == (
        PLANS["bands"].with_similarity(50).id,
        ["http://0/", "http://8/", "http://24/"],
    )
    wrong = run_similar("--similarity", "7")
    assert (wrong.code, "a similarity is written as a share" in wrong.err) == (78, True)


def test_a_few_words_are_found_only_as_a_whole_text(run: Run, volume: Path) -> None:
    equal = run("similar", "Just a few WORDS", "--volume", volume)
    part = run("similar", " ".join(PAGE.split()[:5]), "--volume", volume)

    assert "http://c/" in equal.out
    assert part.out == ""
    for ended in (equal, part):
        assert "only documents with exactly this text are found" in ended.err


def test_similar_finds_documents_in_an_index_of_check(run: Run, tmp_path: Path) -> None:
    pages = [
        {"url": f"http://{number}/", "text": page}
        for number, page in enumerate([edited(PAGE), FAR, OTHER])
    ]
    (tmp_path / "pages.jsonl").write_text(jsonl(pages))
    assert run("check", tmp_path / "pages.jsonl", "--index", tmp_path / "kept").code == 0

    shown = [
        identifier
        for identifier, _ in hits(run("similar", PAGE, "--volume", tmp_path / "kept", "--json"))
    ]
    assert shown == ["http://0/"]
    table = run("similar", PAGE, "--volume", tmp_path / "kept").out
    expected = ["similarity", "distance", "id"]
    assert table.splitlines()[0].split() == expected
    errors = run("similar", "word", "--volume", tmp_path / "kept").err
    assert "has 1 feature (such as words)" in errors


def test_similar_reports_what_it_cannot_look_up(run: Run, volume: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    (tmp_path / "key").write_text("0123456789abcdef" * 4)
    (tmp_path / "key").chmod(0o600)

    nobody = run("similar", PAGE, "--index", f"http://127.0.0.1:{port}")
    shown = (nobody.code, "No index answers at" in nobody.err, "--volume" in nobody.err)
    assert shown == (1, True, True)
    assert "is empty after normalisation" in run("similar", " \n ", "--volume", volume).err
    assert "no index volume" in run("similar", PAGE, "--volume", tmp_path / "none").err
    recipe = run("similar", PAGE, "--volume", volume, "--set", f"key_file={tmp_path / 'key'}")
    shown = (recipe.code, "Set the recipe and the key that the workers use" in recipe.err)
    assert shown == (78, True)
    assert run("similar", PAGE, "--volume", volume, "--index", "http://x").code == 2
    assert "not the URL of an index" in run("similar", PAGE, "--index", "ftp://x").err
    assert f"--volume {volume}" in run("similar", PAGE, "--index", volume).err
    assert "contains no index; name" in run("similar", PAGE, "--volume", tmp_path).err


@pytest.mark.parametrize("recipe", ["words", "vector"])
def test_a_row_is_looked_up_as_explain_reads_it(run: Run, tmp_path: Path, recipe: str) -> None:
    pages, index = tmp_path / "pages.jsonl", tmp_path / "index"
    chance = random.Random(1)
    rows = [
        {"id": name, "text": page if recipe == "words" else [chance.gauss(0, 1) for _ in range(64)]}
        for name, page in (("a", PAGE), ("b", OTHER))
    ]
    pages.write_text(jsonl(rows))
    given = ("--set", f"recipe={recipe}")
    run("check", pages, "--index", index, *given)

    assert hits(run("similar", f"{pages}:2", "--volume", index, "--json", *given)) == [("b", 0)]
    shown = run("similar", "word " * 400 + ":2", "--volume", index, "--text").code
    assert shown == (0 if recipe == "words" else 78)
    assert "there is no such row" in run("similar", f"{pages}:3", "--volume", index, *given).err
