"""Datasets without Kafka: `dedup` on tables, rows and files; `check --to` a folder, killed and gone
on with."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.mini_crawl import mini_crawl
from stream_dedup import Recipe, dedup
from stream_dedup.domain.errors import ConfigurationError, InputError
from stream_dedup.files import offline, parts
from tests.cli.running import Run, jsonl

ROOT = Path(__file__).parent.parent.parent
PAGES = mini_crawl(3, 300)
TEXTS = [page.text for page in PAGES]
TABLE = pa.table(
    {"n": list(range(len(PAGES))), "page": [{"text": page.text, "url": page.id} for page in PAGES]}
)


def test_every_kind_of_source_gives_the_same_columns(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=70)
    rows = TABLE.to_pylist()
    expected = dedup(TABLE, text="page.text", id="page.url")

    assert expected == dedup(TABLE.to_reader(50), text="page.text", id="page.url")
    assert expected == dedup((row for row in rows), text="page.text", id="page.url")
    assert expected == dedup({"text": TEXTS, "url": [page.id for page in PAGES]}, id="url")
    assert expected == dedup([(page.id, page.text) for page in PAGES])
    assert expected == dedup(tmp_path, text="page.text", id="page.url")
    numbered = dedup(TEXTS)
    assert numbered["id"] == [str(number) for number in range(len(TEXTS))]
    assert numbered["reason"].count("near") > 10
    found = pa.table(expected).to_pylist()
    assert sum(row["is_duplicate"] for row in found) > 10
    for number, row in enumerate(found):
        assert row["group"] == (row["duplicate_of_row"] if row["is_duplicate"] else number)
        assert not row["is_duplicate"] or (
            found[row["duplicate_of_row"]]["id"] == row["duplicate_of"]
            and row["duplicate_of_row"] < number
        )


@pytest.mark.parametrize(
    ("source", "arguments", "sentence"),
    [
        (5, {}, "^A table, rows or a path is expected, and an int was given"),
        (
            [5],
            {},
            (
                "^Row 0: a dictionary, a text, or a pair of id and text is expected, and an int was "
                "given"
            ),
        ),
        (["a", None], {}, "^Row 1 contains null instead of a text"),
        (["a", float("nan")], {}, "^Row 1 contains null instead of a text"),
        (
            [{"text": "a"}, {"text": None}],
            {},
            "^Row 1 contains null instead of a text in 'text'; .*nulls=\"drop\"",
        ),
        ([{"body": "a"}], {}, "^Row 0 has no column 'text'"),
        ([{"text": "a"}], {"id": "url"}, "^Row 0 has no id"),
        (TABLE, {}, "^There is no column 'text'; the columns are n, page"),
        (TABLE, {"text": "page"}, "^Row 0 contains a dict instead of a text in 'page'"),
        ({"text": ["a"], "id": []}, {"id": "id"}, "have different lengths"),
        (
            {"text": ["a", "b"], "other": [1]},
            {"returns": "kept"},
            "^The columns text and other have different lengths",
        ),
        ("/no/such/file", {}, "does not exist"),
    ],
)
def test_dedup_refuses_invalid_sources_with_a_sentence(
    source: object, arguments: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        dedup(source, **arguments)


def read_tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two Parquet files of different columns, a null among their texts, and a JSONL file with a
    broken line."""
    folder = tmp_path / "data"
    folder.mkdir()
    nulled = [None if number == 5 else text for number, text in enumerate(TEXTS)]
    pq.write_table(
        pa.table({"id": [page.id for page in PAGES], "text": nulled}),
        folder / "a.parquet",
        row_group_size=70,
    )
    pq.write_table(pa.table({"text": TEXTS[:100], "more": [b"\xff"] * 100}), folder / "b.parquet")
    lines = jsonl({"text": text} for text in TEXTS[:50])
    (folder / "c.jsonl").write_text(lines + "no JSON\n")
    return folder


class Killed(BaseException):
    """Raised in place of a kill, because no handler catches it."""


