"""WARC files with an odd record: at most that record is lost, and it is reported with its
position."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from pathlib import Path

import pytest
import zstandard

from stream_dedup.inputs.sources import RawDocument, find_files, read_documents
from tests.inputs.warc_files import (
    BROKEN,
    PACKERS,
    WHOLE,
    B,
    gzipped,
    http,
    page,
    record,
    warc,
    zstd,
)

A, C, D = page("a"), page("c"), page("d")
RIGHT = [record("a", http(A)), record("c", http(C)), record("d", http(D))]


def read(
    path: Path, non_page_records: Counter[str] | None = None, first: int = 0
) -> list[RawDocument]:
    return list(
        read_documents(
            find_files(str(path), "auto"), non_page_records=non_page_records, first=first
        )
    )


def bodies(found: list[RawDocument]) -> list[bytes]:
    return [document.raw for document in found if document.lost is None]


def lost_places(found: list[RawDocument]) -> list[str]:
    return [document.name for document in found if document.lost is not None]


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("odd", WHOLE)
def test_a_page_that_is_whole_is_read_however_odd_its_record_is(
    tmp_path: Path, odd: str, suffix: str
) -> None:
    for order in ([RIGHT[0], WHOLE[odd], *RIGHT[1:]], [*RIGHT, WHOLE[odd]]):
        (tmp_path / f"a{suffix}").write_bytes(warc(order, suffix))

        found = read(tmp_path / f"a{suffix}")

        assert lost_places(found) == []
        assert sorted(bodies(found)) == sorted([A, B, C, D])
        assert {document.name for document in found} == {
            f"http://{name}.example/" for name in "abcd"
        }
        assert all(
            document.is_page and document.time == "2026-05-01T10:00:00Z" for document in found
        )


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("odd", BROKEN)
def test_a_page_that_is_not_whole_is_lost_alone(tmp_path: Path, odd: str, suffix: str) -> None:
    """A truncated or damaged body is not judged as the page; the letter names the record's
    position."""
    path = tmp_path / f"a{suffix}"
    path.write_bytes(warc([RIGHT[0], BROKEN[odd], *RIGHT[1:]], suffix))

    found = read(path)

    assert bodies(found) == [A, C, D]
    assert lost_places(found) == [f"{path.name}@{len(warc(RIGHT[:1], suffix))}"]
    (letter,) = [document.lost for document in found if document.lost is not None]
    assert (letter.stage, letter.error_class) == ("decode", "DamagedRecord")
    assert letter.message.startswith(
        f"The record at byte {len(warc(RIGHT[:1], suffix)):,} of {path.name} "
    )
    assert letter.message.endswith(".")
    for first in range(5):
        assert read(path, first=first) == found[first:]


def test_a_record_of_unknown_type_is_lost(tmp_path: Path) -> None:
    """It may be a page; standard types that are no pages are skipped."""
    (tmp_path / "a.warc").write_bytes(
        RIGHT[0] + record("b", http(B), kind="Snapshot") + record("c", b"", kind="metadata")
    )
    non_page_records: Counter[str] = Counter()
    found = read(tmp_path / "a.warc", non_page_records)

    assert (bodies(found), non_page_records) == ([A], {"metadata": 1})
    (letter,) = [document.lost for document in found if document.lost is not None]
    assert "(http://b.example/) is of an unknown type ('snapshot')" in letter.message


def test_resources_of_the_crawler_are_no_pages(tmp_path: Path) -> None:
    """The crawler's logs and the texts that it extracted have addresses that are no page's."""
    pages = ["http://a.example/", "HTTPS://a.example/", "ftp://a.example/a", "file:///a/b.txt"]
    crawler_addresses = [
        "urn:text:http://a.example/",
        "metadata://gnu.org/wget.log",
        "urn:pageinfo:http://a/",
    ]
    (tmp_path / "a.warc").write_bytes(
        b"".join(
            record("x", b"some words", kind="resource", content="text/plain").replace(
                b"http://x.example/", address.encode()
            )
            for address in pages + crawler_addresses
        )
    )
    non_page_records: Counter[str] = Counter()

    assert [document.name for document in read(tmp_path / "a.warc", non_page_records)] == pages
    assert non_page_records == {"resource of urn:": 2, "resource of metadata:": 1}


@pytest.mark.parametrize("form", ["{}", "<{}>", "{}  ", " <{}>\t"])
def test_an_address_is_the_whole_line(tmp_path: Path, form: str) -> None:
    """An address may contain spaces, and pages may differ only in what follows one."""
    addresses = [f"http://x.example/show?name=Ann {name}" for name in "ABC"]
    (tmp_path / "a.warc").write_bytes(
        b"".join(
            record("x", http(A)).replace(b"http://x.example/", form.format(address).encode())
            for address in addresses
        )
    )

    assert [document.name for document in read(tmp_path / "a.warc")] == addresses


def test_a_body_marked_as_truncated_is_read_as_it_is(tmp_path: Path) -> None:
    """WARC-Truncated marks the crawler's size limit, which can apply to most pages of a crawl."""
    for block in (
        http(B[:-100], f"Content-Length: {len(B)}"),
        http(b"fff\r\n" + B[:-100], "Transfer-Encoding: chunked"),
    ):
        (tmp_path / "a.warc").write_bytes(record("b", block, "WARC-Truncated: length"))
        assert bodies(read(tmp_path / "a.warc")) == [B[:-100]]


