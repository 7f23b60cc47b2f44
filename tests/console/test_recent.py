"""The latest decisions: filters, figures, and bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stream_dedup.console.recent_decisions import (
    MINUTES,
    Recent,
    figures_of_hosts,
    filter_of,
    select,
)
from stream_dedup.domain.errors import InputError
from stream_dedup.log.headers import rfc3339
from tests.console.sample import HOUR_MS, decision, sources


def test_filters_are_combined() -> None:
    recent = sources().recent

    def find_offsets(**query: str) -> set[int]:
        return {selected.offset for selected in select(recent.newest_first(), filter_of(query))}

    assert find_offsets() == set(range(500))
    assert find_offsets(reason="exact") == set(range(4, 500, 10))
    assert find_offsets(host="news.example") == set(range(0, 500, 3))
    assert find_offsets(host="harbour.example") == set(), "a subdomain is another host"
    assert find_offsets(verdict="copy") == find_offsets(reason="near") | find_offsets(
        reason="exact"
    )
    assert find_offsets(id="articles/49") == {49, *range(490, 500)}
    assert find_offsets(header="dedup.reason=near") == find_offsets(reason="near")
    assert find_offsets(header="crawl=") == set(range(500))
    assert find_offsets(header="crawl=2031") == set()
    assert find_offsets(reason="near", host="news.example") == find_offsets(
        reason="near"
    ) & find_offsets(host="news.example")
    similar = find_offsets(**{"from": "0.9", "to": "0.95"})
    assert similar
    assert all(0.9 <= (decision(place).similarity or 0) <= 0.95 for place in similar)


@pytest.mark.parametrize(
    "query",
    [
        {"from": "nan"},
        {"to": "-1"},
        {"from": "much"},
        {"to": "1e9"},
        {"header": "=x"},
        {"header": "nope"},
        {"id": "x" * 501},
    ],
)
def test_invalid_filters_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"\.$"):
        filter_of(query)


def test_remembered_decisions_are_bounded() -> None:
    recent = Recent(keep=10, now_ms=lambda: HOUR_MS)

    recent.add(
        decision(place, time_ms=HOUR_MS - (2 * MINUTES - place) * 60_000)
        for place in range(2 * MINUTES)
    )

    assert len(recent.newest_first()) == 10
    assert recent.figures_of("7d").total == MINUTES - 1  # this minute has none yet
    recent = Recent(now_ms=lambda: HOUR_MS)  # records of the year 9999 count as records of now
    recent.add(
        decision(place, time_ms=253_402_300_000_000 + place * 60_000) for place in range(120)
    )
    recent.add(decision(place, time_ms=HOUR_MS) for place in range(5))
    assert recent.figures_of().total == 125


def test_skipped_records_make_figures_incomplete_for_an_hour() -> None:
    """After an hour all records of the period have been read."""
    now = HOUR_MS
    recent = Recent(now_ms=lambda: now)

    assert recent.figures_of().is_whole
    recent.add([decision(1)], HOUR_MS - 70_000)
    assert (recent.figures_of().is_whole, recent.figures_of().is_minute_whole) == (False, True)
    now += 60 * 60_000
    assert recent.figures_of().is_whole
    assert not recent.figures_of("6h").is_whole
    recent.add([], now + 1_000_000)
    assert not recent.figures_of().is_whole
    now += 60 * 60_000
    assert recent.figures_of().is_whole


@pytest.mark.parametrize(
    ("span", "columns", "minutes"), [("15m", 15, 1), ("1h", 60, 1), ("6h", 60, 6), ("7d", 60, 168)]
)
def test_figures_of_a_span(span: str, columns: int, minutes: int) -> None:
    """With one decision a minute, each full column counts as many as it has minutes."""
    recent = Recent(now_ms=lambda: HOUR_MS)
    recent.add(
        decision(place, time_ms=HOUR_MS - (MINUTES - place) * 60_000)
        for place in range(MINUTES + 1)
    )

    figures = recent.figures_of(span)

    assert (len(figures.columns), figures.column_minutes) == (columns, minutes)
    assert [sum(column.counts.values()) for column in figures.columns] == [minutes] * columns
    assert sum(figures.histogram) <= columns * minutes
    with pytest.raises(InputError, match="span must be one of 15m, 1h, 6h, 1d, 7d, not '2w'"):
        recent.figures_of("2w")


def test_all_times_are_those_of_the_records() -> None:
    """An old record that is read now is old, before and after a restart; only the documents per second
    are those that were read."""
    recent = Recent(now_ms=lambda: HOUR_MS)
    recent.add([decision(1)])
    recent.add([decision(2, time_ms=HOUR_MS - 5 * 3_600_000)], HOUR_MS - 5 * 3_600_000)
    hour, six_hours = recent.figures_of("1h"), recent.figures_of("6h")
    assert (hour.total, six_hours.total) == (1, 2)
    hatched = [column.is_read for column in six_hours.columns].count(False)
    assert (hatched, hour.is_minute_whole, hour.per_second) == (2, False, 1 / 60)
    until = filter_of({"until": rfc3339(HOUR_MS - 4 * 3_600_000)})
    assert [listed.offset for listed in select(recent.newest_first(), until)] == [2]


def test_the_newest_come_first_and_none_later_than_a_time() -> None:
    """By the address's `until`."""
    recent = sources().recent
    assert [listed.offset for listed in select(recent.newest_first(), filter_of({}))] == list(
        range(499, -1, -1)
    )

    recent = Recent(now_ms=lambda: HOUR_MS)
    recent.add(
        decision(place, "near", similarity=place % 7 / 10, time_ms=HOUR_MS - 1_000 * (100 - place))
        for place in range(100)
    )
    until = filter_of({"until": rfc3339(HOUR_MS - 50_000)})
    assert [listed.offset for listed in select(recent.newest_first(), until)] == list(
        range(49, -1, -1)
    )
    with pytest.raises(InputError, match="until must be a time in UTC such as"):
        filter_of({"until": "yesterday"})


