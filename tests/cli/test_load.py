"""`load`: the records that it sends for documents."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from stream_dedup.domain.errors import BrokerError, ConfigurationError
from stream_dedup.inputs.sources import RawDocument, find_files, key_of, read_documents
from stream_dedup.loading import documents as loading
from stream_dedup.loading import seeds
from stream_dedup.loading.documents import Loading, record_of
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.settings import Settings


class Broker:
    """A producer that records the flushed values."""

    first_failure = "No space left."

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.sent: list[bytes] = []
        self.left: int | None = None
        self.fails = self.is_gone = False
        self.failed = 0
        self.refuses = b"never"
        self.too_large: list[tuple[str, int]] = []

    @property
    def has_given_up(self) -> bool:
        return self.is_gone and self.failed > 0

    def send(
        self,
        _topic: str,
        _key: bytes | None,
        value: bytes,
        labelled_size: tuple[str, int] = ("", 0),
    ) -> None:
        if self.refuses in value:
            self.too_large.append(labelled_size)
            return
        if self.left == 0 and not self.fails:
            raise KeyboardInterrupt
        if self.left == 0:
            self.failed += 1
            return
        self.left = None if self.left is None else self.left - 1
        self.sent.append(value)

    def flush(self, _seconds: float) -> int:
        self.written += self.sent
        self.sent.clear()
        return self.failed


def run_load(
    folder: Path, broker: Broker, left: int | None = None, skip: int = 0
) -> tuple[int, list[bytes]]:
    """Load the files of a folder; `left` is the number of records that the broker accepts."""
    broker.left, broker.failed = left, 0
    broker.written.clear()
    settings = load_settings({"value_format": "json"}, environ={})
    loading = Loading(settings, "documents", None, broker, skip)  # type: ignore[arg-type]
    code = loading.run(find_files(str(folder / "files"), "auto"), as_json=True)
    return code, [*broker.written]


def make_files(folder: Path) -> list[bytes]:
    """Write three files of several kinds; return all values in their order."""
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(f'{{"id":"a{number}"}}\n' for number in range(20)))
    (folder / "b.txt").write_text("text b")
    (folder / "c.jsonl").write_text("".join(f'{{"id":"c{number}"}}\n' for number in range(20)))
    b = b'{"id": "b.txt", "text": "text b"}'
    return [*(b'{"id":"a%d"}' % n for n in range(20)), b, *(b'{"id":"c%d"}' % n for n in range(20))]


def test_interrupted_load_is_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After Ctrl-C, load waits until the sent records are written."""
    values, broker = make_files(tmp_path / "files"), Broker()

    assert run_load(tmp_path, broker, 25) == (130, values[:25])
    assert (
        "To continue, add --skip 25; at most 0 documents are then sent twice."
        in capsys.readouterr().err
    )
    assert run_load(tmp_path, broker, 10, skip=25) == (130, values[25:35])
    assert (
        "To continue, add --skip 35; at most 0 documents are then sent twice."
        in capsys.readouterr().err
    )
    assert run_load(tmp_path, broker, skip=35) == (0, values[35:])
    assert run_load(tmp_path, broker) == (0, values)


