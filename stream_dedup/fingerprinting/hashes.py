"""Hash the bytes of a feature to a number as wide as the fingerprint: the hashes of the grammar.

Invariants: each is the published function (tests contain the authors' test vectors); a hash is cut
to the width by keeping its low bits; the grammar refuses a hash with fewer bits than the width,
because stretching it would add no information.

| name | bits | number |
|---|---|---|
| `keyed` | 64; the high half is a second mix of the same hash | SipHash-1-3 under a key derived from the recipe's |
| `xxh3` | 64; 128 (XXH3-128) from width 128 | as the library returns it |
| `fnv1a` | 64 | FNV-1a |
| `md5`, `sha1`, `sha256` | 128, 160, 256 | the digest, most significant byte first |

With `keyed`, only those who know the key can make two features collide, or steer a fingerprint;
with all others anybody can. The cryptographic hashes are supported because tutorials use them; cut
to a width they are not secure.

Sources: Aumasson, Bernstein, "SipHash: a fast short-input PRF" (INDOCRYPT 2012); Fowler, Noll, Vo,
RFC 9923; RFC 1321 (MD5); FIPS 180-4 (SHA-1, SHA-256);
the xxHash specification.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from stream_dedup.kernels.compiled import inlined, kernel

SIP_KEY_0, SIP_KEY_1, HIGH_HALF, BIGRAM_FIRST, BIGRAM_SECOND, BIGRAM_OFFSET = range(6)
SECRETS = 6
CHARACTERS_MAX = 16  # in one n-gram

KEYED: Final = "keyed"
# The number of bits of each hash.
BITS: Final = {
    KEYED: 128,
    "xxh3": 128,
    "fnv1a": 64,
    "md5": 128,
    "sha1": 160,
    "sha256": 256,
}


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
    """Return SipHash-rounds-final_rounds of bytes (uint8 array) under a 128-bit key of two halves:
    64 bits.
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


@kernel
def _keyed(data: Any, bounds: Any, secrets: Any, out: Any) -> None:
    for feature in range(len(bounds) - 1):
        low = sip_hash_between(
            data, bounds[feature], bounds[feature + 1], secrets[SIP_KEY_0], secrets[SIP_KEY_1], 1, 3
        )
        out[feature, 0] = low
        out[feature, 1] = mix(low + secrets[HIGH_HALF])


@kernel
def _fnv1a(data: Any, bounds: Any, out: Any) -> None:
    for feature in range(len(bounds) - 1):
        value = np.uint64(0xCBF29CE484222325)
        for place in range(bounds[feature], bounds[feature + 1]):
            value = (value ^ np.uint64(data[place])) * np.uint64(0x100000001B3)
        out[feature, 0] = value
        out[feature, 1] = 0


_BY_LIBRARY: dict[str, Callable[[bytes], Any]] = {
    "md5": partial(hashlib.md5, usedforsecurity=False),
    "sha1": partial(hashlib.sha1, usedforsecurity=False),
    "sha256": hashlib.sha256,
}


def hash_features(
    name: str,
    width: int,
    data: NDArray[np.uint8],
    bounds: NDArray[np.int64],
    secrets: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    """Return the hash of each feature, (m, 2), low half first; ignore the bits beyond the width.

    `data`: the concatenated bytes of the features; `bounds`: (m + 1,), the start of each;
    `secrets`: of the key.
    """
    out = np.empty((len(bounds) - 1, 2), np.uint64)
    if name == KEYED:
        _keyed(data, bounds, secrets, out)
    elif name == "fnv1a":
        _fnv1a(data, bounds, out)
    else:
        hash_function = _BY_LIBRARY.get(name) or (xxhash.xxh3_128 if width > 64 else xxhash.xxh3_64)
        content = data.tobytes()
        digests = (
            hash_function(content[start:stop]).digest()
            for start, stop in itertools.pairwise(bounds.tolist())
        )
        little_endian = b"".join(digest[:-17:-1].ljust(16, b"\0") for digest in digests)
        out[:] = np.frombuffer(little_endian, "<u8").reshape(-1, 2)
    return out
