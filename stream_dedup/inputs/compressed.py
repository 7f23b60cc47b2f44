"""Unpack compressed files and texts: gzip by the standard library, zstd by `crawl-dedup[files]`.

Invariant: undamaged parts of a damaged file are read. A file can have many members (gzip) or frames
(zstd); after a damaged one reading continues with the next that can be unpacked, and the gap between
them is reported.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from stream_dedup.domain.errors import InputError
from stream_dedup.domain.extras import install_command

SUFFIXES: Final = (".gz", ".zst")
_MAGIC: Final = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
# The reasons of zlib and zstd for bytes that do not begin a member.
_NOT_PACKED: Final = ("incorrect header check", "Unknown frame descriptor")
# The first bytes of a member; for gzip with the byte of its only method, because any data can
# contain the two bytes of `_MAGIC`.
_BEGINNING: Final = {".gz": b"\x1f\x8b\x08", ".zst": _MAGIC[".zst"]}
# A skippable frame, in which a WARC file has the dictionary of its other frames.
_DICTIONARY_MAGIC: Final = b"\x5d\x2a\x4d\x18"
_DICTIONARY_BYTES_MAX: Final = 64 << 20
# The largest window of a zstd frame: the size that every reader must support. Frames can request
# gigabytes.
_WINDOW_BYTES_MAX: Final = 8 << 20
# A block of zstd has at least four bytes and is unpacked to at most 128 KiB, so a step to at most
# 8 MiB.
_STEP_BYTES: Final = 256
_READ_BYTES: Final = 64 << 10
_PIECE_BYTES: Final = 1 << 20
# The zstd library cannot limit its output, so its input is limited: these bytes are unpacked to 20 kB
# of usual text, and to 128 MiB at most.
_READ_BYTES_ZSTD: Final = 4 << 10
# A member after a damaged one is accepted once this many bytes were unpacked without an error: a few
# bytes can succeed by chance.
_ACCEPTED_BYTES: Final = 8 << 20


class Piece(NamedTuple):
    """Unpacked bytes of a file, in order. `offset`: the offset of their member in the file, or of
    the bytes if the file is not compressed; `begins`: they are the first bytes of the member.

    `damage` is a reason why bytes are missing here; `data` is empty then, and earlier bytes of the
    same member may be wrong, because its checksum is at its end. `is_trailing`: all earlier bytes are
    undamaged, because the rest of the file is no member.
    """

    data: bytes
    offset: int
    begins: bool = False
    damage: str = ""
    is_trailing: bool = False


def read_pieces(file: IO[bytes], packing: str) -> Iterator[Piece]:
    """Yield the unpacked bytes of a file; `packing` is `.gz`, `.zst`, or empty if it is not packed.

    Raises:
        InputError: zstd is not installed.
        OSError: the file cannot be read.
    """
    if packing == ".zst":
        require("zstandard", "Files packed with zstd")
    source = _Packed(file, packing, _dictionary_of(file) if packing == ".zst" else None)
    offset: int | None = 0
    while not packing and (data := file.read(_PIECE_BYTES)):
        yield Piece(data, offset or 0)
        offset = (offset or 0) + len(data)
    offset = _after_padding(file, 0) if packing else None
    while offset is not None:
        member = _Member(source, offset)
        begins = True
        try:
            while data := member.read():
                yield Piece(data, offset, begins)
                begins = False
        except Exception as error:
            if not isinstance(error, EOFError) and not is_damage(error):
                raise
            following = _next_member(source, offset + 1)
            is_trailing = begins and following is None and not _is_member(source, offset)
            damage = str(error)
            if offset == 0 and any(reason in damage for reason in _NOT_PACKED):
                damage = f"it is not compressed as its name says; remove {packing} from the name"
            yield Piece(b"", offset, damage=damage, is_trailing=is_trailing)
            offset = following
        else:
            offset = _after_padding(file, member.end)


class Stretch(io.RawIOBase):
    """The unpacked bytes of a file up to the next damage; then `damage` is its reason, or empty at the
    end of the file.

    `is_whole`: the last bytes are not cut off.
    """

    def __init__(self, pieces: Iterator[Piece]) -> None:
        """Read `pieces` from the end of the stretch before."""
        self.damage = ""
        self.is_whole = self.is_last = False
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, target: Any) -> int:
        """Fill `target` with the next bytes, at most a piece; return their number, 0 at the end."""
        while not self._rest and not self.is_last and not self.damage:
            piece = next(self._pieces, None)
            self.is_last, self.damage = piece is None, piece.damage if piece else ""
            self.is_whole = piece is None or piece.is_trailing
            self._rest = memoryview(piece.data if piece else b"")
        size = min(len(target), len(self._rest))
        target[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def read_stretches(file: IO[bytes], packing: str) -> Iterator[Stretch]:
    """Yield the unpacked bytes of a file as streams, the first from its beginning and one after each
    damage. The caller must read each to its end.

    Raises:
        InputError: zstd is not installed.
    """
    pieces = read_pieces(file, packing)
    while True:
        stretch = Stretch(pieces)
        yield stretch
        if stretch.is_last:
            return


class _Packed(NamedTuple):
    """A compressed file, and the dictionary of its frames or None."""

    file: IO[bytes]
    packing: str
    dictionary: Any


class _Member:
    """One member or frame of a compressed file, at an offset."""

    def __init__(self, source: _Packed, offset: int) -> None:
        self._file = source.file
        self._is_gzip = source.packing == ".gz"
        self._unpacker: Any = (
            zlib.decompressobj(zlib.MAX_WBITS | 16)
            if self._is_gzip
            else _zstd_frame(dictionary=source.dictionary)
        )
        self._read_to = offset
        self._rest = b""
        self._file.seek(offset)

    @property
    def end(self) -> int:
        """The offset of its end in the file, once `read` has returned no bytes."""
        return self._read_to - len(self._unpacker.unused_data)

    def read(self) -> bytes:
        """Return the next bytes, none at its end.

        Raises:
            EOFError: the file ends before the member. Errors for which `is_damage` is True: it is
            damaged.
        """
        while not self._unpacker.eof:
            is_over = False
            if not self._rest:
                self._rest = self._file.read(_READ_BYTES if self._is_gzip else _READ_BYTES_ZSTD)
                self._read_to += len(self._rest)
                is_over = not self._rest
            if self._is_gzip:
                data = self._unpacker.decompress(self._rest, _PIECE_BYTES)
                self._rest = self._unpacker.unconsumed_tail
            else:
                data, self._rest = self._unpacker.decompress(self._rest), b""
            if data:
                return bytes(data)
            if is_over and not self._unpacker.eof:
                raise EOFError("it is cut off")
        return b""


def _zstd_frame(window_bytes_max: int = 0, dictionary: Any = None) -> Any:
    import zstandard  # noqa: PLC0415 - an extra

    # Unlike the library's stream, this object detects a frame that is cut off.
    return zstandard.ZstdDecompressor(
        dict_data=dictionary, max_window_size=window_bytes_max
    ).decompressobj()


def _dictionary_of(file: IO[bytes]) -> Any:
    """Return the dictionary before the frames of a WARC file, which may be compressed; None if there
    is none.
    """
    import zstandard  # noqa: PLC0415 - an extra

    file.seek(0)
    head = file.read(len(_DICTIONARY_MAGIC) + 4)
    size = int.from_bytes(head[len(_DICTIONARY_MAGIC) :], "little")
    if not head.startswith(_DICTIONARY_MAGIC) or size > _DICTIONARY_BYTES_MAX:
        return None
    raw: bytes | None = file.read(size)
    try:
        if raw and packing_of(raw) == ".zst":
            raw = unpack(".zst", raw, _DICTIONARY_BYTES_MAX)
        return zstandard.ZstdCompressionDict(raw) if raw else None
    except (InputError, zstandard.ZstdError):
        return None  # then unpacking the frames fails with a message


def _after_padding(file: IO[bytes], offset: int) -> int | None:
    """Return `offset`, the expected start of the next member; None if only zeros follow."""
    file.seek(offset)
    while data := file.read(_READ_BYTES):
        if data.strip(b"\0"):
            return offset
    return None


def _is_member(source: _Packed, offset: int) -> bool:
    beginning = _BEGINNING[source.packing]
    source.file.seek(offset)
    return offset == 0 or source.file.read(len(beginning)) == beginning


def _next_member(source: _Packed, offset: int) -> int | None:
    """Return the offset of the first member at or after `offset` that can be unpacked; None if there
    is none.
    """
    beginning = _BEGINNING[source.packing]
    while True:
        source.file.seek(offset)
        window = source.file.read(_PIECE_BYTES)
        found = window.find(beginning)
        while found >= 0:
            if _can_be_unpacked(_Member(source, offset + found)):
                return offset + found
            found = window.find(beginning, found + 1)
        if len(window) < _PIECE_BYTES:
            return None
        offset += len(window) - len(beginning) + 1


def _can_be_unpacked(member: _Member) -> bool:
    size = 0
    try:
        while size < _ACCEPTED_BYTES and (data := member.read()):
            size += len(data)
    except EOFError:
        return bool(size)  # the file's last member, which is cut off
    except Exception as error:
        if not is_damage(error):
            raise
        return False
    return True


def packing_of(packed: bytes) -> str:
    """Return the suffix of the compression of bytes, by the first of them; empty if there is none."""
    return next((suffix for suffix, magic in _MAGIC.items() if packed.startswith(magic)), "")


def unpack(suffix: str, packed: bytes, size_max: int) -> bytes | None:
    """Return the unpacked bytes of all members or frames; None if they are more than `size_max`.

    Raises:
        InputError: zstd is not installed, or the bytes are damaged, cut off or of another format.
    """
    try:
        if suffix == ".gz":
            if not packed:
                raise EOFError("it is empty")
            with gzip.open(io.BytesIO(packed)) as unpacked:
                found = unpacked.read(size_max + 1)
        else:
            found = _unpack_zstd(packed, size_max)
    except Exception as error:
        if not isinstance(error, OSError | EOFError) and not is_damage(error):
            raise
        raise InputError(f"it cannot be unpacked ({error})") from error
    return None if len(found) > size_max else found


def _unpack_zstd(packed: bytes, size_max: int) -> bytes:
    require("zstandard", "Texts packed with zstd")
    found = bytearray()
    start = 0
    while True:
        frame = _zstd_frame(_WINDOW_BYTES_MAX)
        while not frame.eof:
            if start >= len(packed):
                raise EOFError("the last frame is cut off")
            part = packed[start : start + _STEP_BYTES]
            found += frame.decompress(part)
            start += len(part)
            if len(found) > size_max:
                return bytes(found)
        start -= len(frame.unused_data)
        if start >= len(packed):
            return bytes(found)


def require(library: str, what: str) -> None:
    """Raise `InputError`, with the remedy, if a library of the extra `files` is missing."""
    if importlib.util.find_spec(library) is None:
        raise InputError(f"{what} need the package {library}; run: {install_command('files')}")


def suffixes_of(path: Path) -> tuple[str, str]:
    """Return (suffix of the content, suffix of the compression) in lower case, each empty if there is
    none.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packing = suffixes.pop() if suffixes and suffixes[-1] in SUFFIXES else ""
    return (suffixes[-1] if suffixes else ""), packing


def is_damage(error: BaseException) -> bool:
    """Return whether an error means that compressed bytes are damaged."""
    return type(error).__module__.split(".")[0] in ("zlib", "zstandard")
