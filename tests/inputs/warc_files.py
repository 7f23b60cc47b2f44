"""WARC files made by hand: valid records, and odd or broken ones as crawlers and proxies leave
them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence

import brotli
import zstandard


def page(name: str, sentences: int = 40) -> bytes:
    """Return a web page of one article that is similar to no other page."""
    body = " ".join(
        f"{name}{number} stands in sentence {number // 9} of the page {name}."
        for number in range(sentences)
    )
    return f"<html><head><title>{name}</title></head><body><article><h1>{name}</h1><p>{body}</p></article></body></html>".encode()


def http(body: bytes, *headers: str, kind: str = "text/html; charset=utf-8") -> bytes:
    """Return a response with status 200."""
    return (
        "\r\n".join(["HTTP/1.1 200 OK", f"Content-Type: {kind}", *headers]).encode()
        + b"\r\n\r\n"
        + body
    )


def record(
    name: str,
    block: bytes,
    *more: str,
    length: int | None = None,
    kind: str = "response",
    content: str = "application/http; msgtype=response",
) -> bytes:
    """Return a record; its header contains the length of its block, or `length`."""
    head = [
        "WARC/1.1",
        f"WARC-Type: {kind}",
        f"WARC-Target-URI: http://{name}.example/",
        "WARC-Date: 2026-05-01T10:00:00Z",
        f"WARC-Record-ID: <urn:uuid:{zlib.crc32(name.encode()):08x}-0000-0000-0000-000000000000>",
        f"Content-Type: {content}",
        *more,
        f"Content-Length: {len(block) if length is None else length}",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + block + b"\r\n\r\n"


def renamed(record: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return a record with its header names changed by `change`."""
    head, end, block = record.partition(b"\r\n\r\n")
    version, *lines = head.split(b"\r\n")
    pairs = [line.split(b":", 1) for line in lines]
    return (
        b"\r\n".join([version, *(change(name) + b":" + value for name, value in pairs)])
        + end
        + block
    )


def chunked(body: bytes, size: int = 500, *, ends: bool = True) -> bytes:
    """Return a body in chunks."""
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + (
        b"0\r\n\r\n" if ends else b""
    )


def zstd(data: bytes) -> bytes:
    """Return one frame with a checksum."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def gzipped(data: bytes) -> bytes:
    """Return one member, the same each time."""
    return gzip.compress(data, mtime=0)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".warc": bytes,
    ".warc.gz": gzipped,
    ".warc.zst": zstd,
}
B = page("b")
_RIGHT = record("b", http(B))

WHOLE: dict[str, bytes] = {
    "right": _RIGHT,
    "chunked": record("b", http(chunked(B), "Transfer-Encoding: chunked")),
    "gzip_in_chunks": record(
        "b", http(chunked(gzipped(B)), "Content-Encoding: gzip", "Transfer-Encoding: chunked")
    ),
    "gzip_then_br": record("b", http(brotli.compress(gzipped(B)), "Content-Encoding: gzip, br")),
    "x-gzip": record("b", http(gzipped(B), "Content-Encoding: x-gzip")),
    "zstd": record("b", http(zstd(B), "Content-Encoding: zstd")),
    "deflate": record("b", http(zlib.compress(B), "Content-Encoding: deflate")),
    "deflate_without_zlib": record("b", http(zlib.compress(B)[2:-4], "Content-Encoding: deflate")),
    "says_gzip_is_not": record("b", http(B, "Content-Encoding: gzip", "Content-Length: 700")),
    "says_br_is_not": record("b", http(B, "Content-Encoding: br")),
    "says_zstd_is_not": record("b", http(B, "Content-Encoding: zstd")),
    "says_deflate_is_not": record("b", http(B, "Content-Encoding: deflate")),
    "says_chunked_is_not": record("b", http(B, "Transfer-Encoding: chunked")),
    "names_in_lower_case": renamed(record("b", http(B)), bytes.lower),
    "names_in_upper_case": renamed(record("b", http(B)), bytes.upper),
    "continue_before_it": record("b", b"HTTP/1.1 100 Continue\r\n\r\n" + http(B)),
    "hints_before_it": record(
        "b",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"
        + http(B, f"Content-Length: {len(B)}"),
    ),
    "says_a_charset": record("b", http(B, "Content-Encoding: utf-8")),
    "lines_without_cr": record("b", http(B).replace(b"\r\n", b"\n")),
    "one_byte_short": record("b", http(B), length=len(http(B)) - 1),
    "one_byte_long": record("b", http(B), length=len(http(B)) + 1),
    "much_too_short": record("b", http(B), length=100),
    "much_too_long": record("b", http(B), length=len(http(B)) + 4000),
    "absurdly_long": record("b", http(B), length=10**15),
    "length_missing": b"\r\n".join(
        line for line in _RIGHT.split(b"\r\n") if not line.startswith(b"Content-Length")
    ),
    "length_no_number": _RIGHT.replace(b"Content-Length: ", b"Content-Length: x"),
    "length_negative": _RIGHT.replace(b"Content-Length: ", b"Content-Length: -"),
    "other_version": _RIGHT.replace(b"WARC/1.1", b"WARC/0.18"),
    "bad_version": _RIGHT.replace(b"WARC/1.1", b"WRAC/1.1"),
}
"""Odd records whose page is complete: each yields `B`."""

BROKEN: dict[str, bytes] = {
    "cut_gzip": record("b", http(gzipped(B)[:-30], "Content-Encoding: gzip")),
    "cut_br": record("b", http(brotli.compress(B)[:-30], "Content-Encoding: br")),
    "cut_zstd": record("b", http(zstd(B)[:-30], "Content-Encoding: zstd")),
    "cut_deflate": record("b", http(zlib.compress(B)[:-30], "Content-Encoding: deflate")),
    "cut_chunks": record("b", http(chunked(B)[:-100], "Transfer-Encoding: chunked")),
    "no_last_chunk": record("b", http(chunked(B, ends=False), "Transfer-Encoding: chunked")),
    "damaged_gzip": record(
        "b", http(gzipped(B)[:100] + b"\xff" + gzipped(B)[101:], "Content-Encoding: gzip")
    ),
    "damaged_chunks": record(
        "b", http(chunked(B).replace(b"\r\n1f4\r\n", b"\r\nxyz\r\n"), "Transfer-Encoding: chunked")
    ),
    "cut_body": record("b", http(B[:-100], f"Content-Length: {len(B)}")),
    "no_http": record("b", B),
    "no_head": b"\r\n".join(line for line in _RIGHT.split(b"\r\n") if not line.startswith(b"WARC")),
    "no_record": b"rubbish " * 50,
    "cut_record": _RIGHT[:-300],
    "cut_head": _RIGHT[:150],
}
"""Records whose page cannot be read: each is lost."""


def warc(records: Sequence[bytes], name: str) -> bytes:
    """Return a file with the suffix of `name`: plain, or packed record by record."""
    return b"".join(PACKERS[name](record) for record in records)
