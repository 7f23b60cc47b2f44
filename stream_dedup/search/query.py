"""Parse the text of a search into the pairs of neighbouring words that are searched for. Pure.

The share of a document is the part of the query's distinct pairs that are neighbours in the document
too; for a query of one word, whether the document has that word. So a word that was changed or left
out costs two pairs, and a document with all words in another order has a share of 0.

Words are split as for fingerprints, so that scripts without spaces can be searched too. There are no
operators: their signs only separate words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stream_dedup.domain.errors import InputError
from stream_dedup.fingerprinting import Languages

QUERY_BYTES_MAX: Final = 1_000_000
WORDS_MAX: Final = 250
LEAST: Final = 0.5
"""The share that a listed document has at least."""
LEAST_OF_SHORT: Final = 0.4
"""The same for a query of up to `SHORT_PAIRS` pairs: a changed word of kana, whose words overlap,
costs four of them."""
SHORT_PAIRS: Final = 10
_WORD_CHARACTERS_MAX: Final = 100
_TEXT_CHARACTERS_MAX: Final = 2_000_000

WordPair = tuple[str, ...]
"""Two neighbouring words, or the only word of a query."""


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """The pairs of the first `WORDS_MAX` words of a query; `words`: the number of all its words."""

    pairs: tuple[WordPair, ...]
    words: int

    def needed(self, least: float | None = None) -> int:
        """Return how many of the pairs a document needs for the share `least`; None: the default."""
        if least is None:
            least = LEAST_OF_SHORT if len(self.pairs) <= SHORT_PAIRS else LEAST
        return max(1, math.ceil(least * len(self.pairs) - 1e-9))


def words_of(text: str, languages: Languages) -> list[str]:
    """Return the words of the first `_TEXT_CHARACTERS_MAX` characters of a text, long words cut."""
    return [word[:_WORD_CHARACTERS_MAX] for word in languages.words(text[:_TEXT_CHARACTERS_MAX])]


def pairs_of(words: Sequence[str]) -> tuple[WordPair, ...]:
    """Return the distinct pairs of neighbours in their order; of a single word, that word."""
    if len(words) == 1:
        return ((words[0],),)
    return tuple(dict.fromkeys(itertools.pairwise(words)))


def parse_query(text: str, languages: Languages) -> SearchQuery:
    """Return the query of a text.

    Raises:
        InputError: the text has no word, or more than `QUERY_BYTES_MAX` bytes.
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    if size > QUERY_BYTES_MAX:
        raise InputError(
            f"The search text has {size:,} bytes; the limit is {QUERY_BYTES_MAX:,}. A sentence or "
            "two is enough. To find documents near a whole document, use: stream-dedup similar"
        )
    words = words_of(text, languages)
    if not words:
        raise InputError("The search text has no word; it needs letters or digits of any script.")
    return SearchQuery(pairs_of(words[:WORDS_MAX]), len(words))
