"""The whole log, from its first record to its end as it is now: for commands that must know all of it.

Invariants: a log that lacks its first records is refused; a record of a newer version stops the reading; what is malformed
is given as None, because the index answers it `rejected` and nothing follows from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from stream_dedup.ground.errors import BrokerError, ConfigurationError, FormatError
from stream_dedup.kafka.readers import LogReader
from stream_dedup.log import records
from stream_dedup.settings.settings import Settings

_SILENCE_SECONDS = 30.0
_RECORDS_AT_ONCE = 500


def read_whole(
    settings: Settings,
    topic: str,
    advance: Callable[[int, int], None] = lambda _documents, _bytes: None,
    most: int | None = None,
) -> Iterator[tuple[int, records.LogRecord | None]]:
    """Yield (log offset, record) of the log, or of its first `most` records; `advance` is told of (documents, bytes).

    Raises:
        ConfigurationError: the log is incomplete.
        BrokerError: it cannot be read to its end.
        OtherFormatError: it was written by a newer version.
    """
    reader = LogReader(settings, topic, "whole")
    try:
        low, high = reader.watermarks()
        if low > 0:
            raise ConfigurationError(
                f"The log {topic} begins at offset {low}, so records of it were removed, and what they said is not known any "
                "more. Restore it from a backup, or begin anew with another STREAM_DEDUP_TOPIC_PREFIX."
            )
        high = high if most is None else min(high, most)
        reader.start(0)
        following, heard = 0, time.monotonic()
        while following < high:
            for message in reader.take(min(_RECORDS_AT_ONCE, high - following), 0.2):
                following, heard = message.offset + 1, time.monotonic()
                record = _decode(message.value, f"The record {topic}-0@{message.offset}")
                yield message.offset, record
                advance(len(record) if isinstance(record, records.Batch) else 0, len(message.value or b""))
            if time.monotonic() - heard > _SILENCE_SECONDS:
                raise BrokerError(
                    f"The log {topic} could not be read beyond offset {following} of {high}: nothing came for "
                    f"{_SILENCE_SECONDS:.0f} s. Is its leader up?"
                )
    finally:
        reader.close()


def _decode(raw: bytes | None, what: str) -> records.LogRecord | None:
    try:
        return records.decode(raw, what)
    except FormatError as error:
        if type(error) is not FormatError:
            raise
        return None
