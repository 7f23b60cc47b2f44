"""What a role sets for its process: how much freed memory it keeps, when Python looks for cycles,
how many files it opens, and how it ends: SIGTERM and SIGINT become one event that its loop looks
at.

**Memory.** Each batch takes and frees some ten megabytes several times over: values, texts,
columns. The C library gives that back to the system each time, and each page then comes back by a
fault, which on a virtual machine can take microseconds. A worker keeps about as much as a usual
batch needs; once the process comes near its limit all of it goes back: what comes is not to meet
memory that nobody uses. An index is not to do this: its tables grow in place because they are
pieces of their own (`neighbours`).

**Cycles.** A role makes none in its loop, and a batch makes many thousand objects that live until
it has left. At Python's own thresholds the collector looked through them again and again: it took a
fifth of a worker's time (11 to 19 % of the throughput in paired runs) and 6 % of an index's.

**Files.** The limit that a process begins with is often 1,024 while it may raise it itself; an
index of a hundred million representatives has hundreds of files open, beside Kafka's connections
and those of the HTTP port.

**The end.** The first signal asks for an orderly end and interrupts nothing but the compiler, so
that a transaction in progress is finished; a second one ends the process at once, for an operator who does not want to
wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from stream_dedup.domain.compiling import COMPILING
from stream_dedup.domain.memory_limit import resident_bytes

# malloc.h of the GNU C library: mallopt(3), malloc_trim(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 << 20
_OWN_PIECE_BYTES = 16 << 20
_WATCH_SECONDS = 1.0


def keep_memory(kept_bytes: int = _KEPT_BYTES) -> bool:
    """Have this process keep what it frees, up to 32 MB an arena or less, in pieces of half that;
    return whether it can.
    """
    mallopt = _of_the_c_library("mallopt")
    kept, piece = min(kept_bytes, _KEPT_BYTES), min(kept_bytes // 2, _OWN_PIECE_BYTES)
    return mallopt is not None and all(
        mallopt(option, size)
        for option, size in ((_M_TRIM_THRESHOLD, kept), (_M_MMAP_THRESHOLD, piece))
    )


class FreedMemory:
    """What a process keeps of the memory that it frees, while it is far below the most that it may
    take.
    """

    def __init__(self, limit_bytes: int, kept_bytes: int) -> None:
        keep_memory(kept_bytes)
        self._full_bytes = limit_bytes // 4 * 3
        self._next_watch = 0.0

    def used(self, batch_bytes: int) -> None:
        """Give all of it back after a large batch, or when the process comes near its limit; then
        once a second at most.
        """
        now = time.monotonic()
        if batch_bytes > _KEPT_BYTES or (
            now >= self._next_watch and resident_bytes() > self._full_bytes
        ):
            give_back()
            self._next_watch = now + _WATCH_SECONDS


def give_back() -> bool:
    """Give back to the system what is kept, which takes some milliseconds; return whether it
    can.
    """
    malloc_trim = _of_the_c_library("malloc_trim")
    if malloc_trim is None:
        return False
    malloc_trim(ctypes.c_size_t(0))
    return True


def _of_the_c_library(name: str) -> Any:
    """Return a function of the C library, or None where it has none of that name."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None


def collect_rarely() -> None:
    """Have this process look for cycles rarely, and never among what it holds now: to be called
    once a role is set up.
    """
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)


_ENOUGH: Final = 65_536


def allow_many_files() -> None:
    """Raise the limit of open files to what the system allows, and to no more than a role could
    ever use.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(
            OSError, ValueError
        ):  # then it stays as it is, as it was until now
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def how_ended(code: int) -> str:
    """Return how a process ended, by the return code that `subprocess` gives."""
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Give an event that the first SIGTERM or SIGINT sets; to be used in the main thread.

    Raises:
        StoppedError: the main thread compiled a kernel when the signal came.
    """
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()
        COMPILING.stop()

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        COMPILING.resume()
