"""Files of documents: packed ones, WARC, Parquet and Arrow; and how damaged ones are reported."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
import json
import lzma
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from stream_dedup.domain.errors import InputError, StoreError
from stream_dedup.domain.extras import install_command
from stream_dedup.inputs.charset import decode_page
from stream_dedup.inputs.columnar import columns_of
from stream_dedup.inputs.sources import DAMAGED_FILE, find_files, read_documents
from stream_dedup.inputs.storage import storage_at
from stream_dedup.loading.documents import record_of
from stream_dedup.settings.layers import load_settings
from tests.inputs.warc_files import chunked, gzipped, http, record, warc, zstd

PAGE = "<p>Grüße aus Köln</p>"


# Three pages, one of them chunked and packed, and records that are no pages.
RECORDS = [
    record("info", b"software: test\r\n", kind="warcinfo"),
    record("a", b"GET / HTTP/1.1\r\n\r\n", kind="request"),
    record("a", http(PAGE.encode("cp1252"), kind="text/html; charset=ISO-8859-1")),
    record("b", http(b"gone").replace(b"200 OK", b"404 Not Found")),
    record("c", http(b"\x89PNG", kind="image/png")),
    record(
        "d",
        http(
            chunked(gzipped(b"packed and chunked")),
            "Content-Encoding: gzip",
            "Transfer-Encoding: chunked",
        ),
    ),
    record("e", b"plain text", kind="conversion", content="text/plain"),
]


@pytest.mark.parametrize("suffix", [".warc", ".warc.gz"])
def test_pages_of_a_warc_file(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"crawl{suffix}").write_bytes(warc(RECORDS, suffix))
    non_page_records: Counter[str] = Counter()
    progress: list[tuple[int, int]] = []

    found = list(
        read_documents(
            find_files(str(tmp_path), "auto"), lambda *more: progress.append(more), non_page_records
        )
    )

    assert [document.name for document in found] == [f"http://{name}.example/" for name in "ade"]
    wanted = [PAGE.encode("cp1252"), b"packed and chunked", b"plain text"]
    assert [document.raw for document in found] == wanted
    assert non_page_records == {"warcinfo": 1, "request": 1, "status 404": 1, "not text": 1}
    assert sum(size for _, size in progress) == (tmp_path / f"crawl{suffix}").stat().st_size
    settings = load_settings(
        {"value_format": "json", "text_field": "page.html", "time_field": "at"}, environ={}
    )
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
def test_lines_before_and_behind_damage_are_read(
    tmp_path: Path, pack: Callable[[bytes], bytes], damage: str
) -> None:
    """The damage is one lost document, no half line is a document, and the next member is read."""
    parts = [pack(b"".join(LINES[start : start + 2500])) for start in range(0, 10_000, 2500)]
    if damage == "cut":
        parts[3] = parts[3][:-1000]
    elif damage == "change":
        parts[1] = parts[1][:3000] + bytes(100) + parts[1][3100:]
    else:
        parts[0] = b"no such thing" + parts[0][200:]
    path = tmp_path / f"a.jsonl.{'gz' if pack is gzipped else 'zst'}"
    path.write_bytes(b"".join(parts))
    progress: list[tuple[int, int]] = []

    found = list(read_documents(find_files(str(path), "auto"), lambda *more: progress.append(more)))

    (lost,) = [document for document in found if document.lost is not None]
    assert lost.lost is not None
    assert (lost.name, lost.lost.error_class) == (path.name, "DamagedFile")
    assert lost.lost.message.startswith(f"{path.name} cannot be read")
    out = [document.raw + b"\n" for document in found if document.lost is None]
    assert set(out) <= set(LINES)
    undamaged = {"cut": LINES[:7500], "change": LINES[:2500] + LINES[5000:], "other": LINES[2500:]}[
        damage
    ]
    assert set(undamaged) <= set(out)
    assert sum(size for _, size in progress) == path.stat().st_size


@pytest.mark.parametrize("seed", range(20))
def test_lines_of_undamaged_members_are_read(tmp_path: Path, seed: int) -> None:
    """Undamaged members are read in order, whatever happened to the others."""
    chance = random.Random(seed)
    for pack, suffix in ((gzipped, "gz"), (zstd, "zst")):
        groups = [LINES[start : start + chance.randrange(1, 400)] for start in range(0, 4000, 400)]
        parts = [pack(b"".join(group)) for group in groups]
        damaged = chance.sample(range(len(parts)), chance.choice([1, 1, 2, 3]))
        for number in damaged:
            part = bytearray(parts[number])
            position = chance.randrange(len(part))
            part[position : position + chance.choice([0, 1, 20])] = chance.randbytes(
                chance.choice([0, 1, 20])
            )
            parts[number] = bytes(part)
        path = tmp_path / f"a.jsonl.{suffix}"
        path.write_bytes(b"".join(parts))

        out = [
            document.raw + b"\n"
            for document in read_documents(find_files(str(path), "auto"))
            if document.lost is None
        ]

        undamaged = [
            line for number, group in enumerate(groups) if number not in damaged for line in group
        ]
        assert [line for line in out if line in set(undamaged)] == undamaged, (
            f"seed {seed}, {suffix}, members {damaged}"
        )


def test_a_text_that_is_cut_off_is_lost(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzipped(b"".join(LINES))[:-20])
    (tmp_path / "b.txt").write_bytes(b"whole")

    first, second = read_documents(find_files(str(tmp_path), "auto"))

    assert first.lost is not None
    assert first.lost.message == "a.txt.gz cannot be read: it is cut off. The damaged part is lost."
    assert second.raw == b"whole"


@pytest.mark.parametrize(("pack", "suffix"), [(gzipped, "gz"), (zstd, "zst")])
def test_bytes_after_the_last_member_lose_no_line(
    tmp_path: Path, pack: Callable[[bytes], bytes], suffix: str
) -> None:
    """A last line without a line break is complete; what follows is lost, and no part of it is read
    as a line."""
    whole = b"".join(LINES[:5]).rstrip(b"\n")
    for name in (f"a.jsonl.{suffix}", f"a.txt.{suffix}"):
        (tmp_path / name).write_bytes(pack(whole) + b"no member at all")
        *found, lost = read_documents(find_files(str(tmp_path / name), "auto"))
        assert b"\n".join(document.raw for document in found) == whole
        assert lost.lost is not None
        (tmp_path / name).write_bytes(pack(whole) + pack(b"".join(LINES[5:9]))[:-20])
        *found, _ = read_documents(find_files(str(tmp_path / name), "auto"))
        assert whole.splitlines()[4] not in [document.raw for document in found]


def test_a_file_that_cannot_be_opened_costs_no_other(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(LINES[0])
    files = find_files(str(tmp_path), "auto")
    (tmp_path / "a.jsonl").unlink()

    first, second = read_documents(files)

    assert first.lost is not None
    assert first.lost.message == "a.jsonl cannot be read: No such file or directory."
    assert second.raw + b"\n" == LINES[0]


CP1251 = '<meta charset="windows-1251">'


@pytest.mark.parametrize(
    ("raw", "server_charset", "text"),
    [
        ("é".encode(), None, "é"),
        ("é".encode("cp1252"), "ISO-8859-1", "é"),
        ("“é”".encode("cp1252"), "latin1", "“é”"),
        (CP1251.encode() + "й".encode("cp1251"), None, f"{CP1251}й"),
        (f"{CP1251}é".encode(), "utf-8", f"{CP1251}é"),
        (b"\xef\xbb\xbf" + "é".encode(), "ISO-8859-1", "é"),
        ("é".encode("utf-16"), None, "é"),
        (b'<meta charset="utf-16">' + "é".encode(), None, '<meta charset="utf-16">é'),
        ("é".encode("utf-16-le"), "utf-16", "é"),
        ("é".encode(), "zlib", "é"),
        ("é".encode(), "iso-2022-kr", "é"),
        ("é".encode("cp1252"), '"windows-1252"', "é"),
        ("é".encode(), "no-such", "é"),
        (b"\xff", None, "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_the_encoding_of_a_page(raw: bytes, server_charset: str | None, text: str) -> None:
    """A byte order mark, then the server, then the page itself, then UTF-8; labels mean what they
    mean to browsers."""
    assert decode_page(raw, server_charset) == text


LETTERS = {
    "ж": ["windows-1251", "x-cp1251", "koi8-r", "koi8-ru", "x-mac-cyrillic", "ibm866", "csibm866"],
    "ก": ["windows-874", "dos-874", "tis-620", "iso-8859-11"],
    "똠": ["windows-949", "ks_c_5601-1987", "euc-kr"],
    "橋①": ["windows-31j", "ms932", "ms_kanji", "x-sjis", "shift_jis"],
    "橋": ["x-euc-jp", "euc-jp", "iso-2022-jp"],
    "桥": ["gb_2312-80", "x-gbk", "gb18030"],
    "桥€㐀": ["gbk", "gb2312"],
    "橋嘅": ["big5-hkscs", "x-x-big5", "big5"],
    "ש": ["logical", "iso-8859-8-i", "windows-1255"],
    "“Ş”": ["iso-8859-9", "latin5"],
    "é": ["macintosh", "mac", "unicode-1-1-utf-8"],
}
CODECS = {"ж": "cp1251 koi8-r koi8-u mac-cyrillic cp866", "ก": "cp874", "똠": "cp949"} | {
    "橋①": "cp932",
    "橋": "euc-jp iso-2022-jp",
    "桥": "gb18030",
    "桥€㐀": "gb18030",
    "橋嘅": "big5hkscs",
    "ש": "cp1255",
    "“Ş”": "cp1254",
    "é": "mac-roman utf-8",
}


@pytest.mark.parametrize(
    ("letters", "label"), [(letters, label) for letters, of in LETTERS.items() for label in of]
)
def test_labels_of_encodings_are_those_of_browsers(letters: str, label: str) -> None:
    """Whatever the label's letters are, each is read by one of the encodings of its script."""
    read = {decode_page(letters.encode(codec), label) for codec in CODECS[letters].split()}
    assert letters in read


