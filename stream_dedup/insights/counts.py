"""What is counted of a host, and how many different ids were seen, in a few bytes.

Invariants: counts only ever grow by adding, which is commutative; `Distinct` grows by union, so the
same id counts once however often it comes, also when a record is read twice.

Source of the estimate: Whang, Vander-Zanden, Taylor: A Linear-Time Probabilistic Counting Algorithm
(TODS 15, 1990).
"""

from __future__ import annotations

import math
import zlib
from operator import add
from typing import Final, NamedTuple

from stream_dedup.ground.document import Reason

_BITS: Final = 256
# Full: all that can be said is "at least this count".
DISTINCT_MAX: Final = 1420


class ReasonCounts(NamedTuple):
    """Documents that left with a verdict, those of them that were duplicates by reason, and bytes
    of their values.

    `bytes_wasted`: bytes of the duplicates.
    """

    documents: int = 0
    exact: int = 0
    near: int = 0
    unchanged: int = 0
    revised: int = 0
    bytes: int = 0
    bytes_wasted: int = 0
    returned: int = 0

    def plus(self, other: ReasonCounts) -> ReasonCounts:
        """Return both together."""
        return ReasonCounts(*map(add, self, other))

    @property
    def duplicates(self) -> int:
        """How many were duplicates."""
        return self.exact + self.near + self.unchanged + self.revised + self.returned

    @property
    def swallowed(self) -> int:
        """How many were dropped in favour of another id: what is lost if that was wrong."""
        return self.exact + self.near


NOTHING: Final = ReasonCounts()

# By reason's number, because an enumeration is slow as a key: the field of a host's counts that it
# moves beside documents and bytes (0: none), and whether it says that the host had something that
# was not there the time before.
_MOVED: Final = {
    Reason.EXACT: 1,
    Reason.NEAR: 2,
    Reason.UNCHANGED: 3,
    Reason.REVISED: 4,
    Reason.RETURNED: 7,
}
PLACES: Final = [
    _MOVED.get(Reason(number), 0) if number in set(Reason) else 0
    for number in range(max(Reason) + 1)
]
_CHANGES: Final = {
    Reason.NEW,
    Reason.TOO_SHORT,
    Reason.FAIL_OPEN,
    Reason.RELEASED,
    Reason.REVISED,
    Reason.RETURNED,
}
IS_CHANGE: Final = [number in _CHANGES for number in range(max(Reason) + 1)]
_BIT: Final = [1 << number for number in range(_BITS)]


def bit_of(identifier: bytes) -> int:
    """Return the one of 256 bits that an id sets in a set whose size is to be estimated."""
    # A CRC alone would give ids that count upwards neighbouring bits; the product mixes it (Knuth,
    # TAOCP 3, 6.4).
    return _BIT[(zlib.crc32(identifier) * 0x9E3779B1 >> 24) & 0xFF]


def distinct(bits: int) -> int:
    """Return about how many different ids set these bits: -m ln(share of zeros), at most
    `DISTINCT_MAX`.
    """
    zeros = _BITS - bits.bit_count()
    return DISTINCT_MAX if zeros == 0 else round(-_BITS * math.log(zeros / _BITS))
