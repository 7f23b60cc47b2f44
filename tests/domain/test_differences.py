"""Marking what differs: nothing is lost, nothing is unbounded, nothing reorders the page."""

from __future__ import annotations

import random
import time

from stream_dedup.domain.differences import COMPARED, SHOWN, compare, compare_blocks, shown
from tests.console.sample import COPY, EVIL, KEPT


def test_only_what_differs_is_marked() -> None:
    """Three changed words are three changes; unspaced scripts are compared by characters."""
    found = compare(KEPT, COPY)

    changed = [
        (piece.left.strip(), piece.right.strip()) for piece in found.pieces if piece.kind != "same"
    ]
    assert changed == [("", "evening"), ("eleven", "twelve"), ("鎖さ", "じら")]
    assert "".join(piece.left for piece in found.pieces) == KEPT
    assert "".join(piece.right for piece in found.pieces) == COPY
    assert 0.7 < found.similarity < 1
    assert compare(KEPT, KEPT).changes == 0
    assert compare(KEPT, KEPT).similarity == 1


def test_both_sides_are_whole_for_random_texts() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    letters = "ab  c.\n漢字กอ\u0301é—😀'"
    for _ in range(200):
        left, right = ("".join(rng.choices(letters, k=rng.randrange(80))) for _ in range(2))
        found = compare(left, right, folded=False)
        assert "".join(piece.left for piece in found.pieces) == left
        assert "".join(piece.right for piece in found.pieces) == right


def test_long_equal_stretches_are_folded() -> None:
    words = [f"w{place}" for place in range(2000)]
    found = compare(" ".join(words), " ".join([*words[:1000], "other", *words[1001:]]))

    assert [piece.kind for piece in found.pieces] == [
        "same",
        "skipped",
        "same",
        "changed",
        "same",
        "skipped",
        "same",
    ]
    assert found.pieces[1].left == "920 equal words"


def test_the_time_and_the_result_of_a_comparison_are_bounded() -> None:
    """Long lines and small vocabularies take seconds; the note says what was not compared."""
    rng = random.Random(1)
    repetitive = " ".join(rng.choices([f"w{place}" for place in range(110)], k=COMPARED))
    other_repetitive = " ".join(rng.choices([f"w{place}" for place in range(110)], k=COMPARED))
    begun = time.process_time()
    for left, right in (
        ("x" * 5_000_000, "x" * 5_000_000 + "y"),
        ("a " * 2_000_000, "b " * 2_000_000),
        (repetitive, other_repetitive),
    ):
        found = compare(left, right)
        assert sum(len(piece.left) + len(piece.right) for piece in found.pieces) <= 2 * SHOWN
        assert left is repetitive or "longer than the part compared" in found.note
    assert time.process_time() - begun < 10


def test_control_characters_are_written_out() -> None:
    assert "\x1b" not in shown(EVIL)
    assert "\\u202e" in shown(EVIL)
    assert "\\x00" in shown(EVIL)
    assert shown("a\n\u200cb\t") == "a\n\u200cb\t"
    assert shown("\ud800\n") == "\\ud800\n"


def test_blocks_of_fingerprints() -> None:
    assert compare_blocks("0000ffff", "0001ffff") == [("0000", "0001", 1), ("ffff", "ffff", 0)]
    assert (
        compare_blocks("", "") == compare_blocks("00", "0000") == compare_blocks("zz", "zz") == []
    )
