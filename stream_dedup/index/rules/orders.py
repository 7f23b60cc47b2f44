"""Apply operators' orders in the log: declarations, changes of plan, take-downs, seeds and
releases.

docs/reference/control-records.md describes their meaning. `audit/judgements.py` is a second
implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np

from stream_dedup.domain.document import LogPlace, Reason
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.index.rules.judging import append_rows, columns_of_batch
from stream_dedup.index.rules.positions import Key, handle_of, read_keys, split_at_repeats
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.rules.window import RulesInForce, change_rules
from stream_dedup.index.storage.columns import Columns, make_columns, select_rows
from stream_dedup.index.tables.rows import OUTCOME_SHORT
from stream_dedup.log.controls import Declaration, Partition, parse_retraction
from stream_dedup.log.records import Batch, Control, forgotten_ids
from stream_dedup.log.schema import Judgement


def seed(state: IndexState, log_offset: int, append_ms: int, batch: Batch, floor: int) -> None:
    """Make documents that were delivered elsewhere representatives, unless a near one exists."""
    _, neighbours = state.require_stores()
    columns = _columns(state, batch)
    for first, end in split_at_repeats(read_keys(columns)):
        columns_part = select_rows(columns, slice(first, end))
        new_places = first + np.flatnonzero(neighbours.find_positions(columns_part) < 0)
        if not len(new_places):
            continue
        columns_part = select_rows(columns, new_places)
        outcome = neighbours.judge(columns_part, columns_part.features, floor).outcome
        added = np.flatnonzero(outcome <= OUTCOME_SHORT)
        if len(added):
            decided = log_offset, new_places[added]
            append_rows(
                state,
                batch,
                new_places[added],
                columns,
                is_short=outcome[added] == OUTCOME_SHORT,
                decided=decided,
                append_ms=append_ms,
            )


def release(state: IndexState, log_offset: int, append_ms: int, batch: Batch, floor: int) -> None:
    """Make a dropped document unique. It becomes a representative, unless one has the same text."""
    _, neighbours = state.require_stores()
    columns = _columns(state, batch)
    if int(neighbours.find_positions(columns)[0]) >= 0:
        return
    is_short = np.array([int(batch.features[0]) < floor])
    reason = Reason.TOO_SHORT if is_short[0] else Reason.NEW
    (key,) = read_keys(columns)
    state.positions.replace(
        key, handle_of(log_offset, 0), Judgement(reason, LogPlace(log_offset, 0))
    )
    if int(neighbours.find_digests(columns)[0]) < 0:
        neighbours.add(columns, ~is_short)
        first = np.zeros(1, np.int64)
        append_rows(
            state,
            batch,
            first,
            columns,
            is_short=is_short,
            decided=(log_offset, first),
            append_ms=append_ms,
        )


def _columns(state: IndexState, batch: Batch) -> Columns:
    """Return the columns of a seed or a release, and number its source partitions."""
    numbers = state.number_sources(batch)
    for number in numbers:
        state.positions.raise_watermark(number, 0, 0)
    return columns_of_batch(batch, np.array(numbers, np.uint32)[batch.source])


def apply_control(state: IndexState, log_offset: int, control: Control) -> bool:
    """Apply a control record; return False if it is invalid or has no effect.

    Raises:
        ConfigurationError: this index has too little memory for it; nothing has changed.
        StoreError: the volume failed.
    """
    try:
        order = _parse_order(state, log_offset, control)
    except ConfigurationError:
        return False
    if order is None:
        return False
    order()
    return True


def _parse_order(state: IndexState, log_offset: int, control: Control) -> Callable[[], None] | None:
    """Return a function that applies the record, or None if it has no effect. Whether it has
    one depends on the log alone.

    Raises:
        ConfigurationError: a field is missing or invalid.
    """
    fields = control.fields
    if control.type == "declare":
        declared = Declaration.from_fields(fields)
        return partial(_declare, state, declared) if state.declared in (None, declared) else None
    if control.type == "plan" and state.declared is not None and state.plan is not None:
        current = RulesInForce(state.plan, state.window, state.better, state.format)
        rules = change_rules(fields, current, state.known_width(), state.known_sketch_bytes())
        return None if rules is None else partial(_change_rules, state, log_offset, rules)
    if control.type == "retract":
        return partial(_retract, state, log_offset, parse_retraction(fields))
    if control.type == "forget":
        ids = forgotten_ids(fields)
        return partial(_forget, state, ids) if ids else None
    return None


def _declare(state: IndexState, declared: Declaration) -> None:
    if state.declared is None:
        state.declared, state.plan, state.window = declared, declared.plan, declared.window
        state.better, state.format = declared.better, declared.format
        state.declaration_changed = True


def _change_rules(state: IndexState, log_offset: int, rules: RulesInForce) -> None:
    """Change plan, window, rule of the better copy, and format."""
    if rules.plan != state.plan and state.neighbours is not None:
        try:
            state.neighbours.change_plan(rules.plan)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"Log record {log_offset} changes the plan to {rules.plan.name}, which needs more "
                "memory than this index may use. The index exits before it applies that record. "
                f"{error} Then start the index again; it continues with that record."
            ) from error
    if rules != (state.plan, state.window, state.better, state.format):
        state.declaration_changed = True
    if state.plan is not None and rules.plan != state.plan:
        state.past_plans.append((log_offset, state.generations.now_ms, state.plan.id))
    state.plan, state.better, state.format = rules.plan, rules.better, rules.format
    if rules.window != state.window:
        state.window = rules.window
        state.generations.close()
        state.expire()


def _retract(
    state: IndexState,
    log_offset: int,
    positions: Sequence[tuple[Partition, int, int]],
) -> None:
    """Remove the documents at these (partition, offset, value digest) from the representatives."""
    if state.neighbours is None or state.entries is None:
        return
    known: list[tuple[int, Key]] = []
    for place, (partition, offset, value_digest) in enumerate(positions):
        source = state.sources.find(*partition)
        if source is not None:
            known.append((place, (source, offset, value_digest)))
    if not known:
        return
    columns = make_columns(state.print_limbs, len(known), state.sketch_bytes)
    columns.sources[:], columns.offsets[:], columns.value_digests[:] = zip(
        *(key for _, key in known), strict=True
    )
    entries_found = state.neighbours.find_positions(columns)
    entries = np.unique(entries_found[entries_found >= 0])
    representatives = state.entries.representatives(entries)
    handles = dict(
        zip(
            entries.tolist(),
            handle_of(representatives.log_offsets, representatives.places).tolist(),
            strict=True,
        )
    )
    state.drop(entries, "retract")
    for (place, key), entry in zip(known, entries_found.tolist(), strict=True):
        # Of duplicates too: the output topic refused them, so they must not get the same verdict
        # again.
        state.positions.retract(
            key, handles.get(entry), Judgement(Reason.RETRACTED, LogPlace(log_offset, place))
        )


def _forget(state: IndexState, ids: Collection[bytes]) -> None:
    """Remove the representatives with these ids, and the ids elsewhere; earlier verdicts stay."""
    if state.neighbours is None or state.entries is None:
        return
    entries_found, is_live, has_id = state.find_ids(ids)
    state.drop(entries_found[has_id], "forget")
    state.neighbours.wipe(entries_found[has_id | ~is_live])
    state.copies.forget(ids)
    state.positions.forget(ids)
