"""`bench find`: texts as real ones, clues as people give them, and figures that a scan agrees with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import find
from bench.__main__ import main
from bench.find import CHANGES, TOKENS, FindOptions, run_find
from bench.find_texts import LANGUAGES, every_text
from stream_dedup.fingerprinting import Languages
from stream_dedup.ground.errors import InputError
from stream_dedup.search.clue import Clue
from stream_dedup.search.facts import FoundText
from stream_dedup.search.texts import TextIndex

SMALL = FindOptions(documents=90, size_bytes=1000, clues=4, scans=27)


def quiet(_: str) -> None:
    pass


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpora"
    folder.mkdir()
    texts = {
        "en": "the cat of the house sat on the mat of the old house by the sea. ",
        "zh": "我们在北京大学学习中文，他们在上海工作。",
        "ja": "東京の大学で日本語を勉強しています。大阪の会社で働いています。",
    }
    lines = [{"id": code, "text": text * 20, "lang": code} for code, text in texts.items()]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    (folder / "a.pairs.tsv").write_text("id_a\tid_b\tverdict\tjaccard\n", encoding="utf-8")
    return folder


def test_a_seed_makes_the_same_texts_and_every_text_is_another() -> None:
    """The languages take turns; texts have about the size asked for; more of them begin with the same ones."""
    texts = list(every_text(3, 1500, 300, None))

    assert texts == list(every_text(3, 1500, 900, None))[:300]
    assert texts[0] != next(every_text(4, 1500, 1, None))
    assert [code for code, _ in texts[:4]] == ["en", "zh", "ja", "en"]
    assert len({text for _, text in texts}) == 300
    sizes = [len(text.encode()) for _, text in texts]
    assert 1350 < sum(sizes) / 300 < 1650
    assert min(sizes) < 900 < 2100 < max(sizes)


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


def test_a_clue_differs_from_its_text_in_what_its_name_says(tmp_path: Path) -> None:
    """Whole it is a piece of the text; a word fewer, it is shorter by that; of equal options the clues are equal."""
    languages = Languages()
    with find.TextFile(tmp_path) as texts:
        texts.write(every_text(1, 1000, 90, None), languages)
        clues = list(find._clues(texts, languages, SMALL))
        assert clues == list(find._clues(texts, languages, SMALL))
        for whole, changed, missing in zip(clues[::3], clues[1::3], clues[2::3], strict=True):
            text = " ".join(texts.text(whole.source).split())
            assert (whole.text in text, changed.text in text, missing.text in text) == (True, False, False)
            assert texts.languages[whole.source] == whole.language
            assert len(missing.text) < len(whole.text)
            if whole.language == "en":
                counts = [len(languages.words(one.text)) for one in (whole, changed, missing)]
                assert counts == [whole.tokens, whole.tokens, whole.tokens - 1]


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


def test_texts_too_short_for_the_clues_are_refused(corpus: Path) -> None:
    lines = [{"id": code, "text": "one 中文 日本", "lang": code} for code in LANGUAGES]
    (corpus / "a.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")

    with pytest.raises(InputError, match="too short for clues of 60 words"):
        run_find(FindOptions(documents=90, size_bytes=100, clues=4, corpus=corpus), quiet)


def test_the_command_says_its_seed_and_writes_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "figures.json"
    arguments = ["--documents", "60", "--clues", "2", "--scans", "3", "--seed", "5", "--json", str(target)]
    assert main(["find", *arguments]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith("seed 5\n")
    assert "| Japanese, 60 words | 1.000, 1.000 |" in shown
    figures = json.loads(target.read_text())
    assert (figures["documents"], figures["seed"]) == (60, 5)
