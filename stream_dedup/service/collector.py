"""When Python looks for cycles: rarely.

A role makes no cycles in its loop, and a batch makes many thousand objects that live until it has left. At Python's own
thresholds the collector looked through them again and again: it took a fifth of a worker's time (11 to 19 % of the
throughput in paired runs) and 6 % of an index's.
"""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    """Have this process look for cycles rarely, and never among what it holds now: to be called once a role is set up."""
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)
