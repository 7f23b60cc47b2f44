"""Return the short piece of a text that contains most of a query, with matching words marked. Pure.

Invariants: the work is bounded for every text: only its first `_SEARCHED_CHARACTERS` characters are
searched, and about `_SNIPPET_CHARACTERS` are returned; a snippet is an unchanged part of the text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from stream_dedup.fingerprinting import Languages
from stream_dedup.fingerprinting.normalise import normalise
from stream_dedup.search.query import SearchQuery, pairs_of, words_of

Snippet = tuple[tuple[str, bool], ...]
"""Pieces of a text, each with whether it matches the query."""

_SEARCHED_CHARACTERS: Final = 200_000
_PART_CHARACTERS: Final = 160
_SNIPPET_CHARACTERS: Final = 2 * _PART_CHARACTERS
_CUT: Final = re.compile(r"\s")
# A token is white space, one character of a script without spaces, or a word with its punctuation.
_UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_MATCHES: Final = b"\x01"
_DIFFERS: Final = b"\x02"
_TOKEN: Final = re.compile(rf"\s+|[{_UNSPACED}]|[^\s{_UNSPACED}]{{1,100}}")


def snippet_of(text: str, query: SearchQuery, languages: Languages) -> Snippet:
    """Return the piece of a text that contains most of a query."""
    wanted_pairs = frozenset(query.pairs)
    parts = list(_split(text[:_SEARCHED_CHARACTERS]))
    # Parts are searched in pairs of neighbours, so that matches across a border count.
    best, pairs_max = 0, -1
    for place in range(max(1, len(parts) - 1)):
        words = words_of("".join(parts[place : place + 2]), languages)
        pairs_found = len(
            wanted_pairs.intersection(pairs_of(words))
            if len(query.pairs[0]) > 1
            else wanted_pairs & {(word,) for word in words}
        )
        if pairs_found > pairs_max:
            best, pairs_max = place, pairs_found
    pieces = list(_mark_matches("".join(parts[best : best + 2]), wanted_pairs, languages))
    if best > 0:
        pieces.insert(0, ("… ", False))
    if best + 2 < len(parts) or len(text) > _SEARCHED_CHARACTERS:
        pieces.append((" …", False))
    return tuple(pieces)


def _split(text: str) -> Iterator[str]:
    """Yield parts of about `_PART_CHARACTERS` characters of a text; cut it at white space if possible."""
    start = 0
    while start < len(text):
        space = _CUT.search(text, start + _PART_CHARACTERS, start + 2 * _PART_CHARACTERS)
        end = space.start() if space else start + _PART_CHARACTERS
        yield text[start:end]
        start = end


def _mark_matches(
    text: str, wanted_pairs: frozenset[tuple[str, ...]], languages: Languages
) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a text, each with whether its words are in `wanted_pairs`."""
    tokens = _TOKEN.findall(text)
    folded = [_fold(token, languages.fold_han) for token in tokens]
    data = b"".join(folded)
    spans = languages.spans(data)
    words = [data[start:stop].decode("utf-8", "replace")[:100] for start, stop in spans]
    matching = {place for place, word in enumerate(words) if (word,) in wanted_pairs}
    for place, pair in enumerate(itertools.pairwise(words)):
        if pair in wanted_pairs:
            matching |= {place, place + 1}
    states = bytearray(len(data))
    for place, (start, stop) in enumerate(spans):
        states[start:stop] = (_MATCHES if place in matching else _DIFFERS) * (stop - start)
    begin, pending, was_match = 0, "", False
    for token, folded_token in zip(tokens, folded, strict=True):
        end = begin + len(folded_token)
        is_space = token.isspace()
        # A space between two matching words is marked too.
        checked = states[end : end + 4] if is_space else states[begin:end]
        # 2.5 does not match 1.5, though both contain the word 5.
        is_other_number = not is_space and _DIFFERS in checked and any(map(str.isdigit, token))
        matches = _MATCHES in checked and not is_other_number and (was_match or not is_space)
        if matches != was_match and pending:
            yield pending, was_match
            pending = ""
        pending, was_match, begin = pending + token, matches, end
    if pending:
        yield pending, was_match


@lru_cache(50_000)
def _fold(token: str, fold_han: bool) -> bytes:
    return b" " if token.isspace() else normalise(token, fold_han=fold_han).encode()
