"""The pure fold of the log by a plain scan: what every verdict must equal. Imports nothing of the index.

Written from the rules alone: own position, then equal digest, then the earliest representative within the plan's reach.
Every comparison looks at every representative; numpy only makes that bearable for some ten thousand documents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from stream_dedup.document import Reason
from stream_dedup.log.records import Batch, Control

Place = tuple[bytes, int, int]  # topic id, partition, offset


class Expected(NamedTuple):
    """What the index must have answered for one document."""

    reason: Reason
    of: Place | None
    distance: int
    decided: tuple[int, int]


@dataclass
class Kept:
    """A document that was judged unique, as the scan knows it."""

    place: Place
    value_digest: int
    id: bytes
    row: int | None
    decided: tuple[int, int]


@dataclass
class Oracle:
    """Folds log records one after another; `answers[(log offset, place)]` is what must have been answered."""

    answers: dict[tuple[int, int], Expected] = field(default_factory=dict)
    declared: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = np.zeros((1024, 2), np.uint64)
        self._scopes = np.zeros(1024, np.uint64)
        self._alive = np.zeros(1024, bool)
        self._kept: list[Kept] = []
        self._by_digest: dict[tuple[int, bytes], Kept] = {}
        self._by_place: dict[Place, Kept] = {}
        self._marks: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._memory: dict[tuple[bytes, int], dict[int, tuple[int, Expected]]] = {}

    def fold(self, offset: int, record: Batch | Control | None) -> None:
        """Take in the next record of the log."""
        if isinstance(record, Control):
            if record.type == "declare" and not self.declared:
                self.declared = record.fields
            elif record.type == "retract":
                self._retract(offset, record.fields)
        elif isinstance(record, Batch) and record.recipe == self.declared.get("recipe"):
            for source in record.sources:
                self._move_mark((source.topic_id, source.partition), (source.epoch, source.committed))
            for place in range(len(record)):
                self.answers[offset, place] = self._judge(offset, place, record)

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

    def _judge(self, log_offset: int, place: int, batch: Batch) -> Expected:
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
            return Expected(Reason.NEW if kept.row is not None else Reason.TOO_SHORT, None, 0, kept.decided)
        if (source.epoch, offset) < mark:
            return Expected(Reason.STALE, None, 0, decided)
        expected = self._compare(batch, place, here, value_digest, decided)
        self._memory[partition][offset] = (value_digest, expected)
        return expected

    def _compare(self, batch: Batch, place: int, here: Place, value_digest: int, decided: tuple[int, int]) -> Expected:
        scope, digest = int(batch.scope[place]), batch.text_digest[place].tobytes()
        identity = batch.ids[place]
        is_long = int(batch.features[place]) >= self.declared["floor"]
        same = self._by_digest.get((scope, digest))
        if same is not None:
            reason = Reason.UNCHANGED if identity and identity == same.id else Reason.EXACT
            return Expected(reason, same.place, 0, decided)
        if is_long:
            found = self._scan(batch.prints[place], scope)
            if found is not None:
                row, distance = found
                near = self._kept[row]
                reason = Reason.REVISED if identity and identity == near.id else Reason.NEAR
                return Expected(reason, near.place, distance, decided)
        kept = Kept(here, value_digest, identity, self._insert(batch.prints[place], scope) if is_long else None, decided)
        if kept.row is not None:
            self._kept.append(kept)
        self._by_digest[scope, digest] = kept
        self._by_place[here] = kept
        return Expected(Reason.NEW if is_long else Reason.TOO_SHORT, None, 0, decided)

    def _scan(self, words: Any, scope: int) -> tuple[int, int] | None:
        plan = self.declared["plan"]
        width, blocks, radius, threshold = plan["width"], plan["blocks"], plan["radius"], plan["threshold"]
        size = len(self._kept)
        used = -(-width // 64)
        different = self._rows[:size, :used] ^ np.asarray(words[:used], np.uint64)
        distances = np.bitwise_count(different).sum(axis=1)
        for row in np.flatnonzero((distances <= threshold) & self._alive[:size] & (self._scopes[:size] == scope)).tolist():
            bits = sum(int(different[row, word]) << (64 * word) for word in range(used))
            block = width // blocks
            if any((bits >> (block * index) & ((1 << block) - 1)).bit_count() <= radius for index in range(blocks)):
                return row, int(distances[row])
        return None

    def _insert(self, words: Any, scope: int) -> int:
        row = len(self._kept)
        if row == len(self._rows):
            self._rows = np.vstack([self._rows, np.zeros_like(self._rows)])
            self._scopes = np.concatenate([self._scopes, np.zeros_like(self._scopes)])
            self._alive = np.concatenate([self._alive, np.zeros_like(self._alive)])
        self._rows[row, : len(words)] = words
        self._scopes[row] = scope
        self._alive[row] = True
        return row

    def _retract(self, log_offset: int, fields: dict[str, Any]) -> None:
        partition = (bytes.fromhex(fields["topic_id"]), fields["partition"])
        here: Place = (*partition, fields["offset"])
        kept = self._by_place.get(here)
        if kept is not None and kept.value_digest == fields["value_digest"]:
            del self._by_place[here]
            self._by_digest = {key: one for key, one in self._by_digest.items() if one is not kept}
            if kept.row is not None:
                self._alive[kept.row] = False
        remembered = self._memory.setdefault(partition, {}).get(fields["offset"])
        if remembered is not None and remembered[0] == fields["value_digest"]:
            gone = Expected(Reason.RETRACTED, None, 0, (log_offset, 0))
            self._memory[partition][fields["offset"]] = (fields["value_digest"], gone)
        for memory in self._memory.values():
            for offset, (_, expected) in list(memory.items()):
                if expected.of == here:
                    del memory[offset]
