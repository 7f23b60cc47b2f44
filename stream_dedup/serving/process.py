"""Process-wide settings of a role: freed memory, garbage collection, open files and signals.

**Memory.** Each batch allocates and frees some ten megabytes several times: values, texts, columns.
By default the C library returns this memory to the system each time, and each page then causes a
fault, which can take microseconds on a virtual machine. A worker keeps about as much as a usual
batch needs, and returns all freed memory near the limit of the process. An index must not do this:
its tables can grow in place only as separate mappings (`neighbours`).

**Cycles.** A role's loop creates no reference cycles, and a batch creates many thousand objects that
live until it is written. With Python's default thresholds the collector scanned them repeatedly: it
took a fifth of a worker's time (11 to 19 % of the throughput in paired runs) and 6 % of an index's.

**Files.** A process often starts with a limit of 1,024 open files, which it may raise; an index of a
hundred million representatives has hundreds of files open, besides connections to Kafka and of the
HTTP port.

**The end.** The first SIGTERM or SIGINT sets an event that the loop checks, and interrupts only the
compiler, so that a transaction in progress is finished; a second signal ends the process at once.
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

from stream_dedup.domain.compile_interrupts import COMPILING
from stream_dedup.domain.memory_limit import resident_bytes

# malloc.h of the GNU C library: mallopt(3), malloc_trim(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 << 20
_PIECE_BYTES = 16 << 20
_WATCH_SECONDS = 1.0


def keep_memory(kept_bytes: int = _KEPT_BYTES) -> bool:
    """Make this process keep freed memory: for each arena at most `kept_bytes` and at most 32 MB, in
    pieces of at most half of that; return whether the C library supports it.
    """
    mallopt = _c_function("mallopt")
    threshold_bytes, piece_bytes = min(kept_bytes, _KEPT_BYTES), min(kept_bytes // 2, _PIECE_BYTES)
    return mallopt is not None and all(
        mallopt(option, size)
        for option, size in ((_M_TRIM_THRESHOLD, threshold_bytes), (_M_MMAP_THRESHOLD, piece_bytes))
    )


class FreedMemory:
    """Keeps freed memory while the process is far below its limit."""

    def __init__(self, limit_bytes: int, kept_bytes: int) -> None:
        keep_memory(kept_bytes)
        self._full_bytes = limit_bytes // 4 * 3
        self._next_watch = 0.0

    def trim_after_batch(self, batch_bytes: int) -> None:
        """Return freed memory to the system after a large batch, or near the limit and then at most
        once a second.
        """
        now = time.monotonic()
        if batch_bytes > _KEPT_BYTES or (
            now >= self._next_watch and resident_bytes() > self._full_bytes
        ):
            trim_memory()
            self._next_watch = now + _WATCH_SECONDS


def trim_memory() -> bool:
    """Return freed memory to the system, within milliseconds; return whether the C library supports
    it.
    """
    malloc_trim = _c_function("malloc_trim")
    if malloc_trim is None:
        return False
    malloc_trim(ctypes.c_size_t(0))
    return True


def _c_function(name: str) -> Any:
    """Return a function of the C library, or None if it does not exist."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None


def collect_rarely() -> None:
    """Make this process collect cycles rarely, and never among its current objects; call it once a
    role is set up.
    """
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)


_OPEN_FILES_MAX: Final = 65_536


def allow_many_files() -> None:
    """Raise the limit of open files to the system's limit, at most 65,536."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # then the limit stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def how_ended(code: int) -> str:
    """Return how a process ended, from its return code in `subprocess`."""
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that the first SIGTERM or SIGINT sets; only for the main thread.

    Raises:
        StoppedError: the signal came while the main thread compiled a kernel.
    """
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()
        COMPILING.stop()

    handlers = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        COMPILING.resume()
