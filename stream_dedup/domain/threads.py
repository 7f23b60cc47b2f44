"""Threads beside the one that owns them: it goes on while a call runs, or leaves behind a call that
does not return.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Outcome: TypeAlias = tuple[T | None, BaseException | None]


class SideThread:
    """Makes blocking calls, one at a time, in a thread of its own.

    librdkafka forgets the transaction's coordinator when a broker that was killed is missing from
    one metadata answer; then send_offsets_to_transaction waits far longer than the time-out that it
    was given (seen with 2.16.0 at a broker's restart).
    """

    def __init__(self, name: str) -> None:
        self._result: Any = None
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Outcome[Any]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def start(self, function: Callable[[], Any]) -> None:
        """Run `function`; the caller asks `ended` until it has, before it starts anything else."""
        self._calls.put(function)

    def ended(self, seconds: float) -> bool:
        """Return whether it has ended, after waiting for `seconds` at most, and raise what it
        raised.
        """
        try:
            outcome = [self._done.get(timeout=seconds)]
        except queue.Empty:
            return False
        self._result = result_of(outcome.pop())
        return True

    def take_result(self) -> Any:
        """Return what the call gave that ended last. It is not kept: a batch and its transaction
        are large.
        """
        result, self._result = self._result, None
        return result

    def call(self, function: Callable[[], Any], seconds: float) -> None:
        """Run `function` and raise what it raises.

        Raises:
            TimeoutError: it has not returned; this object must not be used again.
        """
        self.start(function)
        if not self.ended(seconds):
            self.leave()
            raise TimeoutError

    def leave(self) -> None:
        """Let the thread end, once the call has returned that runs."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (function := self._calls.get()) is not None:
            self._done.put(outcome_of(function))
            del function  # what it carries is large, and the next one may be long in coming


def outcome_of(function: Callable[[], T]) -> Outcome[T]:
    """Return what a function gave, or what it raised, as a value: so it crosses threads and tasks.

    A future that holds an error is held by the frames that the error has passed. What these have in
    their hands, such as a client with its threads, would stay until Python looks for cycles, which
    a role has it do rarely.
    """
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
        return None, error


def result_of(outcome: Outcome[T]) -> T:
    """Return what the function gave, or raise what it raised. Who calls this holds the outcome by
    no name of its own.
    """
    result, error = outcome
    del outcome
    if error is None:
        return result  # type: ignore[return-value] # it is what the function gave, None too
    try:
        raise error
    finally:
        del error
