"""One log record applied: state and record in, answer out; what is to be written is gathered in the state's rooms.

Nothing here writes, and nothing reads but the pages of entries that a duplicate or a redelivered document names.

Every record, whatever it holds, first moves log time, and drops the generations whose window has passed (`window`).

The steps of a batch:
  1  refuse it if it breaks a rule of the log: `rejected`, and nothing else changes
  2  raise the marks of its source partitions
  3  for each document: kept verdict, own live representative, stale, or judge (see `positions`)
  4  new representatives get their rows, verdicts at or above the marks are kept
  5  where duplicates refresh, renew the representatives that were named
  6  encode the answer, chained to the one before

What the other records do is told in docs/reference/control-records.md.

Invariants: the answer is a function of the log's prefix alone; no record can make a step fail: what its fields may hold
is checked before anything changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.document import ID_BYTES_MAX, NONCE_BYTES, TOPIC_ID_BYTES, LogPlace, Mode, Reason
from stream_dedup.ground.errors import ConfigurationError, FormatError, InvariantError
from stream_dedup.ground.plan import WIDTH_MAX, Plan
from stream_dedup.ground.sketch import SKETCH_VALUES
from stream_dedup.index.entries import Entries, columns_of
from stream_dedup.index.judge import reason_of_duplicate
from stream_dedup.index.kernels import OUTCOME_DIGEST, OUTCOME_NEAR, OUTCOME_SHORT, Columns, no_columns, take_rows
from stream_dedup.index.layout import STATE_DIGEST_ONLY, STATE_FULL, row_type
from stream_dedup.index.neighbours import Neighbours
from stream_dedup.index.positions import KeptRecord, Key, Positions, cut_at_repeats, handle_of, handles_of, keys_of, spans_of
from stream_dedup.index.sources import Sources
from stream_dedup.index.window import Generations, Window, changed
from stream_dedup.log.answers import Judgement, NamedRepresentatives, Rejected, Verdicts, encode, encode_verdicts
from stream_dedup.log.records import Batch, Control, LogRecord, Seed

_OFFSET_MAX: Final = (1 << 63) - 1
_U32_MAX: Final = (1 << 32) - 1
_U64_MAX: Final = (1 << 64) - 1
_NAME_BYTES_MAX: Final = 255
_IDS_MAX: Final = 1000
_UNDECLARED: Final = (
    "No record before this batch declares recipe and plan, so it cannot be judged; the log must begin with a "
    "declaration, which a worker appends at its first start."
)


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the log's first record says: under which recipe, plan, window, group, floor of features and mode it is judged.

    `width` is the recipe's, in bits, and `sketch_values` the recipe's too; what is not declared the first batch tells.
    """

    recipe: str
    plan: Plan
    group: str
    floor: int
    mode: Mode = Mode.ENFORCE
    width: int | None = None
    window: Window | None = None
    sketch_values: int | None = None

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of a `declare` control record."""
        fields: dict[str, Any] = {
            "recipe": self.recipe,
            "plan": self.plan.to_fields(),
            "group": self.group,
            "floor": self.floor,
            "mode": int(self.mode),
        }
        if self.width is not None:
            fields["width"] = self.width
        if self.sketch_values is not None:
            fields["sketch_values"] = self.sketch_values
        if self.window is not None:
            fields["window"] = self.window.to_fields()
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Declaration:
        """Return what a `declare` control record says; a missing mode is `enforce`, foreign fields are passed over.

        Raises:
            ConfigurationError: a field is missing or cannot be.
        """
        plan = Plan.from_fields(fields.get("plan"))
        width = _integer(fields, "width", WIDTH_MAX) if "width" in fields else None
        if width is not None and (width % 64 or width < plan.width):
            raise ConfigurationError(f"The plan {plan.id} cannot judge prints of {width} bits; name a narrower plan.")
        values = _integer(fields, "sketch_values", SKETCH_VALUES) if "sketch_values" in fields else None
        if plan.needs_sketch and values not in (None, SKETCH_VALUES):
            raise ConfigurationError(f"The plan {plan.id} compares sketches, and the recipe makes none; name another plan.")
        return cls(
            recipe=_name(fields, "recipe"),
            plan=plan,
            group=_name(fields, "group"),
            floor=_integer(fields, "floor", _U32_MAX),
            mode=Mode(_integer(fields, "mode", len(Mode) - 1)) if "mode" in fields else Mode.ENFORCE,
            width=width,
            window=None if fields.get("window") is None else Window.from_fields(fields["window"]),
            sketch_values=values,
        )


@dataclass(slots=True)
class IndexState:
    """All that the log's prefix has led to. `entries` and `neighbours` exist from the first judged batch on."""

    sources: Sources
    positions: Positions
    chain: bytes
    generations: Generations = field(default_factory=Generations)
    declared: Declaration | None = None
    plan: Plan | None = None
    window: Window | None = None
    entries: Entries | None = None
    neighbours: Neighbours | None = None
    print_words: int = 0
    sketch_values: int = 0
    rejected: int = 0
    ignored: int = 0
    declaration_changed: bool = False
    evicted: Counter[str] = field(default_factory=Counter)

    def rooms(self) -> tuple[Entries, Neighbours]:
        """Return entries and neighbours, which a batch being judged has."""
        if self.entries is None or self.neighbours is None:
            raise InvariantError(
                "A batch is judged before there are entries to compare it with; this is a fault of the program."
            )
        return self.entries, self.neighbours


