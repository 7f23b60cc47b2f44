"""A worker that asks and gets no answer says so, once, and is not ready."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import structlog
from structlog.testing import capture_logs

from stream_dedup.service.health import Health
from stream_dedup.service.waits import Waits
from stream_dedup.worker.awaited import Awaited


def test_a_worker_without_an_index_is_not_ready() -> None:
    """Some seconds of waiting are usual; then it is told once, and again when an answer has
    come."""
    health, now = Health(), 1000.0
    health.ready(True, "at work")
    flow: Any = SimpleNamespace(
        is_open=False,
        documents_in_flight=7,
        unanswered_offset=41,
        oldest_unanswered=SimpleNamespace(taken=now),
    )
    with capture_logs() as said:
        awaited = Awaited(Waits(health, structlog.get_logger(), lambda: now))
        for later in (0.0, 9.0):
            awaited.look(flow, "", now + later)
        assert health.ready_state().ok
        for later in (10.0, 11.0, 30.0):
            awaited.look(flow, "", now + later)
        state = health.ready_state()
        flow.is_open = True  # the settings let documents leave unjudged
        flow.oldest_unanswered = None
        awaited.look(flow, "", now + 40.0)
        assert not health.ready_state().ok
        flow.is_open = False
        awaited.look(flow, "", now + 41.0)

    assert not state.ok
    assert "waiting for an index" in state.sentence
    assert (
        "7 documents wait for their verdicts: log offset 41 is without an answer for 30 s"
        in state.sentence
    )
    assert health.ready_state().ok
    assert [one["event"] for one in said] == [
        "waiting for an index",
        "the wait for an index is over",
    ]


def test_a_worker_that_cannot_read_answers_says_why_and_for_how_long() -> None:
    """The metric begins with the first second; the reason is told at once."""
    health, now = Health(), 1000.0
    health.ready(True, "at work")
    flow: Any = SimpleNamespace(is_open=False, oldest_unanswered=None)
    awaited = Awaited(Waits(health, structlog.get_logger(), lambda: now))

    assert awaited.look(flow, "The topic verdicts does not exist.", now) == 0.0
    assert "waiting for the topic of answers" in health.ready_state().sentence
    assert "The topic verdicts does not exist." in health.ready_state().sentence
    flow.oldest_unanswered = SimpleNamespace(taken=now)
    assert awaited.look(flow, "", now + 2.5) == 2.5

    assert health.ready_state().ok
