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
    """Some seconds of waiting are usual; then it is told once, and again when an answer has come."""
    health, now = Health(), 1000.0
    health.ready(True, "at work")
    flow: Any = SimpleNamespace(is_open=False, documents_in_flight=7, oldest_unanswered=SimpleNamespace(taken=now))
    with capture_logs() as said:
        awaited = Awaited(Waits(health, structlog.get_logger(), lambda: now))
        for later in (0.0, 9.0):
            awaited.look(flow, now + later)
        assert health.ready_state().ok
        for later in (10.0, 11.0, 30.0):
            awaited.look(flow, now + later)
        state = health.ready_state()
        flow.is_open = True  # the settings let documents leave unjudged
        flow.oldest_unanswered = None
        awaited.look(flow, now + 40.0)
        assert not health.ready_state().ok
        flow.is_open = False
        awaited.look(flow, now + 41.0)

    assert not state.ok
    assert "waiting for an index" in state.sentence
    assert "7 documents wait for their verdicts" in state.sentence
    assert health.ready_state().ok
    assert [one["event"] for one in said] == ["waiting for an index", "the wait for an index is over"]
