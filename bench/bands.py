"""Count documents and drops by the exact Jaccard similarity of a document to the nearest document
that was kept before it.

The number of drops alone says little: a drop below 0.5 is false, a drop from 0.65 is intended by
the default plan, and between them a drop and a kept document are both acceptable. So each document
of a stream is counted in the band of its nearest kept document.

Invariants: a document is counted once, in one band; which document is nearest depends on the
verdicts before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

EDGES: Final = (0.5, 0.6, 0.65, 0.8)
BANDS: Final = ("below .5", ".5 to .6", ".6 to .65", ".65 to .8", "from .8")
FALSE: Final = 0  # the band whose drops are false


def band_index(jaccard: float) -> int:
    """Return the place in `BANDS` of a Jaccard."""
    return bisect_right(EDGES, jaccard)


@dataclass(frozen=True, slots=True)
class BandCounts:
    """The number of documents of each band, and how many of them were dropped. Adding two objects
    adds them band by band.
    """

    documents: tuple[int, ...] = (0,) * len(BANDS)
    dropped: tuple[int, ...] = (0,) * len(BANDS)

    def __add__(self, other: BandCounts) -> BandCounts:
        return BandCounts(
            tuple(a + b for a, b in zip(self.documents, other.documents, strict=True)),
            tuple(a + b for a, b in zip(self.dropped, other.dropped, strict=True)),
        )

    def as_json(self) -> dict[str, dict[str, int]]:
        """Return documents and drops of each band by its name."""
        bands_by_name = zip(BANDS, self.documents, self.dropped, strict=True)
        return {
            name: {"documents": documents, "dropped": dropped}
            for name, documents, dropped in bands_by_name
        }


def count_bands(nearest: Sequence[float], dropped: Sequence[bool]) -> BandCounts:
    """Return the counts of documents, each with the Jaccard of its nearest kept one and whether it
    was dropped.
    """
    documents, drops = [0] * len(BANDS), [0] * len(BANDS)
    for jaccard, is_dropped in zip(nearest, dropped, strict=True):
        band = band_index(jaccard)
        documents[band] += 1
        drops[band] += is_dropped
    return BandCounts(tuple(documents), tuple(drops))


def nearest_kept(
    alike: Mapping[int, Sequence[tuple[float, int]]],
    order: Sequence[int],
    dropped: Mapping[int, bool],
) -> list[float]:
    """Return of each document, in the stream's order, its Jaccard with the nearest one kept before
    it; 0 if none is listed.

    `alike`: of each document its listed neighbours as (Jaccard, document); `dropped`: of each
    document whether it was.
    """
    kept: set[int] = set()
    found = []
    for place in order:
        found.append(
            max((jaccard for jaccard, other in alike.get(place, ()) if other in kept), default=0.0)
        )
        if not dropped[place]:
            kept.add(place)
    return found
