"""Compiled: an arena of blocks of 4, 8, 16, ... places, which lists that grow share.

A list lies in one block. When that is full it moves to one of twice the size, and the old block goes onto the free list of its
size, where the next list of that length takes it: so lists of any length cost in proportion to what they hold.

Invariant: who takes from an arena that lacks room is told so before anything changes; nothing here grows an array.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stream_dedup.machine.compiled import kernel, prefetch

int64: Any = np.int64
uint32: Any = np.uint32

UNIT: Final = 4  # places in the smallest block; blocks are counted in units of it
SIZES: Final = 32


@kernel
def size_of(length: int) -> int:
    """Return n of the least block of 4 * 2^n places that holds `length` entries."""
    size = 0
    while (UNIT << size) < length:
        size += 1
    return size


@kernel
def give_back(rows: Any, free: Any, block: int, length: int) -> None:
    """Let another list have the block of one of `length` entries, which has moved; there is at least one."""
    size = size_of(length)
    rows[block * UNIT] = uint32(free[size])
    free[size] = block + 1


@kernel
def take_block(rows: Any, free: Any, length: int) -> int:
    """Return the first unit of a block for `length` entries: one given back, or the arena's next; -1 if it lacks room.

    Of a larger one that was given back the first half is taken, or the first half of that, and the others are given back.
    """
    size = size_of(length)
    for larger in range(size, SIZES):
        if free[larger] > 0:
            block = free[larger] - 1
            free[larger] = int64(rows[block * UNIT])
            prefetch(rows, (free[larger] - 1) * UNIT)  # which the next one asks for
            for half in range(size, larger):
                give_back(rows, free, block + (1 << half), UNIT << half)
            return int(block)
    block = free[SIZES]
    if block + (1 << size) > rows.shape[0] // UNIT:
        return -1
    free[SIZES] = block + (1 << size)
    return int(block)


@kernel
def larger_block(beside: Any, rows: Any, free: Any, block: int, length: int) -> int:
    """Move the `length` entries of a full block to one that has room for more; return which, or -1 if the arena lacks room.

    `beside` is the other array of the arena, with what lies beside each row number.
    """
    larger: int = take_block(rows, free, length + 1)
    if larger < 0:
        return -1
    for place in range(length):
        beside[larger * UNIT + place] = beside[block * UNIT + place]
        rows[larger * UNIT + place] = rows[block * UNIT + place]
    if length > 0:
        give_back(rows, free, block, length)
    return larger
