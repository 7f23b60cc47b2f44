"""What a role says about itself, and of what it waits for: a line when it begins, one a minute, and
one when it ends."""

from __future__ import annotations

import threading

import pytest
import structlog
from structlog.testing import capture_logs

from stream_dedup.domain.errors import (
    BrokerError,
    ConfigurationError,
    GoneError,
    NoAnswerError,
    StreamDedupError,
)
from stream_dedup.serving import wait_reports as watch_module
from stream_dedup.serving.health import Health
from stream_dedup.serving.wait_reports import Waits, Watch
from stream_dedup.settings.settings import Settings
from tests.serving.serving import Clock
from tests.waiting import wait_until


def test_a_loop_that_stops_is_dead_until_it_runs_again() -> None:
    """Before its first turn a role is alive, however long it takes; unreadiness and lag never
    kill."""
    clock = Clock()
    health = Health(clock)
    clock.seconds = 1e6
    found = (health.live_state().ok, health.startup_state().ok, health.ready_state().ok)
    assert found == (True, False, False)

    health.beat()
    clock.seconds += 60.0
    assert health.live_state().ok
    clock.seconds += 1.0
    assert not health.live_state().ok
    assert "has not run for 61 s" in health.live_state().sentence
    health.beat()
    health.set_ready(False, "replaying")
    assert health.live_state().ok
    assert (health.ready_state().ok, health.ready_state().sentence) == (False, "replaying")


def test_a_started_role_stays_started() -> None:
    """Progress is between 0 and 1, and a role at 1 never returns to starting."""
    health = Health()

    health.set_startup(-5.0, "a")
    assert (health.startup_state().ok, health.startup_state().progress) == (False, 0.0)
    health.set_startup(0.4, "replaying the log")
    found = (health.startup_state().progress, health.startup_state().sentence)
    assert found == (0.4, "replaying the log")
    health.set_startup(7.0, "done")
    assert (health.startup_state().ok, health.startup_state().progress) == (True, 1.0)
    health.set_startup(0.1, "again")
    assert health.startup_state().ok


def test_a_wait_is_logged_once_then_each_minute_and_at_its_end() -> None:
    """However often the loop says that it waits."""
    clock, health = Clock(), Health()
    health.set_ready(True, "at work")
    with capture_logs() as logged:
        waits = Waits(health, structlog.get_logger(), clock)
        waits.end("Kafka")
        for _ in range(100):
            waits.report("Kafka", "Connection refused")
            clock.seconds += 1.0
        state = health.ready_state()
        waits.end("Kafka")

    assert [(line["event"], line.get("waited_seconds")) for line in logged] == [
        ("waiting for Kafka", None),
        ("waiting for Kafka", 60),
        ("no longer waiting for Kafka", 100.0),
    ]
    assert (state.ok, state.sentence) == (False, "waiting for Kafka for 100 s: Connection refused")
    assert health.ready_state().ok
    assert health.ready_state().sentence == "at work"


class Kafka:
    """A cluster that answers unless `why` is set."""

    def __init__(self) -> None:
        self.why: str | Exception = ""
        self.asked = 0

    def find_silence_reason(self, topic: str, seconds: float) -> str:
        assert topic == "documents"
        assert seconds == watch_module._ASK_SECONDS
        self.asked += 1
        if isinstance(self.why, Exception):
            raise self.why
        return self.why


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    monkeypatch.setattr(watch_module, "_PAUSE_SECONDS", 0.005)
    monkeypatch.setattr(watch_module, "_POLL_SECONDS", 0.005)
    return Kafka()


