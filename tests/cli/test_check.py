"""`check`: files in, duplicates out, through the same decoding and core as the worker."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from stream_dedup import Index, dedup
from stream_dedup.domain.errors import InputError
from tests.cli.running import Run, jsonl

SOURCE = random.Random(20260101)
WORDS = [f"word{number}" for number in range(600)]


def text(length: int = 150) -> str:
    return " ".join(SOURCE.choice(WORDS) for _ in range(length))


def edited(original: str) -> str:
    words = original.split()
    words[len(words) // 2] = "edited"
    return " ".join(words)


PAGE, OTHER = text(), text()
DOCUMENTS: list[dict[str, Any]] = [
    {"url": "http://a/1", "text": PAGE},
    {"url": "http://b/1", "text": edited(PAGE)},
    {"url": "http://a/1", "text": PAGE},
    {"url": "http://c/1", "text": [OTHER[:300], OTHER[300:]]},
    {"url": "http://d/1", "text": ""},
    {"url": "http://e/1", "text": "hello"},
    {"url": "http://f/1", "text": "HELLO "},
]
EXPECTED = [
    ("http://a/1", "unique", "new", None),
    ("http://b/1", "duplicate", "near", "http://a/1"),
    ("http://a/1", "duplicate", "unchanged", "http://a/1"),
    ("http://c/1", "unique", "new", None),
    ("http://d/1", "unique", "empty", None),
    ("http://e/1", "unique", "too-short", None),
    ("http://f/1", "duplicate", "exact", "http://e/1"),
]


def verdicts(out: str) -> list[tuple[Any, ...]]:
    found = [json.loads(line) for line in out.splitlines()]
    return [(row["id"], row["verdict"], row["reason"], row["duplicate_of"]) for row in found]


def test_verdicts_are_equal_for_files_folders_gzip_and_stdin(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As lines of JSON with their places, packed, in a folder or by standard input; people get
    duplicates and totals."""
    content = jsonl(DOCUMENTS).encode()
    path = tmp_path / "pages.jsonl"
    packed = tmp_path / "pages.ndjson.gz"
    deep = tmp_path / "deep" / "er" / "pages.jsonl"
    deep.parent.mkdir(parents=True)
    path.write_bytes(content)
    deep.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    for target in (path, "-", packed, tmp_path / "deep"):
        ended = run("check", target, "--json")
        assert (ended.code, verdicts(ended.out)) == (0, EXPECTED), target
    assert json.loads(ended.out.splitlines()[1])["location"] == "er/pages.jsonl:2"
    full, one_row = run("check", path), run("check", path, "--rows", 1)
    assert "http://b/1" in full.out
    assert "documents  7" in full.out
    assert "unique     4 (new 2, too-short 1, empty 1)" in full.out
    assert "duplicate  3 (exact 1, near 1, unchanged 1)" in full.out
    assert "... and 2 more" in one_row.out


def test_plain_text_by_lines_and_by_files(run: Run, tmp_path: Path) -> None:
    lines, folder = tmp_path / "lines", tmp_path / "texts"
    lines.write_text(f"{PAGE}\n{OTHER}\n\n{edited(PAGE)}\n")
    folder.mkdir()
    for name, content in {"a.txt": PAGE, "b.txt": edited(PAGE), "c.log": PAGE}.items():
        (folder / name).write_text(content)

    assert verdicts(run("check", lines, "--format", "lines", "--json").out) == [
        ("lines:1", "unique", "new", None),
        ("lines:2", "unique", "new", None),
        ("lines:4", "duplicate", "near", "lines:1"),
    ]
    by_file = [("a.txt", "unique", "new", None), ("b.txt", "duplicate", "near", "a.txt")]
    assert verdicts(run("check", folder, "--json").out) == by_file


