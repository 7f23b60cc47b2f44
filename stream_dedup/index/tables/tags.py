"""Tags of many documents or rows at once: the arrays around `slot_kernels`. All shapes are (n,), but for digests, (n, 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.lazy import Ids
from stream_dedup.index.tables import slot_kernels

Tags = NDArray[np.uint32]


def digest_tags(digests: NDArray[np.uint64], scopes: NDArray[np.uint64]) -> Tags:
    """Return the tags of texts in their scopes."""
    tags = np.empty(len(scopes), np.uint32)
    slot_kernels.tag_digests(digests, scopes, tags)
    return tags


def position_tags(sources: NDArray[np.uint32], offsets: NDArray[np.int64], values: NDArray[np.uint64]) -> Tags:
    """Return the tags of source positions with the values that stand there."""
    tags = np.empty(len(sources), np.uint32)
    slot_kernels.tag_positions(sources, offsets, values, tags)
    return tags


def id_tags(crcs: Tags, scopes: NDArray[np.uint64], texts: Tags) -> Tags:
    """Return the tags of ids in their scopes, given what `crcs_of` made of them; `texts` are the tags of the digests."""
    tags = np.empty(len(scopes), np.uint32)
    slot_kernels.tag_ids(crcs, scopes, texts, tags)
    return tags


def crcs_of(ids: Sequence[bytes]) -> Tags:
    """Return the CRC-32 of each id; 0 is for no id, so an id that has it counts as 1."""
    blob = Ids.of(ids)
    crcs = np.empty(len(blob), np.uint32)
    slot_kernels.crc_ids(np.frombuffer(bytearray(blob.joined), np.uint8), blob.stops, _CRC_STEPS, crcs)
    return crcs


def _crc_steps() -> Tags:
    """Return what each byte does to a CRC-32, (4, 256), with none to three bytes behind it."""
    steps = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        steps = (steps >> np.uint32(1)) ^ np.where(steps & np.uint32(1), np.uint32(0xEDB88320), np.uint32(0))
    rows = [steps]
    for _ in range(3):
        rows.append((rows[-1] >> np.uint32(8)) ^ steps[rows[-1] & np.uint32(255)])
    return np.array(rows)


_CRC_STEPS: Final = _crc_steps()


def keys_of(tags: Tags) -> NDArray[np.uint64]:
    """Return what the tables of tags are searched by."""
    keys = np.empty(len(tags), np.uint64)
    slot_kernels.keys_of_tags(tags, keys)
    return keys
