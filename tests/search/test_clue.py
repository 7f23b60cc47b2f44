"""Clues of every kind: found, or refused in a sentence; and where a text holds one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.fingerprinting import Languages
from stream_dedup.ground.errors import InputError
from stream_dedup.search.clue import WORDS_MAX, Clue, clue_of
from stream_dedup.search.snippets import snippet_of

LANGUAGES = Languages()


@pytest.mark.parametrize("text", ["", "   ", "***", '"" AND', "\u200f\u200d"])
def test_nothing_is_no_clue_but_an_operator_is_a_word(text: str) -> None:
    if "AND" in text:
        assert clue_of(text, LANGUAGES).pairs == (("and",),)
        return
    with pytest.raises(InputError, match="The clue has no word"):
        clue_of(text, LANGUAGES)


def test_a_clue_of_ten_megabytes_is_refused_and_a_long_one_cut() -> None:
    with pytest.raises(InputError, match="10,000,000 bytes, and at most 1,000,000"):
        clue_of("a " * 5_000_000, LANGUAGES)

    clue = clue_of(" ".join(f"w{number}" for number in range(10_000)), LANGUAGES)
    assert (clue.words, len(clue.pairs)) == (10_000, WORDS_MAX - 1)


@pytest.mark.parametrize(
    ("text", "clue", "marked"),
    [
        ("The quick brown fox jumps.", "QUICK, brown", ["quick brown"]),
        ("我们在北京大学学习中文", "北京大学学习", ["北京大学学习"]),
        ("これは日本語の文章です。", "日本語の文章", ["日本語の文章"]),
        ("שלום עולם טוב מאוד", "עולם טוב", ["עולם טוב"]),
        ("Cafe\u0301 au lait, s'il vous plai\u0302t", "CAFÉ AU lait", ["Cafe\u0301 au lait,"]),
        ("one two one three", "three", ["three"]),
        ("Paid 2.5 million.", "1.5 million", ["million."]),
        ("Paid 1.5 million.", "1.5 million", ["1.5 million."]),
        ("7,200 for 40 piles", "9,200 for 40", ["for 40"]),
        ("ทดสอบภาษาไทย", "ภาษาไทย", ["ภาษาไทย"]),
    ],
)
def test_the_words_that_match_are_marked(text: str, clue: str, marked: list[str]) -> None:
    snippet = snippet_of(text, clue_of(clue, LANGUAGES), LANGUAGES)

    assert "".join(piece for piece, _ in snippet) == text
    assert [piece for piece, matches in snippet if matches] == marked


def test_of_a_long_text_the_piece_with_the_clue_is_shown() -> None:
    text = "filler words " * 2_000 + "here the needle lies hidden " + "more filler " * 2_000
    snippet = snippet_of(text, clue_of("the needle lies hidden", LANGUAGES), LANGUAGES)

    assert [piece for piece, matches in snippet if matches] == ["the needle lies hidden"]
    assert snippet[0] == ("… ", False)
    assert snippet[-1] == (" …", False)
    assert sum(len(piece) for piece, _ in snippet) < 800


@given(text=st.text(max_size=40).map(lambda piece: 12 * piece), clue=st.text(max_size=60))
def test_a_snippet_is_a_piece_of_its_text(text: str, clue: str) -> None:
    try:
        wanted = clue_of(clue, LANGUAGES)
    except InputError:
        return
    shown = "".join(piece for piece, _ in snippet_of(text, wanted, LANGUAGES))

    assert shown.removeprefix("… ").removesuffix(" …") in text or shown in text


def test_of_a_short_clue_less_must_be_held() -> None:
    """Where nobody says how much: a changed word of Japanese breaks four of seven pairs."""

    def needed(pairs: int, least: float | None = None) -> int:
        return Clue(tuple((f"{number}", "x") for number in range(pairs)), pairs + 1).needed(least)

    assert [needed(pairs) for pairs in (1, 2, 3, 7, 10, 11, 59)] == [1, 1, 2, 3, 4, 6, 30]
    assert [needed(pairs, 0.5) for pairs in (1, 7, 10, 59)] == [1, 4, 5, 30]
