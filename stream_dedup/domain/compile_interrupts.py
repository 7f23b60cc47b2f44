"""Let a signal interrupt the compilation of a kernel.

A compilation takes up to a minute, and more on a busy machine; a process that is asked to exit must
not wait for it.
"""

from __future__ import annotations

import threading
from typing import Final


class StoppedError(KeyboardInterrupt):
    """The process was asked to exit while its main thread compiled a kernel."""


class Compiling:
    """State shared by the compiler of kernels and the signal handler."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._is_stopped = False

    def begin(self) -> None:
        """Record that this thread begins to compile a kernel.

        Raises:
            StoppedError: this is the main thread, and the process was asked to exit.
        """
        self._thread = threading.get_ident()
        if self._is_stopped:
            self.stop()

    def end(self) -> None:
        """Record that the compilation has ended."""
        self._thread = None

    def stop(self) -> None:
        """Forbid the main thread to compile kernels.

        Raises:
            StoppedError: the main thread is compiling a kernel.
        """
        self._is_stopped = True
        if self._thread == threading.main_thread().ident:
            self._thread = None
            raise StoppedError

    def resume(self) -> None:
        """Allow kernels to be compiled again."""
        self._is_stopped = False


COMPILING: Final = Compiling()
