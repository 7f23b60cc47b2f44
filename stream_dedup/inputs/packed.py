"""Files that are packed: gzip by the standard library, zstd by `stream-dedup[files]`."""

from __future__ import annotations

import gzip
import importlib.util
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Final, cast

from stream_dedup.ground.errors import InputError

SUFFIXES: Final = (".gz", ".zst")


def unpacking(suffix: str, packed: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    """Return a context with the unpacked bytes of a file with this suffix (`.gz` or `.zst`), of all its members or frames.

    Raises:
        InputError: zstd is not installed. What is damaged raises an error of `errors_of_unpacking` when it is read.
    """
    if suffix == ".gz":
        return cast("AbstractContextManager[IO[bytes]]", gzip.open(packed))
    need("zstandard", "Files packed with zstd")
    import io  # noqa: PLC0415 - with it

    import zstandard  # noqa: PLC0415 - an extra

    reader: Any = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    return cast("AbstractContextManager[IO[bytes]]", io.BufferedReader(reader, buffer_size=1 << 20))


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
