"""Memory for one record of a file: without limits a few kilobytes of a file become gigabytes."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stream_dedup.inputs import columnar, fields
from stream_dedup.inputs.columnar import json_of_rows
from stream_dedup.inputs.sources import find_files, read_documents

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
ROWS = 1500
VALUE = " ".join(map(str, range(45_000)))[:240_000]
LINE_BYTES = 400_000_000
ADDED_BYTES_MAX = 400 << 20
READ_PROGRAM = """
import sys
from stream_dedup.inputs.sources import find_files, read_documents
count = sum(1 for _ in read_documents(find_files(sys.argv[1], "auto")))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(count, int(status["VmHWM"].split()[0]) * 1024)
"""
DEDUP_PROGRAM = """
import sys
from stream_dedup import dedup
count = len(dedup(sys.argv[1])["id"])
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(count, int(status["VmHWM"].split()[0]) * 1024)
"""


def table() -> pa.Table:
    return pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * ROWS), [VALUE])})


def write_parquet(path: Path) -> None:
    pq.write_table(table().cast(pa.schema([("text", pa.string())])), path, compression="zstd")


def write_arrow(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table().schema) as writer:
        writer.write_table(table())


def make_list_table(elements: pa.Array) -> pa.Table:
    """Return one row, with a list of all elements."""
    ends = pa.array([0, len(elements)], pa.int32())
    return pa.table({"text": ["words"], "x": pa.ListArray.from_arrays(ends, elements)})


def write_ipc(path: Path, table: pa.Table) -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_file(file, table.schema, options=options) as writer,
    ):
        writer.write_table(table)


def write_lists_of_one_text(path: Path) -> None:
    places = pa.array([0] * 5_000, pa.int32())
    write_ipc(path, make_list_table(pa.DictionaryArray.from_arrays(places, [VALUE])))


def write_lists_of_one_text_in_parquet(path: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 5_000, pa.int32()), [VALUE])
    pq.write_table(make_list_table(texts.cast(pa.string())), path, compression="zstd")


def write_nulls(path: Path) -> None:
    write_ipc(path, make_list_table(pa.nulls(60_000_000)))


def write_objects(path: Path) -> None:
    write_ipc(path, make_list_table(pa.StructArray.from_arrays([pa.nulls(10_000_000)], ["a"])))


def write_flags(path: Path) -> None:
    flags = pa.nulls(50_000_000, pa.bool_()).fill_null(False)
    pq.write_table(make_list_table(flags), path, compression="zstd")


def write_runs(path: Path) -> None:
    write_ipc(path, pa.table({"text": pa.RunEndEncodedArray.from_arrays([ROWS], [VALUE])}))


def write_lines(path: Path) -> None:
    with gzip.open(path, "wb", 6) as file:
        for _ in range(LINE_BYTES // 1_000_000):
            file.write(b"a" * 1_000_000)
        file.write(b'\n{"id": "b", "text": "some words"}\n')


def write_many_values(path: Path) -> None:
    """Write a line of JSON whose objects take 24 times its bytes."""
    with gzip.open(path, "wb", 6) as file:
        file.write(b'{"text": "some words", "x": [')
        for _ in range(60):
            file.write(b"{}," * 350_000)
        file.write(b'{}]}\n{"text": "some words"}\n')


@LINUX
@pytest.mark.parametrize(
    ("name", "write", "program", "count"),
    [
        ("a.parquet", write_parquet, READ_PROGRAM, ROWS),
        ("a.parquet", write_parquet, DEDUP_PROGRAM, ROWS),
        ("a.arrow", write_arrow, READ_PROGRAM, ROWS),
        ("a.arrow", write_runs, READ_PROGRAM, ROWS),
        ("a.arrow", write_lists_of_one_text, READ_PROGRAM, 1),
        ("a.parquet", write_lists_of_one_text_in_parquet, READ_PROGRAM, 1),
        ("a.arrow", write_nulls, READ_PROGRAM, 1),
        ("a.arrow", write_objects, READ_PROGRAM, 1),
        ("a.parquet", write_flags, READ_PROGRAM, 1),
        ("a.jsonl.gz", write_lines, READ_PROGRAM, 2),
        ("a.txt.gz", write_lines, READ_PROGRAM, 1),
        ("a.jsonl.gz", write_many_values, DEDUP_PROGRAM, 2),
    ],
)
def test_a_small_file_takes_little_memory(
    tmp_path: Path, name: str, write: Callable[[Path], None], program: str, count: int
) -> None:
    """Rows that share one value, and a line or text of 400 MB, add little to the memory of the
    program."""
    write(tmp_path / name)
    (tmp_path / "small.jsonl").write_text('{"text": "some words"}\n')

    def run_program(file: str) -> list[int]:
        command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / file)]
        process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return list(map(int, process.stdout.split()))

    found, peak_bytes = run_program(name)

    assert (tmp_path / name).stat().st_size < 1_000_000
    assert found == count
    assert peak_bytes - run_program("small.jsonl")[1] < ADDED_BYTES_MAX


@pytest.mark.parametrize("form", ["jsonl", "lines", "text"])
def test_a_line_too_large_is_lost_alone(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later lines keep their numbers; a line of exactly the limit is read; all bytes are
    reported."""
    monkeypatch.setattr("stream_dedup.inputs.sources.RECORD_BYTES_MAX", 100)
    lines = [b"1" * 99, b"2" * 100, b"3" * 5_000_000, b"4", b"5" * 101]
    raw = lines[0] if form == "text" else b"\n".join(lines)
    (tmp_path / "a").write_bytes(raw)
    (tmp_path / "b").write_bytes(b"7" * 101 if form == "text" else b"")
    progress = []
    found = list(
        read_documents(find_files(str(tmp_path), form), lambda *more: progress.append(more))
    )

    lost = [document.name for document in found if document.lost is not None]
    assert lost == (["b"] if form == "text" else ["a:2", "a:3", "a:5"])
    expected = lines[:1] if form == "text" else [lines[0], lines[3]]
    assert [document.raw for document in found if document.lost is None] == expected
    assert {document.lost.error_class for document in found if document.lost is not None} == {
        "TooLarge"
    }
    assert sum(size for _, size in progress) == sum(
        path.stat().st_size for path in tmp_path.iterdir()
    )


