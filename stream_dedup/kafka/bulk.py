"""Pass many records to librdkafka at once through its C functions; workers write nearly all outputs
this way.

A call of `Producer.produce` with headers costs four times as much as librdkafka's work on the
record, and holds the GIL. Here the records are columns, and a compiled kernel calls the functions
that `Producer.produce` calls (rdkafka.h: `rd_kafka_headers_new`, `rd_kafka_header_add`,
`rd_kafka_produceva`).

Invariants: the producer belongs to confluent_kafka, which creates, polls and flushes it, and
commits its transactions. A record written here has no delivery report; if one fails, librdkafka
refuses to commit the transaction (KafkaError._INCONSISTENT). `BulkWriter.of` returns a writer only
for versions whose memory layout was checked.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Producer, cimpl
from llvmlite import binding as llvm
from numba import types
from numpy.typing import NDArray

from stream_dedup.domain.messages import sizes_of
from stream_dedup.kafka.client import LOGGER
from stream_dedup.kernels.compiled import kernel
from stream_dedup.log.header_columns import HeaderColumns

# The first and last version whose C structure of a `Producer` was checked: librdkafka's handle is
# its first member (confluent_kafka.h, `Handle`).
_KNOWN_VERSIONS = (2, 0), (2, 16)
_HANDLE_OFFSET = object.__basicsize__
_WRITABLE_TYPES = {bytes, type(None)}
# CPython stores the bytes at the end of the object, followed by a zero.
_BYTES_OFFSET = bytes.__basicsize__ - 1

# rdkafka.h: `rd_kafka_vtype_t`, `RD_KAFKA_MSG_F_COPY`, and the size of `rd_kafka_vu_t` in words of
# 8 bytes.
_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIMESTAMP, _HEADERS = 1, 3, 4, 5, 7, 8, 10
_COPY = 2
_VU_WORDS = 9
_FIELDS = 7

# Addresses and sizes are passed as 64-bit words.
_word = types.uint64
_C_FUNCTIONS = {
    "rd_kafka_headers_new": _word(_word),
    "rd_kafka_header_add": types.int32(_word, _word, types.int64, _word, types.int64),
    "rd_kafka_headers_destroy": types.void(_word),
    "rd_kafka_produceva": _word(_word, _word, _word),
    "rd_kafka_error_destroy": types.void(_word),
}
_external: Any = types.ExternalFunction
_headers_new, _header_add, _headers_destroy, _produceva, _error_destroy = map(
    _external, _C_FUNCTIONS, _C_FUNCTIONS.values()
)


class RecordColumns(NamedTuple):
    """Records to write as columns, (n,) each: record i goes to partition `partitions[i]` of
    `topics[topic_numbers[i]]`.

    For a timestamp of 0 the client sets the time; `NO_TIMESTAMP` means none. Only records in the
    mask `packed` are written from columns.
    """

    topics: Sequence[str]
    topic_numbers: NDArray[np.uint8]
    partitions: NDArray[np.int32]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: NDArray[np.int64]
    headers: HeaderColumns
    packed: NDArray[np.bool_]


@cache
def _can_write() -> bool:
    """Return whether librdkafka's functions are found, and the memory layout of this client, Python
    and machine was checked.
    """
    version = metadata.version("confluent-kafka")
    major, minor = map(int, re.findall(r"\d+", version + ".0")[:2])
    is_checked_platform = (
        sys.implementation.name == "cpython"
        and sys.byteorder == "little"
        and ctypes.sizeof(ctypes.c_void_p) == 8
    )
    is_checked_version = _KNOWN_VERSIONS[0] <= (major, minor) <= _KNOWN_VERSIONS[1]
    if not (is_checked_version and is_checked_platform and _has_functions()):
        LOGGER.info(
            "Records are written one by one, which is slower: the memory layout of "
            "confluent-kafka %s is unknown.",
            version,
        )
        return False
    return ctypes.string_at(id(b"known") + _BYTES_OFFSET, 6) == b"known\0"


def _has_functions() -> bool:
    """Make librdkafka's functions known to compiled kernels; return whether all were found."""
    try:
        library = ctypes.CDLL(cimpl.__file__)  # already loaded; this also finds linked libraries
        for name in _C_FUNCTIONS:
            llvm.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    except (OSError, AttributeError):
        return False
    return True


class _RecordArrays(NamedTuple):
    """Records for the kernel, (n,): `topics` are addresses of names, `keys` and `values` addresses of
    bytes, 0 for None.
    """

    topics: NDArray[np.uint64]
    topic_numbers: NDArray[np.uint8]
    partitions: NDArray[np.int32]
    keys: NDArray[np.uint64]
    key_bytes: NDArray[np.uint64]
    values: NDArray[np.uint64]
    value_bytes: NDArray[np.uint64]
    timestamps_ms: NDArray[np.int64]


class _HeaderArrays(NamedTuple):
    """The headers for the kernel, as in `HeaderColumns`; `names` are addresses."""

    names: NDArray[np.uint64]
    name_bytes: NDArray[np.uint64]
    name_numbers: NDArray[np.uint8]
    value_ends: NDArray[np.int64]
    record_ends: NDArray[np.int64]
    values: NDArray[np.uint8]


