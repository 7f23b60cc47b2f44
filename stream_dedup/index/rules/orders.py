"""What operators told the log, carried out: declarations, changes of plan, take-downs, seeds and
releases.

What each says is told in docs/reference/control-records.md. `audit/fold.py` carries them out a
second time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from stream_dedup.domain.document import TOPIC_ID_BYTES, LogPlace, Reason
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.index.rules.declaration import U32_MAX, Declaration, number_field, text_field
from stream_dedup.index.rules.judging import append_rows, columns_of_batch
from stream_dedup.index.rules.positions import Key, cut_at_repeats, handle_of, keys_of
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.rules.window import RulesInForce, changed
from stream_dedup.index.tables.rows import (
    OUTCOME_SHORT,
    Columns,
    no_columns,
    take_rows,
)
from stream_dedup.log.records import DOCUMENTS_MAX, Batch, Control, forgotten_ids
from stream_dedup.log.schema import Judgement

_OFFSET_MAX: Final = (1 << 63) - 1
_U64_MAX: Final = (1 << 64) - 1


def seed(state: IndexState, log_offset: int, append_ms: int, batch: Batch, floor: int) -> None:
    """Make representatives of documents that were delivered elsewhere, unless one within reach
    exists already.
    """
    _, neighbours = state.rooms()
    columns = _columns(state, batch)
    for first, end in cut_at_repeats(keys_of(columns)):
        part = take_rows(columns, slice(first, end))
        fresh = first + np.flatnonzero(neighbours.find_positions(part) < 0)
        if not len(fresh):
            continue
        part = take_rows(columns, fresh)
        outcome = neighbours.judge(part, part.features, floor).outcome
        added = np.flatnonzero(outcome <= OUTCOME_SHORT)
        if len(added):
            at = log_offset, fresh[added]
            append_rows(
                state, batch, fresh[added], columns, outcome[added] == OUTCOME_SHORT, at, append_ms
            )


def release(state: IndexState, log_offset: int, append_ms: int, batch: Batch, floor: int) -> None:
    """Let a dropped document be unique after all; it represents itself, unless its text is
    represented already.
    """
    _, neighbours = state.rooms()
    columns = _columns(state, batch)
    if int(neighbours.find_positions(columns)[0]) >= 0:
        return
    short = np.array([int(batch.features[0]) < floor])
    reason = Reason.TOO_SHORT if short[0] else Reason.NEW
    (key,) = keys_of(columns)
    state.positions.replace(
        key, handle_of(log_offset, 0), Judgement(reason, LogPlace(log_offset, 0))
    )
    if int(neighbours.find_digests(columns)[0]) < 0:
        neighbours.add(columns, ~short)
        first = np.zeros(1, np.int64)
        append_rows(state, batch, first, columns, short, (log_offset, first), append_ms)


def _columns(state: IndexState, batch: Batch) -> Columns:
    """Return what tables compare of documents that no worker's batch brought; their source
    partitions are known from now on.
    """
    numbers = state.numbers(batch)
    for number in numbers:
        state.positions.raise_watermark(number, 0, 0)
    return columns_of_batch(batch, np.array(numbers, np.uint32)[batch.source])


def carry_out(state: IndexState, log_offset: int, control: Control) -> bool:
    """Carry out a control record; return False for one that says nothing to this version, or
    nothing that can be.

    Raises:
        ConfigurationError: this index cannot do what it says, which others can; nothing has
        changed. StoreError: the volume failed.
    """
    try:
        order = _read(state, log_offset, control)
    except ConfigurationError:
        return False
    if order is None:
        return False
    order()
    return True


def _read(state: IndexState, log_offset: int, control: Control) -> Callable[[], None] | None:
    """Return what is to be done, which depends on the log alone; None if that is nothing.

    Raises:
        ConfigurationError: a field is missing or cannot be.
    """
    fields = control.fields
    if control.type == "declare":
        declared = Declaration.from_fields(fields)
        return partial(_declare, state, declared) if state.declared in (None, declared) else None
    if control.type == "plan" and state.declared is not None and state.plan is not None:
        now = RulesInForce(state.plan, state.window, state.better, state.format)
        rules = changed(fields, now, state.width(), state.values())
        return None if rules is None else partial(_change_rules, state, log_offset, rules)
    if control.type == "retract":
        topic_id, positions = _hex_field(fields, "topic_id"), _positions_field(fields)
        topic = text_field(fields, "topic")
        return (
            partial(_retract, state, log_offset, topic, topic_id, positions)
            if len(topic_id) == TOPIC_ID_BYTES
            else None
        )
    if control.type == "forget":
        ids = forgotten_ids(fields)
        return partial(_forget, state, ids) if ids else None
    return None


def _declare(state: IndexState, declared: Declaration) -> None:
    if state.declared is None:
        state.declared, state.plan, state.window, state.better = (
            declared,
            declared.plan,
            declared.window,
            declared.better,
        )
        state.format = declared.format
        state.declaration_changed = True


def _change_rules(state: IndexState, log_offset: int, rules: RulesInForce) -> None:
    """Change plan, window, which copy is better, and the format."""
    if rules.plan != state.plan and state.neighbours is not None:
        try:
            state.neighbours.change_plan(rules.plan)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"Log record {log_offset} changes the plan to {rules.plan.name}, and this index "
                "does not have the memory for "
                f"it: it stops in front of that record, and has written nothing of it. {error} It "
                "then goes on from there."
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
    topic: str,
    topic_id: bytes,
    positions: Sequence[tuple[int, int, int]],
) -> None:
    """Let the documents at these (partition, offset, value digest) represent nobody."""
    if state.neighbours is None or state.entries is None:
        return
    known: list[tuple[int, Key]] = []
    for place, (partition, offset, value_digest) in enumerate(positions):
        source = state.sources.find(topic, topic_id, partition)
        if source is not None:
            known.append((place, (source, offset, value_digest)))
    if not known:
        return
    wanted = no_columns(state.print_limbs, len(known), state.sketch_bytes)
    wanted.sources[:], wanted.offsets[:], wanted.values[:] = zip(
        *(key for _, key in known), strict=True
    )
    found = state.neighbours.find_positions(wanted)
    entries = np.unique(found[found >= 0])
    of = state.entries.origins(entries)
    handles = dict(
        zip(entries.tolist(), handle_of(of.log_offsets, of.places).tolist(), strict=True)
    )
    state.drop(entries, "retract")
    for (place, key), entry in zip(known, found.tolist(), strict=True):
        # A duplicate can be refused by its output too: it represents nobody, and still must not be
        # given its verdict again.
        state.positions.retract(
            key, handles.get(entry), Judgement(Reason.RETRACTED, LogPlace(log_offset, place))
        )


def _forget(state: IndexState, ids: Collection[bytes]) -> None:
    """Take representatives of these ids down, and the ids with them; verdicts that were given stay
    what they were.
    """
    if state.neighbours is None or state.entries is None:
        return
    found, is_live = state.entries.find_ids(ids)
    state.drop(found[is_live], "forget")
    state.entries.wipe(found)
    state.neighbours.wipe(found)
    state.copies.forget(ids)
    state.positions.forget(ids)


def _positions_field(fields: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """Return the (partition, offset, value digest) of each position that a retraction names.

    Raises:
        ConfigurationError: it names none, too many, or what is no position.
    """
    names = ("partition", "offset", "value_digest")
    found = fields.get("positions")
    if not isinstance(found, list) or not 0 < len(found) <= DOCUMENTS_MAX:
        raise ConfigurationError(
            f"A retraction names 1 to {DOCUMENTS_MAX} positions, not {found!r:.100}."
        )
    positions = []
    for one in found:
        if not isinstance(one, list) or len(one) != 3:
            raise ConfigurationError(
                f"A position is a partition, an offset and a digest of the value, not {one!r:.100}."
            )
        named = dict(zip(names, one, strict=True))
        positions.append(
            (
                number_field(named, "partition", U32_MAX),
                number_field(named, "offset", _OFFSET_MAX),
                number_field(named, "value_digest", _U64_MAX),
            )
        )
    return positions


def _hex_field(fields: Mapping[str, Any], name: str) -> bytes:
    """Return a field of hexadecimal digits as bytes; ConfigurationError if it is none."""
    text = text_field(fields, name)
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ConfigurationError(
            f"The field {name} of a control record must be hexadecimal digits, not {text!r:.100}."
        ) from None
