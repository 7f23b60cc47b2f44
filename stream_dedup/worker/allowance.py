"""The maximum size of a transaction, which shrinks while transactions are slow and grows again.

A slow broker (a quota, a slow disk) can write a small transaction in time but never a large one: if
a record is not written within the message timeout, the whole transaction is aborted and retried.
The caller does not report transactions while the broker was unavailable, because their duration
does not depend on their size. This module uses no clock and no Kafka.
"""

from __future__ import annotations

from typing import NamedTuple

# An output must be written within 20 s, and Kafka aborts a transaction after 30 s.
SLOW_SECONDS = 5.0
_GROWTH_MAX = 2.0
_SHARE_MIN = 1 / 1024


class Amount(NamedTuple):
    """A number of records, and their total size in bytes."""

    documents: int
    bytes: int

    def fits(self, documents: int, size: int) -> bool:
        """Return whether `documents` records of `size` bytes in total fit."""
        return documents <= self.documents and size <= self.bytes


class Allowance:
    """The limit of one transaction, from one record to `maximum`, at which it starts."""

    def __init__(self, maximum: Amount) -> None:
        self._maximum = maximum
        self._share = 1.0

    @property
    def current(self) -> Amount:
        """The limit of the next transaction."""
        documents, size = (max(1, int(limit * self._share)) for limit in self._maximum)
        return Amount(documents, size)

    def adapt_after_commit(self, amount: Amount, seconds: float) -> None:
        """Adapt the limit to the duration of a committed transaction.

        A transaction below half of the limit changes nothing. A slow one sets the limit to half of
        its own amount, not of the limit: several batches that were read before the limit shrank
        must not shrink it repeatedly. A quick one, below half of `SLOW_SECONDS`, raises the limit
        in proportion to the unused time, at most twofold.
        """
        if 2 * amount.documents < self.current.documents and 2 * amount.bytes < self.current.bytes:
            return
        if seconds > SLOW_SECONDS:
            self._shrink_to(self._share_of(amount) / 2)
        elif seconds < SLOW_SECONDS / 2:
            self._share = min(
                1.0, self._share * min(_GROWTH_MAX, SLOW_SECONDS / 2 / max(seconds, 1e-3))
            )

    def shrink_after_timeout(self, amount: Amount) -> None:
        """Reduce the limit to a quarter of a transaction that was not written in time."""
        self._shrink_to(self._share_of(amount) / 4)

    def _share_of(self, amount: Amount) -> float:
        return max(used / limit for used, limit in zip(amount, self._maximum, strict=True))

    def _shrink_to(self, share: float) -> None:
        self._share = max(_SHARE_MIN, min(self._share, share))
