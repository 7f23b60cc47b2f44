"""Files and texts that are packed: gzip by the standard library, zstd by `crawl-dedup[files]`.

Invariant: what is whole is read, also beside damage. A file may have many members (gzip) or frames
(zstd); behind a damaged one the next that can be unpacked goes on, and what is missing between them
is told.
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

SUFFIXES: Final = (".gz", ".zst")
_MAGIC: Final = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
# What a member begins with: of gzip also its one method, since two bytes stand anywhere.
_BEGINNING: Final = {".gz": b"\x1f\x8b\x08", ".zst": _MAGIC[".zst"]}
# The frame that readers skip, in which a WARC file has the dictionary of the others.
_DICTIONARY_MAGIC: Final = b"\x5d\x2a\x4d\x18"
_DICTIONARY_BYTES_MAX: Final = 64 << 20
# What a zstd frame may ask to be held while it is unpacked: what its format has every reader
# provide. It may ask for gigabytes.
_WINDOW_BYTES_MAX: Final = 8 << 20
# A block of zstd takes four bytes at least and gives 128 KiB at most, so a step gives 8 MiB at
# most.
_STEP_BYTES: Final = 256
_READ_BYTES: Final = 64 << 10
_PIECE_BYTES: Final = 1 << 20
# zstd cannot be told how much to give: as many packed bytes at once as give 128 MiB at most, and 20
# kB of usual texts.
_READ_BYTES_ZSTD: Final = 4 << 10
# A member behind damage is believed once this much of it was unpacked without an error: chance gets
# through a few bytes.
_BELIEVED_BYTES: Final = 8 << 20


class Piece(NamedTuple):
    """Unpacked bytes of a file, in their order; `at` is where in the file their member begins,
    `begins`: they are its first.

    Of a file that is not packed, `at` is where they are themselves. With `damage` (a reason) it has
    no bytes: some are missing here, and those before it in the same member may be wrong, since its
    checksum stands at its end. `is_behind`: all before it is whole, because what could not be
    unpacked is no member, and none follows.
    """

    data: bytes
    at: int
    begins: bool = False
    damage: str = ""
    is_behind: bool = False


def read_pieces(file: IO[bytes], packing: str) -> Iterator[Piece]:
    """Yield the unpacked bytes of a file; `packing` is `.gz`, `.zst`, or empty if it is not packed.

    Raises:
        InputError: zstd is not installed.
        OSError: the file cannot be read.
    """
    if packing == ".zst":
        need("zstandard", "Files packed with zstd")
    source = _Packed(file, packing, _dictionary_of(file) if packing == ".zst" else None)
    at: int | None = 0
    while not packing and (data := file.read(_PIECE_BYTES)):
        yield Piece(data, at or 0)
        at = (at or 0) + len(data)
    at = _behind_padding(file, 0) if packing else None
    while at is not None:
        member = _Member(source, at)
        begins = True
        try:
            while data := member.read():
                yield Piece(data, at, begins)
                begins = False
        except Exception as error:
            if not isinstance(error, EOFError) and not is_damage(error):
                raise
            following = _next_member(source, at + 1)
            is_behind = begins and following is None and not _is_member(source, at)
            yield Piece(b"", at, damage=str(error), is_behind=is_behind)
            at = following
        else:
            at = _behind_padding(file, member.end)


class Stretch(io.RawIOBase):
    """The unpacked bytes of a file up to the next damage; then `damage` says what that is, and
    nothing if they ended well.

    `is_whole`: the last of them are not cut off.
    """

    def __init__(self, pieces: Iterator[Piece]) -> None:
        """Take the pieces from where the stretch before it ended."""
        self.damage = ""
        self.is_whole = self.is_last = False
        self._pieces = pieces
        self._held = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, target: Any) -> int:
        """Fill `target`, as far as bytes are there at once, and return how many; 0 at the end."""
        while not self._held and not self.is_last and not self.damage:
            piece = next(self._pieces, None)
            self.is_last, self.damage = piece is None, piece.damage if piece else ""
            self.is_whole = piece is None or piece.is_behind
            self._held = memoryview(piece.data if piece else b"")
        size = min(len(target), len(self._held))
        target[:size], self._held = self._held[:size], self._held[size:]
        return size


def read_stretches(file: IO[bytes], packing: str) -> Iterator[Stretch]:
    """Yield the bytes of a file as files, one from its beginning and one from behind each damage;
    read each to its end.

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
    """A packed file, and the dictionary of its frames, if they need one."""

    file: IO[bytes]
    packing: str
    dictionary: Any


