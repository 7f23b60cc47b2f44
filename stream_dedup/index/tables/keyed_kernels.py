"""The compiled half of `keyed`: what is near among the entries before a batch, and what becomes of
a batch.

The cap: where more than `asked` entries of a bucket pass by their tags, those that have the very
key are counted from both ends, and who stands between the first and the last that are asked is
passed over. Where fewer pass nothing is to be counted.

A search finds who is near among the entries before the batch, for all documents at once. Under a
cap that says no more than which documents may have somebody near: some of a block's last ones may
be in the batch. `walk` then says of these documents, in order, who is near: `Plan.scan`, over the
tables.

A walk merges the tables of one document: in each a cursor goes through the rows whose key seems to
be the document's, the earliest of all cursors is looked at once, in however many tables it lies,
and counts in each whose very key it has. A cursor whose table has given the first ones that are
asked goes on with the last ones. Behind the entries that are held come those that the batch has
made so far.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stream_dedup.domain.sketch import NOT_COMPARED
from stream_dedup.index.tables.finder_kernels import (
    GROUP_BITS,
    UNIT,
    active_tag,
    bucket_of,
    first_tag,
    frozen_row,
    half_of,
    last_passing,
    next_passing,
    row_at,
    second_tag,
)
from stream_dedup.index.tables.near_kernels import (
    counts,
    near_if_found,
    near_if_found_held,
    per_cent,
    same_in_batch,
    shares,
    take_sketch,
)
from stream_dedup.index.tables.rows import (
    NONE,
    OUTCOME_DIGEST,
    OUTCOME_NEAR,
    OUTCOME_NEW,
    OUTCOME_SHORT,
)
from stream_dedup.kernels.compiled import inlined, kernel, popcount, prefetch

int64: Any = np.int64
uint64: Any = np.uint64

_LINE: Final = 64
_SIBLING: Final = -2  # of `near_if_found`
_END: Final = 1 << 40  # behind every place in a bucket
_HELD, _CHAIN, _ROW, _LEFT = range(
    4
)  # of a cursor: the next place in the bucket, in the chain; the row; how many of the first


@kernel
def _passes_more(table: Any, number: int, key: Any, most: int) -> Any:
    """Return whether more than `most` entries of a key's bucket pass by their tags."""
    at = int64(-1)
    for _ in range(most + 1):
        at = int64(next_passing(table, number, key, at + 1))
        if at < 0:
            return False
    return True


@kernel
def _ask_in_order(
    tables: Any, table: Any, held: Any, batch: Any, doc: int, number: int, key: Any, end: Any
) -> Any:
    """Ask those of one long bucket who are asked, from both its ends, but none from row `end` on.

    Returns (the row of the first within reach, or NONE; its distance; how many of those that were
    looked at have the key; the row of the first sibling, or NONE).
    """
    found, at, first = int64(0), int64(-1), int64(tables.asked - tables.asked_last)
    sibling: Any = NONE
    while found < first:
        at = int64(next_passing(table, number, key, at + 1))
        if at < 0:
            return NONE, int64(0), found, sibling
        row = int64(row_at(table, held.taken, number, key, at))
        if row >= end:
            return NONE, int64(0), found, sibling
        if counts(tables, number, held, row, batch, doc):
            found += 1
            distance = int64(near_if_found_held(tables, held, row, batch, doc))
            if distance >= 0:
                return row, distance, found, sibling
            if distance == _SIBLING:
                sibling = min(sibling, row)
    place, best, best_distance = int64(_END), NONE, int64(0)
    while found < tables.asked:
        place = int64(last_passing(table, number, key, place))
        if place <= at:
            break
        row = int64(row_at(table, held.taken, number, key, place))
        if counts(tables, number, held, row, batch, doc):
            found += 1
            distance = (
                int64(near_if_found_held(tables, held, row, batch, doc)) if row < end else int64(-1)
            )
            if distance >= 0:
                best, best_distance = row, distance
            elif distance == _SIBLING:
                sibling = min(sibling, row)
    return best, best_distance, found, sibling


