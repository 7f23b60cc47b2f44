"""By which rule a copy of a document is better than the representative and all copies before it.

`longest`: at least a tenth more features than the best so far. `newest`: a later time. Ties keep
the earlier, so what is best follows from the log alone.
"""

from __future__ import annotations

import enum

from stream_dedup.domain.errors import ConfigurationError


class BetterRule(enum.IntEnum):
    """A rule; its number stands in answers and on disk, where 0 says that a copy does not beat the
    best.
    """

    LONGEST = 1
    NEWEST = 2

    @property
    def label(self) -> str:
        """Its name, as settings and the header `dedup.better` have it."""
        return self.name.lower()

    @classmethod
    def named(cls, name: object) -> BetterRule:
        """Return the rule of a name.

        Raises:
            ConfigurationError: there is none.
        """
        for rule in cls:
            if rule.label == name:
                return rule
        raise ConfigurationError(f"What is better is longest or newest, not {name!r:.60}.")


BETTER_LABELS = tuple(
    "" if not number else BetterRule(number).label for number in range(len(BetterRule) + 1)
)
"""The header's value by number; of what does not beat the best, nothing."""


def beats(rule: BetterRule, copy: tuple[int, int], best: tuple[int, int]) -> bool:
    """Return whether a copy is better than another; of each its features and its time in ms."""
    (features, time_ms), (best_features, best_time_ms) = copy, best
    if rule is BetterRule.NEWEST:
        return time_ms > best_time_ms
    return features > best_features and 10 * features >= 11 * best_features
