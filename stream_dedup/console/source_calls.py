"""Call sources in threads, with limits; convert errors to an HTTP status and a sentence."""

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
    """Return the title of the error page for an HTTP status."""
    return _TITLES.get(status, "Internal error")


@contextlib.contextmanager
def as_page_errors() -> Iterator[None]:
    """Raise each error in the `with` block as a `PageError`; log internal errors."""
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
    """Runs calls in threads, at most `calls_max` at a time, each with a timeout of `seconds`."""

    def __init__(self, calls_max: int, seconds: float) -> None:
        self._calls_max = calls_max
        self._seconds = seconds
        self._free_calls = asyncio.Semaphore(calls_max)

    async def __call__(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which runs in a thread.

        Raises:
            PageError: too many calls are running, or the call has not returned within the timeout.
        """
        if self._free_calls.locked():
            raise PageError(
                503,
                f"The console already answers {self._calls_max} requests; try again in a second.",
            )
        await self._free_calls.acquire()
        task = asyncio.ensure_future(run_in_threadpool(outcome_of, call))
        task.add_done_callback(self._end_call)
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

    def _end_call(self, task: asyncio.Future[Any]) -> None:
        self._free_calls.release()  # not at the timeout: the thread is busy until the call returns
        if not task.cancelled():
            task.exception()  # mark it as handled: after the timeout nothing else reads it
