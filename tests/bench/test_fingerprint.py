"""The speed bench: who is measured, on which texts, and what is shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.fingerprint import FingerprintOptions, FingerprintReport, Speed, run_fingerprint
from bench.peers import Peers
from stream_dedup.ground.errors import InputError
from tests.bench.test_peers import FAKE


def test_everybody_gets_the_same_texts() -> None:
    """Ours and the peers' are measured on the same bytes, so many rounds each, language by language."""
    with Peers([sys.executable, str(FAKE)]) as peers:
        report = run_fingerprint(
            FingerprintOptions(("en", "th"), documents=5, size_bytes=1000, rounds=2), peers, lambda _: None
        )

    assert [(one.program, one.language) for one in report.speeds] == [
        (name, code) for code in ("en", "th") for name in ("stream-dedup words", "first letter")
    ]
    assert {len(one.seconds) for one in report.speeds} == {2}
    assert {(one.language, one.documents) for one in report.speeds} == {("en", 5), ("th", 5)}
    assert len({one.size_bytes for one in report.speeds}) == 2
    assert report.peer_versions == {"fake": "1.0"}


def test_texts_of_a_corpus_are_those_of_the_language(tmp_path: Path) -> None:
    """With --corpus the sets' own texts are measured, and a language that no set has is refused by name."""
    lines = [
        {"id": "1", "text": "ein Satz", "lang": "de"},
        {"id": "2", "text": "zwei", "lang": "de"},
        {"id": "3", "text": "x", "lang": "en"},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    (tmp_path / "a.pairs.tsv").write_text("id_a\tid_b\tverdict\tjaccard\n", encoding="utf-8")

    report = run_fingerprint(FingerprintOptions(("de",), corpus=tmp_path, rounds=1), None, lambda _: None)

    assert [(one.documents, one.size_bytes) for one in report.speeds] == [(2, 12)]
    with pytest.raises(InputError, match="'fr'"):
        run_fingerprint(FingerprintOptions(("fr",), corpus=tmp_path), None, lambda _: None)


def test_a_peer_is_held_against_the_first_preset_and_the_one_of_like_features() -> None:
    """Character n-grams in Chinese, word 3-grams in English; a preset that was not measured gives no ratio."""

    def speed(program: str, language: str, megabytes: float) -> Speed:
        return Speed(program, language, 1, int(megabytes * 1e6), (1.0,))

    ours = [speed(f"stream-dedup {name}", "zh", rate) for name, rate in (("words", 10.0), ("shingles", 30.0), ("chars", 60.0))]
    report = FingerprintReport((*ours, speed("stream-dedup words", "en", 50.0)), {}, {})

    assert report.ratios(speed("peer", "zh", 20.0)) == (0.5, 3.0)
    assert report.ratios(speed("peer", "en", 25.0)) == (2.0, None)