def test_a_role_waits_for_kafka_and_reports_outages(kafka: Kafka) -> None:
    """It begins once Kafka answers; when Kafka goes away it is not ready, and is again when Kafka
    is back."""
    health, stop = Health(), threading.Event()
    kafka.why = "Connection refused"
    begun: list[bool] = []
    with Watch(
        Settings(), "documents", Waits(health, structlog.get_logger()), lambda _: kafka
    ) as watch:
        waiting = threading.Thread(target=lambda: begun.append(watch.wait(stop)), daemon=True)
        waiting.start()
        wait_until(lambda: kafka.asked > 3)
        assert not begun
        assert "waiting for Kafka" in health.ready_state().sentence
        assert "Connection refused, at localhost:9092" in health.ready_state().sentence
        kafka.why = ""
        waiting.join(20)
        assert begun == [True]
        health.set_ready(True, "at work")
        wait_until(lambda: health.ready_state().ok)
        for why in ("No broker has answered", BrokerError("Gone."), ConfigurationError("Refused.")):
            kafka.why = why
            wait_until(lambda: watch.is_silent() and not health.ready_state().ok)
            kafka.why = ""
            wait_until(lambda: not watch.is_silent() and health.ready_state().ok)


def test_a_start_is_repeated_after_an_outage(kafka: Kafka) -> None:
    """A start that fails while Kafka answers fails; one that fails while Kafka is away is made
    again, unless all is to stop."""
    stop, starts = threading.Event(), 0
    with Watch(
        Settings(), "documents", Waits(Health(), structlog.get_logger()), lambda _: kafka
    ) as watch:
        assert watch.wait(stop)

        def fails_once_without_kafka() -> str:
            nonlocal starts
            starts += 1
            if starts > 1:
                return "begun"
            kafka.why = "Connection refused"
            wait_until(watch.is_silent)
            threading.Timer(0.05, lambda: setattr(kafka, "why", "")).start()
            raise BrokerError("Nobody answered.")

        assert watch.begin(stop, fails_once_without_kafka) == "begun"

        def fails() -> str:
            raise BrokerError("No.")

        wait_until(lambda: not watch.is_silent())
        with pytest.raises(BrokerError):
            watch.begin(stop, fails)
        kafka.why = "Connection refused"
        wait_until(watch.is_silent)
        stop.set()
        with pytest.raises(BrokerError):
            watch.begin(stop, fails)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (GoneError("The topic verdicts does not exist."), "its topics"),
        (NoAnswerError("Timed out."), "an answer"),
    ],
)
def test_a_start_that_came_too_early_is_repeated(
    kafka: Kafka, error: StreamDedupError, what: str
) -> None:
    """A topic that is not there yet, and a question without an answer though Kafka is back by now;
    a stop ends the waiting."""
    health, stop = Health(), threading.Event()
    health.set_ready(True, "at work")
    starts: list[str] = []

    def too_early() -> str:
        starts.append(health.ready_state().sentence)
        if len(starts) < 4:
            raise error
        return "begun"

    def always_too_early() -> str:
        stop.set()
        raise error

    with Watch(
        Settings(), "documents", Waits(health, structlog.get_logger()), lambda _: kafka
    ) as watch:
        assert watch.wait(stop)
        assert watch.begin(stop, too_early) == "begun"
        assert f"waiting for {what}" in starts[-1]
        assert str(error) in starts[-1]
        assert health.ready_state().ok
        with pytest.raises(type(error)):
            watch.begin(stop, always_too_early)


def test_a_refused_role_ends_and_a_waiting_role_can_be_stopped(kafka: Kafka) -> None:
    """Waiting does not mend a wrong password."""
    kafka.why = ConfigurationError("Kafka refused the user name.")
    waits = Waits(Health(), structlog.get_logger())
    with (
        Watch(Settings(), "documents", waits, lambda _: kafka) as watch,
        pytest.raises(ConfigurationError, match="refused the user"),
    ):
        watch.wait(threading.Event())

    kafka.why = "Connection refused"
    stop = threading.Event()
    with Watch(Settings(), "documents", waits, lambda _: kafka) as watch:
        threading.Timer(0.05, stop.set).start()
        assert not watch.wait(stop)