def test_a_file_that_ends_within_a_record_loses_one_document(tmp_path: Path) -> None:
    """A cut is noticed anywhere within the record, also at a blank line of the page."""
    text = record("b", http(b"One paragraph.\n\nAnother one.\n\nThe last.", kind="text/plain"))
    path = tmp_path / "a.warc"
    for cut in range(1, len(text) - 4):
        path.write_bytes(RIGHT[0] + text[:cut])
        found = read(path)
        assert (bodies(found), len(lost_places(found))) == ([A], 1), cut


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_large_page_is_lost_and_a_large_image_is_skipped(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records above the limit are never loaded; of these only a page is reported as lost."""
    monkeypatch.setattr("stream_dedup.inputs.warc_records.RECORD_BYTES_MAX", 200_000)
    large = random.Random(1).randbytes(300_000).hex().encode()
    image = record("i", http(large, kind="image/png"))
    non_page_records: Counter[str] = Counter()
    (tmp_path / f"a{suffix}").write_bytes(
        warc([RIGHT[0], record("b", http(large)), image, RIGHT[1]], suffix)
    )

    found = read(tmp_path / f"a{suffix}", non_page_records)

    assert bodies(found) == [A, C]
    assert [document.lost.error_class for document in found if document.lost is not None] == [
        "TooLarge"
    ]
    assert non_page_records == {"not text": 1}


def test_a_body_that_grows_beyond_the_limit_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small record may unpack to gigabytes."""
    monkeypatch.setattr("stream_dedup.inputs.warc.RECORD_BYTES_MAX", 100_000)
    for pack, coding in ((gzipped, "gzip"), (zstd, "zstd")):
        (tmp_path / "a.warc").write_bytes(
            record("b", http(pack(bytes(200_000)), f"Content-Encoding: {coding}")) + RIGHT[0]
        )
        found = read(tmp_path / "a.warc")
        assert [
            document.lost.error_class if document.lost else document.raw for document in found
        ] == ["TooLarge", A]


def _pack_records(
    records: list[bytes], chance: random.Random
) -> dict[str, tuple[bytes, list[tuple[int, int]]]]:
    """Return the records as a file of each packing, and for each record the span of bytes that it
    needs."""
    files: dict[str, tuple[bytes, list[tuple[int, int]]]] = {}
    for suffix, pack in PACKERS.items():
        parts = [pack(record) for record in records]
        ends = [sum(map(len, parts[: number + 1])) for number in range(len(parts))]
        files[suffix] = (
            b"".join(parts),
            [(end - len(part), end) for part, end in zip(parts, ends, strict=True)],
        )
    # Members that end anywhere, as bgzip writes them.
    plain, size = files[".warc"][0], chance.choice([700, 3000])
    blocks = [gzipped(plain[start : start + size]) for start in range(0, len(plain), size)]
    ends = [sum(map(len, blocks[: number + 1])) for number in range(len(blocks))]
    spans = [
        (ends[begin // size] - len(blocks[begin // size]), ends[min(end // size, len(blocks) - 1)])
        for begin, end in files[".warc"][1]
    ]
    files["blocks.warc.gz"] = b"".join(blocks), spans
    return files


@pytest.mark.parametrize("seed", range(60))
def test_every_undamaged_record_is_read_whatever_is_damaged(tmp_path: Path, seed: int) -> None:
    """All undamaged records are read in order after bytes are changed, removed, inserted or cut
    off."""
    chance = random.Random(seed)
    pages = [
        page(f"p{number}", chance.randrange(5, 90)) for number in range(chance.randrange(2, 9))
    ]
    records = [record(f"p{number}", http(body)) for number, body in enumerate(pages)]
    for suffix, (raw, spans) in _pack_records(records, chance).items():
        begin = chance.randrange(len(raw))
        kind = chance.choice(["change", "remove", "insert", "cut"])
        size = chance.choice([1, 3, 50, 2000])
        end = (
            begin
            if kind == "insert"
            else len(raw)
            if kind == "cut"
            else min(begin + size, len(raw))
        )
        instead = chance.randbytes(size) if kind in ("change", "insert") else b""
        path = tmp_path / f"{seed}{suffix}"
        path.write_bytes(raw[:begin] + instead + raw[end:])

        found = read(path)

        whole = [
            body
            for body, (span_begin, span_end) in zip(pages, spans, strict=True)
            if span_end <= begin or span_begin >= end
        ]
        out = bodies(found)
        missing = [body[:60] for body in whole if body not in out]
        assert not missing, f"seed {seed}: {kind} of {size} bytes at {begin} in {suffix}: {missing}"
        assert [body for body in out if body in whole] == whole


def test_a_file_that_is_one_member_is_read_up_to_its_damage(tmp_path: Path) -> None:
    """What could be unpacked is read, and the rest is reported as one lost document."""
    raw = gzip.compress(b"".join(RIGHT[number % 3] for number in range(300)), mtime=0)
    (tmp_path / "a.warc.gz").write_bytes(raw[: len(raw) // 2])

    found = read(tmp_path / "a.warc.gz")

    assert bodies(found)[:6] == [A, C, D, A, C, D]
    assert len(found) > 100
    assert found[-1].lost is not None
    assert "cut off" in found[-1].lost.message
    assert len(lost_places(found)) == 1


def test_a_file_without_a_record_is_reported_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.warc").write_bytes(b"no such thing\n" * 100)

    (found,) = read(tmp_path / "a.warc")

    assert found.lost is not None
    assert (found.lost.error_class, found.name) == ("DamagedFile", "a.warc")
    assert (
        "contains no readable WARC record: the data at byte 0 has no WARC header."
        in found.lost.message
    )


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_dictionary_before_the_frames_is_used(tmp_path: Path, is_packed: bool) -> None:
    """The Internet Archive's crawlers write zstd this way; a damaged frame loses only its
    record."""
    records = [record(f"p{number}", http(page(f"p{number}"))) for number in range(30)]
    dictionary = zstandard.train_dictionary(4096, records * 5)
    raw = zstd(dictionary.as_bytes()) if is_packed else dictionary.as_bytes()
    packer = zstandard.ZstdCompressor(dict_data=dictionary, write_checksum=True)
    frames = [packer.compress(warc_record) for warc_record in records]
    frames[7] = frames[7][:20] + bytes(4) + frames[7][24:]
    head = b"\x5d\x2a\x4d\x18" + len(raw).to_bytes(4, "little")
    path = tmp_path / "a.warc.zst"

    path.write_bytes(head + raw + b"".join(frames))
    found = read(path)

    assert bodies(found) == [page(f"p{number}") for number in range(30) if number != 7]
    assert lost_places(found) == [f"a.warc.zst@{len(head) + len(raw) + len(b''.join(frames[:7]))}"]
    path.write_bytes(head + bytes(len(raw)) + b"".join(frames))
    (lost,) = read(path)
    assert lost.lost is not None
    assert "is damaged" in lost.lost.message
