"""The steps at which a test may kill or stop a process."""

from __future__ import annotations

import os
import signal

import pytest

from stream_dedup.domain import failpoints
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.failpoints import Failpoints


@pytest.fixture
def sent_signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append(number))
    return signals


def test_only_the_named_step_and_count_kill_the_process(
    sent_signals: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The process is killed once, at the third hit with two batches in flight."""
    points = Failpoints("worker.flushed:3")
    for in_flight in (1, 2, 1, lambda: 2):
        points.hit("worker.flushed", in_flight)
        points.hit("worker.begin", 9)
    assert sent_signals == []
    points.hit("worker.flushed", 4)
    points.hit("worker.flushed", 4)

    assert sent_signals == [signal.SIGKILL]
    assert "worker.flushed reached with 4 batches in flight: killing" in capsys.readouterr().err


def test_a_step_may_stop_instead(sent_signals: list[int]) -> None:
    """`:stop` sends SIGSTOP, and a lower number of batches in flight may be asked for."""
    Failpoints("index.after-write:1:0:stop").hit("index.after-write", 0)

    assert sent_signals == [signal.SIGSTOP]


def test_within_a_step_the_kill_comes_a_moment_later(
    sent_signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    class Timer:
        def __init__(self, seconds: float, function: object, arguments: tuple[int, int]) -> None:
            waits.append(seconds)
            sent_signals.append(-arguments[1])

        def start(self) -> None: ...

    monkeypatch.setattr(failpoints.threading, "Timer", Timer)
    Failpoints("index.in-flush:1").hit("index.in-flush", 2)

    assert (sent_signals, len(waits)) == ([-signal.SIGKILL], 1)


@pytest.mark.parametrize(
    "text", ["worker.nowhere", "worker.begin:x", "worker.begin:1:2:3", "worker.begin:1:2:pause"]
)
def test_a_step_that_does_not_exist_is_refused(text: str) -> None:
    """A kill point that could never fire would make a test prove nothing."""
    with pytest.raises(ConfigurationError, match="write STEP:COUNT") as raised:
        Failpoints(text)
    for step in ("worker.begin", "index.in-flush", "search.before-commit", "release.appended"):
        assert step in str(raised.value)
