"""What one record of a file may take: a few kilobytes of a file become gigabytes where nothing
bounds them."""

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
MOST_BYTES = 400 << 20
READS = """
import sys
from stream_dedup.inputs.sources import find_files, read_documents
count = sum(1 for _ in read_documents(find_files(sys.argv[1], "auto")))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(count, int(status["VmHWM"].split()[0]) * 1024)
"""
JUDGES = """
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


def listed(elements: pa.Array) -> pa.Table:
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
    write_ipc(path, listed(pa.DictionaryArray.from_arrays(places, [VALUE])))


def write_lists_of_one_text_in_parquet(path: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 5_000, pa.int32()), [VALUE])
    pq.write_table(listed(texts.cast(pa.string())), path, compression="zstd")


def write_nulls(path: Path) -> None:
    write_ipc(path, listed(pa.nulls(60_000_000)))


def write_objects(path: Path) -> None:
    write_ipc(path, listed(pa.StructArray.from_arrays([pa.nulls(10_000_000)], ["a"])))


def write_flags(path: Path) -> None:
    flags = pa.nulls(50_000_000, pa.bool_()).fill_null(False)
    pq.write_table(listed(flags), path, compression="zstd")


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
        ("a.parquet", write_parquet, READS, ROWS),
        ("a.parquet", write_parquet, JUDGES, ROWS),
        ("a.arrow", write_arrow, READS, ROWS),
        ("a.arrow", write_runs, READS, ROWS),
        ("a.arrow", write_lists_of_one_text, READS, 1),
        ("a.parquet", write_lists_of_one_text_in_parquet, READS, 1),
        ("a.arrow", write_nulls, READS, 1),
        ("a.arrow", write_objects, READS, 1),
        ("a.parquet", write_flags, READS, 1),
        ("a.jsonl.gz", write_lines, READS, 2),
        ("a.txt.gz", write_lines, READS, 1),
        ("a.jsonl.gz", write_many_values, JUDGES, 2),
    ],
)
def test_a_small_file_takes_little_memory(
    tmp_path: Path, name: str, write: Callable[[Path], None], program: str, count: int
) -> None:
    """Rows that share one value, and a line or text of 400 MB; above what the program itself
    takes."""
    write(tmp_path / name)
    (tmp_path / "small.jsonl").write_text('{"text": "some words"}\n')

    def ended(file: str) -> list[int]:
        command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / file)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return list(map(int, done.stdout.split()))

    found, most = ended(name)

    assert (tmp_path / name).stat().st_size < 1_000_000
    assert found == count
    assert most - ended("small.jsonl")[1] < MOST_BYTES


@pytest.mark.parametrize("form", ["jsonl", "lines", "text"])
def test_a_line_too_large_is_lost_alone(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines behind it keep their numbers; a line of just the bound is read; all bytes are
    told."""
    monkeypatch.setattr("stream_dedup.inputs.sources.RECORD_BYTES_MAX", 100)
    lines = [b"1" * 99, b"2" * 100, b"3" * 5_000_000, b"4", b"5" * 101]
    raw = lines[0] if form == "text" else b"\n".join(lines)
    (tmp_path / "a").write_bytes(raw)
    (tmp_path / "b").write_bytes(b"7" * 101 if form == "text" else b"")
    told = []
    found = list(read_documents(find_files(str(tmp_path), form), lambda *more: told.append(more)))

    lost = [one.name for one in found if one.lost is not None]
    assert lost == (["b"] if form == "text" else ["a:2", "a:3", "a:5"])
    expected = lines[:1] if form == "text" else [lines[0], lines[3]]
    assert [one.raw for one in found if one.lost is None] == expected
    assert {one.lost.error_class for one in found if one.lost is not None} == {"TooLarge"}
    assert sum(size for _, size in told) == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_text_too_large_is_passed_over_in_large_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not line by line: three megabytes of gzip are three billions of them."""
    reads = []

    class Counting(io.BufferedReader):
        def readline(self, size: int | None = -1) -> bytes:
            reads.append(size)
            return super().readline(size)

    monkeypatch.setattr("stream_dedup.inputs.sources.RECORD_BYTES_MAX", 100)
    monkeypatch.setattr("stream_dedup.inputs.sources.io.BufferedReader", Counting)
    (tmp_path / "a.txt").write_bytes(b"\n" * 5_000_000)
    told = []
    files = find_files(str(tmp_path), "auto")
    found = list(read_documents(files, lambda *more: told.append(more)))

    assert [one.lost and one.lost.error_class for one in found] == ["TooLarge"]
    assert sum(size for _, size in told) == 5_000_000
    assert len(reads) < 10


def test_a_row_too_large_is_lost_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream_dedup.inputs.sources.RECORD_BYTES_MAX", 100)
    pq.write_table(pa.table({"text": ["a", "b" * 100, "c"]}), tmp_path / "a.parquet")

    found = list(read_documents(find_files(str(tmp_path), "auto")))

    assert [one.lost and one.lost.error_class for one in found] == [None, "TooLarge", None]


def values_of(found: object) -> int:
    """Return the number of values that a JSON value holds, itself included."""
    if isinstance(found, dict):
        return 1 + sum(map(values_of, found.values()))
    return 1 + sum(map(values_of, found)) if isinstance(found, list) else 1


def random_value(random: Random, depth: int = 0) -> Any:
    if depth < 5 and random.random() < 0.7:
        count = random.randrange(9)
        if random.random() < 0.5:
            return [random_value(random, depth + 1) for _ in range(count)]
        return {random_text(random): random_value(random, depth + 1) for _ in range(count)}
    return random.choice([None, 1.5, random_text(random)])


def random_text(random: Random) -> str:
    return "".join(random.choices('a{["\\,:]}\n', k=random.randrange(9)))


def test_a_json_value_of_too_many_values_is_refused_and_no_text_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound counts values only: signs within texts, however they are escaped, are none."""
    random = Random(int(os.environ["TEST_SEED"]))
    for _ in range(300):
        value = random_value(random)
        raw = json.dumps(value).encode()
        # Each opening bracket counts, also that of a list which holds nothing.
        assert values_of(value) <= fields._values_of(raw) <= 2 * values_of(value)
    monkeypatch.setattr(fields, "VALUES_MAX", 20)
    assert fields.parse_json(b'["%s"]' % (b"{[," * 50)) == ["{[," * 50]
    assert len(fields.parse_json(json.dumps([7] * 19).encode())) == 19
    with pytest.raises(ValueError, match="has more than 20 values"):
        fields.parse_json(json.dumps([7] * 20).encode())


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_rows_in_parts_are_the_rows(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few at once, with their numbers, from any row on."""
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
        assert [one.name for one in found] == [f"{name}:{row}" for row in range(first, 700)]
        assert [one.fields and one.fields["text"] for one in found] == texts.to_pylist()[first:]


def rows_of_all_types() -> pa.Table:
    """Return rows whose texts lie within lists, maps, views, dictionaries and runs, with nulls."""
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
    """What is measured decides what is lost, so it is never above what the JSON has; and the rows
    are those of the file."""
    table = rows_of_all_types()
    (pq.write_table if form == "a.parquet" else lambda t, p: write_ipc(p, t))(
        table, tmp_path / form
    )

    found = list(read_documents(find_files(str(tmp_path), "auto")))

    expected = [row[0] for row in json_of_rows(table.combine_chunks().to_batches()[0])]
    assert len(expected) == 600
    assert [one.raw for one in found] == expected
    for number, raw in enumerate(one.raw for one in found):
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
    """Also where it makes the rows of its row group too large on average."""
    monkeypatch.setattr("stream_dedup.inputs.columnar.RECORD_BYTES_MAX", 2_000)
    monkeypatch.setattr("stream_dedup.inputs.columnar._BYTES_AT_ONCE", 1_000)
    pq.write_table(pa.table({"text": ["a", "b" * 50_000, "c"]}), tmp_path / "a.parquet")

    found = list(read_documents(find_files(str(tmp_path), "auto")))

    assert [one.fields and one.fields["text"] for one in found] == ["a", None, "c"]
    assert [one.lost and one.lost.error_class for one in found] == [None, "TooLarge", None]