def in_page(before: str, letters: str = "Привет") -> bytes:
    return f"{before}<title>{letters}</title>".encode("cp1251")


META = "<meta charset=windows-1251>"
OF_CONTENT = '<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">'


@pytest.mark.parametrize(
    "before",
    [
        "<?xml version='1.0' encoding='windows-1251'?><html>",
        "<?xml version='1.0' encoding='utf-8'?><html>" + OF_CONTENT,
        "<script>" + "var a = 1;" * 9000 + "</script>" + META,
        "<STYLE>" + "p { color: red }" * 900 + "</style >" + META,
        "<!-- an archive's banner" + " and its terms" * 900 + "-->" + META,
        "<div>" + "<p>The archive's banner.</p>" * 90 + "</div><head>" + OF_CONTENT,
        f'<meta name=description content="{"x" * 1100}">' + META,
        "<!-- <meta charset=utf-8> -->" + META,
        '<script>write("<meta charset=utf-8>")</script>' + META,
        '<meta name=description content="write charset=utf-8">' + META,
        "<meta content='text/html;charset=\"windows-1251\"' http-equiv=content-type />",
        "<META\nCHARSET = 'x-cp1251' >",
    ],
)
def test_a_page_declares_its_encoding_wherever_browsers_look(before: str) -> None:
    """In `meta` within the first kilobytes of markup, else in the XML declaration."""
    assert "<title>Привет" in decode_page(in_page(before))


