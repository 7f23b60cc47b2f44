"""Check twice a minute whether Kafka keeps the records that a role needs: the settings of the log,
the first offset of the log and of `documents`, and the age of uncommitted records.

Invariant: the result affects readiness, log lines and metrics, never a document. A role that has
already applied or committed the removed records continues.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple, Self

from structlog.typing import FilteringBoundLogger

from stream_dedup.domain.document import TopicPartitionKey
from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.domain.topics import TopicState, log_problems, removed_from_log
from stream_dedup.kafka import Admin, group_offsets, read_spans
from stream_dedup.serving.health import Health
from stream_dedup.serving.metrics import RetentionMetrics, SourceRetentionMetrics
from stream_dedup.settings.settings import Settings

CHECK_SECONDS = 30.0
_LOG_SECONDS = 600.0
# Some offsets are markers of a crawler's transactions, without a timestamp.
_OFFSETS_SAMPLED = 20


class Loss(NamedTuple):
    """A topic from which Kafka removes, or has removed, needed records; `blocks`: the role is not
    ready.
    """

    topic: str
    sentence: str
    blocks: bool


class RetentionWatch:
    """Checks the log, and with `SourceRetentionMetrics` also `documents`, which a worker reads, in a
    second thread; a context manager.
    """

    def __init__(
        self,
        settings: Settings,
        health: Health,
        metrics: RetentionMetrics,
        logger: FilteringBoundLogger,
        make_admin: Callable[[Settings], Admin] = Admin,
    ) -> None:
        self._settings = settings
        self._names = settings.topic_names
        self._unkept = metrics.unkept
        self._source_metrics = metrics if isinstance(metrics, SourceRetentionMetrics) else None
        self._logger = logger
        self._make_admin = make_admin
        self._losses: tuple[Loss, ...] = ()
        self._next_log = 0.0
        self._stop_event = threading.Event()
        health.add_blocker(self.sentence)

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="kept", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()  # the thread may be in a request that cannot be cancelled

    def sentence(self) -> str:
        """Return why the role is not ready; "" if Kafka keeps the records that it needs."""
        return " ".join(loss.sentence for loss in self._losses if loss.blocks)

    def _run(self) -> None:
        admin: Admin | None = None
        while not self._stop_event.is_set():
            try:
                admin = admin or self._make_admin(self._settings)
                self.check_once(admin)
            except StreamDedupError as error:
                admin = None  # `Watch` reports whether Kafka answers
                self._logger.debug("the topics could not be checked", reason=str(error))
            self._stop_event.wait(CHECK_SECONDS)

    def check_once(self, admin: Admin) -> None:
        """Check the topics once, and report the losses.

        Raises:
            BrokerError: Kafka does not answer.
        """
        losses = tuple(self._losses_of_log(admin))
        topics = [self._names.fingerprints]
        if self._source_metrics is not None:
            losses += tuple(self._losses_of_source(admin, self._source_metrics))
            topics.append(self._names.documents)
        now = time.monotonic()
        if losses != self._losses or now >= self._next_log:
            for loss in losses:
                self._logger.error(loss.sentence, topic=loss.topic)
            if self._losses and not losses:
                self._logger.warning("Kafka again keeps all records that this role needs")
            self._next_log = now + _LOG_SECONDS
        self._losses = losses
        for topic in topics:
            self._unkept.labels(topic).set(any(loss.topic == topic for loss in losses))

    def _losses_of_log(self, admin: Admin) -> Iterator[Loss]:
        log = self._names.fingerprints
        state = admin.describe([log]).get(log)
        if state is None:
            return  # its readers report a missing log
        for sentence in log_problems(log, state):
            yield Loss(log, sentence, blocks=True)
        low, _ = admin.bounds([(log, 0)])[log, 0]
        if low:
            yield Loss(log, removed_from_log(log, low), blocks=False)

    def _losses_of_source(self, admin: Admin, metrics: SourceRetentionMetrics) -> Iterator[Loss]:
        topic, group = self._names.documents, self._settings.group
        state = admin.describe([topic]).get(topic)
        if state is None:
            return
        metrics.retention.set(_retention_seconds(state))
        bounds = admin.bounds([(topic, part) for part in range(state.partitions)])
        committed = {
            (topic, part): committed_offset.offset
            for part, committed_offset in group_offsets(
                self._settings, group, topic, state.partitions, is_stable=False
            ).items()
            if committed_offset.offset is not None
        }
        unread: dict[TopicPartitionKey, tuple[int, int]] = {}
        for key, offset in committed.items():
            low, end = bounds[key]
            if offset < low:
                where = f"{topic}-{key[1]}"
                yield Loss(
                    topic,
                    f"{where} begins at offset {low}, but the group {group} has committed only up "
                    f"to {offset}: Kafka deleted {low - offset} records before they were judged. "
                    f"Raise retention.ms and retention.bytes of {topic}. If the worker exits, "
                    f"continue with: stream-dedup rewind {where}@{low}",
                    blocks=True,
                )
            if max(offset, low) < end:
                unread[key] = (max(offset, low), end)
        metrics.oldest_unread.set(self._oldest_seconds(unread))

    def _oldest_seconds(self, unread: Mapping[TopicPartitionKey, tuple[int, int]]) -> float:
        """Return the age in seconds of the oldest record, by timestamp, among the first records of the
        spans; 0 without records.
        """
        first: dict[TopicPartitionKey, int] = {}
        spans = {
            key: [(start, min(start + _OFFSETS_SAMPLED, end))]
            for key, (start, end) in unread.items()
        }
        with closing(read_spans(self._settings, spans)) as messages:  # type: ignore[type-var]
            for message in messages:
                key = (message.topic, message.partition)
                if message.timestamp_ms is not None:
                    first.setdefault(key, message.timestamp_ms)
        oldest_ms = min(first.values(), default=None)
        return 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)


def _retention_seconds(state: TopicState) -> float:
    """Return the retention of a topic in seconds; NaN without a limit by age."""
    retention_ms = float(state.config.get("retention.ms", "-1"))
    is_deleted = retention_ms >= 0 and "delete" in state.config.get("cleanup.policy", "delete")
    return retention_ms / 1000 if is_deleted else math.nan
