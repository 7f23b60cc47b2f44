"""Which copy of a representative is best, a second time and plainly
(docs/decisions/index.md, 023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stream_dedup.domain.document import Position
from stream_dedup.log.records import Batch

RULES = ("longest", "newest")
"""By their numbers, counted from 1."""


class SeenCopy(NamedTuple):
    """One document as the rules of what is better see it, and the rule by which it was the best;
    none of the first.
    """

    features: int
    time_ms: int
    position: Position
    id: bytes
    rule: int = 0

    def beats(self, best: SeenCopy, rule: str) -> bool:
        """Return whether it is better than the best so far."""
        if rule == "longest":
            return self.features > best.features and self.features * 10 >= best.features * 11
        return self.time_ms > best.time_ms


@dataclass(eq=False, slots=True)
class FoldedCopies:
    """What became of a representative: how many copies, and the best so far."""

    own: SeenCopy
    best: SeenCopy
    count: int = 0

    def take_copy(self, copy: SeenCopy, rule: str, *, counts: bool) -> tuple[int, int]:
        """Take in a copy; return how many were counted, and the number of the rule by which it is
        the best, or 0.

        The best beats the representative too, which matters where the rule was another before.
        """
        if counts:
            self.count += 1
        if not (copy.beats(self.best, rule) and copy.beats(self.own, rule)):
            return self.count, 0
        self.best = copy._replace(rule=1 + RULES.index(rule))
        return self.count, self.best.rule


def seen_copy(batch: Batch, place: int) -> SeenCopy:
    """Return a document of a batch as the rules see it."""
    features, time_ms = int(batch.features[place]), int(batch.time_ms[place])
    return SeenCopy(features, time_ms, batch.position(place), batch.ids[place])
