"""Tags of many documents or rows at once: the arrays around `slot_kernels`. All shapes are (n,), but for digests, (n, 2)."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

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
    crcs = np.fromiter(map(crc32, ids), np.uint32, len(ids))
    for place in np.flatnonzero(crcs == 0).tolist():
        crcs[place] = bool(ids[place])
    return crcs


def keys_of(tags: Tags) -> NDArray[np.uint64]:
    """Return what the tables of tags are searched by."""
    keys = np.empty(len(tags), np.uint64)
    slot_kernels.keys_of_tags(tags, keys)
    return keys
