"""The latest decisions: filters, figures, and bounds."""

from __future__ import annotations

import pytest

from stream_dedup.console.recent import MINUTES, Recent, filter_of
from stream_dedup.ground.errors import InputError
from tests.console.sample import HOUR_MS, decision, sources


def test_filters_are_joined() -> None:
    """Each filter alone takes what it says, and several together what all of them take."""
    recent = sources().recent

    def found(**query: str) -> set[int]:
        return {one.offset for one in recent.select(filter_of(query), 1000)}

    assert found() == set(range(500))
    assert found(reason="exact") == set(range(4, 500, 10))
    assert found(host="news.example") == set(range(0, 500, 3))
    assert found(host="harbour.example") == set(range(1, 500, 3))  # what lies under it
    assert found(id="articles/49") == {49, *range(490, 500)}
    assert found(header="dedup.reason=near") == found(reason="near")
    assert found(header="crawl") == set(range(500))
    assert found(header="crawl=2031") == set()
    assert found(reason="near", host="news.example") == found(reason="near") & found(host="news.example")
    similar = found(**{"from": "0.9", "to": "0.95"})
    assert similar
    assert all(0.9 <= (decision(place).similarity or 0) <= 0.95 for place in similar)


@pytest.mark.parametrize(
    "query", [{"from": "nan"}, {"to": "-1"}, {"from": "much"}, {"to": "1e9"}, {"header": "=x"}, {"id": "x" * 501}]
)
def test_filters_that_are_none_are_refused(query: dict[str, str]) -> None:
    """A sentence says what was wrong."""
    with pytest.raises(InputError, match=r"\.$"):
        filter_of(query)


def test_the_newest_come_first_and_older_ones_by_number() -> None:
    """A page ends where the next begins."""
    recent = sources().recent

    first = recent.select(filter_of({}), 10)
    second = recent.select(filter_of({}), 10, before=first[-1].number)

    assert [one.offset for one in first + second] == list(range(499, 479, -1))


def test_what_is_kept_is_bounded() -> None:
    """Old decisions and old minutes go."""
    recent = Recent(keep=10, now_ms=lambda: HOUR_MS)

    recent.saw(decision(place, seen_ms=HOUR_MS - (1000 - place) * 60_000) for place in range(1000))

    assert recent.remembered == 10
    assert len(recent.now().minutes) == MINUTES
    assert recent.now().total == MINUTES - 1  # this minute has none yet


def test_minutes_that_lie_ahead_push_none_of_this_hour_out() -> None:
    """Records dated in the year 9999 that lay in the outputs at the start count as seen now."""
    recent = Recent(now_ms=lambda: HOUR_MS)

    recent.saw(decision(place, seen_ms=253_402_300_000_000 + place * 60_000) for place in range(2 * MINUTES))
    recent.saw(decision(place, seen_ms=HOUR_MS) for place in range(5))

    assert recent.now().total == 2 * MINUTES + 5


def test_what_was_passed_over_counts_for_an_hour() -> None:
    """Only then have all figures of the hour seen everything again."""
    now = HOUR_MS
    recent = Recent(now_ms=lambda: now)

    assert recent.now().is_whole
    recent.saw([decision(1)], HOUR_MS - 70_000)
    assert (recent.now().is_whole, recent.now().is_minute_whole) == (False, True)
    now += MINUTES * 60_000
    assert recent.now().is_whole
    recent.saw([], now + 1_000_000)
    assert not recent.now().is_whole
    now += MINUTES * 60_000
    assert recent.now().is_whole


def test_figures_of_the_hour() -> None:
    """Reasons, latencies, and a histogram in which a similarity of 1 has its place."""
    figures = sources().recent.now()

    assert (figures.total, figures.by_reason["near"], figures.by_reason["new"]) == (500, 100, 250)
    assert list(figures.by_reason) == ["new", "exact", "near", "unchanged", "revised"]
    assert (figures.latency_p50_ms, figures.latency_p99_ms) == (49, 69)
    assert sum(figures.histogram) == 250
    assert figures.histogram[-1] >= 100
    assert Recent().now().latency_p50_ms is None


def test_groups_and_hosts_are_those_of_the_decisions() -> None:
    """Sums agree with what was put in."""
    recent = sources().recent

    groups, hosts = recent.groups(), recent.hosts()

    assert sum(one.copies for one in groups) == 250
    assert [one.copies for one in groups] == sorted((one.copies for one in groups), reverse=True)
    assert sum(one.documents for one in hosts) == 500
    assert sum(one.duplicates for one in hosts) == 250
    assert max(one.newest_ms for one in groups) == recent.groups("newest")[0].newest_ms
    assert all(one.oldest_ms < one.newest_ms for one in groups)
    assert {one.position: one.counted for one in groups} == {
        f"documents-0@{kept}": max(
            made.copies or 0 for made in map(decision, range(500)) if made.of_position.endswith(f"@{kept}")
        )
        for kept in range(7)
    }
    assert [one.best and (one.best.better, one.best.at) for one in groups if one.position == "documents-0@1"] == [
        ("longest", "duplicates-2@428")
    ]
