"""Rules that decide whether a copy of a document is better than the representative and all earlier
copies.

`longest`: the copy has at least a tenth more features than the best so far. `newest`: it has a
later time. On a tie the earlier one stays the best, so the log alone determines the best.
"""

from __future__ import annotations

import enum

from stream_dedup.domain.errors import ConfigurationError


class BetterRule(enum.IntEnum):
    """A rule. Answers and the index's volume store its number; 0 there means that the copy is not
    better.
    """

    LONGEST = 1
    NEWEST = 2

    @property
    def label(self) -> str:
        """Name of the rule in settings and in the header `dedup.better`."""
        return self.name.lower()

    @classmethod
    def named(cls, name: object) -> BetterRule:
        """Return the rule with this name.

        Raises:
            ConfigurationError: no rule has this name.
        """
        for rule in cls:
            if rule.label == name:
                return rule
        raise ConfigurationError(
            f"The rule for better copies must be longest or newest, not {name!r:.60}."
        )


BETTER_LABELS = tuple(
    "" if not number else BetterRule(number).label for number in range(len(BetterRule) + 1)
)
"""Value of the header by the number of the rule; empty for 0."""


def beats(rule: BetterRule, copy: tuple[int, int], best: tuple[int, int]) -> bool:
    """Return whether `copy` is better than `best`, each (number of features, time in ms)."""
    (features, time_ms), (best_features, best_time_ms) = copy, best
    if rule is BetterRule.NEWEST:
        return time_ms > best_time_ms
    return features > best_features and 10 * features >= 11 * best_features
