"""Pages in WARC files (ISO 28500; also WET), plain, gzip or zstd. Needs `crawl-dedup[files]`
(fastwarc).

A page is the body of an HTTP response with status 200, a `resource` with a web address, or a
`conversion` (the text that Common Crawl extracted from a page), of a type that is text. All other
records are skipped and counted by kind; a record of an unknown type is lost.

Invariants: the order is that of the file; a body is complete, without chunks and content codings; a
record that cannot be read is a page with `lost` in its place, and all others are read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stream_dedup.domain.document import DeadLetter
from stream_dedup.domain.errors import InputError
from stream_dedup.inputs.compressed import packing_of, read_pieces, require, suffixes_of
from stream_dedup.inputs.http_body import body_of
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
_PAGE = re.compile(rb"\s*<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE)


class WarcPage(NamedTuple):
    """A page. `url` is the WARC-Target-URI, `body` its bytes, `charset` the encoding that its server
    named, `time` its WARC-Date.

    `is_html`: it is a web page, by its type, or by its first bytes if it has none. `offset`: the
    offset of its record, or of its member in a compressed file. `lost` is the reason why there
    is no body.
    """

    url: str
    body: bytes
    charset: str | None
    time: str | None
    offset: int
    is_html: bool = False
    lost: DeadLetter | None = None


def read_pages(path: Path, name: str, non_page_records: Counter[str]) -> Iterator[WarcPage]:
    """Yield the pages of a file; `name` names it in messages, `non_page_records` counts the records
    that are not pages, by reason.

    Raises:
        InputError: fastwarc is not installed, or nothing in the file is a WARC record.
        OSError: it cannot be read.
    """
    require("fastwarc", "WARC files")
    is_begun = False
    # The losses before the first valid record; a file without a valid record is no WARC file.
    losses: list[WarcBlock] = []
    with path.open("rb") as stream:
        first = stream.read(8)
        # The name counts only if the first member is damaged: it is often wrong.
        packing = packing_of(first) or ("" if first.startswith(b"WARC/") else suffixes_of(path)[1])
        stream.seek(0)
        for block in read_blocks(read_pieces(stream, packing), is_packed=bool(packing)):
            if block.lost and not block.head and not is_begun:
                losses.append(block)
                continue
            is_begun = True
            for part in (*losses, block):
                page = (
                    _lost(part, name, part.lost)
                    if part.lost
                    else _page(part, name, non_page_records)
                )
                if page is not None:
                    yield page
            losses.clear()
    if losses:
        raise InputError(
            f"{name} contains no readable WARC record: the data at byte {losses[0].offset:,} "
            f"{losses[0].lost}. Is it a WARC file?"
        )


def _page(block: WarcBlock, file: str, non_page_records: Counter[str]) -> WarcPage | None:
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
            non_page_records[str(kind).rpartition(".")[2]] += 1
            return None
        scheme = _url(block).partition(":")[0].lower()
        if kind == WarcRecordType.resource and scheme not in _SCHEMES_OF_PAGES:
            non_page_records[f"resource of {scheme}:"] += 1
            return None
        is_http = record.is_http or (
            kind == WarcRecordType.response and block.block.startswith(b"HTTP/")
        )
        if is_http:
            record.is_http = True
            record.parse_http(quirks_mode=True)
        raw = record.reader.read() if is_http else block.block
    except (OSError, ValueError) as error:
        return _lost(block, file, f"has an unreadable header: {error}")
    headers = record.http_headers if is_http else record.headers
    content_type = (headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    status = headers.status_code if is_http else _STATUS_OK
    if status is not None and status != _STATUS_OK:
        non_page_records[f"status {status}"] += 1
        return None
    if content_type not in _TEXT_TYPES:
        non_page_records["not text"] += 1
        return None
    if status is None:
        return _lost(block, file, "has no HTTP status that can be read")
    if block.is_large:
        return _lost(block, file, _TOO_LARGE, "TooLarge")
    is_cut = bool(record.headers.get("WARC-Truncated"))
    try:
        body = (
            body_of(raw, lambda name: headers.get(name) or "", RECORD_BYTES_MAX, is_cut=is_cut)
            if is_http
            else raw
        )
    except InputError as error:
        return _lost(block, file, str(error))
    if body is None:
        return _lost(block, file, _TOO_LARGE, "TooLarge")
    charset = record.http_charset if is_http else None
    is_html = content_type in _PAGE_TYPES or (not content_type and _PAGE.match(body) is not None)
    return WarcPage(
        _url(block), body, charset, record.headers.get("WARC-Date"), block.offset, is_html
    )


def _record(block: WarcBlock) -> WarcRecord:
    """Return the library's record, with the actual length instead of that in its head."""
    from fastwarc.warc import WarcRecord  # noqa: PLC0415 - an extra

    # The library knows the type by its usual spelling only.
    replaced = (b"content-length", b"warc-type")
    lines = [
        line for line in block.head.splitlines() if line and not line.lower().startswith(replaced)
    ]
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
    page = f" ({url})" if url else ""
    letter = DeadLetter(
        "decode", kind, f"The record at byte {block.offset:,} of {file}{page} {why}."
    )
    return WarcPage(url, b"", None, None, block.offset, lost=letter)