def test_a_text_too_large_is_skipped_in_large_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading line by line is too slow: three megabytes of gzip can contain three billion lines."""
    reads = []

    class Counting(io.BufferedReader):
        def readline(self, size: int | None = -1) -> bytes:
            reads.append(size)
            return super().readline(size)

    monkeypatch.setattr("stream_dedup.inputs.sources.RECORD_BYTES_MAX", 100)
    monkeypatch.setattr("stream_dedup.inputs.sources.io.BufferedReader", Counting)
    (tmp_path / "a.txt").write_bytes(b"\n" * 5_000_000)
    progress = []
    files = find_files(str(tmp_path), "auto")
    found = list(read_documents(files, lambda *more: progress.append(more)))

    assert [document.lost and document.lost.error_class for document in found] == ["TooLarge"]
    assert sum(size for _, size in progress) == 5_000_000
    assert len(reads) < 10


def test_a_row_too_large_is_lost_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream_dedup.inputs.sources.RECORD_BYTES_MAX", 100)
    pq.write_table(pa.table({"text": ["a", "b" * 100, "c"]}), tmp_path / "a.parquet")

    found = list(read_documents(find_files(str(tmp_path), "auto")))

    assert [document.lost and document.lost.error_class for document in found] == [
        None,
        "TooLarge",
        None,
    ]


def count_values(found: object) -> int:
    """Return the number of values that a JSON value contains, itself included."""
    if isinstance(found, dict):
        return 1 + sum(map(count_values, found.values()))
    return 1 + sum(map(count_values, found)) if isinstance(found, list) else 1


def random_value(random: Random, depth: int = 0) -> Any:
    if depth < 5 and random.random() < 0.7:
        count = random.randrange(9)
        if random.random() < 0.5:
            return [random_value(random, depth + 1) for _ in range(count)]
        return {random_text(random): random_value(random, depth + 1) for _ in range(count)}
    return random.choice([None, 1.5, random_text(random)])


def random_text(random: Random) -> str:
    return "".join(random.choices('a{["\\,:]}\n', k=random.randrange(9)))


def test_json_with_too_many_values_is_refused_and_texts_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit counts values only, and no brackets or commas within texts."""
    random = Random(int(os.environ["TEST_SEED"]))
    for _ in range(300):
        value = random_value(random)
        raw = json.dumps(value).encode()
        # Each opening bracket counts, also that of an empty list.
        assert count_values(value) <= fields._values_of(raw) <= 2 * count_values(value)
    monkeypatch.setattr(fields, "VALUES_MAX", 20)
    assert fields.parse_json(b'["%s"]' % (b"{[," * 50)) == ["{[," * 50]
    assert len(fields.parse_json(json.dumps([7] * 19).encode())) == 19
    with pytest.raises(ValueError, match="has more than 20 values"):
        fields.parse_json(json.dumps([7] * 20).encode())


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_rows_are_the_same_when_read_in_small_parts(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows keep their numbers, however few are read at once, and reading can start at any row."""
    monkeypatch.setattr("stream_dedup.inputs.columnar._BYTES_AT_ONCE", 1_000)
    texts = pa.array([f"{number} " * (number % 90) for number in range(700)])
    table = pa.table({"text": texts.dictionary_encode(), "number": range(700)})
    if name == "a.parquet":
        pq.write_table(table, tmp_path / name, row_group_size=300)
    else:
        with (
            pa.OSFile(str(tmp_path / name), "wb") as file,
            pa.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table)

    for first in (0, 1, 299, 301, 699):
        found = list(read_documents(find_files(str(tmp_path), "auto"), first=first))
        assert [document.name for document in found] == [
            f"{name}:{row}" for row in range(first, 700)
        ]
        assert [
            document.fields and document.fields["text"] for document in found
        ] == texts.to_pylist()[first:]


def rows_of_all_types() -> pa.Table:
    """Return rows whose texts are in lists, maps, views, dictionaries and runs, with nulls."""
    texts = [None if number % 7 == 0 else f"{number} " * (number % 9) for number in range(600)]
    pairs = [
        None if number % 11 == 0 else [(f"key {number}", texts[number])] for number in range(600)
    ]
    lists = [None if number % 5 == 0 else texts[: number % 4] for number in range(600)]
    return pa.table(
        {
            "map": pa.array(pairs, pa.map_(pa.string(), pa.string())),
            "list": pa.array(lists, pa.list_(pa.string())),
            "large": pa.array(lists, pa.large_list(pa.large_string())),
            "bytes": pa.array([[b"\xff"], []] * 300, pa.list_(pa.binary())),
            "fixed": pa.array([["a", None]] * 600, pa.list_(pa.string(), 2)),
            "struct": [{"a": {"b": text}, "c": None} for text in texts],
            "objects": [[{"a": text, "n": 1}] for text in texts],
            "coded": pa.array(texts).dictionary_encode(),
            "number": range(600),
        }
    )


@pytest.mark.parametrize("form", ["a.parquet", "a.arrow"])
def test_rows_of_every_type_are_measured_below_their_json(tmp_path: Path, form: str) -> None:
    """The measured size decides whether a row is lost, so it is never above the size of its
    JSON."""
    table = rows_of_all_types()
    (pq.write_table if form == "a.parquet" else lambda t, p: write_ipc(p, t))(
        table, tmp_path / form
    )

    found = list(read_documents(find_files(str(tmp_path), "auto")))

    expected = [row[0] for row in json_of_rows(table.combine_chunks().to_batches()[0])]
    assert len(expected) == 600
    assert [document.raw for document in found] == expected
    for number, raw in enumerate(document.raw for document in found):
        batch = table.slice(number, 1).combine_chunks().to_batches()[0]
        assert len(raw) // 4 < columnar._json_bytes_of(batch) <= len(raw)


def test_rows_of_views_and_runs_are_measured_below_their_json() -> None:
    texts = ["", "abc", "more than twelve letters", None, "more"]
    runs = pa.RunEndEncodedArray.from_arrays([2, 5, 9], ["a", "bbbb", None])
    for array in (
        pa.array(texts, pa.string_view()),
        pa.array([texts, None, []], pa.list_view(pa.string())),
        runs,
        runs.slice(1, 5),
        pa.array(texts, pa.string_view()).slice(2),
        pa.array([{"a": 1}, None]).slice(1),
    ):
        size = len(columnar.json_of(array.to_pylist()))
        assert size // 4 <= columnar._json_bytes(array) <= size


def test_a_value_too_large_costs_its_row_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds also if it makes the rows of its row group too large on average."""
    monkeypatch.setattr("stream_dedup.inputs.columnar.RECORD_BYTES_MAX", 2_000)
    monkeypatch.setattr("stream_dedup.inputs.columnar._BYTES_AT_ONCE", 1_000)
    pq.write_table(pa.table({"text": ["a", "b" * 50_000, "c"]}), tmp_path / "a.parquet")

    found = list(read_documents(find_files(str(tmp_path), "auto")))

    assert [document.fields and document.fields["text"] for document in found] == ["a", None, "c"]
    assert [document.lost and document.lost.error_class for document in found] == [
        None,
        "TooLarge",
        None,
    ]
