"""`prints` on any machine and `judge` in one process return the verdicts of `check`."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.mini_crawl import mini_crawl
from stream_dedup import Recipe, dedup, judge, prints
from stream_dedup.domain.errors import ConfigurationError, InputError
from stream_dedup.files.parts import replace_file
from tests.cli.running import Run, jsonl
from tests.cli.test_datasets import read_tree

PAGES = mini_crawl(5, 300)
TABLE = pa.table({"n": list(range(len(PAGES))), "text": [page.text for page in PAGES]})
ONE_PRINT = prints(TABLE.slice(0, 1))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Shards of several kinds, one in a folder within, with a null, a broken line, an empty file
    and a copy among them."""
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    texts = [page.text for page in PAGES]
    pq.write_table(
        pa.table({"id": list(range(100)), "text": [None, *texts[1:100]]}), folder / "b.parquet"
    )
    (folder / "b.jsonl").write_text(
        jsonl({"url": page.id, "text": page.text} for page in PAGES[50:150])
    )
    (folder / "b.jsonl.gz").write_bytes(b"no gzip")
    (folder / "deep" / "a.jsonl").write_text(
        "no JSON\n" + json.dumps({"text": texts[3], "id": "é" * 700}) + "\n"
    )
    (folder / "z.jsonl").write_text("")
    return folder


def test_prints_and_judge_give_the_verdicts_of_check(run: Run, tmp_path: Path, data: Path) -> None:
    """By two processes, or a file at a time from the last to the first: the same prints, and the
    verdicts of `check`."""
    whole = run("check", data, "--json")
    table = run("check", data)

    made = run("prints", data, "--to", tmp_path / "prints", "--jobs", 2, "--json")
    for path in sorted((path for path in data.rglob("*") if path.is_file()), reverse=True):
        printed = run(
            "prints", path, "--to", (tmp_path / "one by one" / path.relative_to(data)).parent
        )
        assert printed.out.startswith("files")  # without a line of empty headings
    judged = run("judge", tmp_path / "prints", "--json")

    assert made.code == judged.code == whole.code == 1  # one file is no gzip
    expected = {"to": str(tmp_path / "prints"), "files": 5, "documents": 203, "unreadable": 3}
    assert made.json == expected
    assert judged.out == whole.out
    assert '"reason": "near"' in judged.out
    shown = run("judge", tmp_path / "prints")
    assert (shown.out, shown.code) == (table.out, table.code)
    of_shard = {
        name: pq.read_table(tmp_path / "prints" / name) for name in read_tree(tmp_path / "prints")
    }
    assert set(of_shard) == {f"{name}.parquet" for name in read_tree(data)}
    for name in set(of_shard) - {
        "deep/a.jsonl.parquet"
    }:  # read alone, the file has another location
        assert of_shard[name] == pq.read_table(tmp_path / "one by one" / name)


def test_judge_writes_verdicts_for_each_source(run: Run, tmp_path: Path, data: Path) -> None:
    run("prints", data, "--to", tmp_path / "prints")
    printed = run("judge", tmp_path / "prints", "--json").rows

    ended = run("judge", tmp_path / "prints", "--to", tmp_path / "verdicts")

    other = run("judge", tmp_path / "prints", "--to", tmp_path / "verdicts", "--similarity", "0.9")
    assert (other.code, "contains verdicts by another plan" in other.err) == (1, True)
    again = run("judge", tmp_path / "prints", "--to", tmp_path / "verdicts")
    assert (again.code, again.err) == (ended.code, ended.err)
    assert "documents  " in ended.out
    files = [
        tmp_path / "verdicts" / f"{name}.parquet"
        for name in ("b.jsonl", "b.jsonl.gz", "b.parquet", "deep/a.jsonl", "z.jsonl")
    ]
    written = [row for path in files for row in pq.read_table(path).to_pylist()]
    assert [
        {name: value for name, value in row.items() if value is not None} for row in written
    ] == [{name: value for name, value in row.items() if value is not None} for row in printed]
    assert pq.read_metadata(files[2]).num_rows == 100
    found = run("judge", tmp_path / "prints", "--to", tmp_path / "again", "--json").json["verdicts"]
    assert (sum(found.values()), set(found)) == (200, {"unique", "duplicate"})


