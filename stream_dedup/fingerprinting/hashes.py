"""Hash the bytes of a feature: SipHash under the recipe's key for words, FNV-1a for keywords, MD5
for `pypi-simhash`.

Invariants: all are the published functions (tests contain the authors' test vectors). Only those
who know the key can make two words collide, or steer a fingerprint; with FNV-1a and MD5
anybody can.

Sources: Aumasson, Bernstein, "SipHash: a fast short-input PRF" (INDOCRYPT 2012); Fowler, Noll, Vo,
RFC 9923.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dedup.kernels.compiled import inlined, kernel

SIP_KEY_0, SIP_KEY_1, HIGH_HALF, BIGRAM_FIRST, BIGRAM_SECOND, BIGRAM_OFFSET = range(6)
SECRETS = 6
CHARACTERS_MAX = 16  # in one n-gram
FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def derive_secrets(key: bytes) -> NDArray[np.uint64]:
    """Return the secrets of the kernels, (6,): SipHash's key, the offset of the high half, and
    three numbers for bigrams.

    The two multipliers of bigrams are odd, so multiplying is a bijection.
    """
    derived = hashlib.blake2b(key, digest_size=8 * SECRETS, person=b"simhash secrets").digest()
    secrets = np.frombuffer(derived, "<u8").astype(np.uint64)
    secrets[BIGRAM_FIRST : BIGRAM_SECOND + 1] |= np.uint64(1)
    return secrets


def derive_character_secrets(key: bytes) -> NDArray[np.uint64]:
    """Return the secrets of character n-grams, (17,): an offset, then an odd multiplier for each
    place.
    """
    derived = b"".join(
        hashlib.blake2b(
            number.to_bytes(8, "little"), digest_size=8, key=key, person=b"character grams"
        ).digest()
        for number in range(CHARACTERS_MAX + 1)
    )
    secrets = np.frombuffer(derived, "<u8").astype(np.uint64)
    secrets[1:] |= np.uint64(1)
    return secrets


@inlined
def _rotate(value: Any, bits: Any) -> Any:
    """Rotate a uint64 left by a number of bits; `bits` is a uint64, because numba would compile the
    function once for each constant.
    """
    return (value << bits) | (value >> (np.uint64(64) - bits))


@inlined
def _sip_round(a: Any, b: Any, c: Any, d: Any) -> Any:
    a += b
    b = _rotate(b, np.uint64(13)) ^ a
    a = _rotate(a, np.uint64(32))
    c += d
    d = _rotate(d, np.uint64(16)) ^ c
    a += d
    d = _rotate(d, np.uint64(21)) ^ a
    c += b
    b = _rotate(b, np.uint64(17)) ^ c
    c = _rotate(c, np.uint64(32))
    return a, b, c, d


@inlined
def eight_bytes(data: Any, place: Any) -> Any:
    """Return the eight bytes at `place` as a word, low byte first."""
    # Unsigned: numba then omits the check for negative indexes, and the loop becomes one load.
    first = np.uint64(place)
    block = np.uint64(0)
    for byte in range(8):
        block |= np.uint64(data[first + np.uint64(byte)]) << np.uint64(8 * byte)
    return block


@inlined
def last_block(data: Any, place: Any, stop: Any, length: Any) -> Any:
    """Return SipHash's last block: the remaining bytes, fewer than eight, and the total length in
    the highest byte.
    """
    rest_length = (stop - place) & 7
    if place + 8 <= len(data):  # one load and a mask instead of a loop over the remaining bytes
        block = eight_bytes(data, place) & (
            (np.uint64(1) << np.uint64(8 * rest_length)) - np.uint64(1)
        )
    else:
        block = np.uint64(0)
        for byte in range(rest_length):
            block |= np.uint64(data[place + byte]) << np.uint64(8 * byte)
    return block | np.uint64(length & 0xFF) << np.uint64(56)


@inlined
def sip_hash_between(
    data: Any, start: Any, stop: Any, key_0: Any, key_1: Any, rounds: Any, final_rounds: Any
) -> Any:
    """Return SipHash of `data[start:stop]`: 64 bits."""
    a = key_0 ^ np.uint64(0x736F6D6570736575)
    b = key_1 ^ np.uint64(0x646F72616E646F6D)
    c = key_0 ^ np.uint64(0x6C7967656E657261)
    d = key_1 ^ np.uint64(0x7465646279746573)
    length = stop - start
    place = start
    while stop - place >= 8:
        block = eight_bytes(data, place)
        place += 8
        d ^= block
        for _ in range(rounds):
            a, b, c, d = _sip_round(a, b, c, d)
        a ^= block
    block = last_block(data, place, stop, length)
    d ^= block
    for _ in range(rounds):
        a, b, c, d = _sip_round(a, b, c, d)
    a ^= block
    c ^= np.uint64(0xFF)
    for _ in range(final_rounds):
        a, b, c, d = _sip_round(a, b, c, d)
    return a ^ b ^ c ^ d


@inlined
def sip_hash_block(block: Any, key_0: Any, key_1: Any) -> Any:
    """Return SipHash-1-3 of a `last_block`, for fewer than eight bytes; without branches, so a loop
    over many is vectorised.
    """
    a, b, c, d = _sip_round(
        key_0 ^ np.uint64(0x736F6D6570736575),
        key_1 ^ np.uint64(0x646F72616E646F6D),
        key_0 ^ np.uint64(0x6C7967656E657261),
        key_1 ^ np.uint64(0x7465646279746573) ^ block,
    )
    a, b, c, d = _sip_round(a ^ block, b, c ^ np.uint64(0xFF), d)
    a, b, c, d = _sip_round(a, b, c, d)
    a, b, c, d = _sip_round(a, b, c, d)
    return a ^ b ^ c ^ d


@kernel
def sip_hash(data: Any, key_0: Any, key_1: Any, rounds: Any, final_rounds: Any) -> Any:
    """Return the 64-bit SipHash-c-d (c = `rounds`, d = `final_rounds`) of bytes (uint8 array), under
    a 128-bit key in two halves.
    """
    return sip_hash_between(data, np.int64(0), len(data), key_0, key_1, rounds, final_rounds)


@inlined
def mix(value: Any) -> Any:
    """Return a uint64 with every bit spread over all 64: the finalizer of MurmurHash3."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    value ^= value >> np.uint64(33)
    return value


def fnv1a(content: bytes) -> int:
    """Return FNV-1a-64 of bytes (Fowler, Noll and Vo; RFC 9923)."""
    value = FNV_OFFSET
    for byte in content:
        value = (value ^ byte) * FNV_PRIME & 0xFFFF_FFFF_FFFF_FFFF
    return value


def md5(content: bytes) -> int:
    """Return the MD5 of bytes as a number, whose first byte is the highest."""
    return int.from_bytes(hashlib.md5(content, usedforsecurity=False).digest())
