"""A clue: which pairs of neighbouring words are looked for. Pure.

A document's share of a clue is the share of the clue's different pairs of neighbouring words that
stand side by side in the document too; of a clue of one word, whether it has the word. So a word
changed or left out costs two pairs, and a document that has all of the words but none of the
sentences holds nothing.

Words are those that fingerprints are made of, so that scripts without spaces are found as others
are; what is an operator elsewhere only separates words here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stream_dedup.domain.errors import InputError
from stream_dedup.fingerprinting import Languages

CLUE_BYTES_MAX: Final = 1_000_000
WORDS_MAX: Final = 250
LEAST: Final = 0.5
"""Which share of a clue a document must hold to be listed."""
LEAST_OF_SHORT: Final = 0.4
"""The same of a clue of up to `SHORT_PAIRS` pairs: a changed word of kana, whose words overlap,
costs four of them."""
SHORT_PAIRS: Final = 10
_WORD_CHARACTERS_MAX: Final = 100
_TEXT_CHARACTERS_MAX: Final = 2_000_000

WordPair = tuple[str, ...]
"""Two neighbouring words, or the only word of a clue."""


@dataclass(frozen=True, slots=True)
class Clue:
    """What is looked for. `words`: how many the clue has, of which the first `WORDS_MAX` count."""

    pairs: tuple[WordPair, ...]
    words: int

    def needed(self, least: float | None = None) -> int:
        """How many of its pairs a document must hold; None: as many as is usual for its length."""
        if least is None:
            least = LEAST_OF_SHORT if len(self.pairs) <= SHORT_PAIRS else LEAST
        return max(1, math.ceil(least * len(self.pairs) - 1e-9))


def words_of(text: str, languages: Languages) -> list[str]:
    """Return the words of a text as they are looked for: long ones cut, and of an endless text the
    beginning.
    """
    return [word[:_WORD_CHARACTERS_MAX] for word in languages.words(text[:_TEXT_CHARACTERS_MAX])]


def pairs_of(words: Sequence[str]) -> tuple[WordPair, ...]:
    """Return the different pairs of neighbours, in their order; the word, where there is but
    one.
    """
    if len(words) == 1:
        return ((words[0],),)
    return tuple(dict.fromkeys(itertools.pairwise(words)))


def clue_of(text: str, languages: Languages) -> Clue:
    """Return what is looked for.

    Raises:
        InputError: there is nothing to look for, or far too much.
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    if size > CLUE_BYTES_MAX:
        raise InputError(
            f"The clue has {size:,} bytes, and at most {CLUE_BYTES_MAX:,} are taken; a sentence or "
            "two is enough. Whole "
            "documents that are near another are found by: stream-dedup similar"
        )
    words = words_of(text, languages)
    if not words:
        raise InputError(
            "The clue has no word: letters or digits of any script are looked for, and signs only "
            "separate them."
        )
    return Clue(pairs_of(words[:WORDS_MAX]), len(words))
