"""The body of an HTTP response as its server meant it: without chunks and content codings. Pure,
but for brotli (fastwarc).

Invariants: a body is given whole, or a sentence says why not. One that its headers call packed and
that is plain text is taken as it is: proxies and crawlers unpack bodies and leave the header.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from typing import Final

from stream_dedup.domain.errors import InputError
from stream_dedup.inputs.packed import unpack

_NO_CODING: Final = ("", "identity", "none", "binary", "8bit", "7bit")
_CHUNK: Final = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]{0,1000})?\r?\n")
# What no text holds and packed bytes do: controls, but for tabs, line ends, form feeds and the
# escape of ISO-2022.
_CONTROLS: Final = bytes(sorted(set(range(32)) - set(b"\t\n\r\f\x1b")))
_LOOKED_AT_BYTES: Final = 64 << 10
_UTF_16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")

# A coding's body and whether it was whole; ValueError, zlib.error, OSError or InputError say that
# it is no such thing.
_Decode = Callable[[bytes, int], tuple[bytes, bool]]


def body_of(
    raw: bytes, header: Callable[[str], str], most: int, *, is_cut: bool = False
) -> bytes | None:
    """Return the body whose bytes on the wire were `raw`; None if it has more than `most`.

    `header` gives a header's value by its name, empty if there is none. `is_cut`: the crawler says
    that it cut the body off, and what there is of it will do.

    Raises:
        InputError: it is damaged or cut off; the sentence goes on from the name of the page.
    """
    codings = [*_names(header("Content-Encoding")), *_names(header("Transfer-Encoding"))]
    for coding in reversed(codings):
        if not raw:
            return raw
        decode = _CODINGS.get(coding)
        try:
            if decode is None:
                raise InputError("it is no coding that can be undone")
            found, is_whole = decode(raw, most)
        except (ValueError, zlib.error, OSError, InputError) as error:
            if not _is_text(raw) or (coding == "chunked" and _CHUNK.match(raw)):
                raise InputError(
                    f"has a body that should be {coding} and cannot be read as that: {error}"
                ) from error
            continue
        if len(found) > most:
            return None
        if not is_whole and not is_cut:
            raise InputError(f"has a body of {coding} that is cut off")
        raw = found
    length = header("Content-Length").strip()
    if (
        not codings
        and not is_cut
        and length.isascii()
        and length.isdigit()
        and len(raw) < int(length[:18])
    ):
        raise InputError(f"has a body that is cut off: {len(raw):,} of {int(length[:18]):,} bytes")
    return raw if len(raw) <= most else None


def _names(value: str) -> list[str]:
    return [
        name
        for one in value.lower().split(",")
        if (name := one.strip().removeprefix("x-")) not in _NO_CODING
    ]


def _is_text(raw: bytes) -> bool:
    part = raw[:_LOOKED_AT_BYTES]
    return part.startswith(_UTF_16_MARKS) or len(part.translate(None, _CONTROLS)) == len(part)


def _unchunk(raw: bytes, _most: int) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    at = 0
    while at < len(raw):
        line = _CHUNK.match(raw, at)
        if line is None:
            raise ValueError(f"no chunk begins at byte {at}")
        at, size = line.end(), int(line[1], 16)
        if not size:
            return b"".join(parts), True
        parts.append(raw[at : at + size])
        at += size
        if at < len(raw):
            at += 2 if raw.startswith(b"\r\n", at) else 1
    return b"".join(parts), False


def _inflate(raw: bytes, bits: int, most: int) -> tuple[bytes, bool]:
    found = b""
    while True:
        unpacker = zlib.decompressobj(bits)
        found += unpacker.decompress(raw, most + 1 - len(found))
        if len(found) > most or not unpacker.eof:
            return found, unpacker.eof
        raw = unpacker.unused_data
        if not raw.startswith(b"\x1f\x8b"):  # browsers do not mind what stands behind a body either
            return found, True


def _gunzip(raw: bytes, most: int) -> tuple[bytes, bool]:
    return _inflate(raw, zlib.MAX_WBITS | 16, most)


def _undeflate(raw: bytes, most: int) -> tuple[bytes, bool]:
    try:
        return _inflate(raw, zlib.MAX_WBITS, most)
    except zlib.error:
        return _inflate(raw, -zlib.MAX_WBITS, most)  # what half the servers understood by the name


def _unzstd(raw: bytes, most: int) -> tuple[bytes, bool]:
    found = unpack(".zst", raw, most)
    return (bytes(most + 1) if found is None else found), True


def _unbrotli(raw: bytes, most: int) -> tuple[bytes, bool]:
    from fastwarc.stream_io import BrotliReader  # noqa: PLC0415 - an extra

    reader, found = BrotliReader(io.BytesIO(raw)), bytearray()
    while len(found) <= most and (part := reader.read(most + 1 - len(found))):
        found += part
    return bytes(found), True


_CODINGS: Final[dict[str, _Decode]] = {
    "chunked": _unchunk,
    "gzip": _gunzip,
    "deflate": _undeflate,
    "br": _unbrotli,
    "zstd": _unzstd,
}
