"""The state of a role for the probes.

    /livez     the loop runs. Lag never fails it: a restart would only add to the lag.
    /readyz    the role does its work now.
    /startupz  the role has started; until then, its progress.

Invariant: every answer contains a sentence; a role is dead only after its loop has run at least
once and then stopped, so that a long start (a dictionary, a rebuild) does not count as a hang. Only
the start-up probe limits a start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

STALLED_SECONDS = 60.0  # without a turn of the loop, before `/livez` fails


@dataclass(frozen=True, slots=True)
class RoleState:
    """The answer to a probe; only the start-up probe has a `progress` (0 to 1)."""

    ok: bool
    sentence: str
    progress: float | None = None


class Health:
    """The state of a role; its loop writes it, the HTTP server's thread reads it."""

    def __init__(self, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._now_seconds = now_seconds
        self._lock = threading.Lock()
        self._last_beat_seconds: float | None = None
        self._ready = RoleState(False, "The role has not started its work yet.")
        self._startup = RoleState(False, "The role is starting.", 0.0)
        self._blockers: list[Callable[[], str]] = []

    def beat(self) -> None:
        """Record a turn of the loop."""
        self._last_beat_seconds = self._now_seconds()  # one assignment; no lock in the loop

    def set_ready(self, is_ready: bool, reason: str) -> None:
        """Set whether the role does its work, and the reason."""
        with self._lock:
            self._ready = RoleState(is_ready, reason)

    def add_blocker(self, blocker: Callable[[], str]) -> None:
        """Report the role as not ready whenever `blocker()` returns a reason."""
        self._blockers.append(blocker)

    def set_startup(self, progress: float, text: str) -> None:
        """Set the progress of the start, from 0 to 1; after 1 the role stays started."""
        with self._lock:
            if not self._startup.ok:
                progress = min(max(progress, 0.0), 1.0)
                self._startup = RoleState(progress >= 1.0, text, progress)

    def live_state(self) -> RoleState:
        """Return the answer to `/livez`."""
        beat = self._last_beat_seconds
        if beat is None:
            return RoleState(True, "The role is starting; its loop has not run yet.")
        age = self._now_seconds() - beat
        if age > STALLED_SECONDS:
            return RoleState(
                False,
                f"The loop has not run for {age:.0f} s (limit: {STALLED_SECONDS:.0f} s). The role "
                "hangs; restart it.",
            )
        return RoleState(True, f"The loop ran {age:.1f} s ago.")

    def ready_state(self) -> RoleState:
        """Return the answer to `/readyz`."""
        blockers = [sentence for blocker in self._blockers if (sentence := blocker())]
        if blockers:
            return RoleState(False, "; ".join(blockers))
        with self._lock:
            return self._ready

    def startup_state(self) -> RoleState:
        """Return the answer to `/startupz`."""
        with self._lock:
            return self._startup
