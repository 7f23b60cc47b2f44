"""What a role waits for: a log line when a wait begins, one a minute, one when it ends; meanwhile it is not ready.

    waiting for Kafka        why="Connection refused at kafka:9092"
    waiting for Kafka        why="Connection refused at kafka:9092" waited_seconds=60
    the wait for Kafka is over    waited_seconds=71

Invariant: a wait that is told again and again is one wait, until it is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stream_dedup.service.health import Health

AGAIN_SECONDS = 60.0


@dataclass(slots=True)
class _Wait:
    began: float
    said: float
    why: str


class Waits:
    """Told by the role's loop and by threads beside it."""

    def __init__(self, health: Health, log: Any, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._logger = log
        self._now_seconds = now_seconds
        self._lock = threading.Lock()
        self._waits: dict[str, _Wait] = {}
        health.hold(self.sentence)

    def on(self, what: str, why: str, *, since: float | None = None) -> None:
        """Say that the role waits for something, and why; `since` is when that began, if it was not now."""
        now = self._now_seconds()
        with self._lock:
            wait = self._waits.get(what)
            if wait is None:
                self._waits[what] = _Wait(now if since is None else since, now, why)
                self._logger.warning(f"waiting for {what}", why=why)
                return
            wait.why = why
            if now - wait.said >= AGAIN_SECONDS:
                wait.said = now
                self._logger.warning(f"waiting for {what}", why=why, waited_seconds=round(now - wait.began))

    def over(self, what: str) -> None:
        """Say that the role does not wait for it (any more)."""
        with self._lock:
            wait = self._waits.pop(what, None)
            if wait is not None:
                waited = round(self._now_seconds() - wait.began, 1)
                self._logger.warning(f"the wait for {what} is over", waited_seconds=waited)

    def sentence(self) -> str:
        """Return what is waited for; nothing if nothing is."""
        with self._lock:
            now = self._now_seconds()
            return "; ".join(
                f"waiting for {what} for {now - wait.began:.0f} s: {wait.why}" for what, wait in self._waits.items()
            )
