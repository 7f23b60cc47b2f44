"""`stats`: figures from a run of records, days, and the sentence."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from stream_dedup.cli.stats import day_edges, headline, tally
from stream_dedup.ground.document import Message

DAY_MS = 86_400_000


def record(offset: int, verdict: str, reason: str, size: int, topic: str = "unique") -> Message:
    headers = [("dedup.verdict", verdict.encode()), ("dedup.reason", reason.encode())]
    return Message(topic, 0, offset, b"k", bytes(size), 0, headers)


def test_what_is_read_whole_is_counted_exactly() -> None:
    """By verdict of the headers, not by topic: with mode `annotate` duplicates are on `unique` too."""
    run = [record(0, "unique", "new", 10), record(1, "duplicate", "near", 7), record(3, "duplicate", "exact", 5)]
    stranger = Message("unique", 0, 4, None, b"xx", 0, [])

    found, estimated = tally({("unique", 0): (0, 6), ("duplicates", 0): (2, 2)}, [*run, stranger], exact=False)

    assert not estimated
    assert found.fields() == {
        "documents": 3, "unique": 1, "duplicates": 2, "judged": 0, "bytes": 22, "bytes_saved": 12,
        "share_saved": 0.5455, "reasons": {"exact": 1, "near": 1, "new": 1},
    }  # fmt: skip


def test_a_run_stands_for_its_span() -> None:
    """One record in every two offsets, as with a marker after each: the estimate is near what is there, and called so."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    everything = [
        record(offset, *chance.choice([("unique", "new"), ("duplicate", "near")]), size=chance.randint(900, 1100))
        for offset in range(0, 100_000, 2)
    ]
    run = [one for one in everything if 50_000 <= one.offset < 52_000]

    found, estimated = tally({("unique", 0): (0, 100_000)}, run, exact=False)
    exact, guessed = tally({("unique", 0): (0, 100_000)}, everything, exact=True)

    assert (estimated, guessed) == (True, False)
    assert exact.fields()["documents"] == 50_000
    assert found.fields()["documents"] == pytest.approx(50_000, rel=0.01)
    assert found.fields()["share_saved"] == pytest.approx(0.5, abs=0.1)


def test_days_begin_at_midnight_in_utc() -> None:
    """The first and the last are cut by the period; each moment lies in one day."""
    assert day_edges(DAY_MS // 2, 2 * DAY_MS + 5) == [DAY_MS // 2, DAY_MS, 2 * DAY_MS, 2 * DAY_MS + 5]
    assert day_edges(10, 20) == [10, 20]


def test_the_headline() -> None:
    """What was saved, how much of all, in which time; estimated or not, delivered or not, or nothing at all."""
    whole = {"share_saved": 0.38, "bytes_saved": 412e9, "duplicates": 5, "documents": 13}

    assert headline(whole, 7 * 86_400, delivers=True, estimated=False).startswith("saved 412 GB, 38 %, in 7 days: 5 of 13")
    assert headline(whole, 43_200, delivers=False, estimated=True).startswith(
        "would have saved about 412 GB, 38 %, in 12 hours"
    )
    assert headline({"share_saved": None}, 86_400, delivers=True, estimated=False) == "nothing was filtered in 24 hours"


def test_a_period_that_cannot_be_is_a_usage_error(run: Callable[..., Any]) -> None:
    """A number without a unit, and none."""
    for since in ("7", "0d", "9999d"):
        assert run("stats", "--since", since).code == 2
