"""Features -> 128 bits: hashes, weights, sums and signs.

Invariants, all frozen by golden vectors:

- A bit of the print is 1 if and only if its sum is greater than zero: a tie gives 0, and a text without features gives
  the print 0 (such a text is below every floor, so no print of it is ever compared).
- A feature occurring n times weighs `log_count_weight(n)`, an integer: `round(256 * (1 + ln n))`, with n counted up to
  `COUNT_MAX`; a bigram weighs `BIGRAM_WEIGHT` times as much. Sums are exact integers, so a print is equal on every
  platform.
- A word's hash is SipHash-1-3 of its UTF-8 bytes under a key derived from the recipe's key. Whoever does not know the
  key cannot make two words collide, nor steer a print. A bigram's hash mixes the hashes of its two words, in order,
  under further secrets of the same key. The two halves of a print come from two mixes of the same 64-bit hash.

`simhash_reference` is the method itself, for any width, hashes and weights, in plain Python.

Sources: Charikar, "Similarity Estimation Techniques from Rounding Algorithms" (STOC 2002); Manku, Jain, Das Sarma,
"Detecting Near-Duplicates for Web Crawling" (WWW 2007); Aumasson, Bernstein, "SipHash: a fast short-input PRF"
(INDOCRYPT 2012).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dedup.compiled import inlined, kernel
from stream_dedup.fingerprint.tokens import BYTES_PER_WORD_MIN, words_between

WIDTH = 128
WEIGHT_ONE = 256
COUNT_MAX = 1024
BIGRAM_WEIGHT = 2
# So many features of the greatest weight fit into a sum of 32 bits; then it is added to one of 64.
_FEATURES_PER_FLUSH = 1 << 18

SIP_KEY_0, SIP_KEY_1, HIGH_HALF, BIGRAM_FIRST, BIGRAM_SECOND, BIGRAM_OFFSET = range(6)
SECRETS = 6


def log_count_weight(count: int) -> int:
    """Return the weight of a feature that occurs `count` times in a text."""
    return round(WEIGHT_ONE * (1 + math.log(min(count, COUNT_MAX))))


# No value before rounding comes nearer to a half than 1e-4, so the last bit of a platform's logarithm changes nothing.
WEIGHTS: NDArray[np.int32] = np.array([0, *map(log_count_weight, range(1, COUNT_MAX + 1))], np.int32)
WEIGHTS.setflags(write=False)


def simhash_reference(hashes: Sequence[int], weights: Sequence[float], width: int) -> tuple[tuple[float, ...], int]:
    """Return the sums of every bit, most significant first, and the print they give.

    A hash adds its weight to the sums of its 1 bits and takes it from those of its 0 bits; a bit of the print is 1 if
    and only if its sum is greater than zero. No features: all sums and the print are 0.
    """
    sums = tuple(
        sum(weight if value >> bit & 1 else -weight for value, weight in zip(hashes, weights, strict=True))
        for bit in reversed(range(width))
    )
    return sums, sum(1 << bit for bit, total in zip(reversed(range(width)), sums, strict=True) if total > 0)


def derive_secrets(key: bytes) -> NDArray[np.uint64]:
    """Return the numbers that the kernels mix with, (6,): SipHash's key, the high half's, and three for bigrams.

    The two multipliers of bigrams are odd, so that multiplying loses nothing.
    """
    derived = hashlib.blake2b(key, digest_size=8 * SECRETS, person=b"simhash secrets").digest()
    secrets = np.frombuffer(derived, "<u8").astype(np.uint64)
    secrets[BIGRAM_FIRST : BIGRAM_SECOND + 1] |= np.uint64(1)
    return secrets


@inlined
def _rotate(value: Any, bits: Any) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@inlined
def _sip_round(a: Any, b: Any, c: Any, d: Any) -> Any:
    a += b
    b = _rotate(b, 13) ^ a
    a = _rotate(a, 32)
    c += d
    d = _rotate(d, 16) ^ c
    a += d
    d = _rotate(d, 21) ^ a
    c += b
    b = _rotate(b, 17) ^ c
    c = _rotate(c, 32)
    return a, b, c, d


@inlined
def _sip_hash(data: Any, start: Any, stop: Any, key_0: Any, key_1: Any, rounds: Any, final_rounds: Any) -> Any:
    """Return SipHash of `data[start:stop]`: 64 bits."""
    a = key_0 ^ np.uint64(0x736F6D6570736575)
    b = key_1 ^ np.uint64(0x646F72616E646F6D)
    c = key_0 ^ np.uint64(0x6C7967656E657261)
    d = key_1 ^ np.uint64(0x7465646279746573)
    length = stop - start
    place = start
    while stop - place >= 8:
        block = np.uint64(0)
        for byte in range(8):
            block |= np.uint64(data[place + byte]) << np.uint64(8 * byte)
        place += 8
        d ^= block
        for _ in range(rounds):
            a, b, c, d = _sip_round(a, b, c, d)
        a ^= block
    block = np.uint64(length & 0xFF) << np.uint64(56)
    for byte in range(stop - place):
        block |= np.uint64(data[place + byte]) << np.uint64(8 * byte)
    d ^= block
    for _ in range(rounds):
        a, b, c, d = _sip_round(a, b, c, d)
    a ^= block
    c ^= np.uint64(0xFF)
    for _ in range(final_rounds):
        a, b, c, d = _sip_round(a, b, c, d)
    return a ^ b ^ c ^ d


@kernel
def sip_hash(data: Any, key_0: Any, key_1: Any, rounds: Any, final_rounds: Any) -> Any:
    """Return SipHash-rounds-final_rounds of bytes (uint8 array) under a 128-bit key of two halves: 64 bits."""
    return _sip_hash(data, 0, len(data), key_0, key_1, rounds, final_rounds)


@inlined
def _mix(value: Any) -> Any:
    """Spread every bit over all 64: the finalizer of MurmurHash3."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    value ^= value >> np.uint64(33)
    return value


