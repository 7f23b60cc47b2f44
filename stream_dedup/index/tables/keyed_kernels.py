"""Compiled functions of `keyed`: find near entries before a batch, and judge the batch.

The cap: a plan may compare a document with at most `candidates_max` entries of each key, some from
the start of its bucket and some from the end. If more entries of a bucket match by their tags,
those with the exact key are counted from both ends, and the entries in between are skipped.

`search_before_batch` searches the entries before the batch, for many documents in one call. With a
cap its result only shows which documents may have a near entry, because some of the last entries of a
key may be in the batch. `collect_in_order` then finds the near entries of such a document exactly.

`collect_in_order` visits the rows of all tables in log order. In each table a cursor points to the
next row whose key seems to equal the document's. The earliest row of all cursors is compared once,
even if several cursors point to it, and it counts in each table in which it has the exact key.
After the first rows that its table may compare, a cursor continues with the last ones. The new
entries of the batch follow those before the batch.
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
    find_last,
    find_next,
    first_tag,
    read_frozen_row,
    read_half,
    read_row,
    second_tag,
)
from stream_dedup.index.tables.near_kernels import (
    find_in_batch,
    has_equal_key,
    has_full_key,
    load_sketch,
    near_distance,
    near_distance_loaded,
    similarity_percent,
)
from stream_dedup.index.tables.rows import (
    NONE,
    OUTCOME_DIGEST,
    OUTCOME_NEAR,
    OUTCOME_NEW,
    OUTCOME_SHORT,
    NewEntries,
)
from stream_dedup.kernels.compiled import inlined, kernel, popcount, prefetch

int64: Any = np.int64
uint64: Any = np.uint64

_LINE: Final = 64
_SIBLING: Final = -2  # the result of `near_distance` for a sibling
_END: Final = 1 << 40  # larger than every place in a bucket
# The values of a cursor: the next place in the bucket, the next entry of the chain (new entries of the
# batch), the current row, and how many of the first rows may still be compared.
_PLACE, _CHAIN, _ROW, _REMAINING = range(4)


@kernel
def _has_more_matches(key_tables: Any, number: int, key: Any, count_max: int) -> Any:
    """Return whether more than `count_max` entries of a key's bucket match by their tags."""
    place = int64(-1)
    for _ in range(count_max + 1):
        place = int64(find_next(key_tables, number, key, place + 1))
        if place < 0:
            return False
    return True


@kernel
def _search_long_bucket(
    plan: Any,
    key_tables: Any,
    loaded: Any,
    batch: Any,
    doc: int,
    number: int,
    key: Any,
    row_end: Any,
) -> Any:
    """Compare the first and the last entries of a long bucket before row `row_end`,
    `candidates_max` in all.

    Return (the first near row, or NONE; its distance; how many compared rows have the key; the first
    sibling's row, or NONE).
    """
    found, last_front, front_count = (
        int64(0),
        int64(-1),
        int64(plan.candidates_max - plan.candidates_last),
    )
    sibling: Any = NONE
    while found < front_count:
        last_front = int64(find_next(key_tables, number, key, last_front + 1))
        if last_front < 0:
            return NONE, int64(0), found, sibling
        row = int64(read_row(key_tables, loaded.buffer, number, key, last_front))
        if row >= row_end:
            return NONE, int64(0), found, sibling
        if has_full_key(plan, number, loaded, row, batch, doc):
            found += 1
            distance = int64(near_distance_loaded(plan, loaded, row, batch, doc))
            if distance >= 0:
                return row, distance, found, sibling
            if distance == _SIBLING:
                sibling = min(sibling, row)
    place, best, best_distance = int64(_END), NONE, int64(0)
    while found < plan.candidates_max:
        place = int64(find_last(key_tables, number, key, place))
        if place <= last_front:
            break
        row = int64(read_row(key_tables, loaded.buffer, number, key, place))
        if has_full_key(plan, number, loaded, row, batch, doc):
            found += 1
            distance = (
                int64(near_distance_loaded(plan, loaded, row, batch, doc))
                if row < row_end
                else int64(-1)
            )
            if distance >= 0:
                best, best_distance = row, distance
            elif distance == _SIBLING:
                sibling = min(sibling, row)
    return best, best_distance, found, sibling


@inlined
def _prefetch_heads(key_tables: Any, keys: Any, doc: int) -> None:
    """Prefetch the starts of the buckets in which a document is searched."""
    heads, active_heads = key_tables.heads, key_tables.active_heads
    for number in range(heads.shape[0]):
        bucket = bucket_of(key_tables.masks[number], keys[doc, number])
        prefetch(heads, number * heads.shape[1] + bucket)
        prefetch(active_heads, (number * active_heads.shape[1] + (bucket >> GROUP_BITS)) * 2)


