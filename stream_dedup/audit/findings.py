"""Collect violations: all are counted by kind, and the first of each kind are stored.

Invariant: a finding violates a guarantee. Everything else, such as records that retention deleted and
waiting documents, is a figure of the report.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

# Names of the report's counts of records that violate no guarantee.
SOURCE_TRIMMED = "source_trimmed"
EARLIER_TOPIC = "earlier_topic"
REDELIVERED = "again_by_rewind"
OUTPUTS_TRIMMED = "outputs_trimmed"
RELEASED = "released"


class Kind(enum.StrEnum):
    """The guarantee that a violation breaks."""

    LOST = "lost"
    TWICE = "twice"
    NOWHERE = "from-nowhere"
    CHANGED = "changed"
    ORDER = "order"
    VERDICT = "verdict"
    REPRESENTATIVE = "representative"
    REACH = "reach"
    UNEMITTED = "unemitted"
    COMMITTED = "committed"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation, at the position of an output or source record, such as `unique-3@17`."""

    kind: Kind
    position: str
    sentence: str


@dataclass(slots=True)
class Findings:
    """The number of violations of each kind, and the first `shown_max` of each kind."""

    shown_max: int
    counts: Counter[Kind] = field(default_factory=Counter)
    shown: list[Violation] = field(default_factory=list)

    def add_finding(self, kind: Kind, position: str, predicate: str) -> None:
        """Add a violation; its sentence is `position` followed by `predicate`."""
        self.counts[kind] += 1
        if self.counts[kind] <= self.shown_max:
            self.shown.append(Violation(kind, position, f"{position} {predicate}"))


@dataclass(frozen=True, slots=True)
class Waiting:
    """Representatives that are in the log but not on `unique`: their number, and the time at which the
    oldest was appended to the log.
    """

    count: int = 0
    oldest_ms: int | None = None

    def with_another(self, appended_ms: int) -> Waiting:
        """Return a copy with one more representative."""
        return Waiting(
            self.count + 1,
            appended_ms if self.oldest_ms is None else min(self.oldest_ms, appended_ms),
        )