@pytest.mark.parametrize(
    "before",
    [
        "<!-- " + META,
        "<script> " + META,
        "<p>" * 9000 + META,
        f"<meta name=keywords content='{OF_CONTENT[6:30]}'>",
        "<p>charset=windows-1251</p>",
        "<html><?xml version='1.0' encoding='windows-1251'?>",
    ],
)
def test_what_is_no_declaration_is_ignored(before: str) -> None:
    """Comments, scripts, and declarations too far from the beginning are ignored."""
    assert "Привет" not in decode_page(in_page(before))


def test_a_server_that_names_the_wrong_encoding_is_overruled_by_the_page() -> None:
    """The page's encoding is used only if most letters would be lost by the server's."""
    page = in_page(META, "Привет, мир. " * 40)

    assert "Привет" in decode_page(page, "utf-8")
    assert decode_page(page, "koi8-r") == page.decode("koi8-r")


def test_a_page_of_open_comments_is_read_in_time() -> None:
    """Linear in the size of the page, whatever is left open."""
    for odd in (b"<!--", b"<script>", b"<meta ", b"<meta charset=", b"<?xml "):
        assert decode_page(odd * 100_000) == (odd * 100_000).decode()


def test_a_missing_library_and_a_warc_file_from_a_pipe_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the extra, WARC, zstd and Parquet files say what to install."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(InputError, match="give its name"):
        list(read_documents(find_files("-", "warc")))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    for name, extra in (("a.warc", "files"), ("a.jsonl.zst", "files"), ("a.parquet", "data")):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(InputError, match=re.escape(install_command(extra))):
            list(read_documents(find_files(str(tmp_path / name), "auto")))


