"""How fast an index that replays the log catches up."""

from __future__ import annotations

from collections import deque
from typing import Final

_PACE_SECONDS: Final = 60.0


class CatchUpPace:
    """How fast an index catches up: by what it applied in the last minute, because what comes may
    be of another kind.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def seconds_to(self, until: int, applied: int, now: float) -> float | None:
        """Return how long it takes from `applied` to a log offset at this pace; None until that is
        known.
        """
        seen = self._seen
        seen.append((now, applied))
        while now - seen[0][0] > _PACE_SECONDS and len(seen) > 1:
            seen.popleft()
        then, before = seen[0]
        if now - then < _PACE_SECONDS / 10 or applied <= before:
            return None
        return (until - applied) * (now - then) / (applied - before)
