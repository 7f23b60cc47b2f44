"""The true near-duplicates by the exact Jaccard of every pair of pages.

Invariants: nothing here is sampled or hashed into sketches, and nothing is shared with the recipe under test (no import of
`stream_dedup.fingerprinting` or `stream_dedup.index`); the measure is symmetric, and 1 for a page with itself.

Definitions
    word        a run of letters, marks and numbers of the NFKC, lower-case text, as the recipe splits texts; joiners are removed
    shingles    word 3-grams; in languages without spaces, 5-grams of the characters of words
    bare text   the NFKC, lower-case text without punctuation and white space
    resemblance of two pages: 1 if their bare texts are equal, else the Jaccard of their shingles (Broder 1997). A text too
                short for one shingle thus resembles only a text with an equal bare text.
    verdict     `exact` (equal bare texts), `duplicate` (resemblance >= 0.8), `grey` (0.5 to 0.8: neither), `different`; for two
                pages of one site with different titles, up to 0.97 is `grey` as well
    judged      pages with at least one letter or digit; broken and empty pages are never duplicates and are skipped
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

from stream_dedup.demo.score import (
    DUPLICATE_FROM,
    GREY_FROM,
    Pair,
    ScoredPage,
    TrueVerdict,
    is_judged,
)

DUPLICATE_OF_OTHER_TITLE_FROM = 0.97
LISTED_FROM = 0.3
WORDS = 3
CHARACTERS = 5
BY_CHARACTERS = ("zh", "zh-Hant", "ja", "th")


class _Separated(dict[int, str]):
    """A character map for word splitting: each character becomes itself, nothing, or a space."""

    def __missing__(self, code_point: int) -> str:
        """Look a character up when it is first seen."""
        character = chr(code_point)
        category = unicodedata.category(character)
        is_word = category[0] in "LMN" and character not in "\u02bb\u02bc"
        self[code_point] = character if is_word else "" if category == "Cf" else " "
        return self[code_point]


_SEPARATED = _Separated()


def words(text: str) -> list[str]:
    """Return the words of a text, in its order."""
    return unicodedata.normalize("NFKC", text).lower().translate(_SEPARATED).split()


def bare_text(text: str) -> str:
    """Return the text without case, punctuation, white space and control characters."""
    folded = unicodedata.normalize("NFKC", text).lower()
    return "".join(
        character for character in folded if unicodedata.category(character)[0] not in "PZC"
    )


def shingles(text: str, language: str) -> frozenset[str]:
    """Return the word 3-grams of a text, or character 5-grams for languages without spaces; empty if
    the text is too short.
    """
    word_list = words(text)
    if language in BY_CHARACTERS:
        run = "".join(word_list)
        return frozenset(
            run[start : start + CHARACTERS] for start in range(len(run) - CHARACTERS + 1)
        )
    return frozenset(
        " ".join(word_list[start : start + WORDS]) for start in range(len(word_list) - WORDS + 1)
    )


def jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """Return |A and B| / |A or B|; 0 if both are empty."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared) if shared else 0.0


def find_pairs(pages: Sequence[ScoredPage], named: Sequence[tuple[str, str]] = ()) -> list[Pair]:
    """Return all pairs with a Jaccard of at least `LISTED_FROM` or equal bare texts, by later page,
    then earlier page.

    `named` are the (site, title) of each page, "" if unknown; it may be empty.
    """
    containing: defaultdict[str, list[int]] = defaultdict(list)
    same_text: defaultdict[str, list[int]] = defaultdict(list)
    sizes: list[int] = []
    listed: list[Pair] = []
    for later, page in enumerate(pages):
        features = shingles(page.text, page.language) if is_judged(page) else frozenset()
        sizes.append(len(features))
        shared: Counter[int] = Counter()
        for shingle in features:
            earlier_pages = containing[shingle]
            shared.update(earlier_pages)
            earlier_pages.append(later)
        equal = same_text[bare_text(page.text)] if is_judged(page) else []
        for earlier in sorted({*shared, *equal}):
            value = shared[earlier] / (sizes[earlier] + sizes[later] - shared[earlier] or 1)
            if earlier in equal:
                listed.append(Pair(earlier, later, value, "exact"))
            elif value >= LISTED_FROM:
                has_other_title = bool(named) and _has_other_title(named[earlier], named[later])
                listed.append(Pair(earlier, later, value, _true_verdict(value, has_other_title)))
        if is_judged(page):
            equal.append(later)
    return listed


def _has_other_title(left: tuple[str, str], right: tuple[str, str]) -> bool:
    return all((*left, *right)) and left[0] == right[0] and left[1] != right[1]


def _true_verdict(value: float, has_other_title: bool) -> TrueVerdict:
    if value >= (DUPLICATE_OF_OTHER_TITLE_FROM if has_other_title else DUPLICATE_FROM):
        return "duplicate"
    return "grey" if value >= GREY_FROM else "different"
