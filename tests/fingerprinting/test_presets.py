"""Every preset at every width: against plain Python, frozen vectors, the same keywords as jieba's,
planes and angles."""

from __future__ import annotations

import json
import math
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from stream_dedup import fingerprint
from stream_dedup.domain.errors import ConfigurationError, InputError
from stream_dedup.domain.presets import PYPI
from stream_dedup.fingerprinting import (
    PRESETS,
    PUBLIC_DEMO_KEY,
    Fingerprinter,
    Languages,
    Recipe,
    explain_features,
    format_prints,
    hashes,
)
from stream_dedup.fingerprinting.jieba_data import UserWord
from tests.fingerprinting import golden, reference
from tests.fingerprinting.texts import OTHER_KEY, TEXTS, dice

FILE = Path(__file__).parent.parent / "golden" / "recipes.json"
WIDTHS = {
    name: (32, 64) if method.width_max == 64 else (32, 64, 128)
    for name, method in PRESETS.items()
    if name != PYPI
}
CHINESE = (
    "近日，中国科学院计算技术研究所的研究人员发布了一种新的网页去重方法。该方法首先对网页正文进行分词，"
    "提取权重最高的关键词，然后计算每个网页的指纹。实验结果表明，这种方法能够在数秒之内处理上百万个网页，"
    "而且准确率明显高于传统方法。研究人员表示，下一步将继续改进算法，并在更多语言的网页上进行测试。"
    * 2
)
VECTORS = {
    "of no numbers": [],
    "zeros": [0.0, 0.0],
    "one number": [1.0],
    "halves": [0.5, -0.5, 0.25],
    "a block and one": [math.sin(place) for place in range(65)],
    "seven hundred": [math.cos(place * place) for place in range(700)],
}


def numbers_of(recipe: Recipe, contents: list[object]) -> list[tuple[int, int]]:
    fingerprinter = Fingerprinter(recipe)
    if recipe.method.takes_vectors:
        prints = fingerprinter.fingerprint_vectors([np.array(vector) for vector in contents])
    else:
        prints = fingerprinter.fingerprint(contents)  # type: ignore[arg-type]
    assert prints.prints.shape == (len(contents), recipe.limbs)
    return [
        (sum(word << 64 * place for place, word in enumerate(row)), count)
        for row, count in zip(prints.prints.tolist(), prints.features.tolist(), strict=True)
    ]


def golden_rows() -> dict[str, dict[str, str]]:
    """The golden file's rows, from plain Python alone: by preset and width, then by text."""
    rows: dict[str, dict[str, str]] = {}
    for preset, widths in WIDTHS.items():
        for width in widths:
            if preset == "vector":
                made = {
                    name: (
                        reference.plane_print(vector, width, PUBLIC_DEMO_KEY),
                        sum(number != 0 for number in vector),
                    )
                    for name, vector in VECTORS.items()
                }
            else:
                made = {
                    name: reference.print_of(preset, width, text, PUBLIC_DEMO_KEY)
                    for name, text in {**golden.TEXTS, "chinese": CHINESE}.items()
                    if len(text) < 2000
                }
            rows[f"{preset}:{width}"] = {
                name: f"{value:0{width // 4}x} {count}" for name, (value, count) in made.items()
            }
    return rows


ROWS: dict[str, dict[str, str]] = json.loads(FILE.read_text("ascii")) if FILE.exists() else {}
IDS = {  # as logs contain them
    "words:32": "words:32:jieba-0.42.1:1ed9dd",
    "words:64": "words:64:jieba-0.42.1:1fb349",
    "words:128": "words:128:jieba-0.42.1:51d2a5",
    "chars:32": "chars:32:unicode-14.0.0:c81bd2",
    "chars:64": "chars:64:unicode-14.0.0:aff253",
    "chars:128": "chars:128:unicode-14.0.0:17c41e",
    "shingles:32": "shingles:32:jieba-0.42.1:797b0c",
    "shingles:64": "shingles:64:jieba-0.42.1:7d3c1b",
    "shingles:128": "shingles:128:jieba-0.42.1:014a64",
    "keywords:32": "keywords:32:jieba-0.42.1:fe934e",
    "keywords:64": "keywords:64:jieba-0.42.1:9646d3",
    "textrank:32": "textrank:32:jieba-0.42.1:17d057",
    "textrank:64": "textrank:64:jieba-0.42.1:6a25c7",
    "vector:32": "vector:32:planes:29e709",
    "vector:64": "vector:64:planes:f81c3c",
    "vector:128": "vector:128:planes:819a6a",
}