@pytest.mark.parametrize(
    ("dies_after", "batch"), [(1, 1000), (4, 1000), (14, 1000), (1, 25), (4, 25), (9, 25)]
)
def test_a_killed_run_continues_with_equal_output(
    run: Run,
    tmp_path: Path,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    dies_after: int,
    batch: int,
) -> None:
    """A run that is killed while it writes a part continues and writes the same bytes."""
    monkeypatch.setattr(parts, "PART_ROWS", 40)
    monkeypatch.setattr(offline, "BATCH_DOCUMENTS", batch)  # more and less than a part
    assert run("check", source, "--to", tmp_path / "whole").code == 0
    replaced, calls = parts.replace_file, iter(range(1000))

    def write_or_die(path: Path, write: Callable[[Path], object]) -> None:
        if next(calls) == dies_after:
            write(path)  # half a part is left behind
            raise Killed
        replaced(path, write)

    monkeypatch.setattr(parts, "replace_file", write_or_die)
    with pytest.raises(Killed):
        run("check", source, "--to", tmp_path / "killed")
    monkeypatch.setattr(parts, "replace_file", replaced)
    ended = run("check", source, "--to", tmp_path / "killed", "--json")

    assert ended.json["unreadable"] == 2
    whole = read_tree(tmp_path / "whole")
    assert read_tree(tmp_path / "killed") == whole
    assert len(whole) > 20
    (tmp_path / "killed" / "index").mkdir()  # as after a kill behind the last part
    again = run("check", source, "--to", tmp_path / "killed")
    assert again.code == 0
    assert "complete" in again.err
    assert read_tree(tmp_path / "killed") == whole
    assert not (tmp_path / "killed" / "index").exists()
    kept = pq.read_table(tmp_path / "whole" / "kept" / "part-00000.parquet")
    assert kept.column_names == ["id", "text"]
    duplicates = pa.concat_tables(
        [
            pq.read_table(path)
            for path in sorted((tmp_path / "whole" / "duplicates").glob("*.parquet"))
        ],
        promote_options="default",
    ).to_pylist()
    assert {duplicate["dedup_reason"] for duplicate in duplicates} >= {"exact", "near"}
    assert all(duplicate["dedup_of"] for duplicate in duplicates)


def test_check_refuses_folders_with_other_content(run: Run, tmp_path: Path, source: Path) -> None:
    """Not empty, begun with other settings, inside the source, or no text column: a sentence, and
    nothing is written."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert "is not empty" in run("check", source, "--to", tmp_path / "full").err
    assert "is inside" in run("check", source, "--to", source / "out").err
    errors = run("check", source, "--text-field", "body").err
    assert "has no column 'body'; its columns are id, text" in errors
    assert run("check", source / "b.parquet", "--to", tmp_path / "out").code == 0
    errors = run("check", source / "b.parquet", "--plan", "classic", "--to", tmp_path / "out").err
    assert "other settings" in errors


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_replaced_fields_of_the_source_are_counted(run: Run, tmp_path: Path, form: str) -> None:
    """Rows of an earlier run already have the fields that `check` adds."""
    dedup_fields: dict[str, Any] = {"dedup_of": "mine", "dedup_group": None, "dedup_problem": "own"}
    rows = [
        {"id": name, "text": text, **dedup_fields}
        for name, text in zip("abcd", [TEXTS[0]] * 3 + [None], strict=True)
    ]
    path = tmp_path / f"a.{form}"
    if form == "jsonl":
        path.write_text(jsonl(rows))
    else:  # bytes that are not UTF-8 count as a value
        pq.write_table(
            pa.table(
                {
                    **{name: [row[name] for row in rows] for name in rows[0]},
                    "dedup_of": [b"\xff"] * 4,
                }
            ),
            path,
        )

    for _ in range(2):
        errors = run("check", path, "--to", tmp_path / "out").err
        assert "dedup_of of 2 rows, dedup_problem of 1 row. The source still has them." in errors
        assert "dedup_group" not in errors
    again = run("check", tmp_path / "out" / "kept", "--to", tmp_path / "again")
    assert (again.code, again.err) == (0, "")


def test_the_notebook_runs() -> None:
    notebook = json.loads((ROOT / "examples" / "dedup.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102 - the notebook's own code

    assert 0 < names["kept"].num_rows < names["table"].num_rows
    assert sum(names["groups"]["id_count"].to_pylist()) == names["table"].num_rows


def test_the_commands_and_code_of_the_datasets_page_run(
    run: Run, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the page in an empty folder with `data/`, then its Python; every row is in
    one of the three outputs."""
    page = (ROOT / "docs" / "how-to" / "datasets.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.jsonl").write_text(jsonl({"text": text} for text in TEXTS[:20]))
    for line in re.findall(r"^\$ stream-dedup (.*)$", page, flags=re.MULTILINE):
        assert run(*shlex.split(line)).code == 0
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(block, {})  # noqa: S102 - the page's own code

    written = sum(
        pq.read_metadata(path).num_rows for path in (tmp_path / "deduplicated").rglob("*.parquet")
    )
    written += sum(
        len(path.read_bytes().splitlines()) for path in (tmp_path / "deduplicated").rglob("*.jsonl")
    )
    assert written == len(TEXTS) + 100 + 50 + 1


