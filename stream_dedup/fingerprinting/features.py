"""Texts -> weighed features that can be read: for every recipe but those that
`prints.fingerprint_batch` does at once.

Invariants: the features of a text follow from the text and the recipe alone, in the order in which
they first occur (of keywords: the greatest weight first); a run of words is spelt with one space
between any two of them; two features of different kinds that are spelt alike are two; weights are
whole numbers of 1 / `WEIGHT_UNIT`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting import characters, jieba_cut, jieba_data, simhash, spellings
from stream_dedup.fingerprinting.grammar import Feature, RecipeMethod
from stream_dedup.fingerprinting.languages import Languages
from stream_dedup.fingerprinting.prints import (
    OF_CHARACTERS,
    OF_WORDS,
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

_WORDS_IN = {"words": 1, "bigrams": 2}


def groups(method: RecipeMethod) -> NDArray[np.int64]:
    """Return the kinds of runs as the kernels take them, (g, 3): made of what, how many of it,
    scale of the weights.
    """
    return np.array([(*_made_of(one), one.scale) for one in method.features], np.int64)


def _made_of(feature: Feature) -> tuple[int, int]:
    return OF_CHARACTERS if feature.name == "chars" else OF_WORDS, _WORDS_IN.get(
        feature.name, feature.length
    )


@allocating_kernel
def _spell(data: Any, cutting: Any, secrets: Any, made_of: Any, length: Any) -> Any:
    """Return the distinct runs of one text: their bytes one after another, where each begins, and
    their counts.

    Words are spelt in `data` itself.
    """
    kinds, written, dictionary, scratch = cutting
    of_words = made_of == OF_WORDS
    most = len(data) // BYTES_PER_WORD_MIN + 1 if of_words else len(data)
    starts = np.empty(most + 1, np.int64)
    stops = np.empty(most + 1, np.int64)
    hashes = np.empty(most, np.uint64)
    chained = np.empty(most, np.uint64)
    start = np.int64(0)  # not 0: numba would compile what is called with a constant for it alone
    if of_words:
        words = words_between(
            data, start, len(data), kinds, written, dictionary, scratch, starts, stops
        )
        hash_words(data, starts, stops, words, secrets.of_words, hashes, chained)
        runs = chain_words(hashes, words, length, secrets.of_words, chained)
    else:
        points = np.empty(len(data), np.uint32)
        found = decode_points(data, start, len(data), points, starts)
        for character in range(found):
            stops[character] = starts[character + 1]
        runs = hash_points(points, found, length, secrets.of_characters, chained)
    size = table_size(runs)
    keys = np.zeros(size, np.uint64)
    counts = np.zeros(size, np.uint32)
    order = np.empty(size, np.uint32)
    firsts = np.empty(size, np.int64)
    distinct = np.int64(0)
    for run in range(runs):
        firsts[distinct] = run
        distinct = count_one(chained[run], keys, counts, order, size - 1, distinct)
    between = np.int64(1) if of_words else np.int64(0)
    total = np.int64(0)
    for feature in range(distinct):
        for part in range(firsts[feature], firsts[feature] + length):
            total += stops[part] - starts[part] + between
    out = np.empty(total, np.uint8)
    bounds = np.zeros(distinct + 1, np.int64)
    counted = np.empty(distinct, np.int64)
    end = np.int64(0)
    for feature in range(distinct):
        for part in range(firsts[feature], firsts[feature] + length):
            if between and part > firsts[feature]:
                out[end] = 0x20
                end += 1
            for place in range(starts[part], stops[part]):
                out[end] = data[place]
                end += 1
        bounds[feature + 1] = end
        counted[feature] = counts[order[feature]]
    return out[:end], bounds, counted


@dataclass(frozen=True, slots=True)
class Spelt:
    """The features of one text: `names` (m,), their UTF-8; `weights` (m,), whole numbers of 1 /
    `unit`.
    """

    names: list[bytes]
    weights: NDArray[np.int64]
    unit: int


class FeatureSpeller:
    """Spells the features of a method, as the languages say, under the key's secrets."""

    def __init__(self, method: RecipeMethod, languages: Languages, secrets: Secrets) -> None:
        self._method = method
        self._languages = languages
        self._secrets = secrets
        self._table, self._beyond = simhash.count_weights(method.weights)

    def spell(self, data: NDArray[np.uint8]) -> Spelt:
        """Return the features of one text, given as the UTF-8 that the method's normalising
        left.
        """
        if self._method.is_ranked:
            return self._keywords(data.tobytes().decode())
        names: list[bytes] = []
        weights = [np.empty(0, np.int64)]
        for feature in self._method.features:
            spelt, counts = self._runs(data, feature)
            names += spelt
            weights.append(self._weigh(spelt, counts) * feature.scale)
        return Spelt(
            names,
            np.concatenate(weights),
            RANK_UNIT if self._method.weights == "tfidf" else WEIGHT_ONE,
        )

    def _runs(
        self, data: NDArray[np.uint8], feature: Feature
    ) -> tuple[list[bytes], NDArray[np.int64]]:
        dictionary = (
            self._languages.dictionary if self._method.cuts_words else jieba_data.dictionary()
        )
        scratch = jieba_cut.scratch(self._languages.marks(data, np.array([0, len(data)], np.int64)))
        spelling = spellings.written(folded="spelling" in self._method.steps)
        cutting, made_of = (
            Cutting(characters.table(), spelling, dictionary, scratch),
            _made_of(feature),
        )
        out, bounds, counts = _spell(data.copy(), cutting, self._secrets, *made_of)
        return list(_pieces(out.tobytes(), bounds.tolist())), counts

    def _weigh(self, names: Sequence[bytes], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._method.weights != "tfidf":
            capped = np.minimum(counts, simhash.COUNT_MAX)
            return self._table[capped] + (counts - capped) * self._beyond
        total = int(counts.sum())
        inverse = keywords.analyser().inverse_document_frequency
        return np.array(
            [
                round(RANK_UNIT * (count * (inverse(name.decode()) / total)))
                for name, count in zip(names, counts.tolist(), strict=True)
            ],
            np.int64,
        )

    def _keywords(self, text: str) -> Spelt:
        (feature,) = self._method.features
        analyser = keywords.analyser(self._languages.user_words, self._languages.stop_words)
        rank = analyser.by_tfidf if feature.name == "keywords" else analyser.by_textrank
        found = rank(text, feature.length)
        names = [word.encode() for word, _ in found]
        if self._method.weights in {"tfidf", "rank"}:
            return Spelt(
                names,
                np.array([round(RANK_UNIT * weight) for _, weight in found], np.int64),
                RANK_UNIT,
            )
        return Spelt(names, np.full(len(names), WEIGHT_ONE, np.int64), WEIGHT_ONE)


def _pieces(content: bytes, bounds: list[int]) -> Iterator[bytes]:
    return (content[start:stop] for start, stop in itertools.pairwise(bounds))
