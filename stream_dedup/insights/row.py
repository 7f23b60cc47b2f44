"""What is remembered of one host: counts in slices of the window, the kept documents that its ids
fall on, what was reported.

Window: `SLICES` slices of equal length. A record belongs to the slice of its own time, as the
broker stamped it; the window of a host ends with the host's latest record, so that what is known
does not fade while the host is not crawled.

Invariants: no clock but the records' timestamps; a record is counted once however often it comes,
because a row knows the latest that it holds; a row's size is bounded (`SLICES` slices, `PAGES_MAX`
documents). Kept documents are seen in two halves of the window, so what is said of them covers
between half of it and the whole.

What is worth saying of a host is an event:

    one-page   many different ids of the host fell on one kept document: a template, a login wall, a soft 404
    vanishing  nearly all of its documents were dropped in favour of other ids

It begins once and goes on until its figure is well below what began it, so that a host at the limit
does not begin it again and again; the same page crawled again (`unchanged`, `returned`, `revised`)
makes neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from stream_dedup.ground.errors import UPGRADE, FormatError, OtherFormatError
from stream_dedup.insights.counts import ReasonCounts, distinct
from stream_dedup.insights.record import HostCounts

SLICES: Final = 24
PAGES_MAX: Final = 8
_FORMAT: Final = 1


class Stamp(NamedTuple):
    """Where a record of `insights` lies: its timestamp in milliseconds, and its offset."""

    time_ms: int
    offset: int


class Target(NamedTuple):
    """A kept document that ids of a host fall on; bits of those in this half of the window, and in
    the one before.
    """

    of: str
    half: int
    now: int
    before: int

    def ids(self, half: int) -> int:
        """Return about how many different ids fell on it in this half of the window and the one
        before.
        """
        if half == self.half:
            return distinct(self.now | self.before)
        return distinct(self.now) if half == self.half + 1 else 0

    def plus(self, bits: int, half: int) -> Target:
        """Return it with more ids."""
        if half == self.half:
            return self._replace(now=self.now | bits)
        return self._replace(half=half, now=bits, before=self.now if half == self.half + 1 else 0)


@dataclass(slots=True)
class HostRow:
    """One host. `reported`: what is being said of it now, and since when, in milliseconds."""

    slice_ms: int
    stamp: Stamp | None = None
    slices: dict[int, ReasonCounts] = field(default_factory=dict)
    last_change_ms: int | None = None
    targets: dict[str, Target] = field(default_factory=dict)
    reported: dict[str, int] = field(default_factory=dict)

    def holds(self, stamp: Stamp) -> bool:
        """Whether a record was counted before. A topic that was created again begins with low
        offsets, but later.
        """
        return (
            self.stamp is not None
            and stamp.offset <= self.stamp.offset
            and stamp.time_ms <= self.stamp.time_ms
        )

    def add_counts(self, one: HostCounts, stamp: Stamp) -> bool:
        """Count what a record says of this host; return False if that was done before."""
        if self.holds(stamp):
            return False
        # A broker's clock may step back when the leader changes; a window never does.
        latest = stamp.time_ms if self.stamp is None else max(stamp.time_ms, self.stamp.time_ms)
        self.stamp = Stamp(latest, stamp.offset)
        number = latest // self.slice_ms
        self.slices[number] = self.slices.get(number, ReasonCounts()).plus(one.counts)
        for old in [at for at in self.slices if at <= number - SLICES]:
            del self.slices[old]
        if one.last_change_ms is not None:
            self.last_change_ms = max(self.last_change_ms or 0, min(one.last_change_ms, latest))
        half = self.half
        for at, page in one.pages.items():
            self.targets[at] = self.targets.get(at, Target(page.of, half, 0, 0)).plus(
                page.bits, half
            )
        if len(self.targets) > PAGES_MAX:
            kept = sorted(self.targets.items(), key=lambda item: -item[1].ids(half))[:PAGES_MAX]
            self.targets = dict(kept)
        return True

    @property
    def half(self) -> int:
        """The half of the window in which the latest record lies."""
        return 0 if self.stamp is None else self.stamp.time_ms // (self.slice_ms * SLICES // 2)

    def total(self) -> ReasonCounts:
        """Return the counts of the window."""
        return (
            ReasonCounts(*map(sum, zip(*self.slices.values(), strict=True)))
            if self.slices
            else ReasonCounts()
        )


def encode(row: HostRow) -> bytes:
    """Return the row as it is kept in the table and its changelog."""
    body = {
        "format": _FORMAT,
        "slice_ms": row.slice_ms,
        "stamp": row.stamp,
        "slices": {str(number): counts for number, counts in row.slices.items()},
        "last_change_ms": row.last_change_ms,
        "targets": {
            at: [one.of, one.half, f"{one.now:x}", f"{one.before:x}"]
            for at, one in row.targets.items()
        },
        "reported": row.reported,
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def decode(raw: bytes, slice_ms: int) -> HostRow:
    """Return the row that `encode` wrote; counts of a window of another length are left out.

    Raises:
        OtherFormatError: a newer version wrote it, and it must not be written over.
        FormatError: it is none.
    """
    try:
        body = json.loads(raw)
        if isinstance(body["format"], int) and body["format"] > _FORMAT:
            raise OtherFormatError(
                f"A row of the table of hosts is of format {body['format']}, and this program "
                f"reads up to {_FORMAT}: {UPGRADE}"
            )
        if body["format"] != _FORMAT:
            raise FormatError(
                f"A row of the table has format {body['format']!r:.20}, which this version does "
                "not know."
            )
        row = HostRow(
            slice_ms, Stamp(*map(int, body["stamp"])), last_change_ms=body["last_change_ms"]
        )
        if body["slice_ms"] == slice_ms:
            row.slices = {
                int(number): ReasonCounts(*map(int, counts))
                for number, counts in body["slices"].items()
            }
            row.targets = {str(at): _target(one) for at, one in body["targets"].items()}
            row.reported = {str(what): int(since) for what, since in body["reported"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"A row of the table cannot be read: {type(error).__name__}.") from error
    return row


def _target(one: Any) -> Target:
    of, half, now, before = one
    return Target(str(of), int(half), int(now, 16), int(before, 16))


def hosts_of(rows: Mapping[str, HostRow]) -> int:
    """Return how many hosts there are; what belongs to none has a row too."""
    return len(rows) - (OTHER in rows)


# The row of what belongs to no host; no host is called so.
OTHER: Final = "(other)"


Kind = Literal["one-page", "vanishing"]

ONE_PAGE_IDS: Final = 20
_ONE_PAGE_OVER: Final = 10
VANISHING_DOCUMENTS: Final = 50
VANISHING_SHARE: Final = 0.9
_VANISHING_OVER: Final = 0.8


@dataclass(frozen=True, slots=True)
class Event:
    """One thing said of a host. `ids`: how many fell on the document at `position`, whose id begins
    with `of`; or how many documents were dropped.
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
    """Return what goes on at a host now, and what of it has just begun; the row remembers that it
    was said.
    """
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
