"""Generate an endless crawl for load tests: distinct originals, and copies of known kinds."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence

from bench.mini_crawl import READ_LATER, make_page
from bench.prose import HAN, LANGUAGES, Dice, Writer, language
from stream_dedup.demo.crawl import CrawledPage
from stream_dedup.domain.errors import InputError

SIZE_BYTES_MIN, SIZE_BYTES_MAX = 250, 1_000_000
# A larger page has several sections, because the pool grows with the square of a section's size.
_SECTION_BYTES_MAX = 20_000
# Long texts with the same small vocabulary are closer than unrelated texts: 40 of 128 bits apart at
# 10 kB and 28 at 100 kB, where real English texts are 58 and 52 apart. With this share of unique
# words they are 55 and 52 apart.
_UNIQUE_WORDS_FROM_BYTES = 5000
_UNIQUE_WORDS_PERCENT = 25
_ORIGINALS_MIN = 10**8
_SENTENCES_MIN = 4000


def endless(
    seed: int,
    pages: int | None = None,
    *,
    size_bytes: int = 1000,
    duplicate_share: float = 0.3,
    languages: Sequence[str] = ("en",),
) -> Iterator[CrawledPage]:
    """Yield `pages` pages (None: without end) of about `size_bytes` of UTF-8 text, fast enough to
    load a broker.

    The languages alternate. Originals are guaranteed to be distinct: two of one language share at
    most three sentences, and never more than a third of them, for the first 10^8 originals of a
    language. Pages above 20 kB consist of sections with that property, and share at most a third of
    all sentences. Above 5 kB a quarter of a page's words are unique to it, as in real texts. A copy is
    made of a uniformly chosen earlier original: the same page again (`re-crawl`), the same text at
    another address (`mirror`), or with a sentence added or exchanged (`edit`), with a Jaccard above
    0.8. Pages are computed from their numbers, so no earlier page is stored. A page has at least three
    sentences, so Hindi and Thai pages have at least some 500 bytes.

    Raises:
        InputError: a size below 250 bytes or above 1 MB; a share outside of 0 to 1; an unknown
        language.
    """
    if not SIZE_BYTES_MIN <= size_bytes <= SIZE_BYTES_MAX:
        raise InputError(
            f"There are no endless pages of {size_bytes} bytes; ask for {SIZE_BYTES_MIN} to "
            f"{SIZE_BYTES_MAX}."
        )
    if not 0 <= duplicate_share < 1:
        raise InputError(
            f"A duplicate share of {duplicate_share} leaves no originals; give a number from 0 to "
            "below 1."
        )
    unknown = [code for code in languages if code not in LANGUAGES]
    if unknown or not languages:
        raise InputError(
            f"There are no texts in {', '.join(unknown) or 'no language'}; choose from "
            f"{', '.join(LANGUAGES)}."
        )
    return _endless(seed, pages, size_bytes, duplicate_share, languages)


def _endless(
    seed: int, pages: int | None, size_bytes: int, duplicate_share: float, languages: Sequence[str]
) -> Iterator[CrawledPage]:
    sections = math.ceil(size_bytes / _SECTION_BYTES_MAX)
    pools = [_Pool(seed, code, size_bytes // sections) for code in languages]
    dice = Dice("endless", seed)
    originals = 0
    number = 0
    while pages is None or number < pages:
        copied = originals > 0 and dice.roll() < duplicate_share
        original = dice.below(originals) if copied else originals
        pool = pools[original % len(pools)]
        first = original // len(pools) * sections
        chosen = [
            sentence
            for section in range(first, first + sections)
            for sentence in pool.sentences(section)
        ]
        url = of = f"https://{pool.hosts[original % 3]}/{pool.code}/{original}"
        kind = "original"
        if copied:
            kind = dice.pick(("re-crawl", "mirror", "edit"))
            if kind != "re-crawl":
                url = f"https://{pool.hosts[READ_LATER]}/{pool.code}/{number}"
            if kind == "edit":
                chosen = pool.edited(chosen, dice)
        else:
            originals += 1
        if size_bytes > _UNIQUE_WORDS_FROM_BYTES:
            chosen = pool.with_unique_words(
                chosen, zlib.crc32(f"{seed}:{pool.code}:{original}".encode())
            )
        yield make_page(url, pool.gap.join(chosen), pool.code, kind, of if copied else None, number)
        number += 1


class _Pool:
    """The sentences of the endless pages of one language, and the rule that picks them.

    Every place on a page has a separate set of p sentences, where p is a prime number. The n-th
    original is a polynomial over the integers modulo p, with the digits of (a permutation of) n as
    coefficients; its value at the point of a place selects the sentence. Two polynomials of degree
    d agree in at most d points (the argument behind Reed and Solomon's codes, 1960).
    """

    def __init__(self, seed: int, code: str, size_bytes: int) -> None:
        prose = language(code)
        dice = Dice("pool", seed, code)
        frames = range(len(prose.frames["frame"]))
        size = sum(
            len(prose.render(Writer(dice).sentence("frame", frame)).encode()) for frame in frames
        ) / len(frames)
        places = max(3, round(size_bytes / size))
        self._degree = min(places // 3, 3)
        self._prime = _prime_from(
            max(
                places + 1,
                _SENTENCES_MIN // places,
                round(_ORIGINALS_MIN ** (1 / (self._degree + 1))),
            )
        )
        pool: dict[str, None] = {}
        while len(pool) < places * self._prime:
            pool.update(
                (prose.render(sentence), None)
                for sentence in Writer(dice).article(len(frames)).body
            )
        self.code = code
        self.hosts = [name for (name,) in prose.lists["host"]]
        self.gap = "" if code in HAN else " "
        self._asides = prose.texts["aside"]
        self._letters = sorted(
            {letter for sentence in pool for letter in sentence if letter.isalpha()}
        )
        self._pool = list(pool)[: places * self._prime]
        points = dice.shuffled(range(self._prime))
        self._places = [(place * self._prime, points[place]) for place in range(places)]
        self._numbers = self._prime ** (self._degree + 1)
        self._stride = 1 + self._prime * dice.below(self._numbers // self._prime)
        self._start = dice.below(self._numbers)

    def sentences(self, original: int) -> list[str]:
        """Return the sentences of the n-th original."""
        prime, pool = self._prime, self._pool
        rest = (self._start + original * self._stride) % self._numbers
        coefficients = []
        for _ in range(self._degree + 1):
            rest, coefficient = divmod(rest, prime)
            coefficients.append(coefficient)
        chosen = []
        for first, point in self._places:
            value = 0
            for coefficient in coefficients:
                value = value * point + coefficient
            chosen.append(pool[first + value % prime])
        return chosen

    def edited(self, sentences: list[str], dice: Dice) -> list[str]:
        """Return the sentences with one of them exchanged if there are 16 or more, otherwise with a
        short one added.
        """
        if len(sentences) >= 16:
            place = dice.below(len(sentences))
            return [*sentences[:place], dice.pick(self._pool), *sentences[place + 1 :]]
        place = dice.below(len(sentences)) if len(sentences) >= 6 else len(sentences)
        return [*sentences[:place], dice.pick(self._asides), *sentences[place:]]

    def with_unique_words(self, sentences: list[str], page: int) -> list[str]:
        """Return the sentences with some words replaced by others of the same length. These depend on
        word and page only, so that an edited copy has the same ones. Without spaces, characters are
        replaced.
        """
        letters, count = self._letters, len(self._letters)
        exchanged: dict[str, str] = {}

        def exchange(word: str) -> str:
            new_word = exchanged.get(word)
            if new_word is None:
                new_word, draw = word, zlib.crc32(word.encode(), page)
                if draw % 100 < _UNIQUE_WORDS_PERCENT:
                    draws = (zlib.crc32(b"%d" % place, draw) for place in range(len(word)))
                    new_word = "".join(
                        letters[digit % count] if character.isalpha() else character
                        for character, digit in zip(word, draws, strict=True)
                    )
                exchanged[word] = new_word
            return new_word

        return [
            self.gap.join(map(exchange, sentence.split(self.gap) if self.gap else sentence))
            for sentence in sentences
        ]


def _prime_from(number: int) -> int:
    """Return the smallest prime that is at least `number`."""
    while any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += 1
    return number
