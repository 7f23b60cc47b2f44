"""Keep the latest decisions in memory, and counts of the decisions of the last seven days.

Invariants: at most `keep` decisions and the counts of `MINUTES` minutes are in memory; one thread may
add decisions while others read.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stream_dedup.console.values import (
    Decision,
    FigureColumn,
    HostFigures,
    PictureMark,
    SpanFigures,
    rank_of,
)
from stream_dedup.domain.document import OUTCOMES, SAME_ID, Reason, Verdict
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.hosts import searched_host

KEEP: Final = 5_000
MINUTES: Final = 7 * 24 * 60
SPANS: Final = {"15m": 15, "1h": 60, "6h": 360, "1d": 1_440, "7d": MINUTES}
"""The spans of time for which figures are shown, in minutes."""
_COLUMNS_MAX: Final = 60
BINS: Final = 20
_MARKS: Final = 50
_COPY: Final = "copy"
VERDICTS: Final = (*(str(verdict) for verdict in Verdict), _COPY)
FILTERS: Final = ("reason", "verdict", "host", "id", "header", "from", "to", "until")


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """A filter of decisions; an empty field accepts all. `header`: (name, part of the value).
    `verdict` can also be `copy`: copies of a page with another id.
    `until_ms`: only decisions whose record time is before this time.
    """

    reason: str = ""
    verdict: str = ""
    host: str = ""
    id: str = ""
    header: tuple[str, str] | None = None
    similarity_from: float | None = None
    similarity_to: float | None = None
    until_ms: int | None = None

    def matches(self, decision: Decision) -> bool:
        """Return whether a decision matches. If a range of similarity is given, a decision without a
        similarity does not match.
        """
        if self.similarity_from is not None or self.similarity_to is not None:
            low = 0.0 if self.similarity_from is None else self.similarity_from
            high = 1.0 if self.similarity_to is None else self.similarity_to
            if decision.similarity is None or not low <= decision.similarity <= high:
                return False
        if self.until_ms is not None and decision.time_ms >= self.until_ms:
            return False
        return (
            self.reason in ("", decision.reason, known_reason(decision.reason))
            and (
                decision.is_copy
                if self.verdict == _COPY
                else self.verdict in ("", decision.verdict)
            )
            and self.host in ("", decision.host)
            and self.id in decision.id
            and (
                self.header is None
                or any(
                    name == self.header[0] and self.header[1] in value
                    for name, value in decision.headers
                )
            )
        )


def known_reason(reason: str) -> str:
    """Return the reason, or `other` if this version does not know it."""
    return reason if reason in OUTCOMES else "other"


def filter_of(query: Mapping[str, str]) -> DecisionFilter:
    """Return the filter in the query of an address.

    Raises:
        InputError: a parameter has an invalid value.
    """
    values = {name: query.get(name, "").strip() for name in FILTERS}
    for name, choices in (("reason", (*OUTCOMES, "other")), ("verdict", VERDICTS)):
        if values[name] not in ("", *choices):
            raise InputError(
                f"{name} must be one of {', '.join(choices)}, not {values[name]!r:.40}."
            )
    long_filter = next((name for name, value in values.items() if len(value) > 500), None)
    if long_filter is not None:
        raise InputError(
            f"The value of {long_filter} is longer than 500 characters; use a part of it."
        )
    header = None
    if values["header"]:
        name, equals, value = values["header"].partition("=")
        if not name.strip() or not equals:
            raise InputError(
                f"header must be name=value, such as crawl=2026-11, not {values['header']!r:.40}."
            )
        header = name.strip(), value.strip()
    low, high = _parse_similarity("from", values["from"]), _parse_similarity("to", values["to"])
    if low is not None and high is not None and low > high:
        raise InputError(
            f"The lower similarity (from={low:g}) must not exceed the higher one (to={high:g})."
        )
    return DecisionFilter(
        reason=values["reason"],
        verdict=values["verdict"],
        host=searched_host(values["host"]),
        id=values["id"],
        header=header,
        similarity_from=low,
        similarity_to=high,
        until_ms=_parse_time("until", values["until"]),
    )


def _parse_time(name: str, text: str) -> int | None:
    if not text:
        return None
    try:
        time = dt.datetime.fromisoformat(text.replace(" ", "T"))
        if len(text) == len("2026-11-27"):  # a date includes the whole day
            time += dt.timedelta(days=1)
        return int((time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InputError(
            f"{name} must be a time in UTC such as 2026-11-27 14:05, not {text!r:.40}."
        ) from None


def _parse_similarity(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:  # also refuses nan
        raise InputError(
            f'"Similarity {name}" must be a number from 0 to 1, such as 0.8, not {text!r:.40}.'
        )
    return value


class Recent:
    """The latest decisions.

    `redact_decision`: returns a decision as it may be listed; None for a forgotten document; raises
    `StreamDedupError` while the forgotten ids are not known. Forgotten documents count in the
    figures.
    """

    def __init__(
        self,
        keep: int = KEEP,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        redact_decision: Callable[[Decision], Decision | None] = lambda decision: decision,
    ) -> None:
        self._redact_decision = redact_decision
        self._lock = threading.Lock()
        self._decisions: deque[Decision] = deque(maxlen=keep)
        self._minutes: dict[int, Counter[str]] = {}
        self._read_in_second: Counter[int] = Counter()
        self._now_ms = now_ms
        self._number = 0
        self._read_from_ms = 0
        self._last_read_ms = 0
        self._partial: set[int] = set()  # minutes of which only the newest records were read
        self._marks: deque[PictureMark] = deque(maxlen=_MARKS)

    def add(self, decisions: Iterable[Decision], whole_since_ms: int = 0) -> None:
        """Add decisions, the oldest first. `whole_since_ms`: some records with a time before this were
        not read; 0 if all were read. A record time in the future counts as now.
        """
        now = self._now_ms()
        whole_ms = min(whole_since_ms, now)
        with self._lock:
            is_first = not self._last_read_ms
            if whole_ms and is_first:
                self._read_from_ms = whole_ms
            elif whole_ms:
                unread_ms = min(self._last_read_ms, whole_ms)
                self._partial.update(range(unread_ms // 60_000, whole_ms // 60_000 + 1)[-MINUTES:])
                self._partial.add(now // 60_000)  # its documents per second are incomplete
            self._last_read_ms = now
            for decision in decisions:
                self._number += 1
                self._decisions.append(replace(decision, number=self._number))
                time_ms = min(decision.time_ms, now)
                self._minutes.setdefault(time_ms // 60_000, Counter())[
                    known_reason(decision.reason)
                ] += 1
                # Records stored before the start count at their record time, later ones now.
                self._read_in_second[(time_ms if is_first else now) // 1000] += 1
            for second in [read for read in self._read_in_second if read <= now // 1000 - 60]:
                del self._read_in_second[second]
            for minute in sorted(self._minutes)[:-MINUTES]:
                del self._minutes[minute]
            self._partial = {minute for minute in self._partial if minute > now // 60_000 - MINUTES}

    def add_mark(self, text: str) -> None:
        """Add an event that happens now."""
        self._marks.append(PictureMark(self._now_ms(), text))

    def find_decision(self, position: str) -> Decision | None:
        """Return the newest decision in memory by its position on an output, or by the position of
        its document in the source; None without one.
        """
        found = (
            decision
            for decision in self.newest_first()
            if position in (decision.output_position, decision.source_position)
        )
        return next(found, None)

    @property
    def time_ms(self) -> int:
        """The current time."""
        return self._now_ms()

    @property
    def is_empty(self) -> bool:
        """Whether no decision is in memory."""
        return not self._decisions

    def figures_of(self, span: str = "1h", marks: Iterable[PictureMark] = ()) -> SpanFigures:
        """Return the figures of a span that ends now, in at most 60 columns of whole minutes, with
        the events in it: those in `marks`, and those that `add_mark` added.

        Raises:
            InputError: `span` is not in `SPANS`.
        """
        if span not in SPANS:
            raise InputError(f"span must be one of {', '.join(SPANS)}, not {span!r:.40}.")
        now = self._now_ms()
        column_minutes = max(1, SPANS[span] // _COLUMNS_MAX)
        first_minute = now // 60_000 - SPANS[span] + 1
        with self._lock:
            counts = [Counter[str]() for _ in range(SPANS[span] // column_minutes)]
            for minute, counted in self._minutes.items():
                if first_minute <= minute < first_minute + SPANS[span]:
                    counts[(minute - first_minute) // column_minutes].update(counted)
            last_minute_count = sum(
                count for second, count in self._read_in_second.items() if now // 1000 - 60 < second
            )
            decisions = [
                decision
                for decision in self._decisions
                if decision.time_ms >= first_minute * 60_000
            ]
            read_from_ms, partial = self._read_from_ms, set(self._partial)
            all_marks = sorted((*marks, *self._marks), key=lambda mark: mark.time_ms)
        latencies = sorted(
            decision.latency_ms for decision in decisions if decision.latency_ms is not None
        )
        by_reason: Counter[str] = Counter()
        for column_counts in counts:
            by_reason.update(column_counts)
        bins = [0] * BINS
        for decision in decisions:
            if decision.is_duplicate and decision.similarity is not None:
                bins[min(BINS - 1, int(decision.similarity * BINS + 1e-9))] += 1
        columns = tuple(
            FigureColumn(
                minute * 60_000,
                dict(counts[place]),
                read_from_ms <= minute * 60_000
                and partial.isdisjoint(range(minute, minute + column_minutes)),
            )
            for place, minute in enumerate(
                range(first_minute, first_minute + SPANS[span], column_minutes)
            )
        )
        return SpanFigures(
            columns=columns,
            column_minutes=column_minutes,
            per_second=last_minute_count / 60,
            total=sum(by_reason.values()),
            by_reason=dict(sorted(by_reason.items(), key=_rank)),
            latency_p50_ms=_percentile(latencies, 0.5),
            latency_p99_ms=_percentile(latencies, 0.99),
            histogram=tuple(bins),
            is_whole=all(column.is_read for column in columns),
            is_minute_whole=read_from_ms <= now - 60_000
            and partial.isdisjoint((now // 60_000, now // 60_000 - 1)),
            marks=tuple(mark for mark in all_marks if first_minute * 60_000 <= mark.time_ms <= now),
        )

    def newest_first(self) -> list[Decision]:
        """Return the decisions in memory that may be listed, the newest first. Each is checked against
        the forgotten ids, so call it once for a page.
        """
        with self._lock:
            decisions = list(reversed(self._decisions))
        return [
            shown
            for decision in decisions
            if (shown := self._redact_decision(decision)) is not None
        ]


def select(decisions: Sequence[Decision], filters: DecisionFilter) -> list[Decision]:
    """Return the decisions that match the filter, in their order."""
    candidates = _without_released(decisions) if filters.verdict == _COPY else decisions
    return [decision for decision in candidates if filters.matches(decision)]


def figures_of_hosts(decisions: Sequence[Decision]) -> list[HostFigures]:
    """Return the figures of each host, the most wasted bytes first. A copy that was released counts
    once, as a kept document.
    """
    decisions_of_hosts: dict[str, list[Decision]] = {}
    for decision in _without_released(decisions):
        decisions_of_hosts.setdefault(decision.host, []).append(decision)
    hosts = (_host_figures(host, listed) for host, listed in decisions_of_hosts.items())
    return sorted(hosts, key=lambda figures: (-figures.bytes_wasted, figures.host))


def _without_released(decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions without duplicates that were released later."""
    released = {
        decision.source_position
        for decision in decisions
        if decision.reason == Reason.RELEASED.label
    }
    return [
        decision
        for decision in decisions
        if not decision.is_duplicate or decision.source_position not in released
    ]


def _host_figures(host: str, decisions: Sequence[Decision]) -> HostFigures:
    copied = [decision.size for decision in decisions if decision.is_copy]
    return HostFigures(
        host,
        documents=len(decisions),
        duplicates=len(copied),
        bytes=sum(decision.size for decision in decisions),
        bytes_wasted=sum(copied),
        fetched_again=sum(decision.reason in SAME_ID for decision in decisions),
    )


def _rank(item: tuple[str, int]) -> tuple[int, str]:
    return rank_of(item[0]), item[0]


def _percentile(values: list[int], share: float) -> int | None:
    return values[min(len(values) - 1, int(share * len(values)))] if values else None
