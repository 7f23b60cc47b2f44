"""Records with headers whose names are not UTF-8, as clients other than confluent-kafka write
them."""

from __future__ import annotations

import numpy as np
from confluent_kafka import Producer

from stream_dedup.domain.document import Headers
from stream_dedup.kafka import RecordColumns
from stream_dedup.kafka.bulk import BulkWriter
from stream_dedup.log.header_columns import HeaderColumns


class Latin1(str):
    """The name of a header that is written in Latin-1."""

    __slots__ = ()

    def encode(self, *_: str) -> bytes:  # type: ignore[override]
        """Return the name in Latin-1, also if another encoding is asked for."""
        return super().encode("latin-1")


def has_latin1(headers: Headers) -> bool:
    """Return whether only `write_latin1` can write these headers."""
    return any(isinstance(name, Latin1) for name, _ in headers)


def write_latin1(
    producer: Producer,
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int,
    headers: Headers,
) -> None:
    """Write one record; it has no delivery report. A header without a value is written with an
    empty one."""
    values = [given or b"" for _, given in headers]
    columns = HeaderColumns(
        [name for name, _ in headers],
        np.arange(len(headers), dtype=np.uint8),
        np.cumsum([len(header_value) for header_value in values], dtype=np.int64),
        np.array([len(headers)], np.int64),
        np.frombuffer(b"".join(values), np.uint8).copy(),
    )
    partitions, topic_indexes = np.array([partition], np.int32), np.zeros(1, np.uint8)
    record = RecordColumns(
        [topic],
        topic_indexes,
        partitions,
        [key],
        [value],
        np.array([timestamp_ms], np.int64),
        columns,
        np.ones(1, np.bool_),
    )
    writer = BulkWriter.of(producer, record)
    assert writer is not None
    assert writer.write(0, 1) == 1
