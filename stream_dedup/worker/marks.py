"""The marks that the log gives the source partitions, read from the whole of it.

Needed only where a committed offset has no epoch, or has vanished: then the epoch to rise from is the highest that the
log holds, because nothing but a record of the log can have raised the index's mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stream_dedup.errors import BrokerError, ConfigurationError, FormatError
from stream_dedup.log import records
from stream_dedup.log.kafka import LogReader
from stream_dedup.settings import Settings
from stream_dedup.topics import TopicNames
from stream_dedup.worker.rewind import Marks

_SILENCE_SECONDS = 30.0
_RECORDS_AT_ONCE = 500


def read_marks(
    settings: Settings,
    names: TopicNames,
    topic_id: bytes,
    advance: Callable[[int, int], None] = lambda _documents, _bytes: None,
) -> Marks:
    """Fold the whole log; `advance` is told of (documents, bytes) as they pass.

    Raises:
        ConfigurationError: the log is missing, incomplete, or another group's.
        BrokerError: it cannot be read to its end.
        FutureFormatError: it was written by a newer version.
    """
    marks = Marks(topic_id)
    reader = LogReader(settings, names.fingerprints, "marks")
    try:
        low, high = reader.watermarks()
        if low > 0:
            raise ConfigurationError(
                f"The log {names.fingerprints} begins at offset {low}, so records of it were removed, and nobody can say "
                "which epoch is safe. Restore it from a backup, or begin anew with another STREAM_DEDUP_TOPIC_PREFIX."
            )
        reader.start(0)
        following, heard = 0, time.monotonic()
        while following < high:
            for message in reader.take(_RECORDS_AT_ONCE, 0.2):
                following, heard = message.offset + 1, time.monotonic()
                record = _decode(message.value, f"The record {names.fingerprints}-0@{message.offset}")
                if record is not None:
                    marks.fold(record)
                advance(len(record) if isinstance(record, records.Batch) else 0, len(message.value or b""))
            if time.monotonic() - heard > _SILENCE_SECONDS:
                raise BrokerError(
                    f"The log {names.fingerprints} could not be read beyond offset {following} of {high}: nothing came "
                    f"for {_SILENCE_SECONDS:.0f} s. Is its leader up?"
                )
    finally:
        reader.close()
    if marks.group not in (None, settings.group):
        raise ConfigurationError(
            f"The log belongs to group {marks.group!r}, and the setting names {settings.group!r}, whose offsets no worker "
            "would use. Set STREAM_DEDUP_GROUP as the workers have it."
        )
    return marks


def _decode(raw: bytes | None, what: str) -> records.Batch | records.Control | None:
    try:
        return records.decode(raw, what)
    except FormatError as error:
        if type(error) is not FormatError:
            raise
        return None  # the index answers it `rejected`: it moves no mark
