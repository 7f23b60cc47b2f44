"""The worker's dependencies: Kafka clients, threads, clock, random bytes, decoder and fingerprinter.

Tests replace them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import structlog
from structlog.typing import FilteringBoundLogger

from stream_dedup.domain.failpoints import VARIABLE, Failpoints
from stream_dedup.domain.memory_limit import resident_bytes
from stream_dedup.domain.threads import SideThread
from stream_dedup.domain.topics import TopicNames
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.kafka import (
    Admin,
    LogAppender,
    RebalanceListener,
    RetryPolicy,
    SourceConsumer,
    TransactionalOutput,
    VerdictReader,
)
from stream_dedup.log.records import DOCUMENTS_MAX
from stream_dedup.orders.beginnings import Beginnings
from stream_dedup.serving.wait_reports import Waits, Watch
from stream_dedup.settings.settings import Settings
from stream_dedup.worker import startup
from stream_dedup.worker.flow import Flow
from stream_dedup.worker.metrics import WorkerMetrics
from stream_dedup.worker.prepare import SLOW_BYTES

_logger = structlog.get_logger("stream_dedup.worker")

DRAIN_SECONDS = 20.0


class Clock(Protocol):
    """The clock; the module `time` implements it."""

    def time(self) -> float:
        """Return seconds since 1970."""

    def monotonic(self) -> float:
        """Return seconds since an unspecified start; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Wait `seconds`."""


@dataclass(frozen=True)
class IntakePace:
    """The timing of reads and of preparing.

    A read waits at most `idle_seconds` for records. The next read comes `gather_seconds` later, so
    that records gather: a small batch costs the broker and the index as much as a large one. The
    loop waits for the preparation of a batch of fewer than `quick_records`, because it is short.
    After `slice_seconds` the records prepared so far go in flight, and the remainder is prepared
    next; if the recipe is slow, the clock is read after each `slow_bytes` of values. A log record
    contains at most `record_documents`.
    """

    idle_seconds: float = 0.1
    gather_seconds: float = 0.02
    quick_records: int = 500
    slice_seconds: float = 1.0
    slow_bytes: int = SLOW_BYTES
    record_documents: int = DOCUMENTS_MAX


@dataclass(frozen=True)
class WorkerDependencies:
    """Factories and functions that a worker uses.

    When it stops, it delivers batches in flight for at most `drain_seconds`, and then closes its
    clients within `close_seconds`.
    """

    failpoint: str | None = None
    clock: Clock = time
    random_bytes: Callable[[int], bytes] = os.urandom
    resident_bytes: Callable[[], int] = resident_bytes
    make_thread: Callable[[str], SideThread] = SideThread
    make_event: Callable[[], threading.Event] = threading.Event
    make_watch: Callable[[Settings, str, Waits], Watch] = Watch
    make_admin: Callable[[Settings], Admin] = Admin
    make_beginnings: Callable[[Settings, TopicNames, bytes, bytes], Beginnings] = Beginnings
    make_source: Callable[[Settings, str, str, RebalanceListener, RetryPolicy], SourceConsumer] = (
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
    logger: FilteringBoundLogger = _logger

    @classmethod
    def of_process(cls, **more: Any) -> Self:
        """Return the dependencies of this process, with those in `more` replaced."""
        return cls(
            **{"failpoint": os.environ.get(VARIABLE), "make_fingerprinter": Fingerprinter} | more
        )


class WorkerContext(NamedTuple):
    """The objects that all parts of a worker share. `stop` is set to end it, `beat` reports that it
    is alive, and `retry_policy` bounds the wait for an unavailable Kafka.
    """

    flow: Flow
    stop: threading.Event
    beat: Callable[[], None]
    metrics: WorkerMetrics
    failpoints: Failpoints
    clock: Clock
    logger: FilteringBoundLogger
    retry_policy: RetryPolicy = RetryPolicy()
