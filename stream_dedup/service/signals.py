"""SIGTERM and SIGINT become one event that a role's loop looks at.

Invariant: the first signal asks for an orderly end and interrupts nothing, so that a transaction in progress is
finished; a second one ends the process at once, for an operator who does not want to wait.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def how_ended(code: int) -> str:
    """Return how a process ended, by the return code that `subprocess` gives."""
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Give an event that the first SIGTERM or SIGINT sets; to be used in the main thread."""
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