def test_fields_plan_and_scope_can_be_set(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "pages.jsonl"
    given = enumerate([(PAGE, "x"), (PAGE, "y"), (edited(PAGE), "x")], 1)
    path.write_text(
        jsonl(
            [{"p": {"b": verdict}, "k": number, "site": site} for number, (verdict, site) in given]
        )
    )
    fields = ["--text-field", "p.b", "--id-field", "k", "--json"]

    assert verdicts(run("check", path, *fields).out) == [
        ("1", "unique", "new", None),
        ("2", "duplicate", "exact", "1"),
        ("3", "duplicate", "near", "1"),
    ]
    found = [
        verdict[2] for verdict in verdicts(run("check", path, *fields, "--plan", "128:8:0:0").out)
    ]
    assert found == ["new", "exact", "new"]
    assert [
        verdict[3]
        for verdict in verdicts(run("check", path, *fields, "--set", "scope_field=site").out)
    ] == [None, None, "1"]


def test_similarity_sets_the_threshold_of_near_copies(run: Run, tmp_path: Path) -> None:
    """A copy with a few words changed is near by the plan's own similarity and not by a greater
    one."""
    original = text()
    path = tmp_path / "pages.jsonl"
    path.write_text(jsonl([{"id": "a", "text": original}, {"id": "b", "text": edited(original)}]))

    assert [row[2] for row in verdicts(run("check", path, "--json").out)] == ["new", "near"]
    found = [row[2] for row in verdicts(run("check", path, "--similarity", "0.99", "--json").out)]
    assert found == ["new", "new"]
    found = [row[2] for row in verdicts(run("check", path, "--similarity", "60%", "--json").out)]
    assert found == ["new", "near"]
    of_copy = json.loads(run("check", path, "--json").out.splitlines()[1])
    assert of_copy["similarity"] == dedup([original, edited(original)])["similarity"][1]
    (tmp_path / "same.jsonl").write_text(
        json.dumps({"text": original}) + "\n" + json.dumps({"text": original.upper()}) + "\n"
    )
    assert (
        json.loads(run("check", tmp_path / "same.jsonl", "--json").out.splitlines()[1])[
            "similarity"
        ]
        == 1.0
    )
    found = dedup([original, original.upper()])["similarity"]
    assert found == [None, Index().add_many([("1", original)] * 2)[1].similarity]
    refused = run("check", path, "--similarity", "near", "--set", "recipe=wrds")
    assert refused.code == 78
    assert (
        "--similarity is 'near', but a similarity is written as a share from 0.01 to 1, in "
        "hundredths, such as 0.65." in refused.err
    )
    assert (
        "--set recipe is 'wrds', but there is no recipe 'wrds'; did you mean 'words'? A recipe is"
        in refused.err
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    errors = run("check", path, "--index", tmp_path / "other").err
    assert "Start the index with an empty directory; it is rebuilt from the log." in errors


def test_unreadable_lines_are_reported_and_the_rest_is_judged(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rude.jsonl"
    lines = [
        b"{broken",
        b'{"id": 1}',
        b'{"id": 2, "text": 5}',
        b"[1]",
        b'{"id": 3, "text": "\xff\xfe' + PAGE.encode() + b'"}',
        b'{"id": 4, "text": "\\ud800' + OTHER.encode() + b'"}',
        b'{"id": "\\u001b[31mred", "text": "' + OTHER.encode() + b'"}',
        b"[" * 100_000,
        b'{"id": ' + b"9" * 5000 + b', "text": "x"}',
        b"\xef\xbb\xbf" + b'{"id": 5, "text": "' + PAGE.encode() + b'"}',
    ]
    path.write_bytes(b"\r\n".join(lines))

    as_json, as_text = run("check", path, "--json"), run("check", path, "--rows", 0)

    found = [json.loads(line) for line in as_json.out.splitlines()]
    assert [row["location"] for row in found] == [
        f"rude.jsonl:{number}" for number in range(1, len(lines) + 1)
    ]
    dead, kept, copy = "dead-letter", "unique", "duplicate"
    expected = [dead, dead, dead, dead, kept, kept, copy, dead, dead, copy]
    assert [row["verdict"] for row in found] == expected
    assert as_text.code == as_json.code == 0
    assert "unreadable  6 (decode 3, field 3)" in as_text.out
    assert "rude.jsonl:1: The value is not JSON" in as_text.err
    assert re.search(r"at character \d", as_text.err) is not None
    assert "line 1 column" not in as_json.out
    assert "line 1" not in as_text.err
    *letters, remark = as_text.err.splitlines()
    assert len(letters) == 6
    # There is no remark on the text field, because other lines have it.
    assert (
        remark
        == "Bytes that are not UTF-8 were judged as U+FFFD, in 1 document; the first is rude.jsonl:5."
    )
    shown = run("check", path, "--rows", 2).err.splitlines()[2:]
    assert shown == ["... and 4 more that cannot be read.", remark]
    # Without --rows all are shown, because no two have the same problem.
    assert run("check", path).err.splitlines() == [*letters, remark]
    assert "\x1b" not in as_json.out + as_text.out + as_text.err


@pytest.mark.parametrize(
    ("name", "content", "expected_error"),
    [
        ("none.jsonl", None, "does not exist"),
        ("odd.xyz", b"x", "add --format jsonl, text, lines, warc or columns"),
        (
            "bad.jsonl.gz",
            b'{"id": 1, "text": "x"}\n',
            "bad.jsonl.gz cannot be read: it is not compressed as its name says; remove .gz from",
        ),
        (
            "cut.jsonl.gz",
            gzip.compress(b'{"id": 1, "text": "x"}\n' * 1000, mtime=0)[:-30],
            "cut.jsonl.gz cannot be read",
        ),
    ],
)
def test_files_that_cannot_be_read_are_reported(
    run: Run, tmp_path: Path, name: str, content: bytes | None, expected_error: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    ended = run("check", path)

    assert ended.code == 1
    assert expected_error in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("option", ["", "--against", "--to", "--index"])
def test_an_empty_path_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl(DOCUMENTS))

    ended = run("check", path, option, "") if option else run("check", "")

    assert ended.code != 0
    assert "path is empty" in ended.words
    for call in (dedup, Index):
        with pytest.raises(InputError, match=r"path.* is empty"):
            call("")


@pytest.mark.parametrize("more", [[], ["--json"], ["--keep", "longest"], ["--to", "out"]])
def test_files_without_documents_exit_1(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """A folder without documents, an empty file, and one of blank lines, also as what the others
    are judged against."""
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "empty.jsonl": "",
        "blank.txt.jsonl": "\n\n",
        "a.jsonl": jsonl(DOCUMENTS),
        "odd.jsonl": "odd\n",
    }.items():
        Path(name).write_text(content)
    Path("folder").mkdir()

    nothing = run("check", "empty.jsonl", "blank.txt.jsonl", *more)
    against = []
    for name in ("empty.jsonl", "odd.jsonl"):
        shutil.rmtree("out", ignore_errors=True)  # of a run with other files
        against.append(run("check", "a.jsonl", "--against", name, *more))
    folder = run("check", "folder", *more)
    if not more:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
        assert run("check", "-").err == "The files contain no document: standard input.\n"

    assert (nothing.code, nothing.err) == (
        1,
        "The files contain no document: empty.jsonl, blank.txt.jsonl.\n",
    )
    for ended, name in zip(against, ("empty.jsonl", "odd.jsonl"), strict=True):
        assert (ended.code, ended.out) == (1, "")
        assert (
            ended.err.splitlines()[-1]
            == f"No document in --against ({name}) can be judged; name other files, or leave out --against."
        )
    assert folder.code == 1
    assert (
        "contains no .jsonl, .ndjson, .parquet, .arrow, .txt, .html, .warc or .wet files"
        in folder.err
    )


def test_new_documents_are_judged_against_old_ones(run: Run, tmp_path: Path) -> None:
    """Old documents are not listed; a new document that is near an old one names it."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "old" / "a.jsonl").write_text(jsonl([{"id": "kept", "text": PAGE}]) + "no JSON\n")
    (tmp_path / "new" / "a.jsonl").write_text(
        jsonl([{"text": edited(PAGE)}, {"text": OTHER}, {"text": OTHER}])
    )

    ended = run("check", tmp_path / "new", "--against", tmp_path / "old", "--json")

    place = f"{tmp_path}/new/a.jsonl"
    assert verdicts(ended.out) == [
        (f"{place}:1", "duplicate", "near", "kept"),
        (f"{place}:2", "unique", "new", None),
        (f"{place}:3", "duplicate", "exact", f"{place}:2"),
    ]
    assert [json.loads(line)["duplicate_of_number"] for line in ended.out.splitlines()] == [
        None,
        None,
        1,
    ]
    assert f"{tmp_path}/old/a.jsonl:2: The value is not JSON" in ended.err
    table = run("check", tmp_path / "new", tmp_path / "old", "--against", tmp_path / "old")
    assert re.search(r"documents +5\n", table.out)
    assert "3 (exact 1, near 1, unchanged 1)" in table.out


def test_an_index_grows_from_run_to_run(run: Run, tmp_path: Path) -> None:
    """Each run is judged against all earlier ones, whichever way it came in; a program opens the
    same index."""
    for name, content in {"a": PAGE, "b": OTHER, "c": edited(PAGE), "d": edited(OTHER)}.items():
        (tmp_path / f"{name}.jsonl").write_text(jsonl([{"id": name, "text": content}]))
    index = tmp_path / "index"

    first = run("check", tmp_path / "a.jsonl", "--index", index, "--json")
    second = run(
        "check", tmp_path / "c.jsonl", "--against", tmp_path / "b.jsonl", "--index", index, "--json"
    )
    third = run(
        "check",
        tmp_path / "d.jsonl",
        tmp_path / "a.jsonl",
        "--index",
        index,
        "--to",
        tmp_path / "out",
        "--json",
    )

    assert verdicts(first.out) == [("a", "unique", "new", None)]
    assert verdicts(second.out) == [("c", "duplicate", "near", "a")]
    expected = {"to": str(tmp_path / "out"), "kept": 0, "duplicates": 2, "unreadable": 0}
    assert third.json == expected
    dropped = [
        json.loads(path.read_text()) for path in sorted((tmp_path / "out" / "duplicates").iterdir())
    ]
    found = [(row["dedup_of"], row["dedup_reason"], row["dedup_group"]) for row in dropped]
    assert found == [("b", "near", None), ("a", "unchanged", None)]
    with Index(index) as opened:
        assert list(opened) == ["a", "b"]
        assert opened.add("e", edited(PAGE)).duplicate_of == "a"
    for similarities in (["--similarity", "1"], ["--set", "similarity_unsure=1"]):
        index_copy = tmp_path / similarities[-1]
        shutil.copytree(index, index_copy)
        (tmp_path / "f.jsonl").write_text(jsonl([{"id": "f", "text": PAGE.rpartition(" ")[0]}]))
        found = verdicts(run("check", tmp_path / "f.jsonl", "--index", index_copy, "--json").out)
        assert found == [("f", "duplicate", "near", "a")]
        (tmp_path / "f.jsonl").write_text(jsonl([{"id": "g", "text": PAGE.partition(" ")[2]}]))
        near = run("check", tmp_path / "f.jsonl", "--index", index_copy, "--json", *similarities)
        assert verdicts(near.out) == [("g", "unique", "new", None)]


def test_an_index_that_is_open_or_cannot_be_made_is_reported(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(jsonl([{"id": "a", "text": PAGE}]))
    with Index(tmp_path / "index"):
        ended = run("check", tmp_path / "a.jsonl", "--index", tmp_path / "index")
    remedy = "--index, --to or Index(path)."

    assert ended.code == 1
    assert ended.words.endswith(
        f"{tmp_path / 'index'} could not be opened: another process has it open. Close it there, or "
        f"name another folder with {remedy}"
    )
    (tmp_path / "file").touch()
    refused = run("check", tmp_path / "a.jsonl", "--index", tmp_path / "file" / "index")
    assert f". Name a folder that can be written with {remedy}" in refused.words


def test_an_index_that_contains_all_documents_is_reported(run: Run, tmp_path: Path) -> None:
    """A second run keeps no document; a note says why."""
    source, index = tmp_path / "a.jsonl", tmp_path / "index"
    source.write_text(jsonl([{"id": "a", "text": PAGE}, {"id": "b", "text": OTHER}]))
    sentence = f"The index {index} already contained all 2 documents"
    assert sentence not in run("check", source, "--index", index).words

    for to in ([], ["--to", tmp_path / "out"]):
        assert sentence in run("check", source, "--index", index, *to).words
    assert "already contained" not in run("check", source, "--against", source).words
    source.write_text(source.read_text() + jsonl([{"id": "c", "text": "new " * 9}]))
    assert "already contained" not in run("check", source, "--index", index).words


def test_short_texts_are_compared_and_texts_below_the_floor_counted(
    run: Run, tmp_path: Path
) -> None:
    """Texts of 15 words are compared; where more than a tenth is below the floor, a note names the
    setting."""
    dice = random.Random(15)
    words = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]
    texts = [" ".join(dice.choices(words, k=15)) for _ in range(200)]
    copies = [f"{text.rpartition(' ')[0]} other" for text in texts]  # Jaccard 12 / 14
    path = tmp_path / "short.jsonl"
    path.write_text(jsonl({"text": text} for text in texts + copies))

    default, strict = run("check", str(path)), run("check", str(path), "--floor", "48")

    found = int(re.search(r"near (\d+)", default.out)[1])
    assert found >= 198
    assert "only compared for equality" not in default.err
    assert "near" not in strict.out
    assert "400 of 400 texts have fewer than 48 features" in strict.err
    assert "--floor" in strict.err


def test_the_library_warns_of_texts_below_the_floor() -> None:
    """`dedup` warns once where more than a tenth of the rows is too short to compare."""
    long = [" ".join(f"word{n}{k}" for k in range(30)) for n in range(30)]

    with pytest.warns(UserWarning, match="3 of 29 texts have fewer than 14 features"):
        dedup([*long[:26], "two words", "two more", "three"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dedup([*long, "two words"])
