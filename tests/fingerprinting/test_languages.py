"""What a user adds to a recipe: words, stop words, one Han for two; each against jieba or plain
Python."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jieba
import pytest
from hypothesis import strategies as st

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.fingerprinting import (
    Fingerprinter,
    Languages,
    Recipe,
    characters,
    explain_features,
    load_languages,
)
from stream_dedup.fingerprinting.jieba_data import UserWord
from stream_dedup.fingerprinting.normalise import normalise
from stream_dedup.fingerprinting.variants import han as variants
from tables.han import generate
from tests.fingerprinting import reference
from tests.fingerprinting.test_normalise import batch
from tests.fingerprinting.texts import TEXTS

HAN_RUNS = st.text("云计算平台是研究生命起源的创新办李小福大厦杭网易凱特琳", max_size=30)
fewer = hypothesis.settings(
    max_examples=200,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(content: str | bytes) -> Path:
        path = tmp_path / "list.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


def test_languages_change_the_id_of_a_recipe() -> None:
    """Nothing asked for changes nothing, and every request has an id of its own."""
    options = [
        Languages(),
        load_languages(),
        Languages(stop_words=frozenset({"the"})),
        Languages(stop_words=frozenset({"the", "a"})),
        Languages(user_words=(UserWord("云计算", 5),)),
        Languages(user_words=(UserWord("云计算", None),)),
        Languages(fold_han=True),
    ]
    ids = [Recipe(languages=languages).id for languages in options]

    assert ids[:2] == ["words:128:jieba-0.42.1:51d2a5"] * 2
    assert len(set(ids)) == len(ids) - 1


# --- the user's dictionary

USER_DICTIONARY = """\ufeff云计算 5
李小福 2 nr
创新办 3 i
easy_install 3 eng

