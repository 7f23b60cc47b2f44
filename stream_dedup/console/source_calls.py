"""Call sources in threads, with limits, and turn failures into a status and a sentence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import structlog
from starlette.concurrency import run_in_threadpool

from stream_dedup.console.pages import PageError
from stream_dedup.domain.errors import InputError, StreamDedupError
from stream_dedup.domain.threads import outcome_of, result_of

_logger = structlog.get_logger("stream_dedup.console")

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
    """Return the title of the page for a status."""
    return _TITLES.get(status, "Internal error")


@contextlib.contextmanager
def as_page_errors() -> Iterator[None]:
    """Raise a `PageError` for each error inside; log an internal error."""
    try:
        yield
    except PageError:
        raise
    except InputError as error:
        raise PageError(400, str(error)) from error
    except StreamDedupError as error:
        raise PageError(503, str(error)) from error
    except Exception as error:
        _logger.exception("a request failed", error=f"{type(error).__name__}: {error}")
        raise PageError(
            500, "The request failed because of an internal error; see the role's log."
        ) from error


class BoundedCalls:
    """Calls in threads, at most `calls_max` at a time, each with a timeout of `seconds`."""

    def __init__(self, calls_max: int, seconds: float) -> None:
        self._most = calls_max
        self._seconds = seconds
        self._calls = asyncio.Semaphore(calls_max)

    async def __call__(self, call: Callable[[], T]) -> T:
        """Call in a thread; return its result within the timeout."""
        if self._calls.locked():
            raise PageError(
                503, f"{self._most} requests are being answered already; try again in a second."
            )
        await self._calls.acquire()
        task = asyncio.ensure_future(run_in_threadpool(outcome_of, call))
        task.add_done_callback(self._called)
        try:
            outcome = [await asyncio.wait_for(asyncio.shield(task), self._seconds)]
        except TimeoutError:
            raise PageError(
                503,
                f"No answer arrived within {self._seconds:.0f} s; is Kafka or the index unavailable?",
            ) from None
        finally:
            del task
        return result_of(outcome.pop())

    def _called(self, task: asyncio.Future[Any]) -> None:
        self._calls.release()  # only now: a call that hangs takes its place until it returns
        if not task.cancelled():
            task.exception()  # the page that waited has had its answer
