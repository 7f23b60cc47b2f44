"""What editors, abridgers and scanners make of texts: the edits, and how many are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.edits import edited, measure_edits
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.plan import PLANS

TEXT = [" ".join(f"word{sentence}x{word}" for word in range(12)) + "." for sentence in range(20)]
OTHER = [" ".join(f"other{sentence}x{word}" for word in range(12)) + "." for sentence in range(20)]


def test_each_kind_of_edit_is_what_it_says() -> None:
    """Another headline and end; the first six of ten words; one letter in fifty misread."""
    dice = np.random.default_rng(1)

    agency, abridged, scanned = (edited(kind, TEXT, OTHER, dice) for kind in ("agency", "abridged", "scanned"))

    assert agency == " ".join([OTHER[0], *TEXT[1:-2], *OTHER[-2:]])
    assert abridged.split() == " ".join(TEXT).split()[:144]
    whole = " ".join(TEXT)
    assert len(scanned) == len(whole)
    assert 0.005 < np.mean([one != other for one, other in zip(scanned, whole, strict=True)]) < 0.03


def test_the_shares_are_of_every_text_and_key(corpora: Path) -> None:
    """Long texts that only begin and end otherwise are found by the plan, short ones are not."""
    edits = {(one.kind, one.words): one for one in measure_edits(corpora, PLANS["bands"], 1, 1)}

    assert len(edits) == 12
    assert edits["agency", (800, 1600)].found > 0.95
    assert edits["agency", (120, 200)].found < 0.1


def test_too_few_texts_are_refused(tmp_path: Path) -> None:
    """In a sentence that counts them."""
    (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "One. Two.", "lang": "en"}\n')
    (tmp_path / "a.pairs.tsv").write_text("id_a\tid_b\tverdict\tjaccard\n")

    with pytest.raises(InputError, match="have 0 English texts that are like no other, and 300 are needed"):
        list(measure_edits(tmp_path, PLANS["bands"], 1, 1))
