"""Delay Ctrl-C while a kernel runs."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the end of the block instead of inside it.

    Ctrl-C during a kernel of a second is nearly always raised while numba converts the result; numba
    ignores the exception, and crashes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if received:
        raise KeyboardInterrupt