class BulkWriter:
    """Writes the records in the mask `packed`, (n,), with a producer."""

    def __init__(self, producer: Producer, columns: RecordColumns) -> None:
        self.topics, self.packed = columns.topics, columns.packed
        self._handle = ctypes.c_uint64.from_address(id(producer) + _HANDLE_OFFSET).value
        headers = columns.headers
        topics = [topic.encode() + b"\0" for topic in columns.topics]
        names = [name.encode() for name in headers.names]
        # These references keep the memory alive that the addresses point to.
        self._referenced = (producer, columns, topics, names)
        self._records = _RecordArrays(
            _addresses(topics)[0],
            columns.topic_numbers,
            columns.partitions,
            *_addresses(columns.keys),
            *_addresses(columns.values),
            columns.timestamps_ms,
        )
        self._headers = _HeaderArrays(
            *_addresses(names),
            headers.name_numbers,
            headers.value_ends,
            headers.record_ends,
            headers.values,
        )

    @classmethod
    def of(cls, producer: Any, columns: RecordColumns) -> BulkWriter | None:
        """Return a writer for a producer, or None if only `Producer.produce` can be used."""
        return cls(producer, columns) if type(producer) is Producer and _can_write() else None

    def write(self, start: int, stop: int) -> int:
        """Write the records from `start` to before `stop`; return the place of the first that
        librdkafka did not accept, or `stop`.
        """
        written: int = _write(self._handle, start, stop, self._records, self._headers, _fields())
        return written


def warm_up_writer() -> None:
    """Compile or load the kernel without writing; do nothing if bulk writing is not possible."""
    if _can_write():
        words, ints, bytes_ = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.uint8)
        partitions = np.zeros(0, np.int32)
        records = _RecordArrays(words, bytes_, partitions, words, words, words, words, ints)
        headers = _HeaderArrays(words, words, bytes_, ints, ints, bytes_)
        _write(0, 0, 0, records, headers, _fields())


def _fields() -> NDArray[np.uint64]:
    """Return an array for the fields of one record (`rd_kafka_vu_t`)."""
    return np.zeros(_FIELDS * _VU_WORDS, np.uint64)


def _addresses(parts: Sequence[bytes | None]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the address (0 for None) and the size of each part. The addresses are valid while `parts`
    exists.

    Raises:
        TypeError: a part is neither bytes nor None, so it has another memory layout.
    """
    other_types = set(map(type, parts)) - _WRITABLE_TYPES
    if other_types:
        raise TypeError(
            f"records are bytes or None, and some are of {sorted(kind.__name__ for kind in other_types)}"
        )
    starts = np.fromiter(map(id, parts), np.uint64, len(parts))
    starts = np.where(
        starts == np.uint64(id(None)), np.uint64(0), starts + np.uint64(_BYTES_OFFSET)
    )
    return starts, sizes_of(parts).astype(np.uint64)


@kernel
def _write(handle: Any, start: Any, stop: Any, records: Any, headers: Any, fields: Any) -> Any:
    """Write the records from `start` to before `stop`; return the place of the first that was not
    accepted, or `stop`. `fields` is a buffer for the fields of one record (`rd_kafka_vu_t`).
    """
    word = np.uint64
    values_address = word(headers.values.ctypes.data)
    j = headers.record_ends[start - 1] if start else np.int64(0)
    for i in range(start, stop):
        record_headers = _headers_new(word(headers.record_ends[i] - j))
        while j < headers.record_ends[i]:
            value_start = headers.value_ends[j - 1] if j else np.int64(0)
            name = headers.name_numbers[j]
            _header_add(
                record_headers,
                headers.names[name],
                np.int64(headers.name_bytes[name]),
                values_address + word(value_start),
                headers.value_ends[j] - value_start,
            )
            j += 1
        fields[0], fields[1] = word(_TOPIC), records.topics[records.topic_numbers[i]]
        fields[_VU_WORDS], fields[_VU_WORDS + 1] = word(_PARTITION), word(records.partitions[i])
        fields[2 * _VU_WORDS], fields[2 * _VU_WORDS + 1], fields[2 * _VU_WORDS + 2] = (
            word(_VALUE),
            records.values[i],
            records.value_bytes[i],
        )
        fields[3 * _VU_WORDS], fields[3 * _VU_WORDS + 1], fields[3 * _VU_WORDS + 2] = (
            word(_KEY),
            records.keys[i],
            records.key_bytes[i],
        )
        fields[4 * _VU_WORDS], fields[4 * _VU_WORDS + 1] = word(_FLAGS), word(_COPY)
        fields[5 * _VU_WORDS], fields[5 * _VU_WORDS + 1] = (
            word(_TIMESTAMP),
            word(records.timestamps_ms[i]),
        )
        fields[6 * _VU_WORDS], fields[6 * _VU_WORDS + 1] = word(_HEADERS), record_headers
        error = _produceva(handle, word(fields.ctypes.data), word(_FIELDS))
        if error:
            _headers_destroy(record_headers)
            _error_destroy(error)
            return i
    return stop
