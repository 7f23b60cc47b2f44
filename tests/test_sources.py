"""Sources that `dedup` accepts and returns: tables and columns of each library, and ids."""

from __future__ import annotations

import random
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from stream_dedup import Index, Recipe, dedup, fingerprint
from stream_dedup.domain.errors import ConfigurationError, InputError

WORDS = [f"word{number}" for number in range(400)]
DICE = random.Random(11)
ONE, OTHER = (" ".join(DICE.choice(WORDS) for _ in range(120)) for _ in range(2))
TEXTS = [ONE, OTHER, ONE.replace("word1", "word2", 1) + " more"]
KEPT = [True, True, False]
TABLE = pa.table({"id": [10, 11, 12], "text": TEXTS})


class Series:
    """A column as pandas and polars have it: a stream of Arrow, but no table for pyarrow."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __arrow_c_stream__(self, requested: object = None) -> object:
        return pa.chunked_array([self.values]).__arrow_c_stream__(requested)

    def to_list(self) -> list[Any]:
        return self.values

    def filter(self, mask: Any) -> Series:
        return Series([value for value, keeps in zip(self.values, mask, strict=True) if keeps])


class Frame:
    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.columns = table.column_names

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __arrow_c_stream__(self, requested: object = None) -> object:
        return self.table.__arrow_c_stream__(requested)

    def filter(self, mask: Any) -> Frame:
        return Frame(self.table.filter(pa.array(mask)))

    def lazy(self) -> LazyFrame:
        return LazyFrame(self)


class LazyFrame:
    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.columns = frame.columns

    def lazy(self) -> LazyFrame:
        return self

    def collect(self) -> Frame:
        return self.frame


class Pandas:
    """A table like that of pandas, with a column that cannot be converted to Arrow."""

    iloc = None

    def __init__(self, columns: dict[str, list[Any]], times: int = 1) -> None:
        self.columns = list(columns) * times
        self.values = columns

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return np.array([*self.values[key], None], dtype=object)[:-1]
        chosen = {
            name: [value for value, keeps in zip(values, key, strict=True) if keeps]
            for name, values in self.values.items()
        }
        return Pandas(chosen)


class Dataset:
    """A dataset of Hugging Face: rows are dictionaries, and some are selected by their numbers."""

    cast_column = None

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.column_names = table.column_names

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.table.to_pylist())

    def select(self, rows: Any) -> Dataset:
        return Dataset(self.table.take(pa.array(rows)))


class IterableDataset:
    """A stream of rows of Hugging Face: it has no length, and is filtered by a function."""

    cast_column = None
    column_names = None

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.table.to_pylist())

    def filter(
        self, function: Callable[..., bool], *, with_indices: bool, fn_kwargs: dict[str, Any]
    ) -> IterableDataset:
        assert with_indices
        kept = [function(row, number, **fn_kwargs) for number, row in enumerate(self)]
        return IterableDataset(self.table.filter(pa.array(kept)))


FRAME = Frame(TABLE)


def keeps_rows_of(kind: type) -> Callable[[Any], bool]:
    return lambda found: type(found) is kind and found.table["id"].to_pylist() == [10, 11]


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        (TABLE, lambda found: found["id"].to_pylist() == [10, 11]),
        (
            TABLE["text"],
            lambda found: isinstance(found, pa.ChunkedArray) and found.to_pylist() == TEXTS[:2],
        ),
        (TABLE["text"].combine_chunks(), lambda found: found.to_pylist() == TEXTS[:2]),
        (Series(TEXTS), lambda found: isinstance(found, Series) and found.values == TEXTS[:2]),
        (FRAME, keeps_rows_of(Frame)),
        (FRAME.lazy(), keeps_rows_of(Frame)),
        (
            Pandas({"text": TEXTS, "odd": [1, "a", None]}),
            lambda found: found.values == {"text": TEXTS[:2], "odd": [1, "a"]},
        ),
        (Dataset(TABLE), keeps_rows_of(Dataset)),
        (
            IterableDataset(TABLE),
            lambda found: (
                isinstance(found, IterableDataset) and [row["id"] for row in found] == [10, 11]
            ),
        ),
        (
            {
                "train": IterableDataset(TABLE.slice(0, 1)),
                "test": IterableDataset(TABLE.slice(1)),
            },
            lambda found: [row["id"] for split in found.values() for row in split] == [10, 11],
        ),
        (
            pyarrow.dataset.dataset(TABLE),
            lambda found: isinstance(found, pa.Table) and found["id"].to_pylist() == [10, 11],
        ),
        (
            {"train": Dataset(TABLE.slice(0, 1)), "test": Dataset(TABLE.slice(1))},
            lambda found: (
                {name: split.table["id"].to_pylist() for name, split in found.items()}
                == {"train": [10], "test": [11]}
            ),
        ),
        (
            [Frame(TABLE.slice(0, 1)), TABLE.slice(1, 1), Frame(TABLE.slice(2)).lazy()],
            lambda found: [*map(len, found)] == [1, 1, 0] and isinstance(found[0], Frame),
        ),
        ({"text": TEXTS, "n": [1, 2, 3]}, lambda found: found == {"text": TEXTS[:2], "n": [1, 2]}),
        (np.array(TEXTS), lambda found: found.tolist() == TEXTS[:2]),
        ((text for text in TEXTS), lambda found: found == TEXTS[:2]),
        (iter(TABLE.to_batches(2)), len),
    ],
)
def test_each_kind_of_source_returns_a_mask_and_the_kept_rows(source: Any, kept: Any) -> None:
    rows = list(source) if isinstance(source, Iterator) else source
    if isinstance(source, Iterator) and isinstance(rows[0], pa.RecordBatch):
        assert dedup(iter(rows), returns="mask").tolist() == KEPT
        return

    assert dedup(rows)["is_duplicate"] == [not is_kept for is_kept in KEPT]
    mask = dedup(rows, returns="mask")
    assert mask.dtype == np.bool_
    assert mask.tolist() == KEPT
    assert kept(dedup(iter(rows) if isinstance(source, Iterator) else rows, returns="kept"))


class Relation:
    """The methods of a relation of DuckDB, whose `filter` takes an SQL expression."""

    def __init__(self, table: pa.Table) -> None:
        self.columns = table.column_names
        self.to_arrow_table = lambda: table
        self.__arrow_c_stream__ = table.__arrow_c_stream__

    def __len__(self) -> int:
        return len(self.to_arrow_table())

    def filter(self, _expression: object) -> None:
        raise AssertionError("a mask is no SQL expression")


def test_the_kept_rows_of_a_duckdb_relation_are_an_arrow_table() -> None:
    table = pa.table({"text": TEXTS, "number": range(len(TEXTS))})
    expected = table.filter(pa.array(KEPT))
    assert dedup(Relation(table), returns="kept").equals(expected)
    assert dedup([Relation(table)], returns="kept")[0].equals(expected)


def test_ids_keep_their_type() -> None:
    for ids in ([10, 11, 12], [b"a", b"b", b"c"], [uuid.UUID(int=number) for number in range(3)]):
        found = dedup({"id": ids, "text": TEXTS}, id="id")
        assert found["id"] == ids
        assert found["duplicate_of"] == [None, None, ids[0]]
    with pytest.raises(InputError, match=r"^Row 0 has the id 1\.5"):
        dedup({"id": [1.5], "text": ["a"]}, id="id")


@pytest.mark.parametrize("null", [None, float("nan")])
def test_rows_without_a_text(null: object) -> None:
    """`nulls` makes such a row an error, keeps it or drops it; other rows are judged."""
    texts = [ONE, null, TEXTS[2], null]

    with pytest.raises(
        InputError, match=r"^Row 1 contains null instead of a text in 'text'.*nulls="
    ):
        dedup({"text": texts})
    for nulls, mask in (("keep", [True, True, False, True]), ("drop", [True, False, False, False])):
        assert dedup({"text": texts}, nulls=nulls, returns="mask").tolist() == mask  # type: ignore[arg-type]
        assert dedup(texts, nulls=nulls)["reason"] == ["new", "missing", "near", "missing"]  # type: ignore[arg-type]
    assert dedup(pa.table({"text": [ONE, None]}), nulls="drop", returns="kept").num_rows == 1
    assert dedup({"text": iter([ONE, null])}, nulls="drop", returns="kept") == {"text": [ONE]}


def test_vectors_are_judged_as_texts_are(tmp_path: Path) -> None:
    """Vectors can be in a column, a matrix, a file or an index; other values raise errors."""
    dice = np.random.default_rng(3)
    first, other = dice.normal(size=64), dice.normal(size=64)
    rows = np.stack([first, other, first + 0.01 * dice.normal(size=64), first])
    recipe = Recipe("vector")
    table = pa.table({"id": ["a", "b", "c", "d"], "at": rows.tolist()})

    found = dedup(table, vector="at", id="id")

    assert found["reason"] == ["new", "new", "near", "exact"]
    assert found["duplicate_of"] == [None, None, "a", "a"]
    assert dedup(rows, recipe=recipe)["reason"] == found["reason"]
    shown = dedup(rows.astype(np.float64), recipe=recipe, returns="kept").tolist()
    assert shown == rows[:2].tolist()
    pq.write_table(table, tmp_path / "a.parquet")
    assert dedup(tmp_path, vector="at", id="id") == found
    assert fingerprint(first, recipe=recipe) == fingerprint(first.tolist(), recipe=recipe)
    with Index(recipe=recipe) as index:
        assert index.add("a", first).reason == "new"
        shown = [answer.reason for answer in index.add_many([("b", other), ("c", rows[2])])]
        assert shown == ["new", "near"]
        assert [match.id for match in index.query(rows[2])] == ["a"]
        with pytest.raises(
            InputError, match=r"^A vector or a Print is expected, and a str was given"
        ):
            index.add("d", "a text")
        with pytest.raises(
            InputError, match=r"^Row 0: A vector contains null, or a number that is not finite"
        ):
            index.add_many([("d", np.array([np.inf]))])
    with pytest.raises(
        InputError, match=r"NumPy array was given. A vector needs a recipe for vectors"
    ):
        fingerprint(first)
    with pytest.raises(ConfigurationError, match="expects texts, but vector= names vectors"):
        dedup(table, vector="at", recipe=Recipe())
    with pytest.raises(InputError, match=r"^Row 0 contains a str instead of a vector"):
        dedup(table, vector="id")
    with pytest.raises(
        InputError, match=r"^Row 1: A vector contains something that is not a number"
    ):
        dedup([[1.0, 2.0, 3.0], ["a", 1.0, 2.0]], recipe=recipe)
    for given, named in (
        ([rows[0], rows[1][:-1]], {"recipe": recipe}),
        ({"at": [rows[0], rows[1][:-1]]}, {"vector": "at"}),
    ):
        with pytest.raises(
            InputError,
            match=r"^Row 1: The vector has 63 numbers, and the first one 64",
        ):
            dedup(given, **named)
    (tmp_path / "b.jsonl").write_text('{"at": [1.0, 2.0]}\n{"at": [3.0]}\n{"at": [2.0, -1.0]}\n')
    with pytest.warns(
        UserWarning,
        match=r"^1 of 3 rows cannot be read, the first: b\.jsonl:2: The vector has 1 numbers",
    ):
        dedup(tmp_path / "b.jsonl", vector="at")
    with pytest.raises(
        InputError,
        match=r'^Row 0: .* and a NumPy array was given\. Vectors need recipe=Recipe\("vector"\)\.$',
    ):
        dedup([rows[0], "a text"])
    shown = dedup({"at": [rows[0], None]}, vector="at", nulls="drop", returns="mask").tolist()
    assert shown == [True, False]


def test_errors_of_other_libraries_are_reworded() -> None:
    with pytest.raises(InputError, match=r"is not a path .*give texts as a list"):
        dedup(ONE * 10)
    with pytest.raises(
        ConfigurationError,
        match=r"^nulls='skip' is not valid; it can be 'error', 'keep', 'drop'\.$",
    ):
        dedup(TEXTS, nulls="skip")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="--to FOLDER"):
        dedup("pages.jsonl", returns="kept")
    for source in (FRAME, FRAME.lazy(), Pandas({"text": TEXTS}), {"text": TEXTS}):
        with pytest.raises(InputError, match=r"^There is no column 'body'; the columns are "):
            dedup(source, text="body")
    for twice in (
        pa.Table.from_arrays([["a"], ["b"]], ["text", "text"]),
        Pandas({"text": TEXTS}, times=2),
    ):
        with pytest.raises(
            InputError, match=r"^There are 2 columns 'text'; give one of them another name\.$"
        ):
            dedup(twice)
    with pytest.raises(InputError, match=r"^Row 0 has no column 'body'"):
        dedup({"train": Dataset(TABLE)}, text="body")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dedup([])["id"] == []