@pytest.mark.parametrize(("suffix", "what"), [("bz2", "bzip2"), ("xz", "xz"), ("zip", "zip")])
def test_a_file_that_must_be_unpacked_is_refused_by_its_name(
    tmp_path: Path, suffix: str, what: str
) -> None:
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(b"")

    with pytest.raises(InputError, match=f"^{path} is {what}: unpack it, or pack it with gzip or"):
        find_files(str(path), "auto")


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
    ids=["utf-16", "utf-16-le", "gzip", "zstd", "bzip2", "xz", "parquet"],  # gzip stores the time
)
def test_bytes_of_another_kind_are_called_by_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes, what: str
) -> None:
    """Such bytes are one lost document and no broken lines, on standard input, in a file and
    packed."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    (tmp_path / "a.jsonl").write_bytes(raw)
    (tmp_path / "b.txt").write_bytes(raw)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(raw))

    for target in ("-", str(tmp_path)):
        for document in read_documents(find_files(target, "auto")):
            assert document.lost is not None
            assert document.lost.message.startswith(
                f"{'standard input' if target == '-' else document.name} is {what}"
            ), document.lost
            assert document.lost.error_class == "DamagedFile"


# -- Parquet and Arrow: their rows, what is wrong with them, and reading on from a row


NAMES = ["a.parquet", "a.feather", "a.arrow"]
TABLE = pa.table(
    {
        "id": [f"row {number}" for number in range(10_000)],
        "text": [None if number == 7 else f"text {number}" for number in range(10_000)],
        "page": [{"url": f"u{number}", "tags": ["a"]} for number in range(10_000)],
        "score": [float("nan") if number == 1 else number / 2 for number in range(10_000)],
        "time": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * 10_000,
        "image": [b"\xff\xfe"] * 10_000,
        "body": [b"plain bytes"] * 10_000,
    }
)


def write(path: Path, table: pa.Table = TABLE, rows: int = 3000, **options: Any) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows, **options)
        return
    with (pa.ipc.new_stream if path.suffix == ".arrow" else pa.ipc.new_file)(
        path, table.schema
    ) as writer:
        writer.write_table(table, max_chunksize=rows)


def rows(path: Path, first: int = 0) -> list[dict[str, Any]]:
    return [
        json.loads(document.raw)
        for document in read_documents(find_files(str(path), "auto"), first=first)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_objects_whatever_the_format(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)

    found = rows(tmp_path / name)

    assert len(found) == 10_000
    known = {"id": "row 7", "text": None, "page": {"url": "u7", "tags": ["a"]}, "score": 3.5}
    assert found[7] == known | {"time": "2026-01-01T00:00:00Z", "body": "plain bytes"}
    assert found[1]["score"] is None
    assert rows(tmp_path / name, first=5001) == found[5001:]
    assert columns_of(tmp_path / name) == TABLE.column_names


def test_a_folder_of_shards_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    """As Hugging Face's libraries save it: shards beside JSON that describes them."""
    for number in (1, 0):
        write(tmp_path / f"data-{number:05}-of-00002.arrow", TABLE.slice(number * 10, 3))
    (tmp_path / "dataset_info.json").write_text("{}")

    expected = ["row 0", "row 1", "row 2", "row 10", "row 11", "row 12"]
    assert [row["id"] for row in rows(tmp_path)] == expected


