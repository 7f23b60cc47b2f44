"""How often a question is asked anew: for as long as Kafka is away, and some times once it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Patience:
    """What a role knows of Kafka and of itself while one of its calls waits.

    `is_silent` says whether Kafka is away, `stop` that the role is to end, and `beat` is called while it waits. Without
    them a question is asked that many times.
    """

    def __init__(
        self,
        is_silent: Callable[[], bool] = bool,
        stop: threading.Event | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_silent = is_silent
        self._stop = stop
        self._beat = beat

    def begin(self, times: int) -> Callable[[], bool]:
        """Return a function that says, after a question that was not answered, whether to ask once more."""
        left = times

        def lasts() -> bool:
            nonlocal left
            self._beat()
            if self.is_silent():
                left = times
                return self._stop is None or not self._stop.is_set()
            left -= 1
            return left > 0

        return lasts


IMPATIENT = Patience()