@inlined
def _prefetch_tags(key_tables: Any, keys: Any, doc: int) -> None:
    """Prefetch the tags in the buckets in which a document is searched."""
    heads, tags, active_heads = key_tables.heads, key_tables.tags, key_tables.active_heads
    places = tags.shape[0] // heads.shape[0]
    for number in range(heads.shape[0]):
        bucket = bucket_of(key_tables.masks[number], keys[doc, number])
        begin, end = int64(heads[number, bucket]), int64(heads[number, bucket + 1])
        group = bucket >> GROUP_BITS
        if end > begin:
            prefetch(tags, number * places + begin)
            prefetch(tags, number * places + min(end - 1, begin + _LINE))
        if active_heads[number, group, 1] > 0:
            prefetch(key_tables.active_tags, int64(active_heads[number, group, 0]) * UNIT)


@kernel
def search_before_batch(
    plan: Any,
    key_tables: Any,
    loaded: Any,
    batch: Any,
    keys: Any,
    docs: Any,
    best: Any,
    best_distance: Any,
    sibling: Any,
    is_only_match: Any,
    hits: Any,
    candidates: Any,
) -> None:
    """Search for the documents `docs` (m,) int64. Set `best` (n,) int64 and `best_distance` (n,) int64
    to the earliest near row, and `sibling` (n,) int64 to the earliest sibling, if these are earlier
    than the values there.

    `is_only_match` (n,) is set to whether no table has another row that matches by its tags.
    `candidates` (n,) int64 is increased by the number of compared entries. `hits` (2, any) int64 is
    scratch, in which matches are gathered to compare them together. The memory for a document is
    prefetched while earlier ones are searched: heads two documents ahead, tags one.
    """
    for order in range(docs.shape[0] + 2):
        if order < docs.shape[0]:
            _prefetch_heads(key_tables, keys, docs[order])
        if 1 <= order <= docs.shape[0]:
            _prefetch_tags(key_tables, keys, docs[order - 1])
        if order >= 2:
            doc = docs[order - 2]
            is_only_match[doc] = _search_document(
                plan, key_tables, loaded, batch, keys, doc, best, best_distance, sibling, hits, candidates
            )  # fmt: skip


@kernel
def _search_document(
    plan: Any, key_tables: Any, loaded: Any, batch: Any, keys: Any, doc: int,
    best: Any, best_distance: Any, sibling: Any, hits: Any, candidates: Any,
) -> Any:  # fmt: skip
    """Search one document in all tables; return whether only its best row matches by its tags."""
    heads, tags, active_heads = key_tables.heads, key_tables.tags, key_tables.active_heads
    places, gathered, is_only_match = tags.shape[0] // heads.shape[0], 0, True
    for number in range(heads.shape[0]):
        key = keys[doc, number]
        bucket = bucket_of(key_tables.masks[number], key)
        group, first, second = bucket >> GROUP_BITS, first_tag(key), second_tag(key)
        begin = number * places + int64(heads[number, bucket])
        end = number * places + int64(heads[number, bucket + 1])
        active_begin = int64(active_heads[number, group, 0]) * UNIT
        active_end = active_begin + int64(active_heads[number, group, 1])
        if 0 < plan.candidates_max < end - begin + active_end - active_begin and _has_more_matches(
            key_tables, number, key, plan.candidates_max
        ):
            row, distance, count_found, long_sibling = _search_long_bucket(
                plan, key_tables, loaded, batch, doc, number, key, best[doc]
            )
            candidates[doc] += count_found
            sibling[doc] = min(sibling[doc], long_sibling)
            is_only_match = False
            if row < best[doc]:
                best[doc], best_distance[doc] = row, distance
            continue
        wanted_tag = active_tag(key)
        # First the places of the frozen segment, then those of the active one, as -1 - place.
        for step in range(end - begin + active_end - active_begin):
            index = begin + step
            if index < end:
                if tags[index] != first or read_half(key_tables.half_tags, index) != second:
                    continue
                if key_tables.rows.shape[0] > 0:
                    prefetch(key_tables.rows, index)
            else:
                place = active_begin + index - end
                if key_tables.active_tags[place] != wanted_tag:
                    continue
                prefetch(key_tables.active_rows, place)
                index = -1 - place
            if gathered == hits.shape[1]:
                _resolve_rows(key_tables, loaded, hits, gathered)
                _compare_rows(
                    plan, loaded, batch, doc, hits, gathered, best, best_distance, sibling
                )
                gathered, is_only_match = 0, False
                if _is_exhausted(hits, number, best[doc]):
                    break
            hits[0, gathered], hits[1, gathered] = index, number
            gathered += 1
            candidates[doc] += 1
    _resolve_rows(key_tables, loaded, hits, gathered)
    _compare_rows(plan, loaded, batch, doc, hits, gathered, best, best_distance, sibling)
    for index in range(gathered):
        is_only_match = is_only_match and hits[0, index] == best[doc]
    return is_only_match


