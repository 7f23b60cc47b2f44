"""Compute judgements from log records: by the document's position, then by equal text, then by the
earliest near representative.

A document is compared with every live representative (`scan`), so no table can miss one. Watermarks,
the redelivery cache, orders and the window are implemented a second time here, from
docs/reference/control-records.md and "Verdicts by position" in docs/explanation/index-layout.md.

Invariants: the result depends only on the records and their LogAppendTime; an error is raised only for
a record of a newer format, which this version cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.audit.copies import CopiesOfEntry, seen_copy
from stream_dedup.audit.scan import LIMB_BITS, ComparedText, PlainScan, PlanRules, Rows, per_cent
from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.document import LogPlace, Position, Reason, Representative, Verdict
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.sketch import NOT_COMPARED, SKETCH_BYTES
from stream_dedup.log.controls import (
    OFFSET_MAX,
    Declaration,
    Partition,
    Window,
    format_of,
    parse_retraction,
)
from stream_dedup.log.records import Batch, Control, Release, Seed, forgotten_ids
from stream_dedup.log.schema import Judgement

DAY_MS: Final = 86_400_000
SLICES: Final = 16
_TIME_MAX: Final = (1 << 62) - 1


@dataclass(eq=False, slots=True)
class Slice:
    """A slice of log time. The representatives that were added in it expire together."""

    end_ms: int
    entries: dict[JudgedEntry, None] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class JudgedEntry:
    """A representative. `text`: its scope and text digest; `decided`: the log place where it was judged;
    `row`: its row in `Rows`, None for a text that is too short; `number`: the order in which it was
    added or renewed.
    """

    partition: Partition
    offset: int
    value_digest: int
    text: tuple[int, bytes]
    id: bytes
    time_ms: int
    decided: LogPlace
    row: int | None
    slice: Slice
    copies: CopiesOfEntry
    number: int

    @property
    def reason(self) -> Reason:
        """The reason why it is unique."""
        return Reason.TOO_SHORT if self.row is None else Reason.NEW

    @property
    def scope_and_id(self) -> tuple[int, bytes]:
        """The scope and the id."""
        return self.text[0], self.id

    def as_representative(self) -> Representative:
        """Return the representative as a judgement contains it."""
        return Representative(Position(*self.partition, self.offset), self.id, self.time_ms)


class LastDigests:
    """The last text of each id, which decides between the reasons `returned` and `unchanged`.

    Each id maps to its representatives, in the order in which they were added, each with a text
    digest. A copy with the same id and another text replaces the digest of the latest one.
    """

    def __init__(self) -> None:
        self._digests_by_id: dict[tuple[int, bytes], dict[JudgedEntry, bytes]] = {}

    def add(self, entry: JudgedEntry, digest: bytes) -> None:
        """Add a representative as the latest of its id, with the digest of the id's last text."""
        if entry.id:
            self._digests_by_id.setdefault(entry.scope_and_id, {})[entry] = digest

    def remove(self, entry: JudgedEntry) -> None:
        """Remove a representative."""
        digests = self._digests_by_id.get(entry.scope_and_id, {})
        digests.pop(entry, None)
        if not digests:
            self._digests_by_id.pop(entry.scope_and_id, None)

    def last_digest(self, entry: JudgedEntry) -> bytes:
        """Return the digest of the last text of a representative's id; empty without an id."""
        return next(reversed(self._digests_by_id.get(entry.scope_and_id, {}).values()), b"")

    def set_last(self, scope_and_id: tuple[int, bytes], digest: bytes) -> bool:
        """Set the digest of an id's last text; return whether the id had another text before."""
        digests = self._digests_by_id.get(scope_and_id)
        if digests is None:
            return False
        latest = next(reversed(digests))
        had_another_text = digests[latest] != digest
        digests[latest] = digest
        return had_another_text


@dataclass(slots=True)
class _RememberedVerdict:
    """The judgement that a redelivered document gets again, and the log place of the representative
    that it names or became.
    """

    judgement: Judgement
    representative: LogPlace


