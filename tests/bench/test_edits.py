"""What editors, abridgers and scanners make of texts: the edits, and how many are found."""

from __future__ import annotations

import numpy as np

from bench.edits import edited

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
