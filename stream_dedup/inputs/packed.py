"""Files and texts that are packed: gzip by the standard library, zstd by `stream-dedup[files]`."""

from __future__ import annotations

import gzip
import importlib.util
import io
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Final, cast

from stream_dedup.ground.errors import InputError

SUFFIXES: Final = (".gz", ".zst")
_MAGIC: Final = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
# What a zstd frame may ask to be held while it is unpacked: what its format has every reader provide. It may ask for gigabytes.
_WINDOW_BYTES_MAX: Final = 8 << 20
# A block of zstd takes four bytes at least and gives 128 KiB at most, so a step gives 8 MiB at most.
_STEP_BYTES: Final = 256


def unpacking(suffix: str, packed: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    """Return a context with the unpacked bytes of a file with this suffix (`.gz` or `.zst`), of all its members or frames.

    Raises:
        InputError: zstd is not installed. What is damaged raises an error of `errors_of_unpacking` when it is read.
    """
    if suffix == ".gz":
        return cast("AbstractContextManager[IO[bytes]]", gzip.open(packed))
    need("zstandard", "Files packed with zstd")
    import zstandard  # noqa: PLC0415 - an extra

    reader: Any = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    return cast("AbstractContextManager[IO[bytes]]", io.BufferedReader(reader, buffer_size=1 << 20))


def packing_of(packed: bytes) -> str:
    """Return the suffix of what packed these bytes, as they begin; empty if they are not packed."""
    return next((suffix for suffix, magic in _MAGIC.items() if packed.startswith(magic)), "")


def unpack(suffix: str, packed: bytes, most: int) -> bytes | None:
    """Return the unpacked bytes of all members or frames; None if they are more than `most`, which are never held.

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
    import zstandard  # noqa: PLC0415 - an extra

    found = bytearray()
    start = 0
    while True:
        # The library's stream does not tell a frame that was cut off; this one does, and is bounded by what it is given.
        frame: Any = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX).decompressobj()
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
        raise InputError(f"{what} need the package {library}; run: pip install 'stream-dedup[files]'")


def suffixes_of(path: Path) -> tuple[str, str]:
    """Return (suffix of the content, suffix of the packing) in lower case, each empty if there is none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packing = suffixes.pop() if suffixes and suffixes[-1] in SUFFIXES else ""
    return (suffixes[-1] if suffixes else ""), packing


def is_damage(error: BaseException) -> bool:
    """Whether an error says that packed bytes are damaged."""
    return type(error).__module__.split(".")[0] in ("zlib", "zstandard")