@dataclass(slots=True)
class _PartitionState:
    """The state of one source partition: its watermark (epoch, offset), and the redelivery cache:
    verdicts by (offset, value digest).
    """

    watermark: tuple[int, int]
    verdicts: dict[tuple[int, int], _RememberedVerdict] = field(default_factory=dict)


class Fold:
    """Applies log records in order. `judge` returns the judgements that the index must have made.

    `rules` (of the plan), `window`, `better`, `format`, `declaration`: in force after the last record.
    Without a scan only control records are applied and no document is judged, which works for a log
    of any size.
    """

    def __init__(self, scan: PlainScan | None) -> None:
        self.declaration: Declaration | None = None
        self.rules: PlanRules | None = None
        self.window: Window | None = None
        self.better = BetterRule.LONGEST
        self.format = 0
        self._count = 0
        self._scan = scan
        self._rows: Rows | None = None
        self._by_row: list[JudgedEntry | None] = []
        self._by_text: dict[tuple[int, bytes], JudgedEntry] = {}
        self._by_position: dict[tuple[Partition, int, int], JudgedEntry] = {}
        self._last_texts = LastDigests()
        self._partition_states: dict[Partition, _PartitionState] = {}
        self._slices: list[Slice] = []
        self._now_ms: int | None = None
        self._rows_before = 0

    def judge(
        self, log_offset: int, append_ms: int, record: object
    ) -> tuple[Judgement, ...] | None:
        """Apply the record at a log offset. Return the judgements on its documents, or None if it is
        not judged. Pass None for a record that could not be read.
        """
        self._advance_time(append_ms)
        if isinstance(record, Control):
            self._apply_control(log_offset, record)
            return None
        if (
            isinstance(record, Seed | Release)
            and self.accepts(record.batch)
            and self._scan is not None
        ):
            self._apply_order(log_offset, record, self._scan)
        if isinstance(record, Batch) and self.accepts(record) and self._scan is not None:
            batch = replace(record, ids=tuple(record.ids))  # decode all ids once
            return self._judge_batch(log_offset, batch, self._scan)
        return None

    @property
    def _counts_copies(self) -> bool:
        return self.declaration is not None and self.declaration.count_copies

    # -- batches

    def accepts(self, batch: Batch) -> bool:
        """Return whether an index judges a batch. The log can also contain batches that indexes refuse."""
        declaration, rules = self.declaration, self.rules
        bits = batch.prints.shape[1] * LIMB_BITS
        if declaration is None or rules is None:
            return False
        width = declaration.width or (
            None if self._rows is None else self._rows.prints.shape[1] * LIMB_BITS
        )
        values = batch.sketches.shape[1]
        accepted = (
            values == (values if self._rows is None else self._rows.sketches.shape[1])
            and (not rules.needs_sketch or values == SKETCH_BYTES)
            and batch.recipe == declaration.recipe
            and batch.mode.delivers == declaration.mode.delivers
            and bits >= rules.plan.width
            and bits == (width or bits)
            and int(batch.offset.min()) >= 0
            and all(source.committed <= OFFSET_MAX for source in batch.sources)
        )
        if accepted and self._rows is None:
            self._rows = Rows(batch.prints.shape[1], values)
        return accepted

    def _judge_batch(self, log_offset: int, batch: Batch, scan: PlainScan) -> tuple[Judgement, ...]:
        partitions = self._partitions(batch)
        for source, partition in zip(batch.sources, partitions, strict=True):
            self._raise_watermark(partition, (source.epoch, source.committed))
        near = self._find_near(batch, partitions, scan)
        named_entries: dict[JudgedEntry, None] = {}
        judgements = []
        for place in range(len(batch)):
            source_index = int(batch.source[place])
            source = batch.sources[source_index]
            position_key = (
                partitions[source_index],
                int(batch.offset[place]),
                int(batch.value_digest[place]),
            )
            judgements.append(
                self._judge_document(
                    LogPlace(log_offset, place),
                    batch,
                    place,
                    position_key,
                    source.epoch,
                    near,
                    named_entries,
                )
            )
        if self.window is not None and self.window.refresh:
            self._renew_named(named_entries)
        return tuple(judgements)

    def _judge_document(
        self,
        decided: LogPlace,
        batch: Batch,
        place: int,
        position_key: tuple[Partition, int, int],
        epoch: int,
        near: NDArray[np.int64] | None,
        named_entries: dict[JudgedEntry, None],
    ) -> Judgement:
        """Return the judgement on a document: by its source position, else by its text."""
        partition, offset, value_digest = position_key
        partition_state = self._partition_states[partition]
        remembered = partition_state.verdicts.get((offset, value_digest))
        if remembered is not None and epoch >= partition_state.watermark[0]:
            return remembered.judgement
        is_below = (epoch, offset) < partition_state.watermark
        entry = self._by_position.get(position_key)
        if entry is not None:
            judgement, representative = Judgement(entry.reason, entry.decided), entry.decided
        elif is_below:
            return Judgement(Reason.STALE, decided)
        else:
            judgement, representative = self._judge_text(
                decided, batch, place, position_key, near, named_entries
            )
        if not is_below:
            partition_state.verdicts[offset, value_digest] = _RememberedVerdict(
                judgement, representative
            )
        return judgement

    def _judge_text(
        self,
        decided: LogPlace,
        batch: Batch,
        place: int,
        position_key: tuple[Partition, int, int],
        near: NDArray[np.int64] | None,
        named_entries: dict[JudgedEntry, None],
    ) -> tuple[Judgement, LogPlace]:
        """Return the judgement on a document at a new position, and the log place of its
        representative. Add the representative that the judgement names to `named_entries`.
        """
        same, nearest, sibling = self._find_original(batch, place, near)
        if (original := same or nearest) is None:
            return self._judge_new(
                self._add_entry(decided, batch, place, position_key), batch, place, sibling
            )
        named_entries[original] = None
        had_another_text = self._last_texts.set_last(
            (int(batch.scope[place]), batch.ids[place]), _text_key(batch, place)[1]
        )
        is_same_id = bool(batch.ids[place]) and batch.ids[place] == original.id
        if same is not None:
            same_id_reason = Reason.RETURNED if had_another_text else Reason.UNCHANGED
            reason = same_id_reason if is_same_id else Reason.EXACT
            distance, similarity = 0, NOT_COMPARED
        else:
            reason = Reason.REVISED if is_same_id else Reason.NEAR
            distance, similarity = (
                self._distance(batch, place, original),
                self._similarity(batch, place, original),
            )
        copies, better = original.copies.add_copy(
            seen_copy(batch, place), self.better, counts=self._counts_copies
        )
        judgement = Judgement(
            reason,
            decided,
            distance=distance,
            of=original.as_representative(),
            similarity=similarity,
            copies=copies,
            better=better,
        )
        return judgement, original.decided

    def _judge_new(
        self, entry: JudgedEntry, batch: Batch, place: int, sibling: JudgedEntry | None
    ) -> tuple[Judgement, LogPlace]:
        """Return the judgement on a new representative, with its sibling if there is one, and the
        log place of the representative.
        """
        if sibling is None:
            return Judgement(entry.reason, entry.decided), entry.decided
        similarity, of = self._similarity(batch, place, sibling), sibling.as_representative()
        return Judgement(entry.reason, entry.decided, of=of, similarity=similarity), entry.decided

    def _find_original(
        self, batch: Batch, place: int, near: NDArray[np.int64] | None
    ) -> tuple[JudgedEntry | None, JudgedEntry | None, JudgedEntry | None]:
        """Return (representative of the same text, earliest near one, earliest sibling). At most one is
        set.

        `near`: the rows that `_find_near` found before the batch; with it, only the representatives that
        the batch itself added are searched.
        """
        same = self._by_text.get(_text_key(batch, place))
        rows = self._rows
        if (
            same is not None
            or self._scan is None
            or self.rules is None
            or rows is None
            or self._is_short(batch, place)
        ):
            return same, None, None
        row, sibling, first = -1, -1, 0
        if near is not None:
            (row, sibling), first = near[place].tolist(), self._rows_before
        if row < 0:
            texts = [ComparedText.of(batch, place)]
            row, later = self._scan.find(self.rules, rows, first, rows.count, texts)[0].tolist()
            sibling = later if sibling < 0 else sibling
        if row >= 0:
            return None, self._by_row[row], None
        return None, None, None if sibling < 0 else self._by_row[sibling]

    def _find_near(
        self, batch: Batch, partitions: list[Partition] | None, scan: PlainScan
    ) -> NDArray[np.int64] | None:
        """Search the representatives before the batch for all documents at once. Return the rows (n, 2)
        of the earliest near one and of the earliest sibling, -1 without one.

        With `partitions` (those of the batch), documents that already have a verdict are skipped.
        Return None if the plan has sketch blocks or a limit of candidates: with a limit,
        representatives that the batch adds count towards it.
        """
        rows, rules = self._rows, self.rules
        if rows is None or rules is None or rules.has_limit_or_bands:
            return None
        self._rows_before = rows.count
        near = np.full((len(batch), 2), -1, np.int64)
        searched = [
            place
            for place in range(len(batch))
            if not self._is_short(batch, place)
            and _text_key(batch, place) not in self._by_text
            and not (
                partitions
                and self._is_remembered(partitions[int(batch.source[place])], batch, place)
            )
        ]
        if searched and rows.count:
            texts = [ComparedText.of(batch, place) for place in searched]
            near[searched] = scan.find(rules, rows, 0, rows.count, texts)
        return near

    def _is_remembered(self, partition: Partition, batch: Batch, place: int) -> bool:
        return (int(batch.offset[place]), int(batch.value_digest[place])) in self._partition_states[
            partition
        ].verdicts

    def _distance(self, batch: Batch, place: int, entry: JudgedEntry) -> int:
        if self.rules is None or self._rows is None or entry.row is None:
            return 0
        return self.rules.distance(ComparedText.of(batch, place), self._rows.text(entry.row))

    def _similarity(self, batch: Batch, place: int, entry: JudgedEntry) -> int:
        if self._rows is None or entry.row is None or not self._rows.sketches.shape[1]:
            return NOT_COMPARED
        return per_cent(batch.sketches[place], self._rows.sketches[entry.row])

    def _is_short(self, batch: Batch, place: int) -> bool:
        return self.declaration is None or int(batch.features[place]) < self.declaration.floor

    def _add_entry(
        self, decided: LogPlace, batch: Batch, place: int, position_key: tuple[Partition, int, int]
    ) -> JudgedEntry:
        """Make a document a representative."""
        row = None
        if not self._is_short(batch, place) and self._rows is not None:
            row = self._rows.add_entry(ComparedText.of(batch, place))
            self._by_row.append(None)
        seen = seen_copy(batch, place)
        copies = CopiesOfEntry(seen, seen)
        entry = JudgedEntry(
            *position_key,
            _text_key(batch, place),
            seen.id,
            seen.time_ms,
            decided,
            row,
            self._slice_of_now(),
            copies,
            self._next_number(),
        )
        if row is not None:
            self._by_row[row] = entry
        self._by_text[entry.text] = entry
        self._by_position[position_key] = entry
        self._last_texts.add(entry, entry.text[1])
        entry.slice.entries[entry] = None
        return entry

    def _next_number(self) -> int:
        """Return the number for the next representative that is added or renewed."""
        self._count += 1
        return self._count - 1

    def _remove_entry(self, entry: JudgedEntry) -> None:
        position_key = (entry.partition, entry.offset, entry.value_digest)
        if self._by_position.get(position_key) is entry:
            del self._by_position[position_key]
        if self._by_text.get(entry.text) is entry:
            del self._by_text[entry.text]
        if entry.row is not None and self._rows is not None:
            self._rows.alive[entry.row] = False
            self._by_row[entry.row] = None
        entry.slice.entries.pop(entry, None)
        self._last_texts.remove(entry)

    # -- positions

    def _partitions(self, batch: Batch) -> list[Partition]:
        return [(source.topic, source.topic_id, source.partition) for source in batch.sources]

    def _raise_watermark(self, partition: Partition, watermark: tuple[int, int]) -> None:
        partition_state = self._partition_states.get(partition)
        if partition_state is None:
            self._partition_states[partition] = _PartitionState(watermark)
            return
        if watermark <= partition_state.watermark:
            return
        has_new_epoch = watermark[0] > partition_state.watermark[0]
        partition_state.watermark = watermark
        for key, remembered in list(partition_state.verdicts.items()):
            if key[0] < watermark[1] or (
                has_new_epoch and remembered.judgement.reason.verdict is not Verdict.UNIQUE
            ):
                del partition_state.verdicts[key]

    # -- log time

    def _slice_ms(self) -> int:
        return DAY_MS if self.window is None else self.window.length_ms // SLICES

    def _advance_time(self, append_ms: int) -> None:
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
            for entry in list(self._slices.pop(0).entries):
                self._remove_entry(entry)

    def _slice_of_now(self) -> Slice:
        now = self._now_ms or 0
        if not self._slices or now >= self._slices[-1].end_ms:
            self._slices.append(Slice(now + self._slice_ms()))
        return self._slices[-1]

    def _renew_named(self, named_entries: Mapping[JudgedEntry, None]) -> None:
        """Move the named representatives of earlier slices to the current slice, in their order. Each
        gets a new number and a new row.
        """
        has_current = bool(self._slices) and (self._now_ms or 0) < self._slices[-1].end_ms
        current = self._slices[-1] if has_current else None
        moved = [
            entry
            for old_slice in self._slices
            if old_slice is not current
            for entry in old_slice.entries
            if entry in named_entries
        ]
        # Read all digests first, because a moved entry becomes the latest of its id.
        digests = [self._last_texts.last_digest(entry) for entry in moved]
        for entry, digest in zip(moved, digests, strict=True):
            del entry.slice.entries[entry]
            entry.slice = self._slice_of_now()
            entry.slice.entries[entry] = None
            entry.number = self._next_number()
            self._last_texts.remove(entry)
            self._last_texts.add(entry, digest)
            if entry.row is not None and self._rows is not None:
                rows, row = self._rows, entry.row
                rows.alive[row] = False
                self._by_row[row] = None
                entry.row = rows.add_entry(rows.text(row))
                self._by_row.append(entry)

    # -- orders

    def _apply_order(self, log_offset: int, record: Seed | Release, scan: PlainScan) -> None:
        """Add the documents of a seed, or release a document that was dropped."""
        batch = record.batch
        partitions = self._partitions(batch)
        for partition in partitions:
            self._raise_watermark(partition, (0, 0))
        near = self._find_near(batch, None, scan) if isinstance(record, Seed) else None
        for place in range(len(batch)):
            partition = partitions[int(batch.source[place])]
            position_key = (partition, int(batch.offset[place]), int(batch.value_digest[place]))
            if position_key in self._by_position:
                continue
            decided = LogPlace(log_offset, place)
            if isinstance(record, Release):
                remembered = self._partition_states[partition].verdicts.get(position_key[1:])
                if remembered is not None:
                    reason = Reason.TOO_SHORT if self._is_short(batch, place) else Reason.NEW
                    remembered.judgement, remembered.representative = (
                        Judgement(reason, decided),
                        decided,
                    )
                if _text_key(batch, place) not in self._by_text:
                    self._add_entry(decided, batch, place, position_key)
            elif self._find_original(batch, place, near)[:2] == (None, None):
                self._add_entry(decided, batch, place, position_key)

    def _apply_control(self, log_offset: int, control: Control) -> None:
        """Apply a control record. An invalid one changes nothing."""
        try:
            if control.type == "declare":
                self._declare(control.fields)
            elif control.type == "plan":
                self._change_plan(control.fields)
            elif control.type == "retract":
                self._retract(log_offset, control.fields)
            elif control.type == "forget":
                self._forget(forgotten_ids(control.fields))
        except ConfigurationError:
            return

    def _declare(self, fields: Mapping[str, object]) -> None:
        if self.declaration is not None:
            return
        declaration = self.declaration = Declaration.from_fields(fields)
        self.rules, self.window = PlanRules(declaration.plan), declaration.window
        self.better, self.format = declaration.better, declaration.format

    def _change_plan(self, fields: Mapping[str, object]) -> None:
        if self.declaration is None or not fields.keys() & {"plan", "window", "better", "format"}:
            return
        rules = PlanRules(Plan.from_fields(fields["plan"])) if "plan" in fields else self.rules
        window = self.window
        if "window" in fields:
            window = None if fields["window"] is None else Window.from_fields(fields["window"])
        better = BetterRule.named(fields["better"]) if "better" in fields else self.better
        log_format = format_of(fields["format"]) if "format" in fields else self.format
        width = self.declaration.width or (
            256 if self._rows is None else self._rows.prints.shape[1] * LIMB_BITS
        )
        sketch_bytes = self.declaration.sketch_bytes
        values = sketch_bytes if self._rows is None else self._rows.sketches.shape[1]
        if (
            rules is None
            or rules.plan.width > width
            or (rules.needs_sketch and values not in (None, SKETCH_BYTES))
            or log_format < self.format
        ):
            return
        self.rules, self.better, self.format = rules, better, log_format
        if window != self.window:
            self.window = window
            if self._slices:
                self._slices[-1].end_ms = min(self._slices[-1].end_ms, (self._now_ms or 0) + 1)
            self._expire()

    def _forget(self, ids: set[bytes]) -> None:
        """Remove the representatives with these ids, and the ids from remembered verdicts."""
        for entry in [entry for entry in self._by_position.values() if entry.id in ids]:
            self._remove_entry(entry)
        for entry in self._by_position.values():
            if entry.copies.best.id in ids:
                entry.copies.best = entry.copies.best._replace(id=b"")
        for partition_state in self._partition_states.values():
            for remembered in partition_state.verdicts.values():
                of = remembered.judgement.of
                if of is not None and of.id in ids:
                    remembered.judgement = remembered.judgement._replace(of=of._replace(id=b""))

    def _retract(self, log_offset: int, fields: Mapping[str, object]) -> None:
        for place, position_key in enumerate(parse_retraction(fields)):
            partition, offset, value_digest = position_key
            own_verdict = (
                self._partition_states[partition].verdicts.get((offset, value_digest))
                if partition in self._partition_states
                else None
            )
            if own_verdict is not None:
                own_verdict.judgement = Judgement(Reason.RETRACTED, LogPlace(log_offset, place))
            entry = self._by_position.get(position_key)
            if entry is None:
                continue
            self._remove_entry(entry)
            # Forget the verdicts on its duplicates, so that they are judged again.
            for partition_state in self._partition_states.values():
                for key, remembered in list(partition_state.verdicts.items()):
                    if (
                        remembered.representative == entry.decided
                        and remembered.judgement.reason.verdict is Verdict.DUPLICATE
                    ):
                        del partition_state.verdicts[key]


def _text_key(batch: Batch, place: int) -> tuple[int, bytes]:
    """Return (scope, text digest), which only equal texts of the same scope have in common."""
    return int(batch.scope[place]), batch.text_digest[place].tobytes()
