"""How the cost of a text grows with its length, as ratios of processor time."""

from __future__ import annotations

import ctypes
import functools
import gc
import time

from stream_dedup.fingerprinting import Fingerprinter


@functools.cache
def _keep_freed_memory() -> None:
    """Have glibc keep what is freed: of a large text, five sixths of the time were the kernel's,
    for memory given back and asked for anew in each round, and none of a small one's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # as malloc.h has them
        mallopt(trim_threshold, 2**30)
        mallopt(mmap_threshold, 2**25)  # the most that it takes


def seconds(fingerprinter: Fingerprinter, text: str) -> float:
    """The processor time of one fingerprint of this thread, the least of three, or of as many as
    take 0.3 seconds together.

    What disturbs a measurement, disturbs it by milliseconds.
    """
    times: list[float] = []
    _keep_freed_memory()
    gc.disable()  # a collection would look at all that other tests have left behind
    try:
        while len(times) < 3 and sum(times) < 0.3:
            start = time.thread_time()
            fingerprinter.fingerprint([text])
            times.append(time.thread_time() - start)
    finally:
        gc.enable()
    return min(times)


def times_as_long(
    fingerprinter: Fingerprinter, small: str, large: str, floor_seconds: float, most: float
) -> float:
    """Return how many times as long the large text takes, measured anew up to three times while it
    is more than `most`.

    A small text that takes less than `floor_seconds` counts as that. Measured anew, because what
    shares the machine's caches comes and goes; a cost that grows faster than the text stays.
    """
    found = []
    while not found or (found[-1] >= most and len(found) < 3):
        found.append(
            seconds(fingerprinter, large) / max(seconds(fingerprinter, small), floor_seconds)
        )
    return min(found)
