"""The pure fold of the log by a plain scan: what every verdict must equal. Imports nothing of the index.

Written from the rules alone: own position, then equal digest, then the earliest representative within the plan's reach.
Every comparison looks at every representative; numpy only makes that bearable for some ten thousand documents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from stream_dedup.ground.document import Reason
from stream_dedup.log.records import Batch, Control, LogRecord, Release, Seed
from tests.index.oracle import is_near

Place = tuple[bytes, int, int]  # topic id, partition, offset


class Expected(NamedTuple):
    """What the index must have answered for one document."""

    reason: Reason
    of: Place | None
    distance: int
    decided: tuple[int, int]


@dataclass(eq=False)
class Slice:
    """A stretch of log time, and when it ends."""

    end: int


@dataclass(eq=False)
class Kept:
    """A document that was judged unique, seeded or released, as the scan knows it."""

    place: Place
    value_digest: int
    id: bytes
    row: int | None
    decided: tuple[int, int]
    slice: Slice


@dataclass
class Oracle:
    """Folds log records one after another; `answers[(log offset, place)]` is what must have been answered.

    `elsewhere` are the places of seeds, which need not be in `unique`; `released` those of documents that are there though
    they were judged duplicates, with the log offset of the release.
    """

    answers: dict[tuple[int, int], Expected] = field(default_factory=dict)
    declared: dict[str, Any] = field(default_factory=dict)
    elsewhere: set[Place] = field(default_factory=set)
    released: dict[Place, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = np.zeros((1024, 2), np.uint64)
        self._scopes = np.zeros(1024, np.uint64)
        self._alive = np.zeros(1024, bool)
        self._features: list[int] = []
        self._kept: list[Kept] = []
        self._by_digest: dict[tuple[int, bytes], Kept] = {}
        self._by_place: dict[Place, Kept] = {}
        self._marks: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._memory: dict[tuple[bytes, int], dict[int, tuple[int, Expected]]] = {}
        self._plan: dict[str, Any] = {}
        self._window: dict[str, Any] | None = None
        self._slice: Slice | None = None
        self._now = 0
        self._has_time = False

    def fold(self, offset: int, record: LogRecord | None, append_ms: int | None = None) -> None:
        """Take in the next record of the log, appended at `append_ms`."""
        self._pass_time(append_ms or 0)
        if isinstance(record, Control):
            self._control(offset, record)
        elif isinstance(record, Seed | Release):
            for place in range(len(record.batch)):
                self._order(offset, place, record)
        elif isinstance(record, Batch) and record.recipe == self.declared.get("recipe"):
            for source in record.sources:
                self._move_mark((source.topic_id, source.partition), (source.epoch, source.committed))
            named: list[Kept] = []
            for place in range(len(record)):
                self.answers[offset, place] = self._judge(offset, place, record, named)
            if self._window and self._window["refresh"]:
                self._renew(named)

    def _control(self, offset: int, record: Control) -> None:
        fields = record.fields
        if record.type == "declare" and not self.declared:
            self.declared, self._plan, self._window = fields, fields["plan"], fields.get("window")
        elif record.type == "plan":
            self._plan = fields.get("plan", self._plan)
            if fields.get("window", self._window) != self._window:
                self._window = fields["window"]
                if self._slice is not None:
                    self._slice.end = min(self._slice.end, self._now + 1)
                self._pass_time(0)
        elif record.type == "forget":
            ids = {bytes.fromhex(one) for one in fields["ids"]}
            for kept in [kept for kept in self._by_place.values() if kept.id in ids]:
                self._remove(kept)
        elif record.type == "retract":
            self._retract(offset, fields)

    def _pass_time(self, append_ms: int) -> None:
        slice_ms = self._window["length_ms"] // 16 if self._window else 86_400_000
        self._now = max(self._now, min(append_ms, self._now + slice_ms)) if self._has_time else append_ms
        self._has_time = True
        if self._window:
            gone = [one for one in self._by_place.values() if one.slice.end + self._window["length_ms"] <= self._now]
            for kept in gone:
                self._remove(kept)

    def _new_slice(self) -> Slice:
        if self._slice is None or self._now >= self._slice.end:
            self._slice = Slice(self._now + (self._window["length_ms"] // 16 if self._window else 86_400_000))
        return self._slice

    def _remove(self, kept: Kept) -> None:
        del self._by_place[kept.place]
        self._by_digest = {key: one for key, one in self._by_digest.items() if one is not kept}
        if kept.row is not None:
            self._alive[kept.row] = False

    def _renew(self, named: list[Kept]) -> None:
        """Move what was named and stands in an older slice behind everything, in its order."""
        is_open = self._slice is not None and self._now < self._slice.end
        old = [one for one in self._by_place.values() if one in named and not (is_open and one.slice is self._slice)]
        for kept in old:
            del self._by_place[kept.place]
            self._by_place[kept.place] = kept
            kept.slice = self._new_slice()
            if kept.row is not None:
                self._alive[kept.row] = False
                kept.row = self._insert(self._rows[kept.row].copy(), int(self._scopes[kept.row]), self._features[kept.row])
                self._kept.append(kept)

    def _order(self, log_offset: int, place: int, record: Seed | Release) -> None:
        batch = record.batch
        position = batch.position(place)
        here: Place = (position.topic_id, position.partition, position.offset)
        if isinstance(record, Seed):
            self.elsewhere.add(here)
        else:
            self.released.setdefault(here, log_offset)
        standing = self._by_place.get(here)
        if standing is not None and standing.value_digest == int(batch.value_digest[place]):
            return
        if isinstance(record, Release):
            memory = self._memory.get((position.topic_id, position.partition), {})
            remembered = memory.get(position.offset)
            if remembered is not None and remembered[0] == int(batch.value_digest[place]):
                reason = Reason.NEW if int(batch.features[place]) >= self.declared["floor"] else Reason.TOO_SHORT
                memory[position.offset] = (remembered[0], Expected(reason, None, 0, (log_offset, place)))
        same, near = self._find(batch, place)
        if same is None and (near is None or isinstance(record, Release)):
            self._keep(batch, place, here, (log_offset, place))

    def _move_mark(self, partition: tuple[bytes, int], seen: tuple[int, int]) -> None:
        old = self._marks.get(partition, (0, 0))
        if seen <= old and partition in self._marks:
            return
        self._marks[partition] = seen
        memory = self._memory.setdefault(partition, {})
        for offset, (_, expected) in list(memory.items()):
            forgotten = offset < seen[1] or (seen[0] > old[0] and expected.reason >= Reason.EXACT)
            if forgotten:
                del memory[offset]

    def _judge(self, log_offset: int, place: int, batch: Batch, named: list[Kept]) -> Expected:
        source = batch.sources[int(batch.source[place])]
        partition = (source.topic_id, source.partition)
        offset, value_digest = int(batch.offset[place]), int(batch.value_digest[place])
        here: Place = (*partition, offset)
        mark = self._marks[partition]
        remembered = self._memory.setdefault(partition, {}).get(offset)
        if remembered and remembered[0] == value_digest and source.epoch >= mark[0]:
            return remembered[1]
        decided = (log_offset, place)
        kept = self._by_place.get(here)
        if kept is not None and kept.value_digest == value_digest:
            expected = Expected(Reason.NEW if kept.row is not None else Reason.TOO_SHORT, None, 0, kept.decided)
            if (source.epoch, offset) >= mark:
                self._memory[partition][offset] = (value_digest, expected)
            return expected
        if (source.epoch, offset) < mark:
            return Expected(Reason.STALE, None, 0, decided)
        expected = self._compare(batch, place, here, decided, named)
        self._memory[partition][offset] = (value_digest, expected)
        return expected

    def _compare(self, batch: Batch, place: int, here: Place, decided: tuple[int, int], named: list[Kept]) -> Expected:
        identity = batch.ids[place]
        same, found = self._find(batch, place)
        if same is not None:
            named.append(same)
            reason = Reason.UNCHANGED if identity and identity == same.id else Reason.EXACT
            return Expected(reason, same.place, 0, decided)
        if found is not None:
            row, distance = found
            near = self._kept[row]
            named.append(near)
            reason = Reason.REVISED if identity and identity == near.id else Reason.NEAR
            return Expected(reason, near.place, distance, decided)
        kept = self._keep(batch, place, here, decided)
        return Expected(Reason.NEW if kept.row is not None else Reason.TOO_SHORT, None, 0, decided)

    def _find(self, batch: Batch, place: int) -> tuple[Kept | None, tuple[int, int] | None]:
        """Return the representative of a document's text, or the (row, distance) of the earliest near it."""
        scope, digest = int(batch.scope[place]), batch.text_digest[place].tobytes()
        same = self._by_digest.get((scope, digest))
        if same is not None or int(batch.features[place]) < self.declared["floor"]:
            return same, None
        return None, self._scan(batch.prints[place], scope, int(batch.features[place]))

    def _keep(self, batch: Batch, place: int, here: Place, decided: tuple[int, int]) -> Kept:
        scope, is_long = int(batch.scope[place]), int(batch.features[place]) >= self.declared["floor"]
        row = self._insert(batch.prints[place], scope, int(batch.features[place])) if is_long else None
        kept = Kept(here, int(batch.value_digest[place]), batch.ids[place], row, decided, self._new_slice())
        if kept.row is not None:
            self._kept.append(kept)
        self._by_digest[scope, batch.text_digest[place].tobytes()] = kept
        self._by_place[here] = kept
        return kept

    def _scan(self, words: Any, scope: int, features: int) -> tuple[int, int] | None:
        size, used = len(self._kept), -(-self._plan["width"] // 64)
        distances = np.bitwise_count(self._rows[:size, :used] ^ np.asarray(words[:used], np.uint64)).sum(axis=1)
        # What is farther than every threshold of the plan needs no second look.
        farthest = max(self._plan["threshold"], *(bound for _, bound in self._plan.get("by_length", [])), 0)
        here = (distances <= farthest) & self._alive[:size] & (self._scopes[:size] == scope)
        one = _as_int(words[:used])
        for row in np.flatnonzero(here).tolist():
            if is_near(self._plan, one, _as_int(self._rows[row, :used]), features, self._features[row]):
                return row, int(distances[row])
        return None

    def _insert(self, words: Any, scope: int, features: int) -> int:
        row = len(self._features)
        if row == len(self._rows):
            self._rows = np.vstack([self._rows, np.zeros_like(self._rows)])
            self._scopes = np.concatenate([self._scopes, np.zeros_like(self._scopes)])
            self._alive = np.concatenate([self._alive, np.zeros_like(self._alive)])
        self._rows[row, : len(words)] = words
        self._scopes[row] = scope
        self._alive[row] = True
        self._features.append(features)
        return row

    def _retract(self, log_offset: int, fields: dict[str, Any]) -> None:
        partition = (bytes.fromhex(fields["topic_id"]), fields["partition"])
        here: Place = (*partition, fields["offset"])
        kept = self._by_place.get(here)
        if kept is not None and kept.value_digest == fields["value_digest"]:
            self._remove(kept)
        remembered = self._memory.setdefault(partition, {}).get(fields["offset"])
        if remembered is not None and remembered[0] == fields["value_digest"]:
            gone = Expected(Reason.RETRACTED, None, 0, (log_offset, 0))
            self._memory[partition][fields["offset"]] = (fields["value_digest"], gone)
        if kept is None or kept.value_digest != fields["value_digest"]:
            return  # it represented nobody any more; what was said of its duplicates stands
        for memory in self._memory.values():
            for offset, (_, expected) in list(memory.items()):
                if expected.of == here:
                    del memory[offset]


def _as_int(words: Any) -> int:
    return sum(int(word) << (64 * index) for index, word in enumerate(words))