@pytest.mark.parametrize(("is_gone", "failed"), [(False, "31 of 41"), (True, "1 of 11")])
def test_records_that_kafka_refused_are_sent_again(
    is_gone: bool, failed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that follows a refused document counts as loaded; where Kafka is gone, nothing more
    is read."""
    monkeypatch.setattr(loading, "CHECKPOINT_SECONDS", 4)
    clock = iter(range(10**9))
    monkeypatch.setattr(loading.time, "monotonic", lambda: next(clock))
    values, broker = make_files(tmp_path / "files"), Broker()
    broker.fails, broker.is_gone = True, is_gone

    with pytest.raises(BrokerError, match=f"{failed} documents") as refused:
        run_load(tmp_path, broker, 10)
    before = [*broker.written]
    found = re.search(
        r"--skip (\d+); at most (\d+) documents are then sent twice", str(refused.value)
    )
    assert found is not None
    skip, twice = map(int, found.groups())
    assert 0 < skip <= 10
    assert len(before) - skip <= twice
    assert {*before, *run_load(tmp_path, broker, skip=skip)[1]} == set(values)


def test_too_large_documents_are_reported_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other documents are loaded, and the exit code is 1."""
    values, broker = make_files(tmp_path / "files"), Broker()
    broker.refuses = b'"a7"'

    assert run_load(tmp_path, broker) == (1, [value for value in values if b'"a7"' not in value])
    assert (
        "a.jsonl:8 was not sent: it has 11 bytes, more than the topic's max.message.bytes"
        in capsys.readouterr().err
    )


# -- what is sent for a document


def json_settings(**more: str) -> Settings:
    return load_settings({"value_format": "json", **more}, environ={})


def test_a_line_of_jsonl_is_sent_byte_for_byte() -> None:
    for raw in (b'{ "id" : 1,  "text":"\\u00e4" }', b"{broken", b"\xff"):
        for settings in (Settings(), json_settings()):
            assert record_of(settings, RawDocument("f:1", raw, "jsonl"), None)[1] == raw


@pytest.mark.parametrize(
    ("fields", "key_field", "key"),
    [
        ({"id": "a", "url": "b"}, None, "a"),
        ({"url": "b"}, None, "b"),
        ({"id": {"x": 1}, "url": "b"}, None, "b"),
        ({"id": None}, None, None),
        ({"id": True}, None, None),
        ({"id": 17}, None, "17"),
        ({"url": ["b", "c"]}, None, "b"),
        ({"page": {"key": "deep"}}, "page.key", "deep"),
        ({"page.key": "flat", "page": {"key": "deep"}}, "page.key", "flat"),
        ({"id": "a"}, "no.such", None),
        (None, None, None),
    ],
)
def test_key_of(fields: dict[str, object] | None, key_field: str | None, key: str | None) -> None:
    assert key_of(fields, key_field) == key


def test_a_text_file_becomes_what_the_worker_decodes(tmp_path: Path) -> None:
    document = RawDocument("a/b.txt", "Grüße \x00".encode(), "text")

    assert record_of(Settings(), document, None) == (b"a/b.txt", document.raw)
    key, value = record_of(
        json_settings(text_field="page.body", id_field="page.id"), document, None
    )
    assert (key, json.loads(value)) == (
        b"a/b.txt",
        {"page": {"id": "a/b.txt", "body": "Grüße \x00"}},
    )
    _, value = record_of(json_settings(text_encoding="base64"), document, None)
    assert base64.b64decode(json.loads(value)["text"]) == document.raw
    _, value = record_of(load_settings({"text_encoding": "base64"}, environ={}), document, None)
    assert base64.b64decode(value) == document.raw


def test_a_page_is_sent_in_the_encoding_that_it_names(tmp_path: Path) -> None:
    page = "<meta charset=windows-1251><p>Привет"
    (tmp_path / "a.html").write_bytes(page.encode("cp1251"))
    [document] = read_documents(find_files(str(tmp_path), "auto"))

    assert json.loads(record_of(json_settings(), document, None)[1])["text"] == page


def test_overlapping_field_paths_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="separate paths"):
        record_of(json_settings(text_field="id.text"), RawDocument("a", b"x", "text"), None)


def test_documents_of_jsonl_lose_only_their_line_break(tmp_path: Path) -> None:
    """CRLF is removed like LF; spaces around a document stay."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b' {"id":1} \r\n{"id":2}\n \r\n{"id":3}')

    documents = list(read_documents(find_files(str(path), "auto")))

    assert [document.raw for document in documents] == [b' {"id":1} ', b'{"id":2}', b'{"id":3}']


@pytest.mark.parametrize(("value_format", "is_reported"), [("raw", True), ("json", False)])
def test_a_seed_of_whole_lines_is_reported(
    value_format: str, is_reported: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Raw lines of JSONL include braces and field names, so their copies would not be near."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"url": "http://1/", "text": "a"}\n')
    settings = load_settings({"value_format": value_format}, environ={})

    ((_, messages),) = seeds._read_files(settings, str(path), "auto", "url", seeds.SeedTotals())

    assert [message.key for message in messages] == [b"http://1/"]
    assert ("Each whole line is a text" in capsys.readouterr().err) is is_reported


@pytest.mark.parametrize(
    ("id_field", "key_field", "key"),
    [(None, None, b"an id"), ("page.url", None, b"http://1/"), ("page.url", "key", b"a key")],
)
def test_the_key_is_where_the_filter_looks_for_the_id(
    id_field: str | None, key_field: str | None, key: bytes
) -> None:
    """ID_FIELD counts unless --key-field names another; with neither it is `id`, else `url`."""
    fields = {"id": "an id", "url": "http://2/", "key": "a key", "page": {"url": "http://1/"}}
    document = RawDocument("a.jsonl:1", json.dumps(fields).encode(), "jsonl", fields)

    settings = json_settings(**({} if id_field is None else {"id_field": id_field}))
    assert record_of(settings, document, key_field)[0] == key
