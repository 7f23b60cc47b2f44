"""One batch judged: each document by what was said of its position before, by its text digest, then
by the tables.

The steps:
  1  raise the watermarks of the batch's source partitions
  2  for each document: cached verdict, own live representative, stale, or judge (see `positions`)
  3  new representatives get their rows, verdicts at or above the watermarks are kept
  4  where duplicates refresh, renew the representatives that were named

Nothing here writes, and nothing reads but the pages of entries that a duplicate or a redelivered
document names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import LogPlace, Reason
from stream_dedup.domain.lazy import Ids
from stream_dedup.index.rules import last_texts
from stream_dedup.index.rules.copies import Copies
from stream_dedup.index.rules.last_texts import IdText
from stream_dedup.index.rules.positions import (
    KeptRecord,
    Key,
    cut_at_repeats,
    handle_of,
    keys_of,
    spans_of,
)
from stream_dedup.index.rules.reasons import reason_of_duplicate, reason_of_state
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.tables.rows import (
    OUTCOME_DIGEST,
    OUTCOME_NEAR,
    OUTCOME_SHORT,
    Columns,
    fresh_columns,
    take_rows,
    with_origins,
)
from stream_dedup.index.tables.tags import crcs_of
from stream_dedup.index.volume.entries import columns_of
from stream_dedup.index.volume.layout import STATE_DIGEST_ONLY, STATE_FULL, row_type
from stream_dedup.index.volume.pages import same_ids, taken
from stream_dedup.log.records import Batch
from stream_dedup.log.schema import Judgement, NamedRepresentatives, Verdicts


class LoggedBatch(NamedTuple):
    """A batch and its place in the log."""

    log_offset: int
    append_ms: int
    batch: Batch


Below = NDArray[np.bool_]

_REASONS: Final = np.array(
    [
        [reason_of_duplicate(same_text=text, same_id=id_) for id_ in (False, True)]
        for text in (False, True)
    ],
    np.uint8,
)


class _Judging:
    """A batch on its way through step 2."""

    def __init__(
        self, logged: LoggedBatch, columns: Columns, floor: int, epoch_below: Below, below: Below
    ) -> None:
        self.log_offset, self.append_ms, self.batch = logged
        self.columns, self.floor = columns, floor
        self.epoch_below, self.below = epoch_below, below
        self.named: set[int] = set()


def judge_batch(state: IndexState, logged: LoggedBatch, floor: int) -> Verdicts:
    """Judge the documents of a batch that breaks no rule, in order."""
    batch = logged.batch
    numbers = state.numbers(batch)
    for number, source in zip(numbers, batch.sources, strict=True):
        state.positions.raise_watermark(number, source.epoch, source.committed)
    watermarks = [state.positions.watermark(number) for number in numbers]
    epoch_below = np.array(
        [source.epoch < epoch for source, (epoch, _) in zip(batch.sources, watermarks, strict=True)]
    )[batch.source]
    committed = np.array([committed for _, committed in watermarks], np.int64)[batch.source]
    columns = columns_of_batch(batch, np.array(numbers, np.uint32)[batch.source])
    below = epoch_below | (columns.offsets < committed)
    judging = _Judging(logged, columns, floor, epoch_below, below)
    verdicts = _judge_whole(state, judging)
    if verdicts is None:
        keys, record = keys_of(columns), KeptRecord(logged.log_offset)
        state.positions.split(numbers)
        judgements: list[Judgement] = []
        for first, end in cut_at_repeats(keys):
            judgements += _judge_stretch(state, judging, keys, record, first, end)
        verdicts = Verdicts.of(judgements)
        state.positions.close(record)
    if state.window is not None and state.window.refresh:
        _renew(state, judging.named)
    return verdicts


def _judge_whole(state: IndexState, judging: _Judging) -> Verdicts | None:
    """Judge a batch in which every document is new to the index, and none occurs twice, at once;
    else do nothing.

    That is nearly every batch; after a crash, a rebalance or a rewind `_judge_stretch` asks for
    each document by itself.
    """
    positions, columns = state.positions, judging.columns
    if (
        judging.below.any()
        or (spans := spans_of(columns)) is None
        or not positions.none_near(columns, spans)
    ):
        return None
    if (state.rooms()[1].find_positions(columns) >= 0).any():
        return None
    verdicts, about = _judge_fresh(state, judging, np.arange(len(columns.offsets)))
    positions.keep_whole(judging.log_offset, columns, spans).decided(verdicts, about, 0)
    return verdicts


def columns_of_batch(batch: Batch, sources: NDArray[np.uint32]) -> Columns:
    """Return what tables compare of a batch, with the numbers of its documents' source partitions,
    (n,).
    """
    digests, ids = np.array(batch.text_digest, np.uint8).view(np.uint64), crcs_of(batch.ids)
    told = (sources, batch.offset, batch.value_digest, batch.features)
    sketches = with_origins(batch.sketches, batch.site, batch.title, ids)
    return fresh_columns(batch.prints, batch.scope, digests, *told, sketches, ids)


def _judge_stretch(
    state: IndexState,
    judging: _Judging,
    keys: Sequence[Key],
    record: KeptRecord,
    first: int,
    end: int,
) -> list[Judgement]:
    """Judge the documents [first, end), in which no document occurs twice."""
    entries, neighbours = state.rooms()
    log_offset, positions = judging.log_offset, state.positions
    part = take_rows(judging.columns, slice(first, end))
    below = judging.below[first:end]
    judgements: list[Judgement | None] = [None] * (end - first)
    about = [0] * (end - first)
    open_places = np.ones(end - first, np.bool_)
    if not positions.none_kept(keys[first:end]):
        for place in range(end - first):
            kept = (
                None if judging.epoch_below[first + place] else positions.kept(keys[first + place])
            )
            if kept is not None:
                judgements[place] = kept
                open_places[place] = False
    own = neighbours.find_positions(part)
    own[~open_places] = -1  # what is kept needs no second look-up
    found_own = np.flatnonzero(own >= 0)
    if len(found_own):
        rows, _ = entries.rows(own[found_own])
        decided_at = zip(
            rows["state"].tolist(), rows["log_offset"].tolist(), rows["place"].tolist(), strict=True
        )
        for place, (kept_as, *at) in zip(found_own.tolist(), decided_at, strict=True):
            judgements[place] = Judgement(reason_of_state(kept_as), LogPlace(*at))
            about[place] = handle_of(*at)
    stale = np.flatnonzero(open_places & (own < 0) & below)
    for place in stale.tolist():
        judgements[place] = Judgement(Reason.STALE, LogPlace(log_offset, first + place))
    fresh = np.flatnonzero(open_places & (own < 0) & ~below)
    if len(fresh):
        verdicts, handles = _judge_fresh(state, judging, first + fresh)
        for place, judgement, handle in zip(
            fresh.tolist(), verdicts.judgements(), handles.tolist(), strict=True
        ):
            judgements[place], about[place] = judgement, handle
    decided = [judgement for judgement in judgements if judgement is not None]
    keep = np.flatnonzero(open_places & ~below).tolist()
    if len(keep) == end - first:
        positions.keep(record, keys[first:end], decided, about)
    elif keep:
        positions.keep(
            record,
            [keys[first + place] for place in keep],
            [decided[place] for place in keep],
            [about[place] for place in keep],
        )
    return decided


def _judge_fresh(
    state: IndexState, judging: _Judging, places: NDArray[np.int64]
) -> tuple[Verdicts, NDArray[np.int64]]:
    """Judge the documents at `places` of the batch; return also the handle of the representative
    each verdict is about.
    """
    entries, neighbours = state.rooms()
    batch, batch_ids = judging.batch, Ids.of(judging.batch.ids)
    whole = len(places) == len(batch)
    columns = judging.columns if whole else take_rows(judging.columns, places)
    found = neighbours.judge(columns, columns.features, judging.floor)
    outcome = found.outcome
    is_duplicate = outcome >= OUTCOME_DIGEST
    duplicates, naming = np.flatnonzero(is_duplicate), is_duplicate | (found.sibling >= 0)
    named = found.entry[duplicates]
    named_by_any = np.where(is_duplicate, found.entry, found.sibling)[naming]
    entries.expect(named_by_any)
    added = np.flatnonzero(outcome <= OUTCOME_SHORT)
    if len(added):
        at, short = places[added], outcome[added] == OUTCOME_SHORT
        append_rows(
            state, batch, at, judging.columns, short, (judging.log_offset, at), judging.append_ms
        )
    reasons = np.where(outcome == OUTCOME_SHORT, np.uint8(Reason.TOO_SHORT), np.uint8(Reason.NEW))
    distances = np.zeros(len(places), np.uint8)
    about = handle_of(judging.log_offset, places)
    copies, better = np.zeros(len(places), np.uint32), np.zeros(len(places), np.uint8)
    of_any = entries.origins(named_by_any)
    if len(named):
        of = of_any.taken(is_duplicate[naming])
        judging.named.update(named.tolist())
        own_ids = taken(batch_ids, places[duplicates])
        same_text = outcome[duplicates] != OUTCOME_NEAR
        reasons[duplicates] = _REASONS[same_text.astype(int), same_ids(own_ids, of.ids).astype(int)]
        distances[duplicates] = found.distance[duplicates]
        about[duplicates] = handle_of(of.log_offsets, of.places)
        first = Copies(of.features, of.times_ms, of.sources, of.offsets)
        mine, counts = (
            copies_of(batch, columns, places, duplicates),
            state.declared is not None and state.declared.count_copies,
        )
        counted = state.copies.count(named, first, mine, own_ids, state.better, counts=counts)
        copies[duplicates], better[duplicates] = counted
        ids = batch_ids if whole else taken(batch_ids, places)
        last_texts.follow(state.last_texts, state.rooms(), columns, ids, found.entry, reasons)
    partitions, sources = state.sources.named(of_any.sources)
    representatives = NamedRepresentatives(
        partitions, sources, of_any.offsets, of_any.times_ms, of_any.ids.stops, of_any.ids.joined
    )
    verdicts = Verdicts(
        reasons=reasons,
        distances=distances,
        decided_offsets=np.full(len(places), judging.log_offset, np.uint64),
        decided_places=places.astype(np.uint32),
        named=representatives,
        similarity=found.similarity,
        copies=copies,
        better=better,
    )
    return verdicts, about


def copies_of(
    batch: Batch, columns: Columns, places: NDArray[np.int64], duplicates: NDArray[np.int64]
) -> Copies:
    """Return what makes a copy the better one, of the `duplicates` among the documents at `places`,
    whose columns are given.
    """
    at = places[duplicates]
    return Copies(
        columns.features[duplicates],
        batch.time_ms[at],
        columns.sources[duplicates],
        columns.offsets[duplicates],
    )


def append_rows(
    state: IndexState,
    batch: Batch,
    places: NDArray[np.int64],
    columns: Columns,
    short: NDArray[np.bool_],
    decided: tuple[int, NDArray[np.int64]],
    append_ms: int,
) -> None:
    """Give the documents at `places` of a batch their rows, in the generation of now; `decided`: log
    offset, places there.
    """
    entries, _ = state.rooms()
    rows = np.zeros(len(places), row_type(state.print_limbs, state.sketch_bytes))
    rows["state"] = np.where(short, STATE_DIGEST_ONLY, STATE_FULL)
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
    entries.append(rows, taken(Ids.of(batch.ids), places))


def _renew(state: IndexState, named: set[int]) -> None:
    """Move the named representatives of earlier generations to the generation of now, in their
    order.
    """
    entries, neighbours = state.rooms()
    current = state.generations.current(entries.count)
    old = sorted(entry for entry in named if entry < current)
    if not old:
        return
    numbers = np.array(old)
    rows, ids = entries.rows(numbers)
    columns, own = columns_of(rows, ids), np.flatnonzero(ids.sizes)
    latest = last_texts.latest_of(
        state.last_texts, state.rooms(), take_rows(columns, own), taken(ids, own)
    )
    neighbours.drop(numbers)
    entries.drop(numbers)
    neighbours.add(columns, rows["state"] == STATE_FULL)
    state.generations.open(entries.count, state.window)
    state.copies.move(old, entries.count)
    state.last_texts.drop(old)
    for row in own.tolist():
        last = latest[int(columns.scopes[row]), ids[row]].last
        state.last_texts.set(IdText(entries.count + row, columns.digests[row].tobytes(), last))
    entries.append(rows, ids)
