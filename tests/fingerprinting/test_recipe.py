"""The recipe as a whole: the compiled path against plain Python, identity, batches, threads, the
canary."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from stream_dedup import Index
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.fingerprinting import (
    PUBLIC_DEMO_KEY,
    Fingerprinter,
    Recipe,
    canary,
    characters,
    explain_features,
    jieba_data,
    load_key,
    prints,
    recipe,
    simhash,
)
from tests.fingerprinting import reference
from tests.fingerprinting.texts import OTHER_KEY, TEXTS, dice, rows

ENGLISH = (
    "The filter stands behind a crawler and reads every page it brings in. A page that says nearly "
    "the same as one seen "
    "before is set aside with a note that names the earlier page, and the rest goes on to the "
    "index in the order it came."
)


@pytest.fixture(scope="module")
def fingerprinter() -> Fingerprinter:
    return Fingerprinter(Recipe(key=OTHER_KEY))


@hypothesis.settings(
    max_examples=150,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
@hypothesis.given(texts=st.lists(TEXTS, max_size=6))
def test_compiled_path_equals_plain_python(fingerprinter: Fingerprinter, texts: list[str]) -> None:
    """On random Unicode (surrogates, marks, NULs, all scripts): prints, counts, digests and
    sketches."""
    made = fingerprinter.fingerprint(texts)

    assert rows(made) == [reference.fingerprint(text, OTHER_KEY) for text in texts]
    found = [row.tobytes() for row in made.sketches]
    assert found == [reference.sketch(text, OTHER_KEY) for text in texts]


def test_compiled_path_equals_plain_python_on_running_text(fingerprinter: Fingerprinter) -> None:
    """Texts with hundreds of features, repeated words and counts beyond the greatest weight agree
    as well."""
    generator = dice()
    vocabulary = [
        "".join(generator.choices("abcdeé中国人ひら ", k=generator.randrange(1, 7)))
        for _ in range(60)
    ]
    texts = [" ".join(generator.choices(vocabulary, k=length)) for length in (1, 40, 700, 5000)]
    texts.append("spam " * 3000 + "ham " * 1024)

    found = [reference.fingerprint(text, OTHER_KEY) for text in texts]
    assert found == rows(fingerprinter.fingerprint(texts))


def test_a_print_does_not_depend_on_the_batch(fingerprinter: Fingerprinter) -> None:
    """A text gets the same row alone, doubled, and between any neighbours: no state leaks from text
    to text."""
    texts = [ENGLISH, "中华人民共和国", "成立于一九四九年", "", "ひ", "らがな", *canary.TEXTS]
    alone = [rows(fingerprinter.fingerprint([text]))[0] for text in texts]

    assert alone == rows(fingerprinter.fingerprint(texts))
    assert alone[::-1] == rows(fingerprinter.fingerprint(texts[::-1]))
    assert alone * 2 == rows(fingerprinter.fingerprint(tuple(texts) * 2))


def test_threads_may_share_a_fingerprinter(fingerprinter: Fingerprinter) -> None:
    batches = [
        [ENGLISH[start:], "中华人民共和国成立了" * (start + 1), "ありがとう"] for start in range(40)
    ]
    expected = [rows(fingerprinter.fingerprint(batch)) for batch in batches]

    with ThreadPoolExecutor(4) as pool:
        assert expected == [rows(prints) for prints in pool.map(fingerprinter.fingerprint, batches)]


def test_texts_without_words_have_no_features(fingerprinter: Fingerprinter) -> None:
    """Nothing but white space and invisible characters is empty, with print 0; anything visible is
    not empty."""
    prints = fingerprinter.fingerprint(["", " \t\u2028", "\u200b\ufeff", ".", "\U0001f600", "\0"])

    assert prints.empty.tolist() == [True, True, True, False, False, False]
    assert prints.features.tolist() == [0] * 6
    assert not prints.prints.any()
    assert len({bytes(digest) for digest in prints.digests}) == 4


def test_near_texts_get_near_prints(fingerprinter: Fingerprinter) -> None:
    """One changed word of forty moves few bits; another text is half of the bits away; case and
    spacing move none."""
    near = ENGLISH.replace("crawler", "spider")
    other = " ".join(reversed(ENGLISH.split())).replace("page", "leaf").replace("the", "every")
    prints = fingerprinter.fingerprint(
        [ENGLISH, near, other, "  " + ENGLISH.upper().replace(" ", " \n")]
    )

    assert 0 < reference.hamming(prints.prints[0], prints.prints[1]) <= 18
    assert reference.hamming(prints.prints[0], prints.prints[2]) > 30
    assert reference.hamming(prints.prints[0], prints.prints[3]) == 0
    assert bytes(prints.digests[0]) == bytes(prints.digests[3])
    assert bytes(prints.digests[0]) != bytes(prints.digests[1])


def test_punctuation_is_in_the_digest_and_not_in_the_print(fingerprinter: Fingerprinter) -> None:
    """Texts that differ by punctuation alone have one print and two digests: near, never exact."""
    prints = fingerprinter.fingerprint([ENGLISH, ENGLISH.replace(".", "!")])

    assert reference.hamming(prints.prints[0], prints.prints[1]) == 0
    assert bytes(prints.digests[0]) != bytes(prints.digests[1])


def test_another_key_makes_unrelated_prints() -> None:
    """Prints and digests under two keys have nothing in common, features and emptiness are the
    same."""
    first = Fingerprinter(Recipe(key=OTHER_KEY)).fingerprint([ENGLISH])
    other = Fingerprinter(Recipe(key=OTHER_KEY[::-1])).fingerprint([ENGLISH])

    assert reference.hamming(first.prints[0], other.prints[0]) > 30
    assert bytes(first.digests[0]) != bytes(other.digests[0])
    assert first.features.tolist() == other.features.tolist()


SHORT = (
    "Page not found",
    "404 - the page you are looking for could not be found",
    "Home About Contact Privacy Terms Login",
    "We use cookies to give you the best experience. Accept all",
    "Страница не найдена, вернитесь на главную",
    "Aucun résultat ne correspond à votre recherche",
    "पृष्ठ नहीं मिला",
    "페이지를 찾을 수 없습니다",
    "页面不存在，请返回首页",
    "ページが見つかりませんでした。",
    "ไม่พบหน้านี้",
    "الصفحة غير موجودة",
)


def test_error_pages_and_banners_are_not_copies_of_each_other() -> None:
    """Error pages, cookie banners and bare navigation in any script are kept beside each other; an
    equal one is a copy."""
    index = Index()

    first = index.add_many([(f"a{number}", text) for number, text in enumerate(SHORT)])
    again = index.add_many([(f"b{number}", text) for number, text in enumerate(SHORT)])

    assert not any(answer.is_duplicate for answer in first)
    assert [answer.reason for answer in again] == ["exact"] * len(SHORT)


def test_a_text_below_the_floor_is_compared_for_equality_only() -> None:
    """With a floor above its features a near copy of a text is kept."""
    text = "the council of the town agreed on tuesday to build a new bridge over the river"
    near = f"{text} soon"

    for floor, reason in ((8, "near"), (48, "too-short")):
        index = Index(recipe=Recipe(floor=floor))
        index.add("1", text)

        assert index.add("2", near).reason == reason
        assert index.add("3", text).reason == "exact"


def test_features_are_counted_once_each(fingerprinter: Fingerprinter) -> None:
    prints = fingerprinter.fingerprint(["spam " * 10_000, "one two three one two"])

    assert prints.features.tolist() == [2, 6]


def test_recipe_never_shows_its_key() -> None:
    """Neither the representation nor the id of a recipe holds the key; it knows whether the key is
    the public one."""
    keyed = Recipe(key=b"do-not-show-this-secret")

    assert "do-not-show" not in repr(keyed) + keyed.id
    assert (keyed.uses_demo_key, Recipe(key=PUBLIC_DEMO_KEY).uses_demo_key) == (False, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"preset": "wrods"}, "did you mean 'words'"),
        ({"preset": "xyz"}, "'xyz'; a recipe is one of words, chars"),
        ({"width": 65}, "32, 64, 128 bits, not 65"),
        ({"preset": "keywords:128"}, "32, 64 bits, not 128"),
        ({"preset": "raw | chars:3 | one | md5 | signs:64"}, "A recipe is one of words, chars"),
        ({"floor": -1}, "cannot be -1"),
        ({"key": b"short"}, "contains 5 bytes"),
        ({"key": bytes(16)}, "one byte repeated"),
    ],
)
def test_impossible_recipes_are_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        Recipe(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["kinds", "foldings", "engine", "rules"])
def test_every_change_of_prints_changes_the_id(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Recipe().id
    if part == "engine":
        monkeypatch.setattr(jieba_data, "ENGINE_DIGEST", b"another")
    elif part == "rules":
        monkeypatch.setattr(recipe, "RULES_VERSION", recipe.RULES_VERSION + 1)
    else:
        file = "_FILE" if part == "kinds" else "_FOLDINGS_FILE"
        other = characters._FOLDINGS_FILE if part == "kinds" else characters._FILE
        monkeypatch.setattr(characters, file, other)
        characters.digest.cache_clear()
    try:
        assert before != Recipe().id
    finally:
        monkeypatch.undo()
        characters.digest.cache_clear()


@pytest.mark.parametrize("stage", sorted(canary.FROZEN))
def test_canary_stops_a_changed_library(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that gives other results than those frozen is noticed before the first print, and
    named as the cause."""
    monkeypatch.setitem(canary.FROZEN, stage, "0" * 16)
    recipe._check_canary.cache_clear()
    try:
        preset, _, what = stage.partition(" ")
        recipe_ = Recipe({"planes": "vector"}.get(stage, preset if what == "prints" else "words"))
        with pytest.raises(ConfigurationError, match=f"The {stage} of the canary texts"):
            Fingerprinter(recipe_)
    finally:
        monkeypatch.undo()
        recipe._check_canary.cache_clear()


