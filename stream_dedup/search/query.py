"""Parse the text of a search into pairs of neighbouring words. Pure.

The share of a document is the part of the query's distinct pairs that the document contains; for a
query of one word, 1 if the document contains the word. A changed or missing word costs two pairs. A
document that contains all words in another order has a share of 0.

Text is split into words as for fingerprints, so that scripts without spaces can be searched too.
There are no operators: punctuation only separates words.
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
MIN_SHARE: Final = 0.5
"""Documents with a lower share are not listed."""
MIN_SHARE_OF_SHORT: Final = 0.4
"""The minimum share for a query of up to `SHORT_PAIRS` pairs. It is lower because words of kana
overlap, so that one changed word costs four pairs."""
SHORT_PAIRS: Final = 10
_WORD_CHARACTERS_MAX: Final = 100
_TEXT_CHARACTERS_MAX: Final = 2_000_000

WordPair = tuple[str, ...]
"""Two neighbouring words, or the only word of a query."""


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """The pairs of the first `WORDS_MAX` words of a query. `words`: the number of all its words."""

    pairs: tuple[WordPair, ...]
    words: int

    def needed_pairs(self, min_share: float | None = None) -> int:
        """Return how many of the pairs a document needs to reach `min_share`, or (None) the default."""
        if min_share is None:
            min_share = MIN_SHARE_OF_SHORT if len(self.pairs) <= SHORT_PAIRS else MIN_SHARE
        return max(1, math.ceil(min_share * len(self.pairs) - 1e-9))


def words_of(text: str, languages: Languages) -> list[str]:
    """Return the words of the first `_TEXT_CHARACTERS_MAX` characters of a text; shorten long words."""
    return [word[:_WORD_CHARACTERS_MAX] for word in languages.words(text[:_TEXT_CHARACTERS_MAX])]


def pairs_of(words: Sequence[str]) -> tuple[WordPair, ...]:
    """Return the distinct pairs of neighbouring words in their order; for a single word, that word."""
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
