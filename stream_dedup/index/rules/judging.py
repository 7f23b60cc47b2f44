"""Judge a batch: look up each document by its position, by its text digest, then in the tables.

The steps:
  1  raise the watermarks of the batch's source partitions
  2  decide each document: by a cached verdict, by a live representative at its position, as stale, or
     by judging it (see `positions`)
  3  add rows of new representatives, and cache verdicts at or above the watermarks
  4  if duplicates refresh the window, renew the representatives that they name

Nothing here writes to the volume. Only two kinds of stored entries are read: those that verdicts
name, and those of redelivered documents.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import LogPlace, Reason
from stream_dedup.domain.lazy_sequences import Ids
from stream_dedup.index.rules import last_texts
from stream_dedup.index.rules.copies import Copies
from stream_dedup.index.rules.last_texts import IdText
from stream_dedup.index.rules.positions import (
    find_spans,
    handle_of,
    read_keys,
    split_at_repeats,
)
from stream_dedup.index.rules.reasons import reason_of_duplicate, reason_of_state
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.storage.columns import (
    FULL,
    SHORT,
    Columns,
    copy_columns,
    select_rows,
    with_origins,
)
from stream_dedup.index.storage.entries import RepresentativeColumns, columns_of
from stream_dedup.index.storage.layout import row_type
from stream_dedup.index.storage.pages import same_ids, select_ids
from stream_dedup.index.storage.tags import crcs_of
from stream_dedup.index.tables.rows import OUTCOME_DIGEST, OUTCOME_NEAR, OUTCOME_SHORT
from stream_dedup.log.records import Batch
from stream_dedup.log.schema import Judgement, NamedRepresentatives, Verdicts


class LoggedBatch(NamedTuple):
    """A batch and its place in the log."""

    log_offset: int
    append_ms: int
    batch: Batch


Mask = NDArray[np.bool_]

_REASONS: Final = np.array(
    [
        [reason_of_duplicate(same_text=text, same_id=id_) for id_ in (False, True)]
        for text in (False, True)
    ],
    np.uint8,
)


class _Judging:
    """A batch and its masks (n,) for step 2.

    `has_lower_epoch`: the document's epoch is below that of its partition's watermark.
    `is_below_watermark`: its (epoch, offset) is below the watermark.
    """

    def __init__(
        self,
        logged: LoggedBatch,
        columns: Columns,
        floor: int,
        has_lower_epoch: Mask,
        is_below_watermark: Mask,
    ) -> None:
        self.log_offset, self.append_ms, self.batch = (
            logged.log_offset,
            logged.append_ms,
            logged.batch,
        )
        self.columns, self.floor = columns, floor
        self.has_lower_epoch, self.is_below_watermark = has_lower_epoch, is_below_watermark
        self.named_entries: set[int] = set()


def judge_batch(state: IndexState, logged: LoggedBatch, floor: int) -> Verdicts:
    """Judge the documents of a batch that follows the log's rules, in order."""
    batch = logged.batch
    numbers = state.number_sources(batch)
    for number, source in zip(numbers, batch.sources, strict=True):
        state.positions.raise_watermark(number, source.epoch, source.committed)
    watermarks = [state.positions.watermark(number) for number in numbers]
    has_lower_epoch = np.array(
        [source.epoch < epoch for source, (epoch, _) in zip(batch.sources, watermarks, strict=True)]
    )[batch.source]
    committed = np.array([committed for _, committed in watermarks], np.int64)[batch.source]
    columns = columns_of_batch(batch, np.array(numbers, np.uint32)[batch.source])
    is_below_watermark = has_lower_epoch | (columns.offsets < committed)
    judging = _Judging(logged, columns, floor, has_lower_epoch, is_below_watermark)
    verdicts = _judge_new_batch(state, judging)
    if verdicts is None:
        judgements: list[Judgement] = []
        for first, end in split_at_repeats(read_keys(columns)):
            judgements += _judge_range(state, judging, first, end)
        verdicts = Verdicts.of(judgements)
    if state.window is not None and state.window.refresh:
        _renew_representatives(state, judging.named_entries)
    return verdicts


def _judge_new_batch(state: IndexState, judging: _Judging) -> Verdicts | None:
    """Judge a batch in one step if every document is new to the index and none occurs twice, as in
    nearly every batch; otherwise return None and change nothing.

    After a crash, a rebalance or a rewind `_judge_range` looks each document up.
    """
    positions, columns = state.positions, judging.columns
    spans, are_ascending = find_spans(columns.sources, columns.offsets)
    if judging.is_below_watermark.any() or not are_ascending or not positions.is_new_batch(spans):
        return None
    if (state.require_stores()[1].find_positions(columns) >= 0).any():
        return None
    verdicts, handles = _judge_new(state, judging, np.arange(len(columns.offsets)))
    positions.cache(judging.log_offset, columns, verdicts, handles)
    return verdicts


