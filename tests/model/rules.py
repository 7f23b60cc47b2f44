"""The rules of the design, each with a way to break it and the violations that follow.

A rule is switched off by a patch that is in force while the model runs, never by a setting of the
product. `finds` are the kinds of violation of which one must be found (`checker`, `world`). Only
the rule's kinds count, so that a patch which breaks everything proves nothing. `tuning` makes the
faults that the rule is for more frequent, so that few schedules are enough.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np

from stream_dedup.domain.document import DeadLetter
from stream_dedup.domain.errors import ConfigurationError, TextAwayError
from stream_dedup.index.index import LogIndex
from stream_dedup.index.rules import judging as index_judging
from stream_dedup.index.rules import orders
from stream_dedup.index.rules.copies import CopyCounts
from stream_dedup.index.rules.positions import Positions
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.storage import layout
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.indexer import role as indexer
from stream_dedup.kafka import transaction
from stream_dedup.kafka.transaction import Outcome, Result
from stream_dedup.log import answers, records
from stream_dedup.log.records import Source
from stream_dedup.orders import beginnings, rewind
from stream_dedup.worker import flow, intake, role, startup
from stream_dedup.worker.assignment import Assignment
from stream_dedup.worker.delivery import Delivery
from stream_dedup.worker.dependencies import WorkerDependencies
from stream_dedup.worker.prepare import Preparer
from tests.model import kafka, stand_ins
from tests.model.world import Tuning
from tests.unfenced_worker import unguarded

Off = Callable[[contextlib.ExitStack], None]


@dataclass(frozen=True)
class Rule:
    """A rule: how to switch it off, the violations that follow, and where to find them."""

    name: str
    off: Off
    finds: tuple[str, ...]
    tuning: Tuning = field(default_factory=Tuning)
    schedules: int = 150
    first: int = 0


def _set(place: object, name: str, value: Any) -> Off:
    return lambda stack: stack.enter_context(mock.patch.object(place, name, value))


def _all(*offs: Off) -> Off:
    def off(stack: contextlib.ExitStack) -> None:
        for switch_off in offs:
            switch_off(stack)

    return off


def _instead(place: object, name: str) -> Callable[[Callable[..., Any]], Off]:
    """Replace a function by another, which gets the original as its first argument."""

    def as_off(function: Callable[..., Any]) -> Off:
        def off(stack: contextlib.ExitStack) -> None:
            real = getattr(place, name)
            stack.enter_context(
                mock.patch.object(
                    place, name, lambda *given, **named: function(real, *given, **named)
                )
            )

        return off

    return as_off


# -- the worker's assignment


@_instead(Assignment, "assigned")
def _keeps_the_id_of_its_start(assigned: Any, assignment: Assignment, keys: Any) -> Any:
    """The worker trusts the topics that it read at its start, even if that was long ago."""
    assignment._has_partitions = True
    return assigned(assignment, keys)


# -- the index


@_instead(IndexState, "drop")
def _expires_with_its_representative(drop: Any, state: IndexState, entries: Any, why: str) -> None:
    of = state.require_stores()[0].representatives(entries)
    gone = set(zip(of.log_offsets.tolist(), of.places.tolist(), strict=True))
    drop(state, entries, why)
    positions = state.positions
    for record in list(positions._records.values()) if why == "window" else ():
        is_gone = [divmod(handle, 1 << 16) in gone for handle in record.handles.tolist()]
        positions._drop(record, np.array(is_gone))


@_instead(index_judging._Judging, "__init__")
def _no_stale(init: Any, judging: Any, *given: Any) -> None:
    init(judging, *given)
    judging.has_lower_epoch, judging.is_below_watermark = (
        np.zeros_like(judging.has_lower_epoch),
        np.zeros_like(judging.is_below_watermark),
    )


@_instead(IndexState, "drop")
def _retraction_keeps(drop: Any, state: IndexState, entries: Any, why: str) -> None:
    if why != "retract":
        drop(state, entries, why)


@_instead(orders, "apply_control")
def _swallows_what_memory_refuses(
    carry_out: Any, state: IndexState, log_offset: int, control: records.Control
) -> bool:
    """Tables are dropped before memory is checked, and an order that fails is ignored."""
    try:
        return carry_out(state, log_offset, control)
    except ConfigurationError:
        if state.neighbours is not None:
            state.neighbours._create_tables()
        return False


@_instead(LogIndex, "apply")
def _wall_clock(take: Any, self: LogIndex, found: Sequence[tuple[int, int, bytes | None]]) -> Any:
    process = stand_ins.WORLD.scheduler.current
    if process is None:
        return take(self, found)
    now_ms = stand_ins.WORLD.broker.now_ms + (3000 if process.slot == "index-1" else 0)
    return take(self, [(offset, now_ms, value) for offset, _, value in found])


@_instead(stand_ins.Volume, "write")
def _torn_write(_real: Any, self: MemoryStore, puts: Any, deletes: Any, ranges: Any = ()) -> None:
    """The offset of the log is written first, and the rest in a second write."""
    first = {key: value for key, value in puts.items() if key == layout.KEY_META}
    MemoryStore.write(self, first, ())
    stand_ins.WORLD.scheduler.step()
    MemoryStore.write(
        self, {key: value for key, value in puts.items() if key not in first}, deletes, ranges
    )
    stand_ins.WORLD.scheduler.step()


@_instead(indexer.Indexer, "_send")
def _answered_when_sent(_real: Any, self: Any, offset: int, raw: bytes) -> None:
    self._index.mark_delivered(offset + 1)
    self._index.flush()
    self._writer.send(raw, self._name, lambda _: None)


@_instead(indexer.Indexer, "_announce_if_new")
def _never_announces(_real: Any, self: Any, applied: int) -> int:
    if applied > 0 and not self._index.restored:
        return int(self._index.answered_offset)
    self._index.mark_announced(self._end_at_start)
    return int(self._end_at_start)


@_instead(Positions, "find_verdicts")
def _counts_again(kept: Any, self: Positions, columns: Any) -> Any:
    """A duplicate that has a verdict already is counted again as a copy of its representative."""
    found = kept(self, columns)
    return {
        key: verdict._replace(copies=verdict.copies + 1) if verdict.copies else verdict
        for key, verdict in found.items()
    }


# -- the worker


def _matched_by_number(stack: contextlib.ExitStack) -> None:
    answered, decode = flow.Flow.answered, answers.decode

    def any_nonce(self: flow.Flow, answer: Any) -> bool:
        return answered(self, replace(answer, nonce=self.nonce))

    stack.enter_context(
        mock.patch.object(answers, "decode", lambda raw, what, _=None: decode(raw, what))
    )
    stack.enter_context(mock.patch.object(flow.Flow, "answered", any_nonce))


def _out_of_order(stack: contextlib.ExitStack) -> None:
    def ready(self: flow.Flow) -> list[Any]:
        return [] if self._stale else [batch for batch in self._batches if batch.is_answered][-1:]

    def committed(self: flow.Flow, batches: Sequence[Any]) -> None:
        for batch in batches:
            self._batches.remove(batch)
        for key, (offset, epoch) in self.offsets(batches).items():
            owned = self._owned.get(key)
            if owned is not None and owned.epoch == epoch:
                owned.committed = offset

    stack.enter_context(mock.patch.multiple(flow.Flow, ready=ready, committed=committed))


@_instead(intake.Intake, "discard")
def _keeps_what_was_read(forget: Any, self: intake.Intake) -> None:
    ahead = self._read_ahead
    forget(self)
    if ahead is not None:
        self._start(ahead)


@_instead(flow.Flow, "drop_all")
def _abort_drops_one(_real: Any, self: flow.Flow) -> list[Any]:
    """Only the batch that aborted is dropped, and is read again after the others commit."""
    if self._batches:
        batch = self._batches.popleft()
        for part in batch.parts:
            self._parts.pop(part.number, None)
    return [] if self._batches else list(self._owned)


@_instead(flow.Flow, "source")
def _unconfirmed(source: Any, self: flow.Flow, key: Any) -> Source:
    """A log record states the offset of batches in flight as if it were committed."""
    found = source(self, key)
    ends = [
        message.offset + 1
        for batch in self._batches
        for message in batch.messages
        if (message.topic, message.partition) == key
    ]
    return replace(found, committed=max([found.committed, *ends]))


@_instead(stand_ins, "dependencies_of_worker")
def _stamp_at_commit(guarded: Any) -> WorkerDependencies:
    return unguarded(guarded())


@_instead(flow.Flow, "source")
def _no_topic_id(source: Any, self: flow.Flow, key: Any) -> Source:
    return replace(source(self, key), topic_id=bytes(15) + b"\1")


@_instead(kafka.Broker, "__init__")
def _no_generation(made: Any, self: kafka.Broker, *given: Any) -> None:
    made(self, *given)
    self.checks_generation = False


@_instead(transaction.TransactionalOutput, "_end_as_unknown")
def _keeps_producer(_real: Any, self: Any, why: str) -> Any:
    self._producer._is_hung = False
    return Result(Outcome.UNKNOWN, why=why)


@_instead(rewind, "_change")
def _same_epoch(change: Any, part: int, offset: int, *more: Any) -> rewind.OffsetChange:
    found = change(part, offset, *more)
    return replace(found, new_epoch=max(0, found.new_epoch - 1))


@_instead(beginnings.Beginnings, "is_begun")
def _written_down_before_the_commit(has: Any, self: beginnings.Beginnings, partition: int) -> bool:
    found = has(self, partition)
    self.record([partition])
    return found


@_instead(beginnings.Beginnings, "is_begun")
def _by_the_first_records(_real: Any, self: beginnings.Beginnings, partition: int) -> bool:
    first = itertools.islice(stand_ins.WORLD.broker.read(self._names.fingerprints, 0), 50)
    batches = [
        record
        for entry in first
        if isinstance(record := records.decode(entry.value), records.Batch)
    ]
    return any(
        source.topic_id == self._begun.topic_id for record in batches for source in record.sources
    )


def _offset_asked_before(self: Any, found: Any) -> Any:
    self._beginnings.refresh()
    return found


@_instead(flow.Flow, "__init__")
def _window_at_once(made: Any, self: flow.Flow, *given: Any) -> None:
    made(self, *given)
    self._batches_allowed = self._batches_max


@_instead(intake, "remainder_of")
def _dropped_in_a_hurry(remainder_of: Any, read: Any, messages: Any, done: int) -> Any:
    """A batch of which nothing could be read is dropped, if the caller is in a hurry."""
    return remainder_of(read, messages, done) if done else None


@_instead(Preparer, "_read")
def _done_with_what_is_away(read: Any, self: Preparer, messages: Any, *more: Any) -> Any:
    """A batch counts as fully read even if a text after its first one is unavailable."""
    documents, prints, done = read(self, messages, *more)
    return documents, prints, len(messages) if done else done


@_instead(stand_ins.Impatient, "fetch")
def _away_is_missing(fetch: Any, self: Any, addresses: Any, start: int, *more: Any) -> Any:
    """A text whose store does not answer is treated as missing."""
    try:
        return fetch(self, addresses, start, *more)
    except TextAwayError as error:
        return [DeadLetter("fetch", "Away", str(error), can_vary=True)]


MANY = {"documents": 30}
REREAD = Tuning(
    weights={**MANY, "abort": 20, "crash": 15, "rebalance": 10, "window": 6, "time": 12},
    window_ms=1600,
)
COMMITS = Tuning(weights={**MANY, "commit": 30, "abort": 4}, happenings=20)
ZOMBIES = Tuning(weights={**MANY, "pause": 30, "rebalance": 10})
REPLICAS = Tuning(weights={**MANY, "index": 25, "rebuild": 10, "restore": 10, "checkpoint": 8})
ALONE = replace(REPLICAS, indexes=1)
AWAY = Tuning(weights={**MANY, "away": 25, "rebalance": 12, "crash": 6, "commit": 6})
VANISHED = Tuning(weights={**MANY, "vanish": 30})
FOREIGN = replace(VANISHED, foreign=1.0)
OVERTAKEN = Tuning(weights={**MANY, "pause": 15, "replace": 30, "rebalance": 10}, turns=150)
BEGINNINGS = Tuning(weights={**MANY, "crash": 25, "rebalance": 15})
REWINDS = Tuning(weights={**MANY, "rewind": 25, "crash": 6})

RULES = [
    Rule("positions are looked up, and verdicts kept",
         _set(Positions, "cache", lambda *_: None), ("verdict",), REREAD, first=21),
    Rule("a kept verdict outlives its representative", _expires_with_its_representative, ("verdict",), REREAD, first=7),
    Rule("what lies below the watermark is stale", _no_stale, ("verdict",),
         Tuning(weights={"documents": 60, "pause": 50, "rebalance": 20, "replace": 10}, happenings=26, window_ms=None,
                aside=False), first=57),
    Rule("a retracted document represents nobody", _retraction_keeps, ("verdict",), Tuning(weights={**MANY, "refuse": 20}),
         first=17),
    Rule("an order beyond an index's memory is refused whole", _swallows_what_memory_refuses, ("alarm", "verdict", "state"),
         Tuning(weights={**MANY, "beyond": 25, "index": 10}), first=7),
    Rule("log time is LogAppendTime, never a clock", _wall_clock, ("alarm", "verdict"), REREAD, first=56),
    Rule("one write holds all that a record led to", _torn_write, ("alarm", "verdict", "state", "stuck"), REPLICAS, first=9),
    Rule("stored answers are sent again after a restart", _set(LogIndex, "answers_since", lambda *_: ()), ("stuck",), ALONE,
         first=21),
    Rule("the answered offset moves on delivery reports", _answered_when_sent, ("stuck",), ALONE, first=4),
    Rule("counts of copies are written with what they came from", _set(CopyCounts, "add_writes", lambda *_: None),
         ("alarm",), REPLICAS),
    Rule("a copy that is redelivered is not counted again", _counts_again, ("verdict",), REREAD, first=1),
    Rule("a rebuilt index announces from where it answers", _never_announces, ("stuck",), ALONE, first=2),
    Rule("answers are matched by nonce", _matched_by_number, ("alarm", "verdict", "twice", "lost"), Tuning(weights=MANY)),
    Rule("batches are committed in the order in which they were read", _out_of_order, ("lost", "order", "alarm"), COMMITS,
         first=2),
    Rule("an abort drops every batch in flight", _abort_drops_one, ("lost", "committed", "alarm"), COMMITS, first=1),
    Rule("an abort drops the batch that is being prepared", _set(intake.Intake, "discard", lambda _: None),
         ("lost", "committed", "order", "alarm"), COMMITS),
    Rule("an abort drops what was read ahead", _keeps_what_was_read,
         ("lost", "committed", "order", "alarm", "twice"), replace(COMMITS, gathers=False), first=45),
    Rule("what preparing was cut off from comes next", _set(intake, "remainder_of", lambda *_: None),
         ("lost", "order", "stuck", "alarm"), Tuning(weights=MANY, cuts=True)),
    Rule("what was read and not prepared at a rebalance is read again", _set(Assignment, "reread_unprepared", lambda *_: None),
         ("lost", "order", "stuck", "alarm"), Tuning(weights=MANY, cuts=True)),
    Rule("what a limit of time makes a dead letter is retracted first", _set(Delivery, "retract_varying", lambda *_: None),
         ("dead",),
         Tuning(weights={**MANY, "slow": 20, "crash": 10, "commit": 10, "rewind": 0, "pause": 0, "replace": 0}), first=8),
    Rule("what a store does not have is retracted first", _set(Delivery, "retract_varying", lambda *_: None),
         ("dead",),
         Tuning(weights={**MANY, "far": 20, "crash": 10, "commit": 10, "rewind": 0, "pause": 0, "replace": 0}), first=8),
    Rule("what waits for a text is handed back in a hurry", _dropped_in_a_hurry, ("lost", "order", "stuck", "alarm"), AWAY,
         first=11),
    Rule("what lies behind a text that is away is cut off", _done_with_what_is_away, ("lost", "alarm", "order"), AWAY),
    Rule("a text that is away is no dead letter", _away_is_missing, ("unread",), AWAY),
    Rule("a log record states what a commit confirmed", _unconfirmed, ("alarm",), COMMITS),
    Rule("group metadata is captured with the batch", _stamp_at_commit, ("twice", "lost", "order"), ZOMBIES, 400, 8),
    Rule("the offsets carry the group's generation", _no_generation, ("twice", "lost", "order", "alarm"), ZOMBIES, first=2),
    Rule("a position holds the topic's id", _no_topic_id, ("lost", "verdict", "alarm", "from-nowhere", "order"),
         Tuning(weights={**MANY, "recreate": 20})),
    Rule("a producer with an unknown end is thrown away", _keeps_producer, ("twice", "lost", "order"), COMMITS),
    Rule("a rewind raises the epoch", _same_epoch, ("alarm", "verdict", "twice"), REWINDS),
    Rule("a rewind never goes above the committed offset", _set(rewind, "_find_refusal", lambda *_: None), ("lost",), REWINDS,
         first=4),
    Rule("vanished offsets are not taken for a first start", _set(startup, "first_epoch", lambda *_: 0),
         ("twice", "alarm", "order"), Tuning(weights={**MANY, "vanish": 30}), first=18),
    Rule("what was begun is not told by the log's first records", _by_the_first_records, ("twice",), FOREIGN),
    Rule("that a partition was begun is written down before it is read", _set(beginnings.Beginnings, "record", lambda *_: None),
         ("twice", "alarm", "order"), VANISHED, first=20),
    Rule("that a partition was begun is written down once its offset is committed", _written_down_before_the_commit, ("alarm",),
         BEGINNINGS, first=24),
    Rule("the offset is asked again behind what was begun", _set(Assignment, "refresh_missing", _offset_asked_before),
         ("alarm",), OVERTAKEN),
    Rule("what was begun before that was written down is told by the group and the log",
         _set(beginnings.Beginnings, "record_older_partitions", lambda *_: None), ("twice", "alarm", "order"), VANISHED, first=9),
    Rule("who is given its first partitions looks at its topic again", _keeps_the_id_of_its_start, ("lost",), Tuning(
        weights={"documents": 25, "worker": 20, "rebalance": 20, "recreate": 30, "replace": 20}, turns=80, happenings=24), first=62),
    Rule("what changes the flow waits for the transaction that runs", _set(role.Worker, "drain", lambda _: None),
         ("alarm", "twice", "lost"), ZOMBIES, first=15),
    Rule("answers that their topic lost are asked for anew", _set(role.Worker, "reopen_verdicts", lambda _: None), ("stuck",),
         Tuning(weights={**MANY, "verdicts": 30})),
    Rule("one log record until the first answer", _window_at_once, ("flood",), Tuning(weights=MANY)),
]  # fmt: skip


@contextlib.contextmanager
def switched_off(rule: Rule) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        rule.off(stack)
        yield
