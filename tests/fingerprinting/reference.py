"""The reference: the whole recipe in plain Python, text by text; the compiled path must equal it.

It shares only the frozen tables of characters and of spellings with the product: jieba
cuts here, `unicodedata` normalises, SipHash is written out in Python integers.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import math
import statistics
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import jieba

from stream_dedup.fingerprinting import Languages, characters, spellings
from stream_dedup.fingerprinting.variants import han as variants

WORD_BITS = 0xFFFF_FFFF_FFFF_FFFF


def hamming(a: Any, b: Any) -> int:
    """Return in how many bits two prints of one recipe (their numbers of 64 bits) differ."""
    return sum((int(left) ^ int(right)).bit_count() for left, right in zip(a, b, strict=True))


def simhash_reference(
    hashes: Sequence[int], weights: Sequence[float], width: int
) -> tuple[tuple[float, ...], int]:
    """Return the sums of every bit, most significant first, and the print they give.

    A hash adds its weight to the sums of its 1 bits and takes it from those of its 0 bits; a bit of
    the print is 1 if and only if its sum is greater than zero. No features: all sums and the print
    are 0.
    """
    sums = tuple(
        sum(
            weight if value >> bit & 1 else -weight
            for value, weight in zip(hashes, weights, strict=True)
        )
        for bit in reversed(range(width))
    )
    return sums, sum(
        1 << bit for bit, total in zip(reversed(range(width)), sums, strict=True) if total > 0
    )


@functools.cache  # not at import: every process of a run imports this file
def jieba_itself() -> jieba.Tokenizer:
    """jieba with its own dictionary, without its cache file in the temporary directory."""
    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer


def cut_with_jieba(run: str) -> list[str]:
    return list(jieba_itself().cut(run, HMM=True))


@functools.cache
def _kinds() -> bytes:
    """The character table as bytes, which plain Python reads faster than an array."""
    return characters.table().tobytes()


def kind(character: str) -> int:
    """The kind of a character, without its flags."""
    return _kinds()[ord(character)] & characters.KIND_BITS


def _has(character: str, flag: int) -> bool:
    return bool(_kinds()[ord(character)] & flag)


def _fold(text: str) -> str:
    for chillu, consonant in zip("ൺൻർൽൾൿൔൕൖ", "ണനരലളകമയഴ", strict=True):
        text = text.replace(chillu, consonant + "\N{MALAYALAM SIGN VIRAMA}")
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def normalise(text: str) -> str:
    """The steps of `normalise`, character by character."""
    runs = groupby(raw_form(text), lambda character: _has(character, characters.UNASSIGNED))
    folded = ("".join(run) if is_unassigned else _fold("".join(run)) for is_unassigned, run in runs)
    return " ".join("".join(folded).split())


def fold_han(normalised: str) -> str:
    """Traditional Han turned into simplified, character by character."""
    simplified = _simplified()
    return "".join(simplified.get(character, character) for character in normalised)


@functools.cache
def _simplified() -> dict[str, str]:
    lines = variants._FILE.read_text("utf-8").splitlines()[1:]
    return dict(line.split(" ") for line in lines)


def words(normalised: str) -> list[str]:
    found: list[str] = []
    for run_kind, run_characters in groupby(normalised, kind):
        run = "".join(run_characters)
        if run_kind == characters.WORD:
            found.append(run)
        elif run_kind == characters.HAN:
            found += [
                word
                for start in range(0, len(run), 512)
                for word in cut_with_jieba(run[start : start + 512])
            ]
        elif run_kind == characters.UNSPACED:
            found += [first + second for first, second in pairwise(run)] or [run]
    return found


def spelt_words(normalised: str) -> list[str]:
    """The words of a normalised text after the step `spelling`."""
    spelt = (word.translate(spellings.table()) for word in words(normalised))
    return [word for word in spelt if word]


def sip_hash(data: bytes, key_0: int, key_1: int, rounds: int = 1, final_rounds: int = 3) -> int:
    """SipHash, after the paper's figure."""

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & WORD_BITS

    def sip_rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & WORD_BITS
            v[2] = (v[2] + v[3]) & WORD_BITS
            v[1] = rotate(v[1], 13) ^ v[0]
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[1]) & WORD_BITS
            v[0] = (v[0] + v[3]) & WORD_BITS
            v[1] = rotate(v[1], 17) ^ v[2]
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = rotate(v[2], 32)

    constants = (b"somepseu", b"dorandom", b"lygenera", b"tedbytes")
    keys = (key_0, key_1, key_0, key_1)
    v = [
        int.from_bytes(constant, "big") ^ key for constant, key in zip(constants, keys, strict=True)
    ]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for start in range(0, len(padded), 8):
        block = int.from_bytes(padded[start : start + 8], "little")
        v[3] ^= block
        sip_rounds(rounds)
        v[0] ^= block
    v[2] ^= 0xFF
    sip_rounds(final_rounds)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _mix(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & WORD_BITS
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & WORD_BITS
    return value ^ value >> 33


class Print(NamedTuple):
    """What the recipe computes from one text."""

    print: int
    features: int
    digest: bytes
    empty: bool


def fingerprint(text: str, key: bytes) -> Print:
    """The recipe `words`, 128 bits."""
    made, features = print_of("words", 128, text, key)
    normalised = normalise(text)
    digest_key = hashlib.blake2b(key, person=b"text digest").digest()
    digest = hashlib.blake2b(normalised.encode(), digest_size=16, key=digest_key).digest()
    return Print(made, features, digest, not normalised)


def _secrets(key: bytes, size: int, person: bytes) -> list[int]:
    derived = hashlib.blake2b(key, digest_size=size, person=person).digest()
    return [int.from_bytes(derived[start : start + 8], "little") for start in range(0, size, 8)]


def _hashed_words(normalised: str, key: bytes) -> list[int]:
    key_0, key_1, *_ = _secrets(key, 48, b"simhash secrets")
    return [sip_hash(word.encode(), key_0, key_1) for word in spelt_words(normalised)]


def sketch(text: str, key: bytes) -> bytes:
    """The sketch of a text under the recipes `words` and `shingles`: run by run, bin by bin."""
    hashes = _hashed_words(normalise(text), key)
    *factors, offset = _secrets(key, 32, b"sketch secrets")
    runs = [hashes[start : start + 3] for start in range(max(len(hashes) - 2, 1))] if hashes else []
    first: list[list[int]] = [[] for _ in range(80)]
    second: list[list[int]] = [[] for _ in range(80)]
    for run in runs:
        value = _mix(
            (offset + sum(h * (factor | 1) for h, factor in zip(run, factors, strict=False)))
            & WORD_BITS
        )
        high, low = value >> 32, value & 0xFFFFFFFF
        first[high * 80 >> 32].append(low)
        second[low * 80 >> 32].append(high)
    if not runs:
        return bytes(120)

    def place_in_walk(target: int, source: int) -> bytes:
        return hashlib.blake2b(
            bytes([target, source]), digest_size=8, person=b"sketch walks"
        ).digest()

    def kept(bins: list[list[int]]) -> list[int]:
        full = [other for other in range(80) if bins[other]]
        sources = [
            target if bins[target] else min(full, key=functools.partial(place_in_walk, target))
            for target in range(80)
        ]
        return [min(bins[source]) for source in sources]

    halves = [rank & 0xF for rank in kept(second)]
    pairs = zip(halves[::2], halves[1::2], strict=True)
    return bytes(rank & 0xFF for rank in kept(first)) + bytes(
        low | high << 4 for low, high in pairs
    )


FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def fnv1a(data: bytes) -> int:
    value = FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * FNV_PRIME & WORD_BITS
    return value


def raw_form(text: str) -> str:
    """The form `raw`: surrogates replaced, half-spaces a space, invisible characters gone, runs of
    marks cut."""
    kept: list[str] = []
    marks = 0
    for place, character in enumerate(text):
        neighbours = text[place - 1 : place] + text[place + 1 : place + 2] if place else ""
        if (
            character == "\u200c"
            and len(
                [
                    neighbour
                    for neighbour in neighbours
                    if "\u0600" <= neighbour <= "\u06ff" and kind(neighbour) == characters.WORD
                ]
            )
            == 2
        ):
            kept.append(" ")
            marks = 0
            continue
        now = "\ufffd" if "\ud800" <= character <= "\udfff" else character
        if kind(now) == characters.IGNORED:
            continue
        marks = marks + 1 if _has(now, characters.MARK) else 0
        if marks <= 30:
            kept.append(now)
    return "".join(kept)


def _numbers(key: bytes, person: bytes, count: int) -> list[int]:
    return [
        int.from_bytes(
            hashlib.blake2b(
                number.to_bytes(8, "little"), digest_size=8, key=key, person=person
            ).digest(),
            "little",
        )
        for number in range(count)
    ]


def _log_weight(count: int) -> int:
    return round(256 * (1 + math.log(min(count, 1024))))


def _weighed(preset: str, text: str, key: bytes) -> list[tuple[int, int]]:
    """Hashes of 128 bits and weights of a text under one of the presets of texts."""
    _, _, high, first, second, offset = _secrets(key, 48, b"simhash secrets")
    if preset in {"keywords", "textrank"}:
        found = jieba_keywords(preset, raw_form(text), 22)
        return [(fnv1a(word.encode()), round(weight * 2**24)) for word, weight in found]
    normalised = normalise(text)
    if preset == "chars":
        start, *factors = _numbers(key, b"character grams", 17)
        spelt = normalised.translate(spellings.table())
        grams = (spelt[place : place + 4] for place in range(len(spelt) - 3))
        hashed = [
            _mix(
                (start + sum(ord(c) * (f | 1) for c, f in zip(gram, factors, strict=False)))
                & WORD_BITS
            )
            for gram in grams
        ]
        groups = [(1, hashed)]
    else:

        def joined(before: list[int], after: list[int]) -> list[int]:
            both = zip(before, after, strict=False)
            return [
                _mix((a * (first | 1) + b * (second | 1) + offset) & WORD_BITS) for a, b in both
            ]

        single = _hashed_words(normalised, key)
        pairs = joined(single, single[1:])
        triples = joined(pairs, single[2:])
        groups = [(1, single), (2, pairs)] if preset == "words" else [(1, triples)]
    return [
        (_mix((value + high) & WORD_BITS) << 64 | value, scale * _log_weight(count))
        for scale, values in groups
        for value, count in Counter(values).items()
    ]


def print_of(preset: str, width: int, text: str, key: bytes) -> tuple[int, int]:
    """Print and feature count of a text under a preset of texts, at one width."""
    weighed = _weighed(preset, text, key)
    _, made = simhash_reference(
        [value for value, _ in weighed], [weight for _, weight in weighed], width
    )
    return made, len(weighed)


def jieba_keywords(
    preset: str, text: str, number: int, languages: Languages | None = None
) -> list[tuple[str, float]]:
    """Return the keywords of jieba.analyse, with a user's words and stop words."""
    tfidf, textrank = _analysers() if languages is None else _analysers_for(languages)
    rank = tfidf.extract_tags if preset == "keywords" else textrank.textrank
    found = list(rank(text, topK=number, withWeight=True))
    jieba.finalseg.Force_Split_Words.clear()  # all tokenizers share it
    return found


@functools.cache
def _analysers() -> tuple[Any, Any]:
    import jieba.analyse
    import jieba.posseg

    tfidf, textrank = jieba.analyse.TFIDF(), jieba.analyse.TextRank()
    tfidf.tokenizer = jieba_itself()
    textrank.tokenizer = jieba.posseg.POSTokenizer(jieba_itself())
    return tfidf, textrank


def _analysers_for(languages: Languages) -> tuple[Any, Any]:
    import jieba.posseg

    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = dict(jieba_itself().FREQ), jieba_itself().total
    tokenizer.initialized = True
    for user_word in languages.user_words:
        tokenizer.add_word(user_word.word, user_word.frequency, user_word.tag)
    tfidf, textrank = map(copy.copy, _analysers())  # their tables are read once
    tfidf.tokenizer = tokenizer
    tagger = jieba.posseg.POSTokenizer.__new__(jieba.posseg.POSTokenizer)
    tagger.tokenizer = tokenizer
    tagger.word_tag_tab = dict(
        textrank.tokenizer.word_tag_tab
    )  # jieba adds a user's parts of speech to it
    textrank.tokenizer = tagger
    for analyser in (tfidf, textrank):
        analyser.stop_words = analyser.stop_words | languages.stop_words
    return tfidf, textrank


def plane_print(numbers: list[float], width: int, key: bytes) -> int:
    """The print of a vector by true hyperplanes, dimension by dimension."""
    normal = statistics.NormalDist()
    levels = [round(65536 * normal.inv_cdf((level + 0.5) / 4096)) for level in range(2048, 4096)]
    levels = [-value for value in reversed(levels)] + levels
    derived = hashlib.blake2b(bytes(8), digest_size=16, key=key, person=b"plane secrets").digest()
    offset = int.from_bytes(derived[:8], "little")
    factor = int.from_bytes(derived[8:], "little") | 1
    sums = [0.0] * 128
    for dimension, number in enumerate(numbers):
        state = _mix((dimension * factor + offset) & WORD_BITS)
        for first in range(0, 128, 5):
            state = (state + 0x9E3779B97F4A7C15) & WORD_BITS
            value = _mix(state)
            for plane in range(first, min(first + 5, 128)):
                sums[plane] += number * levels[value & 4095]
                value >>= 12
    return sum(1 << bit for bit in range(width) if sums[bit] > 0)
