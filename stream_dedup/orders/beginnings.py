"""Record on the topic `begun` (`log.begun_partitions`) which partitions workers have started to read.

This shows later whether a partition without a committed offset is new, or has lost its offset. A
worker begins a partition without a committed offset in these steps: read the begun partitions; read
the offset once more; commit the first offset; record the partition as begun; read it. If the worker
is killed after the commit, the partition's next owner finds the offset and records the partition. So
a begun partition without an offset has lost it, and the outputs contain no document of a partition
that is not begun.

Invariant: no record of a partition is read before `record` has returned for it.

If an offset was lost, or has no epoch, the new epoch follows the highest one in the log
(`read_log_watermarks`), because only a record of the log can have raised the index's watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog
from structlog.typing import FilteringBoundLogger

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.topics import TopicNames
from stream_dedup.kafka import Admin, LogAppender, read_whole_log
from stream_dedup.log import records
from stream_dedup.log.begun_partitions import (
    BegunPartitions,
    encode_begun,
    encode_opened,
    encode_reading,
)
from stream_dedup.log.records import LogRecord
from stream_dedup.orders.rewind import LogWatermarks
from stream_dedup.preflight.declaration import check_reading, reading_of
from stream_dedup.preflight.finding import raise_refusals
from stream_dedup.settings.settings import Settings

_logger = structlog.get_logger("stream_dedup.worker")


def append_begun(settings: Settings, names: TopicNames, *raws: bytes) -> None:
    """Append records to `begun` in their order.

    Raises:
        BrokerError: a record was not written.
    """
    appender = LogAppender(settings, names.begun, "begun")
    for raw in raws:
        appender.send(raw, None, lambda _: None)
    appender.flush()


class Beginnings:
    """The begun partitions of the source topic, as this worker last read them.

    `read` has the interface of `read_whole_log`, and `write` that of `append_begun`.
    """

    def __init__(
        self,
        settings: Settings,
        names: TopicNames,
        log_id: bytes,
        topic_id: bytes,
        *,
        make_admin: Callable[[Settings], Admin] = Admin,
        read: Callable[
            [Settings, str], Iterable[tuple[int, records.LogRecord | None]]
        ] = read_whole_log,
        write: Callable[..., None] = append_begun,
        logger: FilteringBoundLogger = _logger,
    ) -> None:
        self._settings = settings
        self._names = names
        self._make_admin = make_admin
        self._read = read
        self._write = write
        self._logger = logger
        self._begun = BegunPartitions(log_id, topic_id)
        self.refresh()

    def refresh(self) -> None:
        """Read the topic again, because other workers may have begun partitions; it has few records."""
        self._begun.fold_all(self._read(self._settings, self._names.begun))

    def is_begun(self, partition: int) -> bool:
        """Return whether a partition was begun."""
        return partition in self._begun.partitions

    def record(self, partitions: Iterable[int]) -> None:
        """Record partitions as begun; the group must have a committed offset for each.

        Raises:
            BrokerError: the record was not written; the partitions must not be read.
        """
        if new := set(partitions) - self._begun.partitions:
            self._write(self._settings, self._names, self._encode(new))  # idempotent
            self._begun.partitions |= new

    def record_older_partitions(self, partitions: int) -> None:
        """Record the partitions that were begun before the topic `begun` existed; do this once, for a
        log that is older than the topic.

        These are the partitions with a committed offset. If no partition has one, although the log
        contains a document of the source topic, the offsets were lost, and all `partitions` count
        as begun. Before that, the offsets are read once more: another worker may have begun
        meanwhile, and it commits an offset before it sends a document to the log.
        """
        if self._begun.is_complete:
            return
        topic = self._names.documents
        admin = self._make_admin(self._settings)
        begun: Iterable[int] = admin.partitions_committed(self._settings.group, topic)
        if not begun and self._log_has_documents():
            begun = admin.partitions_committed(self._settings.group, topic) or range(partitions)
        self._write(
            self._settings,
            self._names,
            *([self._encode(begun)] if begun else []),
            encode_opened(self._begun.log_id),
        )
        self._begun.partitions.update(begun)
        self._begun.is_complete = True
        self._logger.info(
            "the topic of started partitions now records this source",
            topic=self._names.begun,
            partitions=sorted(begun),
        )

    def ensure_reading(self) -> None:
        """Check that this worker's input settings are those recorded in `begun`; record them if there
        are none yet.

        Raises:
            ConfigurationError: this worker's settings differ.
        """
        if self._begun.reading is None:
            raw = encode_reading(self._begun.log_id, reading_of(self._settings), changes=False)
            self._write(self._settings, self._names, raw)
            self.refresh()  # another worker may have written first
        raise_refusals([check_reading(self._settings, self._begun.reading)])

    def _log_has_documents(self) -> bool:
        for _, record in self._read(self._settings, self._names.fingerprints):
            if isinstance(record, records.Batch) and any(
                source.topic_id == self._begun.topic_id for source in record.sources
            ):
                return True
        return False

    def _encode(self, partitions: Iterable[int]) -> bytes:
        return encode_begun(
            self._begun.log_id, self._names.documents, self._begun.topic_id, partitions
        )


def record_empty_log(settings: Settings, names: TopicNames) -> None:
    """Record for an empty log that no partition was begun."""
    log_id = Admin(settings).topic_ids([names.fingerprints])[names.fingerprints].topic_id
    append_begun(settings, names, encode_opened(log_id))


def read_log_watermarks(
    settings: Settings,
    names: TopicNames,
    topic_id: bytes,
    advance: Callable[[int, int], None] = lambda _documents, _bytes: None,
    read: Callable[..., Iterable[tuple[int, LogRecord | None]]] = read_whole_log,
) -> LogWatermarks:
    """Read the whole log and return its watermarks; call `advance` with (documents, bytes) for
    progress. `read` has the interface of `read_whole_log`.

    Raises:
        ConfigurationError: the log is missing, incomplete, or belongs to another group.
        BrokerError: the log cannot be read to its end.
        OtherFormatError: a newer version wrote a record.
    """
    watermarks = LogWatermarks(topic_id, names.documents)
    for _, record in read(settings, names.fingerprints, advance):
        if record is not None:
            watermarks.fold(record)
    if watermarks.group not in (None, settings.group):
        raise ConfigurationError(
            f"The log belongs to group {watermarks.group!r}, but STREAM_DEDUP_GROUP is "
            f"{settings.group!r}, whose offsets no worker uses. Set it to the workers' group."
        )
    return watermarks
