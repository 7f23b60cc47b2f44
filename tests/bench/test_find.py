"""`bench find`: texts as real ones, clues as people give them, and figures that a scan agrees with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.find import CHANGES, TOKENS, FindOptions, run_find
from bench.find_texts import LANGUAGES
from stream_dedup.search.clue import Clue
from stream_dedup.search.facts import FoundText
from stream_dedup.search.texts import TextIndex

SMALL = FindOptions(documents=90, size_bytes=1000, clues=4, scans=27)


def quiet(_: str) -> None:
    pass


def test_every_clue_finds_its_text_and_the_scan_agrees() -> None:
    report = run_find(SMALL, quiet)
    figures = report.as_json()

    assert report.complaints == []
    assert [(one["language"], one["tokens"], one["change"]) for one in figures["cells"]] == [
        (code, tokens, change) for code in LANGUAGES for tokens in TOKENS for change in CHANGES
    ]
    assert {one["asked"] for one in figures["cells"]} == {4}
    assert {one["recall"] for one in figures["cells"] if one["change"] == "whole" and one["language"] == "en"} == {1.0}
    assert [(one["tokens"], one["asked"]) for one in figures["scans"]] == [(tokens, 9) for tokens in TOKENS]
    assert figures["bytes_in_engine"] > 300
    assert min(figures["loaded_per_second"], figures["load_cpu_us"], figures["median_ms"], figures["ask_cpu_ms"]) > 0


def test_an_engine_that_overlooks_a_document_is_complained_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its recall says so, and the scan names the clue."""
    ask = TextIndex.find

    def overlook(self: TextIndex, clue: Clue, limit: int, least: float | None = None) -> list[FoundText]:
        return ask(self, clue, limit, least)[1:]

    monkeypatch.setattr(TextIndex, "find", overlook)
    report = run_find(SMALL, quiet)

    assert len(report.complaints) == 27
    cell = report.cells[0].as_json()
    assert (cell["recall"], cell["listed"]) == (0.0, 1.0)


def test_the_command_says_its_seed_and_writes_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "figures.json"
    arguments = ["--documents", "60", "--clues", "2", "--scans", "3", "--seed", "5", "--json", str(target)]
    assert main(["find", *arguments]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith("seed 5\n")
    assert re.search(r"Japanese, 60 words +1\.000, 1\.000 ", shown)
    figures = json.loads(target.read_text())
    assert (figures["documents"], figures["seed"]) == (60, 5)
