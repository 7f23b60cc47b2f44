"""All hosts: records in, changed rows and signals out. Pure.

Invariants: a host's row, its signals and its events change together in `changes`; a row is what a
record said, counted once; there are at most `hosts_max` hosts, of which those not heard of for
longest are forgotten first; a host that was forgotten leaves a null value on both topics.
"""

from __future__ import annotations

import datetime as dt
import heapq
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from stream_dedup.ground.errors import FormatError, OtherFormatError
from stream_dedup.insights.counts import NOTHING, ReasonCounts
from stream_dedup.insights.record import HostCounts, InsightsRecord
from stream_dedup.insights.row import (
    OTHER,
    SLICES,
    Event,
    HostRow,
    Stamp,
    decode,
    encode,
    hosts_of,
    look,
)

EVENTS_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class Signals:
    """What the crawler's frontier is told of one host; times in milliseconds."""

    host: str
    counts: ReasonCounts
    last_change_ms: int | None
    window_seconds: int
    updated_ms: int
    events: tuple[Event, ...] = ()

    @property
    def duplicate_ratio(self) -> float:
        """Share of documents that were duplicates, 0 to 1."""
        return (
            round(self.counts.duplicates / self.counts.documents, 4)
            if self.counts.documents
            else 0.0
        )

    @property
    def unchanged_ratio(self) -> float:
        """Share of documents that were the same id with the text it had the time before, 0 to 1."""
        return (
            round(self.counts.unchanged / self.counts.documents, 4)
            if self.counts.documents
            else 0.0
        )

    def as_json(self) -> dict[str, object]:
        """Return them as topics/schemas/host-signals.schema.json says."""
        return {
            "host": self.host,
            "documents": self.counts.documents,
            "exact": self.counts.exact,
            "near": self.counts.near,
            "unchanged": self.counts.unchanged,
            "returned": self.counts.returned,
            "revised": self.counts.revised,
            "bytes": self.counts.bytes,
            "duplicate_ratio": self.duplicate_ratio,
            "unchanged_ratio": self.unchanged_ratio,
            "bytes_wasted": self.counts.bytes_wasted,
            "last_change": None if self.last_change_ms is None else rfc3339(self.last_change_ms),
            "window_seconds": self.window_seconds,
            "updated": rfc3339(self.updated_ms),
            "events": [one.as_json(rfc3339(one.since_ms)) for one in self.events],
        }


class SignalChange(NamedTuple):
    """What to write of one host: its row for the table, its signals for the topic; None: forget
    it.
    """

    host: str
    row: bytes | None
    signals: bytes | None


class BegunEvent(NamedTuple):
    """An event that has just begun at a host."""

    host: str
    event: Event


@dataclass(frozen=True, slots=True)
class View:
    """What the console shows: the hosts that waste most, what goes on, and sums of the windows of
    all hosts.
    """

    hosts: tuple[Signals, ...] = ()
    recent: tuple[BegunEvent, ...] = ()
    known: int = 0
    total: ReasonCounts = NOTHING
    other: ReasonCounts = NOTHING


