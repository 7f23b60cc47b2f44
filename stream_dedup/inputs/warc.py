"""Pages in WARC files (ISO 28500; also WET), plain, gzip or zstd. Needs `crawl-dedup[files]`
(fastwarc).

A page is the body of an HTTP response with status 200, a `resource` that has an address of the web,
or a `conversion` (the text that Common Crawl made of a page), of a type that is text. Everything
else is counted by what it was, and passed over; but a type of record that nobody knows is lost.

Invariants: the order is that of the file; a body is given as its server meant it, without chunks
and content codings, and as a whole; a record that cannot be read stands as one with `lost` at its
place, and costs no other.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stream_dedup.domain.document import DeadLetter
from stream_dedup.domain.errors import InputError
from stream_dedup.inputs.http_body import body_of
from stream_dedup.inputs.packed import Piece, need, packing_of, read_pieces, suffixes_of
from stream_dedup.inputs.warc_records import RECORD_BYTES_MAX, WarcBlock, read_blocks

if TYPE_CHECKING:
    from fastwarc.warc import WarcRecord

_STATUS_OK = 200
_PAGE_TYPES = ("text/html", "application/xhtml+xml")
_TEXT_TYPES = (*_PAGE_TYPES, "text/plain", "")
_TOO_LARGE = f"is larger than {RECORD_BYTES_MAX >> 20} MiB"
_TYPE = re.compile(rb"^WARC-Type[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_URL = re.compile(
    rb"^WARC-Target-URI[ \t]*:[ \t]*<?([^\r\n]*?)>?[ \t]*\r?$", re.IGNORECASE | re.MULTILINE
)
# Crawlers store their logs, arguments and texts of pages as resources of `urn:` or `metadata:`.
_SCHEMES_OF_PAGES = ("http", "https", "ftp", "file", "")
_CONTINUE = re.compile(rb"(?:HTTP/[\d.]+ 1\d\d\b[^\n]*\n(?:[^\r\n]+\r?\n)*\r?\n)+(?=HTTP/)")
_ARC = b"filedesc://"
_PAGE = re.compile(rb"\s*<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE)


class WarcPage(NamedTuple):
    """`url` is the WARC-Target-URI, `body` the bytes of the page, `charset` what its server said,
    `time` its WARC-Date.

    `is_html`: it is a web page, by its type, or by its beginning if it has none. `at` is where its
    record, or its member of the packed file, begins. With `lost` there is no body, and that is why.
    """

    url: str
    body: bytes
    charset: str | None
    time: str | None
    at: int
    is_html: bool = False
    lost: DeadLetter | None = None


def read_pages(path: Path, name: str, passed_over: Counter[str]) -> Iterator[WarcPage]:
    """Yield the pages of a file, which is called `name`; `passed_over` counts the records that are
    none, by reason.

    Raises:
        InputError: fastwarc is not installed, or nothing in the file is a WARC record.
        OSError: it cannot be read.
    """
    need("fastwarc", "WARC files")
    is_begun = False
    losses: list[
        WarcBlock
    ] = []  # those before the first record: a file that has none is no WARC file
    with path.open("rb") as stream:
        first = stream.read(8)
        # By its name only where its first member is damaged: names of WARC files say little.
        packing = packing_of(first) or ("" if first.startswith(b"WARC/") else suffixes_of(path)[1])
        stream.seek(0)
        for block in read_blocks(
            _need_warc(read_pieces(stream, packing), name), is_packed=bool(packing)
        ):
            if block.lost and not block.head and not is_begun:
                losses.append(block)
                continue
            is_begun = True
            for one in (*losses, block):
                page = _lost(one, name, one.lost) if one.lost else _page(one, name, passed_over)
                if page is not None:
                    yield page
            losses.clear()
    if losses:
        what = f"what stands at byte {losses[0].at:,} {losses[0].lost}"
        raise InputError(
            f"{name} holds no WARC record that can be read: {what}. Is it a WARC file?"
        )


def _need_warc(pieces: Iterator[Piece], name: str) -> Iterator[Piece]:
    """Return the pieces again; raise `InputError` if they are those of an ARC file."""
    first = next(pieces, None)
    if first is None:
        return pieces
    if first.data.startswith(_ARC):
        raise InputError(
            f"{name} is an ARC file, the format before WARC; convert it with: "
            "pip install warcio && warcio recompress IN.arc.gz OUT.warc.gz"
        )
    return itertools.chain([first], pieces)


def _page(block: WarcBlock, file: str, passed_over: Counter[str]) -> WarcPage | None:
    from fastwarc.warc import WarcRecordType  # noqa: PLC0415 - an extra

    try:
        record = _record(block)
        kind = record.record_type
        if kind not in (
            WarcRecordType.response,
            WarcRecordType.resource,
            WarcRecordType.conversion,
        ):
            if kind == WarcRecordType.unknown:
                return _lost(block, file, f"is of an unknown type ({_type_of(block)!r})")
            passed_over[str(kind).rpartition(".")[2]] += 1
            return None
        scheme = _url(block).partition(":")[0].lower()
        if kind == WarcRecordType.resource and scheme not in _SCHEMES_OF_PAGES:
            passed_over[f"resource of {scheme}:"] += 1
            return None
        is_http = record.is_http or (
            kind == WarcRecordType.response and block.block.startswith(b"HTTP/")
        )
        if is_http:
            record.is_http = True
            record.parse_http(quirks_mode=True)
        raw = record.reader.read() if is_http else block.block
    except (OSError, ValueError) as error:
        return _lost(block, file, f"has a head that cannot be read: {error}")
    said = record.http_headers if is_http else record.headers
    kind_of = (said.get("Content-Type") or "").partition(";")[0].strip().lower()
    status = said.status_code if is_http else _STATUS_OK
    if status is not None and status != _STATUS_OK:
        passed_over[f"status {status}"] += 1
        return None
    if kind_of not in _TEXT_TYPES:
        passed_over["not text"] += 1
        return None
    if status is None:
        return _lost(block, file, "has no HTTP status that can be read")
    if block.is_large:
        return _lost(block, file, _TOO_LARGE, "TooLarge")
    is_cut = bool(record.headers.get("WARC-Truncated"))
    try:
        body = (
            body_of(raw, lambda name: said.get(name) or "", RECORD_BYTES_MAX, is_cut=is_cut)
            if is_http
            else raw
        )
    except InputError as error:
        return _lost(block, file, str(error))
    if body is None:
        return _lost(block, file, _TOO_LARGE, "TooLarge")
    charset = record.http_charset if is_http else None
    is_html = kind_of in _PAGE_TYPES or (not kind_of and _PAGE.match(body) is not None)
    return WarcPage(_url(block), body, charset, record.headers.get("WARC-Date"), block.at, is_html)


def _record(block: WarcBlock) -> WarcRecord:
    """Return the record as the library reads it, with the length that it has, not the one that its
    head states.
    """
    from fastwarc.warc import WarcRecord  # noqa: PLC0415 - an extra

    # The library finds the type by its usual spelling alone.
    own = (b"content-length", b"warc-type")
    lines = [line for line in block.head.splitlines() if line and not line.lower().startswith(own)]
    body = (
        _CONTINUE.sub(b"", block.block, count=1)
        if block.block.startswith(b"HTTP/")
        else block.block
    )
    head = [b"WARC/1.1", b"WARC-Type: " + _type_of(block).encode(), *lines]
    head.append(b"Content-Length: %d" % len(body))
    return WarcRecord.from_bytes(b"\r\n".join(head) + b"\r\n\r\n" + body)


def _type_of(block: WarcBlock) -> str:
    found = _TYPE.search(block.head)
    return found[1].strip().lower().decode("utf-8", "replace") if found else ""


def _url(block: WarcBlock) -> str:
    found = _URL.search(block.head)
    return found[1].decode("utf-8", "replace") if found else ""


def _lost(block: WarcBlock, file: str, why: str, kind: str = "DamagedRecord") -> WarcPage:
    url = _url(block)
    whose = f" ({url})" if url else ""
    letter = DeadLetter("decode", kind, f"The record at byte {block.at:,} of {file}{whose} {why}.")
    return WarcPage(url, b"", None, None, block.at, lost=letter)
