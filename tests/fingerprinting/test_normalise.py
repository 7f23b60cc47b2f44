"""Normalising: which texts count as the same."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from stream_dedup.fingerprinting import characters
from stream_dedup.fingerprinting import normalise as normalise_module
from stream_dedup.fingerprinting.normalise import normalise, normalise_batch
from tests.fingerprinting import reference
from tests.fingerprinting.texts import TEXTS, dice, strings


def batch(texts: list[str], *, fold_han: bool = False) -> list[str]:
    """The compiled path's results, as text."""
    data, bounds = normalise_batch(texts, fold_han=fold_han)
    content = data.tobytes()
    places = bounds.tolist()
    return [content[start:stop].decode() for start, stop in itertools.pairwise(places)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Hello,\t\nWORLD!  ", "hello, world!"),
        ("Straße STRASSE ſs", "strasse strasse ss"),
        ("ﬁne ＡＢＣ １２３ ① Ⅷ x² ½ ™ …", "fine abc 123 1 viii x2 1\u20442 tm ..."),
        ("Cafe\u0301 = Café", "café = café"),
        ("soft\u00adhyphen zero\u200bwidth \ufefftag\U000e0041", "softhyphen zerowidth tag"),
        ("line\u2028one\x85two\x1cthree\u3000four", "line one two three four"),
        ("\ud800 and \udfff", "\ufffd and \ufffd"),
        ("ﾃｷｽﾄ ｶﾞ", "テキスト ガ"),
        ("İI", "i\u0307i"),
        ("ΣΊΣΥΦΟΣ σίσυφος", "σίσυφοσ σίσυφοσ"),
        ("a\0b\x7f", "a\0b\x7f"),
        ("简体 簡體", "简体 簡體"),
        ("?! \U0001f600", "?! \U0001f600"),
        ("അവൻ അവന്\u200d അവന്", "അവന് അവന് അവന്"),
        ("ൺൻർൽൾൿ", "ണ്\u200dന്\u200dര്\u200dല്\u200dള്\u200dക്".replace("\u200d", "")),
        ("oʻzbek o'zbek п’ять", "oʻzbek o'zbek п’ять"),
        ("\u200b \u200b", ""),
        ("", ""),
    ],
)
def test_normalised_texts(text: str, expected: str) -> None:
    """The written rules, one example each, alone and in a batch."""
    assert normalise(text) == expected
    assert batch([text]) == [expected]


def test_odd_characters_are_found_at_every_position() -> None:
    """Stretches of ordinary text are copied at once; anything else in one, or where two meet, is
    handled as it is alone."""
    stretch = "Some ordinary WORDS, 64 of them: and so on, and on " * 5
    texts = [
        stretch[:place] + odd + stretch[place:]
        for odd in [*map(chr, range(128)), "é", "  ", " \t", "\n ", "É\u0301", "\u200b"]
        for place in (
            0,
            1,
            31,
            32,
            *range(61, 68),
            127,
            128,
            129,
            len(stretch) - 64,
            len(stretch) - 1,
            len(stretch),
        )
    ]

    assert batch(texts) == [normalise(text) for text in texts]


def test_a_run_of_marks_keeps_thirty() -> None:
    """Of a run of combining marks the first thirty count; a run is not ended by an invisible
    character within."""
    thirty = "\u0323" * 30
    expected = unicodedata.normalize("NFKC", "q" + thirty + " x")

    assert normalise("q" + thirty + " x") == expected
    assert normalise("q" + "\u0323" * 31 + " x") == expected
    assert normalise("q" + "\u0323" * 15 + "\u200d" + "\u0323" * 5000 + " x") == expected
    assert batch(["q" + "\u0323" * 31 + " x", "b"]) == [expected, "b"]
    assert batch(["ก" + "\u0e48" * 31]) == ["ก" + "\u0e48" * 30]


@pytest.mark.parametrize("pattern", ["%s", "a%sb", " %s "])
def test_every_code_point_normalises_as_by_the_reference(pattern: str) -> None:
    """All 1,114,112 code points, alone and between letters and marks, in the compiled path; a
    sample by plain Python."""
    chance = dice()
    texts = [pattern.replace("%s", chr(code_point)) for code_point in range(characters.CODE_POINTS)]
    made = batch(texts)
    interesting = [place for place, text in enumerate(texts) if made[place] != text]
    sample = chance.sample(range(len(texts)), 20_000) + chance.sample(interesting, 5_000)

    found = [made[place] for place in sample]
    assert found == [reference.normalise(texts[place]) for place in sample]