@pytest.mark.parametrize(
    "name", [f"{preset}:{width}" for preset, widths in WIDTHS.items() for width in widths]
)
def test_prints_equal_the_frozen_prints(name: str) -> None:
    contents = VECTORS if name.startswith("vector") else {**golden.TEXTS, "chinese": CHINESE}
    recipe = Recipe(name)
    found = numbers_of(recipe, [contents[text] for text in ROWS[name]])

    assert ROWS[name] == {
        text: f"{made:0{recipe.width // 4}x} {count}"
        for text, (made, count) in zip(ROWS[name], found, strict=True)
    }
    assert IDS[name] == recipe.id


@pytest.mark.parametrize("key_name", sorted(golden.KEYS))
def test_the_default_recipe_makes_the_frozen_prints(key_name: str) -> None:
    """Prints, feature counts and digests of sixty texts in every script, under two keys."""
    prints = Fingerprinter(Recipe(key=golden.KEYS[key_name])).fingerprint(
        list(golden.TEXTS.values())
    )
    rows = zip(
        format_prints(prints.prints, 128), prints.features.tolist(), prints.digests, strict=True
    )
    found = [
        f"{written.decode()} {features} {digest.tobytes().hex()}"
        for written, features, digest in rows
    ]

    shown = dict(zip(golden.TEXTS, found, strict=True))
    assert shown == {name: row[key_name] for name, row in golden.ROWS.items()}
    assert Recipe(key=golden.KEYS["other"]).id == "words:128:jieba-0.42.1:f46c49"


def test_the_reference_makes_the_frozen_prints() -> None:
    """A difference shows which of the two has changed."""
    assert json.loads(golden.freeze()) == golden.ROWS


