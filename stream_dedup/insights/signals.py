"""The statistics and events of a host's documents in a window of time, without Kafka.

The window is a day in `SLICES` slices and ends with the host's latest document, so that
statistics do not expire while the host is not crawled. The ids that resemble one page are counted
by halves of the window.

    one-page   many ids of the host are duplicates of one kept document: a login wall, a soft 404
    template   many ids were kept only because of their site or title, and resemble one page of it
    vanishing  nearly all documents were dropped in favour of other ids

An event begins once, and ends when its count is well below the threshold at which it began. A page
that was fetched again (`SAME_ID`) is not a duplicate: it causes no event and no waste.

Invariants: a record is counted once even if it is read repeatedly, because a row stores the last
counted offset of each partition; time is that of the records, and never goes back; the size of a row
is bounded.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from stream_dedup.domain.document import DUPLICATES, OUTCOMES, SAME_ID, Reason
from stream_dedup.domain.errors import UPGRADE, FormatError, OtherFormatError

SLICES: Final = 24
SLICE_MS: Final = 3_600_000
PAGES_MAX: Final = 100
_ID_CHARACTERS_MAX: Final = 200
_FORMAT: Final = 1
_BITS: Final = 256
_DISTINCT_MAX: Final = 1420  # used when all bits are set
_BEGINS: Final = {"one-page": 20, "template": 50}
"""The number of ids at which an event begins; it ends below half of it."""
_SMALL_BYTES: Final = 200
"""A smaller record causes no event: captions and titles are often equal, but waste little."""
_VANISHING_DOCUMENTS: Final = 50
_VANISHING_BEGINS, _VANISHING_ENDS = 0.9, 0.8
_CHANGES: Final = frozenset(label for label, reason in OUTCOMES.items() if reason.is_change)
WASTED: Final = tuple(label for label in DUPLICATES if label not in SAME_ID)
"""The reasons of copies of another page, by their labels."""


def reading_group(group: str) -> str:
    """Return the consumer group of the role insights, of a filter whose workers have `group`."""
    return f"{group}-insights"


class Observed(NamedTuple):
    """A record of an output. `kind` is the event that it may cause with `page`, the id of another
    document at `position`; "" if the headers name none.
    """

    partition: str
    offset: int
    time_ms: int
    reason: str
    size: int
    id: bytes
    kind: str = ""
    page: str = ""
    position: str = ""


class RepeatedPage(NamedTuple):
    """A document that other ids of a host resemble. `now` and `before` are sets of ids in 256 bits,
    for half-window number `half` and for the one before it.
    """

    kind: str
    id: str
    half: int
    now: int
    before: int

    def shift_to_half(self, half: int) -> RepeatedPage:
        """Return the page shifted to another half of the window."""
        if half == self.half:
            return self
        return self._replace(half=half, now=0, before=self.now if half == self.half + 1 else 0)

    def ids(self, half: int) -> int:
        """Return the estimated number of distinct ids."""
        page = self.shift_to_half(half)
        return _distinct(page.now | page.before)


@dataclass(slots=True)
class HostRow:
    """The statistics of a host. `reported` are the current events with their start times."""

    latest_ms: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    slices: dict[int, Counter[str]] = field(default_factory=dict)
    last_change_ms: int | None = None
    pages: dict[str, RepeatedPage] = field(default_factory=dict)
    reported: dict[str, int] = field(default_factory=dict)

    def count(self, record: Observed) -> bool:
        """Count a record; return False if it was counted before."""
        is_known = record.offset <= self.offsets.get(record.partition, -1)
        if (
            is_known and record.time_ms <= self.latest_ms
        ):  # a recreated topic has low offsets, but later times
            return False
        self.offsets[record.partition] = record.offset
        self.latest_ms = max(self.latest_ms, record.time_ms)
        number = self.latest_ms // SLICE_MS
        figures = self.slices.setdefault(number, Counter())
        if record.reason != Reason.RELEASED.label:  # its first record was counted
            figures["documents"] += 1
            figures["bytes"] += record.size
        if record.reason in DUPLICATES:
            figures[record.reason] += 1
        if record.reason in WASTED:
            figures["bytes_wasted"] += record.size
            figures["small"] += record.size < _SMALL_BYTES
        if record.kind == "template":
            figures["siblings"] += 1
        for old in [earlier for earlier in self.slices if earlier <= number - SLICES]:
            del self.slices[old]
        if record.reason in _CHANGES:
            self.last_change_ms = self.latest_ms
        if record.kind and record.size >= _SMALL_BYTES:
            self._count_page(record)
        return True

    def _count_page(self, record: Observed) -> None:
        key, half = f"{record.kind} {record.position}", self._half
        page = self.pages.get(
            key, RepeatedPage(record.kind, record.page[:_ID_CHARACTERS_MAX], half, 0, 0)
        ).shift_to_half(half)
        self.pages[key] = page._replace(now=page.now | _bit_of(record.id))
        if len(self.pages) > PAGES_MAX:
            largest = sorted(self.pages.items(), key=lambda item: -item[1].ids(half))[:PAGES_MAX]
            self.pages = dict(largest)

    @property
    def _half(self) -> int:
        return self.latest_ms // (SLICE_MS * SLICES // 2)

    def signals(self, host: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the value of `host-signals` (topics/schemas/host-signals.schema.json), and its events
        that have just begun.
        """
        total: Counter[str] = sum(self.slices.values(), Counter())
        documents = total["documents"]
        duplicates = sum(total[name] for name in WASTED)
        counts = {"one-page": duplicates - total["small"], "template": total["siblings"]}
        events = list(self._events(documents, counts))
        begun = [event for event in events if _event_key(event) not in self.reported]
        since = {
            _event_key(event): self.reported.get(_event_key(event), self.latest_ms)
            for event in events
        }
        self.reported = since
        for event in events:
            event["since"] = rfc3339(since[_event_key(event)])
        value = {
            "host": host,
            "documents": documents,
            **{name: total[name] for name in (*DUPLICATES, "siblings", "bytes")},
            "duplicate_ratio": round(duplicates / documents, 4) if documents else 0.0,
            "unchanged_ratio": round(total["unchanged"] / documents, 4) if documents else 0.0,
            "bytes_wasted": total["bytes_wasted"],
            "last_change": None if self.last_change_ms is None else rfc3339(self.last_change_ms),
            "window_seconds": SLICE_MS * SLICES // 1000,
            "updated": rfc3339(self.latest_ms),
            "events": events,
        }
        return value, begun

    def _events(self, documents: int, counts: Mapping[str, int]) -> Iterator[dict[str, Any]]:
        for key, page in self.pages.items():
            # The number of ids is an estimate, which can be too high.
            ids, begins = min(page.ids(self._half), counts[page.kind]), _BEGINS[page.kind]
            if ids >= (begins // 2 if key in self.reported else begins):
                position = key.removeprefix(f"{page.kind} ")
                yield {"event": page.kind, "documents": ids, "of": page.id, "position": position}
        share = _VANISHING_ENDS if "vanishing" in self.reported else _VANISHING_BEGINS
        if documents >= _VANISHING_DOCUMENTS and counts["one-page"] >= share * documents:
            yield {"event": "vanishing", "documents": counts["one-page"]}

    def encode(self) -> bytes:
        """Encode the row for the table."""
        body = {
            "format": _FORMAT,
            "latest_ms": self.latest_ms,
            "offsets": self.offsets,
            "slices": self.slices,
            "last_change_ms": self.last_change_ms,
            "pages": {
                key: [*page[:3], f"{page.now:x}", f"{page.before:x}"]
                for key, page in self.pages.items()
            },
            "reported": self.reported,
        }
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "replace"
        )

    @classmethod
    def decode(cls, raw: bytes) -> HostRow:
        """Decode a row that `encode` wrote.

        Raises:
            OtherFormatError: a newer version wrote it; it must not be overwritten.
            FormatError: it is not a row.
        """
        try:
            body = json.loads(raw)
            if body["format"] != _FORMAT:
                raise OtherFormatError(
                    f"A row of the table of hosts has format {body['format']!r:.20}, but this "
                    f"version reads {_FORMAT}: {UPGRADE}"
                )
            row = cls(int(body["latest_ms"]), last_change_ms=body["last_change_ms"])
            row.offsets = {str(part): int(offset) for part, offset in body["offsets"].items()}
            row.slices = {
                int(slice_number): Counter(slice_counts)
                for slice_number, slice_counts in body["slices"].items()
            }
            row.pages = {key: _page(*page) for key, page in body["pages"].items()}
            row.reported = {str(what): int(since) for what, since in body["reported"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(
                f"A row of the table of hosts cannot be read: {type(error).__name__}."
            ) from error
        return row


def _page(kind: str, id_: str, half: int, now: str, before: str) -> RepeatedPage:
    return RepeatedPage(kind, id_, half, int(now, 16), int(before, 16))


def _event_key(event: dict[str, Any]) -> str:
    return f"{event['event']} {event['position']}" if "position" in event else event["event"]


def _bit_of(identifier: bytes) -> int:
    # A CRC alone would map consecutive ids to neighbouring bits; the product mixes it (Knuth, TAOCP
    # 3, 6.4).
    return 1 << (zlib.crc32(identifier) * 0x9E3779B1 >> 24 & 0xFF)


def _distinct(bits: int) -> int:
    """Return the estimated number of distinct ids that set these bits (Whang and others: Linear-Time
    Probabilistic Counting, TODS 15, 1990).
    """
    zeros = _BITS - bits.bit_count()
    return _DISTINCT_MAX if zeros == 0 else round(-_BITS * math.log(zeros / _BITS))


def rfc3339(time_ms: int) -> str:
    """Return a time as RFC 3339 in UTC, to the second."""
    seconds = min(max(time_ms, 0) // 1000, 253_402_300_799)  # the calendar ends with the year 9999
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class HostLedger:
    """The rows of all hosts, at most `hosts_max`: the least recently seen are dropped first."""

    def __init__(self, hosts_max: int) -> None:
        self._hosts_max = hosts_max
        self._rows: dict[str, HostRow] = {}  # in the order in which they were last seen
        self._changed: dict[str, None] = {}

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self._rows)

    def load(self, rows: Iterable[tuple[bytes, bytes]]) -> int:
        """Replace all rows by those of the table; return the number of unreadable ones.

        Raises:
            OtherFormatError: a newer version wrote a row.
        """
        rows_by_host, unreadable = {}, 0
        for key, raw in rows:
            try:
                rows_by_host[key.decode("utf-8", "replace")] = HostRow.decode(raw)
            except FormatError as error:
                if isinstance(error, OtherFormatError):
                    raise
                unreadable += 1
        self._rows = dict(sorted(rows_by_host.items(), key=lambda item: item[1].latest_ms))
        self._changed.clear()
        return unreadable

    def count(self, host: str, record: Observed) -> bool:
        """Count a record of a host; return False if it was counted before."""
        row = self._rows.pop(host, None) or HostRow()
        self._rows[host] = row
        if not row.count(record):
            return False
        self._changed[host] = None
        return True

    def changes(
        self,
    ) -> tuple[list[tuple[str, bytes | None, bytes | None]], list[tuple[str, dict[str, Any]]]]:
        """Return (host, row, value of `host-signals`) of the hosts changed since the last call, with
        None for dropped hosts; and (host, event) of the events that have begun.
        """
        written: list[tuple[str, bytes | None, bytes | None]] = []
        begun = []
        for host in self._changed:
            value, new = self._rows[host].signals(host)
            begun += [(host, event) for event in new]
            raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
            written.append((host, self._rows[host].encode(), raw))
        self._changed.clear()
        while self.hosts > self._hosts_max:
            host = next(iter(self._rows))
            del self._rows[host]
            written.append((host, None, None))
        return written, begun
