"""The page by which another program makes prints and sketches: its listing runs, and makes what
this program makes."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.domain.sketch import similarity
from stream_dedup.fingerprinting import PUBLIC_DEMO_KEY, Fingerprinter, Recipe, number_of
from tests.fingerprinting import golden, reference

ROOT = Path(__file__).parents[2]
LISTING = ROOT / "examples" / "fingerprint_format.py"
PAGE = (ROOT / "docs" / "reference" / "prints.md").read_text("utf-8")
NAMES = (
    "one letter",
    "two words",
    "english",
    "turkish",
    "thai",
    "chinese simplified",
    "every sentence thrice",
    "empty",
)


@pytest.fixture(scope="module")
def listing() -> dict[str, Any]:
    """Return what the page's listing defines."""
    assert f'--8<-- "{LISTING.relative_to(ROOT)}"' in PAGE
    return runpy.run_path(str(LISTING))


@pytest.mark.parametrize("key_name", sorted(golden.KEYS))
def test_the_listing_makes_the_prints_of_the_product(
    listing: dict[str, Any], key_name: str
) -> None:
    key, texts = golden.KEYS[key_name], [golden.TEXTS[name] for name in NAMES]
    made = Fingerprinter(Recipe(key=key)).fingerprint(texts)
    for row, text in enumerate(texts):
        normalised = reference.normalise(text)
        words = reference.spelt_words(normalised)
        found = listing["print_of"](words, key)
        assert found == (number_of(made.prints[row]), int(made.features[row]))
        assert listing["digest_of"](normalised, key) == made.digests[row].tobytes()
        assert listing["sketch_of"](words, key) == made.sketches[row].tobytes()
    first, other = (made.sketches[row].tobytes() for row in (2, 6))
    assert listing["similarity_of"](first, first) == 1
    assert max(0, listing["similarity_of"](first, other)) == similarity(first, other)


def test_the_values_of_the_page_are_those_of_its_words() -> None:
    (text,) = re.findall(r"of the words `(.*?)`", PAGE)
    made = Fingerprinter(Recipe(key=PUBLIC_DEMO_KEY)).fingerprint([text])

    for value in (
        f"{number_of(made.prints[0]):032x}",
        made.digests[0].tobytes().hex(),
        made.sketches[0].tobytes().hex(),
    ):
        assert f"`{value}`" in PAGE
