"""Files of documents: packed ones, WARC, and what is wrong with them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from stream_dedup.cli.load import record_of
from stream_dedup.ground.errors import InputError
from stream_dedup.inputs.charset import decode_page
from stream_dedup.inputs.sources import find_files, read_documents
from stream_dedup.settings.layers import load_settings
from tests.inputs.warc_files import chunked, gzipped, http, record, warc, zstd

PAGE = "<p>Grüße aus Köln</p>"


# Three pages, one of them chunked and packed, and much that is no page.
RECORDS = [
    record("info", b"software: test\r\n", kind="warcinfo"),
    record("a", b"GET / HTTP/1.1\r\n\r\n", kind="request"),
    record("a", http(PAGE.encode("cp1252"), kind="text/html; charset=ISO-8859-1")),
    record("b", http(b"gone").replace(b"200 OK", b"404 Not Found")),
    record("c", http(b"\x89PNG", kind="image/png")),
    record("d", http(chunked(gzipped(b"packed and chunked")), "Content-Encoding: gzip", "Transfer-Encoding: chunked")),
    record("e", b"plain text", kind="conversion", content="text/plain"),
]


@pytest.mark.parametrize("suffix", [".warc", ".warc.gz"])
def test_pages_of_a_warc_file(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"crawl{suffix}").write_bytes(warc(RECORDS, suffix))
    passed_over: Counter[str] = Counter()
    told: list[tuple[int, int]] = []

    found = list(read_documents(find_files(str(tmp_path), "auto"), lambda *more: told.append(more), passed_over))

    assert [one.name for one in found] == [f"http://{name}.example/" for name in "ade"]
    assert [one.raw for one in found] == [PAGE.encode("cp1252"), b"packed and chunked", b"plain text"]
    assert passed_over == {"warcinfo": 1, "request": 1, "status 404": 1, "not text": 1}
    assert sum(size for _, size in told) == (tmp_path / f"crawl{suffix}").stat().st_size
    settings = load_settings({"value_format": "json", "text_field": "page.html", "time_field": "at"}, environ={})
    key, value = record_of(settings, found[0], None)
    assert key == b"http://a.example/"
    expected = '{"id": "http://a.example/", "page": {"html": "<p>Grüße aus Köln</p>"}, "at": "2026-05-01T10:00:00Z"}'
    assert value.decode() == expected


def test_the_first_documents_can_be_left_out(tmp_path: Path) -> None:
    """Reading goes on at any document, of every kind of file."""
    (tmp_path / "a.warc").write_bytes(warc(RECORDS, ".warc"))
    (tmp_path / "b.jsonl").write_text('{"id":1}\n\n{"id":2}\n{"id":3}\n')

    for file in find_files(str(tmp_path), "auto"):
        everything = list(read_documents([file]))
        assert len(everything) == 3
        for first in range(5):
            assert list(read_documents([file], first=first)) == everything[first:]


LINES = [b'{"id":%d,"text":"%d"}\n' % (number, number**9) for number in range(10_000)]


@pytest.mark.parametrize("pack", [gzipped, zstd])
@pytest.mark.parametrize("damage", ["cut", "change", "other"])
def test_lines_before_and_behind_damage_are_read(tmp_path: Path, pack: Callable[[bytes], bytes], damage: str) -> None:
    """What is lost of a packed file is one document that says so; no half line is one, and the next member goes on."""
    parts = [pack(b"".join(LINES[start : start + 2500])) for start in range(0, 10_000, 2500)]
    if damage == "cut":
        parts[3] = parts[3][:-1000]
    elif damage == "change":
        parts[1] = parts[1][:3000] + bytes(100) + parts[1][3100:]
    else:
        parts[0] = b"no such thing" + parts[0][200:]
    path = tmp_path / f"a.jsonl.{'gz' if pack is gzipped else 'zst'}"
    path.write_bytes(b"".join(parts))
    told: list[tuple[int, int]] = []

    found = list(read_documents(find_files(str(path), "auto"), lambda *more: told.append(more)))

    (lost,) = [one for one in found if one.lost is not None]
    assert lost.lost is not None
    assert (lost.name, lost.lost.error_class) == (path.name, "DamagedFile")
    assert lost.lost.message.startswith(f"{path.name} cannot be read")
    out = [one.raw + b"\n" for one in found if one.lost is None]
    assert set(out) <= set(LINES)
    unhurt = {"cut": LINES[:7500], "change": LINES[:2500] + LINES[5000:], "other": LINES[2500:]}[damage]
    assert set(unhurt) <= set(out)
    assert sum(size for _, size in told) == path.stat().st_size


@pytest.mark.parametrize("seed", range(20))
def test_lines_of_unhurt_members_come_out(tmp_path: Path, seed: int) -> None:
    """Of several members those that nothing happened to are read, in order, whatever happened to the others."""
    chance = random.Random(seed)
    for pack, suffix in ((gzipped, "gz"), (zstd, "zst")):
        groups = [LINES[start : start + chance.randrange(1, 400)] for start in range(0, 4000, 400)]
        parts = [pack(b"".join(group)) for group in groups]
        hurt = chance.sample(range(len(parts)), chance.choice([1, 1, 2, 3]))
        for number in hurt:
            part = bytearray(parts[number])
            at = chance.randrange(len(part))
            part[at : at + chance.choice([0, 1, 20])] = chance.randbytes(chance.choice([0, 1, 20]))
            parts[number] = bytes(part)
        path = tmp_path / f"a.jsonl.{suffix}"
        path.write_bytes(b"".join(parts))

        out = [one.raw + b"\n" for one in read_documents(find_files(str(path), "auto")) if one.lost is None]

        unhurt = [line for number, group in enumerate(groups) if number not in hurt for line in group]
        assert [line for line in out if line in set(unhurt)] == unhurt, f"seed {seed}, {suffix}, members {hurt}"


def test_a_text_that_is_cut_off_is_lost(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzipped(b"".join(LINES))[:-20])
    (tmp_path / "b.txt").write_bytes(b"whole")

    first, second = read_documents(find_files(str(tmp_path), "auto"))

    assert first.lost is not None
    assert first.lost.message == "a.txt.gz cannot be read: it is cut off. What is damaged there is lost."
    assert second.raw == b"whole"


@pytest.mark.parametrize(("pack", "suffix"), [(gzipped, "gz"), (zstd, "zst")])
def test_what_follows_the_last_member_costs_no_line(tmp_path: Path, pack: Callable[[bytes], bytes], suffix: str) -> None:
    """A last line without an end is whole, and so is a text; what follows is told, and of a damaged member nothing is taken."""
    whole = b"".join(LINES[:5]).rstrip(b"\n")
    for name in (f"a.jsonl.{suffix}", f"a.txt.{suffix}"):
        (tmp_path / name).write_bytes(pack(whole) + b"no member at all")
        *found, lost = read_documents(find_files(str(tmp_path / name), "auto"))
        assert b"\n".join(one.raw for one in found) == whole
        assert lost.lost is not None
        (tmp_path / name).write_bytes(pack(whole) + pack(b"".join(LINES[5:9]))[:-20])
        *found, _ = read_documents(find_files(str(tmp_path / name), "auto"))
        assert whole.splitlines()[4] not in [one.raw for one in found]


def test_a_file_that_cannot_be_opened_costs_no_other(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(LINES[0])
    files = find_files(str(tmp_path), "auto")
    (tmp_path / "a.jsonl").unlink()

    first, second = read_documents(files)

    assert first.lost is not None
    assert first.lost.message == "a.jsonl cannot be read: No such file or directory."
    assert second.raw + b"\n" == LINES[0]


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
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    for name in ("a.warc", "a.jsonl.zst"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(InputError, match=r"crawl-dedup\[files\]"):
            list(read_documents(find_files(str(tmp_path / name), "auto")))


def test_standard_input_is_no_warc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(InputError, match="give its name"):
        list(read_documents(find_files("-", "warc")))


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ('{"text": "a"}\n'.encode("utf-16"), "UTF-16"),
        ('{"text": "a"}\n'.encode("utf-16-le"), "UTF-16"),
        (gzip.compress(LINES[0]), "gzip"),
        (zstandard.ZstdCompressor().compress(LINES[0]), "zstd"),
        (bz2.compress(LINES[0]), "bzip2"),
        (lzma.compress(LINES[0]), "xz"),
        (b"PAR1\x15", "Parquet"),
    ],
)
def test_bytes_of_another_kind_are_called_by_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes, what: str
) -> None:
    """On standard input, in a file with another name and packed, such a file is one that is lost, and no broken lines."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    (tmp_path / "a.jsonl").write_bytes(raw)
    (tmp_path / "b.txt").write_bytes(raw)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(raw))

    for target in ("-", str(tmp_path)):
        for one in read_documents(find_files(target, "auto")):
            assert one.lost is not None
            assert one.lost.message.startswith(f"{'standard input' if target == '-' else one.name} is {what}"), one.lost
            assert one.lost.error_class == "DamagedFile"
