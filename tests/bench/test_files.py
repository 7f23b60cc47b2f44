"""`bench files`: its file is what it is said to be, and this program finds its copies."""

from __future__ import annotations

import json
from pathlib import Path

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
