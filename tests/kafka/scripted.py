"""Kafka clients with scripted calls, and the records that they return."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException
from confluent_kafka import Message as RawMessage


def refusal(code: int, text: str = "refused", **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, text, **flags))


def lost_error(cause: KafkaException | None = None) -> SystemError:
    """Return the error that Python raises if a delivery report raises; sometimes it has no
    cause."""
    error = SystemError("a method returned a result with an exception set")
    error.__cause__ = cause
    return error


def record(offset: int, partition: int = 0, error: KafkaError | None = None) -> RawMessage:
    """Return what a consumer of `documents` returns: a record, or an error in its place."""
    return RawMessage(
        "documents",
        partition,
        offset,
        b"k",
        b"k",
        error=error,
        timestamp=(TIMESTAMP_CREATE_TIME, 1),
    )


def future_of(answer: Any) -> Future[Any]:
    """Return the future of an admin request: with an answer, or with an error."""
    future: Future[Any] = Future()
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


class Scripted:
    """Steps by method name: an error is raised, a function is called, another value is returned.
    Other methods return 0."""

    def __init__(self, **steps: Any) -> None:
        self._steps = steps
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.calls.append(name)
            step = self._steps.get(name, 0)
            if isinstance(step, BaseException):
                raise step
            return step(*given, **named) if callable(step) else step

        return call


def patch_producers(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, make: Callable[[dict[str, Any]], Scripted]
) -> list[Scripted]:
    """Make `module` build its producers with `make`; return the list of those built so far."""
    made: list[Scripted] = []

    def make_and_record(config: dict[str, Any]) -> Scripted:
        made.append(make(config))
        return made[-1]

    monkeypatch.setattr(module, "make_producer", make_and_record)
    return made