@pytest.mark.parametrize(
    "preset", ["chars", "shingles", "keywords", "textrank"]
)  # `words`: `test_recipe`
@hypothesis.settings(
    max_examples=40, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
@hypothesis.given(texts=st.lists(TEXTS, max_size=4))
def test_every_preset_equals_plain_python(preset: str, texts: list[str]) -> None:
    width = 64 if preset in {"keywords", "textrank"} else 128
    recipe = Recipe(preset, key=OTHER_KEY)

    found = numbers_of(recipe, list(texts))
    assert found == [reference.print_of(preset, width, text, OTHER_KEY) for text in texts]


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(vectors=st.lists(st.lists(st.floats(-1e9, 1e9), max_size=70), max_size=4))
def test_vectors_equal_plain_python(vectors: list[list[float]]) -> None:
    """Vectors of any dimension, zeros and none included, get the print that plain Python makes."""
    recipe = Recipe("vector", key=OTHER_KEY)

    found = [made for made, _ in numbers_of(recipe, list(vectors))]
    assert found == [reference.plane_print(vector, 128, OTHER_KEY) for vector in vectors]


@pytest.mark.parametrize("preset", ["keywords", "textrank"])
def test_keywords_are_those_of_jieba(preset: str) -> None:
    """Words, order and weights are what jieba.analyse returns for the very text."""
    for text in (
        CHINESE,
        "Python3编程, TensorFlow 与 C++ 入门; " + CHINESE,
        golden.TEXTS["everything at once"],
        "",
        "的",
    ):
        expected = reference.jieba_keywords(preset, reference.raw_form(text), 22)
        found = explain_features(Recipe(preset), text)

        assert list(found) == [word for word, _ in expected]
        assert list(found.values()) == pytest.approx([weight for _, weight in expected], abs=2**-24)
    assert len(explain_features(Recipe(preset), CHINESE)) == 22


@pytest.mark.parametrize("preset", ["keywords", "textrank"])
def test_keywords_heed_a_users_words_and_stop_words(preset: str) -> None:
    """What jieba.load_userdict and set_stop_words do to jieba.analyse, the same files do to a
    recipe, and to it alone."""
    text = CHINESE.replace("算法", "去重方法云霄")
    languages = Languages(
        (UserWord("去重方法", 90_000, "n"), UserWord("网页", 0)), frozenset({"研究", "人员"})
    )
    expected = reference.jieba_keywords(preset, reference.raw_form(text), 22, languages)
    found = explain_features(Recipe(preset, languages=languages), text)

    assert "去重方法" in found
    assert not {"研究", "人员"} & set(found)
    assert list(found.items()) == [
        (word, pytest.approx(weight, abs=2**-24)) for word, weight in expected
    ]
    assert list(explain_features(Recipe(preset), text)) == [
        word for word, _ in reference.jieba_keywords(preset, reference.raw_form(text), 22)
    ]
    assert Recipe(preset, languages=languages) != Recipe(preset)


def test_han_is_folded_under_every_kind_of_preset() -> None:
    """Under `same` both spellings of a text have one print and one digest, whatever is left of
    normalising."""
    for written in ("words", "chars", "keywords"):
        fingerprinter = Fingerprinter(Recipe(written, languages=Languages(fold_han=True)))
        made = fingerprinter.fingerprint(["網頁指紋與關鍵詞", "网页指纹与关键词"])

        assert made.prints[0].tolist() == made.prints[1].tolist()
        assert bytes(made.digests[0]) == bytes(made.digests[1])


@pytest.mark.parametrize(
    ("preset", "languages", "what"),
    [
        ("chars", Languages(stop_words=frozenset({"a"})), "stop words"),
        ("chars", Languages((UserWord("研究", 5),)), "a user dictionary"),
        ("vector", Languages(fold_han=True), "Han variants"),
    ],
)
def test_language_options_that_a_recipe_ignores_are_refused(
    preset: str, languages: Languages, what: str
) -> None:
    """A language option without effect is an error."""
    with pytest.raises(ConfigurationError, match=f"does not use {what}"):
        Recipe(preset, languages=languages)


def test_published_vectors() -> None:
    """Keywords are hashed by FNV-1a as RFC 9923 has it."""
    hashed = [hashes.fnv1a(content) for content in (b"", b"a", b"foobar")]

    assert hashed == [0xCBF29CE484222325, 0xAF63DC4C8601EC8C, 0x85944171F73967E8]


@pytest.mark.parametrize("preset", ["chars", "shingles"])
def test_explained_features_are_as_many_as_the_print_counts(preset: str) -> None:
    text = golden.TEXTS["everything at once"] + " spam" * 1500
    ((_, count),) = numbers_of(Recipe(preset), [text])

    assert len(explain_features(Recipe(preset), text)) == count


def test_vectors_differ_in_bits_in_proportion_to_their_angle() -> None:
    """Of two vectors, angle / pi of the bits differ, with the spread of a binomial distribution."""
    generator = np.random.default_rng(dice().getrandbits(32))
    pairs, axes, made = 300, 64, Fingerprinter(Recipe("vector")).fingerprint_vectors
    for angle in (0.2, 0.6, 1.2):
        left, right = generator.normal(size=(2, pairs, axes))
        left /= np.linalg.norm(left, axis=1, keepdims=True)
        right -= (left * right).sum(axis=1, keepdims=True) * left
        right = np.cos(angle) * left + np.sin(angle) * right / np.linalg.norm(
            right, axis=1, keepdims=True
        )
        planes = [
            reference.hamming(a, b)
            for a, b in zip(made(left).prints, made(right).prints, strict=True)
        ]
        expected, spread = 128 * angle / np.pi, np.sqrt(128 * angle / np.pi * (1 - angle / np.pi))

        assert abs(np.mean(planes) - expected) < 5 * spread / np.sqrt(pairs)
        assert np.std(planes) == pytest.approx(spread, rel=0.35)


def test_valid_vectors_are_accepted_and_others_refused() -> None:
    """float32 and float64 agree, a zero has no direction, sign and scale count as they must; what
    is no vector is refused."""
    fingerprinter = Fingerprinter(Recipe("vector"))
    values = np.linspace(-1, 1, 300).astype(np.float32)
    made = fingerprinter.fingerprint_vectors(values.reshape(1, -1))
    wide = fingerprinter.fingerprint_vectors(
        [values.astype(np.float64), values * np.float32(4), -values, np.zeros(3), np.zeros(0)]
    )

    assert made.prints[0].tolist() == wide.prints[0].tolist() == wide.prints[1].tolist()
    assert bytes(made.digests[0]) == bytes(wide.digests[0]) != bytes(wide.digests[1])
    assert reference.hamming(wide.prints[0], wide.prints[2]) == 128
    found = (wide.features.tolist()[3:], wide.empty.tolist())
    assert found == ([0, 0], [False, False, False, False, True])
    for wrong in ([[float("nan")]], [[float("inf"), 1.0]], [[[1.0]]], [["a"]]):
        with pytest.raises(InputError, match=r"[Vv]ector"):
            fingerprinter.fingerprint_vectors(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="expects vectors, but a text"):
        fingerprinter.fingerprint(["text"])
    with pytest.raises(ConfigurationError, match="expects texts, but a vector"):
        Fingerprinter(Recipe()).fingerprint_vectors([[1.0]])  # type: ignore[list-item]


if __name__ == "__main__":  # only with a new `RULES_VERSION`
    FILE.write_text(json.dumps(golden_rows(), indent=1) + "\n", "ascii")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("How are you? I AM fine. blar blar blar blar blar thanks.", "7521c1f341161c7a"),
        ("the cat sat on the mat and looked at me", "b75c2086f13374d4"),
        ("Grüße aus München 2024 und 3.14 mit snake_case", "27129fd2fd1486b0"),
        ("你好世界，今天天气很好", "5ebddd847f5ce94f"),
    ],
)
def test_a_preset_equals_the_package_simhash(text: str, value: str) -> None:
    """The values are those of `Simhash(text)` of simhash 2.1.2."""
    assert fingerprint(text, "pypi-simhash").hex == value
