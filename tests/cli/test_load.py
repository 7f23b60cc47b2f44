"""`load`: what is sent for a document; the sending itself is tested on a real broker in test_with_broker."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from stream_dedup.cli import seed as seed_command
from stream_dedup.cli.load import record_of
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.inputs.sources import RawDocument, find_files, key_of, read_documents
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.settings import Settings


def json_settings(**more: str) -> Settings:
    return load_settings({"value_format": "json", **more}, environ={})


def test_a_line_of_jsonl_is_sent_byte_for_byte() -> None:
    """Nothing is encoded again, whatever the settings and however broken the line."""
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
def test_the_key(fields: dict[str, object] | None, key_field: str | None, key: str | None) -> None:
    assert key_of(fields, key_field) == key


def test_a_text_file_becomes_what_the_worker_decodes(tmp_path: Path) -> None:
    document = RawDocument("a/b.txt", "Grüße \x00".encode(), "text")

    assert record_of(Settings(), document, None) == (b"a/b.txt", document.raw)
    key, value = record_of(json_settings(text_field="page.body", id_field="page.id"), document, None)
    assert (key, json.loads(value)) == (b"a/b.txt", {"page": {"id": "a/b.txt", "body": "Grüße \x00"}})
    _, value = record_of(json_settings(text_encoding="base64"), document, None)
    assert base64.b64decode(json.loads(value)["text"]) == document.raw
    _, value = record_of(load_settings({"text_encoding": "base64"}, environ={}), document, None)
    assert base64.b64decode(value) == document.raw


def test_fields_that_cannot_both_be_written_are_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match="separate paths"):
        record_of(json_settings(text_field="id.text"), RawDocument("a", b"x", "text"), None)


def test_documents_are_given_without_their_line_end_only(tmp_path: Path) -> None:
    """Of a line only the line break goes, Windows's too; blanks around a document are its own."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b' {"id":1} \r\n{"id":2}\n \r\n{"id":3}')

    documents = list(read_documents(find_files(str(path), "auto")))

    assert [one.raw for one in documents] == [b' {"id":1} ', b'{"id":2}', b'{"id":3}']


@pytest.mark.parametrize(("value_format", "told"), [("raw", True), ("json", False)])
def test_a_seed_of_whole_lines_is_told(
    value_format: str, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a line of JSONL is the text with its braces and names, its copies would not be near."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"url": "http://1/", "text": "a"}\n')
    settings = load_settings({"value_format": value_format}, environ={})

    ((_, messages),) = seed_command._of_files(settings, str(path), "auto", "url", seed_command._Totals())

    assert [one.key for one in messages] == [b"http://1/"]
    assert ("Each line is taken whole as its text" in capsys.readouterr().err) is told


@pytest.mark.parametrize(
    ("id_field", "key_field", "key"),
    [(None, None, b"an id"), ("page.url", None, b"http://1/"), ("page.url", "key", b"a key")],
)
def test_the_key_is_where_the_filter_looks_for_the_id(id_field: str | None, key_field: str | None, key: bytes) -> None:
    """ID_FIELD counts unless --key-field names another; with neither it is `id`, else `url`."""
    fields = {"id": "an id", "url": "http://2/", "key": "a key", "page": {"url": "http://1/"}}
    document = RawDocument("a.jsonl:1", json.dumps(fields).encode(), "jsonl", fields)

    settings = json_settings(**({} if id_field is None else {"id_field": id_field}))
    assert record_of(settings, document, key_field)[0] == key
