"""Choose the best copy of a representative, in a second, plain implementation
(docs/decisions/index.md, 023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.document import Position
from stream_dedup.log.records import Batch


class SeenCopy(NamedTuple):
    """The properties of a document that the rules compare.

    `rule`: the number of the rule by which it became the best copy; 0 for the representative.
    """

    features: int
    time_ms: int
    position: Position
    id: bytes
    rule: int = 0

    def beats(self, best: SeenCopy, rule: BetterRule) -> bool:
        """Return whether this copy is better than the best so far."""
        if rule is BetterRule.LONGEST:
            return self.features > best.features and self.features * 10 >= best.features * 11
        return self.time_ms > best.time_ms


@dataclass(eq=False, slots=True)
class CopiesOfEntry:
    """The copies of a representative: their number, the representative (`first`) and the best copy."""

    first: SeenCopy
    best: SeenCopy
    count: int = 0

    def add_copy(self, copy: SeenCopy, rule: BetterRule, *, counts: bool) -> tuple[int, int]:
        """Add a copy. Return the number of copies so far, and the number of the rule by which this
        copy is the best, 0 if it is not. Without `counts` copies are not counted.

        The best copy must also beat the representative, which matters after the rule has changed.
        """
        if counts:
            self.count += 1
        if not (copy.beats(self.best, rule) and copy.beats(self.first, rule)):
            return self.count, 0
        self.best = copy._replace(rule=int(rule))
        return self.count, self.best.rule


def seen_copy(batch: Batch, place: int) -> SeenCopy:
    """Return the properties of a document that the rules compare."""
    features, time_ms = int(batch.features[place]), int(batch.time_ms[place])
    return SeenCopy(features, time_ms, batch.position(place), batch.ids[place])