def test_the_name_of_an_arrow_stream_can_end_in_arrows(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow")
    (tmp_path / "a.arrow").rename(tmp_path / "a.arrows")

    assert len(rows(tmp_path / "a.arrows")) == 10_000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", ["cut", "other", "empty"])
def test_a_damaged_table_file_is_reported(tmp_path: Path, name: str, damage: str) -> None:
    """The message names the file and the remedy; the undamaged rows are read."""
    write(tmp_path / name)
    raw = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(
        {"cut": raw[: len(raw) // 2], "other": b"no such thing" * 9, "empty": b""}[damage]
    )

    *sound, last = read_documents(find_files(str(tmp_path / name), "auto"))

    assert last.lost is not None
    is_cut_stream = (name, damage) == ("a.arrow", "cut")
    sentence = (
        rf"^Batch 2 of {name} cannot be read: "
        if is_cut_stream
        else rf"^{name} cannot be read as an? (Parquet|Arrow) file: .* fetch it again\.$"
    )
    assert re.match(sentence, last.lost.message)
    assert last.lost.error_class == DAMAGED_FILE
    assert len(sound) == (3000 if is_cut_stream else 0)


def small_table(seed: int) -> pa.Table:
    """Return 400 rows whose bytes are stored unencoded, so that each can be found in the file."""
    chance = random.Random(seed)
    texts = [f"row {number} {chance.randbytes(30).hex()}" for number in range(400)]
    return pa.table({"text": texts, "tags": [[text[-4:]] for text in texts], "n": list(range(400))})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(25))
def test_changed_bytes_lose_no_row_of_another_batch(tmp_path: Path, name: str, seed: int) -> None:
    """All rows of the other batches are read, nothing is raised, and Arrow does not crash the
    process."""
    chance, table, path = random.Random(seed), small_table(seed), tmp_path / name
    write(path, table, 100, use_dictionary=False, compression="none", write_statistics=False)
    raw = bytearray(path.read_bytes())
    group = chance.randrange(4)
    texts = [text.encode() for text in table["text"].to_pylist()]
    begin, end = raw.index(texts[group * 100]), raw.index(texts[group * 100 + 99])
    is_anywhere = seed % 5 == 0  # then any row may be lost, since the schema may be damaged
    for _ in range(chance.choice([1, 5, 50])):
        raw[chance.randrange(len(raw)) if is_anywhere else chance.randrange(begin - 20, end)] = (
            chance.randrange(256)
        )
    path.write_bytes(raw)

    found = list(read_documents(find_files(str(path), "auto")))

    numbers = [
        document.fields["n"]
        for document in found
        if document.fields and document.lost is None and "n" in document.fields
    ]
    others = [number for number in range(400) if number // 100 != group]
    assert is_anywhere or [n for n in numbers if n in others] == others, f"seed {seed}"
    if not is_anywhere and name.endswith(".parquet"):
        assert sum(1 if document.lost is None else document.lost.count for document in found) == 400
    for first in range(0, len(found) + 1, 57):
        again = list(read_documents(find_files(str(path), "auto"), first=first))
        expected = [(document.name, document.raw, document.lost) for document in found[first:]]
        assert [(document.name, document.raw, document.lost) for document in again] == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_is_no_text_is_lost_alone(tmp_path: Path, name: str) -> None:
    texts = pa.array([b"one", b"two \xff", b"three"]).cast(pa.binary())
    bad = pa.StringArray.from_buffers(3, texts.buffers()[1], texts.buffers()[2])
    write(tmp_path / name, pa.table({"text": bad}))

    found = list(read_documents(find_files(str(tmp_path / name), "auto")))

    assert [(row.fields or {}).get("text") for row in found] == ["one", None, "three"]
    if name == "a.parquet":  # whose values are not validated before they are read
        assert found[1].omits_bytes("text")
        return
    assert found[1].lost is not None
    assert (found[1].name, found[1].lost.error_class) == (f"{name}:1", "DamagedRecord")


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_no_json_costs_no_row(tmp_path: Path, name: str) -> None:
    """Bytes that are no text are omitted from that row only; times are cut to microseconds."""
    moments = pa.array([1_767_225_600_000_000_001, None, 999], pa.timestamp("ns", "UTC"))
    odd = {
        "text": pa.array([b"one", b"\xff", None]),
        "time": moments,
        "took": pa.array([1, 2001, None], pa.duration("ns")),
    }
    write(tmp_path / name, pa.table(odd))
    assert rows(tmp_path / name) == [
        {"text": "one", "time": "2026-01-01T00:00:00Z", "took": "P0D"},
        {"time": None, "took": "PT0.000002S"},
        {"text": None, "time": "1970-01-01T00:00:00Z", "took": None},
    ]
    write(tmp_path / name, pa.table({"text": odd["text"]}))
    assert rows(tmp_path / name) == [{"text": "one"}, {}, {"text": None}]


@pytest.mark.parametrize("address", ["s3://KEY:SECRET@bucket/x.jsonl", "s3://KEY:SEC/RET@bucket/x"])
def test_an_address_with_credentials_is_refused_before_a_library_sees_it(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error, for documents and for snapshots, does not show the secret."""

    def fail_if_called(*_: object, **__: object) -> None:
        raise AssertionError("a library was asked")

    monkeypatch.setattr("fsspec.core.url_to_fs", fail_if_called)
    monkeypatch.setattr("fsspec.get_filesystem_class", fail_if_called)
    for read, error in (
        (lambda: find_files(address, "auto"), InputError),
        (lambda: storage_at(address), StoreError),
    ):
        with pytest.raises(error, match="contains a user name or a password") as caught:
            read()
        assert "SEC" not in str(caught.value)