@kernel
def search(
    tables: Any,
    table: Any,
    held: Any,
    batch: Any,
    keys: Any,
    docs: Any,
    best: Any,
    best_distance: Any,
    sibling: Any,
    is_alone: Any,
    passed: Any,
    candidates: Any,
) -> None:
    """Lower `best` (n,) int64 and `best_distance` (n,) int64 to the earliest row within reach that
    any table knows, and `sibling` (n,) int64 to the earliest that only site or title keeps apart.

    `is_alone` (n,) is set where no table has another row that passes by its tags. `docs` (m,) int64
    are those to search for; `passed` (2, any) int64 is scratch: what passes is gathered, and looked
    up together. `candidates` (n,) int64 grows by the entries that are looked up. What a document
    visits is asked for while those before it are searched, heads two documents ahead and tags one.
    """
    heads, tags, more, rows = table.heads, table.tags, table.more, table.rows
    active_heads, active_tags, active_rows = (
        table.active_heads,
        table.active_tags,
        table.active_rows,
    )
    asked, room, count, groups = (
        tables.asked,
        passed.shape[1],
        heads.shape[0],
        active_heads.shape[1],
    )
    places, masks = tags.shape[0] // count, table.masks
    for order in range(docs.shape[0] + 2):
        if order < docs.shape[0]:
            for number in range(count):
                bucket = bucket_of(masks[number], keys[docs[order], number])
                prefetch(heads, number * heads.shape[1] + bucket)
                prefetch(active_heads, (number * groups + (bucket >> GROUP_BITS)) * 2)
        if 1 <= order <= docs.shape[0]:
            for number in range(count):
                bucket = bucket_of(masks[number], keys[docs[order - 1], number])
                begin, end = int64(heads[number, bucket]), int64(heads[number, bucket + 1])
                group = bucket >> GROUP_BITS
                if end > begin:
                    prefetch(tags, number * places + begin)
                    prefetch(tags, number * places + min(end - 1, begin + _LINE))
                if active_heads[number, group, 1] > 0:
                    prefetch(active_tags, int64(active_heads[number, group, 0]) * UNIT)
        if order < 2:
            continue
        doc, gathered, is_whole = (
            docs[order - 2],
            0,
            True,
        )  # whole: all that passed is gathered at once
        for number in range(count):
            key = keys[doc, number]
            bucket, first, second = bucket_of(masks[number], key), first_tag(key), second_tag(key)
            group = bucket >> GROUP_BITS
            at = number * places + int64(heads[number, bucket])
            stop = number * places + int64(heads[number, bucket + 1])
            active_length, is_over = (
                int64(active_heads[number, group, 1]),
                False,
            )  # over: all that follow come after the best
            if (
                asked > 0
                and stop - at + active_length > asked
                and _passes_more(table, number, key, asked)
            ):
                row, distance, found, apart = _ask_in_order(
                    tables, table, held, batch, doc, number, key, best[doc]
                )
                candidates[doc] += found
                sibling[doc] = min(sibling[doc], apart)
                is_whole = False
                if row < best[doc]:
                    best[doc], best_distance[doc] = row, distance
                continue
            while at < stop:
                if tags[at] == first and half_of(more, at) == second:
                    if gathered == room:
                        _resolve(table, held, passed, gathered)
                        _look_up(
                            tables, held, batch, doc, passed, gathered, best, best_distance, sibling
                        )
                        is_over, gathered, is_whole = _ends(passed, number, best[doc]), 0, False
                        if is_over:
                            break
                    passed[0, gathered], passed[1, gathered] = at, number
                    if rows.shape[0] > 0:
                        prefetch(rows, at)
                    gathered += 1
                    candidates[doc] += 1
                at += 1
            at, wanted = int64(active_heads[number, group, 0]) * UNIT, active_tag(key)
            for place in range(at, at if is_over else at + active_length):
                if active_tags[place] == wanted:
                    if gathered == room:
                        _resolve(table, held, passed, gathered)
                        _look_up(
                            tables, held, batch, doc, passed, gathered, best, best_distance, sibling
                        )
                        gathered, is_whole = 0, False
                        if _ends(passed, number, best[doc]):
                            break
                    passed[0, gathered], passed[1, gathered] = -1 - place, number
                    prefetch(active_rows, place)
                    gathered += 1
                    candidates[doc] += 1
        _resolve(table, held, passed, gathered)
        _look_up(tables, held, batch, doc, passed, gathered, best, best_distance, sibling)
        for at in range(gathered):
            is_whole = is_whole and passed[0, at] == best[doc]
        is_alone[doc] = is_whole


