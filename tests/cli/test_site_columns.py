"""Sites and titles of rows, files and an index, without Kafka."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stream_dedup import Index, dedup, prints
from stream_dedup.domain.errors import InputError
from stream_dedup.files import offline
from stream_dedup.files.checking import decode_documents
from stream_dedup.files.columns import read_printed_rows
from stream_dedup.fingerprinting import Recipe, SiteHasher
from stream_dedup.inputs.sources import find_files, read_documents
from stream_dedup.log import records
from stream_dedup.settings.settings import Settings
from tests.cli.running import Run, jsonl

HASHER = SiteHasher(Recipe())
ROWS: list[dict[str, Any]] = [
    {"id": "https://www.shop.example/1", "text": "a", "title": "One"},
    {"id": "7", "url": "https://News.example/7", "text": "b", "title": None, "place": "here"},
    {"id": "8", "url": None, "text": "c", "title": "One", "place": "docs.example"},
]


def read_name_hashes(table: pa.Table) -> list[tuple[int, int]]:
    """Return the hashes of site and title of each print, as the index receives them."""
    return [
        pair
        for part in read_printed_rows(table, Recipe(), "The table")
        for pair in zip(part.batch.sites.tolist(), part.batch.titles.tolist(), strict=True)
    ]


def hash_names(*names: tuple[str, str]) -> list[tuple[int, int]]:
    sites, titles = zip(*names, strict=True)
    return list(
        zip(HASHER.hash_sites(sites).tolist(), HASHER.hash_titles(titles).tolist(), strict=True)
    )


def as_columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {
        name: [row.get(name) for row in rows] for name in ("id", "url", "text", "title", "place")
    }


@pytest.mark.parametrize(
    "source",
    [ROWS, as_columns(ROWS), pa.table(as_columns(ROWS))],
    ids=["rows", "columns", "arrow"],
)
def test_prints_have_site_and_title(source: Any) -> None:
    """The site is the host of the id or of `url`, or the value of the named column."""
    usual = read_name_hashes(prints(source, id="id"))
    named = read_name_hashes(prints(source, id="id", site="place", title="place"))

    assert usual == hash_names(("shop.example", "One"), ("news.example", ""), ("", "One"))
    assert named == hash_names(
        ("shop.example", ""), ("here", "here"), ("docs.example", "docs.example")
    )


def test_a_missing_site_or_title_column_is_refused() -> None:
    for name in ("site", "title"):
        with pytest.raises(InputError, match="There is no column 'other'"):
            dedup(as_columns(ROWS), **{name: "other"})  # type: ignore[arg-type]
        with pytest.raises(InputError, match=f"{name}="):
            prints(as_columns(ROWS), **{name: 5})  # type: ignore[arg-type]


def test_the_text_column_is_not_read_as_title() -> None:
    assert read_name_hashes(prints([{"title": "words of a text"}], text="title")) == [(0, 0)]


def test_prints_without_the_columns_have_no_site_and_title() -> None:
    table = prints(ROWS, id="id").drop_columns(["site", "title"])
    assert read_name_hashes(table) == [(0, 0)] * 3


def test_check_decodes_sites_and_titles_of_all_kinds_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(jsonl(ROWS))
    (tmp_path / "b.html").write_text("<title>A page</title><p>words</p>")
    (tmp_path / "c.txt").write_text("plain words")
    raws = read_documents(find_files(str(tmp_path), "auto"))

    found = decode_documents(raws, Settings(value_format="json"), deque())

    assert [(document.site, document.title) for document in found] == [
        ("shop.example", "One"),
        ("news.example", ""),
        ("", "One"),
        ("", "A page"),
        ("", ""),
    ]
    raws = read_documents(find_files(str(tmp_path / "a.jsonl"), "auto"))
    named = Settings(value_format="json", site_field="place", title_field="url")
    expected = [("shop.example", ""), ("here", "https://News.example/7"), ("docs.example", "")]
    assert [
        (document.site, document.title) for document in decode_documents(raws, named, deque())
    ] == expected
    assert read_name_hashes(prints(tmp_path)) == hash_names(
        ("shop.example", "One"), ("news.example", ""), ("", "One"), ("", "A page"), ("", "")
    )


def test_an_index_takes_sites_and_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all, one for each, or the host of the id; each reaches the log record."""
    seen: list[tuple[int, int]] = []

    def record_and_apply(index: Any, raw: bytes) -> Any:
        record = records.decode(raw)
        if isinstance(record, records.Batch):
            seen.extend(zip(record.site.tolist(), record.title.tolist(), strict=True))
        return apply_record(index, raw)

    apply_record = offline.apply_record
    monkeypatch.setattr(offline, "apply_record", record_and_apply)
    address = "https://a.example/1"
    with Index() as index:
        index.add(address, "one text")
        index.add("1", "another text", site="https://www.B.example/", title="T")
        index.add_many([(address, "x"), ("2", "y")], site="c.example", title=["T", None])
        index.add_columns(
            [address, "3"], ["z", "w"], site=["", "d.example"], title=pa.array(["U", "T"])
        )
        for wrong in ({"site": ["only one"]}, {"title": [5, "x"]}, {"title": 5}):
            with pytest.raises(InputError, match=r"different lengths|Row 0|titles"):
                index.add_many([("4", "v"), ("5", "u")], **wrong)
        assert "4" not in index

    assert seen == hash_names(
        ("a.example", ""),
        ("b.example", "T"),
        ("c.example", "T"),
        ("c.example", ""),
        ("a.example", "U"),
        ("d.example", "T"),
    )


def test_check_reports_once_that_ids_are_no_addresses(run: Run, tmp_path: Path) -> None:
    def check(rows: list[dict[str, Any]], *options: str) -> str:
        path = tmp_path / "a.jsonl"
        path.write_text(jsonl(rows))
        return str(run("check", path, *options).err)

    texts = [" ".join(f"word{n}{k}" for k in range(20)) for n in range(20)]
    numbered = [{"id": n, "text": text, "host": "a.example"} for n, text in enumerate(texts)]
    errors = check(numbered)
    assert errors.count("20 of 20 documents have no known web site") == 1
    assert "STREAM_DEDUP_SITE_FIELD" in errors
    assert "copies at a similarity of 0.70 or more (STREAM_DEDUP_SIMILARITY_UNSURE" in errors
    assert check(numbered, "--similarity", "0.6") == ""
    assert check(numbered, "--set", "similarity_unsure=0.7") == ""
    assert check(numbered, "--site-field", "host") == ""
    assert check([row | {"url": "https://a.example"} for row in numbered]) == ""


def test_similarity_also_applies_to_documents_without_a_site(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is in `dedup`; a setting of their own takes precedence."""
    path = tmp_path / "a.jsonl"
    words = [f"word{n}" for n in range(200)]
    texts = [" ".join(words), " ".join(words[:150] + [f"other{n}" for n in range(50)])]
    path.write_text(jsonl({"id": text[-9:], "text": text} for text in texts))

    def duplicates(*options: str) -> int:
        ended = run("check", path, "--json", *options)
        return sum(
            json.loads(line).get("verdict") == "duplicate" for line in ended.out.splitlines()
        )

    assert duplicates() == 0
    assert duplicates("--similarity", "0.5") == 1
    monkeypatch.setenv("STREAM_DEDUP_SIMILARITY_UNSURE", "0.8")
    assert duplicates("--similarity", "0.5") == 0
