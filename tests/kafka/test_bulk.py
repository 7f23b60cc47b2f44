"""Only objects of type `bytes` are passed to librdkafka by address."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer

from stream_dedup.kafka import RecordColumns
from stream_dedup.kafka.bulk import BulkWriter
from stream_dedup.log.header_columns import HeaderColumns


@pytest.mark.parametrize("column", ["keys", "values"])
@pytest.mark.parametrize("wrong", [bytearray(b"secret"), memoryview(b"secret"), "secret", 7])
def test_what_is_not_bytes_is_refused(column: str, wrong: Any) -> None:
    """Other objects store their bytes elsewhere, so unrelated memory would be sent."""
    parts: dict[str, list[Any]] = {
        "keys": [b"k", None],
        "values": [b"v", None],
        column: [b"k", wrong],
    }
    no_headers = HeaderColumns(
        [],
        np.zeros(0, np.uint8),
        np.zeros(0, np.int64),
        np.zeros(2, np.int64),
        np.zeros(0, np.uint8),
    )
    columns = RecordColumns(
        ["t"],
        np.zeros(2, np.uint8),
        np.zeros(2, np.int32),
        parts["keys"],
        parts["values"],
        np.ones(2, np.int64),
        no_headers,
        np.ones(2, np.bool_),
    )

    with pytest.raises(TypeError, match=type(wrong).__name__):
        BulkWriter.of(Producer({}), columns)
