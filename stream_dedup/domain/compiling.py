"""Whether a kernel is being compiled, which takes up to a minute, and more on a busy machine: a
signal that asks the process to end is not to wait for that.
"""

from __future__ import annotations

import threading
from typing import Final


class StoppedError(KeyboardInterrupt):
    """The process is to end, and its main thread compiles a kernel."""


class Compiling:
    """Written by the compiler and by the handler of signals."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._is_stopped = False

    def begin(self) -> None:
        """Note that this thread begins to compile a kernel.

        Raises:
            StoppedError: it is the main thread, and the process is to end.
        """
        self._thread = threading.get_ident()
        if self._is_stopped:
            self.stop()

    def end(self) -> None:
        """Note that a kernel is compiled."""
        self._thread = None

    def stop(self) -> None:
        """Let the main thread compile no more.

        Raises:
            StoppedError: it compiles a kernel now.
        """
        self._is_stopped = True
        if self._thread == threading.main_thread().ident:
            self._thread = None
            raise StoppedError

    def resume(self) -> None:
        """Let kernels be compiled again."""
        self._is_stopped = False


COMPILING: Final = Compiling()
