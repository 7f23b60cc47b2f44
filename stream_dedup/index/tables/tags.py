"""Tags of text digests, of positions and of ids, by which rows are found without holding any of
them.

A tag is 32 bits of the hash of (scope, text digest), of (source, offset, value digest) or of
(scope, CRC-32 of the id); volumes keep the first two, and the CRC-32. Three tables of `finder` are
searched by them. What a tag finds is a candidate, which the caller compares with what is stored:
one in 2^32 an entry is another document's.

All shapes are (n,), but for digests, (n, 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.lazy import Ids
from stream_dedup.kernels.compiled import allocating_kernel, kernel

Tags = NDArray[np.uint32]

# numba knows these as types; to the type checker they are Any, because counts are int there.
int64: Any = np.int64
uint32: Any = np.uint32
uint64: Any = np.uint64

SPREAD: Final = uint64(0x9E3779B97F4A7C15)
_MIX_ONE: Final = uint64(
    0xBF58476D1CE4E5B9
)  # the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)
_MIX_TWO: Final = uint64(0x94D049BB133111EB)


@kernel
def mixed_limb(limb: Any) -> Any:
    """Return a limb mixed so that each bit depends on all."""
    limb = (limb ^ (limb >> uint64(30))) * _MIX_ONE
    limb = (limb ^ (limb >> uint64(27))) * _MIX_TWO
    return limb ^ (limb >> uint64(31))


@allocating_kernel
def digest_tags(digests: Any, scopes: Any) -> Tags:
    """Return the tags of texts in their scopes."""
    tags = np.empty(len(scopes), np.uint32)
    for row in range(len(tags)):
        tags[row] = uint32(mixed_limb(digests[row, 0] ^ (scopes[row] * SPREAD)) >> uint64(32))
    return tags


@allocating_kernel
def position_tags(sources: Any, offsets: Any, values: Any) -> Tags:
    """Return the tags of source positions with the digests of the values that stand there."""
    tags = np.empty(len(sources), np.uint32)
    for row in range(len(tags)):
        mixed = uint64(offsets[row]) * SPREAD
        mixed ^= values[row] ^ (uint64(sources[row]) << uint64(32))
        tags[row] = uint32(mixed_limb(mixed) >> uint64(32))
    return tags


@allocating_kernel
def id_tags(crcs: Any, scopes: Any, texts: Any) -> Tags:
    """Return the tags of ids in their scopes, given what `crcs_of` made of them.

    Without an id it is that of the digest, of which `texts` are the tags: so they spread.
    """
    tags = np.empty(len(scopes), np.uint32)
    for row in range(len(tags)):
        if crcs[row] == 0:
            tags[row] = texts[row]
        else:
            tags[row] = uint32(mixed_limb(uint64(crcs[row]) ^ (scopes[row] * SPREAD)) >> uint64(32))
    return tags


@allocating_kernel
def keys_of(tags: Any) -> NDArray[np.uint64]:
    """Return what the tables of tags are searched by: 64 bits that follow from the 32."""
    keys = np.empty(len(tags), np.uint64)
    for row in range(len(tags)):
        keys[row] = mixed_limb((uint64(tags[row]) + uint64(1)) * SPREAD)
    return keys


@kernel
def _crc_ids(joined: Any, stops: Any, steps: Any, crcs: Any) -> None:
    """Set `crcs` (n,) uint32 to the CRC-32 of ids that end at `stops` (n,) in `joined`; 0 for none,
    1 in place of 0.

    `steps` (4, 256) uint32 are those of four bytes at once (Kounavis and Berry, ISCC 2005).
    """
    at = int64(0)
    for row in range(crcs.shape[0]):
        begin, stop, crc = at, int64(stops[row]), uint32(0xFFFFFFFF)
        while at + 4 <= stop:
            crc ^= uint32(joined[at]) | uint32(joined[at + 1]) << uint32(8)
            crc ^= uint32(joined[at + 2]) << uint32(16) | uint32(joined[at + 3]) << uint32(24)
            low = steps[3, crc & uint32(255)] ^ steps[2, (crc >> uint32(8)) & uint32(255)]
            crc = uint32(
                low ^ steps[1, (crc >> uint32(16)) & uint32(255)] ^ steps[0, crc >> uint32(24)]
            )
            at += 4
        while at < stop:
            crc = uint32(steps[0, (crc ^ uint32(joined[at])) & uint32(255)] ^ (crc >> uint32(8)))
            at += 1
        crc = uint32(crc ^ uint32(0xFFFFFFFF))
        crcs[row] = uint32(1) if crc == 0 and stop > begin else crc


def crcs_of(ids: Sequence[bytes]) -> Tags:
    """Return the CRC-32 of each id; 0 is for no id, so an id that has it counts as 1."""
    blob = Ids.of(ids)
    crcs = np.empty(len(blob), np.uint32)
    _crc_ids(np.frombuffer(bytearray(blob.joined), np.uint8), blob.stops, _CRC_STEPS, crcs)
    return crcs


def _crc_steps() -> Tags:
    """Return what each byte does to a CRC-32, (4, 256), with none to three bytes behind it."""
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
