"""The frame that every record on `fingerprints`, `begun` and `verdicts` shares.

    frame   := magic(4) format(u8) kind(u8) body crc32(u32 of all before it)
    integers are little-endian; text is UTF-8; `str8`/`str16` are a length (u8/u16) and that many bytes

`magic` identifies the topic's records and never changes; `format` identifies the format of the body.

Invariants: the frame itself never changes; the body is not decoded unless the checksum matches; an
unknown format and a damaged frame raise different errors, because the first must stop the role and
the second must not.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import UPGRADE, FormatError, OtherFormatError
from stream_dedup.kernels.byte_arrays import copy_bytes
from stream_dedup.kernels.compiled import kernel

Number = TypeVar("Number", bound=np.generic)
Decoded = TypeVar("Decoded")

_HEAD = struct.Struct("<4sBB")
_CRC = struct.Struct("<I")
_MIN_BYTES = _HEAD.size + _CRC.size


FIRST_FORMAT: Final = 1
"""The format of the first release: every program reads it, and it is the default."""
# Before the first release the magic included the format: SDF1 to SDF3, SDV1 to SDV4.
_UNRELEASED: Final = (b"SDF", b"SDV")


class Unframed(NamedTuple):
    """The parts of a framed record."""

    format: int
    kind: int
    body: memoryview


def framed(magic: bytes, form: int, kind: int, body: bytes) -> bytes:
    """Return `body` as one framed record of the format `form`."""
    head = _HEAD.pack(magic, form, kind)
    crc = zlib.crc32(body, zlib.crc32(head))
    return b"".join((head, body, _CRC.pack(crc)))


def format_of(raw: bytes) -> int:
    """Return the format of a record that `unframed` accepted."""
    return _HEAD.unpack_from(raw)[1]  # type: ignore[no-any-return]


def unframed(magic: bytes, known: Collection[int], raw: bytes | None, record_name: str) -> Unframed:
    """Return the parts of a framed record; `known` are the formats that this program reads. Errors
    begin with `record_name`.

    Raises:
        OtherFormatError: the frame is intact, but its format is unknown.
        FormatError: not a record of stream_dedup, or damaged.
    """
    if raw is None or len(raw) < _MIN_BYTES:
        size = "no value" if raw is None else f"{len(raw)} bytes"
        raise FormatError(f"{record_name} is too short to be a record of stream_dedup ({size}).")
    record_magic, form, kind = _HEAD.unpack_from(raw)
    is_unreleased = (
        record_magic != magic and record_magic[:3] in _UNRELEASED and record_magic[3:].isdigit()
    )
    if record_magic != magic and not is_unreleased:
        raise FormatError(
            f"{record_name} begins with {record_magic!r} instead of {magic!r}; stream_dedup did "
            "not write it."
        )
    (crc,) = _CRC.unpack_from(raw, len(raw) - _CRC.size)
    view = memoryview(raw)
    if zlib.crc32(view[: -_CRC.size]) != crc:
        raise FormatError(f"{record_name} does not match its checksum; it is damaged or truncated.")
    if is_unreleased:
        raise OtherFormatError(
            f"{record_name} was written before the first release of stream_dedup, and no release "
            "reads it. Start a new log with another STREAM_DEDUP_TOPIC_PREFIX, and seed it with "
            "the delivered documents (`stream-dedup seed`)."
        )
    if form not in known:
        raise OtherFormatError(format_error_message(record_name, form, known, UPGRADE))
    return Unframed(form, kind, view[_HEAD.size : -_CRC.size])


def decode_unless_damaged(
    decode: Callable[..., Decoded], raw: bytes | None, *record_name: str
) -> Decoded | None:
    """Return `decode(raw, *record_name)`, or None for damaged bytes, which the index skips.

    Raises:
        OtherFormatError: the record's format is unknown.
    """
    try:
        return decode(raw, *record_name)
    except OtherFormatError:
        raise
    except FormatError:
        return None


def format_error_message(record_name: str, form: int, known: Collection[int], upgrade: str) -> str:
    """Return the message about an unknown format; `upgrade` is the remedy for a newer one."""
    if form > max(known):
        return (
            f"{record_name} has the format {form}, but this version reads up to {max(known)}: "
            f"{upgrade}"
        )
    return (
        f"{record_name} has the format {form}, but this version reads none below {min(known)}: "
        "run a version that still reads it."
    )


def index_distinct(values: NDArray[Number]) -> tuple[NDArray[Number], NDArray[np.int64]]:
    """Return the distinct values in the order of their first occurrence, and for each of the n values
    its index among them.

    Records store partitions this way: a table, and an index into it for each document.
    """
    if len(values) and (values == values[0]).all():
        return values[:1], np.zeros(len(values), np.int64)
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return distinct[order], np.argsort(order)[inverse]


def join_parts(raw: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> bytes:
    """Return the concatenation of the parts `raw[starts[i] : ends[i]]`."""
    joined = np.empty(int((ends - starts).sum()), np.uint8)
    _join(raw, starts, ends, joined)
    return joined.tobytes()


@kernel
def _join(raw: Any, starts: Any, ends: Any, joined: Any) -> Any:
    filled = 0
    for i in range(len(starts)):
        filled = copy_bytes(raw, starts[i], ends[i], joined, filled)


_STORED: Final[dict[type[np.generic], np.dtype[Any]]] = {
    kind: np.dtype(kind).newbyteorder("<")
    for kind in (np.uint8, np.uint16, np.uint32, np.uint64, np.int64)
}
"""The little-endian type in which numbers of each type are stored."""


class Reader:
    """Reads the fields of a body in order; a read past its end raises `FormatError`."""

    __slots__ = ("_position", "_record_name", "_view")

    def __init__(self, view: memoryview, record_name: str) -> None:
        self._view = view
        self._position = 0
        self._record_name = record_name

    def take(self, size: int) -> memoryview:
        """Return the next `size` bytes."""
        start = self._advance(size)
        return self._view[start : self._position]

    def _advance(self, size: int) -> int:
        """Advance by `size` bytes; return the position before."""
        start, end = self._position, self._position + size
        if size < 0 or end > len(self._view):
            raise FormatError(f"{self._record_name} ends in the middle of a field.")
        self._position = end
        return start

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """Return the next fields of `form`."""
        return form.unpack_from(self._view, self._advance(form.size))

    def column(self, kind: type[Number], count: int) -> NDArray[Number]:
        """Return a copy of the next `count` numbers, aligned and in this machine's byte order."""
        stored = _STORED[kind]
        part = self.take(stored.itemsize * count)
        return np.frombuffer(part, stored).astype(kind) if count else np.empty(0, kind)

    def columns(self, kind: np.dtype[Any]) -> NDArray[Any]:
        """Return the next columns as a structured view of the record, of the type `kind`."""
        return np.ndarray((), kind, self._view, self._advance(kind.itemsize))

    def text(self, length_form: struct.Struct) -> str:
        """Return the next length-prefixed UTF-8 text."""
        (size,) = self.unpack(length_form)
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._record_name} contains a name that is not UTF-8.") from error

    def end(self) -> None:
        """Check that every byte was read.

        Raises:
            FormatError: bytes remain.
        """
        if self._position != len(self._view):
            raise FormatError(
                f"{self._record_name} has {len(self._view) - self._position} bytes after its last field."
            )
