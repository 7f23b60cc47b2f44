"""Parquet and Arrow files: their rows, what is wrong with them, and reading on from a row."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stream_dedup.ground.errors import InputError
from stream_dedup.inputs.columnar import columns_of
from stream_dedup.inputs.sources import find_files, read_documents

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


def write(path: Path, table: pa.Table = TABLE) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=3000)
    elif path.suffix == ".feather":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=3000)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)


def rows(path: Path, first: int = 0) -> list[dict[str, Any]]:
    return [json.loads(one.raw) for one in read_documents(find_files(str(path), "auto"), first=first)]


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow"])
def test_rows_are_objects_whatever_the_format(tmp_path: Path, name: str) -> None:
    """Null stays null, nested stays nested, bytes that are text are text; NaN is null, other bytes are left out."""
    write(tmp_path / name)

    found = rows(tmp_path / name)

    assert len(found) == 10_000
    assert found[7] == {
        "id": "row 7",
        "text": None,
        "page": {"url": "u7", "tags": ["a"]},
        "score": 3.5,
        "time": "2026-01-01T00:00:00Z",
        "body": "plain bytes",
    }
    assert found[1]["score"] is None
    assert rows(tmp_path / name, first=5001) == found[5001:]
    assert columns_of(tmp_path / name) == TABLE.column_names


def test_a_folder_of_shards_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    """As Hugging Face's libraries save it: shards beside JSON that describes them."""
    for number in (1, 0):
        write(tmp_path / f"data-{number:05}-of-00002.arrow", TABLE.slice(number * 10, 3))
    (tmp_path / "dataset_info.json").write_text("{}")

    assert [one["id"] for one in rows(tmp_path)] == ["row 0", "row 1", "row 2", "row 10", "row 11", "row 12"]


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow"])
@pytest.mark.parametrize("damage", ["cut", "other", "empty"])
def test_a_damaged_file_is_a_sentence(tmp_path: Path, name: str, damage: str) -> None:
    """Cut off in the middle, no such format at all, or nothing: the file is named, and what to do."""
    write(tmp_path / name)
    raw = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes({"cut": raw[: len(raw) // 2], "other": b"no such thing" * 9, "empty": b""}[damage])

    with pytest.raises(InputError, match=rf"^{name} cannot be read as an? (Parquet|Arrow) file: .* fetch it again\.$"):
        rows(tmp_path / name)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install stands in the sentence."""
    write(tmp_path / "a.parquet")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    with pytest.raises(InputError, match=r"stream-dedup\[data\]"):
        rows(tmp_path / "a.parquet")
