"""The topic `decisions`, as doctor sees it: there, whole and up to date, or a sentence with the remedy; never a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from stream_dedup.checks.decisions import DecisionSpan, check_decisions
from stream_dedup.checks.finding import CheckState
from stream_dedup.ground.topics import TopicNames, TopicState, read_topics

DECLARED = next(one for one in read_topics() if one.kind == "decisions")
TRIMMED = {**DECLARED.config, "retention.ms": "604800000"}


@pytest.mark.parametrize(
    ("topic", "span", "says"),
    [
        (None, None, "does not exist: an index that is rebuilt looks up what was decided. Create it with: stream-dedup topics"),
        (
            {"config": TRIMMED},
            DecisionSpan(0, 1, 1999),
            "retention.ms=604800000, and must have -1: a rebuild of the index would have to look up",
        ),
        ({"partitions": 3}, None, "has 3 partitions"),
        ({}, DecisionSpan(7, 40, 1999), "begins at offset 7: records of it were removed"),
        ({}, DecisionSpan(0, 1500, 1999), "begins with log record 1500: a rebuild looks up what was decided before"),
        ({}, DecisionSpan(0, 1, 2000), "tells of log record 2000, and the log ends at 2000: of another log"),
        ({}, DecisionSpan(0, 1, 998), "ends with log record 999, 1,001 behind the log: is an index at work?"),
        ({}, None, "ends with log record 0, 2,000 behind the log"),
    ],
)
def test_what_is_not_well_is_a_warning(topic: dict[str, Any] | None, span: DecisionSpan | None, says: str) -> None:
    """A rebuild takes longer without it; no verdict depends on it."""
    state = None if topic is None else _state(**topic)

    (found,) = check_decisions(TopicNames(), state, span, 2000)

    assert found.state is CheckState.WARNING
    assert says in found.sentence


def test_how_far_it_reaches_is_told() -> None:
    """Orders at the end of the log have no decision."""
    (found,) = check_decisions(TopicNames(), _state(), DecisionSpan(0, 1, 1990), 2000)

    assert (found.state, found.sentence) == (CheckState.OK, "decisions tells of the log's records up to 1991 of 2000.")


def _state(partitions: int = 1, config: Mapping[str, str] = DECLARED.config) -> TopicState:
    return TopicState("decisions", bytes(16), partitions, config, 3)
