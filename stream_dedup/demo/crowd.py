"""Which documents were kept because of their crowd: those that the plan would have dropped without
that rule.

It is counted a second time, by the plan as a plain scan over the texts and the order of the log; no
index is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stream_dedup.fingerprinting import Fingerprinter, Recipe, number_of
from stream_dedup.ground.plan import Plan
from stream_dedup.ground.sketch import similarity


@dataclass(frozen=True, slots=True)
class KeptByCrowd:
    """A kept document and the one that is most like it, by their places; what `others` do not
    share, they share in part.

    `similarity` and `share`, of what the others do not share, are from 0 to 1.
    """

    place: int
    other: int
    similarity: float
    others: int
    share: float


def kept_by_crowd(
    texts: Sequence[str],
    recipe: Recipe,
    plan: Plan,
    is_asked: Callable[[int], bool] = lambda _: True,
) -> list[KeptByCrowd]:
    """Return which of the kept texts, in log order, the crowd kept; `is_asked`: of a place, whether
    it is looked at.
    """
    prints = Fingerprinter(recipe).fingerprint(texts)
    seen = [
        (number_of(prints.prints[row]), int(prints.features[row]), prints.sketches[row].tobytes())
        for row in range(len(texts))
    ]
    found = []
    for place in filter(is_asked, range(len(texts))):
        alike = list(plan.alike_in(seen[place], seen[:place]))
        if alike and all(share < plan.crowd for _, _, share in alike):
            nearest = max(
                (similarity(seen[place][2], seen[other][2]), -other, others, share)
                for other, others, share in alike
            )
            found.append(KeptByCrowd(place, -nearest[1], nearest[0], nearest[2], nearest[3] / 100))
    return found