@inlined
def _is_exhausted(hits: Any, number: int, best: Any) -> Any:
    """Return whether the last gathered row is from this table and not before the best row, so that no
    later row of the table can be better.
    """
    last = hits.shape[1] - 1
    return hits[1, last] == number and hits[0, last] >= best


@kernel
def _resolve_rows(key_tables: Any, loaded: Any, hits: Any, gathered: int) -> None:
    """Replace places by row numbers, and prefetch the rows' prints and sketches.

    Places of the frozen segment are 0 or more, those of the active one are -1 - place.
    """
    for index in range(gathered):
        place, number = hits[0, index], hits[1, index]
        hits[0, index] = (
            read_frozen_row(key_tables, loaded.buffer, number, place)
            if place >= 0
            else int64(key_tables.active_rows[-1 - place])
        )
        if loaded.files[0] < 0:
            prefetch(loaded.prints, hits[0, index] * loaded.prints.shape[1])
        if loaded.files[2] < 0:
            for line in range(0, loaded.sketches.shape[1], _LINE):
                prefetch(loaded.sketches, hits[0, index] * loaded.sketches.shape[1] + line)


@kernel
def _compare_rows(
    plan: Any,
    loaded: Any,
    batch: Any,
    doc: int,
    hits: Any,
    gathered: int,
    best: Any,
    best_distance: Any,
    sibling: Any,
) -> None:
    """Compare the document with the rows `hits[0]`, found in the tables `hits[1]`, and set its best row
    and sibling to the earliest ones, if these are earlier than the values there.
    """
    prints, threshold = loaded.prints, plan.threshold
    is_filtered = loaded.files[0] < 0 and not plan.compares_sketches
    document_print, compared_bits = batch.prints[doc, 0], plan.compared_bits[0]
    for index in range(gathered):
        row = hits[0, index]
        # Without sketches the first limb rejects nearly all rows: one line of memory, no copy.
        if row < best[doc] and (
            not is_filtered
            or popcount((prints[row, 0] ^ document_print) & compared_bits) <= threshold
        ):
            distance = int64(near_distance_loaded(plan, loaded, row, batch, doc))
            if distance != -1 and has_full_key(plan, hits[1, index], loaded, row, batch, doc):
                if distance >= 0:
                    best[doc], best_distance[doc] = row, distance
                else:
                    sibling[doc] = min(sibling[doc], row)


@inlined
def _chain_of(chains: Any, number: int, key: Any) -> Any:
    """Return the first entry of the chain that contains the entries with a key, or -1."""
    return chains.heads[number, int64(key) & int64(chains.digest_slots.shape[0] - 1)]


@kernel
def _advance(
    key_tables: Any, loaded: Any, number: int, keys: Any, doc: int, added: Any, cursors: Any
) -> None:
    """Move the cursor of one table to the next row whose key seems to equal the document's, or to NONE
    after the last.
    """
    next_row, chains, new_docs = added.next_row, added.chains, added.new_docs
    key = keys[doc, number]
    if cursors[number, _PLACE] >= 0:
        index = int64(find_next(key_tables, number, key, cursors[number, _PLACE]))
        if index >= 0:
            cursors[number, _PLACE] = index + 1
            cursors[number, _ROW] = read_row(key_tables, loaded.buffer, number, key, index)
            return
        cursors[number, _PLACE] = -1
    index = int64(cursors[number, _CHAIN])
    while index >= 0 and keys[new_docs[index], number] != key:
        index = int64(chains.links[index, number])
    cursors[number, _ROW] = next_row + index if index >= 0 else NONE
    cursors[number, _CHAIN] = int64(chains.links[index, number]) if index >= 0 else int64(-1)


