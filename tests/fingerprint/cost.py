"""How the cost of a text grows with its length, as ratios of processor time."""

from __future__ import annotations

import gc
import time

from stream_dedup.fingerprint import Fingerprinter


def seconds(fingerprinter: Fingerprinter, text: str) -> float:
    """The processor time of one fingerprint of this thread, the least of three, or of as many as take 0.3 seconds together.

    What disturbs a measurement, disturbs it by milliseconds.
    """
    times: list[float] = []
    gc.disable()  # a collection would look at all that other tests have left behind
    try:
        while len(times) < 3 and sum(times) < 0.3:
            start = time.thread_time()
            fingerprinter.fingerprint([text])
            times.append(time.thread_time() - start)
    finally:
        gc.enable()
    return min(times)


def times_as_long(fingerprinter: Fingerprinter, small: str, large: str, floor_seconds: float, most: float) -> float:
    """Return how many times as long the large text takes, measured anew up to three times while it is more than `most`.

    A small text that takes less than `floor_seconds` counts as that. Measured anew, because what shares the machine's caches
    comes and goes; a cost that grows faster than the text stays.
    """
    found = []
    while not found or (found[-1] >= most and len(found) < 3):
        found.append(seconds(fingerprinter, large) / max(seconds(fingerprinter, small), floor_seconds))
    return min(found)
