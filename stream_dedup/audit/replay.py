"""Judge a log twice, unchanged and under another plan, and report the differences. This module does
not read Kafka.

Invariants: the role's own index judges the records both times; the second time, only the plan, the
window and the rule for the best copy in them are changed; each document counts once, where it was
first judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stream_dedup.domain import plan as plans
from stream_dedup.domain.better_copy import BETTER_LABELS, BetterRule
from stream_dedup.domain.document import LogPlace, Reason, Verdict
from stream_dedup.domain.errors import ConfigurationError, InputError
from stream_dedup.domain.plan import Plan
from stream_dedup.index.index import LogIndex
from stream_dedup.log import answers, records
from stream_dedup.log.answers import LogAnswer
from stream_dedup.log.controls import Window
from stream_dedup.log.record_frame import decode_unless_damaged
from stream_dedup.log.records import Batch, Control
from stream_dedup.log.schema import Judgement
from stream_dedup.settings.units import parse_duration

_NUMBERS: Final = (
    "width",
    "blocks",
    "key_blocks",
    "radius",
    "threshold",
    "ratio",
    "bands",
    "asked",
)
_SIMILARITIES: Final = (
    "similarity",
    "similarity_unsure",
    "similarity_same_site",
    "similarity_other_title",
)
SETTINGS: Final = ("plan", *_NUMBERS, *_SIMILARITIES, "by_length", "window", "refresh", "better")


@dataclass(frozen=True, slots=True)
class Alternative:
    """The changes to make. None keeps the value of the log.

    `plan`: replaces the plan; `fields`: replace single fields of the plan; `length_ms`: the length of
    the window, 0 for no window; `refresh`: whether a duplicate renews its kept document; `better`: the
    rule for the best copy.
    """

    plan: Plan | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    length_ms: int | None = None
    refresh: bool | None = None
    better: BetterRule | None = None

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Alternative:
        """Parse texts `NAME=VALUE`, such as plan=classic, threshold=18, by_length=24@5,21@40.

        Raises:
            InputError: a text is not a setting of a plan, or its value is invalid.
            ConfigurationError: there is no such plan, or no such rule.
        """
        plan: Plan | None = None
        fields: dict[str, Any] = {}
        length_ms: int | None = None
        refresh: bool | None = None
        better: BetterRule | None = None
        for text in texts:
            name, _, value = (part.strip() for part in text.partition("="))
            name = name.lower().replace("-", "_")
            if name == "plan":
                plan = plans.parse(value)
            elif name in _NUMBERS and value.rstrip("%").isdigit():
                fields[name] = int(value.rstrip("%"))
            elif name in _SIMILARITIES:
                fields[name.removeprefix("similarity_")] = plans.parse_similarity(value)
            elif name == "window":
                length_ms = _parse_length_ms(value)
            elif name == "refresh" and value in ("true", "false"):
                refresh = value == "true"
            elif name == "better":
                better = BetterRule.named(value.lower())
            elif name == "by_length":
                fields[name] = [_parse_step(step) for step in value.split(",") if step]
            else:
                raise InputError(
                    f"{text!r:.80} is not a setting of a plan; the settings are "
                    f"{', '.join(f'{setting}=...' for setting in SETTINGS)}, such as plan=classic "
                    "or threshold=18."
                )
        return cls(plan, fields, length_ms, refresh, better)

    def replace_plan(self, fields: object) -> Plan:
        """Return the plan that replaces a plan of the log, given by its fields.

        Raises:
            ConfigurationError: the changed fields do not form a valid plan.
        """
        base = (self.plan or Plan.from_fields(fields)).to_fields()
        return Plan.from_fields({**base, **self.fields})

    def change(self, raw: bytes | None) -> bytes | None:
        """Return a log record in which plan, window and rule are changed, if it contains them."""
        record = decode_unless_damaged(records.decode, raw)
        if not isinstance(record, Control) or record.type not in ("declare", "plan"):
            return raw
        fields = dict(record.fields)
        try:
            if "plan" in fields:
                fields["plan"] = self.replace_plan(fields["plan"]).to_fields()
            if record.type == "declare" or "window" in fields:
                fields["window"] = self._window(fields.get("window"))
            if self.better is not None and (record.type == "declare" or "better" in fields):
                fields["better"] = self.better.label
        except ConfigurationError:
            if record.type == "declare":
                raise
            return raw  # the index ignores an invalid change of plan
        return records.encode_control(Control(record.type, fields))

    def _window(self, fields: object) -> dict[str, Any] | None:
        """Return the fields of the window that replaces a window of the log; None for no window."""
        window = None if fields is None else Window.from_fields(fields)
        length_ms = (
            self.length_ms
            if self.length_ms is not None
            else 0
            if window is None
            else window.length_ms
        )
        refresh = (
            self.refresh if self.refresh is not None else window is not None and window.refresh
        )
        return Window(length_ms, refresh).to_fields() if length_ms else None


def _parse_length_ms(text: str) -> int:
    """Return the length of a window in milliseconds; 0 for `none`."""
    if text == "none":
        return 0
    try:
        return round(parse_duration(text).total_seconds() * 1000)
    except ValueError as error:
        raise InputError(
            f"A window must be a time such as 30d or 12h, or none, not {text!r:.40}."
        ) from error


def _parse_step(text: str) -> list[int]:
    bits, _, below = text.partition("@")
    if not (bits.isdigit() and below.isdigit()):
        raise InputError(
            f"A threshold by length must be BITS@FEATURES, such as 24@5, not {text!r:.40}."
        )
    return [int(below), int(bits)]


def judgement_text(judgement: Judgement) -> str:
    """Return a judgement as text: reason, kept document, distance and similarity."""
    if judgement.of is None:
        return judgement.reason.label
    if judgement.sibling is not None:
        return f"{judgement.reason.label}, sibling {judgement.sibling.position}, similarity {judgement.text_similarity or 0:.2f}"
    better = (
        f", better than all earlier copies by the rule {BETTER_LABELS[judgement.better]}"
        if judgement.better
        else ""
    )
    value = judgement.text_similarity
    similarity = "" if value is None else f", similarity {value:.2f}"
    return f"{judgement.reason.label} of {judgement.of.position} at {judgement.distance} bits{similarity}{better}"


@dataclass(frozen=True, slots=True)
class Changed:
    """A document whose judgement would change."""

    kind: str
    log: LogPlace
    position: str
    id: str
    was: Judgement
    would_be: Judgement

    def to_fields(self) -> dict[str, Any]:
        """Return the change as a JSON object."""
        return {
            "change": self.kind,
            "log": str(self.log),
            "position": self.position,
            "id": self.id,
            "was": judgement_fields(self.was),
            "would_be": judgement_fields(self.would_be),
        }


@dataclass(slots=True)
class Difference:
    """The effect of an alternative. `kinds`: the number of changed documents by kind of change;
    `samples`: the first `shown_max` of each kind; `was`, `would_be`: the number of documents by reason
    before and after.
    """

    shown_max: int
    documents: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    was: Counter[str] = field(default_factory=Counter)
    would_be: Counter[str] = field(default_factory=Counter)
    samples: list[Changed] = field(default_factory=list)

    def to_fields(self, plan: str | None) -> dict[str, Any]:
        """Return the effect of `plan` as the JSON object of the command."""
        return {
            "plan": plan,
            "documents": self.documents,
            "changed": self.kinds.total(),
            "changes": dict(self.kinds),
            "reasons": {"was": dict(self.was), "would_be": dict(self.would_be)},
            "samples": [sample.to_fields() for sample in self.samples],
        }

    def to_rows(self) -> list[list[str]]:
        """Return for each reason, and for all kept documents, the counts before and after."""
        counts = (self.was, self.would_be)
        reasons = [reason for reason in Reason if reason.label in self.was.keys() | self.would_be]
        kept = [reason.label for reason in reasons if reason.verdict is Verdict.UNIQUE]
        return [
            *(
                [reason.label, *(f"{count[reason.label]:,}" for count in counts)]
                for reason in reasons
            ),
            ["all kept", *(f"{sum(count[label] for label in kept):,}" for count in counts)],
        ]

    def add_batch(
        self, log_offset: int, batch: Batch, was: Sequence[Judgement], would_be: Sequence[Judgement]
    ) -> None:
        """Compare the judgements on the documents of one record."""
        for place, (before, after) in enumerate(zip(was, would_be, strict=True)):
            log_place = LogPlace(log_offset, place)
            if log_place not in (before.decided, after.decided) or Reason.STALE in (
                before.reason,
                after.reason,
            ):
                continue
            self.documents += 1
            self.was[before.reason.label] += 1
            self.would_be[after.reason.label] += 1
            kind = _kind_of_change(before, after)
            if kind:
                self.kinds[kind] += 1
                if self.kinds[kind] <= self.shown_max:
                    identifier = batch.ids[place].decode("utf-8", "replace")
                    self.samples.append(
                        Changed(
                            kind, log_place, str(batch.position(place)), identifier, before, after
                        )
                    )


def _kind_of_change(before: Judgement, after: Judgement) -> str:
    if before.reason.verdict is not after.reason.verdict:
        return (
            "unique to duplicate"
            if after.reason.verdict is Verdict.DUPLICATE
            else "duplicate to unique"
        )
    if before.sibling != after.sibling:
        return "another sibling"
    if before.of is not None and after.of is not None and before.of.position != after.of.position:
        return "another kept document"
    if before.reason is not after.reason:
        return "another reason"
    if before.distance != after.distance:
        return "another distance"
    if before.similarity != after.similarity:
        return "another similarity"
    return "another best copy" if before.better != after.better else ""


def compare(
    log: Iterable[Sequence[tuple[int, int, bytes | None]]],
    recorded: LogIndex,
    changed: LogIndex,
    alternative: Alternative,
    difference: Difference,
) -> None:
    """Judge groups of (log offset, LogAppendTime, bytes) with two empty indexes, and compare.

    Raises:
        ConfigurationError: the changed plan cannot judge this log's fingerprints.
    """
    for group in log:
        batches = dict(batches_of(group))
        changed_group = [
            (offset, append_ms, alternative.change(raw)) for offset, append_ms, raw in group
        ]
        before = judgements_of(apply_group(recorded, group))
        after = judgements_of(apply_group(changed, changed_group))
        if changed.declared is None and recorded.declared is not None:
            raise ConfigurationError(
                f"The plan cannot judge this log: it compares more bits than the fingerprints of "
                f"{recorded.declared.recipe} have."
            )
        for offset, judgements in before.items():
            if offset in after:
                difference.add_batch(offset, batches[offset], judgements, after[offset])


def batches_of(group: Iterable[tuple[int, int, bytes | None]]) -> Iterator[tuple[int, Batch]]:
    """Yield (log offset, batch) for the records that are batches."""
    decoded = ((offset, decode_unless_damaged(records.decode, raw)) for offset, _, raw in group)
    return ((offset, record) for offset, record in decoded if isinstance(record, Batch))


def judgements_of(index_answers: Mapping[int, bytes]) -> dict[int, Sequence[Judgement]]:
    """Return the judgements on each batch in the answers of an index, by log offset."""
    judgements = {}
    for offset, raw in index_answers.items():
        answer = answers.decode(raw, f"The answer to log record {offset}")
        if isinstance(answer, LogAnswer):
            judgements[offset] = answer.judgements
    return judgements


def apply_group(
    index: LogIndex, group: Sequence[tuple[int, int, bytes | None]]
) -> dict[int, bytes]:
    """Apply log records with an index. Return its answers by log offset; the index does not keep them."""
    index_answers = dict(index.apply(group))
    index.mark_delivered(index.applied)
    return index_answers


def judgement_fields(judgement: Judgement) -> dict[str, Any]:
    """Return a judgement as a JSON object."""
    of = judgement.of
    return {
        "reason": judgement.reason.label,
        "distance": None if of is None else judgement.distance,
        "of_position": None if of is None else str(of.position),
        "of_id": None if of is None else of.id.decode("utf-8", "replace"),
        "better": BETTER_LABELS[judgement.better],
    }
