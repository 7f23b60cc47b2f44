"""Measures how long documents stall after each kind of fault."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

LOOK_SECONDS = 0.25
# A shorter stall is only the interval between two looks, or a record that waits for its turn.
BRIEF_SECONDS = 1.0


class Recovery(NamedTuple):
    """How often a fault struck, and how many seconds documents stalled after it."""

    count: int
    median: float
    longest: float


@dataclass(slots=True)
class _Strike:
    fault: str
    seconds: float = 0.0


class Stalls:
    """Watches the committed offset in a thread; blames each stall on the last fault before it.

    `committed` and `sent` return numbers of records; nothing stalls while they are equal.
    """

    def __init__(
        self,
        committed: Callable[[], int],
        sent: Callable[[], int],
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._committed = committed
        self._sent = sent
        self._now_seconds = now_seconds
        self._strikes = [_Strike("the start")]
        self._seen = -1
        self._since: float | None = None
        self._blamed = self._strikes[0]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)

    def record_fault(self, fault: str, *, from_now: bool = False) -> None:
        """Record a coming fault; a stall that has begun stays with the one before.

        With `from_now` the stall begins now: the duration of the fault, such as an hour without
        a broker, is not counted.
        """
        self._strikes.append(_Strike(fault))
        now = self._now_seconds()
        if from_now:
            self._since = now
        if self._since is not None and now - self._since < BRIEF_SECONDS:
            self._blamed = self._strikes[-1]

    def look(self) -> None:
        """Update the stall of the current fault."""
        now, committed = self._now_seconds(), self._committed()
        if committed > self._seen or self._seen >= self._sent():
            self._seen = max(self._seen, committed)
            self._since, self._blamed = now, self._strikes[-1]
        elif self._since is not None:
            self._blamed.seconds = max(self._blamed.seconds, now - self._since)

    def table(self) -> dict[str, Recovery]:
        """Return the recoveries by fault, longest first; a fault without a stall took 0 s."""
        by_fault: dict[str, list[float]] = {}
        for strike in self._strikes:
            by_fault.setdefault(strike.fault, []).append(strike.seconds)
        found = {
            fault: Recovery(
                len(seconds), round(statistics.median(seconds), 1), round(max(seconds), 1)
            )
            for fault, seconds in by_fault.items()
        }
        return dict(sorted(found.items(), key=lambda item: -item[1].longest))

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self.look()
