"""How full the buckets of a plan's tables are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class BucketSizes:
    """How full the buckets of some tables are.

    `sizes`: (n, how many buckets hold more than n / 2 and up to n entries), n being powers of two; `hottest`: (table, bucket,
    entries) of the longest ones, longest first; a bucket holds what some bits of the hashed key have in common.
    `full`: how many blocks more entries share than the plan asks of one.
    """

    buckets: int
    used: int
    sizes: tuple[tuple[int, int], ...]
    hottest: tuple[tuple[int, int, int], ...]
    full: int = 0

    @classmethod
    def of(cls, table: int, lengths: NDArray[np.integer[Any]], most: int, full: int = 0) -> Self:
        """Return those of one table by the `lengths` of its buckets, with the `most` longest; `full` blocks are full."""
        used = lengths[lengths > 0]
        classes = np.bincount(np.frexp(used - 0.5)[1]).tolist() if len(used) else []
        sizes = tuple((1 << power, count) for power, count in enumerate(classes) if count)
        most = min(most, len(lengths))
        longest = np.argpartition(lengths, len(lengths) - most)[len(lengths) - most :].tolist() if most else []
        hottest = ((table, bucket, int(lengths[bucket])) for bucket in longest if lengths[bucket])
        return cls(len(lengths), len(used), sizes, _longest_first(hottest), full)

    @classmethod
    def together(cls, parts: Iterable[BucketSizes], most: int) -> Self:
        """Return those of several tables as one, with the `most` longest of all."""
        parts = list(parts)
        sizes: Counter[int] = Counter()
        for part in parts:
            sizes.update(dict(part.sizes))
        hottest = _longest_first(one for part in parts for one in part.hottest)[:most]
        buckets, used = sum(part.buckets for part in parts), sum(part.used for part in parts)
        return cls(buckets, used, tuple(sorted(sizes.items())), hottest, sum(part.full for part in parts))


def _longest_first(hottest: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple(sorted(hottest, key=lambda one: (-one[2], one[:2])))
