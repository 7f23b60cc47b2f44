"""The committed watermarks that the log gives the source partitions, read from the whole of it.

Needed only where a committed offset has no epoch, or has vanished: then the epoch to rise from is the highest that the
log holds, because nothing but a record of the log can have raised the index's watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stream_dedup.control.rewind import Marks
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.ground.topics import TopicNames
from stream_dedup.kafka import read_whole
from stream_dedup.log.records import LogRecord
from stream_dedup.settings.settings import Settings


def read_marks(
    settings: Settings,
    names: TopicNames,
    topic_id: bytes,
    advance: Callable[[int, int], None] = lambda _documents, _bytes: None,
    read: Callable[..., Iterable[tuple[int, LogRecord | None]]] = read_whole,
) -> Marks:
    """Fold the whole log; `advance` is told of (documents, bytes) as they pass. `read` reads as `read_whole` does.

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
            f"The log belongs to group {marks.group!r}, and the setting names {settings.group!r}, whose offsets no worker "
            "would use. Set STREAM_DEDUP_GROUP as the workers have it."
        )
    return marks
