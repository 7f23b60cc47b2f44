"""What is worth saying about a host. Pure.

    one-page   many different ids of the host fell on one kept document: a template, a login wall, a soft 404
    vanishing  nearly all of its documents were dropped in favour of other ids

Invariants: an event begins once and goes on until its figure is well below what began it, so that a host at the limit does
not begin it again and again; the same page crawled again (`unchanged`, `returned`, `revised`) makes neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from stream_dedup.insights.row import HostRow

Kind = Literal["one-page", "vanishing"]
KINDS: Final[tuple[Kind, ...]] = ("one-page", "vanishing")

ONE_PAGE_IDS: Final = 20
_ONE_PAGE_OVER: Final = 10
VANISHING_DOCUMENTS: Final = 50
VANISHING_SHARE: Final = 0.9
_VANISHING_OVER: Final = 0.8


@dataclass(frozen=True, slots=True)
class Event:
    """One thing said of a host. `ids`: how many fell on the document at `position`, whose id begins with `of`; or how many
    documents were dropped.
    """

    kind: Kind
    since_ms: int
    ids: int
    of: str = ""
    position: str = ""

    def as_json(self, since: str) -> dict[str, object]:
        """Return it as it stands in `host-signals`."""
        body: dict[str, object] = {"event": self.kind, "since": since, "documents": self.ids}
        return body | ({"of": self.of, "position": self.position} if self.position else {})


def look(row: HostRow) -> tuple[list[Event], list[Event]]:
    """Return what goes on at a host now, and what of it has just begun; the row remembers that it was said."""
    going_on: list[Event] = []
    half = row.half
    for at, one in row.targets.items():
        ids = one.ids(half)
        if ids >= (_ONE_PAGE_OVER if at in row.reported else ONE_PAGE_IDS):
            going_on.append(Event("one-page", _since(row, at), ids, one.of, at))
    total = row.total()
    share = _VANISHING_OVER if "vanishing" in row.reported else VANISHING_SHARE
    if total.documents >= VANISHING_DOCUMENTS and total.swallowed >= share * total.documents:
        going_on.append(Event("vanishing", _since(row, "vanishing"), total.swallowed))
    begun = [one for one in going_on if (one.position or one.kind) not in row.reported]
    row.reported = {one.position or one.kind: one.since_ms for one in going_on}
    return going_on, begun


def _since(row: HostRow, what: str) -> int:
    return row.reported.get(what, 0 if row.stamp is None else row.stamp.time_ms)
