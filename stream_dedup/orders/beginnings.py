"""Whether a partition was begun: written down on the topic `begun` (`log.begun`), for the day when
the group's offsets vanish.

The order, for a partition without a committed offset: ask what was begun; ask for the offset once
more; commit the first one; write down that it was begun; read it. If a worker is killed behind the
commit, the partition's next owner finds its offset and writes it down. So a partition that stands
there and has no offset has lost it, and one that does not stand there has given nothing to the
outputs.

Invariant: nothing of a partition is read before `note` has returned for it.

Where an offset has vanished, or has no epoch, the epoch to rise from is the highest that the log
holds (`read_marks`), because nothing but a record of the log can have raised the index's watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import structlog

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.topics import TopicNames
from stream_dedup.kafka import Admin, LogAppender, read_whole
from stream_dedup.log import records
from stream_dedup.log.begun import BegunTopic, encode_begun, encode_opened, encode_reading
from stream_dedup.log.records import LogRecord
from stream_dedup.orders.rewind import Marks
from stream_dedup.preflight.declaration import check_reading, reading_of
from stream_dedup.preflight.finding import raise_refusals
from stream_dedup.settings.settings import Settings

_logger = structlog.get_logger("stream_dedup.worker")


def write_down(settings: Settings, names: TopicNames, *written: bytes) -> None:
    """Append records to `begun`, in their order.

    Raises:
        BrokerError: they could not be written.
    """
    appender = LogAppender(settings, names.begun, "begun")
    for raw in written:
        appender.send(raw, None, lambda _: None)
    appender.flush()


class Beginnings:
    """What was begun of the source topic, as this worker last read it.

    `read` reads a topic as `read_whole` does, and `write` appends to `begun` as `write_down` does.
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
        ] = read_whole,
        write: Callable[..., None] = write_down,
        logger: Any = _logger,
    ) -> None:
        self._settings = settings
        self._names = names
        self._make_admin = make_admin
        self._read = read
        self._write = write
        self._logger = logger
        self._begun = BegunTopic(log_id, topic_id)
        self.look()

    def look(self) -> None:
        """Read the topic anew: what another worker has begun since stands there. It holds a few
        records.
        """
        self._begun.fold_all(self._read(self._settings, self._names.begun))

    def has(self, partition: int) -> bool:
        """Return whether a partition was begun."""
        return partition in self._begun.partitions

    def note(self, partitions: Iterable[int]) -> None:
        """Write down that partitions were begun, for which the group has a committed offset.

        Raises:
            BrokerError: it could not be written; nothing of them may be read.
        """
        if fresh := set(partitions) - self._begun.partitions:
            self._write(self._settings, self._names, self._of(fresh))  # twice is no other than once
            self._begun.partitions |= fresh

    def open(self, partitions: int) -> None:
        """Write down what was begun before the topic `begun` was there, if nobody has: once for a
        log that is older than it.

        The group's committed offsets tell it. If there are none, but the log holds documents of the
        source topic, they have vanished already, and all of its `partitions` count as begun. The
        log is read for that up to the first such document; where there is none, to its end, this
        once. The group is asked once more behind that: another worker may have begun meanwhile, and
        it commits an offset before a document of it gets into the log.
        """
        if self._begun.is_open:
            return
        topic = self._names.documents
        admin = self._make_admin(self._settings)
        found: Iterable[int] = admin.partitions_committed(self._settings.group, topic)
        if not found and self._log_has_documents():
            found = admin.partitions_committed(self._settings.group, topic) or range(partitions)
        self._write(
            self._settings,
            self._names,
            *([self._of(found)] if found else []),
            encode_opened(self._begun.log_id),
        )
        self._begun.partitions.update(found)
        self._begun.is_open = True
        self._logger.info(
            "what was begun is written down from now on",
            topic=self._names.begun,
            partitions=sorted(found),
        )

    def hold_reading(self) -> None:
        """Write down how documents are read, if nobody has, and check that this worker reads them
        so.

        Raises:
            ConfigurationError: it would read them otherwise.
        """
        if self._begun.reading is None:
            raw = encode_reading(self._begun.log_id, reading_of(self._settings), changes=False)
            self._write(self._settings, self._names, raw)
            self.look()  # another may have written first
        raise_refusals([check_reading(self._settings, self._begun.reading)])

    def _log_has_documents(self) -> bool:
        for _, record in self._read(self._settings, self._names.fingerprints):
            if isinstance(record, records.Batch) and any(
                one.topic_id == self._begun.topic_id for one in record.sources
            ):
                return True
        return False

    def _of(self, partitions: Iterable[int]) -> bytes:
        return encode_begun(
            self._begun.log_id, self._names.documents, self._begun.topic_id, partitions
        )


def open_new(settings: Settings, names: TopicNames) -> None:
    """Write down that nothing was begun under a log that is empty yet."""
    log_id, _ = Admin(settings).topic_ids([names.fingerprints])[names.fingerprints]
    write_down(settings, names, encode_opened(log_id))


def read_marks(
    settings: Settings,
    names: TopicNames,
    topic_id: bytes,
    advance: Callable[[int, int], None] = lambda _documents, _bytes: None,
    read: Callable[..., Iterable[tuple[int, LogRecord | None]]] = read_whole,
) -> Marks:
    """Fold the whole log; `advance` is told of (documents, bytes) as they pass. `read` reads as
    `read_whole` does.

    Raises:
        ConfigurationError: the log is missing, incomplete, or another group's.
        BrokerError: it cannot be read to its end.
        OtherFormatError: it was written by a newer version.
    """
    marks = Marks(topic_id, names.documents)
    for _, record in read(settings, names.fingerprints, advance):
        if record is not None:
            marks.fold(record)
    if marks.group not in (None, settings.group):
        raise ConfigurationError(
            f"The log belongs to group {marks.group!r}, and the setting names {settings.group!r}, "
            "whose offsets no worker "
            "would use. Set STREAM_DEDUP_GROUP as the workers have it."
        )
    return marks