def columns_of_batch(batch: Batch, sources: NDArray[np.uint32]) -> Columns:
    """Return the columns of a batch that tables compare; `sources` (n,) are the numbers of the
    documents' partitions.
    """
    digests, crcs = np.array(batch.text_digest, np.uint8).view(np.uint64), crcs_of(batch.ids)
    columns = Columns(
        prints=batch.prints,
        scopes=batch.scope,
        digests=digests,
        sources=sources,
        offsets=batch.offset,
        value_digests=batch.value_digest,
        features=batch.features,
        sketches=with_origins(batch.sketches, batch.site, batch.title, crcs),
        ids=crcs,
    )
    return copy_columns(columns)


def _judge_range(
    state: IndexState,
    judging: _Judging,
    first: int,
    end: int,
) -> list[Judgement]:
    """Judge the documents [first, end), in which no document occurs twice."""
    entries, neighbours = state.require_stores()
    log_offset, positions = judging.log_offset, state.positions
    columns = select_rows(judging.columns, slice(first, end))
    is_below_watermark = judging.is_below_watermark[first:end]
    judgements: list[Judgement | None] = [None] * (end - first)
    handles = np.zeros(end - first, np.int64)
    cached = positions.find_verdicts(columns)
    for place, key in enumerate(read_keys(columns)):
        if key in cached and not judging.has_lower_epoch[first + place]:
            judgements[place] = cached[key]
    is_undecided = np.array([judgement is None for judgement in judgements])
    live_entries = neighbours.find_positions(columns)
    live_entries[~is_undecided] = -1  # a cached verdict needs no second look-up
    live_places = np.flatnonzero(live_entries >= 0)
    if len(live_places):
        rows, _ = entries.rows(live_entries[live_places])
        decided_at = zip(
            rows["state"].tolist(), rows["log_offset"].tolist(), rows["place"].tolist(), strict=True
        )
        for place, (entry_state, *decided_place) in zip(
            live_places.tolist(), decided_at, strict=True
        ):
            judgements[place] = Judgement(reason_of_state(entry_state), LogPlace(*decided_place))
            handles[place] = handle_of(*decided_place)
    stale_places = np.flatnonzero(is_undecided & (live_entries < 0) & is_below_watermark)
    for place in stale_places.tolist():
        judgements[place] = Judgement(Reason.STALE, LogPlace(log_offset, first + place))
    new_places = np.flatnonzero(is_undecided & (live_entries < 0) & ~is_below_watermark)
    if len(new_places):
        verdicts, new_handles = _judge_new(state, judging, first + new_places)
        handles[new_places] = new_handles
        for place, judgement in zip(new_places.tolist(), verdicts, strict=True):
            judgements[place] = judgement
    decided = [judgement for judgement in judgements if judgement is not None]
    cacheable_places = np.flatnonzero(is_undecided & ~is_below_watermark)
    if len(cacheable_places):
        positions.cache(
            log_offset,
            select_rows(columns, cacheable_places),
            Verdicts.of([decided[place] for place in cacheable_places.tolist()]),
            handles[cacheable_places],
        )
    return decided


def _judge_new(
    state: IndexState, judging: _Judging, places: NDArray[np.int64]
) -> tuple[Verdicts, NDArray[np.int64]]:
    """Judge the documents at `places` of the batch.

    Return (verdicts, handles), (n,) each. The handle (`handle_of`) of a duplicate is that of the
    representative that it names; a new representative has its own.
    """
    entries, neighbours = state.require_stores()
    batch, batch_ids = judging.batch, Ids.of(judging.batch.ids)
    is_whole = len(places) == len(batch)
    columns = judging.columns if is_whole else select_rows(judging.columns, places)
    judged = neighbours.judge(columns, columns.features, judging.floor)
    outcome = judged.outcome
    is_duplicate = outcome >= OUTCOME_DIGEST
    duplicates, names_entry = np.flatnonzero(is_duplicate), is_duplicate | (judged.sibling >= 0)
    named_entries = judged.entry[duplicates]
    # The representatives of duplicates and the siblings of new documents.
    all_named_entries = np.where(is_duplicate, judged.entry, judged.sibling)[names_entry]
    new_rows = np.flatnonzero(outcome <= OUTCOME_SHORT)
    if len(new_rows):
        added_places, is_short = places[new_rows], outcome[new_rows] == OUTCOME_SHORT
        append_rows(
            state,
            batch,
            added_places,
            judging.columns,
            is_short=is_short,
            decided=(judging.log_offset, added_places),
            append_ms=judging.append_ms,
        )
    reasons = np.where(outcome == OUTCOME_SHORT, np.uint8(Reason.TOO_SHORT), np.uint8(Reason.NEW))
    distances = np.zeros(len(places), np.uint8)
    handles = handle_of(judging.log_offset, places)
    copies, better = np.zeros(len(places), np.uint32), np.zeros(len(places), np.uint8)
    all_representatives = entries.representatives(all_named_entries)
    if len(named_entries):
        representatives = all_representatives.select(is_duplicate[names_entry])
        judging.named_entries.update(named_entries.tolist())
        duplicate_ids = select_ids(batch_ids, places[duplicates])
        same_text = outcome[duplicates] != OUTCOME_NEAR
        reasons[duplicates] = _REASONS[
            same_text.astype(int), same_ids(duplicate_ids, representatives.ids).astype(int)
        ]
        distances[duplicates] = judged.distance[duplicates]
        handles[duplicates] = handle_of(representatives.log_offsets, representatives.places)
        new_copies = copies_of(batch, columns, places, duplicates)
        copies[duplicates], better[duplicates] = _count_copies(
            state, named_entries, representatives, new_copies, duplicate_ids
        )
        ids = batch_ids if is_whole else select_ids(batch_ids, places)
        last_texts.update_last_texts(
            state.last_texts, state.require_stores(), columns, ids, judged.entry, reasons
        )
    return Verdicts(
        reasons=reasons,
        distances=distances,
        decided_offsets=np.full(len(places), judging.log_offset, np.uint64),
        decided_places=places.astype(np.uint32),
        named=_name_representatives(state, all_representatives),
        similarity=judged.similarity,
        copies=copies,
        better=better,
    ), handles