好用 300
韩玉赏鉴 3 nz
八一双鹿 3 nz
台中
凱特琳 nz
研究生命 100000
云计算 7
计算平台
杭研 0
"""


@pytest.fixture(scope="module")
def with_jieba(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Languages, jieba.Tokenizer]]:
    path = tmp_path_factory.mktemp("dictionary") / "user.txt"
    path.write_text(USER_DICTIONARY, "utf-8")
    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = (
        dict(reference.jieba_itself().FREQ),
        reference.jieba_itself().total,
    )
    tokenizer.initialized = True
    forced = set(jieba.finalseg.Force_Split_Words)
    tokenizer.load_userdict(str(path))
    yield load_languages(path), tokenizer
    jieba.finalseg.Force_Split_Words.clear()
    jieba.finalseg.Force_Split_Words.update(forced)


@pytest.mark.parametrize(
    "run",
    [
        "云计算平台是创新办的李小福",
        "他来到了网易杭研大厦",
        "研究生命起源",
        "台中凱特琳",
        "计算平台好用",
        "韩玉赏鉴八一双鹿",
    ],
)
def test_a_users_words_are_cut_as_jieba_cuts_them(
    with_jieba: tuple[Languages, jieba.Tokenizer], run: str
) -> None:
    """Given, suggested, repeated and zero frequencies (杭研 is none): the words are those of jieba
    with the same list."""
    languages, tokenizer = with_jieba

    assert languages.words(run) == list(tokenizer.cut(run)) != Languages().words(run)


@fewer
@hypothesis.given(run=HAN_RUNS)
def test_random_han_is_cut_as_jieba_cuts_it(
    with_jieba: tuple[Languages, jieba.Tokenizer], run: str
) -> None:
    languages, tokenizer = with_jieba

    assert languages.words(run) == list(tokenizer.cut(run))


def test_many_users_words_fit_the_table(write: Any) -> None:
    """A user dictionary can need a larger table than that of jieba."""
    generator = random.Random(int(os.environ["TEST_SEED"]))
    words = [
        "".join(map(chr, generator.choices(range(0x4E00, 0x9FA5), k=31))) for _ in range(24_000)
    ]  # each prefix has its place
    languages = load_languages(write("".join(f"{word} 1000000\n" for word in words)))

    assert [languages.words(word) for word in words[::200]] == [[word] for word in words[::200]]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("云计算 5\n创新 办 3\n", "Line 2 of the user dictionary .* must be `word"),
        ("云计算 -5\n", "Line 1 of the user dictionary .* must be `word"),
        ("云计算 9999999999999\n", "Line 1 of the user dictionary .* has a frequency above"),
        ("云计算 " + "9" * 5000, "Line 1 of the user dictionary .* must be `word"),
        ("\n\n\u200b 3\n", "Line 3 of the user dictionary .* contains no word"),
        ("云计算\n".encode() + b"\xff\n", "Line 2 of the user dictionary .* is not UTF-8"),
    ],
)
def test_a_bad_line_is_named(write: Any, content: str | bytes, sentence: str) -> None:
    """The sentence has the number of the line, and the exit code is that of a configuration
    error."""
    with pytest.raises(ConfigurationError, match=sentence):
        load_languages(write(content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"The user dictionary .* cannot be read"):
        load_languages(tmp_path / "none")
    with pytest.raises(ConfigurationError, match=r"The list of stop words .* cannot be read"):
        load_languages(None, tmp_path / "none")


# --- stop words


def test_stop_words_are_left_out(write: Any) -> None:
    """They are left out in every script, after normalising; their neighbours become a bigram."""
    stop = load_languages(None, write("# common\nThe\nＯＦ # full width\ndon't\n的\nです\nและ\n\n"))

    assert stop.words("The end of the road: don't go") == ["end", "road", "go"]
    assert stop.words("我的书") == ["我", "书"]
    assert "です" not in stop.words("私は学生です")
    assert "road go" in explain_features(Recipe(languages=stop), "The end of the road: don't go")


def test_a_line_without_words_is_named(write: Any) -> None:
    """Punctuation is never counted, so stopping it is a mistake."""
    with pytest.raises(
        ConfigurationError, match=r"Line 2 of the list of stop words .* contains no letter or digit"
    ):
        load_languages(None, write("the\n...\n"))


@hypothesis.settings(
    fewer, max_examples=15
)  # each set of stop words rebuilds the tables of the dictionary
@hypothesis.given(
    text=TEXTS,
    stopped=st.sets(st.sampled_from(["a", "ab", "1", "ひら", "中", "研究", "กข", "é", "missing"])),
)
def test_stop_words_equal_plain_python(text: str, stopped: set[str]) -> None:
    languages = Languages(stop_words=frozenset(stopped))

    assert languages.words(text) == [
        word for word in reference.words(reference.normalise(text)) if word not in stopped
    ]


# --- Han variants


def test_traditional_and_simplified_are_the_same_if_folded() -> None:
    texts = ["漢語的書寫系統", "汉语的书写系统"]
    folded = Fingerprinter(Recipe(languages=Languages(fold_han=True))).fingerprint(texts)
    distinct = Fingerprinter(Recipe()).fingerprint(texts)

    assert folded.digests[0].tolist() == folded.digests[1].tolist()
    assert folded.prints[0].tolist() == folded.prints[1].tolist()
    assert distinct.digests[0].tolist() != distinct.digests[1].tolist()


def test_a_users_lists_are_folded_too(write: Any) -> None:
    """A list in traditional Han matches text in either."""
    languages = load_languages(None, write("漢語\n"), fold_han=True)

    assert languages.words("汉语 漢語 書") == ["书"]


def test_every_han_character_folds_as_plain_python_folds_it() -> None:
    """All of the table and its results, alone and beside marks, in the compiled path and the
    definition."""
    characters_in = [
        chr(code_point)
        for code_point in {
            *variants.table(),
            *variants.table().values(),
            0xF900,
            0xFA0E,
            0x2F800,
            0x2F00,
        }
    ]
    texts = characters_in + [f"e\u0301{character}\u0301x" for character in characters_in]
    made = batch(texts, fold_han=True)

    assert made == [reference.fold_han(reference.normalise(text)) for text in texts]
    sample = slice(None, None, 50)  # one text at a time costs a call each
    assert made[sample] == [normalise(text, fold_han=True) for text in texts[sample]]
    assert made[sample] == [normalise(text, fold_han=True) for text in made[sample]]


@fewer
@hypothesis.given(
    texts=st.lists(st.one_of(TEXTS, st.text("漢字書寫\uf900\u2f00e\u0301ﾞ", max_size=9)), max_size=4)
)
def test_folding_equals_plain_python(texts: list[str]) -> None:
    found = batch(texts, fold_han=True)
    assert found == [reference.fold_han(reference.normalise(text)) for text in texts]


def test_the_table_folds_han_to_other_han_once() -> None:
    """Every entry folds Han to Han that is not folded again; the digest is frozen."""
    table = variants.table()
    kinds = characters.table()

    assert len(table) > 3000
    assert all(
        int(kinds[code_point]) & characters.KIND_BITS == characters.HAN
        for pair in table.items()
        for code_point in pair
    )
    assert not set(table) & set(table.values())
    found = generate("# a\n乾\t干 乾\n甲\t乙\n乙\t丙\n一\t一\n").splitlines()[1:]
    assert found == ["乙 丙", "乾 干", "甲 丙"]
    assert variants.digest().hex() == "9bcddfd1f2efa2c1e5a52fc141379f6b"


# --- marks stay within their word


MARKED = (
    "हिन्दी में स्वतन्त्रता कि की कु தமிழ் மொழி கொடு "
    "বাংলা ভাষা সংস্কৃতি മലയാളം ഭാഷയില്‍ සිංහල භාෂාව ශ්‍රී "
    "తెలుగు భాష క్ష ಕನ್ನಡ ಭಾಷೆ ગુજરાતી ભાષા ਪੰਜਾਬੀ ਭਾਸ਼ਾ "
    "ଓଡ଼ିଆ ଭାଷା السَّلَامُ عَلَيْكُمْ بِسْمِ ٱللَّٰهِ "
    "שָׁלוֹם עֲלֵיכֶם ދިވެހި ބަސް አማርኛ ቋንቋ"
)


def test_marks_stay_within_their_word() -> None:
    """Vowel signs, viramas and points neither begin nor end a word: the words are what stands
    between spaces."""
    assert Languages().words(MARKED) == normalise(MARKED).split(" ")
