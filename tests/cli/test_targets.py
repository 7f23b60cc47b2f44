"""`check`: URLs, patterns, several targets, the copy that is kept, and output formats."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from stream_dedup import dedup, judge, prints
from stream_dedup.domain.errors import InputError
from tests.cli.running import Run
from tests.inputs.warc_files import http, page, record

DICE = random.Random(5)
PAGE, OTHER, THIRD = (" ".join(f"word{DICE.randrange(500)}" for _ in range(120)) for _ in range(3))
LONGER = f"{PAGE} and one more sentence"
ROWS = [
    {"id": "a", "text": PAGE, "stars": 2, "when": "2026-01-01T00:00:00Z"},
    {"id": "b", "text": LONGER, "stars": 1, "when": "2026-03-01T00:00:00Z"},
    {"id": "c", "text": OTHER, "stars": None, "when": "2026-01-01T00:00:00Z"},
    {"id": "d", "text": PAGE, "stars": 9, "when": "2026-02-01T00:00:00Z"},
]


def encode_rows(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def bucket() -> Iterator[str]:
    """A store in memory (fsspec) with shards of JSONL and Parquet."""
    system = fsspec.filesystem("memory")
    system.pipe("/shards/a.jsonl", encode_rows(ROWS[:2]))
    system.pipe("/shards/deep/b.jsonl", encode_rows(ROWS[2:]))
    with system.open("/shards/c.parquet", "wb") as file:
        pq.write_table(pa.table({"id": ["e"], "text": [OTHER]}), file)
    yield "memory://shards"
    system.rm("/shards", recursive=True)


def verdicts(out: str) -> list[tuple[str, str, str | None]]:
    return [
        (row["location"], row["reason"], row["duplicate_of"])
        for row in map(json.loads, out.splitlines())
    ]


def test_urls_are_read_like_files(run: Run, tmp_path: Path, bucket: str) -> None:
    expected = [
        ("a.jsonl:1", "new", None),
        ("a.jsonl:2", "near", "a"),
        ("c.parquet:0", "new", None),
        ("deep/b.jsonl:1", "exact", "e"),
        ("deep/b.jsonl:2", "exact", "a"),
    ]
    assert verdicts(run("check", bucket, "--json").out) == expected
    assert verdicts(run("check", f"{bucket}/*.jsonl", "--json").out) == expected[:2]
    assert verdicts(run("check", f"{bucket}/c.parquet", "--json").out) == expected[2:3]
    assert dedup(bucket)["reason"] == [reason for _, reason, _ in expected]
    assert run("check", bucket, "--to", tmp_path / "out").code == 0
    found = pq.read_table(next((tmp_path / "out" / "kept").glob("*.parquet")))["id"].to_pylist()
    assert found == ["e"]
    assert run("prints", bucket, "--to", tmp_path / "prints").code == 0
    assert judge(tmp_path / "prints")["reason"] == [reason for _, reason, _ in expected]
    assert [path.name for path in Path("/tmp").glob("stream-dedup-*/*.parquet")] == []
    missing = run("check", "memory://nowhere/x.jsonl")
    assert missing.code == 1
    assert "memory://nowhere/x.jsonl cannot be read" in missing.err
    with pytest.raises(InputError, match="needs packages that are not installed"):
        dedup("hf://datasets/somebody/something")


def test_patterns_and_several_targets_are_read(run: Run, tmp_path: Path) -> None:
    for name, rows in (("one", ROWS[:2]), ("two", ROWS[2:])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_bytes(encode_rows(rows))

    for targets in ([tmp_path / "one", tmp_path / "two"], [f"{tmp_path}/*/a.jsonl"]):
        assert verdicts(run("check", *targets, "--json").out) == [
            (f"{tmp_path}/one/a.jsonl:1", "new", None),
            (f"{tmp_path}/one/a.jsonl:2", "near", "a"),
            (f"{tmp_path}/two/a.jsonl:1", "new", None),
            (f"{tmp_path}/two/a.jsonl:2", "exact", "a"),
        ]
    assert "as a pattern, contains no" in run("check", f"{tmp_path}/*/b.jsonl").err


def test_a_file_is_read_once(run: Run, tmp_path: Path) -> None:
    """Also if two targets name it, or a link in a folder does; `--against` may name it again."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(encode_rows([ROWS[0], ROWS[2]]))
    (folder / "b.jsonl").symlink_to(folder / "a.jsonl")
    file = folder / "a.jsonl"

    for targets, again in (
        ([file, file], file),
        ([file, f"{folder}/a.*"], file),
        ([folder], "b.jsonl"),
    ):
        for to in ([], ["--to", tmp_path / f"{again}-{len(targets)}".replace("/", "-")]):
            ended = run("check", *targets, "--strict", *to)
            assert f"Each file is read once; these were named again: {again}." in ended.words
            assert ended.code == 0
        assert json.loads(run("check", *targets, "--json").out.splitlines()[-1])["reason"] == "new"
    made = run("prints", file, file, "--to", tmp_path / "prints", "--json")
    assert made.json["documents"] == 2
    judged = run("judge", tmp_path / "prints", tmp_path / "prints" / "a.jsonl.parquet", "--json")
    assert len(judged.out.splitlines()) == 2
    assert "read once" not in run("check", file, "--against", file).words