def test_the_llm_corpus_page_removes_the_test_set(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the page on corpora that need no Kafka; what is near the test set leaves the
    corpus behind it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "test-set").mkdir()
    pq.write_table(pa.table({"text": TEXTS[30:90]}), tmp_path / "data" / "shard-00.parquet")
    pq.write_table(pa.table({"text": TEXTS[:40]}), tmp_path / "test-set" / "a.parquet")
    page = (ROOT / "docs" / "how-to" / "llm-corpus.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ stream-dedup (check .*)$", page, flags=re.MULTILINE)
    assert len(commands) == 3
    for line in commands:
        assert run(*shlex.split(line)).code == 0

    corpus = set(
        pq.read_table(tmp_path / "decontaminated" / "kept" / "part-00000.parquet")[
            "text"
        ].to_pylist()
    )
    assert corpus
    assert not corpus & {text for text in TEXTS[:40] if text}


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("first", [0, 2]),
        ("longest", [1, 2]),
        ("stars", [1, 2]),
        ("day", [0, 2]),
        ("at.time", [1, 2]),
    ],
)
@pytest.mark.parametrize("as_table", [False, True])
def test_keep_names_the_copy_to_keep(keep: str, kept: list[int], as_table: bool) -> None:
    """The columns of numbers and times rank the rows; a row without a value ranks last."""
    rows = [
        {"text": TEXTS[0], "stars": 1, "day": dt.date(2026, 2, 1), "at": {"time": None}},
        {
            "text": f"{TEXTS[0]} more",
            "stars": 5,
            "day": dt.date(2026, 1, 1),
            "at": {"time": "2026-01-01"},
        },
        {"text": TEXTS[-1][::-1], "stars": 0, "day": dt.date(2026, 1, 1), "at": {"time": None}},
    ]
    source = pa.Table.from_pylist(rows) if as_table else rows
    ranks_last = pytest.warns(UserWarning, match="2 of 3 rows have no number or time in 'at.time'")

    with ranks_last if keep == "at.time" else nullcontext():
        found = dedup(source, keep=keep)

    assert [number for number in range(3) if not found["is_duplicate"][number]] == kept
    assert found["duplicate_of_row"][1 - kept[0]] == kept[0]


@pytest.mark.parametrize(
    ("keep", "sentence"),
    [
        ("newest", "All rows have no number or time in 'newest'; keep= can be first, longest, or"),
        ("text", "All rows have no number or time in 'text'"),
        (5, "keep= must be first, longest, or the name of a column, and an int was given"),
    ],
)
def test_keep_refuses_what_ranks_no_row(keep: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        dedup([{"text": text} for text in TEXTS[:3]], keep=keep)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_keep_ranks_the_end_of_the_year_9999_in_an_eastern_zone(tmp_path: Path, unit: str) -> None:
    """The usual time for "never" is in the year 10000 there, which Python cannot express."""
    times = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, tzinfo=dt.UTC)]
    column = pa.array(times, pa.timestamp(unit, "Asia/Tokyo"))
    table = pa.table({"text": [TEXTS[0]] * 2, "until": column})
    pq.write_table(table, tmp_path / "a.parquet")

    for source in (table, tmp_path / "a.parquet"):
        assert dedup(source, keep="until", returns="mask").tolist() == [False, True]
    later = table.set_column(1, "until", pa.array([1, 10**15], pa.timestamp("ms", "Asia/Tokyo")))
    with pytest.raises(InputError, match=r"A column of type timestamp.* cannot be read: "):
        dedup(later, keep="until")


def test_a_floor_of_0_is_refused() -> None:
    """Texts without features have equal fingerprints, so they would be copies of each other."""
    with pytest.raises(ConfigurationError, match="cannot be 0: use 1 or more"):
        Recipe(floor=0)