@dataclass(frozen=True, slots=True)
class _Judging:
    """A batch on its way through step 3."""

    batch: Batch
    log_offset: int
    append_ms: int
    columns: Columns
    features: NDArray[np.uint32]
    epoch_below: NDArray[np.bool_]
    below: NDArray[np.bool_]
    floor: int
    named: set[int]


def step(
    state: IndexState,
    log_offset: int,
    append_ms: int,
    record: LogRecord | FormatError,
    open_rooms: Callable[[IndexState], None],
) -> bytes | None:
    """Apply one log record and return the bytes of its answer; only batches, and what is malformed, get one.

    A record that could not be decoded is given as its error. `open_rooms(state)` makes `entries` and `neighbours` when
    the first batch tells how wide prints are.
    """
    state.generations.advance(append_ms, state.window)
    _expire(state)
    if isinstance(record, FormatError):
        return _reject(state, log_offset, bytes(NONCE_BYTES), 0, str(record))
    if isinstance(record, Control):
        if not _control(state, log_offset, record):
            state.ignored += 1
        return None
    batch = record if isinstance(record, Batch) else record.batch
    why = refusal(state.declared, state.plan, (state.print_words, state.sketch_values), batch)
    if why is None and not state.print_words:
        state.print_words, state.sketch_values = batch.prints.shape[1], batch.sketches.shape[1]
        open_rooms(state)
    if not isinstance(record, Batch):
        if why is not None or state.declared is None:
            state.ignored += 1
        elif isinstance(record, Seed):
            _seed(state, log_offset, append_ms, batch, state.declared.floor)
        else:
            _release(state, log_offset, append_ms, batch, state.declared.floor)
        return None
    if why is not None or state.declared is None:
        return _reject(state, log_offset, record.nonce, record.number, why or _UNDECLARED)
    verdicts = _judge_batch(state, log_offset, append_ms, record, state.declared.floor)
    answer, state.chain = encode_verdicts(log_offset, record.nonce, record.number, verdicts, state.chain)
    return answer


def _expire(state: IndexState) -> None:
    """Drop what the window has left behind. Kept verdicts stay: a redelivered document must not be judged again."""
    if state.entries is None or state.neighbours is None:
        return
    first = state.generations.expire(state.window, state.entries.count)
    if first is not None:
        _drop(state, state.neighbours.live_below(first), "window")


def _drop(state: IndexState, entries: NDArray[np.int64], why: str) -> None:
    """Take live representatives, given in ascending order, out of the index."""
    rows, neighbours = state.rooms()
    if len(entries):
        neighbours.drop(entries)
        rows.drop(entries)
        state.evicted[why] += len(entries)


