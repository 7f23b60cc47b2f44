"""Read the sizes of the pages of a Parquet file from the header of each page.

A page is decoded as a whole, so its size bounds the memory for reading one row. The footer does not
contain it, and its sizes are not checked by any reader.

    page   := header data
    header := a struct of Thrift's compact protocol: field 2 is the unpacked size of the data,
              field 3 the size in the file
"""

from __future__ import annotations

import io
from typing import BinaryIO, Final

_HEADER_BYTES: Final = 4 << 10
_HEADER_BYTES_MAX: Final = 16 << 20  # Arrow has the same limit
_UNPACKED, _PACKED = 2, 3
_DEPTH_MAX: Final = 64
_VARINT_BYTES_MAX: Final = 10
# Types of Thrift's compact protocol. Each has at least a byte within a list.
_INTEGERS: Final = (4, 5, 6)
_BYTES_OF: Final = {1: 1, 2: 1, 3: 1, 7: 8, 13: 16}
_BINARY, _LIST, _SET, _MAP, _STRUCT = 8, 9, 10, 11, 12
_FLAGS: Final = (1, 2)


def largest_page_bytes(file: BinaryIO, first: int, size: int) -> int:
    """Return the unpacked size of the largest page of a column chunk of `size` bytes at `first`; only
    of the pages before a header that cannot be read.

    Raises:
        OSError: the file cannot be read.
    """
    largest, end = 0, first + size
    while 0 <= first < end:
        for length in (_HEADER_BYTES, _HEADER_BYTES_MAX):
            file.seek(first)
            header = io.BytesIO(file.read(length))
            try:
                fields = _fields_of(header)
                break
            except ValueError:
                continue
        else:
            break
        packed = fields.get(_PACKED, -1)
        if packed < 0:
            break
        largest = max(largest, fields.get(_UNPACKED, 0))
        first += header.tell() + packed
    return largest


def _fields_of(data: io.BytesIO, depth: int = 0) -> dict[int, int]:
    """Read a struct to its end; return its integers by field number.

    Raises:
        ValueError: it is invalid or cut off.
    """
    found: dict[int, int] = {}
    number = 0
    while head := _take(data, 1)[0]:
        number = number + (head >> 4) if head >> 4 else _integer(data)
        kind = head & 15
        if kind in _INTEGERS:
            found[number] = _integer(data)
        elif kind not in _FLAGS:
            _skip(data, kind, depth)
    return found


def _skip(data: io.BytesIO, kind: int, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise ValueError("it is nested too deeply")
    if kind in _INTEGERS:
        _varint(data)
    elif kind in _BYTES_OF:
        _take(data, _BYTES_OF[kind])
    elif kind == _BINARY:
        _take(data, _varint(data))
    elif kind == _STRUCT:
        _fields_of(data, depth + 1)
    elif kind in (_LIST, _SET):
        head = _take(data, 1)[0]
        for _ in range(_varint(data) if head >> 4 == 15 else head >> 4):
            _skip(data, head & 15, depth + 1)
    elif kind == _MAP:
        count = _varint(data)
        kinds = _take(data, 1)[0] if count else 0
        for index in range(2 * count):
            _skip(data, kinds & 15 if index % 2 else kinds >> 4, depth + 1)
    else:
        raise ValueError("it has a field of an unknown type")


def _take(data: io.BytesIO, size: int) -> bytes:
    found = data.read(size)
    if len(found) < size:
        raise ValueError("it is cut off")
    return found


def _varint(data: io.BytesIO) -> int:
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        byte = _take(data, 1)[0]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value
    raise ValueError("a number of it is too long")


def _integer(data: io.BytesIO) -> int:
    value = _varint(data)
    return value >> 1 ^ -(value & 1)
