"""Compiled: who is near a document under a plan of whole keys, in log order: `Plan.scan`, over the tables.

A walk merges the tables of one document: in each a cursor goes through the rows whose key seems to be the document's, the
earliest of all cursors is looked at once, in however many tables it lies, and counts in each whose very key it has. A cursor
whose table has given the first ones that are asked goes on with the last ones. Behind the entries that are held come those that
the batch has made so far. The first `CROWD` candidates are the crowd; they are judged as soon as all of them are known.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stream_dedup.ground.sketch import CROWD, CROWD_SCEPTICS, FIRST_WEIGHT, JUDGING_WEIGHT, SKETCH_VALUES
from stream_dedup.index.tables.finder_kernels import last_passing, next_passing, row_at
from stream_dedup.index.tables.key_kernels import counts, near_if_found, near_if_found_held, shares
from stream_dedup.index.tables.near_kernels import take_sketch
from stream_dedup.index.tables.rows import ALONE, NONE
from stream_dedup.machine.compiled import kernel

int64: Any = np.int64
uint8: Any = np.uint8

_HELD, _CHAIN, _ROW, _LEFT = range(4)  # of a cursor: the next place in the bucket, in the chain; the row; how many of the first
_CROWD: Final = int64(CROWD)
_SCEPTICS: Final = int64(CROWD_SCEPTICS)
_FIRST: Final = int64(SKETCH_VALUES)
_FIRST_WEIGHT: Final = int64(FIRST_WEIGHT)
_JUDGING_WEIGHT: Final = int64(JUDGING_WEIGHT)
_END: Final = 1 << 40  # behind every place in a bucket


@kernel
def _move_on(table: Any, held: Any, number: int, keys: Any, doc: int, newer: Any, cursors: Any) -> None:
    """Move the cursor of one table to the next row whose key seems to be the document's; NONE behind the last."""
    next_row, chains, made = newer
    key = keys[doc, number]
    if cursors[number, _HELD] >= 0:
        at = int64(next_passing(table, number, key, cursors[number, _HELD]))
        if at >= 0:
            cursors[number, _HELD] = at + 1
            cursors[number, _ROW] = row_at(table, held.taken, number, key, at)
            return
        cursors[number, _HELD] = -1
        cursors[number, _CHAIN] = chains.heads[number, int64(key) & int64(chains.seen.shape[0] - 1)]
    at = int64(cursors[number, _CHAIN])
    while at >= 0 and keys[made[at], number] != key:
        at = int64(chains.links[at, number])
    cursors[number, _ROW] = next_row + at if at >= 0 else NONE
    cursors[number, _CHAIN] = int64(chains.links[at, number]) if at >= 0 else int64(-1)


@kernel
def _meets(tables: Any, held: Any, batch: Any, doc: int, number: int, row: int, newer: Any) -> Any:
    """Return whether a row is one of the document's scope with its very key in one table."""
    if row < newer[0]:
        return counts(tables, number, held, row, batch, doc)
    other = newer[2][row - newer[0]]
    return batch.scopes[other] == batch.scopes[doc] and shares(tables, number, batch, other, batch, doc)


@kernel
def _to_the_last(
    tables: Any, table: Any, held: Any, batch: Any, doc: int, number: int, keys: Any, newer: Any, cursors: Any
) -> None:
    """Move the cursor of a table on to where the last ones that are asked begin: its next move ends at the first of them."""
    next_row, chains, made = newer
    key, row, left = keys[doc, number], int64(cursors[number, _ROW]), int64(tables.asked_last)
    chain, at = int64(-1), int64(chains.tails[number, int64(key) & int64(chains.seen.shape[0] - 1)])
    while left > 0 and at >= 0 and next_row + at > row:
        if keys[made[at], number] == key and _meets(tables, held, batch, doc, number, next_row + at, newer):
            left -= 1
            chain = at
        at = int64(chains.backs[at, number])
    start, place = int64(-1), int64(_END)
    while left > 0:
        place = int64(last_passing(table, number, key, place))
        if cursors[number, _HELD] < 0 or place < cursors[number, _HELD]:
            break
        if counts(tables, number, held, int64(row_at(table, held.taken, number, key, place)), batch, doc):
            left -= 1
            start = place
    cursors[number, _HELD] = start
    cursors[number, _CHAIN] = chain


@kernel
def _mark(held: Any, batch: Any, doc: int, row: int, newer: Any, agree: Any) -> None:
    """Set `agree` (V,) to which values of a candidate's sketch are the document's."""
    if row < newer[0]:
        take_sketch(held, row)
        _compare(held.taken.sketches[0], batch.sketches[doc], agree)
    else:
        _compare(batch.sketches[newer[2][row - newer[0]]], batch.sketches[doc], agree)


@kernel
def _compare(one: Any, other: Any, agree: Any) -> None:
    """Set `agree` (V,) to which values of two sketches are equal."""
    for at in range(_FIRST):
        agree[at] = one[at] == other[at]
    for at in range(_FIRST, one.shape[0]):
        differing = one[at] ^ other[at]
        agree[2 * at - _FIRST] = (differing & uint8(15)) == 0
        agree[2 * at - _FIRST + 1] = (differing >> uint8(4)) == 0