@pytest.mark.parametrize(
    ("keep", "kept"), [("first", "ac"), ("longest", "bc"), ("newest", "bc"), ("stars", "cd")]
)
def test_keep_chooses_the_copy_that_is_kept(run: Run, tmp_path: Path, keep: str, kept: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_bytes(encode_rows(ROWS[:3]) + b"no JSON\n")
    (tmp_path / "data" / "b.jsonl").write_bytes(encode_rows(ROWS[3:]) + b"no JSON\n")
    options = ("--keep", keep, "--set", "time_field=when")

    shown = run("check", tmp_path / "data", *options, "--json").rows
    ended = run("check", tmp_path / "data", *options, "--to", tmp_path / "out", "--json")

    assert "".join(row["id"] for row in shown if row["verdict"] == "unique") == kept
    found = {row["duplicate_of"] for row in shown if row["verdict"] == "duplicate"}
    assert found == {(set(kept) - {"c"}).pop()}
    judged = [row for row in shown if row["verdict"] != "dead-letter"]
    found = [judged[row["duplicate_of_number"]]["id"] for row in judged if row["duplicate_of"]]
    assert found == [row["duplicate_of"] for row in judged if row["duplicate_of"]]
    expected = {"to": str(tmp_path / "out"), "kept": 2, "duplicates": 2, "unreadable": 2}
    assert ended.json == expected
    written = [
        json.loads(line)
        for path in sorted((tmp_path / "out" / "kept").iterdir())
        for line in path.open()
    ]
    assert "".join(row["id"] for row in written) == kept
    again = run("check", tmp_path / "data", *options, "--to", tmp_path / "out")
    assert "complete" in again.err


COLUMNS = "the columns are id, text, stars, when"


@pytest.mark.parametrize(
    ("kind", "keep", "expected_error"),
    [
        ("parquet", "Stars", COLUMNS),
        ("parquet", "LONGEST", COLUMNS),
        ("parquet", "newest", "time_field=PATH"),
        ("parquet", "newest --set time_field=nosuch", COLUMNS),
        ("parquet", "oldest", "'oldest' is none of first, longest, newest, and no column"),
        ("parquet", "oldest", "name a column with numbers or times; the copy with the greatest"),
        ("jsonl", "shortest", "or time in 'shortest'; the first one has the fields id, text"),
        ("jsonl", "shortest", "name a column with numbers or times"),
        ("txt", "stars", "the files contain texts without columns"),
        ("jsonl", "LONGEST", "did you mean longest"),
        ("jsonl", "text", "None of 4 documents has a number or time in 'text'"),
        ("jsonl", "newest --set time_field=id", "None of 4 documents has a time in 'id'"),
    ],
)
def test_keep_refuses_names_that_rank_no_copy(
    run: Run, tmp_path: Path, kind: str, keep: str, expected_error: str
) -> None:
    """What `--keep` names is there, or it is a wrong use, before anything is written; the folder
    can be used again."""
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_bytes(encode_rows(ROWS))

    for to in ([], ["--to", tmp_path / "out"]):
        ended = run("check", path, "--keep", *keep.split(), *to)
        assert (ended.code, ended.out) == (2, "")
        assert expected_error in ended.words
    assert run("check", path, "--to", tmp_path / "out").code == 0
    assert run("check", path, "--keep", "longest", "--index", tmp_path / "index").code == 78, (
        "it keeps what came first"
    )


def test_copies_without_a_number_rank_last_and_are_counted(run: Run, tmp_path: Path) -> None:
    """Numbers may be written as strings, and be columns of decimals; a page of a WARC file has its
    own time."""
    rows = [row | {"stars": str(row["stars"]) if row["stars"] else "none", "when": None if row["id"] == "b" else row["when"]}
            for row in ROWS]  # fmt: skip
    (tmp_path / "a.jsonl").write_bytes(
        encode_rows([*rows, {"id": "e", "text": THIRD, "stars": 10**400}])
    )
    kinds = {"stars": pa.decimal128(3, 1), "when": pa.date32()}
    columns = {name: [row[name] for row in ROWS] for name in ("id", "text")} | {
        "stars": pa.array(
            [None if row["stars"] is None else decimal.Decimal(row["stars"]) for row in ROWS],
            kinds["stars"],
        ),
        "when": pa.array([dt.date.fromisoformat(row["when"][:10]) for row in ROWS], kinds["when"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    days = ("WARC-Date: 2026-05-01T10:00:00Z", "WARC-Date: 2026-06-01T10:00:00Z")
    pages = [
        record(name, http(page("a"))).replace(days[0].encode(), day.encode())
        for name, day in zip("xy", days, strict=True)
    ]
    (tmp_path / "c.warc").write_bytes(b"".join(pages))

    runs = {
        (file, keep): run(
            "check", tmp_path / file, "--keep", keep, "--set", "time_field=when", "--json"
        )
        for file in ("a.jsonl", "b.parquet")
        for keep in ("stars", "newest")
    } | {("c.warc", "newest"): run("check", tmp_path / "c.warc", "--keep", "newest", "--json")}

    kept = {
        key: [verdict["id"] for verdict in ended.rows if not verdict["duplicate_of"]]
        for key, ended in runs.items()
    }
    assert kept == {
        ("a.jsonl", "stars"): ["c", "d", "e"],
        ("a.jsonl", "newest"): ["c", "d", "e"],
        ("b.parquet", "stars"): ["c", "d"],
        ("b.parquet", "newest"): ["b", "c"],
        ("c.warc", "newest"): ["http://y.example/"],
    }
    found = runs["a.jsonl", "stars"].err
    assert (
        found
        == "--keep stars: 2 of 5 documents have no number or time in 'stars'; they rank last.\n"
    )
    found = runs["a.jsonl", "newest"].err
    assert found == "--keep newest: 2 of 5 documents have no time in 'when'; they rank last.\n"
    assert runs["b.parquet", "newest"].err == runs["c.warc", "newest"].err == ""


def test_as_writes_all_output_in_one_format(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    odd = [
        {"id": "x", "text": THIRD, "stars": "many", "more": [1]},
        {"id": "y", "text": f"{THIRD} again", "more": {"a": 1}},
    ]
    rude = b'\xef\xbb\xbf{"id": "z\xff\\ud800", "text": "a", "\\udead": ["\\ud83d\\ude00"]}\n'
    (tmp_path / "data" / "a.jsonl").write_bytes(encode_rows([*ROWS[:3], *odd]) + b"no JSON\n")
    (tmp_path / "data" / "c.jsonl").write_bytes(rude)
    pq.write_table(
        pa.table({"id": ["e", "f"], "text": [OTHER, "short"]}), tmp_path / "data" / "b.parquet"
    )

    found = run("check", tmp_path / "data", "--as", "parquet").code
    assert found == 2
    for written_as in ("parquet", "jsonl"):
        assert (
            run("check", tmp_path / "data", "--to", tmp_path / written_as, "--as", written_as).code
            == 0
        )
        assert {path.suffix for path in (tmp_path / written_as).glob("*/*")} == {f".{written_as}"}
    kept = pq.read_table(tmp_path / "parquet" / "kept" / "part-00000.parquet").to_pylist()
    assert [row["stars"] for row in kept] == ["2", None, "many"]
    assert [row["more"] for row in kept] == [None, None, [1]]
    dropped = pq.read_table(tmp_path / "parquet" / "duplicates" / "part-00001.parquet").to_pylist()
    assert [(row["id"], row["dedup_of"]) for row in dropped] == [("e", "c")]
    rows = [
        json.loads(line)
        for path in sorted((tmp_path / "jsonl" / "kept").iterdir())
        for line in path.open(encoding="utf-8-sig", errors="replace")
    ]
    assert [row["id"] for row in rows] == ["a", "c", "x", "f", "z\N{REPLACEMENT CHARACTER}\ud800"]
    (read,) = pq.read_table(max((tmp_path / "parquet" / "kept").iterdir())).to_pylist()
    unknown = "\N{REPLACEMENT CHARACTER}"
    assert read == {"id": "z" + 2 * unknown, "text": "a", unknown: ["\N{GRINNING FACE}"]}


def test_a_column_of_mixed_types_is_written_as_text(run: Run, tmp_path: Path) -> None:
    """`dedup_of` must equal an id of a kept row."""
    rows = [{"id": "b", "text": PAGE}, {"id": 3, "text": OTHER}, {"id": "c", "text": PAGE}]
    (tmp_path / "a.jsonl").write_bytes(encode_rows(rows))

    run("check", tmp_path / "a.jsonl", "--to", tmp_path / "to", "--as", "parquet")

    kept, dropped = (pq.read_table(tmp_path / "to" / kind) for kind in ("kept", "duplicates"))
    assert kept["id"].to_pylist() == ["b", "3"]
    assert dropped["dedup_of"].to_pylist() == ["b"]


def test_values_of_json_lines_that_parquet_changes_are_counted(run: Run, tmp_path: Path) -> None:
    numbers = ["0.1", "1e5", "1E400", "123456789.12345678901234567890", "0.1"]
    mixed = ['"a"', "5", "null", f"{2**70}", "5"]
    texts = [PAGE, OTHER, THIRD, "short \\u00e9", PAGE]
    (tmp_path / "a.jsonl").write_text(
        "".join(
            f'{{"text": "{text}", "n": {number}, "mixed": {value}}}\n'
            for text, number, value in zip(texts, numbers, mixed, strict=True)
        )
    )

    ended = run("check", tmp_path / "a.jsonl", "--to", tmp_path / "to", "--as", "parquet")
    assert (
        "A column of Parquet has one type, and numbers have 64 bits, so in the Parquet files in "
        f"{tmp_path / 'to'} mixed of 2 rows became text, and numbers of 2 rows were rounded. Use "
        "--as jsonl to keep them."
    ) in ended.err
    ended = run("check", tmp_path / "a.jsonl", "--to", tmp_path / "lines")
    assert "rounded" not in ended.err


EVERY_TYPE = {
    "bool": pa.array([True]),
    "int64": pa.array([1]),
    "uint64": pa.array([2**64 - 1], pa.uint64()),
    "half": pa.array(np.array([0.5], np.float16)),
    "double": pa.array([float("nan")]),
    "decimal": pa.array([decimal.Decimal("1.20")]),
    "decimal256": pa.array([decimal.Decimal("1.20")], pa.decimal256(60, 2)),
    "date": pa.array([dt.date(2026, 1, 1)]),
    "date64": pa.array([dt.date(2026, 1, 1)], pa.date64()),
    "time": pa.array([dt.time(1, 2, 3)]),
    "time_ns": pa.array([1], pa.time64("ns")),
    "timestamp": pa.array([dt.datetime(2026, 1, 1)]),  # noqa: DTZ001 - a column without a zone
    "timestamp_ns": pa.array([1], pa.timestamp("ns", "Asia/Tokyo")),
    "duration": pa.array([dt.timedelta(seconds=1)]),
    "duration_ns": pa.array([1], pa.duration("ns")),
    "interval": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    "string": pa.array(["é"]),
    "string_view": pa.array(["é"], pa.string_view()),
    "large_string": pa.array(["é"], pa.large_string()),
    "binary": pa.array([b"\xff\x00"]),
    "binary_text": pa.array([b"text"], pa.large_binary()),
    "binary_view": pa.array([b"\xff"], pa.binary_view()),
    "run_end_encoded": pa.RunEndEncodedArray.from_arrays([1], [7]),
    "list_of_runs": pa.ListArray.from_arrays(
        pa.array([0, 1], pa.int32()), pa.RunEndEncodedArray.from_arrays([1], ["x"])
    ),
    "list_of_views": pa.array([["x"]], pa.large_list(pa.string_view())),
    "dictionary_of_views": pa.DictionaryArray.from_arrays(
        pa.array([0], pa.int8()), pa.array(["x"], pa.string_view())
    ),
    "fixed": pa.array([b"\xff\x00"], pa.binary(2)),
    "dictionary": pa.array(["x"]).dictionary_encode(),
    "list": pa.array([[dt.date(2026, 1, 1)]]),
    "list_of_bytes": pa.array([[b"\xff"]]),
    "large_list": pa.array([[1.5]], pa.large_list(pa.float64())),
    "fixed_list": pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
    "struct": pa.array([{"a": dt.date(2026, 1, 1), "b": b"\xff"}]),
    "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
    "null": pa.nulls(1),
    "uuid": pa.array([b"0" * 16], pa.binary(16)).cast(pa.uuid()),
}
EVERY_TYPE = {
    name: pa.concat_arrays([column.slice(0, 1), column.slice(0, 1)])
    for name, column in EVERY_TYPE.items()
}
"""A column of each type that Arrow has, of two equal rows."""


@pytest.mark.parametrize("name", EVERY_TYPE)
@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_a_column_of_any_type_is_written_as_json_and_as_columns(
    run: Run, tmp_path: Path, name: str, format_: str
) -> None:
    """`check --to` writes kept rows and duplicates of a file with any column, in both formats, and
    `dedup` returns kept rows as they are."""
    table = pa.table({"id": ["1", "2"], "text": [PAGE, PAGE], name: EVERY_TYPE[name]})
    path = tmp_path / f"source.{format_}"
    if format_ == "parquet":
        try:
            pq.write_table(table, path)
        except pa.ArrowNotImplementedError:
            return  # Parquet has no such type; the other half of this test writes it as Arrow
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)

    views = table["text"].cast(pa.string_view())
    sources = (table, pyarrow.dataset.dataset(table), table.to_batches()[0], views, views.chunk(0))
    for source in sources:
        kept = dedup(source, returns="kept")
        expected = (source if hasattr(source, "slice") else table).slice(0, 1)
        # NaN is not equal to NaN, and Python has no nanoseconds.
        assert kept.equals(expected) or repr(kept.to_pylist()) == repr(expected.to_pylist())
    for written_as in ("jsonl", "parquet"):
        folder = tmp_path / written_as
        ended = run("check", str(path), "--as", written_as, "--to", str(folder))

        assert (ended.code, ended.err.count("Traceback")) == (0, 0), ended.err
        for kind in ("kept", "duplicates"):
            found = folder / kind / f"part-00000.{written_as}"
            if written_as == "parquet":
                assert pq.read_table(found).num_rows == 1
            else:
                (row,) = map(json.loads, found.read_text().splitlines())
                assert row["text"] == PAGE


def test_times_and_decimals_are_written_as_iso_text_and_numbers(run: Run, tmp_path: Path) -> None:
    """A duplicate's fields in JSONL are those that a kept row of the same file has."""
    names = ("date", "timestamp", "decimal", "double")
    columns = {name: EVERY_TYPE[name] for name in names}
    path = tmp_path / "source.parquet"
    pq.write_table(pa.table({"id": ["1", "2"], "text": [PAGE, PAGE], **columns}), path)

    written = run("check", str(path), "--as", "jsonl", "--to", str(tmp_path / "to"))
    assert written.code == 0
    assert "lack double of 2 rows. Use --as parquet to keep them" in written.err

    expected = {
        "date": "2026-01-01",
        "timestamp": "2026-01-01T00:00:00",
        "decimal": 1.2,
        "double": None,
    }
    for kind in ("kept", "duplicates"):
        row = json.loads((tmp_path / "to" / kind / "part-00000.jsonl").read_text())
        assert {name: row[name] for name in names} == expected


def test_values_that_json_lines_cannot_contain_are_counted(run: Run, tmp_path: Path) -> None:
    """These are nanoseconds, and all but the last of several columns with one name."""
    columns = {
        "id": pa.array(["1", "2"]),
        "text": pa.array([PAGE, OTHER]),
        "stamp": pa.array([1_000, 1_001], pa.timestamp("ns", "UTC")),
        "clock": pa.array([None, 1], pa.time64("ns")),
        "span": pa.array([1, 2], pa.duration("ns")),
        "whole": pa.array([1_000, None], pa.timestamp("ns")),
    }
    table = pa.table([*columns.values(), columns["id"]], names=[*columns, "stamp"])
    pq.write_table(table, tmp_path / "twice.parquet")
    pq.write_table(pa.table(columns), tmp_path / "once.parquet")

    once = run("check", tmp_path / "once.parquet", "--as", "jsonl", "--to", tmp_path / "to")
    twice = run("check", tmp_path / "twice.parquet", "--as", "jsonl", "--to", tmp_path / "2")
    kept = run("check", tmp_path / "twice.parquet", "--to", tmp_path / "columns")

    assert "lack span of 2 rows, stamp of 1 row, clock of 1 row. Use --as parquet" in once.words
    assert "lack stamp of 2 rows, span of 2 rows, clock of 1 row. Use --as parquet" in twice.words
    assert "JSON lines have no value" not in kept.words
    written = pq.read_schema(tmp_path / "columns" / "kept" / "part-00000.parquet")
    assert written.names == table.column_names


def test_kept_parquet_has_the_compression_of_its_source(run: Run, tmp_path: Path) -> None:
    """Kept Parquet takes over the source's codec, or that of --compression."""
    source = tmp_path / "source.parquet"
    table = pa.table(
        {"id": [str(n) for n in range(50)], "text": [f"{PAGE} {n}" for n in range(50)]}
    )
    pq.write_table(table, source, compression="zstd")

    run("check", str(source), "--to", str(tmp_path / "first"))
    changed = ("--keep", "longest", "--set", "title_field=id")
    other = run("check", str(source), "--to", str(tmp_path / "first"), *changed)
    assert "settings (changed: keep, title_field); name another folder" in other.err
    refused = run("check", str(source), "--as", "jsonl", "--compression", "gzip", "--to", "out")
    assert (refused.code, "add --as parquet" in refused.err) == (2, True)
    for flags, codec in (([], "ZSTD"), (["--compression", "gzip"], "GZIP")):
        folder = tmp_path / codec
        assert run("check", str(source), "--to", str(folder), *flags).code == 0
        found = pq.ParquetFile(folder / "kept" / "part-00000.parquet").metadata
        assert found.row_group(0).column(0).compression == codec


def test_rows_per_file_sets_the_rows_of_each_part(run: Run, tmp_path: Path) -> None:
    """--rows-per-file bounds the rows of a part; without --to it is refused."""
    source = tmp_path / "source.jsonl"
    source.write_bytes(encode_rows(ROWS))

    ended = run("check", str(source), "--to", str(tmp_path / "to"), "--rows-per-file", "1")

    assert ended.code == 0
    kept = sorted((tmp_path / "to" / "kept").iterdir())
    assert [len(part.read_bytes().splitlines()) for part in kept] == [1] * len(kept)
    assert len(kept) > 1
    assert "--to" in run("check", str(source), "--rows-per-file", "1").err


def test_lines_that_end_in_crlf_are_kept_as_they_are(run: Run, tmp_path: Path) -> None:
    """A kept line has the bytes of the source, its ending included."""
    source = tmp_path / "source.jsonl"
    raw = encode_rows(ROWS).replace(b"\n", b"\r\n")
    source.write_bytes(raw)

    assert run("check", str(source), "--to", str(tmp_path / "to")).code == 0

    kept = (tmp_path / "to" / "kept" / "part-00000.jsonl").read_bytes()
    assert kept
    assert set(kept.splitlines(keepends=True)) <= set(raw.splitlines(keepends=True))


def test_skip_damaged_exits_0_although_files_are_damaged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(encode_rows(ROWS))
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip")

    for to in ([], ["--to", tmp_path.parent / f"{tmp_path.name}-out"]):
        assert run("check", tmp_path, *to).code == 1
        assert run("check", tmp_path, *to, "--skip-damaged").code == 0
    for number, more in enumerate(
        ([], ["--to"], ["--keep", "longest"], ["--keep", "longest", "--to"])
    ):
        to = [tmp_path.parent / f"{tmp_path.name}-{number}"] if "--to" in more else []
        command = ("check", tmp_path / "a.jsonl", "--against", tmp_path, *more, *to)
        ended = run(*command)
        assert (ended.code, ended.err.count("b.jsonl.gz cannot be read")) == (1, 1), more
        assert run(*command).code == 1
        assert run(*command, "--skip-damaged").code == 0


def write_mixed(folder: Path) -> None:
    """Write rows that are read beside what is not: files that no name tells the format of, odd
    ones, and hidden ones."""
    for name in ("deep", ".git", "_delta_log", "saved"):
        (folder / name).mkdir(parents=True)
    for name in (
        "a.jsonl",
        "deep/b.jsonl",
        ".hidden.jsonl",
        "._a.jsonl",
        "_SUCCESS",
        ".git/c.jsonl",
        "_delta_log/d.jsonl",
    ):
        (folder / name).write_bytes(encode_rows(ROWS[:1]))
    for name in (
        "saved/data.json",
        "data.csv",
        "deep/e.jsonl.bz2",
        "saved/dataset_info.json",
        "saved/state.json",
    ):
        (folder / name).write_text("rows of another kind")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "gone.jsonl").symlink_to(folder / "nothing")
    (folder / "linked").symlink_to(folder / "deep")


def test_files_of_a_folder_that_are_not_read_are_reported(run: Run, tmp_path: Path) -> None:
    """Each file is read, or named as one that is not; hidden ones are neither, unless they are
    asked for by name."""
    data = tmp_path / "data"
    write_mixed(data)
    remark = (
        "6 files were not read: data.csv, deep/e.jsonl.bz2, gone.jsonl (a broken link), linked "
        "(a link to a folder), "
        "pipe.jsonl (no regular file) and 1 more. Convert a JSON array or CSV to .jsonl or .parquet. "
        "Otherwise rename it, or on a command line add --format jsonl, text, lines, warc or "
        "columns.\n"
    )

    repeated = (
        "1 document has the id of a document in another file, 'a', so it is judged as that document's next "
        "version: unchanged, returned or revised. If ids are only unique within a file, name "
        "another field (STREAM_DEDUP_ID_FIELD, --id-field, id=).\n"
    )

    ended = run("check", data, "--json")
    strict = run("check", data, "--to", tmp_path / "out", "--strict")
    made = run("prints", data, "--to", tmp_path / "prints", "--strict", "--json")
    with pytest.warns(UserWarning, match=r"^6 files were not read: data\.csv, .* and 1 more\.$"):
        columns = dedup(data)
    with pytest.warns(UserWarning, match=r"^6 files were not read: data\.csv") as warned:
        assert len(prints(data)) == 2
    assert warned[0].filename == __file__

    assert verdicts(ended.out) == [("a.jsonl:1", "new", None), ("deep/b.jsonl:1", "unchanged", "a")]
    assert (ended.code, ended.err) == (0, remark + repeated)
    assert (strict.code, strict.err, made.code, made.err) == (1, remark + repeated, 1, remark)
    assert made.json["files"] == len(columns["id"]) == 2
    assert verdicts(run("check", data, "--format", "lines", "--json").out)[1][0] == "data.csv:1"
    assert run("check", f"file://{data}", "--json") == ended
    assert run("check", f"{data}/*", "--json").err.startswith(
        f"6 files were not read: {data}/data.csv, {data}/deep (a folder)"
    )
    by_pattern = run("check", f"{data}/**/*.jsonl", "--json")
    assert by_pattern.out.count("unchanged") == 1
    assert f"named again: {data}/linked/b.jsonl." in by_pattern.words
    for hidden in (".hidden.jsonl", "_delta_log", "_delta_log/*.jsonl", ".h*.jsonl"):
        assert len(verdicts(run("check", data / hidden, "--json").out)) == 1, hidden
    only = run("check", data / "saved")
    assert (only.code, "it contains data.json. Convert" in only.err) == (1, True)


def test_columns_with_several_types_in_one_folder_are_reported(run: Run, tmp_path: Path) -> None:
    """JSON lines have no types, so each part has the types of its rows."""
    data = tmp_path / "data"
    data.mkdir()
    for name, tag in (("a", None), ("b", "news")):
        (data / f"{name}.jsonl").write_text(
            json.dumps({"text": f"{name} " * 20, "tag": tag, "same": 1}) + "\n"
        )

    mixed = run("check", data, "--as", "parquet", "--to", tmp_path / "mixed")
    as_jsonl = run("check", data, "--to", tmp_path / "lines")

    folder = tmp_path / "mixed" / "kept"
    assert f"Columns have different types in the files of {folder}: tag. Read" in mixed.err
    assert "different types" not in as_jsonl.err
