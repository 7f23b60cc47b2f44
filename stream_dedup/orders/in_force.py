"""The plan, window, `BetterRule` and format in force at the log's end.

Invariant: `fold` applies a control record exactly as the index does (`index.rules.window.change_rules`),
so both always agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.plan import Plan
from stream_dedup.index.rules.apply import find_refusal
from stream_dedup.index.rules.window import RulesInForce, change_rules
from stream_dedup.log.controls import Declaration, Window
from stream_dedup.log.record_frame import FIRST_FORMAT
from stream_dedup.log.records import Batch, Control, LogRecord, Release, Seed


@dataclass(slots=True)
class InForce:
    """The rules in force after the log's records so far. `fold` reads them in the log's order."""

    declared: Declaration | None = None
    plan: Plan | None = None
    window: Window | None = None
    better: BetterRule = BetterRule.LONGEST
    format: int = FIRST_FORMAT
    changes: int = 0
    _limbs: int = 0
    _sketch_bytes: int | None = None

    def fold(self, record: LogRecord | None) -> None:
        """Apply the next record; ignore those that the index ignores."""
        if self._sketch_bytes is None and isinstance(record, Batch | Seed | Release):
            batch = record if isinstance(record, Batch) else record.batch
            if find_refusal(self.declared, self.plan, (0, 0), batch) is None:
                self._limbs, self._sketch_bytes = batch.prints.shape[1], batch.sketches.shape[1]
        if not isinstance(record, Control):
            return
        try:
            if record.type == "declare" and self.declared is None:
                self.declared = Declaration.from_fields(record.fields)
                self.plan, self.window = self.declared.plan, self.declared.window
                self.better, self.format = self.declared.better, self.declared.format
            elif record.type == "plan":
                self._change(record.fields)
        except ConfigurationError:
            pass

    def _change(self, fields: Mapping[str, Any]) -> None:
        if self.declared is None or self.plan is None:
            return
        width = self.declared.width or self._limbs * 64 or None
        sketch_bytes = self._sketch_bytes
        if sketch_bytes is None:
            sketch_bytes = self.declared.sketch_bytes
        current = RulesInForce(self.plan, self.window, self.better, self.format)
        rules = change_rules(fields, current, width, sketch_bytes)
        if rules is not None and rules != current:
            self.plan, self.window, self.better, self.format = rules
            self.changes += 1


def change_fields(current_rules: InForce, rules: RulesInForce) -> dict[str, Any]:
    """Return the fields of the control record that puts `rules` in force; empty if they are already.

    Raises:
        ConfigurationError: the log's fingerprints are narrower than the plan, or the format is lower
        than the one in force.
    """
    plan, window, better, form = rules
    if form < current_rules.format:
        raise ConfigurationError(
            f"The log has the format {current_rules.format}, which cannot be lowered to {form}; "
            "leave out --format."
        )
    width = None if current_rules.declared is None else current_rules.declared.width
    if width is not None and plan.width > width:
        raise ConfigurationError(
            f"The plan {plan.id} compares {plan.width} bits, but the fingerprints of this log "
            f"have {width}; choose a plan of at most that width."
        )
    fields: dict[str, Any] = {}
    if plan != current_rules.plan:
        fields["plan"] = plan.to_fields()
    if window != current_rules.window:
        fields["window"] = None if window is None else window.to_fields()
    if better != current_rules.better:
        fields["better"] = better.label
    if form != current_rules.format:
        fields["format"] = form
    return fields
