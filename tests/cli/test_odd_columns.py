"""Columns with odd names, values and ids: `check` and the Python API agree on them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stream_dedup import dedup
from stream_dedup.domain.errors import InputError
from tests.cli.running import Run, jsonl
from tests.cli.test_check import OTHER, PAGE


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSONL or Parquet, by the suffix; return the path."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(jsonl(rows))
    return path


def check_rows(run: Run, path: Path, *options: str) -> list[tuple[str, str]]:
    ended = run("check", path, "--json", *options)
    return [(row["id"], row["reason"]) for row in ended.rows]


def dedup_rows(source: Any, **names: Any) -> list[tuple[str, str]]:
    columns = dedup(source, **names)
    return list(zip(columns["id"], columns["reason"], strict=True))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_check_and_dedup_read_a_file_alike(run: Run, tmp_path: Path, suffix: str) -> None:
    """A text of several parts, and rows whose id is missing, null or a float."""
    parts = [{"id": "a", "text": [PAGE, "and more"]}, {"id": "b", "text": [OTHER]}]
    path = written(tmp_path / f"parts.{suffix}", parts)
    assert check_rows(run, path) == dedup_rows(path) == [("a", "new"), ("b", "new")]

    rows = [{"k": None, "text": PAGE}, {"k": 1.5, "text": OTHER}, {"k": None, "text": PAGE}]
    path = written(tmp_path / f"nulls.{suffix}", rows)
    with pytest.warns(UserWarning, match="^2 of 3 rows have no 'k'; their id, url or pos"):
        ids = dedup_rows(path, id="k")
    assert check_rows(run, path, "--id-field", "k") == ids
    assert [reason for _, reason in ids] == ["new", "new", "exact"]
    assert ids[1][0] == "1.5"
    assert ids[0][0].startswith("nulls.")
    with pytest.warns(UserWarning, match="^3 of 3 rows have no 'foo'"):
        assert [reason for _, reason in dedup_rows(path, id="foo")] == ["new", "new", "exact"]


def test_a_column_of_bytes_is_text_if_it_is_utf_8() -> None:
    assert dedup_rows(pa.table({"text": [PAGE.encode()] * 2})) == [("0", "new"), ("1", "exact")]
    with pytest.raises(InputError, match=r"^Row 0: The column 'text' contains bytes that are no"):
        dedup(pa.table({"text": [b"\xff\xfe"]}))


def test_a_field_that_no_row_has_is_reported(run: Run, tmp_path: Path) -> None:
    rows = [{"id": "a", "text": PAGE, "host": "a.example"}, {"id": "b", "text": OTHER}]
    lines, table = (written(tmp_path / f"a.{suffix}", rows) for suffix in ("jsonl", "parquet"))

    for field in ("site", "title"):
        option = f"--{field}-field"
        ended = run("check", lines, option, "hots")
        assert ended.err == (
            f"No row of JSONL, Parquet or Arrow has the field 'hots' with the {field}: correct "
            f"{option} (STREAM_DEDUP_{field.upper()}_FIELD).\n"
        )
        assert run("check", lines, option, "host").err == ""
        refused = run("check", table, option, "hots")
        assert refused.code == 1
        assert (
            f"a.parquet has no column 'hots'; its columns are id, text, host. Name the column with the {field}"
            in refused.err
        )
        for path in (lines, table):
            with pytest.raises(
                InputError, match=f"^No row has the field 'hots' that {field}= names"
            ):
                dedup(path, **{field: "hots"})
            assert dedup_rows(path, **{field: "host"}) == [("a", "new"), ("b", "new")]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", ["id", "k"])
def test_rows_with_an_empty_id_are_no_versions_of_one_document(
    run: Run, tmp_path: Path, suffix: str, name: str
) -> None:
    path = written(tmp_path / f"a.{suffix}", [{name: "", "text": PAGE}, {name: "", "text": OTHER}])
    ids = [f"{path.name}:{number + (suffix == 'jsonl')}" for number in (0, 1)]

    assert check_rows(run, path, "--id-field", name) == [(row_id, "new") for row_id in ids]
    assert "2 of 2 documents have no" in run("check", path, "--id-field", name).err
    with pytest.warns(UserWarning, match="^2 of 2 rows have no"):
        assert dedup_rows(path, id=name) == [(row_id, "new") for row_id in ids]
    with pytest.warns(UserWarning, match="^2 of 2 rows have no"):
        assert dedup_rows({name: ["", ""], "text": [PAGE, OTHER]}, id=name)[1] == ("Row 1", "new")


def test_ids_that_pandas_made_floats_are_whole_numbers() -> None:
    frame = {"id": [1.0, 2.0, float("nan")], "text": [PAGE, OTHER, PAGE]}
    with pytest.warns(UserWarning, match="^1 of 3 rows have no 'id'; their id, url or position is"):
        assert dedup_rows(frame, id="id") == [(1, "new"), (2, "new"), ("Row 2", "exact")]
    with pytest.raises(InputError, match="convert the column that id= names to texts or whole"):
        dedup({"id": [1.5], "text": [PAGE]}, id="id")


def test_nan_and_infinity_are_no_ids(run: Run, tmp_path: Path) -> None:
    texts = [PAGE, OTHER, PAGE]
    numbers = [float("nan"), float("inf"), 2.0]
    table = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": numbers, "text": texts}), table)
    lines = tmp_path / "a.jsonl"
    lines.write_text(
        "".join(
            f'{{"id": {number}, "text": "{text}"}}\n'
            for number, text in zip(("NaN", "Infinity", 2.0), texts, strict=True)
        )
    )

    for path, first in ((table, 0), (lines, 1)):
        ids = [f"{path.name}:{first}", f"{path.name}:{first + 1}", "2.0"]
        assert [name for name, _ in check_rows(run, path)] == ids
        assert [name for name, _ in dedup_rows(path)] == ids
        ended = run("check", path, "--id-field", "id")
        assert "2 of 3 documents have no 'id'" in ended.err


INEXPRESSIBLE = {
    "zoned": pa.array([253402400000000], pa.timestamp("ms", tz="Europe/Berlin")),
    "year 57973": pa.array([1_767_225_600_000_000], pa.timestamp("ms")),
    "before year 1": pa.array([-(10**14)], pa.timestamp("ms")),
    "far date": pa.array([10**8], pa.date32()),
    "long duration": pa.array([10**17], pa.duration("ms")),
    "invalid text": pa.array([b"\xff"]).view(pa.string()),
    "nested": pa.StructArray.from_arrays([pa.array([10**8], pa.date32())], ["date"]),
}


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_check_keeps_rows_with_dates_that_python_lacks(run: Run, tmp_path: Path, name: str) -> None:
    path, folder = tmp_path / "a.parquet", tmp_path / "o"
    missing = pa.nulls(1, INEXPRESSIBLE[name].type)
    table = pa.table(
        {
            "id": ["a", "b", "c"],
            "text": [PAGE, OTHER, PAGE],
            "odd": pa.chunked_array([INEXPRESSIBLE[name], missing, INEXPRESSIBLE[name]]),
        }
    )
    pq.write_table(table, path)

    assert run("check", path, "--to", folder).err == ""
    assert pq.read_table(folder / "kept").equals(pq.read_table(path).slice(0, 2))
    assert pq.read_table(folder / "duplicates")["id"].to_pylist() == ["c"]
    assert not list((folder / "unreadable").iterdir())
    assert check_rows(run, path) == dedup_rows(path) == [("a", "new"), ("b", "new"), ("c", "exact")]
    ended = run("check", path, "--to", tmp_path / "lines", "--as", "jsonl")
    assert "years after 9999" in ended.err
    assert "lack odd of 2 rows. Use --as parquet" in ended.err


@pytest.mark.parametrize(
    ("zone", "time_ms", "written_time"),
    [
        ("Europe/Berlin", 253402300799000, "9999-12-31T23:59:59"),
        ("Nowhere/City", 0, "1970-01-01T00"),
    ],
)
def test_check_writes_times_that_python_has_only_in_utc(
    run: Run, tmp_path: Path, zone: str, time_ms: int, written_time: str
) -> None:
    path = tmp_path / "a.parquet"
    times = pa.array([time_ms], pa.timestamp("ms", zone))
    pq.write_table(pa.table({"id": ["a"], "text": [PAGE], "until": times}), path)

    ended = run("check", path, "--to", tmp_path / "o", "--as", "jsonl")

    assert "lack" not in ended.err
    (kept,) = (tmp_path / "o" / "kept").iterdir()
    assert json.loads(kept.read_text())["until"].startswith(written_time)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_rows_of_a_file_can_have_null_as_text(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"a.{suffix}", [{"id": "a", "text": PAGE}, {"id": "b", "text": None}])

    for nulls, mask in (("keep", [True, True]), ("drop", [True, False])):
        assert dedup_rows(path, nulls=nulls) == [("a", "new"), ("b", "missing")]
        assert dedup(path, nulls=nulls, returns="mask").tolist() == mask
    with pytest.warns(UserWarning, match="the first: a.*contains null.* Or use dedup"):
        assert dedup_rows(path)[1][1] == "unreadable"


def test_a_timestamp_can_be_an_id(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2)]
    pq.write_table(pa.table({"when": times, "text": [PAGE, OTHER]}), path)

    ended = run("check", path, "--id-field", "when", "--json")
    ids = [json.loads(line)["id"] for line in ended.out.splitlines()]
    assert (ids, ended.err) == (["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"], "")
    assert dedup_rows(path, id="when") == [(name, "new") for name in ids]


def test_a_list_of_names_of_files_is_reported(tmp_path: Path) -> None:
    paths = [written(tmp_path / name, [{"text": PAGE}]) for name in ("a.jsonl", "b.jsonl")]

    with pytest.warns(UserWarning, match=r"^All 2 texts are names of files, such as .*a\.jsonl"):
        dedup([str(path) for path in paths])
    with pytest.raises(
        InputError, match=r"was given\. Give files as the path of a folder, or as a"
    ):
        dedup(paths)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_nan_in_a_vector_is_reported(run: Run, tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"a.{suffix}", [{"v": [1.0, float("nan")]}])
    ended = run("check", path, "--vector-field", "v", "--set", "recipe=vector")
    assert "A vector contains null, or a number that is not finite" in ended.err


def test_a_similarity_that_the_bands_miss_is_reported(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [{"id": "a", "text": PAGE}])
    assert run("check", path, "--similarity", "0.5").err == ""
    errors = run("check", path, "--similarity", "0.3").err
    assert "finds few pairs below similarity 0.6, so 0.30 (--similarity" in errors
