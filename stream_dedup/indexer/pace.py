"""Estimate the time that an index needs to replay the log."""

from __future__ import annotations

from collections import deque
from typing import Final

_PACE_SECONDS: Final = 60.0


class CatchUpPace:
    """The replay speed over the last minute; older records may have had another cost."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def seconds_to(self, until: int, applied: int, now: float) -> float | None:
        """Return the seconds from offset `applied` to offset `until`; None while the speed is
        unknown.
        """
        seen = self._seen
        seen.append((now, applied))
        while now - seen[0][0] > _PACE_SECONDS and len(seen) > 1:
            seen.popleft()
        earlier_seconds, earlier_offset = seen[0]
        if now - earlier_seconds < _PACE_SECONDS / 10 or applied <= earlier_offset:
            return None
        return (until - applied) * (now - earlier_seconds) / (applied - earlier_offset)
