"""How long documents stood still after each kind of fault."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

LOOK_SECONDS = 0.25
# What has stood still for so short a time has only not been looked at, or waits for its turn.
BRIEF_SECONDS = 1.0


class Recovery(NamedTuple):
    """How often a fault struck, and how many seconds until it had healed."""

    count: int
    median: float
    longest: float


@dataclass(slots=True)
class _Strike:
    fault: str
    seconds: float = 0.0


class Stalls:
    """Looks at how far the group has come, in a thread, and gives each stall to the fault that
    began before it.

    `committed` and `sent` say how many records; while all that was sent is committed nothing stands
    still.
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

    def strikes(self, fault: str, *, anew: bool = False) -> None:
        """Say which fault is about to happen; what stands still already stays with the one before.

        With `anew` the stall begins now: what a fault itself took, such as an hour without a
        broker, is not counted.
        """
        self._strikes.append(_Strike(fault))
        now = self._now_seconds()
        if anew:
            self._since = now
        if self._since is not None and now - self._since < BRIEF_SECONDS:
            self._blamed = self._strikes[-1]

    def look(self) -> None:
        """Look once."""
        now, committed = self._now_seconds(), self._committed()
        if committed > self._seen or self._seen >= self._sent():
            self._seen = max(self._seen, committed)
            self._since, self._blamed = now, self._strikes[-1]
        elif self._since is not None:
            self._blamed.seconds = max(self._blamed.seconds, now - self._since)

    def table(self) -> dict[str, Recovery]:
        """Return the recoveries by fault, those of the longest first; a fault that nothing stood
        still for took 0 s."""
        by_fault: dict[str, list[float]] = {}
        for one in self._strikes:
            by_fault.setdefault(one.fault, []).append(one.seconds)
        found = {
            fault: Recovery(len(each), round(statistics.median(each), 1), round(max(each), 1))
            for fault, each in by_fault.items()
        }
        return dict(sorted(found.items(), key=lambda one: -one[1].longest))

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self.look()
