"""Violations: sentences that name where, by kind, the first of each kind kept and all counted.

Invariant: a finding is a violation of a promise; what is merely said (records that retention removed, documents that wait)
is a figure of the report, never a finding.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field


class Kind(enum.StrEnum):
    """Which promise is broken."""

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
class Finding:
    """One violation: `where` is a position such as `unique-3@17`."""

    kind: Kind
    where: str
    sentence: str


@dataclass(slots=True)
class Findings:
    """The first `most` violations of each kind, and how many there are."""

    most: int
    counts: Counter[Kind] = field(default_factory=Counter)
    shown: list[Finding] = field(default_factory=list)

    def add(self, kind: Kind, where: str, sentence: str) -> None:
        """Take in a violation."""
        self.counts[kind] += 1
        if self.counts[kind] <= self.most:
            self.shown.append(Finding(kind, where, sentence))
