"""An answer that is costly to make: made once for all who ask at a time, and kept for a while.

Invariants: it is never made twice at once, and never by the thread that serves; making it takes at most one part in `_PARTS` of
the time, however often it is asked for; what failed is told to all who waited for it, and is not kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from anyio import CapacityLimiter, to_thread

from stream_dedup.ground.threads import Outcome, outcome_of, result_of

_PARTS: Final = 20

T = TypeVar("T")


class KeptAnswer(Generic[T]):
    """What `make` returns, kept for at least `seconds`; to be asked for in one event loop."""

    def __init__(self, make: Callable[[], T], seconds: float = 0.0) -> None:
        self._make = make
        self._seconds = seconds
        self._task: asyncio.Task[Outcome[T]] | None = None
        self._until = 0.0

    async def get(self) -> T:
        """Return the answer, waiting for it if it is being made or has to be."""
        task = self._task
        if task is None or (task.done() and time.monotonic() >= self._until):
            task = self._task = asyncio.create_task(self._made())
        outcome = [await asyncio.shield(task)]  # the asker may go away; the others still wait
        del task
        return result_of(outcome.pop())

    async def _made(self) -> Outcome[T]:
        begun = time.monotonic()
        self._until = 0.0
        # A limit of its own: slow routes may hold all the threads that starlette's allows.
        made = await to_thread.run_sync(outcome_of, self._make, limiter=CapacityLimiter(1))
        if made[1] is not None:
            self._task = None
            return made
        ended = time.monotonic()
        self._until = ended + max(self._seconds, (_PARTS - 1) * (ended - begun))
        return made
