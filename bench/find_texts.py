"""Generate texts to search in, for `bench find`.

The cost of a search depends on how many texts contain the same words and the same pairs of
neighbours. So words are drawn by the law of Zipf and Mandelbrot, as in real texts, and every second
word is one of eight that follow the word before it, as `of` follows `because`. Chinese words are
those of jieba's dictionary; English words are generated from syllables, Japanese words from
characters. (Articles of `prose` are not suitable: each contains a few of the same sentences, so
thousands of texts would contain a clue.)

Invariants: a text depends only on the seed and its number, so texts need not be stored; no two
texts are copies. A language has `_WORDS` words, and a million real texts have more: a rare word
occurs in more of the generated texts than in real ones, so searching them is rather harder.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting.jieba_data import ENGINE_DIGEST, ENGINE_FILES, engine_folder

LANGUAGES: Final = ("en", "zh", "ja")

_WORDS: Final = 300_000
_EXPONENT: Final = 1.07
_SHIFT: Final = 2.7
_FOLLOWING: Final = 8  # of every word so many are its followers, and every second word is one
_BLOCK: Final = 256
_SENTENCE: Final = 12
_SYLLABLES: Final = [first + last for last in "aeiou" for first in "tnrsldmcpbfghvkwjy"]
_ARABIC_SYLLABLES: Final = [
    first + last for last in ("", "ا", "و", "ي") for first in "بتثجحخدذرزسشصضطظعغفقكلمنه"
]
_WORDS_BETWEEN: Final = (
    "の は を に が と で も から した する して まで より "
    "には では との です ます ない という について として による された している したが ました "
    "であり であった ながら ように ために だけ など へ や か ので けれど ても ており"
)
_PARTICLES: Final = _WORDS_BETWEEN.split()
_STOPS: Final = {"en": (" ", ". "), "zh": ("", "。"), "ja": ("", "。")}


def generate_texts(seed: int, size_bytes: int, documents: int) -> Iterator[tuple[str, str]]:
    """Yield `documents` pairs of language and text; the languages alternate."""
    sources = [GeneratedTexts(seed, code, size_bytes) for code in LANGUAGES]
    left = documents
    for first in itertools.count(0, _BLOCK):
        blocks = [source.texts(first, _BLOCK) for source in sources]
        for number in range(_BLOCK):
            for code, block in zip(LANGUAGES, blocks, strict=True):
                if not left:
                    return
                left -= 1
                yield code, block[number]


class GeneratedTexts:
    """Texts of random words. `size_bytes`: approximately the mean size; a text has 0.5 to 1.5 times
    that size.
    """

    def __init__(self, seed: int, code: str, size_bytes: int) -> None:
        self._seed = [seed, LANGUAGES.index(code)]
        self._code = code
        self._words = vocabulary(code)
        weights = (np.arange(1, len(self._words) + 1) + _SHIFT) ** -_EXPONENT
        self._law = np.cumsum(weights) / weights.sum()
        self._length = 16
        sample = self.texts(0, _BLOCK)
        self._length = max(
            16, round(16 * size_bytes * _BLOCK / sum(len(text.encode()) for text in sample))
        )

    def texts(self, first: int, count: int) -> list[str]:
        """Return `count` texts from the number `first` on, a multiple of `_BLOCK`."""
        found: list[str] = []
        for block in range(first // _BLOCK, -(-(first + count) // _BLOCK)):
            found += self._make_block(block)
        return found[:count]

    def _make_block(self, block: int) -> list[str]:
        chance = np.random.default_rng([*self._seed, block])
        lengths = chance.integers(
            max(1, self._length // 2), self._length * 3 // 2, _BLOCK, endpoint=True
        )
        longest = int(lengths.max())
        ranks = self._draw_ranks(chance.random((longest, _BLOCK)))
        follows = chance.random((longest, _BLOCK)) < 0.5
        ways = (_FOLLOWING * chance.random((longest, _BLOCK)) ** 2).astype(np.uint64)
        for place in range(1, longest):
            following = self._draw_ranks(
                _random_fractions(
                    ranks[place - 1].astype(np.uint64) * np.uint64(_FOLLOWING) + ways[place]
                )
            )
            ranks[place] = np.where(follows[place], following, ranks[place])
        ends = chance.random((longest, _BLOCK)) < 1 / _SENTENCE
        particles = (len(_PARTICLES) * chance.random((longest, _BLOCK)) ** 3).astype(np.int64)
        return [
            self._join_words(
                *(column[:length, number].tolist() for column in (ranks, ends, particles))
            )
            for number, length in enumerate(lengths.tolist())
        ]

    def _draw_ranks(self, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.minimum(np.searchsorted(self._law, uniform), len(self._words) - 1)

    def _join_words(self, ranks: list[int], ends: list[bool], particles: list[int]) -> str:
        gap, stop = _STOPS[self._code]
        words = self._words
        if self._code == "ja":
            return "".join(
                f"{words[rank]}{_PARTICLES[particle]}{stop if end else ''}"
                for rank, end, particle in zip(ranks, ends, particles, strict=True)
            )
        return "".join(
            f"{words[rank]}{stop if end else gap}" for rank, end in zip(ranks, ends, strict=True)
        ).strip()


def vocabulary(code: str) -> list[str]:
    """Return the words of a language, the most frequent first; no two are equal. Arabic ones are
    made up too.
    """
    if code == "zh":
        dictionary = engine_folder(ENGINE_FILES, ENGINE_DIGEST) / "dict.txt"
        lines = [line.split(" ") for line in dictionary.read_text(encoding="utf-8").splitlines()]
        words = [word for word, *_ in sorted(lines, key=lambda fields: -int(fields[1]))]
        return [
            word for word in words if all("\u4e00" <= character <= "\u9fff" for character in word)
        ][:_WORDS]
    if code == "ja":
        characters = _characters("euc_jp", 0xB0, 0xCF)
        count = len(characters)
        return [
            characters[number // count] + characters[number % count]
            for number in _scattered_numbers(count * count)
        ]
    syllables = _ARABIC_SYLLABLES if code == "ar" else _SYLLABLES
    return ["".join(_digits(number, syllables)) for number in range(_WORDS)]


def _digits(number: int, syllables: Sequence[str]) -> Iterator[str]:
    """Yield the syllables of a number: one for the first words, as many as there are syllables, two
    for their square.
    """
    while number >= len(syllables):
        number, digit = divmod(number, len(syllables))
        number -= 1
        yield syllables[digit]
    yield syllables[number]


def _scattered_numbers(limit: int) -> Iterator[int]:
    """Yield different numbers below a limit that its step has no divisor in common with."""
    step = 1_000_003  # a prime
    return (number * step % limit for number in range(_WORDS))


def _characters(encoding: str, first: int, last: int) -> list[str]:
    """Return the frequent Han of a national standard, which has a block for them."""
    cells = (bytes((row, cell)) for row in range(first, last + 1) for cell in range(0xA1, 0xFF))
    return [character for cell in cells if (character := cell.decode(encoding, "ignore"))]


def _random_fractions(numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return random-looking numbers from 0 to 1 that follow from whole ones."""
    with np.errstate(over="ignore"):
        mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((mixed >> np.uint64(11)) * 2.0**-53)
