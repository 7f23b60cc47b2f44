"""Compute fingerprints, sketches and digests of the recipe `words` with the standard library alone.

See docs/reference/prints.md for the steps before: normalising and cutting into words.
"""

import hashlib
import math
from collections import Counter
from itertools import pairwise

BITS = (1 << 64) - 1


def sip_1_3(data: bytes, key_0: int, key_1: int) -> int:
    """Return SipHash-1-3 (Aumasson, Bernstein 2012)."""
    names = (b"somepseu", b"dorandom", b"lygenera", b"tedbytes")
    v = [
        int.from_bytes(name, "big") ^ key
        for name, key in zip(names, (key_0, key_1, key_0, key_1), strict=True)
    ]

    def turn(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & BITS

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0], v[2] = (v[0] + v[1]) & BITS, (v[2] + v[3]) & BITS
            v[1], v[3] = turn(v[1], 13) ^ v[0], turn(v[3], 16) ^ v[2]
            v[0] = turn(v[0], 32)
            v[2], v[0] = (v[2] + v[1]) & BITS, (v[0] + v[3]) & BITS
            v[1], v[3] = turn(v[1], 17) ^ v[2], turn(v[3], 21) ^ v[0]
            v[2] = turn(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for start in range(0, len(padded), 8):
        block = int.from_bytes(padded[start : start + 8], "little")
        v[3] ^= block
        rounds(1)
        v[0] ^= block
    v[2] ^= 0xFF
    rounds(3)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def mix(value: int) -> int:
    """Return the finalizer of MurmurHash3."""
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & BITS
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & BITS
    return value ^ value >> 33


def derived(key: bytes, count: int, what: bytes) -> list[int]:
    """Return secret numbers of 64 bits."""
    raw = hashlib.blake2b(key, digest_size=8 * count, person=what).digest()
    return [int.from_bytes(raw[start : start + 8], "little") for start in range(0, 8 * count, 8)]


def digest_of(normalised: str, key: bytes) -> bytes:
    """Return the digest by which equal texts are found."""
    text_key = hashlib.blake2b(key, person=b"text digest").digest()
    return hashlib.blake2b(normalised.encode(), digest_size=16, key=text_key).digest()


def print_of(words: list[str], key: bytes) -> tuple[int, int]:
    """Return the fingerprint, a number of 128 bits, and the number of features of the text."""
    key_0, key_1, high, factor, other, offset = derived(key, 6, b"simhash secrets")
    hashes = [sip_1_3(word.encode(), key_0, key_1) for word in words]
    pairs = [mix((a * (factor | 1) + b * (other | 1) + offset) & BITS) for a, b in pairwise(hashes)]
    weights: Counter[int] = Counter()
    for scale, found in ((1, hashes), (2, pairs)):
        for value, count in Counter(found).items():
            weights[value] += scale * round(256 * (1 + math.log(min(count, 1024))))
    sums = [0] * 128
    for value, weight in weights.items():
        wide = mix((value + high) & BITS) << 64 | value
        for bit in range(128):
            sums[bit] += weight if wide >> bit & 1 else -weight
    return sum(1 << bit for bit in range(128) if sums[bit] > 0), len(weights)


def sketch_of(words: list[str], key: bytes) -> bytes:
    """Return 80 values of a byte, then 80 of half a byte, the first of two in the low half."""
    key_0, key_1 = derived(key, 6, b"simhash secrets")[:2]
    *factors, offset = derived(key, 4, b"sketch secrets")
    hashes = [sip_1_3(word.encode(), key_0, key_1) for word in words]
    if not hashes:
        return bytes(120)
    runs = [hashes[start : start + 3] for start in range(max(1, len(hashes) - 2))]
    first: dict[int, int] = {}
    second: dict[int, int] = {}
    for run in runs:
        value = mix(
            (
                offset
                + sum(hashed * (factor | 1) for hashed, factor in zip(run, factors, strict=False))
            )
            & BITS
        )
        high, low = value >> 32, value & 0xFFFFFFFF
        first[high * 80 >> 32] = min(low, first.get(high * 80 >> 32, low))
        second[low * 80 >> 32] = min(high, second.get(low * 80 >> 32, high))

    def walk(slot: int, other: int) -> bytes:
        return hashlib.blake2b(bytes([slot, other]), digest_size=8, person=b"sketch walks").digest()

    def filled(ranks: dict[int, int]) -> list[int]:
        return [
            ranks[slot if slot in ranks else min(ranks, key=lambda other: walk(slot, other))]
            for slot in range(80)
        ]

    halves = [rank & 0xF for rank in filled(second)]
    return bytes(rank & 0xFF for rank in filled(first)) + bytes(
        a | b << 4 for a, b in zip(halves[::2], halves[1::2], strict=True)
    )


def similarity_of(sketch: bytes, other: bytes) -> float:
    """Return the mean of the shares of equal values of both parts, without chance in the second."""
    first = sum(a == b for a, b in zip(sketch[:80], other[:80], strict=True))
    second = sum((a ^ b) & 15 == 0 for a, b in zip(sketch[80:], other[80:], strict=True))
    second += sum((a ^ b) >> 4 == 0 for a, b in zip(sketch[80:], other[80:], strict=True))
    return (15 * first + 16 * second - 80) / 2400
