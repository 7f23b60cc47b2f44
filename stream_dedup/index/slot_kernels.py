"""Compiled: which row has a text digest, or a position. Open addressing with linear probing, at most 3 in 4 slots taken.

There are two such arrays: by (scope, text digest) and by (source, offset, value digest). A slot is a 32-bit tag of that hash
above the row. A tag that is found is a candidate, which the caller compares with what is stored: one in 2^32 an entry is
another document's. A removed entry's row is marked until the next compaction.

Invariant: a slot's home follows from its tag alone and keeps the tags' order, so a larger array is filled nearly in order.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stream_dedup.index.rows import NONE, REMOVED
from stream_dedup.machine.compiled import kernel, prefetch

# numba knows these as types; to the type checker they are Any, because indices and counts are int there.
int64: Any = np.int64
uint32: Any = np.uint32
uint64: Any = np.uint64

EMPTY: Final = uint64(0xFFFFFFFFFFFFFFFF)
SPREAD: Final = uint64(0x9E3779B97F4A7C15)
_MIX_ONE: Final = uint64(0xBF58476D1CE4E5B9)  # the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)
_MIX_TWO: Final = uint64(0x94D049BB133111EB)


@kernel
def mixed_word(word: Any) -> Any:
    """Return a word mixed so that each bit depends on all."""
    word = (word ^ (word >> uint64(30))) * _MIX_ONE
    word = (word ^ (word >> uint64(27))) * _MIX_TWO
    return word ^ (word >> uint64(31))


@kernel
def tag_digests(digests: Any, scopes: Any, tags: Any) -> None:
    """Set `tags` (n,) uint32 to those of (scope, text digest)."""
    for row in range(tags.shape[0]):
        tags[row] = uint32(mixed_word(digests[row, 0] ^ (scopes[row] * SPREAD)) >> uint64(32))


@kernel
def tag_positions(sources: Any, offsets: Any, values: Any, tags: Any) -> None:
    """Set `tags` (n,) uint32 to those of (source, offset, value digest)."""
    for row in range(tags.shape[0]):
        mixed = uint64(offsets[row]) * SPREAD
        mixed ^= values[row] ^ (uint64(sources[row]) << uint64(32))
        tags[row] = uint32(mixed_word(mixed) >> uint64(32))


@kernel
def _home(tag: Any, size: int) -> int:
    home: int = int64((uint64(tag) * uint64(size)) >> uint64(32))
    return home


@kernel
def find_tags(slots: Any, tags: Any, states: Any, at: Any, found: Any) -> None:
    """Set `found` (n,) int64 to the row of the next live entry with each tag, or -1.

    `at` (n,) int64 is where the search stands: the slot after the last one found, or -1 to begin.
    """
    size = slots.shape[0]
    for row in range(tags.shape[0]):
        if at[row] < 0 and row + 8 < tags.shape[0]:
            prefetch(slots, _home(tags[row + 8], size))
        slot = _home(tags[row], size) if at[row] < 0 else at[row]
        found[row] = -1
        while slots[slot] != EMPTY:
            held = slots[slot]
            slot += 1
            if slot == size:
                slot = 0
            entry = int64(held & uint64(0xFFFFFFFF))
            if held >> uint64(32) == uint64(tags[row]) and states[entry] != REMOVED:
                found[row] = entry
                break
        at[row] = slot


@kernel
def add_tags(slots: Any, tags: Any, first: int) -> None:
    """Make rows `first`.. findable by their tags (n,) uint32; there is room."""
    size = slots.shape[0]
    for row in range(tags.shape[0]):
        if row + 8 < tags.shape[0]:
            prefetch(slots, _home(tags[row + 8], size))
        slot = _home(tags[row], size)
        while slots[slot] != EMPTY:
            slot += 1
            if slot == size:
                slot = 0
        slots[slot] = (uint64(tags[row]) << uint64(32)) | uint64(first + row)


@kernel
def copy_slots(old: Any, new: Any, moved: Any) -> None:
    """Fill the empty `new` slots with those in `old`; row r becomes `moved[r]`, and goes if that is `NONE`.

    `moved` is int64, and empty when every row stays.
    """
    size = new.shape[0]
    for at in range(old.shape[0]):
        if old[at] == EMPTY:
            continue
        row = int64(old[at] & uint64(0xFFFFFFFF))
        if moved.shape[0] > 0:
            row = moved[row]
        if row == NONE:
            continue
        tag = old[at] >> uint64(32)
        slot = _home(tag, size)
        while new[slot] != EMPTY:
            slot += 1
            if slot == size:
                slot = 0
        new[slot] = (tag << uint64(32)) | uint64(row)