class HostLedger:
    """The state of the role. `window_seconds` is a multiple of `SLICES`."""

    def __init__(self, window_seconds: int, keep_seconds: int, hosts_max: int) -> None:
        self._window_seconds = window_seconds
        self._slice_ms = window_seconds * 1000 // SLICES
        self._keep_ms = keep_seconds * 1000
        self._hosts_max = hosts_max
        self._rows: dict[str, HostRow] = {}  # in the order in which they were last heard of
        self._signals: dict[str, Signals] = {}
        self._changed: dict[str, None] = {}
        self._recent: deque[BegunEvent] = deque(maxlen=EVENTS_SHOWN)
        self._latest_ms = 0

    @property
    def hosts(self) -> int:
        """How many hosts are known."""
        return hosts_of(self._rows)

    def load(self, rows: Iterable[tuple[bytes, bytes]]) -> int:
        """Take over the rows of the table instead of what was known; return how many could not be
        read.

        Raises:
            OtherFormatError: a row is of a newer version.
        """
        self._rows.clear()
        self._signals.clear()
        self._changed.clear()
        unreadable = 0
        found = []
        for key, raw in rows:
            try:
                found.append((key.decode("utf-8", "replace"), decode(raw, self._slice_ms)))
            except FormatError as error:
                if isinstance(error, OtherFormatError):
                    raise
                unreadable += 1
        for host, row in sorted(found, key=lambda item: item[1].stamp or Stamp(0, 0)):
            self._rows[host] = row
            self._latest_ms = max(self._latest_ms, row.stamp.time_ms if row.stamp else 0)
            self._signals[host] = self._signal(host, row, self._latest_ms, tuple(look(row)[0]))
        return unreadable

    def apply(self, record: InsightsRecord, stamp: Stamp) -> bool:
        """Count a record; return False if all of it was counted before."""
        self._latest_ms = max(self._latest_ms, stamp.time_ms)
        counted = False
        for host, one in (*record.hosts.items(), (OTHER, HostCounts(record.other))):
            if host == OTHER and not one.counts.documents:
                continue
            row = self._rows.pop(host, None) or HostRow(self._slice_ms)
            self._rows[host] = row
            if row.add_counts(one, stamp):
                counted = True
                self._changed[host] = None
        return counted

    def changes(self) -> tuple[list[SignalChange], list[BegunEvent]]:
        """Return what to write since the last time, and what has begun at hosts."""
        written: list[SignalChange] = []
        begun: list[BegunEvent] = []
        for host in self._changed:
            row = self._rows[host]
            going_on, new = ([], []) if host == OTHER else look(row)
            begun += [BegunEvent(host, one) for one in new]
            signals = self._signals[host] = self._signal(
                host, row, self._latest_ms, tuple(going_on)
            )
            body = (
                None
                if host == OTHER
                else json.dumps(signals.as_json(), ensure_ascii=False).encode("utf-8", "replace")
            )
            written.append(SignalChange(host, encode(row), body))
        self._changed.clear()
        self._recent.extend(begun)
        return written + self._forget(), begun

    def view(self, most: int) -> View:
        """Return what to show: at most that many hosts."""
        hosts = [one for one in self._signals.values() if one.host != OTHER]
        top = heapq.nlargest(
            most, hosts, key=lambda one: (one.counts.bytes_wasted, one.counts.documents)
        )
        total = (
            ReasonCounts(*map(sum, zip(*(one.counts for one in hosts), strict=True)))
            if hosts
            else ReasonCounts()
        )
        other = self._signals.get(OTHER)
        return View(
            tuple(top),
            tuple(reversed(self._recent)),
            self.hosts,
            total,
            other.counts if other else ReasonCounts(),
        )

    def _forget(self) -> list[SignalChange]:
        gone: list[str] = []
        for host, row in self._rows.items():
            is_old = row.stamp is not None and row.stamp.time_ms < self._latest_ms - self._keep_ms
            if not is_old and hosts_of(self._rows) - len(gone) <= self._hosts_max:
                break  # all that follow were heard of later
            if host != OTHER:
                gone.append(host)
        for host in gone:
            del self._rows[host]
            self._signals.pop(host, None)
        return [SignalChange(host, None, None) for host in gone]

    def _signal(self, host: str, row: HostRow, now_ms: int, going_on: tuple[Event, ...]) -> Signals:
        return Signals(
            host, row.total(), row.last_change_ms, self._window_seconds, now_ms, going_on
        )


def rfc3339(time_ms: int) -> str:
    """Return a time as RFC 3339 in UTC, to the second."""
    seconds = min(max(time_ms, 0) // 1000, 253_402_300_799)  # the calendar ends with the year 9999
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
