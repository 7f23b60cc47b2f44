"""Sketches: frozen, equal to plain Python, about the Jaccard similarity, linear, and only of
recipes of words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stream_dedup.domain.sketch import SKETCH_BYTES, SKETCH_VALUES, similarity
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.fingerprinting.sketch import walks
from tests.fingerprinting import golden, reference
from tests.fingerprinting.texts import dice

FILE = Path(__file__).parent.parent / "golden" / "sketches.json"


def sketches(texts: list[str], recipe: Recipe | None = None) -> list[bytes]:
    return [row.tobytes() for row in Fingerprinter(recipe or Recipe()).fingerprint(texts).sketches]


def frozen() -> dict[str, dict[str, str]]:
    """The golden file's rows, from plain Python alone: by key, then by text."""
    return {
        key_name: {name: reference.sketch(text, key).hex() for name, text in golden.TEXTS.items()}
        for key_name, key in golden.KEYS.items()
    }


@pytest.mark.parametrize("key_name", sorted(golden.KEYS))
def test_sketches_equal_the_frozen_sketches(key_name: str) -> None:
    rows = json.loads(FILE.read_text("ascii"))[key_name]

    made = sketches([golden.TEXTS[name] for name in rows], Recipe(key=golden.KEYS[key_name]))

    assert {name: sketch.hex() for name, sketch in zip(rows, made, strict=True)} == rows


def test_texts_of_few_words() -> None:
    """One or two words are one run, which fills every bin; no word at all is a sketch of zeros."""
    one_word, two, three, none, empty = sketches(["spam", "spam eggs", "spam eggs ham", "?!", ""])

    for made in (one_word, two, three):
        halves = {half for byte in made[SKETCH_VALUES:] for half in (byte & 15, byte >> 4)}
        assert len(set(made[:SKETCH_VALUES])) == len(halves) == 1
    assert none == empty == bytes(SKETCH_BYTES)
    assert sketches(["Eggs"]) != sketches(["spam"])


def test_the_similarity_is_that_of_jaccard() -> None:
    """Over many pairs, of short texts too, the error is that of 160 samples: unbiased, and with
    their deviation."""
    chance = dice()
    errors = []
    for _ in range(300):
        words = [f"w{chance.randrange(10**6)}" for _ in range(chance.choice([30, 60, 170, 600]))]
        other = list(words)
        for place in chance.sample(range(len(words)), chance.randrange(len(words) // 5)):
            other[place] = f"v{place}"
        triples, others = ({tuple(w[i : i + 3]) for i in range(len(w) - 2)} for w in (words, other))
        jaccard = len(triples & others) / len(triples | others)
        first, second = sketches([" ".join(words), " ".join(other)])
        errors.append(similarity(first, second) - jaccard)
    assert abs(np.mean(errors)) < 0.015
    assert np.std(errors) < 0.05  # of the first part alone it is some .055


def test_which_recipes_make_sketches() -> None:
    """Recipes of words do, under an id that says so; those of characters, of keywords and of
    vectors do not."""
    found = [Recipe(name).sketch_bytes for name in ("words", "words:64", "shingles")]
    assert found == [120, 120, 120]
    found = [Recipe(name).sketch_bytes for name in ("chars", "keywords", "textrank", "vector")]
    assert found == [0, 0, 0, 0]
    assert Fingerprinter(Recipe("chars")).fingerprint(["some text"]).sketches.shape == (1, 0)
    found = sketches(["some longer text of words"])
    assert found == sketches(["some longer text of words"], Recipe("shingles"))


def test_every_walk_goes_through_every_bin() -> None:
    """Each empty bin finds a full bin, even if only one is full."""
    found = [sorted(walk) for walk in walks().tolist()]
    assert found == [list(range(SKETCH_VALUES))] * SKETCH_VALUES


if __name__ == "__main__":
    FILE.write_text(json.dumps(frozen(), indent=1) + "\n", "ascii")