@kernel
def _own_share(agree: Any, seen: Any, others: int, own: int) -> int:
    """Return what a candidate shares of what `others` of the crowd do not, in per cent: `ground.sketch.own_share`, compiled.

    `seen` counts how often a value of the crowd is the document's; `own` is 1 where the candidate is one of them, else 0.
    """
    have = whole = int64(0)
    most = int64(others) + _SCEPTICS
    for at in range(_FIRST):
        is_equal = int64(agree[at])
        weight = (_FIRST_WEIGHT * (most - seen[at] + own * is_equal)) ** 2
        whole += weight
        have += _FIRST_WEIGHT * is_equal * weight
    for at in range(_FIRST, agree.shape[0]):
        is_equal = int64(agree[at])
        weight = min(_FIRST_WEIGHT * most, _JUDGING_WEIGHT * (most - seen[at] + own * is_equal)) ** 2
        whole += weight
        have += (_JUDGING_WEIGHT * is_equal - 1) * weight
    return int(max(int64(0), 100 * have // (_FIRST_WEIGHT * whole)))


@kernel
def _judge(tables: Any, agree: Any, seen: Any, others: int, own: int, row: int, apart: int, reached: Any, count: int) -> int:
    """Write a candidate that is alike to `reached`, if it is near or all are wanted; return how many there are now."""
    share = int64(_own_share(agree, seen, others, own)) if others > 0 else int64(ALONE)
    if share < tables.crowd and reached.rows.shape[0] == 1:
        return count
    if count < reached.rows.shape[0]:
        reached.rows[count], reached.distances[count] = row, apart
        reached.others[count], reached.shares[count] = others, share
    return count + 1


@kernel
def walk(tables: Any, table: Any, held: Any, batch: Any, doc: int, keys: Any, newer: Any, walking: Any, reached: Any) -> int:
    """Write the rows near a document, in log order, to `reached` (`rows.AlikeRows`); return how many there are.

    With room for one it ends at the first. With room for more it writes those too that are alike and that the crowd turns away.
    `newer`: which row the first entry has that the batch has made, the batch's chains, and which documents became entries;
    `walking` is scratch.
    """
    cursors, rows, apart, agrees, seen = walking
    next_row, count, candidates, room = newer[0], int64(0), int64(0), reached.rows.shape[0]
    for number in range(keys.shape[1]):
        cursors[number, _HELD] = cursors[number, _CHAIN] = 0
        cursors[number, _LEFT] = tables.asked - tables.asked_last
        _move_on(table, held, number, keys, doc, newer, cursors)
    seen[:] = 0
    while count == 0 or room > 1:
        row: Any = NONE
        for number in range(keys.shape[1]):
            row = min(row, cursors[number, _ROW])
        if row == NONE:
            break
        is_candidate = False
        for number in range(keys.shape[1]):
            if cursors[number, _ROW] == row:
                if _meets(tables, held, batch, doc, number, row, newer):
                    is_candidate = True
                    cursors[number, _LEFT] -= 1
                    if cursors[number, _LEFT] == 0:
                        _to_the_last(tables, table, held, batch, doc, number, keys, newer, cursors)
                _move_on(table, held, number, keys, doc, newer, cursors)
        if not is_candidate:
            continue
        if row < next_row:
            distance = int64(near_if_found_held(tables, held, row, batch, doc))
        else:
            distance = int64(near_if_found(tables, batch, newer[2][row - next_row], doc))
        if tables.crowd == 0:
            if distance >= 0:
                count = int64(_judge(tables, agrees[_CROWD], seen, 0, 0, row, distance, reached, count))
        elif candidates < _CROWD:
            _mark(held, batch, doc, row, newer, agrees[candidates])
            for at in range(seen.shape[0]):
                seen[at] += agrees[candidates, at]
            rows[candidates], apart[candidates] = row, distance
            candidates += 1
            if candidates == _CROWD:
                count = int64(_judge_crowd(tables, walking, candidates, reached))
        elif distance >= 0:
            _mark(held, batch, doc, row, newer, agrees[_CROWD])
            count = int64(_judge(tables, agrees[_CROWD], seen, _CROWD, 0, row, distance, reached, count))
    if 0 < candidates < _CROWD:
        count = int64(_judge_crowd(tables, walking, candidates, reached))
    return int(count)


@kernel
def _judge_crowd(tables: Any, walking: Any, candidates: int, reached: Any) -> int:
    """Judge those of the crowd that are alike, each by the others, as `_judge` does; return how many are written."""
    _, rows, apart, agrees, seen = walking
    count = int64(0)
    for at in range(candidates):
        if apart[at] >= 0 and (count == 0 or reached.rows.shape[0] > 1):
            count = int64(_judge(tables, agrees[at], seen, candidates - 1, 1, rows[at], apart[at], reached, count))
    return int(count)
