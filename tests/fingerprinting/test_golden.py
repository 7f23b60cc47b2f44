"""Prints that stand in logs: what they are for sixty texts in every script, frozen."""

from __future__ import annotations

import json

import pytest

from stream_dedup.fingerprinting import Fingerprinter, Recipe, format_prints
from tests.fingerprinting import golden

ROWS = json.loads(golden.FILE.read_text("ascii"))


@pytest.mark.parametrize("key_name", sorted(golden.KEYS))
def test_prints_are_those_frozen(key_name: str) -> None:
    prints = Fingerprinter(Recipe(key=golden.KEYS[key_name])).fingerprint([row["text"] for row in ROWS.values()])
    found = {
        name: f"{written.decode()} {features} {digest.tobytes().hex()}"
        for name, written, features, digest in zip(
            ROWS, format_prints(prints.prints, 128), prints.features.tolist(), prints.digests, strict=True
        )
    }

    assert found == {name: row[key_name] for name, row in ROWS.items()}


def test_recipe_ids_are_those_frozen() -> None:
    """The ids that logs carry stay what they are as long as the prints do."""
    assert Recipe().id == "words:128:jieba-0.42.1:a47d34"
    assert Recipe(key=golden.KEYS["other"]).id == "words:128:jieba-0.42.1:6dc88a"


def test_reference_still_makes_them() -> None:
    """The golden file is what plain Python makes of the texts, so a difference tells which of the two changed."""
    assert json.loads(golden.freeze()) == ROWS
