"""Return readable features of texts with their weights: for explanations, and for keywords, which
`prints.fingerprint_batch` cannot find.

Invariants: the features of a text depend only on the text and the recipe; they are in the order of
their first occurrence (keywords: the greatest weight first); a run of words is spelt with one space
between words; two features of different kinds with the same spelling are distinct; weights are
integers in units of 1 / `WEIGHT_ONE` or 1 / `RANK_UNIT`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting import characters, jieba_cut, jieba_data, simhash, spellings
from stream_dedup.fingerprinting.languages import Languages
from stream_dedup.fingerprinting.presets import KEYWORDS, OF_WORDS, RecipeMethod
from stream_dedup.fingerprinting.prints import (
    Cutting,
    Secrets,
    chain_words,
    count_one,
    decode_points,
    hash_points,
    hash_words,
    table_size,
)
from stream_dedup.fingerprinting.simhash import WEIGHT_ONE
from stream_dedup.fingerprinting.tokens import BYTES_PER_WORD_MIN, words_between
from stream_dedup.fingerprinting.variants import keywords
from stream_dedup.kernels.compiled import allocating_kernel

# TF-IDF weights and ranks are real numbers; counted weights are multiples of 1 / 256 already.
RANK_UNIT: Final = 1 << 24


@allocating_kernel
def _spell(data: Any, cutting: Any, secrets: Any, made_of: Any, length: Any) -> Any:
    """Return the distinct runs of a text: their concatenated bytes, the start of each, and their
    counts.

    Words are spelt in `data` itself.
    """
    kinds, written, dictionary, scratch = cutting
    of_words = made_of == OF_WORDS
    most = len(data) // BYTES_PER_WORD_MIN + 1 if of_words else len(data)
    starts = np.empty(most + 1, np.int64)
    stops = np.empty(most + 1, np.int64)
    hashes = np.empty(most, np.uint64)
    chained = np.empty(most, np.uint64)
    start = np.int64(0)  # not 0: numba would compile the callee a second time for the constant
    if of_words:
        words = words_between(
            data, start, len(data), kinds, written, dictionary, scratch, starts, stops
        )
        hash_words(data, starts, stops, words, secrets.of_words, hashes, chained)
        runs = chain_words(hashes, words, length, secrets.of_words, chained)
    else:
        points = np.empty(len(data), np.uint32)
        point_count = decode_points(data, start, len(data), points, starts)
        for character in range(point_count):
            stops[character] = starts[character + 1]
        runs = hash_points(points, point_count, length, secrets.of_characters, chained)
    size = table_size(runs)
    keys = np.zeros(size, np.uint64)
    counts = np.zeros(size, np.uint32)
    order = np.empty(size, np.uint32)
    firsts = np.empty(size, np.int64)
    distinct = np.int64(0)
    for run in range(runs):
        firsts[distinct] = run
        distinct = count_one(chained[run], keys, counts, order, size - 1, distinct)
    separator_bytes = np.int64(1) if of_words else np.int64(0)
    total = np.int64(0)
    for feature in range(distinct):
        for part in range(firsts[feature], firsts[feature] + length):
            total += stops[part] - starts[part] + separator_bytes
    out = np.empty(total, np.uint8)
    bounds = np.zeros(distinct + 1, np.int64)
    feature_counts = np.empty(distinct, np.int64)
    end = np.int64(0)
    for feature in range(distinct):
        for part in range(firsts[feature], firsts[feature] + length):
            if separator_bytes and part > firsts[feature]:
                out[end] = 0x20
                end += 1
            for place in range(starts[part], stops[part]):
                out[end] = data[place]
                end += 1
        bounds[feature + 1] = end
        feature_counts[feature] = counts[order[feature]]
    return out[:end], bounds, feature_counts


@dataclass(frozen=True, slots=True)
class Spelt:
    """The features of a text: `names` (m,), UTF-8; `weights` (m,), integers in units of 1 /
    `unit`.
    """

    names: list[bytes]
    weights: NDArray[np.int64]
    unit: int


class FeatureSpeller:
    """Spell the features of a method, with a user's languages, under the key's secrets."""

    def __init__(self, method: RecipeMethod, languages: Languages, secrets: Secrets) -> None:
        self._method = method
        self._languages = languages
        self._secrets = secrets

    def spell(self, data: NDArray[np.uint8]) -> Spelt:
        """Return the features of a text, given as UTF-8 in the form of `make_forms`."""
        if self._method.is_ranked:
            return self._keywords(data.tobytes().decode())
        names: list[bytes] = []
        weights: list[NDArray[np.int64]] = []
        for kind, length, scale in self._method.runs:
            names_of_kind, counts = self._runs(data, kind, length)
            names += names_of_kind
            weights.append(simhash.WEIGHTS[np.minimum(counts, simhash.COUNT_MAX)] * scale)
        return Spelt(names, np.concatenate(weights), WEIGHT_ONE)

    def _runs(
        self, data: NDArray[np.uint8], kind: int, length: int
    ) -> tuple[list[bytes], NDArray[np.int64]]:
        dictionary = (
            self._languages.dictionary if self._method.cuts_words else jieba_data.dictionary()
        )
        scratch = jieba_cut.scratch(self._languages.marks(data, np.array([0, len(data)], np.int64)))
        spelling = spellings.written(folded=True)
        cutting = Cutting(characters.table(), spelling, dictionary, scratch)
        out, bounds, counts = _spell(data.copy(), cutting, self._secrets, kind, length)
        return list(_pieces(out.tobytes(), bounds.tolist())), counts

    def _keywords(self, text: str) -> Spelt:
        analyser = keywords.analyser(self._languages.user_words, self._languages.stop_words)
        rank = analyser.by_tfidf if self._method.name == "keywords" else analyser.by_textrank
        ranked_words = rank(text, KEYWORDS)
        return Spelt(
            [word.encode() for word, _ in ranked_words],
            np.array([round(RANK_UNIT * weight) for _, weight in ranked_words], np.int64),
            RANK_UNIT,
        )


def _pieces(content: bytes, bounds: list[int]) -> Iterator[bytes]:
    return (content[start:stop] for start, stop in itertools.pairwise(bounds))
