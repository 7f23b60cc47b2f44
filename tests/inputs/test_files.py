"""Files of documents: packed ones, WARC, and what is wrong with them."""

from __future__ import annotations

import gzip
import io
from collections import Counter
from pathlib import Path

import pytest
import zstandard

from stream_dedup.cli.load import record_of
from stream_dedup.ground.errors import InputError
from stream_dedup.inputs.charset import decode_page
from stream_dedup.inputs.sources import find_files, read_documents
from stream_dedup.settings.layers import load_settings

PAGE = "<p>Grüße aus Köln</p>"


def http(body: bytes, status: str = "200 OK", kind: str = "text/html; charset=ISO-8859-1", more: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n".encode() + more + b"\r\n" + body


def write_warc(path: Path, *, packed: bool) -> None:
    """Write a WARC file: three pages, one of them chunked and packed, and much that is no page."""
    chunk = gzip.compress(b"packed and chunked")
    chunked = f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n0\r\n\r\n"
    coded = b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"
    response = "application/http; msgtype=response"
    records = [
        ("warcinfo", "", b"software: test\r\n", "application/warc-fields"),
        ("request", "https://a.example/1", b"GET / HTTP/1.1\r\n\r\n", "application/http; msgtype=request"),
        ("response", "https://a.example/1", http(PAGE.encode("cp1252")), response),
        ("response", "https://a.example/2", http(b"gone", "404 Not Found"), response),
        ("response", "https://a.example/3", http(b"\x89PNG", kind="image/png"), response),
        ("response", "https://a.example/4", http(chunked, more=coded), response),
        ("conversion", "https://a.example/5", b"plain text", "text/plain"),
    ]
    with path.open("wb") as stream:
        for number, (kind, url, content, content_type) in enumerate(records):
            address = f"WARC-Target-URI: {url}\r\n" if url else ""
            head = (
                f"WARC/1.1\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012}>\r\n{address}"
                f"WARC-Date: 2026-11-21T09:15:02Z\r\nContent-Type: {content_type}\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            record = head.encode() + content + b"\r\n\r\n"
            stream.write(gzip.compress(record) if packed else record)


@pytest.mark.parametrize("name", ["crawl.warc", "crawl.warc.gz"])
def test_pages_of_a_warc_file(tmp_path: Path, name: str) -> None:
    """Pages come out decoded, with address, time and encoding; the rest is counted by what it is."""
    write_warc(tmp_path / name, packed=name.endswith(".gz"))
    passed_over: Counter[str] = Counter()
    told: list[tuple[int, int]] = []

    found = list(read_documents(find_files(str(tmp_path), "auto"), lambda *more: told.append(more), passed_over))

    assert [one.name for one in found] == [f"https://a.example/{number}" for number in (1, 4, 5)]
    assert [one.raw for one in found] == [PAGE.encode("cp1252"), b"packed and chunked", b"plain text"]
    assert passed_over == {"warcinfo": 1, "request": 1, "status 404": 1, "not text": 1}
    assert sum(size for _, size in told) == (tmp_path / name).stat().st_size
    settings = load_settings({"value_format": "json", "text_field": "page.html", "time_field": "at"}, environ={})
    key, value = record_of(settings, found[0], None)
    assert key == b"https://a.example/1"
    expected = '{"id": "https://a.example/1", "page": {"html": "<p>Grüße aus Köln</p>"}, "at": "2026-11-21T09:15:02Z"}'
    assert value.decode() == expected


def test_the_first_documents_can_be_left_out(tmp_path: Path) -> None:
    """Reading goes on at any document, of every kind of file."""
    write_warc(tmp_path / "a.warc", packed=False)
    (tmp_path / "b.jsonl").write_text('{"id":1}\n\n{"id":2}\n{"id":3}\n')

    for file in find_files(str(tmp_path), "auto"):
        everything = list(read_documents([file]))
        assert len(everything) == 3
        for first in range(5):
            assert list(read_documents([file], first=first)) == everything[first:]


def test_zstd_in_several_frames(tmp_path: Path) -> None:
    """A file put together of packed pieces is read to its end."""
    pieces = [zstandard.ZstdCompressor().compress(b'{"id":%d}\n' % number) for number in range(3)]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(pieces))
    told: list[tuple[int, int]] = []

    found = list(read_documents(find_files(str(tmp_path / "a.jsonl.zst"), "auto"), lambda *more: told.append(more)))

    assert [one.raw for one in found] == [b'{"id":0}', b'{"id":1}', b'{"id":2}']
    assert sum(size for _, size in told) == sum(map(len, pieces))


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.warc.gz", "a.warc"])
def test_damage_is_a_sentence(tmp_path: Path, name: str) -> None:
    """A file that is cut off or no such file ends with its name, not with a traceback."""
    lines = b"".join(b'{"id":%d}\n' % number for number in range(10_000))
    if name.endswith(".gz") and "warc" not in name:
        raw = gzip.compress(lines)[:-20]
    elif name.endswith(".zst"):
        raw = b"\x28\xb5\x2f\xfd" + b"\xff" * 50
    else:
        raw = gzip.compress(lines)[:-20] if name.endswith(".gz") else lines
    (tmp_path / name).write_bytes(raw)

    with pytest.raises(InputError, match=name):
        list(read_documents(find_files(str(tmp_path / name), "auto")))


@pytest.mark.parametrize(
    ("raw", "said", "text"),
    [
        ("é".encode(), None, "é"),
        ("é".encode("cp1252"), "ISO-8859-1", "é"),
        ("“é”".encode("cp1252"), "latin1", "“é”"),
        (b'<meta charset="windows-1251">' + "й".encode("cp1251"), None, '<meta charset="windows-1251">й'),
        (b'<meta charset="windows-1251">' + "é".encode(), "utf-8", '<meta charset="windows-1251">é'),
        (b"\xef\xbb\xbf" + "é".encode(), "ISO-8859-1", "é"),
        ("é".encode("utf-16"), None, "é"),
        (b'<meta charset="utf-16">' + "é".encode(), None, '<meta charset="utf-16">é'),
        ("é".encode(), "zlib", "é"),
        ("é".encode(), "no-such", "é"),
        (b"\xff", None, "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_the_encoding_of_a_page(raw: bytes, said: str | None, text: str) -> None:
    """A byte order mark, then the server, then the page itself, then UTF-8; labels mean what they mean to browsers."""
    assert decode_page(raw, said) == text


def test_a_missing_library_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, WARC and zstd files say what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    for name in ("a.warc", "a.jsonl.zst"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(InputError, match=r"stream-dedup\[files\]"):
            list(read_documents(find_files(str(tmp_path / name), "auto")))


def test_standard_input_is_no_warc(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be read from a pipe says so."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(InputError, match="give its name"):
        list(read_documents(find_files("-", "warc")))