def _reject(state: IndexState, log_offset: int, nonce: bytes, number: int, why: str) -> bytes:
    state.rejected += 1
    answer, state.chain = encode(Rejected(log_offset, nonce, number, why), state.chain)
    return answer


def refusal(declared: Declaration | None, plan: Plan | None, held: tuple[int, int], batch: Batch) -> str | None:
    """Return the sentence that refuses a batch, or None.

    `held`: of how many words the log's prints are, 0 as long as no batch told, and of how many values its sketches.
    """
    print_words, sketch_values = held
    if declared is None or plan is None:
        return _UNDECLARED
    if batch.recipe != declared.recipe:
        return (
            f"The batch was fingerprinted under the recipe {batch.recipe!r}, and this log was declared for "
            f"{declared.recipe!r}: their prints cannot be compared. Give the worker the declared recipe, or a log of "
            "its own."
        )
    if batch.mode.delivers is not declared.mode.delivers:
        return (
            f"The batch is for mode {batch.mode.name.lower()!r}, and this log was declared for "
            f"{declared.mode.name.lower()!r}: what one delivered says nothing of the other. Give that mode its own log."
        )
    bits = batch.prints.shape[1] * 64
    if bits < plan.width:
        return f"The batch carries prints of {bits} bits, and the plan {plan.name} judges {plan.width}."
    if bits != (width := declared.width or print_words * 64 or bits):
        return f"The batch carries prints of {bits} bits, and under this log's recipe they have {width}."
    values = batch.sketches.shape[1]
    if plan.needs_sketch and values != SKETCH_VALUES:
        return (
            f"The batch carries sketches of {values} values, and the plan {plan.name} compares {SKETCH_VALUES}: change "
            "to a plan without sketches, such as wide, or begin a log with a recipe that makes them."
        )
    if print_words and values != sketch_values:
        return f"The batch carries sketches of {values} values, and under this log's recipe they have {sketch_values}."
    if int(batch.offset.min()) < 0 or any(source.committed > _OFFSET_MAX for source in batch.sources):
        return "The batch names an offset that no Kafka partition can have; its worker is broken."
    return None


def _width(state: IndexState) -> int | None:
    """Return how many bits prints have, if the declaration or a batch told."""
    declared = None if state.declared is None else state.declared.width
    return declared or state.print_words * 64 or None


def _sketch_values(state: IndexState) -> int | None:
    """Return how many values sketches have, if the declaration or a batch told."""
    if state.print_words:
        return state.sketch_values
    return None if state.declared is None else state.declared.sketch_values


def _judge_batch(state: IndexState, log_offset: int, append_ms: int, batch: Batch, floor: int) -> Verdicts:
    numbers = _numbers(state, batch)
    for number, source in zip(numbers, batch.sources, strict=True):
        state.positions.raise_mark(number, source.epoch, source.committed)
    marks = [state.positions.mark(number) for number in numbers]
    epoch_below = np.array([source.epoch < epoch for source, (epoch, _) in zip(batch.sources, marks, strict=True)])[
        batch.source
    ]
    committed = np.array([committed for _, committed in marks], np.int64)[batch.source]
    columns = _columns(batch, numbers)
    judging = _Judging(
        batch,
        log_offset,
        append_ms,
        columns,
        columns.features,
        epoch_below,
        epoch_below | (columns.offsets < committed),
        floor,
        set(),
    )
    verdicts = _judge_whole(state, judging)
    if verdicts is None:
        keys, record = keys_of(columns), KeptRecord(log_offset)
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
    """Judge a batch in which every document is new to the index, and none occurs twice, at once; else do nothing.

    That is nearly every batch; after a crash, a rebalance or a rewind `_judge_stretch` asks for each document by itself.
    """
    positions, columns = state.positions, judging.columns
    if judging.below.any() or (spans := spans_of(columns)) is None or not positions.none_near(columns, spans):
        return None
    if (state.rooms()[1].find_positions(columns) >= 0).any():
        return None
    verdicts, about = _judge_fresh(state, judging, np.arange(len(columns.offsets)))
    positions.keep_whole(judging.log_offset, columns, spans, verdicts, about)
    return verdicts


