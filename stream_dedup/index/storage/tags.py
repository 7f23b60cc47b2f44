"""Tags: 32 bits of a hash, by which rows are found without loading text digests, positions and ids.

There are tags of (scope, text digest), of (source, offset, value digest) and of (scope, CRC-32 of
the id); three tables of `finder` have them as keys. Table files contain the first two, and the
CRC-32. A look-up by a tag returns candidates, which the caller compares with the stored entry,
because one in 2^32 other documents has the same tag.

All shapes are (n,), except digests: (n, 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.lazy_sequences import Ids
from stream_dedup.kernels.compiled import allocating_kernel, kernel

Tags = NDArray[np.uint32]

# Any, because the type checker would reject expressions of these and Python's int, which numba accepts.
int64: Any = np.int64
uint32: Any = np.uint32
uint64: Any = np.uint64

SPREAD: Final = uint64(0x9E3779B97F4A7C15)
# The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
_FIRST_MIX: Final = uint64(0xBF58476D1CE4E5B9)
_SECOND_MIX: Final = uint64(0x94D049BB133111EB)


@kernel
def mix_limb(limb: Any) -> Any:
    """Return a hash of a limb, of which each bit depends on all bits."""
    limb = (limb ^ (limb >> uint64(30))) * _FIRST_MIX
    limb = (limb ^ (limb >> uint64(27))) * _SECOND_MIX
    return limb ^ (limb >> uint64(31))


@allocating_kernel
def digest_tags(digests: Any, scopes: Any) -> Tags:
    """Return the tags of texts in their scopes."""
    tags = np.empty(len(scopes), np.uint32)
    for row in range(len(tags)):
        tags[row] = uint32(mix_limb(digests[row, 0] ^ (scopes[row] * SPREAD)) >> uint64(32))
    return tags


@allocating_kernel
def position_tags(sources: Any, offsets: Any, value_digests: Any) -> Tags:
    """Return the tags of source positions and their value digests."""
    tags = np.empty(len(sources), np.uint32)
    for row in range(len(tags)):
        mixed = uint64(offsets[row]) * SPREAD
        mixed ^= value_digests[row] ^ (uint64(sources[row]) << uint64(32))
        tags[row] = uint32(mix_limb(mixed) >> uint64(32))
    return tags


@allocating_kernel
def id_tags(crcs: Any, scopes: Any, text_tags: Any) -> Tags:
    """Return the tags of ids in their scopes, from their CRC-32s (`crcs_of`).

    A document without an id gets the tag of its text: one common tag would fill a single bucket.
    """
    tags = np.empty(len(scopes), np.uint32)
    for row in range(len(tags)):
        if crcs[row] == 0:
            tags[row] = text_tags[row]
        else:
            tags[row] = uint32(mix_limb(uint64(crcs[row]) ^ (scopes[row] * SPREAD)) >> uint64(32))
    return tags


@allocating_kernel
def keys_of(tags: Any) -> NDArray[np.uint64]:
    """Return the 64-bit keys of tags in their tables."""
    keys = np.empty(len(tags), np.uint64)
    for row in range(len(tags)):
        keys[row] = mix_limb((uint64(tags[row]) + uint64(1)) * SPREAD)
    return keys


@kernel
def _crc_ids(joined: Any, ends: Any, steps: Any, crcs: Any) -> None:
    """Set `crcs` (n,) uint32 to the CRC-32s of ids that end at `ends` (n,) in `joined`.

    An empty id gets 0, and a CRC-32 of 0 becomes 1. With `steps` (4, 256) uint32, from `_crc_steps`,
    four bytes are processed at once (Kounavis and Berry, ISCC 2005).
    """
    place = int64(0)
    for row in range(crcs.shape[0]):
        begin, end, crc = place, int64(ends[row]), uint32(0xFFFFFFFF)
        while place + 4 <= end:
            crc ^= uint32(joined[place]) | uint32(joined[place + 1]) << uint32(8)
            crc ^= uint32(joined[place + 2]) << uint32(16) | uint32(joined[place + 3]) << uint32(24)
            low = steps[3, crc & uint32(255)] ^ steps[2, (crc >> uint32(8)) & uint32(255)]
            crc = uint32(
                low ^ steps[1, (crc >> uint32(16)) & uint32(255)] ^ steps[0, crc >> uint32(24)]
            )
            place += 4
        while place < end:
            crc = uint32(steps[0, (crc ^ uint32(joined[place])) & uint32(255)] ^ (crc >> uint32(8)))
            place += 1
        crc = uint32(crc ^ uint32(0xFFFFFFFF))
        crcs[row] = uint32(1) if crc == 0 and end > begin else crc


def crcs_of(ids: Sequence[bytes]) -> Tags:
    """Return the CRC-32 of each id: 0 for no id, and 1 for an id whose CRC-32 is 0."""
    joined_ids = Ids.of(ids)
    crcs = np.empty(len(joined_ids), np.uint32)
    _crc_ids(
        np.frombuffer(bytearray(joined_ids.joined), np.uint8), joined_ids.stops, _CRC_STEPS, crcs
    )
    return crcs


def _crc_steps() -> Tags:
    """Return how each byte changes a CRC-32 if 0, 1, 2 or 3 bytes follow it, (4, 256)."""
    steps = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        steps = (steps >> np.uint32(1)) ^ np.where(
            steps & np.uint32(1), np.uint32(0xEDB88320), np.uint32(0)
        )
    rows = [steps]
    for _ in range(3):
        rows.append((rows[-1] >> np.uint32(8)) ^ steps[rows[-1] & np.uint32(255)])
    return np.array(rows)


_CRC_STEPS: Final = _crc_steps()
