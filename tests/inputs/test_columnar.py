"""Parquet and Arrow files: their rows, what is wrong with them, and reading on from a row."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stream_dedup.ground.errors import InputError
from stream_dedup.inputs.columnar import columns_of
from stream_dedup.inputs.sources import find_files, read_documents

NAMES = ["a.parquet", "a.feather", "a.arrow"]
TABLE = pa.table(
    {
        "id": [f"row {number}" for number in range(10_000)],
        "text": [None if number == 7 else f"text {number}" for number in range(10_000)],
        "page": [{"url": f"u{number}", "tags": ["a"]} for number in range(10_000)],
        "score": [float("nan") if number == 1 else number / 2 for number in range(10_000)],
        "time": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * 10_000,
        "image": [b"\xff\xfe"] * 10_000,
        "body": [b"plain bytes"] * 10_000,
    }
)


def write(path: Path, table: pa.Table = TABLE, rows: int = 3000, **options: Any) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows, **options)
        return
    with (pa.ipc.new_stream if path.suffix == ".arrow" else pa.ipc.new_file)(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


def rows(path: Path, first: int = 0) -> list[dict[str, Any]]:
    return [json.loads(one.raw) for one in read_documents(find_files(str(path), "auto"), first=first)]


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_objects_whatever_the_format(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)

    found = rows(tmp_path / name)

    assert len(found) == 10_000
    known = {"id": "row 7", "text": None, "page": {"url": "u7", "tags": ["a"]}, "score": 3.5}
    assert found[7] == known | {"time": "2026-01-01T00:00:00Z", "body": "plain bytes"}
    assert found[1]["score"] is None
    assert rows(tmp_path / name, first=5001) == found[5001:]
    assert columns_of(tmp_path / name) == TABLE.column_names


def test_a_folder_of_shards_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    """As Hugging Face's libraries save it: shards beside JSON that describes them."""
    for number in (1, 0):
        write(tmp_path / f"data-{number:05}-of-00002.arrow", TABLE.slice(number * 10, 3))
    (tmp_path / "dataset_info.json").write_text("{}")

    assert [one["id"] for one in rows(tmp_path)] == ["row 0", "row 1", "row 2", "row 10", "row 11", "row 12"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", ["cut", "other", "empty"])
def test_a_damaged_file_is_a_sentence(tmp_path: Path, name: str, damage: str) -> None:
    """Cut off in the middle, no such format at all, or nothing: the file is named, and what to do; its sound rows are read."""
    write(tmp_path / name)
    raw = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes({"cut": raw[: len(raw) // 2], "other": b"no such thing" * 9, "empty": b""}[damage])

    *sound, last = read_documents(find_files(str(tmp_path / name), "auto"))

    assert last.lost is not None
    assert re.match(rf"^{name} cannot be read as an? (Parquet|Arrow) file: .* fetch it again\.$", last.lost.message)
    assert len(sound) == (3000 if (name, damage) == ("a.arrow", "cut") else 0)  # only a stream has no end to be read first


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    with pytest.raises(InputError, match=r"crawl-dedup\[data\]"):
        rows(tmp_path / "a.parquet")


def small_table(seed: int) -> pa.Table:
    """Return 400 rows, whose bytes stand in the file as they are, so that each can be found in it."""
    chance = random.Random(seed)
    texts = [f"row {number} {chance.randbytes(30).hex()}" for number in range(400)]
    return pa.table({"text": texts, "tags": [[text[-4:]] for text in texts], "n": list(range(400))})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(25))
def test_bytes_that_changed_cost_no_other_batch(tmp_path: Path, name: str, seed: int) -> None:
    """Within the bytes of one batch: all rows of the others are there, nothing is raised, and Arrow ends no process."""
    chance, table, path = random.Random(seed), small_table(seed), tmp_path / name
    write(path, table, 100, use_dictionary=False, compression="none", write_statistics=False)
    raw = bytearray(path.read_bytes())
    group = chance.randrange(4)
    texts = [text.encode() for text in table["text"].to_pylist()]
    begin, end = raw.index(texts[group * 100]), raw.index(texts[group * 100 + 99])
    is_anywhere = seed % 5 == 0  # then nothing is promised of the rows, since the schema may be hurt
    for _ in range(chance.choice([1, 5, 50])):
        raw[chance.randrange(len(raw)) if is_anywhere else chance.randrange(begin - 20, end)] = chance.randrange(256)
    path.write_bytes(raw)

    found = list(read_documents(find_files(str(path), "auto")))

    numbers = [one.fields["n"] for one in found if one.fields and one.lost is None and "n" in one.fields]
    others = [number for number in range(400) if number // 100 != group]
    assert is_anywhere or [n for n in numbers if n in others] == others, f"seed {seed}"
    for first in range(0, len(found) + 1, 57):
        again = list(read_documents(find_files(str(path), "auto"), first=first))
        assert [(one.name, one.raw, one.lost) for one in again] == [(one.name, one.raw, one.lost) for one in found[first:]]


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_is_no_text_is_lost_alone(tmp_path: Path, name: str) -> None:
    texts = pa.array([b"one", b"two \xff", b"three"]).cast(pa.binary())
    bad = pa.StringArray.from_buffers(3, texts.buffers()[1], texts.buffers()[2])
    write(tmp_path / name, pa.table({"text": bad}))

    found = list(read_documents(find_files(str(tmp_path / name), "auto")))

    assert [one.fields and one.fields["text"] for one in found] == ["one", None, "three"]
    assert found[1].lost is not None
    assert (found[1].name, found[1].lost.error_class) == (f"{name}:1", "DamagedRecord")


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_no_json_costs_no_row(tmp_path: Path, name: str) -> None:
    """Bytes that are no text are left out, of that row alone; of a time what is finer than microseconds."""
    moments = pa.array([1_767_225_600_000_000_001, None, 999], pa.timestamp("ns", "UTC"))
    odd = {"text": pa.array([b"one", b"\xff", None]), "time": moments, "took": pa.array([1, 2001, None], pa.duration("ns"))}
    write(tmp_path / name, pa.table(odd))
    assert rows(tmp_path / name) == [
        {"text": "one", "time": "2026-01-01T00:00:00Z", "took": "P0D"},
        {"time": None, "took": "PT0.000002S"},
        {"text": None, "time": "1970-01-01T00:00:00Z", "took": None},
    ]
    write(tmp_path / name, pa.table({"text": odd["text"]}))
    assert rows(tmp_path / name) == [{"text": "one"}, {}, {"text": None}]