@inlined
def _ends(passed: Any, number: int, best: Any) -> Any:
    """Return whether the last row that was gathered is of this table and not before the best, and
    so all that follow.
    """
    last = passed.shape[1] - 1
    return passed[1, last] == number and passed[0, last] >= best


@kernel
def _resolve(table: Any, held: Any, passed: Any, gathered: int) -> None:
    """Turn places in the frozen rows, or -1 - places in the open ones, into rows, and ask for their
    prints.
    """
    for at in range(gathered):
        place, number = passed[0, at], passed[1, at]
        passed[0, at] = (
            frozen_row(table, held.taken, number, place)
            if place >= 0
            else int64(table.active_rows[-1 - place])
        )
        if held.files[0] < 0:
            prefetch(held.prints, passed[0, at] * held.prints.shape[1])
        if held.files[2] < 0:
            for line in range(0, held.sketches.shape[1], _LINE):
                prefetch(held.sketches, passed[0, at] * held.sketches.shape[1] + line)


@kernel
def _look_up(
    tables: Any,
    held: Any,
    batch: Any,
    doc: int,
    passed: Any,
    gathered: int,
    best: Any,
    best_distance: Any,
    sibling: Any,
) -> None:
    """Lower the document's best by those of the rows `passed[0]`, found in the tables `passed[1]`,
    that are within reach, and its sibling by those that site or title keeps apart.
    """
    prints, threshold = held.prints, tables.threshold
    by_print = held.files[0] < 0 and not tables.compares
    wanted, whole = batch.prints[doc, 0], tables.whole[0]
    for at in range(gathered):
        row = passed[0, at]
        # Without sketches half a print turns nearly all away, by one line of memory and before
        # anything is copied.
        if row < best[doc] and (
            not by_print or popcount((prints[row, 0] ^ wanted) & whole) <= threshold
        ):
            distance = int64(near_if_found_held(tables, held, row, batch, doc))
            if distance != -1 and counts(tables, passed[1, at], held, row, batch, doc):
                if distance >= 0:
                    best[doc], best_distance[doc] = row, distance
                else:
                    sibling[doc] = min(sibling[doc], row)


@kernel
def _move_on(
    table: Any, held: Any, number: int, keys: Any, doc: int, newer: Any, cursors: Any
) -> None:
    """Move the cursor of one table to the next row whose key seems to be the document's; NONE
    behind the last.
    """
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
    return batch.scopes[other] == batch.scopes[doc] and shares(
        tables, number, batch, other, batch, doc
    )