def test_figures_of_the_hour() -> None:
    figures = sources().recent.figures_of()

    assert (figures.total, figures.by_reason["near"], figures.by_reason["new"]) == (500, 100, 250)
    assert list(figures.by_reason) == ["new", "exact", "near", "unchanged", "revised"]
    assert (figures.latency_p50_ms, figures.latency_p99_ms) == (49, 69)
    assert sum(figures.histogram) == 250
    assert figures.histogram[-1] >= 100
    assert Recent().figures_of().latency_p50_ms is None


def test_hosts_are_those_of_the_decisions() -> None:
    hosts = figures_of_hosts(sources().recent.newest_first())

    assert sum(host.documents for host in hosts) == 500
    assert sum(host.duplicates for host in hosts) == 150
    assert sum(host.fetched_again for host in hosts) == 100
    wasted = [host.bytes_wasted for host in hosts]
    assert wasted == sorted(wasted, reverse=True)
    assert all(wasted)


def test_a_released_copy_counts_once_for_its_host() -> None:
    """It counts as a kept document; the other copy stays a duplicate."""
    recent = Recent()
    copies = [
        decision(place, "near", host="a.example", size=100, source_position=f"documents-0@{place}")
        for place in (1, 2)
    ]
    release = replace(
        copies[0], output_position="unique-0@9", verdict="unique", reason="released", size=100
    )
    recent.add([*copies, release])
    assert [
        copy.offset for copy in select(recent.newest_first(), filter_of({"verdict": "copy"}))
    ] == [2]
    (figures,) = figures_of_hosts(recent.newest_first())
    assert (figures.documents, figures.duplicates, figures.bytes, figures.bytes_wasted) == (
        *(2, 1),
        *(200, 100),
    )
