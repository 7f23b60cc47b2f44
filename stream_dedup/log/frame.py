"""The frame that every record on `fingerprints` and `verdicts` shares.

    frame   := magic(4) version(u8) kind(u8) body crc32(u32 of all before it)
    integers are little-endian; text is UTF-8; `str8`/`str16` are a length (u8/u16) and that many bytes

Invariants: a frame that does not end with its own checksum is never looked into; a frame of a newer version is told
apart from a damaged one, because the first must stop the role and the second must not.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.errors import FormatError, FutureFormatError

Number = TypeVar("Number", bound=np.generic)

_HEAD = struct.Struct("<4sBB")
_CRC = struct.Struct("<I")
_MIN_BYTES = _HEAD.size + _CRC.size


def framed(magic: bytes, version: int, kind: int, body: bytes) -> bytes:
    """Return `body` as one framed record."""
    head = _HEAD.pack(magic, version, kind)
    crc = zlib.crc32(body, zlib.crc32(head))
    return b"".join((head, body, _CRC.pack(crc)))


def unframed(magic: bytes, version: int, raw: bytes | None, what: str) -> tuple[int, memoryview]:
    """Return (kind, body) of a framed record.

    Raises:
        FutureFormatError: the frame is whole and of a later version than `version`.
        FormatError: it is not a frame of ours, or it is damaged.
    """
    if raw is None or len(raw) < _MIN_BYTES:
        size = "no value" if raw is None else f"{len(raw)} bytes"
        raise FormatError(f"{what} is too short to be a record of stream_dedup ({size}).")
    found_magic, found_version, kind = _HEAD.unpack_from(raw)
    if found_magic != magic:
        raise FormatError(f"{what} does not begin with {magic!r} but with {found_magic!r}; it is not ours.")
    (crc,) = _CRC.unpack_from(raw, len(raw) - _CRC.size)
    view = memoryview(raw)
    if zlib.crc32(view[: -_CRC.size]) != crc:
        raise FormatError(f"{what} does not match its checksum; it was damaged or cut.")
    if found_version > version:
        raise FutureFormatError(
            f"{what} is of format version {found_version}, and this program reads up to {version}; "
            "upgrade this role to the version that wrote it."
        )
    return kind, view[_HEAD.size : -_CRC.size]


def table_of(values: NDArray[Number]) -> tuple[NDArray[Number], NDArray[np.int64]]:
    """Return the distinct values in the order in which they come first, and for each value, (n,), its place among those.

    So do records name partitions: once, in a table, and then by their places in it.
    """
    distinct, first, which = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return distinct[order], np.argsort(order)[which]


def cut(joined: bytes, stops: NDArray[np.int64]) -> list[bytes]:
    """Return what lies one after another in `joined`, part i from `stops[i - 1]` to `stops[i]`, (n,)."""
    return [joined[begin:stop] for begin, stop in itertools.pairwise([0, *stops.tolist()])]


class Reader:
    """Walks the body of a frame; every read past its end is a `FormatError`, never an IndexError."""

    __slots__ = ("_at", "_view", "_what")

    def __init__(self, view: memoryview, what: str) -> None:
        self._view = view
        self._at = 0
        self._what = what

    def take(self, size: int) -> memoryview:
        """Return the next `size` bytes."""
        end = self._at + size
        if size < 0 or end > len(self._view):
            raise FormatError(f"{self._what} ends in the middle of a field.")
        part = self._view[self._at : end]
        self._at = end
        return part

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the next fields of `form`."""
        return form.unpack(self.take(form.size))

    def column(self, kind: type[Number], count: int) -> NDArray[Number]:
        """Return the next `count` numbers as an array of its own: in the record they lie unaligned, the least byte first."""
        stored = np.dtype(kind).newbyteorder("<")
        return np.frombuffer(self.take(stored.itemsize * count), dtype=stored).astype(kind)

    def text(self, length_form: struct.Struct) -> str:
        """Return the next length-prefixed UTF-8 text."""
        (size,) = self.unpack(length_form)
        try:
            return bytes(self.take(size)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._what} holds a name that is not UTF-8.") from error

    def end(self) -> None:
        """Check that nothing is left over."""
        if self._at != len(self._view):
            raise FormatError(f"{self._what} has {len(self._view) - self._at} bytes after its last field.")
