"""The log's records to judgements, by the rules alone: own position, then equal text, then the
earliest within reach.

Every look for something near passes over every representative that ever was (`reach`); there is no
table that could lack one. What is said here of watermarks, the redelivery cache, orders and the
window is docs/reference/control-records.md and "Memory of positions" of
docs/explanation/index-layout.md, written down a second time.

Invariants: a function of the records and their LogAppendTime alone; no record can make it fail but
one of a newer format, which nobody here can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.audit.controls import (
    DAY_MS,
    OFFSET_MAX,
    FoldedDeclaration,
    FoldedWindow,
    Partition,
    better_of,
    declared,
    forgotten,
    format_of,
    retracted,
    window_of,
)
from stream_dedup.audit.copies import FoldedCopies, seen_copy
from stream_dedup.audit.scan import (
    LIMB_BITS,
    AskedTexts,
    Reach,
    Rows,
    Scan,
    per_cent,
    seal_of,
)
from stream_dedup.domain.document import LogPlace, Position, Reason, Representative, Verdict
from stream_dedup.domain.errors import FormatError
from stream_dedup.domain.sketch import NOT_COMPARED, SKETCH_BYTES
from stream_dedup.log.answers import Judgement
from stream_dedup.log.records import Batch, Control, Release, Seed

SLICES: Final = 16
_TIME_MAX: Final = (1 << 62) - 1


@dataclass(eq=False, slots=True)
class Slice:
    """A stretch of log time; what became a representative in it expires with it."""

    end_ms: int
    kept: dict[FoldedEntry, None] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class FoldedEntry:
    """A representative."""

    partition: Partition
    offset: int
    value_digest: int
    text: tuple[int, bytes]
    id: bytes
    time_ms: int
    decided: LogPlace
    row: int | None
    slice: Slice
    copies: FoldedCopies
    number: int

    @property
    def reason(self) -> Reason:
        """Why it is unique."""
        return Reason.TOO_SHORT if self.row is None else Reason.NEW

    @property
    def scope_and_id(self) -> tuple[int, bytes]:
        """Its id, in its scope."""
        return self.text[0], self.id

    def as_representative(self) -> Representative:
        """Return it as duplicates name it."""
        return Representative(Position(*self.partition, self.offset), self.id, self.time_ms)


class FoldedTexts:
    """Which text an id had last: of each id its representatives, the latest at the end, each with
    the digest of that text.

    It tells `returned` from `unchanged`.
    """

    def __init__(self) -> None:
        self._standing: dict[tuple[int, bytes], dict[FoldedEntry, bytes]] = {}

    def stand(self, one: FoldedEntry, digest: bytes) -> None:
        """Let a representative be the latest of its id, which had the text of this digest last."""
        if one.id:
            self._standing.setdefault(one.scope_and_id, {})[one] = digest

    def fall(self, one: FoldedEntry) -> None:
        """Let a representative stand no more."""
        standing = self._standing.get(one.scope_and_id, {})
        standing.pop(one, None)
        if not standing:
            self._standing.pop(one.scope_and_id, None)

    def last(self, one: FoldedEntry) -> bytes:
        """Return the digest of the text that the id of a representative had last; nothing if it has
        no id.
        """
        return next(reversed(self._standing.get(one.scope_and_id, {}).values()), b"")

    def note(self, scope_and_id: tuple[int, bytes], digest: bytes) -> bool:
        """Take note that an id has the text of this digest now; return whether it had another one
        last.
        """
        standing = self._standing.get(scope_and_id)
        if standing is None:
            return False
        latest = next(reversed(standing))
        had_another = standing[latest] != digest
        standing[latest] = digest
        return had_another


@dataclass(slots=True)
class _Remembered:
    """A verdict that a redelivered document gets again, and where its representative became one."""

    judgement: Judgement
    about: LogPlace


@dataclass(slots=True)
class _Memory:
    """What is remembered of one source partition: its watermark, and verdicts by (offset, value
    digest).
    """

    watermark: tuple[int, int]
    verdicts: dict[tuple[int, int], _Remembered] = field(default_factory=dict)


class Fold:
    """Folds log records one after another; `judge` returns what the index must have answered to
    each.

    `plan`, `window`, `better` and `declared` are what is in force behind the last record.
    Without a scan it follows the orders that the log holds, and judges nobody: what can be done
    with any number of documents.
    """

    def __init__(self, scan: Scan | None) -> None:
        self.declared: FoldedDeclaration | None = None
        self.plan: Reach | None = None
        self.window: FoldedWindow | None = None
        self.better = "longest"
        self.format = 0
        self._count = 0
        self._scan = scan
        self._rows: Rows | None = None
        self._by_row: list[FoldedEntry | None] = []
        self._by_text: dict[tuple[int, bytes], FoldedEntry] = {}
        self._by_position: dict[tuple[Partition, int, int], FoldedEntry] = {}
        self._last_texts = FoldedTexts()
        self._memories: dict[Partition, _Memory] = {}
        self._slices: list[Slice] = []
        self._now_ms: int | None = None
        self._standing = 0

    def judge(
        self, log_offset: int, append_ms: int, record: object
    ) -> tuple[Judgement, ...] | None:
        """Take in the record at a log offset; return the judgements on its documents, or None if it
        is not judged.

        A record that could not be read is given as None.
        """
        self._pass_time(append_ms)
        if isinstance(record, Control):
            self._control(log_offset, record)
            return None
        if (
            isinstance(record, Seed | Release)
            and self.accepts(record.batch)
            and self._scan is not None
        ):
            self._order(log_offset, record, self._scan)
        if isinstance(record, Batch) and self.accepts(record) and self._scan is not None:
            batch = replace(record, ids=tuple(record.ids))  # each of them is asked for
            return self._judge_batch(log_offset, batch, self._scan)
        return None

    @property
    def _counts(self) -> bool:
        return self.declared is not None and self.declared.fields.get("count_copies") is True

    # -- batches

    def accepts(self, batch: Batch) -> bool:
        """Return whether a batch is judged at all; the log's records carry what an index refuses,
        too.
        """
        declared, plan = self.declared, self.plan
        bits = batch.prints.shape[1] * LIMB_BITS
        if declared is None or plan is None:
            return False
        width = declared.width or (
            None if self._rows is None else self._rows.prints.shape[1] * LIMB_BITS
        )
        values = batch.sketches.shape[1]
        accepted = (
            values == (values if self._rows is None else self._rows.sketches.shape[1])
            and (not plan.needs_sketch or values == SKETCH_BYTES)
            and batch.recipe == declared.recipe
            and batch.mode.delivers == declared.delivers
            and bits >= plan.width
            and bits == (width or bits)
            and int(batch.offset.min()) >= 0
            and all(source.committed <= OFFSET_MAX for source in batch.sources)
        )
        if accepted and self._rows is None:
            self._rows = Rows(batch.prints.shape[1], values)
        return accepted

    def _judge_batch(self, log_offset: int, batch: Batch, scan: Scan) -> tuple[Judgement, ...]:
        partitions = self._partitions(batch)
        for source, partition in zip(batch.sources, partitions, strict=True):
            self._move_watermark(partition, (source.epoch, source.committed))
        near = self._near(batch, partitions, scan)
        named: dict[FoldedEntry, None] = {}
        judgements = []
        for place in range(len(batch)):
            number = int(batch.source[place])
            source = batch.sources[number]
            here = (partitions[number], int(batch.offset[place]), int(batch.value_digest[place]))
            judgements.append(
                self._judge(
                    LogPlace(log_offset, place), batch, place, here, source.epoch, near, named
                )
            )
        if self.window is not None and self.window.refresh:
            self._renew(named)
        return tuple(judgements)

    def _judge(
        self,
        decided: LogPlace,
        batch: Batch,
        place: int,
        here: tuple[Partition, int, int],
        epoch: int,
        near: NDArray[np.int64] | None,
        named: dict[FoldedEntry, None],
    ) -> Judgement:
        partition, offset, value_digest = here
        memory = self._memories[partition]
        remembered = memory.verdicts.get((offset, value_digest))
        if remembered is not None and epoch >= memory.watermark[0]:
            return remembered.judgement
        is_below = (epoch, offset) < memory.watermark
        own = self._by_position.get(here)
        if own is not None:
            judgement, about = Judgement(own.reason, own.decided), own.decided
        elif is_below:
            return Judgement(Reason.STALE, decided)
        else:
            judgement, about = self._compare(decided, batch, place, here, near, named)
        if not is_below:
            memory.verdicts[offset, value_digest] = _Remembered(judgement, about)
        return judgement

    def _compare(
        self,
        decided: LogPlace,
        batch: Batch,
        place: int,
        here: tuple[Partition, int, int],
        near: NDArray[np.int64] | None,
        named: dict[FoldedEntry, None],
    ) -> tuple[Judgement, LogPlace]:
        same, found, sibling = self._find(batch, place, near)
        one = same or found
        if one is None:
            return self._beside(self._keep(decided, batch, place, here), batch, place, sibling)
        named[one] = None
        had_another = self._last_texts.note(
            (int(batch.scope[place]), batch.ids[place]), _text(batch, place)[1]
        )
        is_same_id = bool(batch.ids[place]) and batch.ids[place] == one.id
        if same is not None:
            again = Reason.RETURNED if had_another else Reason.UNCHANGED
            reason, distance, equal = again if is_same_id else Reason.EXACT, 0, NOT_COMPARED
        else:
            reason = Reason.REVISED if is_same_id else Reason.NEAR
            distance, equal = self._distance(batch, place, one), self._similarity(batch, place, one)
        copies, better = one.copies.take_copy(
            seen_copy(batch, place), self.better, counts=self._counts
        )
        return Judgement(
            reason, decided, distance, one.as_representative(), equal, copies, better
        ), one.decided

    def _beside(
        self, kept: FoldedEntry, batch: Batch, place: int, sibling: FoldedEntry | None
    ) -> tuple[Judgement, LogPlace]:
        """Return the verdict on who became a representative, with the sibling if there is one."""
        if sibling is None:
            return Judgement(kept.reason, kept.decided), kept.decided
        similarity, of = self._similarity(batch, place, sibling), sibling.as_representative()
        return Judgement(kept.reason, kept.decided, 0, of, similarity), kept.decided

    def _find(
        self, batch: Batch, place: int, near: NDArray[np.int64] | None
    ) -> tuple[FoldedEntry | None, FoldedEntry | None, FoldedEntry | None]:
        """Return the representative of a document's text; if there is none, the earliest one near
        it; if there is none, its earliest sibling.

        `near` is what `_near` found among those that stood before the batch; only its own are left
        to look at.
        """
        same = self._by_text.get(_text(batch, place))
        rows = self._rows
        if (
            same is not None
            or self._scan is None
            or self.plan is None
            or rows is None
            or self._is_short(batch, place)
        ):
            return same, None, None
        row, sibling, first = -1, -1, 0
        if near is not None:
            (row, sibling), first = near[place].tolist(), self._standing
        if row < 0:
            asked = _asked(batch, [place])
            row, later = self._scan.find(self.plan, rows, first, rows.count, asked)[0].tolist()
            sibling = later if sibling < 0 else sibling
        if row >= 0:
            return None, self._by_row[row], None
        return None, None, None if sibling < 0 else self._by_row[sibling]

    def _near(
        self, batch: Batch, partitions: list[Partition] | None, scan: Scan
    ) -> NDArray[np.int64] | None:
        """Return for each document the earliest representative near it that stands before the
        batch, and the earliest sibling: all asked at once.

        With `partitions`, those of the batch, what has a verdict already is passed over.
        """
        rows, plan = self._rows, self.plan
        if (
            rows is None or plan is None or plan.looks_further
        ):  # then those of the batch decide with the others who is asked
            return None
        self._standing = rows.count
        near = np.full((len(batch), 2), -1, np.int64)
        asked = [
            place
            for place in range(len(batch))
            if not self._is_short(batch, place)
            and _text(batch, place) not in self._by_text
            and not (
                partitions
                and self._is_remembered(partitions[int(batch.source[place])], batch, place)
            )
        ]
        if asked and rows.count:
            near[asked] = scan.find(plan, rows, 0, rows.count, _asked(batch, asked))
        return near

    def _is_remembered(self, partition: Partition, batch: Batch, place: int) -> bool:
        return (int(batch.offset[place]), int(batch.value_digest[place])) in self._memories[
            partition
        ].verdicts

    def _distance(self, batch: Batch, place: int, kept: FoldedEntry) -> int:
        if self.plan is None or self._rows is None or kept.row is None:
            return 0
        limbs = self.plan.limbs
        different = int.from_bytes(
            (batch.prints[place, :limbs] ^ self._rows.prints[kept.row, :limbs]).tobytes(), "little"
        )
        return self.plan.distance(different, 0)

    def _similarity(self, batch: Batch, place: int, kept: FoldedEntry) -> int:
        if self._rows is None or kept.row is None or not self._rows.sketches.shape[1]:
            return NOT_COMPARED
        return per_cent(batch.sketches[place], self._rows.sketches[kept.row])

    def _is_short(self, batch: Batch, place: int) -> bool:
        return self.declared is None or int(batch.features[place]) < self.declared.floor

    def _keep(
        self, decided: LogPlace, batch: Batch, place: int, here: tuple[Partition, int, int]
    ) -> FoldedEntry:
        """Make a document a representative."""
        scope, row = int(batch.scope[place]), None
        if not self._is_short(batch, place) and self._rows is not None:
            row = self._rows.add_entry(
                batch.prints[place],
                int(batch.features[place]),
                scope,
                batch.sketches[place],
                seal_of(batch, place),
            )
            self._by_row.append(None)
        seen = seen_copy(batch, place)
        copies = FoldedCopies(seen, seen)
        kept = FoldedEntry(
            *here,
            _text(batch, place),
            seen.id,
            seen.time_ms,
            decided,
            row,
            self._slice_of_now(),
            copies,
            self._number(),
        )
        if row is not None:
            self._by_row[row] = kept
        self._by_text[kept.text] = kept
        self._by_position[here] = kept
        self._last_texts.stand(kept, kept.text[1])
        kept.slice.kept[kept] = None
        return kept

    def _number(self) -> int:
        """Return the number of who becomes a representative now, or is renewed."""
        self._count += 1
        return self._count - 1

    def _remove(self, kept: FoldedEntry) -> None:
        here = (kept.partition, kept.offset, kept.value_digest)
        if self._by_position.get(here) is kept:
            del self._by_position[here]
        if self._by_text.get(kept.text) is kept:
            del self._by_text[kept.text]
        if kept.row is not None and self._rows is not None:
            self._rows.alive[kept.row] = False
            self._by_row[kept.row] = None
        kept.slice.kept.pop(kept, None)
        self._last_texts.fall(kept)

    # -- positions

    @property
    def topics_made_again(self) -> set[str]:
        """The source topics of which the log knows more than one of that name."""
        names = [topic for topic, _ in {(topic, topic_id) for topic, topic_id, _ in self._memories}]
        return {one for one in names if names.count(one) > 1}

    def _partitions(self, batch: Batch) -> list[Partition]:
        return [(source.topic, source.topic_id, source.partition) for source in batch.sources]

    def _move_watermark(self, partition: Partition, seen: tuple[int, int]) -> None:
        memory = self._memories.get(partition)
        if memory is None:
            self._memories[partition] = _Memory(seen)
            return
        if seen <= memory.watermark:
            return
        has_risen = seen[0] > memory.watermark[0]
        memory.watermark = seen
        for key, one in list(memory.verdicts.items()):
            if key[0] < seen[1] or (
                has_risen and one.judgement.reason.verdict is not Verdict.UNIQUE
            ):
                del memory.verdicts[key]

    # -- log time

    def _slice_ms(self) -> int:
        return DAY_MS if self.window is None else self.window.length_ms // SLICES

    def _pass_time(self, append_ms: int) -> None:
        append_ms = min(max(append_ms, 0), _TIME_MAX)
        if self._now_ms is None:
            self._now_ms = append_ms
        else:
            self._now_ms = max(self._now_ms, min(append_ms, self._now_ms + self._slice_ms()))
        self._expire()

    def _expire(self) -> None:
        if self.window is None or self._now_ms is None:
            return
        while self._slices and self._slices[0].end_ms + self.window.length_ms <= self._now_ms:
            for kept in list(self._slices.pop(0).kept):
                self._remove(kept)

    def _slice_of_now(self) -> Slice:
        now = self._now_ms or 0
        if not self._slices or now >= self._slices[-1].end_ms:
            self._slices.append(Slice(now + self._slice_ms()))
        return self._slices[-1]

    def _renew(self, named: Mapping[FoldedEntry, None]) -> None:
        """Move what was named, and stands in an earlier slice, behind everything: in its order,
        with a row of its own.
        """
        is_open = bool(self._slices) and (self._now_ms or 0) < self._slices[-1].end_ms
        current = self._slices[-1] if is_open else None
        moved = [
            kept for old in self._slices if old is not current for kept in old.kept if kept in named
        ]
        last = [self._last_texts.last(kept) for kept in moved]  # before any of them is the latest
        for kept, text in zip(moved, last, strict=True):
            del kept.slice.kept[kept]
            kept.slice = self._slice_of_now()
            kept.slice.kept[kept] = None
            kept.number = self._number()
            self._last_texts.fall(kept)
            self._last_texts.stand(kept, text)
            if kept.row is not None and self._rows is not None:
                rows, row = self._rows, kept.row
                rows.alive[row] = False
                self._by_row[row] = None
                kept.row = rows.add_entry(
                    rows.prints[row].copy(),
                    int(rows.features[row]),
                    int(rows.scopes[row]),
                    rows.sketches[row].copy(),
                    (int(rows.seals[row, 0]), int(rows.seals[row, 1]), int(rows.seals[row, 2])),
                )
                self._by_row.append(kept)

    # -- orders

    def _order(self, log_offset: int, record: Seed | Release, scan: Scan) -> None:
        """Seed documents that were delivered elsewhere, or release one that was dropped."""
        batch = record.batch
        partitions = self._partitions(batch)
        for partition in partitions:
            self._move_watermark(partition, (0, 0))
        near = self._near(batch, None, scan) if isinstance(record, Seed) else None
        for place in range(len(batch)):
            partition = partitions[int(batch.source[place])]
            here = (partition, int(batch.offset[place]), int(batch.value_digest[place]))
            if here in self._by_position:
                continue
            decided = LogPlace(log_offset, place)
            if isinstance(record, Release):
                remembered = self._memories[partition].verdicts.get(here[1:])
                if remembered is not None:
                    reason = Reason.TOO_SHORT if self._is_short(batch, place) else Reason.NEW
                    remembered.judgement, remembered.about = Judgement(reason, decided), decided
                if _text(batch, place) not in self._by_text:
                    self._keep(decided, batch, place, here)
            elif self._find(batch, place, near)[:2] == (None, None):
                self._keep(decided, batch, place, here)

    def _control(self, log_offset: int, control: Control) -> None:
        """Carry out a control record; one that says what cannot be changes nothing."""
        try:
            if control.type == "declare":
                self._declare(control.fields)
            elif control.type == "plan":
                self._change_plan(control.fields)
            elif control.type == "retract":
                self._retract(log_offset, control.fields)
            elif control.type == "forget":
                self._forget(forgotten(control.fields))
        except FormatError:
            return

    def _declare(self, fields: Mapping[str, Any]) -> None:
        if self.declared is not None:
            return
        self.declared, self.plan, self.window, self.better = declared(fields)
        self.format = self.declared.format

    def _change_plan(self, fields: Mapping[str, Any]) -> None:
        if self.declared is None or not fields.keys() & {"plan", "window", "better", "format"}:
            return
        plan = Reach.from_fields(fields["plan"]) if "plan" in fields else self.plan
        window = self.window
        if "window" in fields:
            window = None if fields["window"] is None else window_of(fields["window"])
        better = better_of(fields) if "better" in fields else self.better
        form = format_of(fields, self.format)
        width = self.declared.width or (
            256 if self._rows is None else self._rows.prints.shape[1] * LIMB_BITS
        )
        told = self.declared.fields.get("sketch_bytes", SKETCH_BYTES)
        values = told if self._rows is None else self._rows.sketches.shape[1]
        if plan is None or plan.width > width or (plan.needs_sketch and values != SKETCH_BYTES):
            return
        self.plan, self.better, self.format = plan, better, form
        if window != self.window:
            self.window = window
            if self._slices:
                self._slices[-1].end_ms = min(self._slices[-1].end_ms, (self._now_ms or 0) + 1)
            self._expire()

    def _forget(self, ids: set[bytes]) -> None:
        """Take representatives of these ids down; verdicts that were given stay, without the id."""
        for kept in [one for one in self._by_position.values() if one.id in ids]:
            self._remove(kept)
        for kept in self._by_position.values():
            if kept.copies.best.id in ids:
                kept.copies.best = kept.copies.best._replace(id=b"")
        for memory in self._memories.values():
            for one in memory.verdicts.values():
                of = one.judgement.of
                if of is not None and of.id in ids:
                    one.judgement = one.judgement._replace(of=of._replace(id=b""))

    def _retract(self, log_offset: int, fields: Mapping[str, Any]) -> None:
        for place, here in enumerate(retracted(fields)):
            partition, offset, value_digest = here
            own = (
                self._memories[partition].verdicts.get((offset, value_digest))
                if partition in self._memories
                else None
            )
            if own is not None:
                own.judgement = Judgement(Reason.RETRACTED, LogPlace(log_offset, place))
            kept = self._by_position.get(here)
            if kept is None:
                continue
            self._remove(kept)
            for memory in self._memories.values():
                for key, one in list(memory.verdicts.items()):
                    if (
                        one.about == kept.decided
                        and one.judgement.reason.verdict is Verdict.DUPLICATE
                    ):
                        del memory.verdicts[key]


def _asked(batch: Batch, places: list[int]) -> AskedTexts:
    return AskedTexts(
        batch.prints[places],
        batch.features[places].astype(np.int64),
        batch.scope[places],
        batch.sketches[places],
        [seal_of(batch, place) for place in places],
    )


def _text(batch: Batch, place: int) -> tuple[int, bytes]:
    """Return what only an equal text in the same scope shares."""
    return int(batch.scope[place]), batch.text_digest[place].tobytes()
