"""Violations by kind: the first sentences of each kind are stored, and all are counted.

Invariant: a finding violates a promise; everything else (records removed by retention, waiting
documents) is a figure of the report.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

# Names under which the report counts records that violate no promise.
SOURCE_TRIMMED = "source_trimmed"
EARLIER_TOPIC = "earlier_topic"
REDELIVERED = "again_by_rewind"
OUTPUTS_TRIMMED = "outputs_trimmed"
RELEASED = "released"


class Kind(enum.StrEnum):
    """The promise that a violation breaks."""

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
    """One violation: `where` is a position such as `unique-3@17`."""

    kind: Kind
    where: str
    sentence: str


@dataclass(slots=True)
class Findings:
    """The first `shown_max` violations of each kind, and how many there are."""

    shown_max: int
    counts: Counter[Kind] = field(default_factory=Counter)
    shown: list[Violation] = field(default_factory=list)

    def add_finding(self, kind: Kind, where: str, predicate: str) -> None:
        """Add a violation; its sentence is `where` followed by `predicate`."""
        self.counts[kind] += 1
        if self.counts[kind] <= self.shown_max:
            self.shown.append(Violation(kind, where, f"{where} {predicate}"))


@dataclass(frozen=True, slots=True)
class Waiting:
    """Representatives that the log contains and `unique` lacks: their number, and when the oldest
    was appended to the log.
    """

    count: int = 0
    oldest_ms: int | None = None

    def with_one(self, appended_ms: int) -> Waiting:
        """Return a copy with one more representative."""
        return Waiting(
            self.count + 1,
            appended_ms if self.oldest_ms is None else min(self.oldest_ms, appended_ms),
        )
