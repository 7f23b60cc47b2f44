"""What editors, abridgers and scanners make of texts: the edits, and containment against exact sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.edits import CONTAINED, EditFinding, StrangerFinding, containment, edited, measure_edits
from bench.quality import fingerprinter_of
from stream_dedup.demo.truth import shingles
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


@pytest.mark.parametrize(("kept", "expected"), [(1.0, 1.0), (0.6, 1.0), (0.4, 0.0)])
def test_containment_is_how_much_of_the_shorter_is_in_the_longer(kept: float, expected: float) -> None:
    """Near 1 of a part, nothing of a part that is less than half; of a stranger about nothing."""
    whole = " ".join(TEXT).split()
    texts = [" ".join(whole), " ".join(whole[: round(kept * len(whole))]), " ".join(OTHER)]
    prints = fingerprinter_of("words", 0).fingerprint(texts)

    of_part, of_other = containment(prints.sketches[0], prints.features[0], prints.sketches[1:], prints.features[1:])

    exact = [shingles(text, "en") for text in texts]
    assert len(exact[0] & exact[1]) == len(exact[1])
    assert of_part == pytest.approx(expected, abs=0.2)
    assert of_other < 0.2


def test_the_shares_are_of_every_text_and_key(corpora: Path) -> None:
    """Long texts that only begin and end otherwise are found by the plan, abridged ones by containment alone."""
    found = list(measure_edits(corpora, PLANS["bands"], 1, 1))

    edits = {(one.kind, one.words): one for one in found if isinstance(one, EditFinding)}
    assert len(edits) == 12
    assert edits["agency", (800, 1600)].found > 0.95
    assert edits["agency", (120, 200)].found < 0.1
    assert edits["abridged", (200, 400)].contained[-1] > edits["abridged", (200, 400)].found + 0.3
    for one in edits.values():
        assert list(one.contained) == sorted(one.contained, reverse=True)
        assert len(one.contained) == len(CONTAINED)
    strangers = [one for one in found if isinstance(one, StrangerFinding)]
    assert [one.taken_of_a_million[-1] for one in strangers] == [0, 0, 0, 0]


def test_too_few_texts_are_refused(tmp_path: Path) -> None:
    """In a sentence that counts them."""
    (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "One. Two.", "lang": "en"}\n')
    (tmp_path / "a.pairs.tsv").write_text("id_a\tid_b\tverdict\tjaccard\n")

    with pytest.raises(InputError, match="have 0 English texts that are like no other, and 300 are needed"):
        list(measure_edits(tmp_path, PLANS["bands"], 1, 1))
