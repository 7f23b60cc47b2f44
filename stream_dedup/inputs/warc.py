"""Pages in WARC files (ISO 28500; also WET), plain, gzip, zstd or lz4. Needs `stream-dedup[files]` (fastwarc).

A page is the body of an HTTP response with status 200, a `resource`, or a `conversion` (the text that Common Crawl made of a
page), of a type that is text. Everything else is counted by what it was, and passed over.

Invariants: the order is that of the file; a body is given as its server meant it, without chunks and content encodings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stream_dedup.ground.errors import InputError
from stream_dedup.inputs.packed import need

_STATUS_OK = 200
_TEXT_TYPES = ("text/html", "text/plain", "application/xhtml+xml", "")
_RECORD_BYTES_MAX = 64 << 20


class WarcPage(NamedTuple):
    """`url` is the WARC-Target-URI, `body` the bytes of the page, `charset` what its server said, `time` its WARC-Date."""

    url: str
    body: bytes
    charset: str | None
    time: str | None
    position: int


def read_pages(path: Path, passed_over: Counter[str]) -> Iterator[WarcPage]:
    """Yield the pages of a file; `passed_over` counts the records that are none, by reason.

    Raises:
        InputError: fastwarc is not installed, or the file is no WARC.
        OSError: it cannot be read, or is damaged or cut off.
    """
    need("fastwarc", "WARC files")
    from fastwarc.warc import ArchiveIterator, WarcRecordType  # noqa: PLC0415 - an extra

    wanted = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion
    count = 0
    with path.open("rb") as stream:
        for record in ArchiveIterator(stream, parse_http=False):
            count += 1
            kind = record.record_type
            if not int(kind) & int(wanted):
                passed_over[str(kind).rpartition(".")[2]] += 1
                continue
            if record.content_length > _RECORD_BYTES_MAX:
                passed_over["too large"] += 1
                continue
            if record.is_http:
                # Into memory first: fastwarc 2.0.1 loses the record that follows one whose body it undid from the file.
                record.freeze()
                record.parse_http(auto_decode="all")
                status = record.http_headers.status_code if record.http_headers is not None else None
                if status != _STATUS_OK:
                    passed_over[f"status {status}"] += 1
                    continue
                type_of, charset = record.http_content_type, record.http_charset
            else:
                type_of, charset = record.headers.get("Content-Type", ""), None
            if (type_of or "").partition(";")[0].strip().lower() not in _TEXT_TYPES:
                passed_over["not text"] += 1
                continue
            url = (record.headers.get("WARC-Target-URI") or "").strip("<>")
            body = record.reader.read(_RECORD_BYTES_MAX + 1)
            if len(body) > _RECORD_BYTES_MAX:  # once unpacked
                passed_over["too large"] += 1
                continue
            yield WarcPage(url, body, charset, record.headers.get("WARC-Date"), stream.tell())
    if not count and path.stat().st_size:
        raise InputError(f"{path.name} holds no WARC record; is it a WARC file?")
