"""Whether Kafka keeps what a role needs, asked twice a minute while the role runs: the settings of
the log, the first offset of the log and of `documents`, and the age of what no worker has committed.

Invariant: what is found decides on readiness, a log line and metrics, never on a document. A role
that has already applied or committed what Kafka removed goes on.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple, Self

from stream_dedup.domain.document import TopicPartitionKey
from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.domain.topics import TopicState, log_problems, removed_from_log
from stream_dedup.kafka import Admin, group_offsets, sample
from stream_dedup.serving.health import Health
from stream_dedup.serving.metrics import KeptMetrics, KeptSourceMetrics
from stream_dedup.settings.settings import Settings

LOOK_SECONDS = 30.0
_SAID_SECONDS = 600.0
# The markers of a crawler's transactions take offsets and have no timestamp.
_OFFSETS_SAMPLED = 20


class Loss(NamedTuple):
    """A topic from which Kafka removes, or has removed, what is needed; `blocks`: the role is not
    ready.
    """

    topic: str
    sentence: str
    blocks: bool


class KeptTopics:
    """Used as a context: it looks from `with` to its end, in a thread of its own."""

    def __init__(
        self,
        settings: Settings,
        health: Health,
        metrics: KeptMetrics,
        logger: Any,
        make_admin: Callable[[Settings], Admin] = Admin,
    ) -> None:
        self._settings = settings
        self._names = settings.topic_names
        self._unkept = metrics.unkept
        self._logger = logger
        self._make_admin = make_admin
        self._losses: tuple[Loss, ...] = ()
        self._next_said = 0.0
        self._ended = threading.Event()
        health.hold(self.sentence)

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="kept", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()  # the thread may be in a question that cannot be cut short

    def sentence(self) -> str:
        """Return why the role is not ready; nothing if Kafka keeps what it needs."""
        return " ".join(loss.sentence for loss in self._losses if loss.blocks)

    def _run(self) -> None:
        admin: Admin | None = None
        while not self._ended.is_set():
            try:
                admin = admin or self._make_admin(self._settings)
                self.look(admin)
            except StreamDedupError as error:
                admin = None  # whether Kafka answers at all, `Watch` reports
                self._logger.debug("the topics could not be checked", reason=str(error))
            self._ended.wait(LOOK_SECONDS)

    def look(self, admin: Admin) -> None:
        """Ask once, and report what is found.

        Raises:
            BrokerError: Kafka does not answer.
        """
        losses = (*self._losses_of_log(admin), *self._losses_of_source(admin))
        now = time.monotonic()
        if losses != self._losses or now >= self._next_said:
            for loss in losses:
                self._logger.error(loss.sentence, topic=loss.topic)
            if self._losses and not losses:
                self._logger.warning("Kafka keeps again what this role needs")
            self._next_said = now + _SAID_SECONDS
        self._losses = losses
        for topic in self._topics():
            self._unkept.labels(topic).set(any(loss.topic == topic for loss in losses))

    def _topics(self) -> tuple[str, ...]:
        return (self._names.fingerprints,)

    def _losses_of_log(self, admin: Admin) -> Iterator[Loss]:
        log = self._names.fingerprints
        found = admin.describe([log]).get(log)
        if found is None:
            return  # that it is gone, its readers report
        for sentence in log_problems(log, found):
            yield Loss(log, sentence, blocks=True)
        low, _ = admin.ends([(log, 0)])[log, 0]
        if low:
            yield Loss(log, removed_from_log(log, low), blocks=False)

    def _losses_of_source(self, admin: Admin) -> Iterator[Loss]:
        del admin
        yield from ()


class KeptSource(KeptTopics):
    """The same for a worker, which reads `documents` too."""

    def __init__(
        self,
        settings: Settings,
        health: Health,
        metrics: KeptSourceMetrics,
        logger: Any,
        make_admin: Callable[[Settings], Admin] = Admin,
    ) -> None:
        super().__init__(settings, health, metrics, logger, make_admin)
        self._oldest_unread = metrics.oldest_unread
        self._retention = metrics.retention

    def _topics(self) -> tuple[str, ...]:
        return (*super()._topics(), self._names.documents)

    def _losses_of_source(self, admin: Admin) -> Iterator[Loss]:
        topic, group = self._names.documents, self._settings.group
        found = admin.describe([topic]).get(topic)
        if found is None:
            return
        self._retention.set(_retention_seconds(found))
        ends = admin.ends([(topic, part) for part in range(found.partitions)])
        committed = {
            (topic, part): owned.offset
            for part, owned in group_offsets(
                self._settings, group, topic, found.partitions, is_stable=False
            ).items()
            if owned.offset is not None
        }
        unread: dict[TopicPartitionKey, tuple[int, int]] = {}
        for key, offset in committed.items():
            low, end = ends[key]
            if offset < low:
                where = f"{topic}-{key[1]}"
                yield Loss(
                    topic,
                    f"{where} begins at offset {low}, and the group {group} has committed up to "
                    f"{offset}: Kafka removed {low - offset} records before they had a verdict. "
                    f"Raise retention.ms and retention.bytes of {topic}. If the worker ends, move "
                    f"on with: stream-dedup rewind {where}@{low}",
                    blocks=True,
                )
            if max(offset, low) < end:
                unread[key] = (max(offset, low), end)
        self._oldest_unread.set(self._oldest_seconds(unread))

    def _oldest_seconds(self, unread: Mapping[TopicPartitionKey, tuple[int, int]]) -> float:
        """Return the age of the oldest first record of some spans, by its timestamp; 0 if they hold
        none.
        """
        first: dict[TopicPartitionKey, int] = {}
        spans = {
            key: [(start, min(start + _OFFSETS_SAMPLED, end))]
            for key, (start, end) in unread.items()
        }
        with closing(sample(self._settings, spans)) as messages:  # type: ignore[type-var]
            for message in messages:
                key = (message.topic, message.partition)
                if message.timestamp_ms is not None:
                    first.setdefault(key, message.timestamp_ms)
        oldest_ms = min(first.values(), default=None)
        return 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)


def _retention_seconds(found: TopicState) -> float:
    """Return after how many seconds Kafka deletes a record; NaN if never by its age."""
    retention_ms = float(found.config.get("retention.ms", "-1"))
    is_deleted = retention_ms >= 0 and "delete" in found.config.get("cleanup.policy", "delete")
    return retention_ms / 1000 if is_deleted else math.nan