@inlined
def _count(value: Any, keys: Any, counts: Any, order: Any, mask: Any, distinct: Any) -> Any:
    """Count one more of a feature; return the number of distinct features.

    `keys` and `counts` are an open-addressing table; `order` lists the slots in use. Whether a feature is new is never
    branched on: in running text no processor can foresee it. (A hash of 0, one in 2^64, would count as new each time.)
    """
    slot = np.int64(value >> np.uint64(32)) & mask
    while keys[slot] != 0 and keys[slot] != value:
        slot = (slot + 1) & mask
    order[distinct] = slot
    distinct += np.int64(keys[slot] == 0)
    keys[slot] = value
    counts[slot] += np.uint32(1)
    return distinct


@inlined
def _add(keys: Any, counts: Any, order: Any, distinct: Any, scale: Any, weights: Any, high: Any, ones: Any) -> Any:
    """Add the weights of features to the sums of their 1 bits; return the weight of all.

    The loop over 32 bits of each quarter of the hash becomes vector instructions; the sums of 1 bits and the whole
    weight say as much as sums of plus and minus, at half the work.
    """
    lanes = np.zeros(128, np.uint32)
    total = np.int64(0)
    for first in range(0, distinct, _FEATURES_PER_FLUSH):
        for feature in range(first, min(first + _FEATURES_PER_FLUSH, distinct)):
            slot = order[feature]
            low_half = keys[slot]
            high_half = _mix(low_half + high)
            weight = np.uint32(weights[min(counts[slot], COUNT_MAX)] * scale)
            total += np.int64(weight)
            first_quarter = np.uint32(low_half)
            second_quarter = np.uint32(low_half >> np.uint64(32))
            third_quarter = np.uint32(high_half)
            fourth_quarter = np.uint32(high_half >> np.uint64(32))
            for bit in range(32):
                lanes[bit] += weight * ((first_quarter >> np.uint32(bit)) & np.uint32(1))
                lanes[32 + bit] += weight * ((second_quarter >> np.uint32(bit)) & np.uint32(1))
                lanes[64 + bit] += weight * ((third_quarter >> np.uint32(bit)) & np.uint32(1))
                lanes[96 + bit] += weight * ((fourth_quarter >> np.uint32(bit)) & np.uint32(1))
        for lane in range(128):
            ones[lane] += np.int64(lanes[lane])
            lanes[lane] = 0
    return total


@kernel
def fingerprint_batch(
    data: Any,
    offsets: Any,
    kinds: Any,
    dictionary: Any,
    scratch: Any,
    secrets: Any,
    weights: Any,
    prints: Any,
    features: Any,
) -> None:
    """Fingerprint a batch of normalised texts.

    `data`: uint8, the texts' UTF-8 one after another; `offsets`: int64 (n + 1,), where each begins; `kinds`: the
    character table; `dictionary`, `scratch`: for cutting Han. Fills `prints` (n, 2) and `features` (n,), the count of
    distinct words and bigrams. Time is linear in the text; memory is that of its longest text's words.
    """
    longest = np.int64(0)
    for text in range(len(offsets) - 1):
        longest = max(longest, offsets[text + 1] - offsets[text])
    starts = np.empty(longest // BYTES_PER_WORD_MIN + 1, np.int64)
    stops = np.empty(longest // BYTES_PER_WORD_MIN + 1, np.int64)
    keys = np.empty(0, np.uint64)
    counts = np.empty(0, np.uint32)
    order = np.empty(0, np.uint32)
    ones = np.empty(128, np.int64)
    for text in range(len(offsets) - 1):
        words = words_between(data, offsets[text], offsets[text + 1], kinds, dictionary, scratch, starts, stops)
        size = 64
        while size < 2 * words:
            size *= 2
        if size > len(keys):
            keys = np.empty(size, np.uint64)
            counts = np.empty(size, np.uint32)
            order = np.empty(size, np.uint32)
        ones[:] = 0

        keys[:size] = 0
        counts[:size] = 0
        distinct = np.int64(0)
        for word in range(words):
            value = _sip_hash(data, starts[word], stops[word], secrets[SIP_KEY_0], secrets[SIP_KEY_1], 1, 3)
            starts[word] = np.int64(value)  # the place is not needed again
            distinct = _count(value, keys, counts, order, size - 1, distinct)
        total = _add(keys, counts, order, distinct, 1, weights, secrets[HIGH_HALF], ones)
        features[text] = distinct

        keys[:size] = 0
        counts[:size] = 0
        distinct = np.int64(0)
        for word in range(1, words):
            value = _mix(
                np.uint64(starts[word - 1]) * secrets[BIGRAM_FIRST]
                + np.uint64(starts[word]) * secrets[BIGRAM_SECOND]
                + secrets[BIGRAM_OFFSET]
            )
            distinct = _count(value, keys, counts, order, size - 1, distinct)
        total += _add(keys, counts, order, distinct, BIGRAM_WEIGHT, weights, secrets[HIGH_HALF], ones)
        features[text] += distinct

        for half in range(2):
            value = np.uint64(0)
            for bit in range(64):
                if 2 * ones[64 * half + bit] > total:
                    value |= np.uint64(1) << np.uint64(bit)
            prints[text, half] = value