class _Member:
    """One member or frame of a packed file, from its first byte on."""

    def __init__(self, source: _Packed, at: int) -> None:
        self._file = source.file
        self._is_gzip = source.packing == ".gz"
        self._unpacker: Any = (
            zlib.decompressobj(zlib.MAX_WBITS | 16)
            if self._is_gzip
            else _zstd_frame(dictionary=source.dictionary)
        )
        self._taken = at
        self._rest = b""
        self._file.seek(at)

    @property
    def end(self) -> int:
        """Where in the file it ended; once `read` gave nothing."""
        return self._taken - len(self._unpacker.unused_data)

    def read(self) -> bytes:
        """Return the next bytes, none at its end; raise EOFError if the file ends before it, or
        what `is_damage` knows.
        """
        while not self._unpacker.eof:
            is_over = False
            if not self._rest:
                self._rest = self._file.read(_READ_BYTES if self._is_gzip else _READ_BYTES_ZSTD)
                self._taken += len(self._rest)
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

    # The library's stream does not tell a frame that was cut off; this one does.
    return zstandard.ZstdDecompressor(
        dict_data=dictionary, max_window_size=window_bytes_max
    ).decompressobj()


def _dictionary_of(file: IO[bytes]) -> Any:
    """Return the dictionary that stands before the frames of a WARC file, itself packed or not;
    None if there is none.
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
        return None  # the frames then say that they cannot be unpacked


def _behind_padding(file: IO[bytes], at: int) -> int | None:
    """Return where the next member should begin; None if nothing but zeros follows."""
    file.seek(at)
    while data := file.read(_READ_BYTES):
        if data.strip(b"\0"):
            return at
    return None


def _is_member(source: _Packed, at: int) -> bool:
    beginning = _BEGINNING[source.packing]
    source.file.seek(at)
    return at == 0 or source.file.read(len(beginning)) == beginning


def _next_member(source: _Packed, at: int) -> int | None:
    """Return where the first member from `at` on begins that can be unpacked; None if there is
    none.
    """
    beginning = _BEGINNING[source.packing]
    while True:
        source.file.seek(at)
        window = source.file.read(_PIECE_BYTES)
        found = window.find(beginning)
        while found >= 0:
            if _can_be_unpacked(_Member(source, at + found)):
                return at + found
            found = window.find(beginning, found + 1)
        if len(window) < _PIECE_BYTES:
            return None
        at += len(window) - len(beginning) + 1


def _can_be_unpacked(member: _Member) -> bool:
    size = 0
    try:
        while size < _BELIEVED_BYTES and (data := member.read()):
            size += len(data)
    except EOFError:
        return bool(size)  # cut off, so that what is there is the file's last
    except Exception as error:
        if not is_damage(error):
            raise
        return False
    return True


def packing_of(packed: bytes) -> str:
    """Return the suffix of what packed these bytes, as they begin; empty if they are not packed."""
    return next((suffix for suffix, magic in _MAGIC.items() if packed.startswith(magic)), "")


def unpack(suffix: str, packed: bytes, most: int) -> bytes | None:
    """Return the unpacked bytes of all members or frames; None if they are more than `most`, which
    are never held.

    Raises:
        InputError: zstd is not installed, or the bytes are damaged, or not packed so, or cut off.
    """
    try:
        if suffix == ".gz":
            if not packed:
                raise EOFError("it is empty")
            with gzip.open(io.BytesIO(packed)) as unpacked:
                found = unpacked.read(most + 1)
        else:
            found = _unpack_zstd(packed, most)
    except Exception as error:
        if not isinstance(error, OSError | EOFError) and not is_damage(error):
            raise
        raise InputError(f"it cannot be unpacked ({error})") from error
    return None if len(found) > most else found


def _unpack_zstd(packed: bytes, most: int) -> bytes:
    need("zstandard", "Texts packed with zstd")
    found = bytearray()
    start = 0
    while True:
        frame = _zstd_frame(_WINDOW_BYTES_MAX)
        while not frame.eof:
            if start >= len(packed):
                raise EOFError("the last frame ended before its end")
            part = packed[start : start + _STEP_BYTES]
            found += frame.decompress(part)
            start += len(part)
            if len(found) > most:
                return bytes(found)
        start -= len(frame.unused_data)
        if start >= len(packed):
            return bytes(found)


def need(library: str, what: str) -> None:
    """Raise `InputError`, with the remedy, if a library of the extra `files` is missing."""
    if importlib.util.find_spec(library) is None:
        raise InputError(
            f"{what} need the package {library}; run: pip install 'crawl-dedup[files]'"
        )


def suffixes_of(path: Path) -> tuple[str, str]:
    """Return (suffix of the content, suffix of the packing) in lower case, each empty if there is
    none.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packing = suffixes.pop() if suffixes and suffixes[-1] in SUFFIXES else ""
    return (suffixes[-1] if suffixes else ""), packing


def is_damage(error: BaseException) -> bool:
    """Whether an error says that packed bytes are damaged."""
    return type(error).__module__.split(".")[0] in ("zlib", "zstandard")