def _numbers(state: IndexState, batch: Batch) -> list[int]:
    return [state.sources.number(source.topic, source.topic_id, source.partition) for source in batch.sources]


def _columns(batch: Batch, numbers: Sequence[int]) -> Columns:
    # Fresh arrays throughout: what was decoded lies unaligned and read-only in the record, another type to numba.
    return Columns(
        prints=np.array(batch.prints, np.uint64),
        scopes=np.array(batch.scope, np.uint64),
        digests=np.array(batch.text_digest, np.uint8).view(np.uint64),
        sources=np.array(numbers, np.uint32)[batch.source],
        offsets=np.array(batch.offset, np.int64),
        values=np.array(batch.value_digest, np.uint64),
        features=np.array(batch.features, np.uint32),
        sketches=np.array(batch.sketches, np.uint8),
    )


def _judge_stretch(
    state: IndexState, judging: _Judging, keys: Sequence[Key], record: KeptRecord, first: int, end: int
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
            kept = None if judging.epoch_below[first + place] else positions.kept(keys[first + place])
            if kept is not None:
                judgements[place] = kept
                open_places[place] = False
    own = neighbours.find_positions(part)
    own[~open_places] = -1  # what is kept needs no second look-up
    found_own = np.flatnonzero(own >= 0)
    if len(found_own):
        details = entries.details(own[found_own].tolist())
        for place, detail in zip(found_own.tolist(), details, strict=True):
            judgements[place] = Judgement(detail.reason, LogPlace(detail.log_offset, detail.place))
            about[place] = handle_of(detail.log_offset, detail.place)
    stale = np.flatnonzero(open_places & (own < 0) & below)
    for place in stale.tolist():
        judgements[place] = Judgement(Reason.STALE, LogPlace(log_offset, first + place))
    fresh = np.flatnonzero(open_places & (own < 0) & ~below)
    if len(fresh):
        verdicts, handles = _judge_fresh(state, judging, first + fresh)
        for place, judgement, handle in zip(fresh.tolist(), verdicts.judgements(), handles.tolist(), strict=True):
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


def _judge_fresh(state: IndexState, judging: _Judging, places: NDArray[np.int64]) -> tuple[Verdicts, NDArray[np.int64]]:
    """Judge the documents at `places` of the batch; return also the handle of the representative each verdict is about."""
    entries, neighbours = state.rooms()
    batch, log_offset = judging.batch, judging.log_offset
    whole = len(places) == len(batch)
    columns = judging.columns if whole else take_rows(judging.columns, places)
    features = judging.features if whole else judging.features[places]
    found = neighbours.judge(columns, features, judging.floor)
    outcome = found.outcome
    duplicates = np.flatnonzero(outcome >= OUTCOME_DIGEST)
    named = found.entry[duplicates]
    entries.expect(named)
    added = np.flatnonzero(outcome <= OUTCOME_SHORT)
    if len(added):
        _append(state, batch, places[added], judging.columns, outcome[added] == OUTCOME_SHORT, log_offset, judging.append_ms)
    reasons = np.where(outcome == OUTCOME_SHORT, np.uint8(Reason.TOO_SHORT), np.uint8(Reason.NEW))
    distances = np.zeros(len(places), np.uint8)
    about = handle_of(log_offset, 0) + places
    of = entries.origins(named)
    if len(named):
        judging.named.update(named.tolist())
        same = (outcome[duplicates] != OUTCOME_NEAR).tolist()
        ids = [batch.ids[place] for place in places[duplicates].tolist()]
        reasons[duplicates] = [
            reason_of_duplicate(same_text=is_same, identifier=identifier, representative=other)
            for is_same, identifier, other in zip(same, ids, of.ids.each(), strict=True)
        ]
        distances[duplicates] = found.distance[duplicates]
        about[duplicates] = handles_of(of.log_offsets, of.places)
    partitions, sources = state.sources.named(of.sources)
    representatives = NamedRepresentatives(partitions, sources, of.offsets, of.times_ms, of.ids.stops, of.ids.joined)
    verdicts = Verdicts(
        reasons,
        distances,
        np.full(len(places), log_offset, np.uint64),
        places.astype(np.uint32),
        representatives,
        found.agreeing,
    )
    return verdicts, about


def _append(
    state: IndexState,
    batch: Batch,
    places: NDArray[np.int64],
    columns: Columns,
    short: NDArray[np.bool_],
    log_offset: int,
    append_ms: int,
) -> None:
    """Give the documents at `places` of a batch their rows, in the generation of now."""
    entries, _ = state.rooms()
    rows = np.zeros(len(places), row_type(state.print_words, state.sketch_values))
    rows["state"] = np.where(short, STATE_DIGEST_ONLY, STATE_FULL)
    rows["text_digest"] = batch.text_digest[places]
    rows["print"] = batch.prints[places]
    rows["sketch"] = batch.sketches[places]
    rows["scope"] = batch.scope[places]
    rows["features"] = batch.features[places]
    rows["source"] = columns.sources[places]
    rows["offset"] = batch.offset[places]
    rows["value_digest"] = batch.value_digest[places]
    rows["time_ms"] = batch.time_ms[places]
    rows["log_offset"] = log_offset
    rows["place"] = places
    rows["append_ms"] = append_ms
    state.generations.open(entries.count, state.window)
    entries.append(rows, [batch.ids[place] for place in places.tolist()])


def _renew(state: IndexState, named: set[int]) -> None:
    """Move the named representatives of earlier generations to the generation of now, in their order."""
    entries, neighbours = state.rooms()
    current = state.generations.current(entries.count)
    old = sorted(entry for entry in named if entry < current)
    if not old:
        return
    rows = np.zeros(len(old), row_type(state.print_words, state.sketch_values))
    details = entries.details(old)
    for row, detail in enumerate(details):
        for name in rows.dtype.names or ():
            if name not in ("ids_end", "print", "sketch", "text_digest"):
                rows[name][row] = getattr(detail, name)
        rows["print"][row] = np.frombuffer(detail.print, "<u8")
        rows["sketch"][row] = np.frombuffer(detail.sketch, np.uint8)
        rows["text_digest"][row] = np.frombuffer(detail.text_digest, np.uint8)
    neighbours.drop(np.array(old))
    entries.drop(np.array(old))
    neighbours.add(columns_of(rows), rows["state"] == STATE_FULL)
    state.generations.open(entries.count, state.window)
    entries.append(rows, [detail.id for detail in details])


def _seed(state: IndexState, log_offset: int, append_ms: int, batch: Batch, floor: int) -> None:
    """Make representatives of documents that were delivered elsewhere, unless one within reach stands already."""
    _, neighbours = state.rooms()
    numbers = _numbers(state, batch)
    for number in numbers:
        state.positions.raise_mark(number, 0, 0)
    columns = _columns(batch, numbers)
    for first, end in cut_at_repeats(keys_of(columns)):
        part = take_rows(columns, slice(first, end))
        fresh = first + np.flatnonzero(neighbours.find_positions(part) < 0)
        if not len(fresh):
            continue
        found = neighbours.judge(take_rows(columns, fresh), columns.features[fresh], floor)
        added = np.flatnonzero(found.outcome <= OUTCOME_SHORT)
        if len(added):
            short = found.outcome[added] == OUTCOME_SHORT
            _append(state, batch, fresh[added], columns, short, log_offset, append_ms)


def _release(state: IndexState, log_offset: int, append_ms: int, batch: Batch, floor: int) -> None:
    """Let a dropped document be unique after all; it represents itself, unless its text is represented already."""
    _, neighbours = state.rooms()
    numbers = _numbers(state, batch)
    for number in numbers:
        state.positions.raise_mark(number, 0, 0)
    columns = _columns(batch, numbers)
    if int(neighbours.find_positions(columns)[0]) >= 0:
        return
    short = np.array([int(batch.features[0]) < floor])
    reason = Reason.TOO_SHORT if short[0] else Reason.NEW
    (key,) = keys_of(columns)
    state.positions.replace(key, handle_of(log_offset, 0), Judgement(reason, LogPlace(log_offset, 0)))
    if int(neighbours.find_digests(columns)[0]) < 0:
        neighbours.add(columns, ~short)
        _append(state, batch, np.zeros(1, np.int64), columns, short, log_offset, append_ms)


def _control(state: IndexState, log_offset: int, control: Control) -> bool:
    """Carry out a control record; return False for one that says nothing to this version, or nothing that can be."""
    try:
        if control.type == "declare":
            return _declare(state, Declaration.from_fields(control.fields))
        if control.type == "plan":
            return _change_plan(state, control.fields)
        if control.type == "retract":
            return _retract(state, log_offset, control.fields)
        if control.type == "forget":
            return _forget(state, control.fields)
    except ConfigurationError:
        pass
    return False


def _declare(state: IndexState, declared: Declaration) -> bool:
    if state.declared is not None:
        return state.declared == declared
    state.declared, state.plan, state.window = declared, declared.plan, declared.window
    state.declaration_changed = True
    return True


def _change_plan(state: IndexState, fields: Mapping[str, Any]) -> bool:
    """Change plan, window, or both."""
    if state.declared is None or state.plan is None:
        return False
    found = changed(fields, state.plan, state.window, _width(state), _sketch_values(state))
    if found is None:
        return False
    plan, window = found
    if plan != state.plan:
        state.plan = plan
        state.declaration_changed = True
        if state.neighbours is not None:
            state.neighbours.change_plan(plan)
    if window != state.window:
        state.window = window
        state.declaration_changed = True
        state.generations.close()
        _expire(state)
    return True


def _retract(state: IndexState, log_offset: int, fields: Mapping[str, Any]) -> bool:
    try:
        topic_id = bytes.fromhex(_text(fields, "topic_id"))
    except ValueError:
        return False
    partition = _integer(fields, "partition", _U32_MAX)
    offset = _integer(fields, "offset", _OFFSET_MAX)
    value_digest = _integer(fields, "value_digest", _U64_MAX)
    source = state.sources.find(_text(fields, "topic"), topic_id, partition)
    if len(topic_id) != TOPIC_ID_BYTES:
        return False
    if source is None or state.neighbours is None or state.entries is None:
        return True
    wanted = no_columns(state.print_words, 1, state.sketch_values)
    wanted.sources[0], wanted.offsets[0], wanted.values[0] = source, offset, value_digest
    entry = int(state.neighbours.find_positions(wanted)[0])
    handle = None
    if entry >= 0:
        (detail,) = state.entries.details([entry])
        handle = handle_of(detail.log_offset, detail.place)
        _drop(state, np.array([entry]), "retract")
    # A duplicate can be refused by its output too: it represents nobody, and still must not be given its verdict again.
    state.positions.retract((source, offset, value_digest), handle, Judgement(Reason.RETRACTED, LogPlace(log_offset, 0)))
    return True


def _forget(state: IndexState, fields: Mapping[str, Any]) -> bool:
    """Take representatives of these ids down, and the ids with them; verdicts that were given stay what they were."""
    texts = fields.get("ids")
    if not isinstance(texts, list) or not 0 < len(texts) <= _IDS_MAX:
        return False
    try:
        ids = {bytes.fromhex(text) for text in texts}
    except (ValueError, TypeError):
        return False
    if b"" in ids or max(map(len, ids)) > ID_BYTES_MAX:
        return False
    if state.neighbours is None or state.entries is None:
        return True
    found, is_live = state.entries.find_ids(ids)
    _drop(state, found[is_live], "forget")
    state.entries.wipe(found)
    state.positions.forget(ids)
    return True


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ConfigurationError(f"The field {name} of a control record must be a text, not {value!r:.100}.")
    return value


def _name(fields: Mapping[str, Any], name: str) -> str:
    value = _text(fields, name)
    if not 0 < len(value.encode("utf-8", "surrogatepass")) <= _NAME_BYTES_MAX or not value.isprintable():
        raise ConfigurationError(f"The field {name} of a control record must be a printable name, not {value!r:.100}.")
    return value


def _integer(fields: Mapping[str, Any], name: str, highest: int) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= highest:
        raise ConfigurationError(f"The field {name} of a control record must be a whole number, not {value!r:.100}.")
    return value
