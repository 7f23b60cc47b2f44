"""Run blocking calls in another thread, so that the caller continues meanwhile, or abandons a call
that does not return.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Outcome: TypeAlias = tuple[T | None, BaseException | None]


class SideThread:
    """Runs blocking calls, one at a time, in a separate thread.

    This bounds waits that librdkafka does not bound. In version 2.16.0, after a broker's restart,
    send_offsets_to_transaction can wait far longer than its timeout, because librdkafka forgets the
    transaction's coordinator if the killed broker is missing from one metadata response.
    """

    def __init__(self, name: str) -> None:
        self._result: Any = None
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Outcome[Any]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def start(self, function: Callable[[], Any]) -> None:
        """Run `function`. The caller must poll `ended` until it is True before the next call."""
        self._calls.put(function)

    def ended(self, seconds: float) -> bool:
        """Wait for the running call for at most `seconds`; return whether it has ended, and raise
        the error that it raised.
        """
        try:
            outcome = [self._done.get(timeout=seconds)]
        except queue.Empty:
            return False
        self._result = result_of(outcome.pop())
        return True

    def take_result(self) -> Any:
        """Return the result of the last call and drop it, because a batch and its transaction are
        large.
        """
        result, self._result = self._result, None
        return result

    def call(self, function: Callable[[], Any], seconds: float) -> None:
        """Run `function` and wait for it; raise the error that it raised.

        Raises:
            TimeoutError: the call has not ended in `seconds`; this object must not be used again.
        """
        self.start(function)
        if not self.ended(seconds):
            self.leave()
            raise TimeoutError

    def leave(self) -> None:
        """Let the thread end after the running call."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (function := self._calls.get()) is not None:
            self._done.put(outcome_of(function))
            del function  # it refers to large objects, and the next call may come much later


def outcome_of(function: Callable[[], T]) -> Outcome[T]:
    """Return (result, error) of a call: one of them is None. The pair is passed between threads and
    tasks instead of a future.

    A future that contains an error is part of a cycle with the frames of its traceback. Their
    locals, such as a client with its threads, would live until the garbage collector looks for
    cycles, which happens rarely in a role.
    """
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
        return None, error


def result_of(outcome: Outcome[T]) -> T:
    """Return the result of the call or raise its error. The caller must not keep a reference to
    `outcome`.
    """
    result, error = outcome
    del outcome
    if error is None:
        return result  # type: ignore[return-value] # the result may be None too
    try:
        raise error
    finally:
        del error
