"""The frozen tables of what each code point is."""

from __future__ import annotations

import unicodedata

import pytest

from stream_dedup.fingerprinting import characters
from stream_dedup.fingerprinting.characters import HAN, IGNORED, KIND_BITS, MARK, SEPARATOR, SPACE, UNSPACED, WORD
from tables.characters import FOLDER, MADE

same_unicode = pytest.mark.skipif(
    unicodedata.unidata_version != characters.UNICODE_VERSION,
    reason="this Python knows another Unicode version than the one the tables are frozen at",
)


@pytest.mark.thorough
@same_unicode
def test_tables_are_what_their_maker_makes() -> None:
    assert {name: make() for name, make in MADE.items()} == {name: (FOLDER / name).read_text("ascii") for name in MADE}


def test_tables_agree_with_this_python() -> None:
    """What was assigned when the tables were frozen is a letter, mark or number to any later Python as well."""
    kinds = characters.table()
    for code_point in range(characters.CODE_POINTS):
        kind = int(kinds[code_point])
        if kind & characters.UNASSIGNED or kind & KIND_BITS == IGNORED:
            continue
        in_word = kind & KIND_BITS in {WORD, HAN, UNSPACED}
        assert in_word == (unicodedata.category(chr(code_point))[0] in "LMN"), hex(code_point)
        assert (kind & KIND_BITS == SPACE) == chr(code_point).isspace(), hex(code_point)


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        (WORD, "aZé9Я中"[:5] + "अ\u093f\u094d한ع①"),
        (HAN, "中々〇\u3400\U00020000\ufa0e"),
        (UNSPACED, "ひカー\u3099ก\u0e34ລខមꀀㄅ"),
        (SEPARATOR, ".,_-…・।\0\ufffd\U0001f600\ue000"),
        (SPACE, " \t\n\x1c\x85\u00a0\u2028\u3000"),
        (IGNORED, "\u00ad\u200b\u200d\ufeff\ufe0f\U000e0041\u3164"),
    ],
)
def test_kinds_of_some_characters(kind: int, of: str) -> None:
    kinds = characters.table()

    assert {one: int(kinds[ord(one)]) & KIND_BITS for one in of} == dict.fromkeys(of, kind)


def test_marks_are_flagged() -> None:
    """Combining marks of every general category count towards a run, and so do the half-width voicing marks."""
    kinds = characters.table()

    assert all(kinds[ord(one)] & MARK for one in "\u0301\u093f\u20dd\u3099\uff9e\u0e48")
    assert not any(kinds[ord(one)] & MARK for one in "aगกカ1 ")


def test_the_digest_names_both_files() -> None:
    """The digest that enters the recipe id is the frozen one: another table is another recipe."""
    assert characters.digest().hex() == "cddf9463ba46dd7d5319b914bb56fbe0"
