"""What a role says about itself."""

from __future__ import annotations

from stream_dedup.service.health import Health


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_loop_that_stops_turning_is_dead_and_one_that_turns_again_is_not() -> None:
    """`/livez` fails once the last turn is older than allowed, and recovers with the next one."""
    clock = Clock()
    health = Health(60.0, clock)
    health.beat()

    clock.seconds = 60.0
    assert health.live_state().ok
    clock.seconds = 61.0
    assert not health.live_state().ok
    assert "has not turned for 61 s" in health.live_state().sentence
    health.beat()
    assert health.live_state().ok


def test_a_long_start_is_not_a_hang() -> None:
    """Before its first turn a role is alive, however long it takes; the start-up probe bounds that."""
    clock = Clock()
    health = Health(1.0, clock)

    clock.seconds = 1e6

    assert health.live_state().ok
    assert not health.startup_state().ok


def test_lag_and_unreadiness_never_kill() -> None:
    """A role that is not ready is still alive."""
    health = Health(60.0, Clock())
    health.beat()
    health.ready(False, "replaying")

    assert health.live_state().ok
    assert (health.ready_state().ok, health.ready_state().sentence) == (False, "replaying")


def test_started_is_for_good() -> None:
    """Progress is kept between 0 and 1, and after 1 nothing goes back to starting."""
    health = Health()

    health.startup(-5.0, "a")
    assert (health.startup_state().ok, health.startup_state().progress) == (False, 0.0)
    health.startup(0.4, "replaying the log")
    assert (health.startup_state().progress, health.startup_state().sentence) == (0.4, "replaying the log")
    health.startup(7.0, "done")
    assert (health.startup_state().ok, health.startup_state().progress) == (True, 1.0)
    health.startup(0.1, "again")
    assert health.startup_state().ok


def test_a_role_is_not_ready_before_it_says_so() -> None:
    """Readiness begins with no."""
    assert not Health().ready_state().ok
