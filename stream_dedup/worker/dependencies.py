"""What a worker depends on: Kafka's clients, threads, the clock, chance, and what reads texts. A
test hands in its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import structlog

from stream_dedup.domain.failpoints import VARIABLE, Failpoints
from stream_dedup.domain.memory_limit import resident_bytes
from stream_dedup.domain.threads import SideThread
from stream_dedup.domain.topics import TopicNames
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.kafka import (
    Admin,
    LogAppender,
    Patience,
    RebalanceListener,
    SourceConsumer,
    TransactionalOutput,
    VerdictReader,
)
from stream_dedup.log.records import DOCUMENTS_MAX
from stream_dedup.orders.beginnings import Beginnings
from stream_dedup.serving.waits import Waits, Watch
from stream_dedup.settings.settings import Settings
from stream_dedup.worker import startup
from stream_dedup.worker.flow import Flow
from stream_dedup.worker.metrics import WorkerMetrics
from stream_dedup.worker.prepare import SLOW_BYTES

_logger = structlog.get_logger("stream_dedup.worker")

DRAIN_SECONDS = 20.0


class Clock(Protocol):
    """The time, as the module `time` tells it."""

    def time(self) -> float:
        """Return seconds since 1970."""

    def monotonic(self) -> float:
        """Return seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Wait `seconds`."""


@dataclass(frozen=True)
class IntakePace:
    """How fast a worker reads and prepares.

    A read waits `idle_seconds` where nothing comes. What comes after it is gathered for
    `gather_seconds`: each small batch costs broker and index as much as a large one. A batch of
    fewer than `aside_records` is waited for: it is usually prepared before the loop has turned.
    What is prepared after `slice_seconds` goes on its way, and the rest of the batch comes next;
    where texts take long, the clock is looked at after each `slow_bytes` of values. A log record
    holds at most `record_documents`.
    """

    idle_seconds: float = 0.1
    gather_seconds: float = 0.02
    aside_records: int = 500
    slice_seconds: float = 1.0
    slow_bytes: int = SLOW_BYTES
    record_documents: int = DOCUMENTS_MAX


@dataclass(frozen=True)
class WorkerDependencies:
    """What a worker finds around it, and how long it waits for what may never come."""

    failpoint: str | None = None
    clock: Clock = time
    random_bytes: Callable[[int], bytes] = os.urandom
    resident_bytes: Callable[[], int] = resident_bytes
    make_thread: Callable[[str], SideThread] = SideThread
    make_event: Callable[[], threading.Event] = threading.Event
    make_watch: Callable[[Settings, str, Waits], Watch] = Watch
    make_admin: Callable[[Settings], Admin] = Admin
    make_beginnings: Callable[[Settings, TopicNames, bytes, bytes], Beginnings] = Beginnings
    make_source: Callable[[Settings, str, str, RebalanceListener, Patience], SourceConsumer] = (
        SourceConsumer
    )
    make_verdicts: Callable[[Settings, str, str], VerdictReader] = VerdictReader
    make_appender: Callable[[Settings, str, str], LogAppender] = LogAppender
    make_transactions: Callable[..., TransactionalOutput] = TransactionalOutput
    make_fingerprinter: Callable[[Recipe], Fingerprinter] = Fingerprinter
    make_decoder: Callable[..., Decoder] = Decoder
    inspect: Callable[[Settings, TopicNames, Recipe], startup.SourceCluster] = startup.inspect
    pace: IntakePace = IntakePace()
    drain_seconds: float = DRAIN_SECONDS
    close_seconds: float = 8.0
    logger: Any = _logger

    @classmethod
    def of_process(cls, **more: Any) -> Self:
        """Return those of this process, some of them replaced."""
        return cls(
            **{"failpoint": os.environ.get(VARIABLE), "make_fingerprinter": Fingerprinter} | more
        )


class WorkerContext(NamedTuple):
    """What all parts of one worker share. `stop` tells it to end; by `beat` it says that it is
    alive; with `patience` it waits for a Kafka that is away.
    """

    flow: Flow
    stop: threading.Event
    beat: Callable[[], None]
    metrics: WorkerMetrics
    failpoints: Failpoints
    clock: Clock
    logger: Any
    patience: Patience = Patience()
