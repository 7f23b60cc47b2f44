"""Tests wait for conditions, never for seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], what: str = "it holds", seconds: float = 120.0) -> Any:
    """Return the condition's first true value; fail with a sentence after `seconds`."""
    until, pause_seconds = time.monotonic() + seconds, 0.001
    while not (value := condition()):
        assert time.monotonic() < until, f"waited {seconds:.0f} s in vain until {what}"
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, 0.05)  # a condition may ask Kafka
    return value
