"""How long an index says that a replay takes."""

from __future__ import annotations

from stream_dedup.indexer.pace import CatchUpPace


def test_the_pace_is_that_of_the_last_minute() -> None:
    """It is reported once it is known, and follows a replay that slows down."""
    pace = CatchUpPace()

    assert pace.seconds_to(1000, 0, 0.0) is None
    assert pace.seconds_to(1000, 100, 10.0) == 90.0
    for second in range(11, 100):
        left = pace.seconds_to(1000, 100 + second, float(second))
    assert left == 801.0