def _count_copies(
    state: IndexState,
    named_entries: NDArray[np.int64],
    representatives: RepresentativeColumns,
    copies: Copies,
    ids: Ids,
) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Count the duplicates that name `named_entries` (n,); return (copies so far, number of the rule
    by which each beats all earlier copies, or 0), (n,) each.
    """
    return state.copies.count(
        named_entries,
        representatives=Copies(
            features=representatives.features,
            times_ms=representatives.times_ms,
            sources=representatives.sources,
            offsets=representatives.offsets,
        ),
        copies=copies,
        ids=ids,
        rule=state.better,
        counts_copies=state.declared is not None and state.declared.count_copies,
    )


def _name_representatives(
    state: IndexState, representatives: RepresentativeColumns
) -> NamedRepresentatives:
    """Return the representatives that verdicts name."""
    partitions, sources = state.sources.list_distinct(representatives.sources)
    return NamedRepresentatives(
        partitions=partitions,
        sources=sources,
        offsets=representatives.offsets,
        times_ms=representatives.times_ms,
        stops=representatives.ids.stops,
        ids=representatives.ids.joined,
    )


def copies_of(
    batch: Batch, columns: Columns, places: NDArray[np.int64], duplicates: NDArray[np.int64]
) -> Copies:
    """Return the columns by which copies are compared; `duplicates` are rows of `columns`, whose
    documents are at `places` of the batch.
    """
    batch_places = places[duplicates]
    return Copies(
        features=columns.features[duplicates],
        times_ms=batch.time_ms[batch_places],
        sources=columns.sources[duplicates],
        offsets=columns.offsets[duplicates],
    )


def append_rows(
    state: IndexState,
    batch: Batch,
    places: NDArray[np.int64],
    columns: Columns,
    is_short: NDArray[np.bool_],
    decided: tuple[int, NDArray[np.int64]],
    append_ms: int,
) -> None:
    """Add rows for the documents at `places` of a batch, in the current generation.

    `decided` is (log offset, places in that log record) of their verdicts.
    """
    entries, _ = state.require_stores()
    rows = np.zeros(len(places), row_type(state.print_limbs, state.sketch_bytes))
    rows["state"] = np.where(is_short, SHORT, FULL)
    rows["text_digest"] = batch.text_digest[places]
    rows["print"] = batch.prints[places]
    rows["sketch"] = batch.sketches[places]
    rows["site"] = batch.site[places]
    rows["title"] = batch.title[places]
    rows["scope"] = batch.scope[places]
    rows["features"] = batch.features[places]
    rows["source"] = columns.sources[places]
    rows["offset"] = batch.offset[places]
    rows["value_digest"] = batch.value_digest[places]
    rows["time_ms"] = batch.time_ms[places]
    rows["log_offset"], rows["place"] = decided
    rows["append_ms"] = append_ms
    state.generations.open(entries.count, state.window)
    entries.append(rows, select_ids(Ids.of(batch.ids), places))


def _renew_representatives(state: IndexState, named_entries: set[int]) -> None:
    """Move the named representatives of earlier generations to the current one, in the order of their
    entries.
    """
    entries, neighbours = state.require_stores()
    current = state.generations.current(entries.count)
    old_entries = sorted(entry for entry in named_entries if entry < current)
    if not old_entries:
        return
    numbers = np.array(old_entries)
    rows, ids = entries.rows(numbers)
    columns, rows_with_id = columns_of(rows, ids), np.flatnonzero(ids.sizes)
    latest = last_texts.find_latest(
        state.last_texts,
        state.require_stores(),
        select_rows(columns, rows_with_id),
        select_ids(ids, rows_with_id),
    )
    neighbours.drop(numbers)
    entries.drop(numbers)
    neighbours.add(columns, rows["state"] == FULL)
    state.generations.open(entries.count, state.window)
    state.copies.move(old_entries, entries.count)
    state.last_texts.drop(old_entries)
    for row in rows_with_id.tolist():
        last_digest = latest[int(columns.scopes[row]), ids[row]].last_digest
        state.last_texts.set(
            IdText(entries.count + row, columns.digests[row].tobytes(), last_digest)
        )
    entries.append(rows, ids)
