"""How much one transaction may carry: it becomes less when transactions take too long, and more again when they do not.

A broker that takes records slowly (a quota, a slow disk) takes a small transaction in time and a large one never: what is not
written within the time of a message is aborted as a whole, and begun anew. No clock and no Kafka in here.
"""

from __future__ import annotations

from typing import NamedTuple

# An output has 20 s to be written, and Kafka ends a transaction by itself after 30.
SLOW_SECONDS = 5.0
TIMED_OUT_SECONDS = 10.0
_LEAST_SHARE = 1 / 1024


class Amount(NamedTuple):
    """So many records, of so many bytes together."""

    documents: int
    bytes: int

    def holds(self, documents: int, size: int) -> bool:
        """Whether so many records of so many bytes fit in."""
        return documents <= self.documents and size <= self.bytes


class Allowance:
    """The part of the most that one transaction may carry, `now`: at least one record, and at the start all of it."""

    def __init__(self, most: Amount) -> None:
        self._most = most
        self._share = 1.0

    @property
    def now(self) -> Amount:
        """How much the next transaction may carry."""
        documents, size = (max(1, int(limit * self._share)) for limit in self._most)
        return Amount(documents, size)

    def ended(self, carried: Amount, seconds: float, *, is_committed: bool) -> None:
        """Learn how long a transaction took that carried so much.

        After one that timed out the next carries a quarter of it, whatever was allowed: so it fits at last. One that aborted
        sooner failed for another reason than its size. Of those that were committed, one that carried less than half of what is
        allowed says nothing. One that was read before the allowance shrank may carry more than is allowed now; what follows is
        measured by what it carried, so several of them do not shrink the allowance several times.
        """
        share = max(done / limit for done, limit in zip(carried, self._most, strict=True))
        if not is_committed:
            if seconds >= TIMED_OUT_SECONDS:
                self._shrink_to(share / 4)
        elif 2 * carried.documents >= self.now.documents or 2 * carried.bytes >= self.now.bytes:
            if seconds > SLOW_SECONDS:
                self._shrink_to(share / 2)
            elif seconds < SLOW_SECONDS / 2:
                self._share = min(1.0, self._share * (2.0 if seconds < SLOW_SECONDS / 8 else 1.25))

    def _shrink_to(self, share: float) -> None:
        self._share = max(_LEAST_SHARE, min(self._share, share))
