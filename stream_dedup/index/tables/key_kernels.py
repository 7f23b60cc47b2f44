"""Compiled: the keys of the print and of the sketch, and whether two texts share one and are near.

A key is hashed, with its scope and the number of its table, to 64 bits, by which `finder_kernels` finds rows.

Invariant: a tag never decides: the key itself is compared before an entry counts or is found.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stream_dedup.index.tables.near_kernels import alike, alike_held, near_held, near_prints, take_print, take_sketch
from stream_dedup.index.tables.rows import FULL
from stream_dedup.index.tables.slot_kernels import SPREAD, mixed_limb
from stream_dedup.machine.compiled import inlined, kernel

int64: Any = np.int64
uint64: Any = np.uint64

_PRIME: Final = uint64(0x100000001B3)  # of FNV-1a (Fowler, Noll and Vo)


@inlined
def _start(table: int, scope: Any) -> Any:
    """Return what the key of a scope in a table begins with."""
    return (uint64(table) + uint64(1)) * SPREAD ^ mixed_limb(scope)


@inlined
def _print_key(masks: Any, table: int, prints: Any, row: int, start: Any) -> Any:
    key = start
    for limb in range(masks.shape[1]):
        key = mixed_limb(key ^ (prints[row, limb] & masks[table, limb]))
    return mixed_limb(key)


@inlined
def _block_key(first: int, end: int, sketches: Any, row: int, start: Any) -> Any:
    key = start
    for at in range(uint64(first), uint64(end)):  # unsigned: nothing counts from the end
        key = (key ^ uint64(sketches[uint64(row), at])) * _PRIME
    return mixed_limb(key)


@kernel
def keys_in(tables: Any, number: int, rows: Any, keys: Any) -> None:
    """Set `keys` (n,) uint64 to the hashed keys in one table of `rows`: columns, of which those have rows that it needs.

    What is large as `tables` is goes to no function for each row: it would be copied.
    """
    prints, sketches, scopes, masks = rows.prints, rows.sketches, rows.scopes, tables.masks
    first = (number - masks.shape[0]) * tables.band_values
    end, start = first + tables.band_values, _start(number, uint64(0))
    for row in range(keys.shape[0]):
        if scopes.shape[0] > 0:
            start = _start(number, scopes[row])
        if first < 0:
            keys[row] = _print_key(masks, number, prints, row, start)
        else:
            keys[row] = _block_key(first, end, sketches, row, start)


@kernel
def keys_of(tables: Any, batch: Any, keys: Any) -> None:
    """Set `keys` (n, T) uint64 to the hashed keys of every document."""
    for table in range(keys.shape[1]):
        keys_in(tables, table, batch, keys[:, table])


@kernel
def shares(tables: Any, table: int, one: Any, one_row: int, other: Any, other_row: int) -> Any:
    """Return whether two rows have the same key in a table, their scopes aside."""
    masks = tables.masks
    if table < masks.shape[0]:
        for limb in range(masks.shape[1]):
            if (one.prints[one_row, limb] ^ other.prints[other_row, limb]) & masks[table, limb] != uint64(0):
                return False
        return True
    values = tables.band_values
    first = (table - masks.shape[0]) * values
    for at in range(first, first + values):  # noqa: SIM110 - the compiler knows no generator
        if one.sketches[one_row, at] != other.sketches[other_row, at]:
            return False
    return True


@kernel
def near_if_found(tables: Any, batch: Any, one: int, doc: int) -> int:
    """Return the distance of two documents of a batch that are near if they are found, or -1: `Plan.is_alike`, compiled."""
    distance: int = near_prints(tables, batch, one, batch, doc)
    if distance >= 0 and tables.alike_min > 0 and alike(batch, one, batch, doc) < tables.alike_min:
        return -1
    return distance


@kernel
def near_if_found_held(tables: Any, held: Any, row: int, batch: Any, doc: int) -> int:
    """Return the same of a held row and a document."""
    distance: int = near_held(tables, held, row, batch, doc)
    return distance if distance >= 0 and alike_held(tables, held, row, batch, doc) else -1


@kernel
def counts(tables: Any, table: int, held: Any, row: int, batch: Any, doc: int) -> Any:
    """Return whether an entry is a full one of a document's scope with its key."""
    scope = held.scopes[row] if held.scopes.shape[0] > 0 else uint64(0)
    if held.states[row] != FULL or scope != batch.scopes[doc]:
        return False
    if table < tables.masks.shape[0]:
        take_print(held, row)
    else:
        take_sketch(held, row)
    return shares(tables, table, held.taken, 0, batch, doc)