@pytest.mark.parametrize("count", [1, 2, simhash.COUNT_MAX])
def test_canary_sees_a_changed_weight(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform whose logarithm gives one weight off by one is noticed, even where no canary text
    counts so far."""
    weights = simhash.WEIGHTS.copy()
    weights[count] += 1
    monkeypatch.setattr(simhash, "WEIGHTS", weights)
    weights.setflags(write=False)

    assert recipe.canary_digest("weights") != canary.FROZEN["weights"]


def test_every_kernel_has_one_signature(fingerprinter: Fingerprinter) -> None:
    """However a batch comes about, kernels are called with the same types: compiling twice would
    take seconds."""
    fingerprinter.fingerprint([])
    fingerprinter.fingerprint(["plain"])
    fingerprinter.fingerprint(["i\u0307 \u0301\u0300", "plain"])
    fingerprinter.fingerprint(["\ufdfa" * 100])

    signatures = prints.fingerprint_batch.signatures  # type: ignore[attr-defined]
    assert len(signatures) == 1


def test_explained_features_are_those_of_the_print(fingerprinter: Fingerprinter) -> None:
    """The features shown weigh as in the print, bigrams double, and there are as many as the print
    counts."""
    text = "To be, or not to be: 研究生命"
    shown = explain_features(Recipe(), text)

    assert 1 + np.log(2) == pytest.approx(shown["to"], abs=1 / 256)
    assert 2 * (1 + np.log(2)) == pytest.approx(shown["to be"], abs=1 / 128)
    assert (shown["or"], shown["or not"]) == (1.0, 2.0)
    assert {"研究", "生命", "be 研究", "研究 生命"} <= shown.keys()
    assert len(shown) == fingerprinter.fingerprint([text]).features[0]


def test_fingerprinting_does_not_import_jieba() -> None:
    """jieba's own start (logging, `pkg_resources`, a cache file in the temporary directory) is not
    ours."""
    code = (
        "import sys; from stream_dedup.fingerprinting import Fingerprinter, Recipe;"
        "Fingerprinter(Recipe()).fingerprint(['中华人民共和国']); sys.exit('jieba' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@hypothesis.given(st.binary(min_size=1, max_size=64), st.lists(st.binary(max_size=400), max_size=5))
def test_digests_equal_hashlib(key: bytes, texts: list[bytes]) -> None:
    found = recipe._digest_each(hashlib.blake2b(digest_size=16, key=key), texts)

    assert found.shape == (len(texts), 16)
    shown = [row.tobytes() for row in found]
    assert shown == [hashlib.blake2b(text, digest_size=16, key=key).digest() for text in texts]


# The key file

KEY = bytes(range(1, 33))


def write(folder: Path, content: bytes) -> Path:
    path = folder / "fingerprint.key"
    path.write_bytes(content)
    return path


def test_no_file_means_the_public_key() -> None:
    """Without a key file the demo key serves, and the recipe knows that a warning is due."""
    assert load_key(None) == PUBLIC_DEMO_KEY
    assert Recipe(key=load_key(None)).uses_demo_key


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (KEY.hex().encode(), KEY),
        (KEY.hex().upper().encode() + b"\n", KEY),
        (b"  " + KEY.hex().encode() + b"\r\n", KEY),
        (bytes(range(16)).hex().encode(), bytes(range(16))),
        (bytes(range(64)).hex().encode() + b"\n", bytes(range(64))),
        *(
            (raw, raw)
            for raw in (
                bytes(range(16)),
                bytes(range(64)),
                b"correct horse battery staple\n",
                b"\n" * 8 + b"\t" * 8,
            )
        ),
    ],
)
def test_a_key_is_hexadecimal_digits_or_bytes(tmp_path: Path, content: bytes, key: bytes) -> None:
    """Digits in any case, with or without white space around them; else the bytes as they are, of
    sixteen to sixty-four."""
    assert load_key(write(tmp_path, content)) == key


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "contains 0 bytes"),
        (b"too short", "contains 9 bytes"),
        (b"nearly-a-key", "contains 12 bytes"),
        (b"abc123\n", "contains 7 bytes"),
        (bytes(range(65)), "contains more than 64 bytes"),
        (b"x" * 32, "one byte repeated"),
        (b"00" * 16, "one byte repeated"),
        (b"a1" * 20 + b"a", "odd number of hexadecimal digits"),
        (bytes(range(100)) * 10_000, "contains more than 64 bytes"),
    ],
)
def test_an_invalid_key_is_refused_with_the_remedy(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    """Too short, too long, damaged or no secret at all: a sentence that names the file and how to
    make a key."""
    path = write(tmp_path, content)

    with pytest.raises(ConfigurationError, match=sentence) as caught:
        load_key(path)
    assert str(path) in str(caught.value)
    assert "openssl rand" in str(caught.value)
    assert "nearly" not in str(caught.value)  # the content of a damaged key file is still a secret


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, or a directory in its place, is a configuration error and not a traceback."""
    with pytest.raises(ConfigurationError, match=r"missing\.key cannot be read"):
        load_key(tmp_path / "missing.key")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_key(tmp_path)
