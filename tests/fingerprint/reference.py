"""The whole recipe once more, in plain Python, one text at a time: what the compiled path must equal.

It shares with the product the frozen character table and `simhash_reference` (the method itself, whose worked examples
are tests of their own), and nothing else: jieba and ICU cut here, `unicodedata` normalises, SipHash is written out in Python
integers.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter
from itertools import groupby, pairwise
from typing import NamedTuple

import jieba
from icu4py.breakers import WordBreaker

from stream_dedup.fingerprint import characters, variants
from stream_dedup.fingerprint.simhash import simhash_reference

WORD_BITS = 0xFFFF_FFFF_FFFF_FFFF

_jieba = jieba.Tokenizer()
_jieba.FREQ, _jieba.total = _jieba.gen_pfdict(_jieba.get_dict_file())  # without its cache file in the temporary directory
_jieba.initialized = True


def cut_with_jieba(run: str) -> list[str]:
    """Cut a run of Han with jieba itself."""
    return list(_jieba.cut(run, HMM=True))


def kind(character: str) -> int:
    """The kind of a character, without its flags."""
    return int(characters.table()[ord(character)]) & characters.KIND_BITS


def _has(character: str, flag: int) -> bool:
    return bool(int(characters.table()[ord(character)]) & flag)


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def normalise(text: str) -> str:
    """The steps of `normalise`, character by character."""
    kept: list[str] = []
    marks = 0
    for character in text:
        now = "\ufffd" if "\ud800" <= character <= "\udfff" else character
        if kind(now) == characters.IGNORED:
            continue
        marks = marks + 1 if _has(now, characters.MARK) else 0
        if marks <= 30:
            kept.append(now)
    folded: list[str] = []
    part: list[str] = []
    for character in kept:
        if _has(character, characters.UNASSIGNED):
            folded += [_fold("".join(part)), character]
            part = []
        else:
            part.append(character)
    folded.append(_fold("".join(part)))
    return " ".join("".join(folded).split())


def fold_han(normalised: str) -> str:
    """Traditional Han turned into simplified, character by character."""
    lines = variants._FILE.read_text("utf-8").splitlines()[1:]
    simplified = dict(line.split(" ") for line in lines)
    return "".join(simplified.get(character, character) for character in normalised)


ICU_SCRIPTS = re.compile("[\u0e00-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff]")


def words_with_icu(normalised: str) -> list[str]:
    """The words of a normalised text where ICU cuts runs of Han and of the scripts that it has dictionaries for."""

    def by_icu(character: str) -> bool:
        return kind(character) == characters.HAN or (
            kind(character) == characters.UNSPACED and ICU_SCRIPTS.match(character) is not None
        )

    found: list[str] = []
    for ours, run in groupby(normalised, by_icu):
        text = "".join(run)
        if not ours or all(kind(character) == characters.HAN for character in text):
            found += words(text)
            continue
        for start in range(0, len(text), 512):
            found += list(WordBreaker(text[start : start + 512], "root"))
    return found


def words(normalised: str) -> list[str]:
    """The words of a normalised text."""
    found: list[str] = []
    place = 0
    while place < len(normalised):
        of = kind(normalised[place])
        stop = place + 1
        while stop < len(normalised) and kind(normalised[stop]) == of:
            stop += 1
        run = normalised[place:stop]
        if of == characters.WORD:
            found.append(run)
        elif of == characters.HAN:
            for start in range(0, len(run), 512):
                found += cut_with_jieba(run[start : start + 512])
        elif of == characters.UNSPACED:
            found += [first + second for first, second in pairwise(run)] or [run]
        place = stop
    return found


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
    v = [int.from_bytes(constant, "big") ^ key for constant, key in zip(constants, keys, strict=True)]
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
    """What the recipe says of one text."""

    print: int
    features: int
    digest: bytes
    empty: bool


def fingerprint(text: str, key: bytes) -> Print:
    """The recipe `words`, 128 bits."""
    derived = hashlib.blake2b(key, digest_size=48, person=b"simhash secrets").digest()
    secrets = [int.from_bytes(derived[start : start + 8], "little") for start in range(0, 48, 8)]
    key_0, key_1, high, first_factor, second_factor, offset = secrets
    first_factor |= 1
    second_factor |= 1

    normalised = normalise(text)
    hashes = [sip_hash(word.encode(), key_0, key_1) for word in words(normalised)]
    weights: Counter[int] = Counter()
    for value, count in Counter(hashes).items():
        weights[value] += round(256 * (1 + math.log(min(count, 1024))))
    bigrams = Counter(
        _mix((first * first_factor + second * second_factor + offset) & WORD_BITS) for first, second in pairwise(hashes)
    )
    for value, count in bigrams.items():
        weights[value] += 2 * round(256 * (1 + math.log(min(count, 1024))))
    wide = [_mix((value + high) & WORD_BITS) << 64 | value for value in weights]
    _, made = simhash_reference(wide, list(weights.values()), 128)

    digest_key = hashlib.blake2b(key, person=b"text digest").digest()
    digest = hashlib.blake2b(normalised.encode(), digest_size=16, key=digest_key).digest()
    return Print(made, len(weights), digest, not normalised)