@kernel
def _to_the_last(
    tables: Any,
    table: Any,
    held: Any,
    batch: Any,
    doc: int,
    number: int,
    keys: Any,
    newer: Any,
    cursors: Any,
) -> None:
    """Move the cursor of a table on to where the last ones that are asked begin: its next move ends
    at the first of them.
    """
    next_row, chains, made = newer
    key, row, left = keys[doc, number], int64(cursors[number, _ROW]), int64(tables.asked_last)
    chain, at = int64(-1), int64(chains.tails[number, int64(key) & int64(chains.seen.shape[0] - 1)])
    while left > 0 and at >= 0 and next_row + at > row:
        if keys[made[at], number] == key and _meets(
            tables, held, batch, doc, number, next_row + at, newer
        ):
            left -= 1
            chain = at
        at = int64(chains.backs[at, number])
    start, place = int64(-1), int64(_END)
    while left > 0:
        place = int64(last_passing(table, number, key, place))
        if cursors[number, _HELD] < 0 or place < cursors[number, _HELD]:
            break
        if counts(
            tables, number, held, int64(row_at(table, held.taken, number, key, place)), batch, doc
        ):
            left -= 1
            start = place
    cursors[number, _HELD] = start
    cursors[number, _CHAIN] = chain


@kernel
def walk(
    tables: Any,
    table: Any,
    held: Any,
    batch: Any,
    doc: int,
    keys: Any,
    newer: Any,
    cursors: Any,
    reached: Any,
) -> int:
    """Write the rows near a document, in log order, to `reached` (`rows.NearRows`); return how
    many there are.

    With room for one it ends at the first. `newer`: which row the first entry has that the batch
    has made, the batch's chains, and which documents became entries; `cursors` (T, 4) int64 is
    scratch: where the walk is in each table.
    """
    next_row, count, room = newer[0], int64(0), reached.rows.shape[0]
    reached.sibling[0] = NONE
    for number in range(keys.shape[1]):
        cursors[number, _HELD] = cursors[number, _CHAIN] = 0
        cursors[number, _LEFT] = tables.asked - tables.asked_last
        _move_on(table, held, number, keys, doc, newer, cursors)
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
            other = newer[2][row - next_row]
            distance = int64(near_if_found(tables, batch, other, batch, doc))
        if distance == _SIBLING:
            reached.sibling[0] = min(reached.sibling[0], row)
        elif distance >= 0:
            if count < room:
                reached.rows[count], reached.distances[count] = row, distance
            count += 1
    return int(count)


@kernel
def _first_in_batch(
    tables: Any, batch: Any, doc: int, number: int, key: Any, keys: Any, chains: Any, made: Any
) -> Any:
    """Return (the first new entry of the batch that is near in one table, or NONE; its distance;
    the first sibling, or NONE).

    Of a table with a cap it looks at the first and the last ones, as many as are asked at most.
    """
    mask = int64(chains.seen.shape[0] - 1)
    at, left = (
        int64(chains.heads[number, int64(key) & mask]),
        int64(tables.asked - tables.asked_last),
    )
    sibling: Any = NONE
    while at >= 0:
        other = made[at]
        is_seen = keys[other, number] == key and batch.scopes[other] == batch.scopes[doc]
        if is_seen and shares(tables, number, batch, other, batch, doc):
            distance = int64(near_if_found(tables, batch, other, batch, doc))
            if distance >= 0:
                return at, distance, sibling
            if distance == _SIBLING:
                sibling = min(sibling, at)
            left -= 1
            if left == 0:
                break
        at = int64(chains.links[at, number])
    if at < 0:
        return NONE, int64(0), sibling
    end, left = at, int64(tables.asked_last)
    at = int64(chains.tails[number, int64(key) & mask])
    found, bits = NONE, int64(0)
    while at > end and left > 0:
        other = made[at]
        is_seen = keys[other, number] == key and batch.scopes[other] == batch.scopes[doc]
        if is_seen and shares(tables, number, batch, other, batch, doc):
            left -= 1
            distance = int64(near_if_found(tables, batch, other, batch, doc))
            if distance >= 0:
                found, bits = at, distance
            elif distance == _SIBLING:
                sibling = min(sibling, at)
        at = int64(chains.backs[at, number])
    return found, bits, sibling


