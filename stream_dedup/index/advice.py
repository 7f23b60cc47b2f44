"""Which plans are sensible for so many documents and such a distance, what each finds and costs, and which one to take.

The plans looked at: a plain scan, 64 blocks of one bit, keys of one to three out of 2 to 16 blocks with a radius of 0 to 3,
over the width given, and `bands`. Sensible are those that no other one beats: none finds as much at the threshold in less time
with less memory. Of these, the fastest is picked that finds the wanted share at every distance up to the threshold (of plans
with sketches: of pairs at every similarity from 0.8 on) and fits the memory; the plans with names are always shown beside.

Invariants: recall of prints is exact (`index.arithmetic`); times and bytes are predictions from constants that are returned
with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.ground.plan import ADDRESS_BITS_MAX, PLANS, TABLES_MAX, Plan
from stream_dedup.index import arithmetic
from stream_dedup.index.calibration import Constants, least_memory
from stream_dedup.index.measured import MEASURED

_BLOCKS: Final = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
_PROBES_MAX: Final = 5000
_BUCKETS_MAX: Final = 1 << 25
_RECALL_MIN: Final = 0.5
_SHOWN: Final = 8
SIMILARITIES: Final = (0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
_ALIKE_FROM: Final = 0.8


@dataclass(frozen=True, slots=True)
class Figures:
    """One plan: `recalls` (threshold asked for + 1,) by distance, `alike` by `SIMILARITIES`; per look-up and per document."""

    plan: Plan
    guaranteed: int
    recalls: tuple[float, ...]
    alike: tuple[float, ...]
    candidates: float
    chance_hits: float
    memory_bytes: float
    least_memory: int | None
    disk_bytes: float
    documents_per_second: float
    documents: int

    @property
    def recall(self) -> float:
        """The least share that it finds of what it is for."""
        if self.plan.needs_sketch:
            return min(self.alike[SIMILARITIES.index(_ALIKE_FROM) :])
        return min(self.recalls)

    def as_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return {
            "plan": self.plan.id,
            "name": self.plan.name,
            "distance_guaranteed": self.guaranteed,
            "recall": [round(share, 6) for share in self.recalls],
            "recall_by_similarity": {
                str(similarity): round(share, 6) for similarity, share in zip(SIMILARITIES, self.alike, strict=True)
            },
            "tables": self.plan.tables,
            "probes": self.plan.probes,
            "candidates": self.candidates,
            "chance_hits_per_million": self.chance_hits * 1e6,
            "memory_bytes_per_document": self.memory_bytes / self.documents,
            "memory_bytes": self.memory_bytes,
            "least_index_memory": self.least_memory,
            "disk_bytes_per_document": self.disk_bytes,
            "documents_per_second": self.documents_per_second,
        }


@dataclass(frozen=True, slots=True)
class Advice:
    """The plans looked at, the one to take (None if none will do) and why."""

    figures: tuple[Figures, ...]
    picked: Figures | None
    why: str
    constants: Constants

    def as_json(self) -> dict[str, Any]:
        """Return everything as one JSON object."""
        return {
            "plans": [one.as_json() for one in self.figures],
            "picked": None if self.picked is None else self.picked.plan.id,
            "why": self.why,
            "constants": {
                **self.constants.as_json(),
                "disk_bytes": MEASURED.disk_bytes,
                "surrounding_us": MEASURED.surrounding_us,
            },
        }


def advise(
    documents: int, threshold: int, width: int, constants: Constants, *, memory_bytes: int | None = None, recall: float = 0.99
) -> Advice:
    """Return the sensible plans for an index of `documents` representatives, and which one to take.

    Raises:
        ConfigurationError: there can be no plan of such numbers.
    """
    scan = Plan(width, 0, 0, threshold)
    if not 0.0 <= recall <= 1.0:
        raise ConfigurationError(f"The share to find is from 0 to 1, not {recall}.")
    looked_at = [figures_of(plan, documents, threshold, constants) for plan in _plans(width, threshold)]
    able = [one for one in looked_at if one.recalls[-1] >= _RECALL_MIN]
    best = [one for one in able if not any(_beats(other, one) for other in able)]
    fitting = [one for one in able if one.recall >= recall and (memory_bytes is None or one.memory_bytes <= memory_bytes)]
    picked = max(fitting, key=lambda one: (one.documents_per_second, -one.memory_bytes), default=None)
    best.sort(key=lambda one: -one.documents_per_second)
    shown = {one.plan: one for one in best[:_SHOWN]}
    beside = [scan, *([Plan(64, 64, 0, min(threshold, 64))] if width >= 64 else [])]
    for plan in (*beside, *(plan for plan in PLANS.values() if plan.width <= width), *([picked.plan] if picked else [])):
        shown.setdefault(plan, figures_of(plan, documents, threshold, constants))
    figures = sorted(shown.values(), key=lambda one: -one.documents_per_second)
    return Advice(tuple(figures), picked, _why(picked, able, recall, memory_bytes, threshold), constants)


def figures_of(plan: Plan, documents: int, threshold: int, constants: Constants) -> Figures:
    """Return what a plan finds up to a threshold and what it costs beside so many documents."""
    return Figures(
        plan=plan,
        guaranteed=arithmetic.distance_guaranteed(plan),
        recalls=tuple(map(float, arithmetic.recalls(plan, threshold))),
        alike=tuple(arithmetic.recall_alike(plan, similarity) for similarity in SIMILARITIES),
        candidates=float(arithmetic.candidates_of_texts(plan, documents)),
        chance_hits=float(arithmetic.chance(plan) * documents),
        memory_bytes=constants.memory_bytes(plan, documents),
        least_memory=least_memory(plan, documents),
        disk_bytes=MEASURED.disk_bytes,
        documents_per_second=1e6 / constants.microseconds(plan, documents),
        documents=documents,
    )


def _plans(width: int, threshold: int) -> Iterator[Plan]:
    yield Plan(width, 0, 0, threshold)
    if PLANS["bands"].width <= width and threshold <= PLANS["bands"].threshold:
        yield PLANS["bands"]
    for blocks, key_blocks, radius in itertools.product(_BLOCKS, (1, 2, 3), (0, 1, 2, 3)):
        if key_blocks >= blocks or blocks > width:
            continue
        try:
            plan = Plan(width, blocks, radius, threshold, key_blocks=key_blocks)
        except ConfigurationError:  # more tables than a plan may have
            continue
        buckets = sum(1 << min(bits, ADDRESS_BITS_MAX) for bits in plan.key_bits)
        if plan.probes <= _PROBES_MAX and plan.tables <= TABLES_MAX and buckets <= _BUCKETS_MAX:
            yield plan


def _beats(one: Figures, other: Figures) -> bool:
    """Return whether one plan is as good as another in everything and better in something."""
    mine = (one.recalls[-1], one.documents_per_second, -one.memory_bytes)
    theirs = (other.recalls[-1], other.documents_per_second, -other.memory_bytes)
    return mine != theirs and all(here >= there for here, there in zip(mine, theirs, strict=True))


def _why(picked: Figures | None, able: list[Figures], recall: float, memory_bytes: int | None, threshold: int) -> str:
    room = "" if memory_bytes is None else f" in {memory_bytes / 1e9:.3g} GB of memory"
    wanted = f"{recall:.4g} of the pairs at every distance up to {threshold}"
    if picked is None:
        complete = [one for one in able if one.recall >= recall]
        if complete:
            least = min(complete, key=lambda one: one.memory_bytes)
            return (
                f"No plan finds {wanted}{room}: {least.plan.name} needs least, {least.memory_bytes / 1e9:.3g} GB. Give it more "
                "memory, ask for less, or keep fewer documents (a window)."
            )
        return f"No plan finds {wanted}; ask for less with --recall."
    if picked.plan.needs_sketch:
        return (
            f"Take {picked.plan.name}: of the plans that find {recall:.4g} of the pairs from {_ALIKE_FROM:.0%} alike on, or at "
            f"every distance up to {threshold}{room}, it is the fastest, about {picked.documents_per_second:,.0f} documents/s; "
            f"it finds at least {picked.recall:.4f} of those."
        )
    sure = f"every pair within {picked.guaranteed} bits" if picked.guaranteed < threshold else "every pair"
    return (
        f"Take {picked.plan.name}: of the plans that find {wanted}{room} it is the fastest, about "
        f"{picked.documents_per_second:,.0f} documents/s; it finds {sure} and {picked.recalls[-1]:.4f} of those at {threshold}."
    )
