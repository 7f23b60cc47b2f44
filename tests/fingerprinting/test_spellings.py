"""Scripts that are written in more than one way: what readers take for one is one for the features,
and not for the digest."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest

from stream_dedup.fingerprinting import (
    Fingerprinter,
    Languages,
    Prints,
    Recipe,
    characters,
    explain_features,
    spellings,
)
from stream_dedup.fingerprinting.characters import (
    HAN,
    IGNORED,
    KIND_BITS,
    MARK,
    SEPARATOR,
    SPACE,
    UNSPACED,
    WORD,
)
from stream_dedup.fingerprinting.normalise import normalise, normalise_batch
from tables.characters import FOLDER, MADE
from tables.spellings import generate
from tests.fingerprinting import reference
from tests.fingerprinting.texts import OTHER_KEY, dice, strings
from tests.tiers import few

same_unicode = pytest.mark.skipif(
    unicodedata.unidata_version != characters.UNICODE_VERSION,
    reason="this Python knows another Unicode version than the one the tables are frozen at",
)
ARABIC = "إنَّ أوَّلَ مَا يَجِبُ على القارئِ أن يَعرِفَهُ هو آخِرُ الكتـــابِ، فالمدرسةُ والمسؤولُ عنها في القرن ١٩"
PERSIAN = "می\u200cخواهم کتاب\u200cهایی را که خریده\u200cام بدهم، نمی\u200cدانم آن\u200cها کدام\u200cیک را بیش\u200cتر می\u200cخوانند"
HEBREW = "בְּרֵאשִׁית בָּרָא אֱלֹהִים אֵת הַשָּׁמַיִם וְאֵת הָאָרֶץ׃ וַיִּקְרָא אֱלֹהִים לָאוֹר יוֹם"
VIETNAMESE = (
    "Đến thuỷ điện Hoà Bình, học sinh khoẻ mạnh hoà mình vào thiên nhiên, nghe kể chuyện sông Đà"
)
TURKISH = (
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar; akıl ve vicdan sahibidirler"
)
UZBEK = "O\u02bbzbekiston Respublikasida to\u02bbg\u02bbri yo\u02bbl, ma'no va san'at; g\u02bbalaba o\u02bbquvchilarniki"


def _without_marks(text: str) -> str:
    return "".join(
        character
        for character in unicodedata.normalize("NFD", text)
        if unicodedata.category(character) != "Mn"
    )


PAIRS = {
    "Arabic marks and tatweel": (ARABIC, _without_marks(ARABIC).replace("ـ", "")),
    "alef with hamza, madda and wasla": (ARABIC, ARABIC.translate(str.maketrans("أإآ", "اٱا"))),
    "yeh without dots and teh marbuta": (ARABIC, ARABIC.replace("في", "فى").replace("سة", "سه")),
    "Arabic digits": (ARABIC, ARABIC.replace("١٩", "19")),
    "Persian with Arabic yeh and kaf": (PERSIAN, PERSIAN.replace("ی", "ي").replace("ک", "ك")),
    "Hebrew points": (HEBREW, _without_marks(HEBREW)),
    "Vietnamese marks set in the old way": (
        VIETNAMESE,
        VIETNAMESE.replace("uỷ", "ủy").replace("oà", "òa").replace("oẻ", "ỏe"),
    ),
    "Vietnamese without marks": (
        VIETNAMESE,
        _without_marks(VIETNAMESE).replace("Đ", "D").replace("đ", "d"),
    ),
    "Vietnamese with eth": (VIETNAMESE, VIETNAMESE.replace("Đ", "Ð")),
    "Turkish capitals": (TURKISH, TURKISH.replace("i", "İ").upper()),
    "Turkish capitals by another language's rule": (TURKISH, TURKISH.upper()),
    "Turkish in ASCII": (TURKISH, _without_marks(TURKISH).replace("ı", "i")),
    "Greek capitals": (
        "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι",
        "ΟΛΟΙ ΟΙ ΑΝΘΡΩΠΟΙ ΓΕΝΝΙΟΥΝΤΑΙ ΕΛΕΥΘΕΡΟΙ",
    ),
    "Polish in ASCII": (
        "Wszyscy ludzie są równi, także łódź",
        "Wszyscy ludzie sa rowni, takze lodz",
    ),
    "Russian io": ("Все знают, что ёлка ещё зелёная", "Все знают, что елка еще зеленая"),
}

APOSTROPHES = {
    "Uzbek by a telephone": (UZBEK, UZBEK.replace("\u02bb", "'")),
    "Uzbek by a word processor": (UZBEK, UZBEK.replace("\u02bb", "\u2018").replace("'", "\u2019")),
    "Uzbek by a terminal": (UZBEK, UZBEK.replace("\u02bb", "`").replace("'", "`")),
    "Ukrainian": ("П\u02bcять хлоп\u02bcят з\u02bcїли об\u02bcєкт", "П'ять хлоп’ят з`їли об‘єкт"),
}


def _prints(recipe: str, *texts: str) -> Prints:
    return Fingerprinter(Recipe(recipe)).fingerprint(texts)


def _are_equal(rows: np.ndarray) -> bool:
    return bool((rows[0] == rows[1]).all())


@pytest.mark.parametrize("recipe", ["words", "shingles", "chars"])
@pytest.mark.parametrize("pair", PAIRS | APOSTROPHES)
def test_two_spellings_have_one_print_and_two_digests(pair: str, recipe: str) -> None:
    """Near at no distance and at a similarity of 1; exact are only texts that are the same once
    they are normalised."""
    made = _prints(recipe, *(PAIRS | APOSTROPHES)[pair])

    assert made.features[0] == made.features[1] > 2
    assert _are_equal(made.prints)
    assert _are_equal(made.sketches)
    assert not _are_equal(made.digests)


@pytest.mark.parametrize("recipe", ["words", "chars", "keywords"])
def test_a_half_space_is_a_space_under_every_recipe(recipe: str) -> None:
    made = _prints(recipe, PERSIAN, PERSIAN.replace("\u200c", " "))

    assert _are_equal(made.digests)
    assert _are_equal(made.prints)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("می\u200cشود", "می شود"),
        ("می\u200c\u200cشود", "میشود"),
        ("\u200cمی\u200c", "می"),
        ("می\u200c شود\u200c،", "می شود،"),
        ("ab\u200ccd क्\u200cष می\u200cx x\u200cمی", "abcd क्ष میx xمی"),
        ("می\u200dشود\u200b", "میشود"),
        ("مَ\u200cشُ\u0301\u0323", "مَ شُ\u0323\u0301"),
        ("ﻡ\u200cﺵ", "مش"),
    ],
)
def test_where_a_non_joiner_is_a_half_space(text: str, expected: str) -> None:
    """Right between two letters or marks of Arabic's own block; everywhere else it is removed as
    other invisible ones are."""
    data, bounds = normalise_batch([text])

    assert normalise(text) == reference.normalise(text) == expected
    assert data[: bounds[-1]].tobytes().decode() == expected


def test_stop_words_stop_every_spelling() -> None:
    """A line stops its word in every spelling, and the neighbours of the word become a pair."""
    stop = Languages(stop_words=frozenset(["été", "أن"]))

    shown = explain_features(Recipe(languages=stop), "rouge ete vert, ÉTÉ أنَّ bleu")

    assert set(shown) == {"rouge", "vert", "bleu", "rouge vert", "vert bleu"}


def test_marks_alone_are_no_word() -> None:
    assert set(explain_features(Recipe(), "one ـــ \u064b two")) == {"one", "two", "one two"}


POOL = [
    *"abız éüßđłøðƀ ạộ ά ῶ ё й ї", *"أإآٱاىيیےئؤةهکكۀہ١۲ـ", *"\u0301\u0323\u064b\u064e\u0670\u05b0\u05bc\u1dc4",
    *" .,  -", "\u200c", "\u200c", "שׁ", "か", "中", "กั", "한", "हि", "ỻ", "ẟ", "\u1abf", "\U0001d400",
]  # fmt: skip


@pytest.mark.parametrize("preset", few(["words", "chars", "shingles"]))
def test_spelling_equals_plain_python(preset: str) -> None:
    """Random rows of what is folded and what is not, in batches: prints, counts and sketches
    against plain Python."""
    texts = strings(dice(), POOL, 60, 1500)
    made = Fingerprinter(Recipe(preset, key=OTHER_KEY)).fingerprint(texts)

    found = [
        (low | high << 64, count)
        for (low, high), count in zip(made.prints.tolist(), made.features.tolist(), strict=True)
    ]
    assert found == [reference.print_of(preset, 128, text, OTHER_KEY) for text in texts]
    if preset != "chars":
        shown = [row.tobytes() for row in made.sketches]
        assert shown == [reference.sketch(text, OTHER_KEY) for text in texts]


@same_unicode
def test_the_table_equals_the_generated_table() -> None:
    """Under the frozen Unicode version the file is made again, byte for byte."""
    assert generate() == spellings._FILE.read_text("ascii")


def test_the_table_maps_words_to_words() -> None:
    """What stands in words stays there, and apostrophes stay outside; what they become stays; the
    digest is frozen."""
    kinds = characters.table()
    table = spellings.table()
    becomes = {code_point for code_point in table.values() if code_point is not None}

    assert len(table) > 1000
    assert not becomes & set(table)
    apostrophes = {code_point for code_point, to in table.items() if to == ord("'")}
    assert {int(kinds[code_point]) & KIND_BITS for code_point in {*apostrophes, ord("'")}} == {
        SEPARATOR
    }
    others = {*table, *becomes} - apostrophes - {ord("'")}
    assert {int(kinds[code_point]) & KIND_BITS for code_point in others} <= {WORD, IGNORED}
    assert {len(chr(code_point).encode()) for code_point in becomes} == {1, 2}
    assert spellings.digest().hex() == "cd98d13093ebcd4ee4d681d277cf76c0"
    found = [spellings.fold(text) for text in ("Ñandú", "й ї ў Ё", "ﬁ漢ひกั")]
    assert found == ["Nandu", "й ї ў Е", "ﬁ漢ひกั"]


# The frozen tables of code points


@pytest.mark.thorough
@same_unicode
def test_tables_equal_the_generated_tables() -> None:
    found = {name: make() for name, make in MADE.items()}
    assert found == {name: (FOLDER / name).read_text("ascii") for name in MADE}


def test_tables_agree_with_this_python() -> None:
    """What was assigned when the tables were frozen is a letter, mark or number to any later Python
    as well."""
    kinds = characters.table()
    for code_point in range(characters.CODE_POINTS):
        kind = int(kinds[code_point])
        if kind & characters.UNASSIGNED or kind & KIND_BITS == IGNORED:
            continue
        in_word = kind & KIND_BITS in {WORD, HAN, UNSPACED}
        is_letter = unicodedata.category(chr(code_point))[0] in "LMN"
        is_apostrophe = chr(code_point) in characters.APOSTROPHES
        assert in_word == (is_letter and not is_apostrophe), hex(code_point)
        assert (kind & KIND_BITS == SPACE) == chr(code_point).isspace(), hex(code_point)


@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        (WORD, "aZé9Я中"[:5] + "अ\u093f\u094d한ع①"),
        (HAN, "中々〇\u3400\U00020000\ufa0e"),
        (UNSPACED, "ひカー\u3099ก\u0e34ລខមꀀㄅ"),
        (SEPARATOR, "'`‘’ʻʼ.,_-…・।\0\ufffd\U0001f600\ue000"),
        (SPACE, " \t\n\x1c\x85\u00a0\u2028\u3000"),
        (IGNORED, "\u00ad\u200b\u200d\ufeff\ufe0f\U000e0041\u3164"),
    ],
)
def test_kinds_of_some_characters(kind: int, examples: str) -> None:
    kinds = characters.table()

    assert {
        character: int(kinds[ord(character)]) & KIND_BITS for character in examples
    } == dict.fromkeys(examples, kind)


def test_marks_are_flagged() -> None:
    """Combining marks of every general category count towards a run, and so do the half-width
    voicing marks."""
    kinds = characters.table()

    assert all(kinds[ord(character)] & MARK for character in "\u0301\u093f\u20dd\u3099\uff9e\u0e48")
    assert not any(kinds[ord(character)] & MARK for character in "aगกカ1 ")


def test_the_digest_names_both_files() -> None:
    """The digest that enters the recipe id is the frozen one: another table is another recipe."""
    assert characters.digest().hex() == "8c890437c71cadf9ed4132b6d10e4a28"