def test_a_full_disk_is_reported_and_leaves_no_partial_file(
    run: Run, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partial file is deleted, and the command continues once there is space."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetWriter, "write_table", full)
        ended = run("prints", data / "b.jsonl", "--to", tmp_path / "prints")
    assert ended.code == 1
    assert (
        "was not written: the disk is full. Free or add space, and run the command again."
        in ended.err
    )
    assert read_tree(tmp_path / "prints") == {}
    assert run("prints", data / "b.jsonl", "--to", tmp_path / "prints").code == 0


def test_a_folder_that_cannot_be_read_is_reported(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are judged; a folder below without rights counts as a file that cannot be read.
    (Root may read each.)"""
    walk = os.walk

    def walk_with_error(top: Path, onerror: Callable[[OSError], None]) -> Any:
        onerror(PermissionError(errno.EACCES, "Permission denied", str(data / "deep")))
        return walk(top)

    monkeypatch.setattr("stream_dedup.inputs.sources.os.walk", walk_with_error)
    ended = run("check", data)

    assert ended.code == 1
    assert re.search(r"\bdeep\b.*(Permission denied|Is a directory)", ended.out + ended.err)


def test_prints_are_made_again_only_for_changed_files(run: Run, tmp_path: Path, data: Path) -> None:
    """Existing prints stay; those of a changed file or of other settings are made again."""
    command = ("prints", data, "--to", tmp_path / "prints", "--json")
    run(*command)
    before = read_tree(tmp_path / "prints")
    (tmp_path / "prints" / "b.parquet.parquet").unlink()
    (data / "z.jsonl").write_text('{"text": "one"}\n')
    os.utime(data / "z.jsonl", ns=(1, 1))

    again = run(*command)

    assert again.json["files"] == 2
    assert "3 files of prints exist and are up to date" in again.err
    single_file = ("prints", data / "z.jsonl", "--to", tmp_path / "one")
    run(*single_file)
    assert "1 file of prints exists and is up to date" in run(*single_file).err
    after = read_tree(tmp_path / "prints")
    assert {name for name in after if after[name] != before[name]} == {"z.jsonl.parquet"}
    assert run(*command, "--recipe", "chars").json["files"] == 5
    assert "of the recipe chars" in run("judge", tmp_path / "prints").err


def test_prints_without_a_source_are_reported(run: Run, tmp_path: Path, data: Path) -> None:
    """They stay, and `judge` reads them, until somebody deletes them."""
    command = ("prints", data, "--to", tmp_path / "prints")
    assert "prints of other files" not in run(*command).err
    (data / "deep" / "a.jsonl").unlink()
    left = tmp_path / "prints" / "deep" / "a.jsonl.parquet"

    errors = run(*command).err

    assert f"1 file of prints of other files, which judge also reads: {left}. Delete" in errors
    assert left.exists()
    text = run("prints", data / "b.parquet", "--to", tmp_path / "prints").err
    assert "prints of other files" not in text
    left.unlink()
    assert "prints of other files" not in run(*command).err


def test_judge_compares_new_prints_with_old_ones(run: Run, tmp_path: Path) -> None:
    for name, page in (("old", PAGES[0]), ("new", PAGES[0])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text(json.dumps({"id": name, "text": page.text}) + "\n")
        run("prints", tmp_path / name, "--to", tmp_path / f"prints of {name}")
    new, old = tmp_path / "prints of new", tmp_path / "prints of old"

    for extra in (
        ["--against", old],
        ["--against", old, "--index", tmp_path / "index"],
        ["--index", tmp_path / "index"],
    ):
        found = run("judge", new, *extra, "--json").json
        assert (found["id"], found["reason"], found["duplicate_of"]) == ("new", "exact", "old")


@pytest.mark.parametrize(("keep", "copy"), [("longest", "2"), ("newest", "0")])
def test_judge_keeps_the_copy_that_check_keeps(
    run: Run, tmp_path: Path, keep: str, copy: str
) -> None:
    """The copy that is kept may be in a later file; also with `--against` and files of verdicts."""
    rows = [
        {"id": f"{page.id}#{number}", "text": page.text + " more" * number, "when": when}
        for page in PAGES[:40]
        for number, when in enumerate(("2026-03-01", "2026-02-01", None))
    ]
    for name, part in (("old", rows[:3]), ("new/a", rows[3::2]), ("new/b", rows[4::2])):
        path = tmp_path / "data" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(jsonl(part) + "no JSON\n")
    data, made, setting = tmp_path / "data", tmp_path / "prints", ("--set", "time_field=when")
    for name in ("new", "old.jsonl"):
        run("prints", data / name, "--to", made / name, *setting)
    options = ("--keep", keep, "--json", "--against")

    checked = run("check", data / "new", *options, data / "old.jsonl", *setting)
    judged = run("judge", made / "new", *options, made / "old.jsonl")
    written = run("judge", made / "new", *options, made / "old.jsonl", "--to", tmp_path / "to")

    expected = (checked.code, checked.out.replace(f"{data}/new/", ""))
    assert (judged.code, judged.out) == expected
    found = judged.rows
    kept = Counter(row["duplicate_of"][-1] for row in found if row.get("duplicate_of"))
    assert kept.most_common(1)[0][0] == copy
    stored = [
        row
        for name in "ab"
        for row in pq.read_table(tmp_path / "to" / f"{name}.jsonl.parquet").to_pylist()
    ]
    assert [
        (row["location"], row.get("duplicate_of"), row.get("duplicate_of_number")) for row in stored
    ] == [
        (row["location"], row.get("duplicate_of"), row.get("duplicate_of_number")) for row in found
    ]
    assert json.loads(written.out)["unreadable"] == 3


def test_judge_refuses_a_keep_that_prints_cannot_rank(run: Run, tmp_path: Path) -> None:
    """A word that is none, a time that no print has, and an index that keeps what came first."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    run("prints", tmp_path / "a.jsonl", "--to", tmp_path / "prints")

    for keep, expected_error in {
        "LONGEST": "'LONGEST' is none of first, longest, newest; did you mean longest?",
        "stars": "'stars' is none of first, longest, newest.",
        "newest": "None of 2 documents has a time; make the prints with --set time_field=PATH.",
    }.items():
        for to in ([], ["--to", tmp_path / "out"]):
            ended = run("judge", tmp_path / "prints", "--keep", keep, *to)
            assert (ended.code, ended.out) == (2, "")
            assert expected_error in ended.words
    assert not (tmp_path / "out").exists()
    with_index = ("--keep", "longest", "--index", tmp_path / "index")
    assert run("judge", tmp_path / "prints", *with_index).code == 78


def _shard(start: int, recipe: Recipe) -> Any:
    return prints(TABLE.slice(start, 60), id="n", recipe=recipe)


def test_tables_of_prints_are_judged_as_the_documents_are(tmp_path: Path) -> None:
    """Made by other processes in any order; as tables, through a file, and as rows without
    types."""
    recipe = Recipe(key=b"a key of sixteen bytes or more")
    expected = dedup(TABLE, id="n", recipe=recipe)
    starts = list(range(0, len(PAGES), 60))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        made = dict(
            zip(
                reversed(starts),
                pool.map(partial(_shard, recipe=recipe), reversed(starts)),
                strict=True,
            )
        )
    tables = [made[start] for start in starts]

    assert expected["id"][:2] == [0, 1]
    assert "near" in expected["reason"]
    assert judge(pa.concat_tables(tables), recipe=recipe) == expected
    assert judge(iter(tables), recipe=recipe) == expected
    found = judge([batch for table in tables for batch in table.to_batches()], recipe=recipe)
    assert found == expected
    pq.write_table(pa.concat_tables(tables), tmp_path / "prints.parquet")
    assert judge(tmp_path, recipe=recipe) == expected
    through_rows = pa.Table.from_pylist(pa.concat_tables(tables).to_pylist())
    assert judge(through_rows, recipe=recipe) == expected
    assert judge(prints(TABLE.slice(0, 0), id="n"))["id"] == []
    found = judge(prints(TABLE), similarity=0.99)["reason"]
    assert found == dedup(TABLE, similarity=0.99)["reason"]


@pytest.mark.parametrize(
    ("source", "error", "sentence"),
    [
        (TABLE, InputError, "^The table contains no prints: it has no column 'id'"),
        (
            prints(TABLE.slice(0, 3), recipe=Recipe("chars")),
            ConfigurationError,
            "^The table contains prints of the recipe chars",
        ),
        (5, InputError, "^A table with prints is expected, and an int was given"),
        *(
            (
                pa.table(
                    {
                        **{column: ONE_PRINT[column] for column in ONE_PRINT.column_names},
                        name: [odd],
                    }
                ),
                InputError,
                "^The table contains damaged prints",
            )
            for name, odd in (
                ("print", b"ab"),
                ("sketch", 5),
                ("features", [1, 2]),
                ("scope", "x"),
                ("problem", "x"),
            )
        ),
    ],
)
def test_judge_refuses_tables_without_valid_prints(
    source: object, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        judge(source)


def test_the_code_of_the_engines_page_works(tmp_path: Path) -> None:
    """The function that both engines get there, on the batches of each kind that they cut, is
    judged as one process judges."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "engines.md").read_text(
        encoding="utf-8"
    )
    (block, *_) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - the page's own code
    documents = pa.table(
        {"url": [f"https://a.example/{n}" for n in range(len(PAGES))], "text": TABLE["text"]}
    )

    batches = [
        names["fingerprinted"](documents.slice(start, 70)) for start in range(0, len(PAGES), 70)
    ]

    assert names["judge"](iter(batches)) == dedup(documents, id="url")
    declared = re.search(r'SCHEMA = "(.*)"', page)
    assert declared is not None
    assert [column.split()[0] for column in declared[1].split(", ")] == batches[0].column_names


def test_output_goes_to_local_folders_only(run: Run, tmp_path: Path, data: Path) -> None:
    """It may be written as `file://`; an address of elsewhere is refused, and no folder of its name
    is made."""
    run("prints", data, "--to", f"file://{tmp_path / 'there'}")
    assert list((tmp_path / "there").glob("*.parquet"))
    for words in (
        ("check", data, "--to"),
        ("prints", data, "--to"),
        ("judge", tmp_path / "there", "--index"),
    ):
        ended = run(*words, "s3://bucket/prints")
        assert (ended.code, "is a URL; this option needs a folder" in ended.words) == (2, True)


def test_judge_refuses_files_without_prints(run: Run, tmp_path: Path, data: Path) -> None:
    """Documents given to `judge`, in each form, are no empty result; what lies beside prints is
    named."""
    pq.write_table(TABLE.slice(0, 0), tmp_path / "none.parquet")
    (tmp_path / "empty.jsonl").write_text("")
    run("prints", data / "b.jsonl", tmp_path / "empty.jsonl", "--to", tmp_path / "prints")
    (tmp_path / "prints" / "notes.csv").write_text("a,b")
    (tmp_path / "prints" / "more.jsonl").write_text("{}")

    for target, expected_error in {
        data / "deep": "contains no prints. Make prints with",
        data / "b.jsonl": "contains no prints. Make prints with",
        tmp_path / "none.parquet": "none.parquet contains no prints: it has no column 'id'",
        data / "b.parquet": "b.parquet contains no prints: it has no column 'recipe'",
        tmp_path / "prints" / "empty.jsonl.parquet": "The files contain no document",
    }.items():
        for words in (["judge", target], ["judge", tmp_path / "prints", "--against", target]):
            ended = run(*words)
            is_empty = "no document" in expected_error and "--against" in words
            assert ended.code == 1
            assert ("No document in --against" if is_empty else expected_error) in ended.err
    strict = run("judge", tmp_path / "prints", "--strict")
    expected_remarks = (
        "2 files were not read: more.jsonl (no prints), notes.csv (no prints).\n"
        "Kept only because of site or title (on different sites they would be copies): 2 documents; "
        "the most similar is https://chronicle.example/en/00142, similarity 0.77 to "
        "https://chronicle.example/en/00002. Pages of one site are copies at a similarity "
        "of 0.70 or more with the same title, 0.97 or more with different titles, else 0.85 or more.\n"
    )
    assert (strict.code, strict.err) == (1, expected_remarks)
    with pytest.raises(InputError, match=r"contains no prints"):
        judge(data / "deep")


def test_prints_reports_what_check_reports(run: Run, tmp_path: Path) -> None:
    """`prints` says of its files, by one process or two, what `check` says of them, and names as
    many dead letters."""
    for name in "ab":
        rows = [
            {"text": f"<html><body>{name} {PAGES[0].text}"},
            {"key": 1, "text": f"{name} \N{REPLACEMENT CHARACTER}"},
            5,
            6,
            # the note on sites is printed from 20 documents on
            *(
                {"key": f"{name}{number}", "text": f"{name} {PAGES[number].text}"}
                for number in range(9)
            ),
        ]
        raw = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_bytes(
            raw.encode().replace("\N{REPLACEMENT CHARACTER}".encode(), b"\xff")
        )
    (tmp_path / "c.jsonl").write_text('{"body": "x"}\n')
    options = (tmp_path, "--id-field", "key", "--rows", 2)

    check_lines = run("check", *options).err.splitlines()
    prints_lines = [
        run("prints", *options, "--to", f"{tmp_path}{jobs}", "--jobs", jobs).err.splitlines()
        for jobs in (1, 2)
    ]

    expected = [line for line in prints_lines[0] if "more" not in line]
    assert [line for line in check_lines if "more" not in line] == expected
    assert prints_lines[0] == prints_lines[1]
    assert len(check_lines) == len(prints_lines[0]) == 2 + 1 + 5  # four equal problems are one line


def test_files_of_other_kinds_are_not_overwritten(run: Run, tmp_path: Path, data: Path) -> None:
    """No pipe, no link and no file in the place of a folder, and no file that the command has not
    written before."""
    run("prints", data, "--to", tmp_path / "prints")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    before = read_tree(tmp_path)
    commands = (
        ["check", data, "--to"],
        ["check", data, "--index"],
        ["prints", data, "--to"],
        ["judge", tmp_path / "prints", "--to"],
    )
    for words in commands:
        assert "cannot be" in run(*words, tmp_path / ("x" * 300)).err
        for name in ("pipe", "file", "link"):
            ended = run(*words, tmp_path / name)
            assert (ended.code, "exists and is not a folder" in ended.words) == (2, True)
    kinds: list[Callable[[Path], object]] = [os.mkfifo, Path.mkdir, Path.touch]
    kinds.append(lambda path: pq.write_table(TABLE.slice(0, 1), path))
    for number, make in enumerate(kinds):
        to = tmp_path / f"to {number}"
        to.mkdir()
        make(to / "b.jsonl.parquet")
        for words, kind in (
            (["prints", data], "prints"),
            (["judge", tmp_path / "prints"], "verdicts"),
        ):
            ended = run(*words, "--to", to)
            assert ended.code == 1
            assert (
                f"{to / 'b.jsonl.parquet'} exists and is not a file of {kind}; name "
                "another folder" in ended.err
            )
        with (
            pytest.raises(InputError, match="exists and is not a file")
            if number < 2
            else nullcontext()
        ):
            replace_file(to / "b.jsonl.parquet", Path.touch)
    for words in (
        ["check", data, "--to"],
        ["check", data, "--index"],
        ["prints", data, "--to"],
        ["judge", data, "--to"],
    ):
        wanted = f"is inside {data}, so its files would be read as input"
        assert wanted in run(*words, data / "to").err
    shutil.copytree(tmp_path / "prints", tmp_path / "copy")
    errors = run("judge", tmp_path / "prints", "--to", tmp_path / "copy").err
    assert "is not a file of verdicts" in errors
    for words in (
        ["check", tmp_path / "pipe", "--format", "jsonl"],
        ["prints", tmp_path / "pipe", "--format", "jsonl"],
    ):
        found = run(*words, "--to", tmp_path / "new").code
        assert found == 1
    assert {name: raw for name, raw in read_tree(tmp_path).items() if name in before} == before


def test_prints_and_verdicts_stay_in_their_folder(run: Run, tmp_path: Path, data: Path) -> None:
    """Also of a pattern from the root; of two files of one name, nothing is written over the
    other's."""
    before = {path for path in data.rglob("*") if path.is_file()}
    run("prints", f"{data}/**/*.jsonl", "--to", tmp_path / "p")
    assert {path for path in data.rglob("*") if path.is_file()} == before
    made = list((tmp_path / "p").rglob("*.parquet"))
    assert len(made) == sum(path.suffix == ".jsonl" for path in before)

    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "one.parquet").write_bytes(made[0].read_bytes())
    ended = run("judge", tmp_path / "a", tmp_path / "b", "--to", tmp_path / "v")
    assert (ended.code, (tmp_path / "v").exists()) == (1, False)
    assert "two source files have the same name" in ended.words


def test_prints_of_another_source_with_the_same_name_are_kept(run: Run, tmp_path: Path) -> None:
    """The same source, changed, is fingerprinted again; another one is refused, unless the first
    no longer exists."""
    for name, page in (("en", PAGES[0]), ("de", PAGES[1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text(json.dumps({"id": name, "text": page.text}) + "\n")
    first, second, to = tmp_path / "en" / "a.jsonl", tmp_path / "de" / "a.jsonl", tmp_path / "to"
    run("prints", first, "--to", to)
    before = read_tree(to)

    again = run("prints", first, "--to", to)
    refused = run("prints", second, "--to", to)

    assert "1 file of prints exists and is up to date." in again.err
    assert (refused.code, read_tree(to)) == (1, before)
    assert f"contains the prints of {first}, and {second} has the same name" in refused.words
    assert "name another folder with --to" in refused.words
    first.write_text(first.read_text() * 2)
    assert run("prints", first, "--to", to, "--json").json["documents"] == 2
    first.unlink()
    assert run("prints", second, "--to", to).code == 0
    assert judge(to)["is_duplicate"] == [False]


def test_ids_of_files_of_prints_are_texts(run: Run, tmp_path: Path) -> None:
    """Ids in a table of `prints` keep their type."""
    rows = [{"id": "é", "text": PAGES[0].text}, {"id": 7, "text": PAGES[1].text}]
    (tmp_path / "a.jsonl").write_text(jsonl(rows))
    run("prints", tmp_path / "a.jsonl", "--to", tmp_path / "prints")

    judged = judge(tmp_path / "prints")

    assert judged["id"] == ["é", "7"]
    assert judged["id"] == dedup(tmp_path / "a.jsonl")["id"]
    table = pa.table({"id": [b"\xff"], "text": [PAGES[0].text]})
    assert judge(prints(table, id="id"))["id"] == [b"\xff"]