@kernel
def _has_key(
    plan: Any, loaded: Any, batch: Any, doc: int, number: int, row: int, added: Any
) -> Any:
    """Return whether a row has the document's scope and its exact key in one table."""
    if row < added.next_row:
        return has_full_key(plan, number, loaded, row, batch, doc)
    other = added.new_docs[row - added.next_row]
    return batch.scopes[other] == batch.scopes[doc] and has_equal_key(
        plan, number, batch, other, batch, doc
    )


@kernel
def _skip_to_last(
    plan: Any,
    key_tables: Any,
    loaded: Any,
    batch: Any,
    doc: int,
    number: int,
    keys: Any,
    added: Any,
    cursors: Any,
) -> None:
    """Move the cursor of a table to the first of the last `candidates_last` rows."""
    next_row, chains, new_docs = added.next_row, added.chains, added.new_docs
    key, row, remaining = (
        keys[doc, number],
        int64(cursors[number, _ROW]),
        int64(plan.candidates_last),
    )
    chain, index = (
        int64(-1),
        int64(chains.tails[number, int64(key) & int64(chains.digest_slots.shape[0] - 1)]),
    )
    while remaining > 0 and index >= 0 and next_row + index > row:
        if keys[new_docs[index], number] == key and _has_key(
            plan, loaded, batch, doc, number, next_row + index, added
        ):
            remaining -= 1
            chain = index
        index = int64(chains.backs[index, number])
    next_place, place = int64(-1), int64(_END)
    while remaining > 0:
        place = int64(find_last(key_tables, number, key, place))
        if cursors[number, _PLACE] < 0 or place < cursors[number, _PLACE]:
            break
        if has_full_key(
            plan,
            number,
            loaded,
            int64(read_row(key_tables, loaded.buffer, number, key, place)),
            batch,
            doc,
        ):
            remaining -= 1
            next_place = place
    cursors[number, _PLACE] = next_place
    cursors[number, _CHAIN] = chain


@kernel
def collect_in_order(
    plan: Any,
    key_tables: Any,
    loaded: Any,
    batch: Any,
    doc: int,
    keys: Any,
    added: Any,
    cursors: Any,
    near: Any,
    is_batch_only: Any,
) -> int:
    """Write the rows near a document, in log order, to `near` (`rows.NearRows`); return their
    number.

    If `near` has room for only one row, end at the first. `added` are the batch's new entries
    (`rows.NewEntries`); with `is_batch_only` only these are searched. `cursors` (T, 4) int64 is
    scratch for the state of the search in each table.
    """
    next_row, count, capacity = added.next_row, int64(0), near.rows.shape[0]
    near.sibling[0] = NONE
    for number in range(keys.shape[1]):
        cursors[number, _PLACE] = -1 if is_batch_only else 0
        cursors[number, _CHAIN] = _chain_of(added.chains, number, keys[doc, number])
        cursors[number, _REMAINING] = plan.candidates_max - plan.candidates_last
        _advance(key_tables, loaded, number, keys, doc, added, cursors)
    while count == 0 or capacity > 1:
        row: Any = NONE
        for number in range(keys.shape[1]):
            row = min(row, cursors[number, _ROW])
        if row == NONE:
            break
        is_candidate = False
        for number in range(keys.shape[1]):
            if cursors[number, _ROW] == row:
                if _has_key(plan, loaded, batch, doc, number, row, added):
                    is_candidate = True
                    cursors[number, _REMAINING] -= 1
                    if cursors[number, _REMAINING] == 0:
                        _skip_to_last(
                            plan, key_tables, loaded, batch, doc, number, keys, added, cursors
                        )
                _advance(key_tables, loaded, number, keys, doc, added, cursors)
        if not is_candidate:
            continue
        if row < next_row:
            distance = int64(near_distance_loaded(plan, loaded, row, batch, doc))
        else:
            other = added.new_docs[row - next_row]
            distance = int64(near_distance(plan, batch, other, batch, doc))
        if distance == _SIBLING:
            near.sibling[0] = min(near.sibling[0], row)
        elif distance >= 0:
            if count < capacity:
                near.rows[count], near.distances[count] = row, distance
            count += 1
    return int(count)


@inlined
def _has_key_in_batch(doc: int, keys: Any, chains: Any, new_docs: Any) -> Any:
    """Return whether a new entry of the batch seems to have one of a document's keys.

    Inlined, because a call would cost more than the search, which nearly always ends at once.
    """
    mask = int64(chains.digest_slots.shape[0] - 1)
    for number in range(chains.heads.shape[0]):
        key = keys[doc, number]
        index = int64(chains.heads[number, int64(key) & mask])
        while index >= 0:
            if keys[new_docs[index], number] == key:
                return True
            index = int64(chains.links[index, number])
    return False


