"""Steps at which a test can kill the process, to prove the effect of a crash between two steps.

`STREAM_DEDUP_FAILPOINT=worker.flushed:3` kills the process (SIGKILL, nothing is cleaned up) when
the step `worker.flushed` is reached for the third time with at least two batches in flight; `:3:1`
requires at least one, and `:3:1:stop` stops the process there (SIGSTOP) instead; the test continues
it.

Invariants: without the variable a step costs one comparison; the number of batches in flight is
written to standard error before a kill, so that a test can distinguish a kill in mid-stream from
one at rest. At `index.in-flush` the kill is delayed by two milliseconds, so that it happens while
RocksDB flushes its memory.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable

from stream_dedup.domain.errors import ConfigurationError

VARIABLE = "STREAM_DEDUP_FAILPOINT"

STEPS = (
    "worker.consumed",
    "worker.appended",
    "worker.append-acked",
    "worker.verdict-in",
    "worker.begin",
    "worker.outputs",
    "worker.flushed",
    "worker.offsets",
    "worker.before-commit",
    "worker.after-commit",
    "index.before-write",
    "index.after-write",
    "index.after-answer",
    "index.in-flush",
    "index.in-checkpoint",
    "index.in-rebuild",
)
SEARCH_STEPS = ("search.before-commit", "search.after-commit")
COMMAND_STEPS = ("release.appended", "release.before-commit", "release.after-commit")
ALL_STEPS = STEPS + SEARCH_STEPS + COMMAND_STEPS
_PATTERN = re.compile(r"(?P<step>[^:]+)(:(?P<count>\d+)(:(?P<in_flight>\d+))?(?P<stop>:stop)?)?")
_DELAYED_STEPS = frozenset({"index.in-flush"})
_DELAY_SECONDS = 0.002


class Failpoints:
    """The step at which this process is killed, if any."""

    def __init__(self, text: str | None) -> None:
        self._step: str | None = None
        if not text:
            return
        match = _PATTERN.fullmatch(text)
        if match is None or match["step"] not in ALL_STEPS:
            raise ConfigurationError(
                f"{VARIABLE} is {text!r}; write STEP:COUNT, STEP:COUNT:IN_FLIGHT or "
                "STEP:COUNT:IN_FLIGHT:stop, with STEP one "
                f"of: {', '.join(ALL_STEPS)}."
            )
        self._step = match["step"]
        self._hits_remaining = int(match["count"] or 1)
        self._in_flight_min = int(match["in_flight"] or 2)
        self._signal = signal.SIGSTOP if match["stop"] else signal.SIGKILL

    def hit(self, step: str, in_flight: int | Callable[[], int]) -> None:
        """Kill or stop the process if it is due at `step`, which was reached with `in_flight`
        batches in flight.
        """
        if step != self._step:
            return
        in_flight = in_flight() if callable(in_flight) else in_flight
        if in_flight < self._in_flight_min:
            return
        self._hits_remaining -= 1
        if self._hits_remaining <= 0:
            self._step = None
            doing = "killing" if self._signal is signal.SIGKILL else "stopping"
            sentence = f"failpoint {step} reached with {in_flight} batches in flight"
            print(f"{sentence}: {doing} this process", file=sys.stderr, flush=True)
            if step in _DELAYED_STEPS:
                threading.Timer(_DELAY_SECONDS, os.kill, (os.getpid(), self._signal)).start()
            else:
                os.kill(os.getpid(), self._signal)
