"""What a few runs of records say of all of them, and how far that may be wrong.

A span of offsets is cut into equal stretches, and a run of records is read at a random place in each. A figure of the span is
what the runs hold, each times its stretch. How far it may be wrong is told by how much neighbouring runs differ: so a day that
begins with small pages and ends with large ones gets a wide range where it changes, and a narrow one where it does not.

Invariants: a span that was read whole is certain; a figure is never said to be less than what was seen.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Span = tuple[int, int]
Place = tuple[int, Span]
RUN_RECORDS = 10
_WHOLE_RECORDS = 200
_RUNS_MIN = 8
_RUNS_MAX = 2_000
_DEVIATIONS = 3.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, and between what it lies; `low` equals `high` where it is certain."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs read of one span: of each its stretch in offsets, its own length, and the sums of the figures in it."""

    stretches: Sequence[int]
    lengths: Sequence[int]
    sums: Sequence[Mapping[str, float]]

    @property
    def is_whole(self) -> bool:
        """Whether every record of the span was read."""
        return list(self.stretches) == list(self.lengths)


def places(
    spans: Mapping[tuple[str, int], Span], chance: random.Random, most: int = _RUNS_MAX
) -> dict[tuple[str, int], list[Place]]:
    """Return of each span the runs to read: (stretch in offsets, (from, to)), in order. Long spans get more of the `most`."""
    whole = sum(max(0, end - begin) for begin, end in spans.values()) or 1
    found = {}
    for key, (begin, end) in spans.items():
        size = end - begin
        if size <= _WHOLE_RECORDS:
            found[key] = [(size, (begin, end))] if size > 0 else []
            continue
        count = min(size // RUN_RECORDS, max(_RUNS_MIN, most * size // whole))
        edges = [begin + size * place // count for place in range(count + 1)]
        found[key] = []
        for first, last in itertools.pairwise(edges):
            at = chance.randint(first, max(first, last - RUN_RECORDS))
            found[key].append((last - first, (at, min(at + RUN_RECORDS, last))))
    return found


def total(parts: Iterable[Runs], weights: Mapping[str, float]) -> Estimate:
    """Return the estimate of a sum of figures, each times its weight, over spans."""
    value = variance = seen = 0.0
    for runs in parts:
        own = [sum(weight * sums.get(name, 0.0) for name, weight in weights.items()) for sums in runs.sums]
        seen += sum(own)
        densities = [amount / length for amount, length in zip(own, runs.lengths, strict=True)]
        value += sum(density * stretch for density, stretch in zip(densities, runs.stretches, strict=True))
        if not runs.is_whole:
            variance += _variance(densities, sum(runs.stretches), sum(runs.lengths))
    error = _DEVIATIONS * math.sqrt(variance)
    least = seen if all(weight >= 0 for weight in weights.values()) else -math.inf
    return Estimate(value, max(value - error, least) if error else value, value + error)


def share(parts: Sequence[Runs], of: str, whole: Sequence[str]) -> Estimate | None:
    """Return the estimate of which share of the figures `whole` the figure `of` is; None if there is nothing."""
    everything = total(parts, dict.fromkeys(whole, 1.0)).value
    if not everything:
        return None
    value = total(parts, {of: 1.0}).value / everything
    # The share is wrong by as much as its own remainder is: what `of` has beyond that share of the whole.
    remainder = total(parts, {name: (1.0 if name == of else 0.0) - value for name in whole})
    error = max(0.0, remainder.high - remainder.value) / everything
    return Estimate(value, max(0.0, value - error), min(1.0, value + error))


def _variance(densities: Sequence[float], size: int, read: int) -> float:
    """Return the variance of the span's figure, from how neighbouring runs differ."""
    count = len(densities)
    if count < 2:
        return 0.0
    steps = sum((one - other) ** 2 for one, other in itertools.pairwise(densities))
    return size**2 * (1 - read / size) * steps / (2 * count * (count - 1))
