"""Compiled: tags of text digests, of positions and of ids, by which rows are found without holding any of them.

A tag is 32 bits of the hash of (scope, text digest), of (source, offset, value digest) or of (scope, CRC-32 of the id);
volumes keep the first two, and the CRC-32. Three tables of `finder` are searched by them. What a tag finds is a candidate,
which the caller compares with what is stored: one in 2^32 an entry is another document's.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stream_dedup.machine.compiled import kernel

# numba knows these as types; to the type checker they are Any, because counts are int there.
int64: Any = np.int64
uint32: Any = np.uint32
uint64: Any = np.uint64

SPREAD: Final = uint64(0x9E3779B97F4A7C15)
_MIX_ONE: Final = uint64(0xBF58476D1CE4E5B9)  # the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)
_MIX_TWO: Final = uint64(0x94D049BB133111EB)


@kernel
def mixed_limb(limb: Any) -> Any:
    """Return a limb mixed so that each bit depends on all."""
    limb = (limb ^ (limb >> uint64(30))) * _MIX_ONE
    limb = (limb ^ (limb >> uint64(27))) * _MIX_TWO
    return limb ^ (limb >> uint64(31))


@kernel
def tag_digests(digests: Any, scopes: Any, tags: Any) -> None:
    """Set `tags` (n,) uint32 to those of (scope, text digest)."""
    for row in range(tags.shape[0]):
        tags[row] = uint32(mixed_limb(digests[row, 0] ^ (scopes[row] * SPREAD)) >> uint64(32))


@kernel
def tag_positions(sources: Any, offsets: Any, values: Any, tags: Any) -> None:
    """Set `tags` (n,) uint32 to those of (source, offset, value digest)."""
    for row in range(tags.shape[0]):
        mixed = uint64(offsets[row]) * SPREAD
        mixed ^= values[row] ^ (uint64(sources[row]) << uint64(32))
        tags[row] = uint32(mixed_limb(mixed) >> uint64(32))


@kernel
def tag_ids(ids: Any, scopes: Any, digest_tags: Any, tags: Any) -> None:
    """Set `tags` (n,) uint32 to those of (scope, CRC-32 of the id); without an id to that of the digest: so they spread."""
    for row in range(tags.shape[0]):
        if ids[row] == 0:
            tags[row] = digest_tags[row]
        else:
            tags[row] = uint32(mixed_limb(uint64(ids[row]) ^ (scopes[row] * SPREAD)) >> uint64(32))


@kernel
def crc_ids(joined: Any, stops: Any, steps: Any, crcs: Any) -> None:
    """Set `crcs` (n,) uint32 to the CRC-32 of ids that end at `stops` (n,) in `joined`; 0 for none, 1 in place of 0.

    `steps` (4, 256) uint32 are those of four bytes at once (Kounavis and Berry, ISCC 2005).
    """
    at = int64(0)
    for row in range(crcs.shape[0]):
        begin, stop, crc = at, int64(stops[row]), uint32(0xFFFFFFFF)
        while at + 4 <= stop:
            crc ^= uint32(joined[at]) | uint32(joined[at + 1]) << uint32(8)
            crc ^= uint32(joined[at + 2]) << uint32(16) | uint32(joined[at + 3]) << uint32(24)
            low = steps[3, crc & uint32(255)] ^ steps[2, (crc >> uint32(8)) & uint32(255)]
            crc = uint32(low ^ steps[1, (crc >> uint32(16)) & uint32(255)] ^ steps[0, crc >> uint32(24)])
            at += 4
        while at < stop:
            crc = uint32(steps[0, (crc ^ uint32(joined[at])) & uint32(255)] ^ (crc >> uint32(8)))
            at += 1
        crc = uint32(crc ^ uint32(0xFFFFFFFF))
        crcs[row] = uint32(1) if crc == 0 and stop > begin else crc


@kernel
def keys_of_tags(tags: Any, keys: Any) -> None:
    """Set `keys` (n,) uint64 to what tables of tags are searched by: 64 bits that follow from the 32."""
    for row in range(tags.shape[0]):
        keys[row] = mixed_limb((uint64(tags[row]) + uint64(1)) * SPREAD)
