"""`bench files`: its file is what it is said to be, and this program finds its copies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bench.edits import edited
from bench.files import OURS, measure, write_file


def test_the_file_has_the_copies_that_it_is_said_to_have(tmp_path: Path) -> None:
    """The same numbers make the same file; copies are like an earlier text, others are not; all copies are found."""
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


def test_each_kind_of_edit_is_what_it_says() -> None:
    dice = np.random.default_rng(1)

    agency, abridged, scanned = (edited(kind, TEXT, OTHER, dice) for kind in ("agency", "abridged", "scanned"))

    assert agency == " ".join([OTHER[0], *TEXT[1:-2], *OTHER[-2:]])
    assert abridged.split() == " ".join(TEXT).split()[:144]
    whole = " ".join(TEXT)
    assert len(scanned) == len(whole)
    assert 0.005 < np.mean([one != other for one, other in zip(scanned, whole, strict=True)]) < 0.03
