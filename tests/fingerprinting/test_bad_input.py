"""Texts made to hurt: each takes time in proportion to its size, and gets the same print every
time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stream_dedup.fingerprinting import Fingerprinter, Languages, Recipe
from stream_dedup.fingerprinting.jieba_data import UserWord
from tests.fingerprinting import reference
from tests.fingerprinting.cost import times_as_long
from tests.fingerprinting.texts import OTHER_KEY, rows
from tests.tiers import few


def _distinct(count: int) -> str:
    return " ".join(map(str, range(count)))


# Each makes a text of a size in proportion to n; at n = 1 about 200 kB.
HURTFUL: dict[str, Callable[[int], str]] = {
    "one letter": lambda n: "a" * 200_000 * n,
    "one letter, not ASCII": lambda n: "\u00e9" * 100_000 * n,
    "NULs": lambda n: "\0" * 200_000 * n,
    "white space": lambda n: " \t\n\u3000" * 40_000 * n,
    "alternating spaces": lambda n: "a " * 100_000 * n,
    "digits": lambda n: "1234567890" * 20_000 * n,
    "distinct words": lambda n: _distinct(30_000 * n),
    "combining marks": lambda n: "a" + "\u0300\u0323" * 50_000 * n,
    "combining marks in canonical order": lambda n: "a" + "\u0323" * 100_000 * n,
    "marks without a letter": lambda n: "\u0e48" * 60_000 * n,
    "half-width voicing marks": lambda n: ("\uff9e\u0300" * 30_000 + "x") * n,
    "marks between invisible characters": lambda n: "a" + "\u0300\u200d\u0323\u200d" * 20_000 * n,
    "longest expansion": lambda n: "\ufdfa" * 30_000 * n,
    "Hangul jamo": lambda n: "\u1112\u1161\u11ab" * 20_000 * n,
    "jamo that never end": lambda n: "\u1161" * 60_000 * n,
    "unassigned and letters in turn": lambda n: "\u0378e\u0301" * 20_000 * n,
    "lone surrogates": lambda n: "\ud800" * 60_000 * n,
    "Han without end": lambda n: "研究生命起源" * 11_000 * n,
    "one rare Han character": lambda n: "龘" * 66_000 * n,
    "one common Han character": lambda n: "一" * 66_000 * n,
    "Han beyond jieba": lambda n: "\u3400" * 66_000 * n,
    "kana without end": lambda n: "あいうえお" * 13_000 * n,
    "kana in turn with Han": lambda n: "の中" * 33_000 * n,
    "Thai without end": lambda n: "สวัสดีครับ" * 6_600 * n,
    "bidirectional controls": lambda n: "\u202e\u2066a\u2069" * 20_000 * n,
    "tag characters": lambda n: "\U000e0041" * 50_000 * n,
    "compositions": lambda n: "\u0bc6\u0bbe" * 33_000 * n,
    "vowel signs without a letter": lambda n: "\u0bbe" * 66_000 * n,
    "homoglyphs": lambda n: "\u0430a\u03b1" * 40_000 * n,
    "Javanese without end": lambda n: "\ua9b2\ua98f\ua9c0" * 22_000 * n,
    "one word of 200 kB": lambda n: "abcdefghij" * 20_000 * n,
    "every code point": lambda n: "".join(map(chr, range(0x80, 0x10000))) * n,
}


@pytest.fixture(scope="module")
def fingerprinter() -> Fingerprinter:
    return Fingerprinter(Recipe(key=OTHER_KEY))


@pytest.fixture(scope="module", params=few(["words", "chars", "shingles"]))
def compiled(request: pytest.FixtureRequest) -> Fingerprinter:
    return Fingerprinter(Recipe(request.param, key=OTHER_KEY))


@pytest.mark.parametrize("name", sorted(HURTFUL))
def test_time_is_linear(compiled: Fingerprinter, name: str) -> None:
    """A text eight times as long takes less than 40 times as long; a quadratic cost takes 64 times.

    40, because the longest expansion takes more memory than the allocator keeps (26 times the
    time); the others take eight times, a few eleven.
    """
    make = HURTFUL[name]

    assert times_as_long(compiled, make(1), make(8), 0.001, 5 * 8) < 5 * 8


@pytest.mark.parametrize("name", sorted(HURTFUL))
def test_keywords_take_linear_time(name: str) -> None:
    """Four times the text takes at most three times four times the time, though jieba's own code
    does the work."""
    keywords = Fingerprinter(Recipe("keywords", key=OTHER_KEY))
    text = HURTFUL[name](1)

    assert times_as_long(keywords, text[:1500], text[:6000], 0.005, 3 * 4) < 3 * 4


@pytest.mark.parametrize(
    "name",
    [
        "Han without end",
        "kana without end",
        "kana in turn with Han",
        "Thai without end",
        "one letter",
    ],
)
def test_time_is_linear_with_all_language_options(name: str) -> None:
    languages = Languages((UserWord("研究生命", 5),), frozenset({"a", "の"}), fold_han=True)
    with_options = Fingerprinter(Recipe(key=OTHER_KEY, languages=languages))

    assert times_as_long(with_options, HURTFUL[name](1), HURTFUL[name](4), 0.001, 3 * 4) < 3 * 4


@pytest.mark.parametrize(
    "name", sorted(set(HURTFUL) - {"one common Han character", "one rare Han character"})
)
def test_hurtful_texts_equal_the_reference(fingerprinter: Fingerprinter, name: str) -> None:
    """The first two thousand characters of each get the print that plain Python makes."""
    text = HURTFUL[name](1)[:2000]

    assert rows(fingerprinter.fingerprint([text])) == [reference.fingerprint(text, OTHER_KEY)]


def test_a_token_of_five_megabytes(fingerprinter: Fingerprinter) -> None:
    """One endless word is one feature, below every floor, and what stands beside it in the batch is
    not touched."""
    prints = fingerprinter.fingerprint(["plain text", "x" * 5_000_000, "plain text"])

    assert prints.features.tolist() == [3, 1, 3]
    assert prints.prints[0].tolist() == prints.prints[2].tolist()


def test_a_repeated_text_is_judged_by_its_digest(fingerprinter: Fingerprinter) -> None:
    """Repetitions of one letter of unequal length share their print, and the floor leaves them to
    the digest."""
    prints = fingerprinter.fingerprint(["a " * 500_000, "a " * 400_000])

    assert np.array_equal(prints.prints[0], prints.prints[1])
    assert (prints.features < Recipe().floor).all()
    assert not np.array_equal(prints.digests[0], prints.digests[1])
