"""How the cost of a text grows with its length, as ratios of processor time."""

from __future__ import annotations

import ctypes
import functools
import gc
import time

from stream_dedup.fingerprinting import Fingerprinter


@functools.cache
def _keep_freed_memory() -> None:
    """Make glibc keep freed memory: otherwise a large text, unlike a small text, spends five sixths
    of its time in the kernel, which provides the memory again in each round."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # as malloc.h has them
        mallopt(trim_threshold, 2**30)
        mallopt(mmap_threshold, 2**25)  # the maximum


def seconds(fingerprinter: Fingerprinter, text: str) -> float:
    """Return the CPU seconds of one fingerprint: the minimum of three, or of as many as take 0.3
    seconds together.

    A disturbed measurement is longer by milliseconds.
    """
    times: list[float] = []
    _keep_freed_memory()
    gc.disable()  # a collection would visit everything that other tests left in memory
    try:
        while len(times) < 3 and sum(times) < 0.3:
            start = time.thread_time()
            fingerprinter.fingerprint([text])
            times.append(time.thread_time() - start)
    finally:
        gc.enable()
    return min(times)


def times_as_long(
    fingerprinter: Fingerprinter, small: str, large: str, floor_seconds: float, ratio_max: float
) -> float:
    """Return how many times as long the large text takes, measured up to three times while it is
    more than the limit.

    A small text that takes less than `floor_seconds` counts as that. Measurements are
    repeated because other programs share the caches; a cost that grows faster than the text stays.
    """
    found = []
    while not found or (found[-1] >= ratio_max and len(found) < 3):
        found.append(
            seconds(fingerprinter, large) / max(seconds(fingerprinter, small), floor_seconds)
        )
    return min(found)
