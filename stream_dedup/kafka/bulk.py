"""Many records handed to librdkafka at once, by its own C functions: for a worker's outputs, nearly
all of its writing.

A call of `Producer.produce` with a list of headers costs four times what librdkafka then does with
the record, and holds Python's lock for it; here the records lie in columns, and machine code makes
the same calls (rdkafka.h: `rd_kafka_headers_new`, `rd_kafka_header_add`, `rd_kafka_produceva`).

Invariants: the producer is confluent_kafka's, made, polled, flushed and committed by it; a record
that is handed over here has no delivery report, so who hands over records in a transaction learns
of a failed one from its commit, which librdkafka refuses (KafkaError._INCONSISTENT); nothing is
handed over by a client whose layout is not `_KNOWN`: there is no `BulkWriter` then.
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

# Of these the C structure behind a `Producer` was read: librdkafka's handle is its first member
# (confluent_kafka.h, `Handle`).
_KNOWN = (2, 0), (2, 16)
_HANDLE_AT = object.__basicsize__
_WRITABLE = {bytes, type(None)}
_BYTES_AT = (
    bytes.__basicsize__ - 1
)  # of CPython: the bytes stand at the end of the object, with a zero behind them

# rdkafka.h: `rd_kafka_vtype_t`, `RD_KAFKA_MSG_F_COPY`, and the size of `rd_kafka_vu_t` in words of
# 8 bytes.
_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIMESTAMP, _HEADERS = 1, 3, 4, 5, 7, 8, 10
_COPY = 2
_VU_WORDS = 9
_FIELDS = 7

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
    """Records to write, as columns, (n,) each: record i goes to partition `partitions[i]` of
    `topics[topic[i]]`.

    A timestamp of 0 lets the client stamp it, `NO_TIMESTAMP` is none. Those that are not `packed`
    are not written from here.
    """

    topics: Sequence[str]
    topic: NDArray[np.uint8]
    partitions: NDArray[np.int32]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: NDArray[np.int64]
    headers: HeaderColumns
    packed: NDArray[np.bool_]


@cache
def _is_known() -> bool:
    """Whether librdkafka's functions are found, and this is a client, a Python and a machine of
    which the layout is known.
    """
    version = metadata.version("confluent-kafka")
    major, minor = map(int, re.findall(r"\d+", version + ".0")[:2])
    is_usual = (
        sys.implementation.name == "cpython"
        and sys.byteorder == "little"
        and ctypes.sizeof(ctypes.c_void_p) == 8
    )
    if not (_KNOWN[0] <= (major, minor) <= _KNOWN[1] and is_usual and _has_functions()):
        LOGGER.info(
            "Records are written one by one, which takes longer: how confluent-kafka %s lies in "
            "memory is not known.",
            version,
        )
        return False
    return ctypes.string_at(id(b"known") + _BYTES_AT, 6) == b"known\0"


def _has_functions() -> bool:
    try:
        library = ctypes.CDLL(cimpl.__file__)  # loaded already; this finds what is linked to it
        for name in _C_FUNCTIONS:
            llvm.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    except (OSError, AttributeError):
        return False
    return True


class _RecordArrays(NamedTuple):
    """Records for the kernel, (n,): `topics` are addresses of names, `keys` and `values` of bytes,
    0 for None.
    """

    topics: NDArray[np.uint64]
    topic: NDArray[np.uint8]
    partitions: NDArray[np.int32]
    keys: NDArray[np.uint64]
    key_bytes: NDArray[np.uint64]
    values: NDArray[np.uint64]
    value_bytes: NDArray[np.uint64]
    timestamps_ms: NDArray[np.int64]


class _HeaderArrays(NamedTuple):
    """Their headers, as `HeaderColumns` has them; `names` are addresses."""

    names: NDArray[np.uint64]
    name_bytes: NDArray[np.uint64]
    of: NDArray[np.uint8]
    ends: NDArray[np.int64]
    stops: NDArray[np.int64]
    values: NDArray[np.uint8]


class BulkWriter:
    """Writes records with one producer: those that are `packed`, (n,)."""

    def __init__(self, producer: Producer, columns: RecordColumns) -> None:
        self.topics, self.packed = columns.topics, columns.packed
        self._handle = ctypes.c_uint64.from_address(id(producer) + _HANDLE_AT).value
        headers = columns.headers
        # What addresses point to is kept here for as long as they are.
        self._kept = (
            producer, columns, [topic.encode() + b"\0" for topic in columns.topics], [name.encode() for name in headers.names],
        )  # fmt: skip
        _, _, topics, names = self._kept
        self._records = _RecordArrays(
            _addresses(topics)[0],
            columns.topic,
            columns.partitions,
            *_addresses(columns.keys),
            *_addresses(columns.values),
            columns.timestamps_ms,
        )
        self._headers = _HeaderArrays(
            *_addresses(names), headers.of, headers.ends, headers.stops, headers.values
        )

    @classmethod
    def of(cls, producer: Any, columns: RecordColumns) -> BulkWriter | None:
        """Return what writes with a producer; None where only `Producer.produce` can."""
        return cls(producer, columns) if type(producer) is Producer and _is_known() else None

    def write(self, start: int, stop: int) -> int:
        """Hand over the records from `start` on; return the place of the first that librdkafka did
        not take, or `stop`.
        """
        written: int = _write(self._handle, start, stop, self._records, self._headers, _room())
        return written


def warm_up_writer() -> None:
    """Have the kernel compiled or loaded, without writing anything; do nothing where there is no
    bulk writer.
    """
    if _is_known():
        words, numbers, none = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.uint8)
        records = _RecordArrays(
            words, none, np.zeros(0, np.int32), words, words, words, words, numbers
        )
        _write(0, 0, 0, records, _HeaderArrays(words, words, none, numbers, numbers, none), _room())


def _room() -> NDArray[np.uint64]:
    """Return room for the fields of one record (`rd_kafka_vu_t`)."""
    return np.zeros(_FIELDS * _VU_WORDS, np.uint64)


def _addresses(parts: Sequence[bytes | None]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return where the bytes of each begin, 0 for None, and how many there are. They lie there
    while `parts` does.

    Raises:
        TypeError: one is neither, and its bytes lie elsewhere: other bytes would be written.
    """
    others = set(map(type, parts)) - _WRITABLE
    if others:
        raise TypeError(
            f"records are bytes or None, and some are of {sorted(one.__name__ for one in others)}"
        )
    starts = np.fromiter(map(id, parts), np.uint64, len(parts))
    starts = np.where(starts == np.uint64(id(None)), np.uint64(0), starts + np.uint64(_BYTES_AT))
    return starts, sizes_of(parts).astype(np.uint64)


@kernel
def _write(handle: Any, start: Any, stop: Any, records: Any, headers: Any, fields: Any) -> Any:
    """Return the place of the first record that was not taken; `fields` is room for one record's
    (`rd_kafka_vu_t`).
    """
    word = np.uint64
    text = word(headers.values.ctypes.data)
    j = headers.stops[start - 1] if start else np.int64(0)
    for i in range(start, stop):
        own = _headers_new(word(headers.stops[i] - j))
        while j < headers.stops[i]:
            begin = headers.ends[j - 1] if j else np.int64(0)
            name = headers.of[j]
            _header_add(
                own,
                headers.names[name],
                np.int64(headers.name_bytes[name]),
                text + word(begin),
                headers.ends[j] - begin,
            )
            j += 1
        fields[0], fields[1] = word(_TOPIC), records.topics[records.topic[i]]
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
        fields[6 * _VU_WORDS], fields[6 * _VU_WORDS + 1] = word(_HEADERS), own
        error = _produceva(handle, word(fields.ctypes.data), word(_FIELDS))
        if error:
            _headers_destroy(own)
            _error_destroy(error)
            return i
    return stop
