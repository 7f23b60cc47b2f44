"""How much one transaction may carry: it becomes less when transactions take too long, and more
again when they do not.

A broker that takes records slowly (a quota, a slow disk) takes a small transaction in time and a
large one never: what is not written within the time of a message is aborted as a whole, and begun
anew. A broker that is away says nothing about size, so nobody tells this of it. No clock and no
Kafka in here.
"""

from __future__ import annotations

from typing import NamedTuple

# An output has 20 s to be written, and Kafka ends a transaction by itself after 30.
SLOW_SECONDS = 5.0
_GROWTH_MAX = 2.0
_LEAST_SHARE = 1 / 1024


class Amount(NamedTuple):
    """A number of records, and their bytes together."""

    documents: int
    bytes: int

    def holds(self, documents: int, size: int) -> bool:
        """Whether `documents` of `size` bytes together fit in."""
        return documents <= self.documents and size <= self.bytes


class Allowance:
    """The part of the most that one transaction may carry, `now`: at least one record, and at the
    start all of it.
    """

    def __init__(self, most: Amount) -> None:
        self._most = most
        self._share = 1.0

    @property
    def now(self) -> Amount:
        """How much the next transaction may carry."""
        documents, size = (max(1, int(limit * self._share)) for limit in self._most)
        return Amount(documents, size)

    def committed(self, carried: Amount, seconds: float) -> None:
        """Learn how long a transaction took that carried this, and was committed.

        One that carried less than half of what is allowed says nothing. One that was read before
        the allowance shrank may carry more than is allowed now; what follows is measured by what it
        carried, so several of them do not shrink the allowance several times. After one that took
        less than half of `SLOW_SECONDS` the next may carry as much more as would fill that, at most
        twice as much.
        """
        if 2 * carried.documents < self.now.documents and 2 * carried.bytes < self.now.bytes:
            return
        if seconds > SLOW_SECONDS:
            self._shrink_to(self._share_of(carried) / 2)
        elif seconds < SLOW_SECONDS / 2:
            self._share = min(
                1.0, self._share * min(_GROWTH_MAX, SLOW_SECONDS / 2 / max(seconds, 1e-3))
            )

    def was_late(self, carried: Amount) -> None:
        """Learn that outputs were not written in their time; the next carries a quarter of it, so
        that it fits at last.
        """
        self._shrink_to(self._share_of(carried) / 4)

    def _share_of(self, carried: Amount) -> float:
        return max(done / limit for done, limit in zip(carried, self._most, strict=True))

    def _shrink_to(self, share: float) -> None:
        self._share = max(_LEAST_SHARE, min(self._share, share))
