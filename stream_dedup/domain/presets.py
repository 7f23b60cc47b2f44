"""Define the methods of recipes: how each preset turns a text into bits.

Invariants: the definition of a method, with its width, is part of the recipe's id; methods of one
name and width are equal.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Final

from stream_dedup.domain.errors import ConfigurationError

# The features of a group are runs of neighbouring words, or of neighbouring characters.
OF_WORDS, OF_CHARACTERS = range(2)
PYPI: Final = "pypi-simhash"


@dataclass(frozen=True, slots=True)
class RecipeMethod:
    """How a recipe computes fingerprints of `width` bits, at most `width_max`.

    `definition`: its five stages without the width (normalise, features, weights, hash and
    projection), as docs/reference/recipes.md describes them. `runs`: for each group of features
    `OF_WORDS` or `OF_CHARACTERS`, the length of a run, and the scale of the weights; empty for
    keywords and vectors. `floor`: the number of distinct features below which fingerprints are not
    compared.
    """

    name: str
    definition: str
    runs: tuple[tuple[int, int, int], ...]
    floor: int
    width: int = 128
    width_max: int = 128

    def __str__(self) -> str:
        return f"{self.definition}:{self.width}"

    @property
    def takes_vectors(self) -> bool:
        """Whether vectors are fingerprinted, not texts."""
        return self.name == "vector"

    @property
    def is_batched(self) -> bool:
        """Whether one call of a kernel fingerprints a batch of texts. Keywords are found in each text
        separately, which takes far longer.
        """
        return bool(self.runs)

    @property
    def is_ranked(self) -> bool:
        """Whether Python code finds the features of each text."""
        return not self.runs and not self.takes_vectors

    @property
    def ranks_words(self) -> bool:
        """Whether the features are keywords, found in words that `tokens` or jieba cut."""
        return self.is_ranked and self.name != PYPI

    @property
    def cuts_words(self) -> bool:
        """Whether the rules of `tokens` cut texts into words, which also make a sketch."""
        return any(kind == OF_WORDS for kind, _, _ in self.runs)


_SPELT: Final = "nfkc case space spelling"
# A floor is the number of features of a short English text. For a method with sketches, it has 8
# words: in six corpora no two different short texts of 8 words or more were near. For other methods
# it has 25: replacing one of them hardly changes the bits. For keywords, the floor is the number of
# keywords to find.
_METHODS: Final = (
    RecipeMethod(
        "words",
        f"{_SPELT} | words bigrams*2 | log | keyed | signs",
        ((OF_WORDS, 1, 1), (OF_WORDS, 2, 2)),
        14,
    ),
    RecipeMethod(
        "chars", f"{_SPELT} | chars:4 | log | keyed | signs", ((OF_CHARACTERS, 4, 1),), 140
    ),
    RecipeMethod(
        "shingles", f"{_SPELT} | shingles:3 | log | keyed | signs", ((OF_WORDS, 3, 1),), 6
    ),
    RecipeMethod("keywords", "raw | keywords:22 | tfidf | fnv1a | signs", (), 22, 64, 64),
    RecipeMethod("textrank", "raw | textrank:22 | rank | fnv1a | signs", (), 22, 64, 64),
    RecipeMethod(PYPI, "raw | letters chars:4 | count | md5 | signs", (), 140, 64, 64),
    RecipeMethod("vector", "raw | vector | value | none | planes", (), 1),
)
KEYWORDS: Final = 22
DEFAULT: Final = "words"
PRESETS: Final = {method.name: method for method in _METHODS}


def parse(text: str) -> RecipeMethod:
    """Return the method of a preset, or of a preset and a width, such as `chars:64`.

    Raises:
        ConfigurationError: there is no such recipe; the message suggests the nearest name.
    """
    name, colon, width = " ".join(text.lower().split()).partition(":")
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? A" if near else "a"
        raise ConfigurationError(
            f"There is no recipe {text.strip()[:60]!r}; {hint} recipe is one of "
            f"{', '.join(PRESETS)}, perhaps with a width: chars:64."
        )
    method = PRESETS[name]
    if not colon:
        return method
    widths = [str(bits) for bits in (32, 64, 128) if bits <= method.width_max]
    if width not in widths:
        raise ConfigurationError(
            f"A fingerprint of the recipe {name} has {', '.join(widths)} bits, not {width[:20]}."
        )
    return replace(method, width=int(width))
