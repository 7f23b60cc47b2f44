"""Words: where each script's words are, and jieba's cut, word for word."""

from __future__ import annotations

import itertools
import random
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import jieba.posseg
import pytest
from jieba.posseg.char_state_tab import P as STATES_OF
from jieba.posseg.viterbi import viterbi

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.fingerprinting import Fingerprinter, Languages, Recipe, characters, jieba_data
from stream_dedup.fingerprinting.variants.keywords import Tags
from tests.fingerprinting import reference
from tests.fingerprinting.cost import seconds
from tests.fingerprinting.texts import dice, strings


def words(text: str) -> list[str]:
    """Return the words of a text as it is, whether or not it is normalised."""
    data = text.encode()
    return [data[start:stop].decode() for start, stop in Languages().spans(data)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("don't stop_here, o'neill: 3.14!", "don t stop here o neill 3 14"),
        ("हिन्दी में स्वतन्त्रता", "हिन्दी में स्वतन्त्रता"),
        ("বাংলা ভাষা தமிழ்", "বাংলা ভাষা தமிழ்"),
        ("한국어 문장", "한국어 문장"),
        ("བོད་སྐད།", "བོད སྐད"),
        ("ひらがな", "ひら らが がな"),
        ("か", "か"),
        ("カタカナとひ", "カタ タカ カナ ナと とひ"),
        ("กขค งจ", "กข ขค งจ"),
        ("ខ្មែរ", "ខ\u17d2 \u17d2ម មែ ែរ"),
        ("python3编程abc", "python3 编程 abc"),
        ("私は学生です", "私 は 学生 です"),
        ("ไทย๑๒๓abc", "ไท ทย ๑๒๓abc"),
        ("々〇\u3400", "々 〇 \u3400"),
        ("a\u0301b\U0001f600c\u200bd", "a\u0301b c d"),
        ("", ""),
        ("... !", ""),
    ],
)
def test_words_by_script(text: str, expected: str) -> None:
    """Letters, marks and numbers are words; Han goes to jieba; unspaced scripts go by overlapping
    pairs."""
    assert words(text) == expected.split()


def han(text: str) -> list[str]:
    """The runs of Han in a text."""
    return ["".join(run) for is_han, run in itertools.groupby(text, _is_han) if is_han]


@cache  # called for millions of characters, of which thousands differ
def _is_han(character: str) -> bool:
    return reference.kind(character) == characters.HAN


def test_han_is_cut_as_jieba_cuts_it() -> None:
    generator = dice()
    known = [
        word
        for word, frequency in reference.jieba_itself().FREQ.items()
        if frequency and han(word) == [word]
    ]
    common = [character for word in generator.sample(known, 3000) for character in word]
    kinds = (
        lambda: "".join(generator.choices(known, k=generator.randrange(1, 9))),
        lambda: "".join(generator.choices(common, k=generator.randrange(1, 30))),
        lambda: "".join(
            chr(generator.randrange(0x4E00, 0xA000)) for _ in range(generator.randrange(1, 30))
        ),
        lambda: "".join(generator.choices([*common[:9], "々", "〇", "\u3400", "\U00020000"], k=12)),
    )
    for _ in range(8000):
        run = generator.choice(kinds)()

        assert words(run) == reference.cut_with_jieba(run)


@pytest.mark.parametrize("run", ["嬿橍絵", "嬿橍絵弻", "中嬿橍絵"])
def test_a_word_of_middle_characters_is_cut_as_by_jieba(run: str) -> None:
    """The model knows the first character in the middle of words alone: its path begins there, and
    so does the word."""
    assert words(run) == reference.cut_with_jieba(run)


def test_long_runs_of_han_are_cut_in_pieces() -> None:
    """A run is cut as if it were broken after every so many characters, so no run is too long for
    jieba's method."""
    run = "研究生命起源于" * 200
    pieces = [run[start : start + 512] for start in range(0, len(run), 512)]

    assert words(run) == [word for piece in pieces for word in reference.cut_with_jieba(piece)]
    assert "".join(words(run)) == run


