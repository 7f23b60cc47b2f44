"""`bench files`, `bench find` and the edits: planted texts exist and are found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from bench.__main__ import main
from bench.edits import edited
from bench.files import OURS, measure, write_file
from bench.find import CHANGES, TOKENS, FindOptions, run_find
from bench.find_texts import LANGUAGES
from stream_dedup.search.facts import FoundText
from stream_dedup.search.query import SearchQuery
from stream_dedup.search.texts import TextIndex


def test_the_file_contains_the_stated_copies(tmp_path: Path) -> None:
    """The same arguments write the same file; only copies resemble an earlier text."""
    truth = write_file(tmp_path / "a.jsonl", 1000, 1100, 3)
    assert write_file(tmp_path / "b.jsonl", 1000, 1100, 3) == truth
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    texts = [json.loads(line)["text"].split() for line in (tmp_path / "a.jsonl").open()]
    runs = [{tuple(words[start : start + 3]) for start in range(len(words) - 2)} for words in texts]

    def nearest(row: int) -> float:
        return max(len(runs[row] & before) / len(runs[row] | before) for before in runs[:row])

    assert 20 < len(truth.copies) < 150
    assert min(map(nearest, sorted(truth.copies)[:40])) >= 0.8
    others = [row for row in range(400, 500) if row not in truth.copies | truth.grey]
    assert max(map(nearest, others)) < 0.5
    assert all(nearest(row) >= 0.5 for row in sorted(truth.grey)[:5])
    found = measure(OURS, tmp_path / "a.jsonl", truth)
    assert (found.recall, found.false_drops) == (1.0, 0)


# -- what editors, abridgers and scanners make of texts

TEXT = [" ".join(f"word{sentence}x{word}" for word in range(12)) + "." for sentence in range(20)]
OTHER = [" ".join(f"other{sentence}x{word}" for word in range(12)) + "." for sentence in range(20)]


def test_each_kind_of_edit_changes_the_right_part() -> None:
    dice = np.random.default_rng(1)

    agency, abridged, scanned = (
        edited(kind, TEXT, OTHER, dice) for kind in ("agency", "abridged", "scanned")
    )

    assert agency == " ".join([OTHER[0], *TEXT[1:-2], *OTHER[-2:]])
    assert abridged.split() == " ".join(TEXT).split()[:144]
    whole = " ".join(TEXT)
    assert len(scanned) == len(whole)
    assert (
        0.005
        < np.mean([letter != other for letter, other in zip(scanned, whole, strict=True)])
        < 0.03
    )


SMALL = FindOptions(documents=90, size_bytes=1000, clues=4, scans=27)


def test_every_clue_finds_its_text_and_the_scan_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "figures.json"
    command = f"find --documents 90 --size 1000 --clues 4 --scans 27 --seed 5 --json {target}"

    assert main(command.split()) == 0

    shown = capsys.readouterr().out
    assert shown.startswith("seed 5\n")
    assert re.search(r"Japanese, 60 words +1\.000, 1\.000 ", shown)
    figures = json.loads(target.read_text())
    assert (figures["documents"], figures["seed"]) == (90, 5)
    assert [(cell["language"], cell["tokens"], cell["change"]) for cell in figures["cells"]] == [
        (code, tokens, change) for code in LANGUAGES for tokens in TOKENS for change in CHANGES
    ]
    assert {cell["asked"] for cell in figures["cells"]} == {4}
    whole = [cell for cell in figures["cells"] if cell["change"] == "whole"]
    assert {cell["recall"] for cell in whole if cell["language"] == "en"} == {1.0}
    found = [(scan["tokens"], scan["asked"]) for scan in figures["scans"]]
    assert found == [(tokens, 9) for tokens in TOKENS]
    assert figures["bytes_in_engine"] > 300
    names = ("loaded_per_second", "load_cpu_us", "median_ms", "ask_cpu_ms")
    assert min(figures[name] for name in names) > 0


def test_documents_that_the_engine_misses_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recall drops, and the scan reports each missed clue."""
    ask = TextIndex.find

    def overlook(
        self: TextIndex, clue: SearchQuery, limit: int, min_share: float | None = None
    ) -> list[FoundText]:
        return ask(self, clue, limit, min_share)[1:]

    monkeypatch.setattr(TextIndex, "find", overlook)
    report = run_find(SMALL, lambda _: None)

    assert len(report.complaints) == 27
    cell = report.cells[0].as_json()
    assert (cell["recall"], cell["listed"]) == (0.0, 1.0)
