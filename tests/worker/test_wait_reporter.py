"""A worker that waits for an answer logs it once, and is not ready."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import structlog
from structlog.testing import capture_logs

from stream_dedup.serving.health import Health
from stream_dedup.serving.wait_reports import Waits
from stream_dedup.worker.questions import Questions
from stream_dedup.worker.wait_reporter import WaitReporter
from tests.worker.parts import VirtualClock
from tests.worker.test_flow import Scene


def test_a_worker_without_an_index_is_not_ready() -> None:
    """The wait is logged once after some seconds, and again when an answer has arrived."""
    health, now = Health(), 1000.0
    health.set_ready(True, "at work")
    flow: Any = SimpleNamespace(
        is_failed_open=False,
        documents_in_flight=7,
        unanswered_offset=41,
        oldest_unanswered=SimpleNamespace(waiting_since=now),
    )
    with capture_logs() as log_entries:
        wait_reporter = WaitReporter(Waits(health, structlog.get_logger(), lambda: now))
        for later in (0.0, 9.0):
            wait_reporter.report(flow, "", now + later)
        assert health.ready_state().ok
        for later in (10.0, 11.0, 30.0):
            wait_reporter.report(flow, "", now + later)
        state = health.ready_state()
        flow.is_failed_open = True  # the settings let documents leave unjudged
        flow.oldest_unanswered = None
        wait_reporter.report(flow, "", now + 40.0)
        assert not health.ready_state().ok
        flow.is_failed_open = False
        wait_reporter.report(flow, "", now + 41.0)

    assert not state.ok
    assert "waiting for an index" in state.sentence
    assert (
        "7 documents without a verdict: log offset 41 has not been answered for 30 s"
        in state.sentence
    )
    assert health.ready_state().ok
    assert [entry["event"] for entry in log_entries] == [
        "waiting for an index",
        "no longer waiting for an index",
    ]


def test_a_worker_that_cannot_read_answers_reports_why_and_for_how_long() -> None:
    """The metric counts from the first second; the reason is reported at once."""
    health, now = Health(), 1000.0
    health.set_ready(True, "at work")
    flow: Any = SimpleNamespace(is_failed_open=False, oldest_unanswered=None)
    wait_reporter = WaitReporter(Waits(health, structlog.get_logger(), lambda: now))

    assert wait_reporter.report(flow, "The topic verdicts does not exist.", now) == 0.0
    assert "waiting for the topic of answers" in health.ready_state().sentence
    assert "The topic verdicts does not exist." in health.ready_state().sentence
    flow.oldest_unanswered = SimpleNamespace(waiting_since=now)
    assert wait_reporter.report(flow, "", now + 2.5) == 2.5

    assert health.ready_state().ok


@pytest.mark.parametrize("stopped_seconds", [0.0, 3_600.0])
def test_a_worker_that_was_stopped_does_not_blame_the_index(stopped_seconds: float) -> None:
    """Only the time in which the worker listened counts as waiting."""
    clock, scene, verdicts = VirtualClock(), Scene(), mock.Mock()
    verdicts.take_messages.return_value = []
    worker_context = SimpleNamespace(
        flow=scene.flow, failpoints=mock.Mock(), clock=clock, logger=mock.Mock()
    )
    questions = Questions(worker_context, mock.Mock(), mock.Mock(), verdicts, mock.Mock(), 60.0)  # type: ignore[arg-type]
    batch = scene.batch((0, 100))
    batch.waiting_since = clock.now
    scene.flow.appended(1, 7)

    def listen(turns: int) -> float:
        for _ in range(turns):
            clock.sleep(1.0)
            questions.process_answers(0.0)
        return clock.now - batch.waiting_since

    assert listen(30) == 30
    clock.sleep(stopped_seconds)
    assert listen(1) in (30, 31)
    assert not scene.flow.is_failed_open
    listen(31)
    assert scene.flow.is_failed_open, "an index that was listened to for so long is silent"