@pytest.mark.parametrize(
    "pattern", ["e\u0301%s\u0323x", "\u1fb3%s\u0e48\u0328", "%s\u20e7\u1bac", "\uff76%s\uff9e"]
)
def test_code_points_between_marks_normalise_as_by_the_reference(pattern: str) -> None:
    """Those that a mark before or after them may reorder or compose with, and a sample of the
    others."""
    chance, foldings = dice(), characters.foldings()
    acting = [
        code_point
        for code_point in range(characters.CODE_POINTS)
        if foldings.actions[code_point] != 0
    ]
    sample = chance.sample(acting, 5_000) + chance.sample(range(characters.CODE_POINTS), 5_000)
    texts = [pattern.replace("%s", chr(code_point)) for code_point in sample]

    assert batch(texts) == [reference.normalise(text) for text in texts]


@hypothesis.settings(
    max_examples=300,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
@hypothesis.given(texts=st.lists(TEXTS, max_size=5))
def test_definition_and_compiled_path_equal_the_reference(texts: list[str]) -> None:
    """On random Unicode `normalise`, the compiled path and plain Python agree; and normalising
    twice changes nothing."""
    expected = [reference.normalise(text) for text in texts]

    assert [normalise(text) for text in texts] == expected
    assert batch(texts) == expected
    assert batch(expected) == expected


def composing() -> list[str]:
    """Every character that takes part in a composition, in every Indic script and others, the
    seconds often."""
    lines = characters._COMPOSITIONS_FILE.read_text("ascii").splitlines()[1:]
    pairs = [tuple(chr(int(field, 16)) for field in line.split()) for line in lines]
    seconds = [second for first, second, _ in pairs if first == "\0"]
    others = [
        character
        for first, _, made in pairs
        for character in (first, made)
        if first != "\0" and character != "\0"
    ]
    return seconds * 4 + others + [*"aE 0\u094d\u0bcd\u200d\u0323"] * 8


def of_two_bytes() -> list[str]:
    """All code points of two bytes, most of the common alphabets, with ASCII, spaces and marks
    between."""
    common = [*"абвгдеёжийАБЙЁάέΆΣσςßéÉüÜñøđłאבגابجَ"]
    between = [*"aZ0 .  -", "\u0301", "\u0306", "\u00ad", "\u3000", "中"]
    return [chr(code_point) for code_point in range(0x80, 0x800)] + common * 40 + between * 60


@pytest.mark.parametrize(("pool", "longest"), [(composing, 6), (of_two_bytes, 14)])
def test_random_rows_equal_the_reference(pool: Callable[[], list[str]], longest: int) -> None:
    texts = strings(dice(), pool(), longest, 40_000)

    assert batch(texts) == [reference.normalise(text) for text in texts]


@pytest.mark.parametrize(
    "text", ["हिन्दी क़लम ज़मीन", "தமிழ் கொடு கௌரி", "বাংলা কো", "മലയാളം കൊ", "ဗမာစာ ဦး", "ශ්‍රී කො", "ಕೋಟೆ"]
)
def test_indic_texts_need_no_look_at_their_neighbours(text: str) -> None:
    """Vowel signs and nuktas are composed by compiled code, in the composed and the decomposed
    spelling."""
    for spelling in (text, unicodedata.normalize("NFD", text)):
        raw = spelling.encode()
        offsets = np.array([0, len(raw)])
        left = np.zeros(1, np.uint8)
        out = np.empty(len(raw) + 64, np.uint8)
        ends = np.zeros(2, np.int64)
        data = np.frombuffer(raw, np.uint8)
        normalise_module._normalise_each(
            data, offsets, 0, characters.table(), characters.foldings(), out, ends, left
        )

        assert left.tolist() == [0]
        assert out[: ends[1]].tobytes().decode() == reference.normalise(text)


def test_nothing_is_left_that_normalising_removes() -> None:
    """The results hold no surrogate, no invisible code point, no white space but single spaces
    inside."""
    everything = "".join(map(chr, range(characters.CODE_POINTS)))
    kinds = characters.table()
    result = normalise(everything)

    assert not {chr(place) for place in range(0xD800, 0xE000)} & set(result)
    assert not [
        character
        for character in set(result)
        if kinds[ord(character)] & characters.KIND_BITS == characters.IGNORED
    ]
    assert {character for character in set(result) if character.isspace()} == {" "}
    assert "  " not in result
