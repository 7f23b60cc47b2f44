"""The crowds of a sample's documents, and what two of them share that the crowd does not: the
plan's rule, in columns. Pure.

The crowd of a document is that of a filter which had the documents before it, in their order, and
dropped what the plan calls near: of the kept ones that share a key of the plan's tables, as far as
they are asked, the first `CROWD`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting import Prints
from stream_dedup.ground.plan import Plan
from stream_dedup.ground.sketch import (
    CROWD,
    JUDGING_VALUES,
    SKETCH_VALUES,
    equal_values,
    own_shares,
    per_cents,
)

ALONE: Final = 100
"""The share, in per cent, where nobody else is a candidate."""

Numbers = NDArray[np.int64]


class ComparedTexts:
    """What is compared of each of n texts, numbered from 0 in their order, and whether lengths and
    prints let pairs pass.
    """

    def __init__(
        self, prints: Prints, scopes: NDArray[np.uint64], rows: Numbers, plan: Plan
    ) -> None:
        self.plan = plan
        self.sketches = prints.sketches[rows]
        self.scopes = np.unique(scopes[rows], return_inverse=True)[1].astype(np.int64)
        self._features = prints.features[rows].astype(np.int64)
        self._limbs = prints.prints[rows, : plan.limbs]
        if plan.width % 64:
            self._limbs[:, -1] &= np.uint64(2 ** (plan.width % 64) - 1)

    def pass_by(self, ones: Numbers, others: Numbers) -> NDArray[np.bool_]:
        """Return of which pairs the lengths and the bits that differ are as the plan asks."""
        features = self._features[ones], self._features[others]
        shorter = np.minimum(*features)
        limit = np.full(len(ones), self.plan.threshold)
        for below, threshold in reversed(self.plan.by_length):
            limit[shorter < below] = threshold
        distances = np.bitwise_count(self._limbs[ones] ^ self._limbs[others]).sum(axis=1)
        passes: NDArray[np.bool_] = (distances <= limit) & (
            100 * shorter >= self.plan.ratio * np.maximum(*features)
        )
        return passes

    def keys(self, number: int) -> Iterator[tuple[int, object]]:
        """Yield the keys of a text: the table, and what it must have in common there."""
        scope, sketch = int(self.scopes[number]), self.sketches[number].tobytes()
        of_print = int.from_bytes(self._limbs[number].astype("<u8").tobytes(), "little")
        for table, key in enumerate(self.plan.keys):
            yield (
                table,
                (scope, *(of_print >> first & (1 << (end - first)) - 1 for first, end in key)),
            )
        for table, (first, end) in enumerate(self.plan.sketch_bounds, len(self.plan.keys)):
            yield table, (scope, sketch[first:end])


class Crowds:
    """The crowd of each of n texts: `members` (n, CROWD), their numbers, -1 behind the last; `kept`
    (n,) by the plan.

    `_seen` (n, values): how many of the crowd have a value of the text.
    """

    def __init__(self, texts: ComparedTexts) -> None:
        count = len(texts.sketches)
        self._texts = texts
        self.kept = np.ones(count, np.bool_)
        self.members = np.full((count, CROWD), -1, np.int64)
        self._seen = np.zeros((count, SKETCH_VALUES + JUDGING_VALUES), np.uint8)
        of_key: dict[tuple[int, object], list[int]] = {}
        for number in range(count):
            keys = list(texts.keys(number))
            sharing = (texts.plan.among(of_key[key]) for key in keys if key in of_key)
            candidates = np.array(sorted({one for places in sharing for one in places}), np.int64)
            if len(candidates):
                self._judge(number, candidates)
            if self.kept[number]:
                for key in keys:
                    of_key.setdefault(key, []).append(number)

    def _judge(self, number: int, candidates: Numbers) -> None:
        sketches, plan = self._texts.sketches, self._texts.plan
        crowd = candidates[:CROWD]
        self.members[number, : len(crowd)] = crowd
        self._seen[number] = equal_values(sketches[crowd], sketches[number]).sum(axis=0)
        itself = np.full(len(candidates), number)
        near = self._texts.pass_by(itself, candidates) & (
            per_cents(sketches[candidates], sketches[number]) >= plan.similarity
        )
        _, shares = self.shares(itself[near], candidates[near])
        self.kept[number] = not (shares >= plan.crowd).any()

    def shares(self, ones: Numbers, others: Numbers) -> tuple[Numbers, Numbers]:
        """Return of each pair how many others are the first one's crowd, and what it shares that
        these do not, in per cent.
        """
        members = self.members[ones]
        is_member = (members == others[:, None]).any(axis=1)
        crowd = (members >= 0).sum(axis=1) - is_member
        equal = equal_values(self._texts.sketches[ones], self._texts.sketches[others])
        seen = self._seen[ones].astype(np.int64) - (equal & is_member[:, None])
        return crowd, np.where(crowd > 0, own_shares(equal, seen, crowd), ALONE)
