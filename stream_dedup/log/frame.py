"""The frame that every record on `fingerprints`, `begun` and `verdicts` shares.

    frame   := magic(4) format(u8) kind(u8) body crc32(u32 of all before it)
    integers are little-endian; text is UTF-8; `str8`/`str16` are a length (u8/u16) and that many bytes

`magic` says what the record is, and stays for ever; `format` says how its body is to be read.

Invariants: the frame itself never changes; a frame that does not end with its own checksum is never
looked into; a frame of a format that is not known here is told apart from a damaged one, because
the first must stop the role and the second must not.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import UPGRADE, FormatError, OtherFormatError
from stream_dedup.kernels.compiled import kernel

Number = TypeVar("Number", bound=np.generic)
Decoded = TypeVar("Decoded")

_HEAD = struct.Struct("<4sBB")
_CRC = struct.Struct("<I")
_MIN_BYTES = _HEAD.size + _CRC.size


FIRST_FORMAT: Final = 1
"""Of the first release: what every program reads, and what is written where nothing says
otherwise."""
# What the magic was before the first release, when it still told the format: SDF1 to SDF3 and SDV1
# to SDV4.
_UNRELEASED: Final = (b"SDF", b"SDV")


class Unframed(NamedTuple):
    """What a framed record consists of."""

    format: int
    kind: int
    body: memoryview


def framed(magic: bytes, form: int, kind: int, body: bytes) -> bytes:
    """Return `body` as one framed record of the format `form`."""
    head = _HEAD.pack(magic, form, kind)
    crc = zlib.crc32(body, zlib.crc32(head))
    return b"".join((head, body, _CRC.pack(crc)))


def format_of(raw: bytes) -> int:
    """Return the format of a record that `unframed` has found whole."""
    return _HEAD.unpack_from(raw)[1]  # type: ignore[no-any-return]


def unframed(magic: bytes, known: Collection[int], raw: bytes | None, what: str) -> Unframed:
    """Return what a framed record consists of; `known` are the formats that this program reads.

    Raises:
        OtherFormatError: the frame is whole, and of another format than those.
        FormatError: it is not a frame of ours, or it is damaged.
    """
    if raw is None or len(raw) < _MIN_BYTES:
        size = "no value" if raw is None else f"{len(raw)} bytes"
        raise FormatError(f"{what} is too short to be a record of stream_dedup ({size}).")
    found, form, kind = _HEAD.unpack_from(raw)
    is_unreleased = found != magic and found[:3] in _UNRELEASED and found[3:].isdigit()
    if found != magic and not is_unreleased:
        raise FormatError(
            f"{what} does not begin with {magic!r} but with {found!r}; it is not ours."
        )
    (crc,) = _CRC.unpack_from(raw, len(raw) - _CRC.size)
    view = memoryview(raw)
    if zlib.crc32(view[: -_CRC.size]) != crc:
        raise FormatError(f"{what} does not match its checksum; it was damaged or cut.")
    if is_unreleased:
        raise OtherFormatError(
            f"{what} was written before the first release of stream_dedup, and no release reads "
            "it. Begin a log of its own "
            "with another STREAM_DEDUP_TOPIC_PREFIX, and `stream-dedup seed` it with what was "
            "delivered."
        )
    if form not in known:
        raise OtherFormatError(other_format(what, form, known, UPGRADE))
    return Unframed(form, kind, view[_HEAD.size : -_CRC.size])


def unless_damaged(decode: Callable[..., Decoded], raw: bytes | None, *what: str) -> Decoded | None:
    """Return `decode(raw, *what)`; None for bytes that no version can read, which the index passes
    over.

    Raises:
        OtherFormatError: they are of a format that this program does not read.
    """
    try:
        return decode(raw, *what)
    except OtherFormatError:
        raise
    except FormatError:
        return None


def other_format(what: str, form: int, known: Collection[int], upgrade: str) -> str:
    """Return the sentence on a format that this program does not read; `upgrade` says what to do
    about a newer one.
    """
    if form > max(known):
        return f"{what} is of format {form}, and this program reads up to {max(known)}: {upgrade}"
    return f"{what} is of format {form}, and this program reads none below {min(known)}: run a version that still reads it."


def table_of(values: NDArray[Number]) -> tuple[NDArray[Number], NDArray[np.int64]]:
    """Return the distinct values in the order in which they come first, and for each value, (n,),
    its place among those.

    So do records name partitions: once, in a table, and then by their places in it.
    """
    if len(values) and (values == values[0]).all():
        return values[:1], np.zeros(len(values), np.int64)
    distinct, first, which = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return distinct[order], np.argsort(order)[which]


def joined_parts(
    raw: NDArray[np.uint8], begins: NDArray[np.int64], stops: NDArray[np.int64]
) -> bytes:
    """Return parts of some bytes one after another, each by where it begins and stops, (n,)."""
    joined = np.empty(int((stops - begins).sum()), np.uint8)
    _join(raw, begins, stops, joined)
    return joined.tobytes()


@kernel
def _join(raw: Any, begins: Any, stops: Any, joined: Any) -> Any:
    filled = 0
    for i in range(len(begins)):
        for at in range(begins[i], stops[i]):
            joined[filled] = raw[at]
            filled += 1


def records_of(columns: Sequence[tuple[bytes, NDArray[np.int64]]]) -> list[bytes]:
    """Return n records, each of which has its part of every column, in their order.

    Of a column: the parts one after another, and where each stops, (n,).
    """
    sizes = np.fromiter((len(column) for column, _ in columns), np.int64, len(columns))
    begin = np.cumsum(sizes) - sizes
    stops = np.stack([stops for _, stops in columns], 1) + begin
    begins = np.concatenate([begin[np.newaxis], stops[:-1]])
    raw = np.frombuffer(bytearray().join(column for column, _ in columns), np.uint8)
    joined = joined_parts(raw, begins.ravel(), stops.ravel())
    ends = np.cumsum((stops - begins).sum(1)).tolist()
    return [joined[first:end] for first, end in itertools.pairwise([0, *ends])]


_STORED: Final[dict[type[np.generic], np.dtype[Any]]] = {
    kind: np.dtype(kind).newbyteorder("<")
    for kind in (np.uint8, np.uint16, np.uint32, np.uint64, np.int64)
}
"""How numbers of each kind lie in records."""


class Reader:
    """Walks the body of a frame; every read past its end is a `FormatError`, never an
    IndexError.
    """

    __slots__ = ("_at", "_view", "_what")

    def __init__(self, view: memoryview, what: str) -> None:
        self._view = view
        self._at = 0
        self._what = what

    def take(self, size: int) -> memoryview:
        """Return the next `size` bytes."""
        begin = self._passed(size)
        return self._view[begin : self._at]

    def _passed(self, size: int) -> int:
        """Pass over the next `size` bytes; return where they begin."""
        begin, end = self._at, self._at + size
        if size < 0 or end > len(self._view):
            raise FormatError(f"{self._what} ends in the middle of a field.")
        self._at = end
        return begin

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """Return the next fields of `form`."""
        return form.unpack_from(self._view, self._passed(form.size))

    def column(self, kind: type[Number], count: int) -> NDArray[Number]:
        """Return the next `count` numbers as an array of its own: in the record they lie unaligned,
        the least byte first.
        """
        stored = _STORED[kind]
        part = self.take(stored.itemsize * count)
        return np.frombuffer(part, stored).astype(kind) if count else np.empty(0, kind)

    def columns(self, kind: np.dtype[Any]) -> NDArray[Any]:
        """Return the columns that follow, by the names that `kind` has for them; they are read
        where they lie.
        """
        return np.ndarray((), kind, self._view, self._passed(kind.itemsize))

    def text(self, length_form: struct.Struct) -> str:
        """Return the next length-prefixed UTF-8 text."""
        (size,) = self.unpack(length_form)
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._what} holds a name that is not UTF-8.") from error

    def end(self) -> None:
        """Check that nothing is left over."""
        if self._at != len(self._view):
            raise FormatError(
                f"{self._what} has {len(self._view) - self._at} bytes after its last field."
            )
