"""`stats`: figures from a run of records, days, and the sentence."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from stream_dedup.cli.estimate import places
from stream_dedup.cli.stats import DayFigures, day_edges, headline, read_runs
from stream_dedup.ground.document import Headers, Message

DAY_MS = 86_400_000


def record(offset: int, verdict: str, reason: str, size: int, topic: str = "unique", partition: int = 0) -> Message:
    headers: Headers = [("dedup.verdict", verdict.encode()), ("dedup.reason", reason.encode())]
    return Message(topic, partition, offset, b"k", bytes(size), 0, headers)


def figures(everything: dict[tuple[str, int], list[Message]], chance: random.Random | None) -> DayFigures:
    """Return what is said of these partitions: from runs at random places, or from every record."""
    spans = {key: (0, run[-1].offset + 1) for key, run in everything.items()}
    chosen = places(spans, chance, most=300) if chance else {key: [(end, (0, end))] for key, (_, end) in spans.items()}
    read = [
        one
        for key, records in everything.items()
        for _, (begin, end) in chosen[key]
        for one in records[bisect_left(records, begin, key=OFFSET) : bisect_left(records, end, key=OFFSET)]
    ]
    return DayFigures(read_runs(chosen, read))


OFFSET = attrgetter("offset")


def test_what_is_read_whole_is_counted_exactly() -> None:
    """By verdict of the headers, not by topic: with mode `annotate` duplicates are on `unique` too."""
    run = [record(0, "unique", "new", 10), record(1, "duplicate", "near", 7), record(3, "duplicate", "exact", 5)]
    stranger = Message("unique", 0, 4, None, b"xx", 0, [])

    found = figures({("unique", 0): [*run, stranger]}, random.Random(1))

    assert not found.is_estimated
    assert found.fields() == {
        "documents": 3,
        "unique": 1,
        "duplicates": 2,
        "judged": 0,
        "bytes": 22,
        "bytes_saved": 12,
        "share_saved": 0.5455,
        "reasons": {"exact": 1, "near": 1, "new": 1},
        "ranges": {},
        "unseen_below": 0,
    }


def skewed(kind: str, chance: random.Random) -> dict[tuple[str, int], list[Message]]:
    """Return a day of three partitions whose load changes: the saved bytes lie at its end, in bursts, or in few records."""
    found: dict[tuple[str, int], list[Message]] = {}
    for partition in range(3):
        records = []
        turn = chance.uniform(0.5, 0.95)
        for place in range(4_000):
            late = place > turn * 4_000
            burst = (place // 150) % 7 == partition
            if kind == "late":
                verdict, reason, size = ("duplicate", "exact", 2_000) if late else ("unique", "new", 30)
            elif kind == "bursts":
                verdict, reason, size = ("duplicate", "near", 500) if burst else ("unique", "new", 90)
            else:
                is_copy = chance.random() < 0.4
                size = min(20_000, int(chance.lognormvariate(5, 1.2)))
                verdict, reason = ("duplicate", "near") if is_copy else ("unique", "new")
            # A marker of a transaction after every ten records.
            records.append(record(place + place // 10, verdict, reason, size, partition=partition))
        found["unique", partition] = records
    return found


@pytest.mark.parametrize("kind", ["late", "bursts", "heavy"])
def test_ranges_hold_what_is_true(kind: str) -> None:
    """Small pages, then large ones; bursts; sizes with a long tail: what is said to lie in a range does, and it is useful."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    outside, widest = 0, 0.0
    for _ in range(4):
        everything = skewed(kind, chance)
        true, said = figures(everything, None).fields(), figures(everything, chance).fields()
        for name, (low, high) in ((name, span) for name, span in said["ranges"].items() if name != "reasons"):
            outside += not low <= true[name] <= high
        for reason, (low, high) in said["ranges"].get("reasons", {}).items():
            outside += not low <= true["reasons"][reason] <= high
        missing = set(true["reasons"]) - set(said["reasons"])
        assert all(true["reasons"][reason] < said["unseen_below"] for reason in missing)
        widest = max(widest, (said["ranges"]["share_saved"][1] - said["ranges"]["share_saved"][0]))

    assert outside <= 1  # of some thirty
    assert widest < 0.4


def test_days_begin_at_midnight_in_utc() -> None:
    """The first and the last are cut by the period; each moment lies in one day."""
    assert day_edges(DAY_MS // 2, 2 * DAY_MS + 5) == [DAY_MS // 2, DAY_MS, 2 * DAY_MS, 2 * DAY_MS + 5]
    assert day_edges(10, 20) == [10, 20]


def test_the_headline() -> None:
    """What was saved, how much of all, in which time; estimated or not, delivered or not, or nothing at all."""
    whole = {"share_saved": 0.38, "bytes_saved": 412e9, "duplicates": 5, "documents": 13, "ranges": {}}
    ranged = {**whole, "ranges": {"bytes_saved": [400e9, 430e9], "share_saved": [0.35, 0.41]}}

    assert headline(whole, 7 * 86_400, delivers=True).startswith("saved 412 GB, 38 %, in 7 days: 5 of 13")
    assert headline(ranged, 43_200, delivers=False).startswith(
        "would have saved about 412 GB (400 GB to 430 GB), 38 % (35 to 41 %), in 12 hours"
    )
    assert headline({"share_saved": None}, 86_400, delivers=True) == "nothing was filtered in 24 hours"


def test_a_period_that_cannot_be_is_a_usage_error(run: Callable[..., Any]) -> None:
    """A number without a unit, and none."""
    for since in ("7", "0d", "9999d"):
        assert run("stats", "--since", since).code == 2
