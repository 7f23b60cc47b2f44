"""The index as a plain scan: a list, a Hamming distance, and the rules of positions. Imports nothing of the index.

Give it log records one after another; it returns what the answer must say. A plan is its fields as the log carries them.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import Any

from stream_dedup.document import LogPlace, Position, Reason, Representative, Verdict
from stream_dedup.errors import FormatError
from stream_dedup.log.answers import Judgement
from stream_dedup.log.records import Batch, Control, decode

Key = tuple[str, bytes, int, int, int]  # topic, topic id, partition, offset, value digest


@dataclass
class Kept:
    """A representative."""

    key: Key
    digest: bytes
    print: int
    scope: int
    full: bool
    id: bytes
    time_ms: int
    decided: LogPlace
    features: int
    live: bool = True


def is_near(plan: dict[str, Any], one: int, other: int, features: int, other_features: int) -> bool:
    """Return whether two prints are near: some key within the radius, the whole within the threshold for their lengths."""
    width, blocks, smaller = plan["width"], plan["blocks"], min(features, other_features)
    bits = bin(((one ^ other) & ((1 << width) - 1)) | 1 << width)[:2:-1]  # lowest bit first
    cuts = [width * block // max(1, blocks) for block in range(blocks + 1)]
    errors = [bits[first:end].count("1") for first, end in itertools.pairwise(cuts)]
    some_key = any(sum(key) <= plan["radius"] for key in itertools.combinations(errors, plan.get("key_blocks", 1)))
    threshold = next((bound for below, bound in plan.get("by_length", []) if smaller < below), plan["threshold"])
    alike = 100 * smaller >= plan.get("ratio", 0) * max(features, other_features)
    return alike and bits.count("1") <= threshold and (some_key or not blocks)


class Oracle:
    """Folds a log; `plan` is the fields of the plan in force."""

    def __init__(self) -> None:
        self.declared: dict[str, object] | None = None
        self.plan: dict[str, Any] = {}
        self.words = 0
        self.representatives: list[Kept] = []
        self.marks: dict[tuple[str, bytes, int], tuple[int, int]] = {}
        self.verdicts: dict[Key, tuple[Judgement, Kept | None]] = {}

    def fold(self, offset: int, raw: bytes | None) -> list[Judgement] | str | None:
        """Return the judgements, the word "rejected", or None where no answer is due."""
        try:
            record = decode(raw)
        except FormatError:
            return "rejected"
        if isinstance(record, Control):
            with contextlib.suppress(KeyError, ValueError, TypeError):  # what cannot be carried out is passed over
                self._control(offset, record)
            return None
        if (
            self.declared is None
            or record.recipe != self.declared["recipe"]
            or record.mode != self.declared["mode"]
            or record.prints.shape[1] * 64 < self.plan["width"]
            or (self.words and record.prints.shape[1] != self.words)
            or any(offset < 0 for offset in record.offset.tolist())
            or any(source.committed >= 1 << 63 for source in record.sources)
        ):
            return "rejected"
        self.words = record.prints.shape[1]
        for source in record.sources:
            self._raise_mark((source.topic, source.topic_id, source.partition), (source.epoch, source.committed))
        return [self._document(offset, record, place) for place in range(len(record))]

    def _raise_mark(self, partition: tuple[str, bytes, int], pair: tuple[int, int]) -> None:
        old = self.marks.get(partition)
        if old is not None and pair <= old:
            return
        self.marks[partition] = pair
        for key, (judgement, _) in list(self.verdicts.items()):
            rises = old is not None and pair[0] > old[0] and judgement.reason.verdict is not Verdict.UNIQUE
            if key[:3] == partition and (rises or key[3] < pair[1]):
                del self.verdicts[key]

    def _document(self, log_offset: int, batch: Batch, place: int) -> Judgement:
        source, position = batch.sources[int(batch.source[place])], batch.position(place)
        key = (position.topic, position.topic_id, position.partition, position.offset, int(batch.value_digest[place]))
        mark = self.marks[key[:3]]
        here = LogPlace(log_offset, place)
        if key in self.verdicts and source.epoch >= mark[0]:
            return self.verdicts[key][0]
        own = next((one for one in self.representatives if one.live and one.key == key), None)
        below = (source.epoch, position.offset) < mark
        if own is not None:
            judgement, about = Judgement(Reason.NEW if own.full else Reason.TOO_SHORT, own.decided), own
        elif below:
            return Judgement(Reason.STALE, here)
        else:
            judgement, about = self._judge(batch, place, key, here)
        if not below:
            self.verdicts[key] = (judgement, about)
        return judgement

    def _judge(self, batch: Batch, place: int, key: Key, here: LogPlace) -> tuple[Judgement, Kept]:
        number = int.from_bytes(batch.prints[place].astype("<u8").tobytes(), "little")
        digest, scope = batch.text_digest[place].tobytes(), int(batch.scope[place])
        assert self.declared is not None
        features = int(batch.features[place])
        full = features >= int(str(self.declared["floor"]))
        peers = [one for one in self.representatives if one.live and one.scope == scope]
        same = next((one for one in peers if one.digest == digest), None)
        near = next(
            (one for one in peers if full and one.full and is_near(self.plan, one.print, number, one.features, features)), None
        )
        found = same or near
        if found is None:
            kept = Kept(key, digest, number, scope, full, batch.ids[place], int(batch.time_ms[place]), here, features)
            self.representatives.append(kept)
            return Judgement(Reason.NEW if full else Reason.TOO_SHORT, here), kept
        mine = batch.ids[place] != b"" and batch.ids[place] == found.id
        reasons = (Reason.UNCHANGED, Reason.EXACT) if same else (Reason.REVISED, Reason.NEAR)
        distance = 0 if same else ((found.print ^ number) & ((1 << self.plan["width"]) - 1)).bit_count()
        of = Representative(Position(*found.key[:4]), found.id, found.time_ms)
        return Judgement(reasons[0 if mine else 1], here, distance, of), found

    def _control(self, offset: int, control: Control) -> None:
        fields = control.fields
        plan = fields.get("plan")
        if control.type == "declare" and self.declared is None:
            self.declared = fields
        if control.type in ("declare", "plan") and (control.type == "plan" or self.declared is fields) and plan:
            self.plan = {**plan, **{name: int(plan[name]) for name in ("width", "blocks", "radius", "threshold")}}
        if control.type == "retract":
            key = (
                fields["topic"],
                bytes.fromhex(fields["topic_id"]),
                fields["partition"],
                fields["offset"],
                fields["value_digest"],
            )
            gone = next((one for one in self.representatives if one.live and one.key == key), None)
            if key in self.verdicts:
                self.verdicts[key] = (Judgement(Reason.RETRACTED, LogPlace(offset, 0)), None)
            if gone is not None:
                gone.live = False
                for other, (judgement, about) in list(self.verdicts.items()):
                    if about is gone and judgement.reason.verdict is Verdict.DUPLICATE:
                        del self.verdicts[other]
