"""Decode the body of an HTTP response: without chunks and content codings. Pure, but for brotli
(fastwarc).

Invariants: a body is returned complete, or an error has the reason. A body that is plain text
although its headers name a coding is unchanged: proxies and crawlers decode bodies and keep the
header.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from typing import Final

from stream_dedup.domain.errors import InputError
from stream_dedup.inputs.compressed import unpack

_NO_CODING: Final = ("", "identity", "none", "binary", "8bit", "7bit")
_CHUNK: Final = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]{0,1000})?\r?\n")
# Bytes of compressed data that no text has: controls, but for tabs, line ends, form feeds and the
# escape of ISO-2022.
_CONTROLS: Final = bytes(sorted(set(range(32)) - set(b"\t\n\r\f\x1b")))
_SCANNED_BYTES: Final = 64 << 10
_UTF_16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")

# Returns the decoded body and whether it was complete; raises ValueError, zlib.error, OSError or
# InputError if the bytes have another coding.
_Decode = Callable[[bytes, int], tuple[bytes, bool]]


def body_of(
    raw: bytes, header: Callable[[str], str], size_max: int, *, is_cut: bool = False
) -> bytes | None:
    """Return the decoded body of `raw`, the bytes on the wire; None if it has more than `size_max`.

    `header` returns a header's value by its name, empty if there is none. `is_cut`: the
    crawler truncated the body, so an incomplete body is accepted.

    Raises:
        InputError: it is damaged or cut off; the message is the predicate of a sentence.
    """
    codings = [*_names(header("Content-Encoding")), *_names(header("Transfer-Encoding"))]
    for coding in reversed(codings):
        if not raw:
            return raw
        decode = _CODINGS.get(coding)
        try:
            if decode is None:
                raise InputError("the coding is unknown")
            found, is_whole = decode(raw, size_max)
        except (ValueError, zlib.error, OSError, InputError) as error:
            if not _is_text(raw) or (coding == "chunked" and _CHUNK.match(raw)):
                raise InputError(f"has a body of {coding} that cannot be read: {error}") from error
            continue
        if len(found) > size_max:
            return None
        if not is_whole and not is_cut:
            raise InputError(f"has a truncated body of {coding}")
        raw = found
    length = header("Content-Length").strip()
    if (
        not codings
        and not is_cut
        and length.isascii()
        and length.isdigit()
        and len(raw) < int(length[:18])
    ):
        raise InputError(f"has a truncated body: {len(raw):,} of {int(length[:18]):,} bytes")
    return raw if len(raw) <= size_max else None


def _names(value: str) -> list[str]:
    return [
        name
        for part in value.lower().split(",")
        if (name := part.strip().removeprefix("x-")) not in _NO_CODING
    ]


def _is_text(raw: bytes) -> bool:
    part = raw[:_SCANNED_BYTES]
    return part.startswith(_UTF_16_MARKS) or len(part.translate(None, _CONTROLS)) == len(part)


def _unchunk(raw: bytes, _size_max: int) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    offset = 0
    while offset < len(raw):
        line = _CHUNK.match(raw, offset)
        if line is None:
            raise ValueError(f"no chunk starts at byte {offset}")
        offset, size = line.end(), int(line[1], 16)
        if not size:
            return b"".join(parts), True
        parts.append(raw[offset : offset + size])
        offset += size
        if offset < len(raw):
            offset += 2 if raw.startswith(b"\r\n", offset) else 1
    return b"".join(parts), False


def _inflate(raw: bytes, bits: int, size_max: int) -> tuple[bytes, bool]:
    found = b""
    while True:
        unpacker = zlib.decompressobj(bits)
        found += unpacker.decompress(raw, size_max + 1 - len(found))
        if len(found) > size_max or not unpacker.eof:
            return found, unpacker.eof
        raw = unpacker.unused_data
        if not raw.startswith(b"\x1f\x8b"):  # browsers also ignore bytes after a body
            return found, True


def _gunzip(raw: bytes, size_max: int) -> tuple[bytes, bool]:
    return _inflate(raw, zlib.MAX_WBITS | 16, size_max)


def _undeflate(raw: bytes, size_max: int) -> tuple[bytes, bool]:
    try:
        return _inflate(raw, zlib.MAX_WBITS, size_max)
    except zlib.error:
        return _inflate(raw, -zlib.MAX_WBITS, size_max)  # many servers send raw deflate


def _unzstd(raw: bytes, size_max: int) -> tuple[bytes, bool]:
    found = unpack(".zst", raw, size_max)
    return (bytes(size_max + 1) if found is None else found), True


def _unbrotli(raw: bytes, size_max: int) -> tuple[bytes, bool]:
    from fastwarc.stream_io import BrotliReader  # noqa: PLC0415 - an extra

    reader, found = BrotliReader(io.BytesIO(raw)), bytearray()
    while len(found) <= size_max and (part := reader.read(size_max + 1 - len(found))):
        found += part
    return bytes(found), True


_CODINGS: Final[dict[str, _Decode]] = {
    "chunked": _unchunk,
    "gzip": _gunzip,
    "deflate": _undeflate,
    "br": _unbrotli,
    "zstd": _unzstd,
}