def test_a_changed_dictionary_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another dictionary under the same version would make other prints: it is refused, and so is a
    missing one."""
    (tmp_path / "finalseg").mkdir()
    folder = jieba_data.engine_folder(jieba_data.ENGINE_FILES, jieba_data.ENGINE_DIGEST)
    for name in jieba_data.ENGINE_FILES:
        content = (folder / name).read_bytes()
        (tmp_path / name).write_bytes(content + b"\n" if name == "dict.txt" else content)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: spec)

    with pytest.raises(ConfigurationError, match=r"differ from those of jieba-0\.42\.1"):
        jieba_data.dictionary.__wrapped__()
    (tmp_path / "dict.txt").unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        jieba_data.dictionary.__wrapped__()


def test_a_missing_jieba_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the sentence says which version to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    with pytest.raises(ConfigurationError, match=r"install version 0\.42\.1"):
        jieba_data.dictionary.__wrapped__()


def test_words_of_alphabets_equal_the_reference() -> None:
    """Random rows of letters of one and two bytes, separators, and scripts that are cut otherwise:
    against plain Python."""
    pool = [*"абвґії" * 6, *"éßñøłאبج" * 3, *"abc01" * 6, *" " * 12, *",.-«»—·", *"中文ひカกข가ἀ"]
    normalised = [reference.normalise(text) for text in strings(dice(), pool, 24, 20_000)]

    kinds = set((characters.table()[:0x800] & characters.KIND_BITS).tolist())
    assert not kinds & {characters.HAN, characters.UNSPACED}, (
        "what has two bytes is of a word, or between words"
    )
    assert [words(text) for text in normalised] == [reference.words(text) for text in normalised]


def test_words_of_long_ascii_equal_the_reference() -> None:
    """Rows of 64 bytes are looked at together: every ASCII character on either side of their edges,
    and random texts."""
    edges = [
        f"{'ab ' * 21}"[:lead] + f"{before}{chr(byte)}{after}" + " xyz" * 20
        for lead in range(60, 68)
        for byte in range(128)
        for before in ("", "q", " ")
        for after in ("", "q", " ")
    ]
    ascii_only = [chr(byte) for byte in range(128)] + [*"abcdefgz019" * 30, *" " * 60, *",.-" * 9]
    with_others = [*ascii_only * 3, *"éбא中カ"]
    texts = strings(dice(), ascii_only, 400, 2000) + strings(dice(), with_others, 400, 2000)
    normalised = [reference.normalise(text) for text in texts] + edges

    assert [words(text) for text in normalised] == [reference.words(text) for text in normalised]


# Parts of speech by compiled code: equal to jieba's, and fast for characters that its model does
# not know


def random_han(count: int, chance: random.Random) -> str:
    """Random Han characters, of which the model has seen one in three."""
    return "".join(chr(chance.randrange(0x4E00, 0x9FA6)) for _ in range(count))


@pytest.mark.parametrize("known_share", [0.0, 0.5, 0.9, 1.0])
def test_the_path_equals_that_of_jieba(known_share: float) -> None:
    """The states are equal, whether the model knows all, some or none of the characters."""
    chance = dice()
    known = sorted(STATES_OF)
    tags = Tags()
    for _ in range(60):
        run = "".join(
            chance.choice(known) if chance.random() < known_share else random_han(1, chance)
            for _ in range(chance.randrange(1, 14))
        )
        _, expected = viterbi(
            run,
            jieba.posseg.char_state_tab_P,
            jieba.posseg.start_P,
            jieba.posseg.trans_P,
            jieba.posseg.emit_P,
        )

        assert list(tags.path(run)) == list(expected), run


def test_words_and_tags_equal_those_of_jieba() -> None:
    chance = dice()
    tokenizer, tags = jieba.posseg.dt, Tags()
    for _ in range(30):
        run = random_han(chance.randrange(2, 12), chance)

        assert list(tags.words(run)) == [
            (token.word, token.flag) for token in tokenizer._POSTokenizer__cut(run)
        ]


def test_textrank_of_unknown_han_is_not_slow() -> None:
    """It takes a few times as long as other keywords do, of the same text; jieba's own code takes
    some 360 times as long."""
    text = random_han(2000, random.Random(1))
    ranked, by_frequency = Fingerprinter(Recipe("textrank")), Fingerprinter(Recipe("keywords"))

    assert seconds(ranked, text) < 20 * max(seconds(by_frequency, text), 0.005)