@inlined
def _find_first_near(
    plan: Any, key_tables: Any, loaded: Any, batch: Any, earlier: Any, keys: Any, chains: Any,
    new_docs: Any, doc: int, cursors: Any, near: Any,
) -> Any:  # fmt: skip
    """Return (the earliest row near a document, or NONE; its distance; the first sibling's row, or
    NONE). This searches the entries before the batch and the new ones.
    """
    near_row, distance = earlier.best[doc], earlier.best_distance[doc]
    first_sibling, is_capped = earlier.sibling[doc], plan.candidates_max > 0
    is_found = min(near_row, first_sibling) != NONE
    if (near_row == NONE or is_capped) and (
        (is_capped and is_found and not earlier.is_only_match[doc])
        or _has_key_in_batch(doc, keys, chains, new_docs)
    ):
        added = NewEntries(earlier.next_row, chains, new_docs)
        total = collect_in_order(
            plan, key_tables, loaded, batch, doc, keys, added, cursors, near, not is_capped
        )
        near_row, distance = (near.rows[0], near.distances[0]) if total > 0 else (NONE, int64(0))
        # With a cap, the entries before the batch were searched again, so the new result counts alone.
        first_sibling = near.sibling[0] if is_capped else min(first_sibling, near.sibling[0])
    return near_row, distance, first_sibling


@inlined
def _add_to_chains(chains: Any, keys: Any, doc: int, count: int) -> None:
    """Add a document's keys, as those of new entry number `count`, to the ends of their chains."""
    heads, tails, links, backs = chains.heads, chains.tails, chains.links, chains.backs
    mask = int64(chains.digest_slots.shape[0] - 1)
    for number in range(heads.shape[0]):
        slot = int64(keys[doc, number]) & mask
        links[count, number] = -1
        if heads[number, slot] < 0:
            heads[number, slot] = count
        else:
            links[tails[number, slot], number] = count
        backs[count, number] = tails[number, slot]
        tails[number, slot] = count


@kernel
def judge_in_order(
    plan: Any,
    key_tables: Any,
    loaded: Any,
    batch: Any,
    earlier: Any,
    keys: Any,
    chains: Any,
    cursors: Any,
    near: Any,
    judged: Any,
) -> None:
    """Judge documents in order; each is compared with those before it.

    Documents that become entries get the rows from `earlier.next_row` on. Chains of their keys (n, T),
    earliest first, find them again. `cursors` and `near` (with room for one row) are for
    `collect_in_order`, which is not called for a document whose best row is its only candidate.
    """
    next_row, outcome, rows = earlier.next_row, judged.outcome, judged.row
    distance, similarity = judged.distance, judged.similarity
    siblings, new_docs, digest_slots = judged.sibling, judged.new_docs, chains.digest_slots
    count = 0
    for doc in range(outcome.shape[0]):
        distance[doc], similarity[doc], siblings[doc] = 0, NOT_COMPARED, -1
        rows[doc] = earlier.same_row[doc]
        slot = int64(earlier.tags[doc]) & int64(digest_slots.shape[0] - 1)
        if rows[doc] < 0:
            place, slot = find_in_batch(batch, doc, digest_slots, new_docs, slot)
            rows[doc] = next_row + place if place >= 0 else -1
        if rows[doc] >= 0:
            outcome[doc] = OUTCOME_DIGEST
            continue
        is_short = batch.features[doc] < earlier.features_min
        if not is_short:
            near_row, row_distance, first_sibling = _find_first_near(
                plan, key_tables, loaded, batch, earlier, keys, chains, new_docs, doc, cursors, near
            )
            compared = first_sibling if near_row == NONE else near_row
            if compared != NONE and compared < next_row:
                load_sketch(loaded, compared)
                similarity[doc] = similarity_percent(loaded.buffer, 0, batch, doc)
            elif compared != NONE:
                other = new_docs[compared - next_row]
                similarity[doc] = similarity_percent(batch, other, batch, doc)
            if near_row != NONE:
                outcome[doc], rows[doc], distance[doc] = OUTCOME_NEAR, near_row, row_distance
                continue
            if first_sibling != NONE:
                siblings[doc] = first_sibling
            _add_to_chains(chains, keys, doc, count)
        outcome[doc] = OUTCOME_SHORT if is_short else OUTCOME_NEW
        rows[doc] = next_row + count
        digest_slots[slot], new_docs[count] = count, doc
        count += 1
