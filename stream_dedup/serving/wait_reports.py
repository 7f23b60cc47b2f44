"""Report a role's waits: a log line when a wait begins, every minute, and when it ends. The role is
not ready meanwhile.

    waiting for Kafka        why="Connection refused at kafka:9092"
    waiting for Kafka        why="Connection refused at kafka:9092" waited_seconds=60
    no longer waiting for Kafka    waited_seconds=71

Invariants: reports of the same wait count as one wait until it ends. A thread asks Kafka every two
seconds (`Watch`), because librdkafka reports failed connections but not recovered ones; its result
affects only waits and readiness, never a document.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from stream_dedup.domain.errors import (
    BrokerError,
    ConfigurationError,
    GoneError,
    NoAnswerError,
    StreamDedupError,
)
from stream_dedup.kafka import Admin
from stream_dedup.serving.health import Health
from stream_dedup.settings.settings import Settings

REPEAT_SECONDS = 60.0


@dataclass(slots=True)
class _Wait:
    began: float
    logged: float
    why: str


class Waits:
    """The waits of a role; its loop and its threads report them."""

    def __init__(
        self, health: Health, log: Any, now_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = log
        self._now_seconds = now_seconds
        self._lock = threading.Lock()
        self._waits: dict[str, _Wait] = {}
        health.add_blocker(self.sentence)

    def report(self, what: str, why: str, *, since: float | None = None) -> None:
        """Report that the role waits for `what`, and why; `since` is the time at which the wait
        began, if not now.
        """
        now = self._now_seconds()
        with self._lock:
            wait = self._waits.get(what)
            if wait is None:
                self._waits[what] = _Wait(now if since is None else since, now, why)
                self._logger.warning(f"waiting for {what}", why=why)
                return
            wait.why = why
            if now - wait.logged >= REPEAT_SECONDS:
                wait.logged = now
                self._logger.warning(
                    f"waiting for {what}", why=why, waited_seconds=round(now - wait.began)
                )

    def end(self, what: str) -> None:
        """Report that the role does not wait for `what` any more."""
        with self._lock:
            wait = self._waits.pop(what, None)
            if wait is not None:
                waited = round(self._now_seconds() - wait.began, 1)
                self._logger.warning(f"no longer waiting for {what}", waited_seconds=waited)

    def sentence(self) -> str:
        """Return the present waits as a sentence; "" if there are none."""
        with self._lock:
            now = self._now_seconds()
            return "; ".join(
                f"waiting for {what} for {now - wait.began:.0f} s: {wait.why}"
                for what, wait in self._waits.items()
            )


_ASK_SECONDS = 5.0
_PAUSE_SECONDS = 2.0
_POLL_SECONDS = 0.2
_KAFKA = "Kafka"
_TOPICS = "its topics"
_ANSWER = "an answer"

T = TypeVar("T")


class Watch:
    """Asks Kafka regularly in a second thread whether it answers; a context manager."""

    def __init__(
        self,
        settings: Settings,
        topic: str,
        waits: Waits,
        make: Callable[[Settings], Admin] = Admin,
    ) -> None:
        """Create the watch. `topic`: one that the role is allowed to describe."""
        self._settings = settings
        self._topic = topic
        self._waits = waits
        self._make = make
        self._stop_event = threading.Event()
        self._has_asked = threading.Event()
        self._refusal: ConfigurationError | None = None
        self._is_silent = False
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # the thread may be in a request that cannot be cancelled; it needs no cleanup
        self._stop_event.set()

    def is_silent(self) -> bool:
        """Return whether Kafka did not answer the last request."""
        return self._is_silent

    def wait(self, stop: threading.Event) -> bool:
        """Wait until Kafka answers; return False if `stop` is set before.

        Raises:
            ConfigurationError: the brokers refuse the connection.
        """
        while not stop.is_set():
            if self._refusal is not None:
                raise self._refusal
            if self._has_asked.wait(_POLL_SECONDS) and not self._is_silent:
                return True
            if self._has_asked.is_set():
                stop.wait(_POLL_SECONDS)
        return False

    def begin(self, stop: threading.Event, make: Callable[[], T]) -> T:
        """Return the result of `make`. Retry it while a topic is missing, and when Kafka answers again
        after an outage.

        Raises:
            ConfigurationError, BrokerError: `make` raised another error, or `stop` was set.
        """
        while True:
            try:
                made = make()
            except GoneError as error:
                self._waits.report(_TOPICS, str(error))
                if stop.wait(_PAUSE_SECONDS):
                    raise
            except BrokerError as error:
                if isinstance(error, NoAnswerError):
                    self._waits.report(_ANSWER, str(error))
                elif not self._is_silent:
                    raise
                if stop.wait(_POLL_SECONDS) or not self.wait(stop):
                    raise
            else:
                self._waits.end(_TOPICS)
                self._waits.end(_ANSWER)
                return made

    def _run(self) -> None:
        admin: Admin | None = None
        while not self._stop_event.is_set():
            try:
                admin = admin or self._make(self._settings)
                why = admin.find_silence_reason(self._topic, _ASK_SECONDS)
            except ConfigurationError as error:
                self._refusal = (
                    error  # ends a role that waits at its start; a running one only reports it
                )
                admin, why = None, str(error)
            except StreamDedupError as error:
                admin, why = None, str(error)
            if self._stop_event.is_set():
                return
            self._process_answer(why)
            self._stop_event.wait(_PAUSE_SECONDS)

    def _process_answer(self, why: str) -> None:
        self._is_silent = bool(why)
        if why:
            self._waits.report(
                _KAFKA, f"{why.removesuffix('.')}, at {self._settings.kafka_bootstrap_servers}"
            )
        else:
            self._refusal = None
            self._waits.end(_KAFKA)
        self._has_asked.set()