@kernel
def _meets_in_batch(doc: int, keys: Any, chains: Any, made: Any) -> Any:
    """Return whether a new entry of the batch seems to have a key of a document."""
    mask = int64(chains.seen.shape[0] - 1)
    for number in range(chains.heads.shape[0]):
        key = keys[doc, number]
        at = int64(chains.heads[number, int64(key) & mask])
        while at >= 0:
            if keys[made[at], number] == key:
                return True
            at = int64(chains.links[at, number])
    return False


@kernel
def judge_in_order(
    tables: Any,
    table: Any,
    held: Any,
    batch: Any,
    known: Any,
    keys: Any,
    chains: Any,
    cursors: Any,
    reached: Any,
    judged: Any,
) -> None:
    """Judge documents in order, each seeing those before it; those that become entries are the rows
    from `known.next_row` on.

    The batch's new entries are found by their keys (n, T), by chains that begin with the earliest.
    `cursors` and `reached`, which has room for one, are those of `walk`, which a document is spared
    that has no candidate but its best.
    """
    floor, next_row, same, best, best_distance, sibling, is_alone, tags = known
    seen, heads, tails, links, backs = chains
    outcome, found, distance, similarity, siblings, made = judged
    mask = int64(seen.shape[0] - 1)
    count = 0
    for doc in range(outcome.shape[0]):
        distance[doc], similarity[doc], siblings[doc] = 0, NOT_COMPARED, -1
        found[doc] = same[doc]
        slot = int64(tags[doc]) & mask
        if found[doc] < 0:
            place, slot = same_in_batch(batch, doc, seen, made, slot)
            found[doc] = next_row + place if place >= 0 else -1
        if found[doc] >= 0:
            outcome[doc] = OUTCOME_DIGEST
            continue
        short = batch.features[doc] < floor
        if not short:
            row, bits, apart = best[doc], best_distance[doc], sibling[doc]
            if row == NONE:
                first = NONE
                for number in range(heads.shape[0]):
                    key = keys[doc, number]
                    at = int64(heads[number, int64(key) & mask])
                    while (
                        at >= 0 and keys[made[at], number] != key
                    ):  # nearly all there are; a call costs more
                        at = int64(links[at, number])
                    if 0 <= at < first:
                        at, near_bits, beside = _first_in_batch(
                            tables, batch, doc, number, key, keys, chains, made
                        )
                        if beside != NONE:
                            apart = min(apart, next_row + beside)
                        if at < first:
                            first, bits = at, near_bits
                if first != NONE:
                    row = next_row + first
            if (
                min(row, apart) != NONE
                and tables.asked > 0
                and not (is_alone[doc] and not _meets_in_batch(doc, keys, chains, made))
            ):
                newer = (next_row, chains, made)
                is_found = walk(tables, table, held, batch, doc, keys, newer, cursors, reached) > 0
                row, bits = (
                    (reached.rows[0], reached.distances[0]) if is_found else (NONE, int64(0))
                )
                apart = reached.sibling[0]
            named = apart if row == NONE else row
            if named != NONE and named < next_row:
                take_sketch(held, named)
                similarity[doc] = per_cent(held.taken, 0, batch, doc)
            elif named != NONE:
                similarity[doc] = per_cent(batch, made[named - next_row], batch, doc)
            if row != NONE:
                outcome[doc] = OUTCOME_NEAR
                found[doc] = row
                distance[doc] = bits
                continue
            if apart != NONE:
                siblings[doc] = apart
        outcome[doc] = OUTCOME_SHORT if short else OUTCOME_NEW
        found[doc] = next_row + count
        seen[slot] = count
        made[count] = doc
        for number in range(0 if short else heads.shape[0]):
            slot = int64(keys[doc, number]) & mask
            links[count, number] = -1
            if heads[number, slot] < 0:
                heads[number, slot] = count
            else:
                links[tails[number, slot], number] = count
            backs[count, number] = tails[number, slot]
            tails[number, slot] = count
        count += 1
