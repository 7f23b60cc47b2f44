"""What a worker counts between two records. Pure: a clock's time comes in as a number.

Invariants: every document that was added leaves in exactly one record, under its host or as
`other`; a record names at most `HOSTS_MAX` hosts, half of them those with the most documents and
half those that have waited longest, the rest waits for the next; at most `WAITING_MAX` hosts wait,
and documents of further ones are `other`.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from typing import Final

from stream_dedup.ground.document import Position, Representative
from stream_dedup.insights.counts import IS_CHANGE, PLACES, ReasonCounts, bit_of
from stream_dedup.insights.record import (
    HOSTS_MAX,
    ID_CHARACTERS_MAX,
    PAGES_MAX,
    HostCounts,
    InsightsRecord,
    ReportedPage,
)

WAITING_MAX: Final = 20_000
_PAGES_WAITING_MAX: Final = 16
_DOCUMENTS, _BYTES, _WASTED = 0, 5, 6


class _Host:
    __slots__ = ("changed_ms", "numbers", "pages")

    def __init__(self) -> None:
        self.numbers = [0] * len(ReasonCounts._fields)
        self.changed_ms: int | None = None
        self.pages: dict[Position, _Page] = {}


class _Page:
    __slots__ = ("bits", "of")

    def __init__(self, of: bytes) -> None:
        self.of = of
        self.bits = 0


class HostTally:
    """Counts for one worker; `worker` is its name."""

    def __init__(self, worker: str) -> None:
        self._worker = worker[:ID_CHARACTERS_MAX]
        self._hosts: dict[str, _Host] = {}
        self._other = _Host()

    def add_alike(self, host: str, reason: int, documents: int, size: int, now_ms: int) -> None:
        """Count documents that left for one reason, by its number; `size` is that of all, `host`
        empty if they have none.
        """
        one = self._hosts.get(host)
        if one is None:
            if host and len(self._hosts) < WAITING_MAX:
                one = self._hosts[host] = _Host()
            else:
                one = self._other
        numbers = one.numbers
        numbers[_DOCUMENTS] += documents
        numbers[_BYTES] += size
        place = PLACES[reason]
        if place:
            numbers[place] += documents
            numbers[_WASTED] += size
        if IS_CHANGE[reason]:
            one.changed_ms = now_ms

    def add_named(self, host: str, identifier: bytes, reason: int, of: Representative) -> None:
        """Note what a document that was counted is a duplicate of, if that is another one of its
        host's.
        """
        one = self._hosts.get(host)
        if one is not None and 1 <= PLACES[reason] <= 2:
            self._fell_on(one, of, identifier)

    def take_record(self) -> InsightsRecord | None:
        """Return what to send now, and count on from there; None if nothing was counted."""
        if not self._hosts and not self._other.numbers[_DOCUMENTS]:
            return None
        chosen: dict[str, None] = dict.fromkeys(self._hosts)
        if len(chosen) > HOSTS_MAX:
            most = heapq.nlargest(
                HOSTS_MAX // 2, chosen, key=lambda host: self._hosts[host].numbers[_DOCUMENTS]
            )
            chosen = dict.fromkeys(most)
            for host in self._hosts:  # in the order in which they came
                if len(chosen) >= HOSTS_MAX:
                    break
                chosen.setdefault(host)
        taken = {host: self._hosts.pop(host) for host in chosen}
        hosts = {
            host: _counted(one, pages)
            for (host, one), pages in zip(taken.items(), _widest(taken.values()), strict=True)
        }
        other, self._other = self._other, _Host()
        return InsightsRecord(self._worker, hosts, ReasonCounts(*other.numbers))

    def _fell_on(self, one: _Host, of: Representative, identifier: bytes) -> None:
        page = one.pages.get(of.position)
        if page is None:
            if len(one.pages) >= _PAGES_WAITING_MAX:
                return
            page = one.pages[of.position] = _Page(of.id)
        page.bits |= bit_of(identifier)


def _widest(hosts: Collection[_Host]) -> list[dict[Position, _Page]]:
    """Return, host by host, the kept documents that most ids fell on; `PAGES_MAX` of all hosts
    together.
    """
    every = [
        (number, at, page) for number, one in enumerate(hosts) for at, page in one.pages.items()
    ]
    found: list[dict[Position, _Page]] = [{} for _ in hosts]
    for number, at, page in heapq.nlargest(
        PAGES_MAX, every, key=lambda item: item[2].bits.bit_count()
    ):
        found[number][at] = page
    return found


def _counted(one: _Host, pages: Mapping[Position, _Page]) -> HostCounts:
    named = {
        str(at): ReportedPage(page.of.decode("utf-8", "replace")[:ID_CHARACTERS_MAX], page.bits)
        for at, page in pages.items()
    }
    return HostCounts(ReasonCounts(*one.numbers), one.changed_ms, named)
