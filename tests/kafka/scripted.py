"""Clients of Kafka whose calls do what a test says, and the records that they give."""

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


def lost(cause: KafkaException | None = None) -> SystemError:
    """Return what Python makes of a fatal error that is raised while a report is given; at times it
    loses the cause."""
    error = SystemError("a method returned a result with an exception set")
    error.__cause__ = cause
    return error


def record(offset: int, partition: int = 0, error: KafkaError | None = None) -> RawMessage:
    """Return what a consumer of `documents` gives: a record, or an error in its place."""
    return RawMessage(
        "documents",
        partition,
        offset,
        b"k",
        b"k",
        error=error,
        timestamp=(TIMESTAMP_CREATE_TIME, 1),
    )


def answered(answer: Any) -> Future[Any]:
    """Return what an administrator's question gives: an answer, or an error that is raised."""
    future: Future[Any] = Future()
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


class Scripted:
    """Calls by name: an error is raised, a function is called, anything else is returned; what is
    not named returns 0."""

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


def put(
    monkeypatch: pytest.MonkeyPatch, room: ModuleType, make: Callable[[dict[str, Any]], Scripted]
) -> list[Scripted]:
    """Have a module make its producers so, by their configuration; return the list of those that it
    has made."""
    made: list[Scripted] = []

    def maker(config: dict[str, Any]) -> Scripted:
        made.append(make(config))
        return made[-1]

    monkeypatch.setattr(room, "make_producer", maker)
    return made
