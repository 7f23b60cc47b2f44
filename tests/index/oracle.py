"""The index as a plain scan: a list, a Hamming distance, and the rules of positions. Imports nothing of the index.

Give it log records one after another; it returns what the answer must say. A plan is its fields as the log carries them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from stream_dedup.ground.document import LogPlace, Position, Reason, Representative, Verdict
from stream_dedup.ground.errors import FormatError
from stream_dedup.ground.sketch import NOT_COMPARED
from stream_dedup.log.answers import Judgement
from stream_dedup.log.records import Batch, Control, Release, decode

Key = tuple[str, bytes, int, int, int]  # topic, topic id, partition, offset, value digest


@dataclass(eq=False)
class Slice:
    """A stretch of log time, and when it ends."""

    end: int


@dataclass(eq=False)
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
    slice: Slice
    sketch: bytes
    live: bool = True
    rank: int = 0
    copies: int = 0
    best: tuple[int, int, int] = (0, 0, 0)  # features, time, rank


Text = tuple[int, int, bytes]  # print, features, sketch
BYTES = 120


def near(plan: dict[str, Any], new: Text, peers: Iterable[Text]) -> Iterator[int]:
    """Yield the places of the peers that are near: found by a key, of which the first and the last are asked, and alike.

    And each is like the new one where the first 32 of those who are found are not.
    """
    texts = list(peers)
    by_key: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for place, one in enumerate(texts):
        for key in shared(plan, new, one):
            by_key[key].append(place)
    asked = plan.get("asked", 0)
    kept = [
        places if not asked else places[: (asked + 1) // 2] + places[(asked + 1) // 2 :][::-1][: asked // 2]
        for places in by_key.values()
    ]
    found = sorted(set(itertools.chain.from_iterable(kept)))
    for place in found:
        crowd = [texts[other][2] for other in found[:32] if other != place]
        if are_alike(plan, new, texts[place]) and stands_out(plan, new[2], texts[place][2], crowd):
            yield place


def stands_out(plan: dict[str, Any], new: bytes, one: bytes, crowd: list[bytes]) -> bool:
    """Return whether two sketches are alike enough where the crowd is not."""
    if not plan.get("crowd") or not crowd:
        return True
    mine, yours, theirs = numbers(new), numbers(one), [numbers(other) for other in crowd]
    unlike = [Fraction(sum(other[at] != mine[at] for other in theirs) + 4, len(crowd) + 4) for at in range(160)]
    weights = [share**2 for share in unlike[:80]] + [min(Fraction(1), share / Fraction(15, 16)) ** 2 for share in unlike[80:]]
    first = sum(weight for at, weight in enumerate(weights[:80]) if mine[at] == yours[at])
    second = sum(weight for at, weight in enumerate(weights[80:], 80) if mine[at] == yours[at])
    beyond_chance = (second - sum(weights[80:]) / 16) / Fraction(15, 16)
    return (first + beyond_chance) / sum(weights) >= Fraction(plan["crowd"], 100)


def is_near(plan: dict[str, Any], one: int, other: int, features: int, other_features: int) -> bool:
    """Return whether two texts without sketches are near."""
    return any(True for _ in near(plan, (one, features, b""), [(other, other_features, b"")]))


def shared(plan: dict[str, Any], one: Text, other: Text) -> set[tuple[str, int]]:
    """Return the keys that two texts share, by number: of the print within the radius, and blocks of the sketch."""
    bits = differing(plan, one, other)
    blocks, bands = plan["blocks"], plan.get("bands", 0)
    cuts = [plan["width"] * block // max(1, blocks) for block in range(blocks + 1)]
    errors = [bits[first:end].count("1") for first, end in itertools.pairwise(cuts)]
    keys = itertools.combinations(errors, plan.get("key_blocks", 1))
    found = {("print", number) for number, key in enumerate(keys) if sum(key) <= plan["radius"] and blocks}
    if not blocks and not bands:
        found.add(("all", 0))
    size = 80 // bands if bands else 0
    parts = [(block, slice(block * size, block * size + size)) for block in range(bands)]
    return found | {("sketch", block) for block, part in parts if one[2][part] == other[2][part]}


def are_alike(plan: dict[str, Any], one: Text, other: Text) -> bool:
    """Return whether two texts are near if they are found: in length, distance and similarity."""
    smaller, larger = sorted((one[1], other[1]))
    threshold = next((bound for below, bound in plan.get("by_length", []) if smaller < below), plan["threshold"])
    return (
        100 * smaller >= plan.get("ratio", 0) * larger
        and differing(plan, one, other).count("1") <= threshold
        and (not plan.get("similarity") or 100 * similarity(one[2], other[2]) >= plan["similarity"])
    )


def similarity(one: bytes, other: bytes) -> Fraction:
    """Return the mean of what both parts of two sketches say; of the second one value in 16 is equal by chance."""
    equal = [a == b for a, b in zip(numbers(one), numbers(other), strict=True)]
    return (Fraction(sum(equal[:80]), 80) + (Fraction(sum(equal[80:]), 80) - Fraction(1, 16)) / Fraction(15, 16)) / 2


def numbers(sketch: bytes) -> list[int]:
    """Return the values of a sketch: 80 of a byte, 80 of half a byte."""
    return [*sketch[:80], *(half for byte in sketch[80:] for half in (byte % 16, byte // 16))]


def differing(plan: dict[str, Any], one: Text, other: Text) -> str:
    """Return the bits in which two prints differ as text, lowest bit first."""
    width = plan["width"]
    return bin(((one[0] ^ other[0]) & ((1 << width) - 1)) | 1 << width)[:2:-1]


def needs_sketch(plan: Mapping[str, Any]) -> bool:
    """Return whether a plan looks at sketches."""
    return bool(plan.get("bands") or plan.get("similarity"))


class Oracle:
    """Folds a log; `plan` is the fields of the plan in force."""

    def __init__(self) -> None:
        self.declared: dict[str, object] | None = None
        self.plan: dict[str, Any] = {}
        self.limbs = 0
        self.values = 0
        self.representatives: list[Kept] = []
        self.marks: dict[tuple[str, bytes, int], tuple[int, int]] = {}
        self.verdicts: dict[Key, tuple[Judgement, Kept | None]] = {}
        self.window: Mapping[str, Any] | None = None
        self.better = "longest"
        self.now: int | None = None
        self.slice: Slice | None = None
        self.expired = 0

    def fold(self, offset: int, raw: bytes | None, append_ms: int = 0) -> list[Judgement] | str | None:
        """Return the judgements, the word "rejected", or None where no answer is due."""
        self._pass_time(append_ms)
        try:
            record = decode(raw)
        except FormatError:
            return "rejected"
        if isinstance(record, Control):
            with contextlib.suppress(KeyError, ValueError, TypeError):  # what cannot be carried out is passed over
                self._control(offset, record)
            return None
        batch = record if isinstance(record, Batch) else record.batch
        if (
            self.declared is None
            or batch.recipe != self.declared["recipe"]
            or batch.mode != self.declared["mode"]
            or batch.prints.shape[1] * 64 < self.plan["width"]
            or (self.limbs and (batch.prints.shape[1], batch.sketches.shape[1]) != (self.limbs, self.values))
            or (needs_sketch(self.plan) and batch.sketches.shape[1] != BYTES)
            or any(offset < 0 for offset in batch.offset.tolist())
            or any(source.committed >= 1 << 63 for source in batch.sources)
        ):
            return "rejected" if isinstance(record, Batch) else None
        self.limbs, self.values = batch.prints.shape[1], batch.sketches.shape[1]
        if not isinstance(record, Batch):
            for place in range(len(batch)):
                self._order(batch, place, LogPlace(offset, place), is_release=isinstance(record, Release))
            return None
        for source in record.sources:
            self._raise_mark((source.topic, source.topic_id, source.partition), (source.epoch, source.committed))
        named: list[Kept] = []
        judgements = [self._document(offset, record, place, named) for place in range(len(record))]
        if self.window and self.window["refresh"]:
            for one in [one for one in self.representatives if one in named and one.slice is not self._slice_of_now()]:
                self.representatives.remove(one)
                one.slice = self._new_slice()
                self.representatives.append(one)
        return judgements

    def _slice_ms(self) -> int:
        return 86_400_000 if self.window is None else int(self.window["length_ms"]) // 16

    def _pass_time(self, append_ms: int) -> None:
        self.now = append_ms if self.now is None else max(self.now, min(append_ms, self.now + self._slice_ms()))
        if self.window is not None:
            for one in self.representatives:
                if one.live and one.slice.end + self.window["length_ms"] <= self.now:
                    one.live = False
                    self.expired += 1

    def _slice_of_now(self) -> Slice | None:
        assert self.now is not None
        return self.slice if self.slice is not None and self.now < self.slice.end else None

    def _new_slice(self) -> Slice:
        assert self.now is not None
        self.slice = self._slice_of_now() or Slice(self.now + self._slice_ms())
        return self.slice

    def _order(self, batch: Batch, place: int, here: LogPlace, *, is_release: bool) -> None:
        """Carry out a seed, or a release."""
        position, value = batch.position(place), int(batch.value_digest[place])
        key = (position.topic, position.topic_id, position.partition, position.offset, value)
        if any(one.live and one.key == key for one in self.representatives):
            return
        same, nearest = self._find(batch, place)
        if not is_release and (same or nearest):
            return
        kept = self._kept(batch, place, key, here)
        if is_release and key in self.verdicts:
            self.verdicts[key] = (Judgement(Reason.NEW if kept.full else Reason.TOO_SHORT, here), kept)
        if same is None:
            kept.slice = self._new_slice()
            self.representatives.append(kept)

    def _raise_mark(self, partition: tuple[str, bytes, int], pair: tuple[int, int]) -> None:
        old = self.marks.get(partition)
        if old is not None and pair <= old:
            return
        self.marks[partition] = pair
        for key, (judgement, _) in list(self.verdicts.items()):
            rises = old is not None and pair[0] > old[0] and judgement.reason.verdict is not Verdict.UNIQUE
            if key[:3] == partition and (rises or key[3] < pair[1]):
                del self.verdicts[key]

    def _document(self, log_offset: int, batch: Batch, place: int, named: list[Kept]) -> Judgement:
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
            named.append(about)
        if not below:
            self.verdicts[key] = (judgement, about)
        return judgement

    def _judge(self, batch: Batch, place: int, key: Key, here: LogPlace) -> tuple[Judgement, Kept]:
        same, nearest = self._find(batch, place)
        found = same or nearest
        kept = self._kept(batch, place, key, here)
        if found is None:
            kept.slice = self._new_slice()
            self.representatives.append(kept)
            return Judgement(Reason.NEW if kept.full else Reason.TOO_SHORT, here), kept
        mine = kept.id != b"" and kept.id == found.id
        reasons = (Reason.UNCHANGED, Reason.EXACT) if same else (Reason.REVISED, Reason.NEAR)
        distance = 0 if same else ((found.print ^ kept.print) & ((1 << self.plan["width"]) - 1)).bit_count()
        of = Representative(Position(*found.key[:4]), found.id, found.time_ms)
        alike = NOT_COMPARED if same or not self.values else max(0, int(100 * similarity(found.sketch, kept.sketch) // 1))
        return Judgement(reasons[0 if mine else 1], here, distance, of, alike, *self._count(found, kept)), found

    def _count(self, found: Kept, new: Kept) -> tuple[int, int]:
        """Return how many copies there are with the new one, and the number of the rule by which it is the best, or 0."""
        assert self.declared is not None
        found.copies += bool(self.declared.get("count_copies"))
        features, time_ms, rank = new.features, new.time_ms, new.rank
        peers = (found.best, (found.features, found.time_ms, found.rank))
        number = 1 + ("longest", "newest", "authority").index(self.better)
        beats = {
            1: all(features > one[0] and 10 * features >= 11 * one[0] for one in peers),
            2: all(time_ms > one[1] for one in peers),
            3: all(0 < rank < (one[2] or 1 << 32) for one in peers),
        }
        if not beats[number]:
            return found.copies, 0
        found.best = (features, time_ms, rank)
        return found.copies, number

    def _kept(self, batch: Batch, place: int, key: Key, here: LogPlace) -> Kept:
        assert self.declared is not None
        return Kept(
            key,
            batch.text_digest[place].tobytes(),
            int.from_bytes(batch.prints[place].astype("<u8").tobytes(), "little"),
            int(batch.scope[place]),
            int(batch.features[place]) >= int(str(self.declared["floor"])),
            batch.ids[place],
            int(batch.time_ms[place]),
            here,
            int(batch.features[place]),
            Slice(0),
            batch.sketches[place].tobytes(),
            rank=batch.rank(place),
            best=(int(batch.features[place]), int(batch.time_ms[place]), batch.rank(place)),
        )

    def _find(self, batch: Batch, place: int) -> tuple[Kept | None, Kept | None]:
        """Return the live representatives of a document's text, and the earliest near it."""
        new = self._kept(batch, place, ("", b"", 0, 0, 0), LogPlace(0, 0))
        peers = [one for one in self.representatives if one.live and one.scope == new.scope]
        same = next((one for one in peers if one.digest == new.digest), None)
        full = [one for one in peers if new.full and one.full]
        found = near(self.plan, (new.print, new.features, new.sketch), ((one.print, one.features, one.sketch) for one in full))
        first = next(found, None)
        return same, None if first is None else full[first]

    def _set_plan(self, plan: Mapping[str, Any]) -> None:
        if needs_sketch(plan) and self.limbs and self.values != BYTES:
            raise ValueError
        self.plan = {**plan, **{name: int(plan[name]) for name in ("width", "blocks", "radius", "threshold")}}

    def _control(self, offset: int, control: Control) -> None:
        fields = control.fields
        if control.type == "declare" and self.declared is None:
            self._set_plan(fields["plan"])
            self.declared, self.window, self.better = fields, fields.get("window"), fields.get("better", "longest")
        if control.type == "plan" and self.declared is not None and fields.keys() & {"plan", "window", "better"}:
            window = fields.get("window", self.window)
            if window is not None and not (isinstance(window, dict) and window["length_ms"] >= 1000):
                return
            if fields.get("better", "longest") not in ("longest", "newest", "authority"):
                return
            if "plan" in fields:
                self._set_plan(fields["plan"])
            self.better = fields.get("better", self.better)
            if window != self.window:
                self.window = window
                if self.slice is not None and self.now is not None:
                    self.slice.end = min(self.slice.end, self.now + 1)
                self._pass_time(0)
        if control.type == "forget":
            ids = {bytes.fromhex(one) for one in fields["ids"]}
            for one in self.representatives:
                one.live = one.live and one.id not in ids
            for key, (judgement, about) in self.verdicts.items():
                if judgement.of is not None and judgement.of.id in ids:
                    self.verdicts[key] = (judgement._replace(of=judgement.of._replace(id=b"")), about)
        if control.type == "retract":
            topic, topic_id = fields["topic"], bytes.fromhex(fields["topic_id"])
            for place, position in enumerate(fields["positions"]):
                key = (topic, topic_id, *position)
                gone = next((one for one in self.representatives if one.live and one.key == key), None)
                if key in self.verdicts:
                    self.verdicts[key] = (Judgement(Reason.RETRACTED, LogPlace(offset, place)), None)
                if gone is not None:
                    gone.live = False
                    for other, (judgement, about) in list(self.verdicts.items()):
                        if about is gone and judgement.reason.verdict is Verdict.DUPLICATE:
                            del self.verdicts[other]
