"""What all have in common that answer people: questions in threads, bounded, and what fails as a
status and a sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from starlette.concurrency import run_in_threadpool
from structlog.typing import FilteringBoundLogger

from stream_dedup.console.pages import PageError
from stream_dedup.domain.errors import InputError, StreamDedupError
from stream_dedup.domain.threads import outcome_of, result_of

_TITLES: Final = {
    400: "Bad request",
    401: "Token required",
    404: "Not found",
    410: "Forgotten",
    413: "Too large",
    500: "Internal error",
    503: "Unavailable",
}

T = TypeVar("T")


def title_of(status: int) -> str:
    """Return what a status is called on a page."""
    return _TITLES.get(status, "Internal error")


@contextlib.contextmanager
def as_page_errors(logger: FilteringBoundLogger, event: str, failed: str) -> Iterator[None]:
    """Make a `PageError` of each failure inside. A fault of the program is logged as `event`;
    `failed` says what it cost.
    """
    try:
        yield
    except PageError:
        raise
    except InputError as error:
        raise PageError(400, str(error)) from error
    except StreamDedupError as error:
        raise PageError(503, str(error)) from error
    except Exception as error:
        logger.exception(event, error=f"{type(error).__name__}: {error}")
        raise PageError(
            500, f"{failed} because of a fault of the program; the role's log says which."
        ) from error


class BoundedCalls:
    """Calls in threads, at most `most` at a time, each waited for `seconds`; `away` asks who is, if
    it takes longer.
    """

    def __init__(self, calls_max: int, seconds: float, hint: str) -> None:
        self._most = calls_max
        self._seconds = seconds
        self._away = hint
        self._calls = asyncio.Semaphore(calls_max)

    async def __call__(self, call: Callable[[], T]) -> T:
        """Call in a thread, and wait for it for a bounded time."""
        if self._calls.locked():
            raise PageError(
                503, f"{self._most} questions are being answered already; ask again in a second."
            )
        await self._calls.acquire()
        task = asyncio.ensure_future(run_in_threadpool(outcome_of, call))
        task.add_done_callback(self._called)
        try:
            outcome = [await asyncio.wait_for(asyncio.shield(task), self._seconds)]
        except TimeoutError:
            raise PageError(
                503, f"No answer came within {self._seconds:.0f} s; {self._away}"
            ) from None
        finally:
            del task
        return result_of(outcome.pop())

    def _called(self, task: asyncio.Future[Any]) -> None:
        self._calls.release()  # only now: a call that hangs takes its place until it returns
        if not task.cancelled():
            task.exception()  # the page that waited was told, or has gone
