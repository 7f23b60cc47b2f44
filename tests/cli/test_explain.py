"""`explain`: why two documents are duplicates or not."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stream_dedup.cli import similar_in_index
from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.plan import PLANS
from stream_dedup.files import one_text
from stream_dedup.fingerprinting import Recipe, explain_features
from stream_dedup.orders import rewind
from stream_dedup.orders.common import OrderDependencies, SourcePlace, find_source
from stream_dedup.serving import http_client
from stream_dedup.settings.settings import Settings
from tests.cli.running import Run
from tests.cli.test_check import OTHER, PAGE, edited


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str, str], tuple[Path, Path]]:
    def write(first: str, second: str) -> tuple[Path, Path]:
        (tmp_path / "a.txt").write_text(first)
        (tmp_path / "b.txt").write_text(second)
        return tmp_path / "a.txt", tmp_path / "b.txt"

    return write


ONE_SITE = "that may be of one site are copies at a similarity of 0.70 or more, so this one "
CASES: dict[str, tuple[str, str, str | None, str, str]] = {
    # the texts, the reason of a duplicate, the sentence, the plan
    "the same text": (PAGE, PAGE.upper() + "  ", "exact", "equal after normalisation", "bands"),
    "nearly the same": (PAGE, edited(PAGE), "near", f"{ONE_SITE}is a copy. ", "bands"),
    "another text": (PAGE, OTHER, None, f"{ONE_SITE}was kept.", "bands"),
    "a short one": (PAGE, "a few words", None, "fewer than 14 features", "bands"),
    "an empty one": (PAGE, " ", None, "no text after normalisation", "bands"),
    "near in bits": (PAGE, edited(PAGE), "near", "bits differ; at most 17 may", "blocks"),
    "far in bits": (PAGE, OTHER, None, "bits differ; at most 17 may", "blocks"),
    "near and in no block": (PAGE, OTHER, None, "few enough", "128:8:0:128"),
    "lengths apart": (PAGE, PAGE + OTHER, None, "at least 99 % of these", "128:8:1:128:99%"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_and_its_reason(run: Run, files: Callable[..., Any], case: str) -> None:
    first, second, reason, why, plan = CASES[case]
    found = run("explain", *files(first, second), "--plan", plan, "--json").json
    assert (found["verdict"], found["reason"]) == ("duplicate" if reason else "unique", reason)
    assert why in found["explanation"]


def test_the_table_has_the_similarity_of_the_sentence(run: Run, files: Callable[..., Any]) -> None:
    ended = run("explain", *files(PAGE, edited(PAGE)))
    share = re.findall(
        r"Similarity (0\.\d\d)|similarity +(0\.\d\d); copies: 0.70 or more", ended.out
    )
    assert len({first or second for first, second in share}) == 1
    assert len(share) == 2
    assert "the first, by the rule" in ended.out


def test_explain_names_the_better_of_two_copies(run: Run, tmp_path: Path) -> None:
    """The second beats the first or does not, by the rule of the settings; what is no copy is never
    the better one."""

    def better(first: tuple[str, str, int], second: tuple[str, str, int], *options: str) -> bool:
        names = []
        for name, (text, host, seconds) in (("a.json", first), ("b.json", second)):
            value = {
                "text": text,
                "url": f"https://{host}/1",
                "at": f"2026-11-25T00:00:{seconds:02d}Z",
            }
            (tmp_path / name).write_text(json.dumps(value))
            names.append(tmp_path / name)
        fields = ("--set", "value_format=json", "--set", "id_field=url", "--set", "time_field=at")
        found = run("explain", *names, *fields, *options, "--json").json
        return bool(found["better"])

    short = (PAGE, "a.example", 1)
    long = (PAGE + "".join(f" more{number}" for number in range(40)), "b.example", 2)
    assert better(short, long)
    assert not better(long, short)
    newest = ("--set", "better=newest")
    assert better((PAGE, "a.example", 1), (PAGE, "b.example", 2), *newest)
    assert not better((PAGE, "b.example", 2), (PAGE, "a.example", 1), *newest)
    assert not better(short, (OTHER * 3, "b.example", 2))


def test_the_figures_are_those_of_plan_and_recipe(run: Run, files: Callable[..., Any]) -> None:
    """The distances of the blocks add up to the distance."""
    found = run("explain", *files(PAGE, edited(PAGE)), "--json", "--rows", 1000).json
    weights = explain_features(Recipe(), PAGE), explain_features(Recipe(), edited(PAGE))
    differences = [
        abs(feature["weights"][0] - feature["weights"][1]) for feature in found["differing"]
    ]

    assert sum(block["distance"] for block in found["blocks"]) == found["distance"] > 0
    assert (
        int(found["documents"][0]["fingerprint"], 16)
        ^ int(found["documents"][1]["fingerprint"], 16)
        != 0
    )
    assert differences == sorted(differences, reverse=True)
    assert {feature["feature"] for feature in found["differing"]} == {
        name
        for name in weights[0].keys() | weights[1].keys()
        if weights[0].get(name, 0) != weights[1].get(name, 0)
    }
    assert "edited" in {feature["feature"] for feature in found["differing"]}
    assert found["features_shared"] == len(weights[0].keys() & weights[1].keys())
    assert 0.9 < found["weight_shared"] < 1


def test_the_text_output_has_blocks_and_features(run: Run, files: Callable[..., Any]) -> None:
    """Verdict and sentence first, then prints, blocks, and the features that differ most with both
    weights."""
    page = run("explain", *files(PAGE, edited(PAGE)), "--plan", "128:8:1:21:75%", "--rows", 2).out
    pattern = r"\Aduplicate \(near\): .*^blocks .* of 8 within 1 bit; differences .*^features that differ most.* more; use --rows"
    assert re.search(pattern, page, re.DOTALL | re.MULTILINE)


def test_json_files_are_read_as_records(run: Run, tmp_path: Path) -> None:
    """With ids: the same id again is `revised`; another scope is never compared; a record without
    text says which."""
    for name, fields in {
        "a": {"id": "x", "text": PAGE, "host": "h"},
        "b": {"id": "x", "text": edited(PAGE), "host": "h"},
        "c": {"id": "x", "text": PAGE, "host": "other"},
        "d": {"id": "x"},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(fields))
    options = (
        "--set",
        "value_format=json",
        "--set",
        "id_field=id",
        "--set",
        "scope_field=host",
        "--json",
    )

    found = run("explain", tmp_path / "a.json", tmp_path / "b.json", *options).json["reason"]
    assert found == "revised"
    explanation = run("explain", tmp_path / "a.json", tmp_path / "c.json", *options).json[
        "explanation"
    ]
    assert "different scopes" in explanation
    explanation = run("explain", tmp_path / "a.json", tmp_path / "d.json", *options).err
    assert "no field 'text'" in explanation
    ended = run("explain", tmp_path / "none.txt", "documents-3")
    assert (ended.code, "neither a file, nor a row of a file" in ended.err) == (1, True)


@pytest.mark.parametrize(
    ("recipe", "plan", "digits"),
    [("chars", "blocks", 32), ("chars:64", "classic", 16), ("keywords:32", "32:4:0:3", 8)],
)
def test_the_recipe_is_that_of_the_settings(
    run: Run, files: Callable[..., Any], recipe: str, plan: str, digits: int
) -> None:
    """Prints have the recipe's width, the features shown are its own, and a plan beyond its width
    is refused."""
    command = ("explain", *files(PAGE, edited(PAGE)), "--set", f"recipe={recipe}", "--json")
    found = run(*command, "--plan", plan).json

    assert found["recipe"].startswith(f"{recipe.split(':', maxsplit=1)[0]}:{4 * digits}:")
    assert {len(document["fingerprint"]) for document in found["documents"]} == {digits}
    assert found["distance"] == sum(block["distance"] for block in found["blocks"])
    weights = [explain_features(Recipe(recipe), text) for text in (PAGE, edited(PAGE))]
    assert found["features_total"] == len(weights[0] | weights[1])
    assert {item["feature"] for item in found["differing"]} <= weights[0].keys() | weights[1].keys()
    if digits < 32:
        assert "compares 128 bits" in run(*command, "--plan", "blocks").err


def test_vectors_are_explained_by_their_numbers(run: Run, tmp_path: Path) -> None:
    for name, numbers in {"a": [1.0, 2.0, -1.0], "b": [1.0, 2.0, -1.5]}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"text": numbers}))
    (tmp_path / "c.txt").write_text(PAGE)
    options = ("--set", "recipe=vector", "--json")
    found = run("explain", tmp_path / "a.json", tmp_path / "b.json", *options).json

    assert found["differing"] == [{"feature": "#2", "weights": [-1.0, -1.5]}]
    errors = run("explain", tmp_path / "a.json", tmp_path / "c.txt", *options).err
    assert "the recipe expects vectors" in errors


# -- a position names its topic, also after the source topic of the filter was renamed

RENAMED = Settings.model_validate({"documents": "crawl2", "duplicates": "copies"})


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


DEPENDENCIES = OrderDependencies(read_whole_log=_nothing, read_partition=_nothing)


@pytest.mark.parametrize("text", ["documents-11@0", "duplicates-11@3", "other-1@2"])
def test_a_position_in_another_topic_is_no_document_of_this_filter(text: str) -> None:
    with pytest.raises(
        InputError, match=r"is not a position in crawl2 or copies, .* Nothing was written"
    ):
        find_source(DEPENDENCIES, RENAMED, text, bytes(16), b"key")
    with pytest.raises(
        InputError, match="is not a position in the source topic: workers read only crawl2"
    ):
        rewind.parse([text], RENAMED.topic_names.documents)


@pytest.mark.parametrize("text", ["11@3", "crawl2-11@3"])
def test_a_position_in_the_source_is_understood(text: str) -> None:
    assert find_source(DEPENDENCIES, RENAMED, text, bytes(16), b"key") == SourcePlace(11, 3)


@pytest.mark.parametrize(
    ("text", "topic"), [("documents-1@3", "documents"), ("1@3", "crawl2"), ("unique-1@3", "unique")]
)
def test_explain_reads_the_topic_that_a_position_names(
    text: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def record_at(
        _: object, __: object, name: str, partition: int, offset: int, ___: str
    ) -> Message:
        reads.append((name, partition, offset))
        return Message(name, partition, offset, b"key", b"some words", None, [])

    monkeypatch.setattr(one_text, "record_at", record_at)
    one_text.read_compared(RENAMED, text, takes_vectors=False)
    assert reads == [(topic, 1, 3)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.parquet", "a.warc.gz", "a.txt.gz"])
def test_a_file_of_many_documents_is_refused(
    run: Run, files: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    """`explain` and `similar` do not read it as one text."""
    text_file, _ = files(PAGE, OTHER)
    (tmp_path / name).write_bytes(text_file.read_bytes())

    for words in (["explain", text_file, tmp_path / name], ["similar", tmp_path / name]):
        ended = run(*words)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith(
            f"{name} is compressed" if "txt" in name else f"{name} contains many documents"
        )


def test_a_page_is_explained_by_its_main_text(run: Run, tmp_path: Path) -> None:
    """As `check` judges it."""
    for number, menu in enumerate(("Home News Weather Sports", "Contact Imprint Privacy Shop")):
        links = "".join(f"<li><a href='/{word}'>{word}</a></li>" for word in menu.split())
        page = f"<html><body><nav><ul>{links}</ul></nav><article><p>{PAGE}.</p></article></body></html>"
        (tmp_path / f"{number}.html").write_text(page)

    found = run("explain", tmp_path / "0.html", tmp_path / "1.html", "--json").json

    assert (found["reason"], found["documents"][0]["characters"]) == ("exact", len(PAGE) + 1)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_rows_are_named_as_check_prints_them(run: Run, tmp_path: Path, suffix: str) -> None:
    """The verdict on two rows is that of `check`, with its options; a row that is not there is named."""
    rows = [{"id": f"u{row}", "body": body} for row, body in enumerate((PAGE, edited(PAGE)))]
    path = tmp_path / f"pages.{suffix}"
    if suffix == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    checked = run("check", path, "--text-field", "body", "--json").out.splitlines()
    first, second = (json.loads(line) for line in checked)
    names = [f"{tmp_path}/{row['location']}" for row in (first, second)]

    found = run("explain", *names, "--text-field", "body", "--json").json
    assert (found["verdict"], found["reason"]) == (second["verdict"], second["reason"])
    assert (found["verdict"], found["distance"]) == ("duplicate", second["distance"])
    assert [document["id"] for document in found["documents"]] == ["u0", "u1"]
    lost = run("explain", names[0], f"{path}:77", "--text-field", "body")
    assert (lost.code, lost.err) == (
        1,
        (
            f"{path}:77 cannot be read: there is no such row; lines are "
            "counted from 1, rows of Parquet and Arrow from 0.\n"
        ),
    )
    wrong = run("explain", *names)
    assert "has no field 'text'" in wrong.err


def test_a_file_in_another_encoding_is_reported(run: Run, tmp_path: Path) -> None:
    """By `explain` and `similar`, as by `check`."""
    path, other = tmp_path / "a.txt", tmp_path / "b.txt"
    other.write_text(OTHER)
    index = tmp_path / "index"
    run("check", other, "--index", index)

    path.write_text(PAGE, "utf-16")
    for command in (("explain", other, path), ("similar", path, "--volume", index)):
        ended = run(*command)
        assert (ended.code, f"{path} is UTF-16: convert it to UTF-8" in ended.err) == (1, True)
    path.write_text(f"{PAGE} café", "latin-1")
    for command in (("explain", other, path), ("similar", path, "--volume", index)):
        ended = run(*command)
        remark = f"Bytes of {path} that are not UTF-8 were read as U+FFFD."
        assert (ended.code, remark in ended.err) == (0, True)
    path.write_text("ü" * 90, "latin-1")
    ended = run("similar", path, "--volume", index)
    assert "90 of the 90 characters of the text are not UTF-8" in ended.err


def test_a_file_of_rows_that_cannot_be_read_is_reported(run: Run, tmp_path: Path) -> None:
    path, other = tmp_path / "a.jsonl", tmp_path / "b.txt"
    path.write_bytes(b"\x1f\x8b packed")
    other.write_text(OTHER)

    wanted = f"{path}:1 cannot be read: a.jsonl is gzip: unpack it"
    assert wanted in run("explain", f"{path}:1", other).err
    missing = run("explain", tmp_path / "no.jsonl:2", other)
    assert (
        f"There is no file {tmp_path / 'no.jsonl'}; name a row of an existing file" in missing.err
    )


def test_one_blank_line_separates_the_tables(
    run: Run, files: Callable[[str, str], tuple[Path, Path]]
) -> None:
    lines = [line.strip() for line in run("explain", *files(PAGE, OTHER)).out.splitlines()]
    assert [pair for pair in itertools.pairwise(lines) if not any(pair)] == []


def test_positions_are_judged_by_the_plan_of_the_running_index(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`declare --similarity` changes the filter's plan, and not the settings of a shell; options
    take precedence, and without an index a note names the settings."""
    texts = {1: PAGE, 2: edited(PAGE)}
    asked_addresses = []

    def ask(base: str, path: str, *_: object) -> tuple[int, bytes]:
        asked_addresses.append(base)
        if base.endswith(":1"):
            raise ConnectionRefusedError
        return 200, json.dumps({"plan": PLANS["bands"].with_similarity(similarity=99).id}).encode()

    def record_at(
        _: object, __: object, name: str, partition: int, offset: int, ___: str
    ) -> Message:
        return Message(name, partition, offset, b"%d" % offset, texts[offset].encode(), None, [])

    monkeypatch.setattr(one_text, "record_at", record_at)
    monkeypatch.setattr(http_client, "ask", ask)

    def verdict(*options: str) -> str:
        return str(run("explain", "1@1", "2@2", *options, "--json").json["verdict"])

    assert verdict() == "unique"
    assert verdict("--index", "http://127.0.0.1:5") == "unique"
    assert asked_addresses[-1] == "http://127.0.0.1:5"
    assert verdict("--similarity", "0.6") == "duplicate"
    assert verdict("--set", "similarity=0.6") == "duplicate"
    monkeypatch.setattr(similar_in_index, "addresses", lambda settings: ["http://127.0.0.1:1"])
    ended = run("explain", "1@1", "2@2")
    assert ended.out.startswith("duplicate")
    assert "the thresholds come from your settings" in ended.err
    ended = run("explain", "1@1", "2@2", "--index", "http://127.0.0.1:1")
    assert (ended.code, ended.out) == (1, "")
    assert "No index answers at http://127.0.0.1:1" in ended.err
    ended = run("explain", "1@1", "2@2", "--index", "http://127.0.0.1:5", "--similarity", "0.6")
    assert (ended.code, "uses the plan of the index" in ended.err) == (2, True)
    monkeypatch.setattr(http_client, "ask", lambda *_: (200, b'{"plan": null}'))
    assert "The index has no plan yet" in run("explain", "1@1", "2@2").err


def test_a_name_that_is_too_long_for_a_file_is_no_internal_error(run: Run) -> None:
    ended = run("explain", "x" * 5000, "2@2")
    assert (ended.code, "is neither a file, nor a row of a file" in ended.err) == (1, True)
