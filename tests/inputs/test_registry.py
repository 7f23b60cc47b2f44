"""Avro values by a registry: a small server speaks the documented HTTP, and the client is Confluent's own."""

from __future__ import annotations

import base64
import io
import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest

from stream_dedup.ground.document import DeadLetter, Message
from stream_dedup.ground.errors import ConfigurationError, RegistryAwayError
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.settings.layers import load_settings

PAGE = {
    "type": "record",
    "name": "Page",
    "fields": [
        {"name": "url", "type": "string"},
        {"name": "body", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
RENAMED = {
    "type": "record",
    "name": "Page",
    "fields": [
        {"name": "url", "type": "string"},
        {"name": "text", "aliases": ["body"], "type": "string"},
        {"name": "host", "type": "string", "default": ""},
    ],
}
RECURSIVE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
EMPTY_ITEMS = {"type": "record", "name": "Lie", "fields": [{"name": "body", "type": {"type": "array", "items": "null"}}]}


class Stand:
    """A registry of schemas by id; `status` is what it answers instead, when set."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.status: int | None = None
        self.login: str | None = None
        stand = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stand.asked.append(self.path.split("?")[0])
                status, body = stand.answer(self.path.split("?")[0], self.headers.get("Authorization"))
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, path: str, login: str | None) -> tuple[int, dict[str, Any]]:
        if self.status is not None:
            return self.status, {"error_code": self.status, "message": "told to"}
        if self.login is not None and login != "Basic " + base64.b64encode(self.login.encode()).decode():
            return 401, {"error_code": 401, "message": "Unauthorized"}
        kind, number = path.rsplit("/", 1)
        if kind == "/schemas/ids" and int(number) in self.schemas:
            return 200, self.schemas[int(number)]
        if kind == "/subjects/word/versions":
            return 200, {"subject": "word", "version": 1, "id": 90, **self.schemas[90]}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def has(self, number: int, schema: Any, **others: Any) -> None:
        self.schemas[number] = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **others}


@pytest.fixture
def stand() -> Iterator[Stand]:
    stand = Stand()
    yield stand
    stand.server.shutdown()
    stand.server.server_close()


def decoder(stand: Stand, **more: str) -> Decoder:
    given = {"value_format": "avro", "registry_url": stand.url, "text_field": "body", "id_field": "url", **more}
    return Decoder(load_settings(given, environ={}))


def framed(number: int, schema: Any, fields: Any) -> bytes:
    out = io.BytesIO(struct.pack(">bI", 0, number))
    out.seek(5)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), fields)
    return out.getvalue()


def read(by: Decoder, value: bytes) -> DecodedDocument:
    found = by.decode(message(value))
    assert isinstance(found, DecodedDocument), found
    return found


def refused(by: Decoder, value: bytes) -> DeadLetter:
    found = by.decode(message(value))
    assert isinstance(found, DeadLetter), found
    return found


def message(value: bytes) -> Message:
    return Message("documents", 0, 0, b"key", value, 1, [])


FIRST = {"url": "u1", "body": "one text", "at": 1_700_000_000_123}


def test_reads_by_the_schema_and_asks_for_it_once(stand: Stand) -> None:
    stand.has(7, PAGE)
    by = decoder(stand, time_field="at")
    for _ in range(3):
        assert read(by, framed(7, PAGE, FIRST))[:3] == ("one text", b"u1", 1_700_000_000_123)
    assert stand.asked == ["/schemas/ids/7"]


def test_a_field_renamed_with_an_alias_is_read_by_the_readers_schema(stand: Stand) -> None:
    stand.has(7, PAGE)
    stand.has(8, RENAMED)
    by = decoder(stand, text_field="text", reader_schema="8")
    assert read(by, framed(7, PAGE, FIRST)).text == "one text"
    assert read(by, framed(8, RENAMED, {"url": "u2", "text": "two", "host": "h"})).text == "two"
    assert refused(decoder(stand, text_field="text"), framed(7, PAGE, FIRST)).error_class == "MissingField"


def test_a_schema_may_refer_to_another(stand: Stand) -> None:
    word = {"type": "record", "name": "Word", "fields": [{"name": "body", "type": "string"}]}
    stand.has(90, word)
    page = {"type": "record", "name": "Doc", "fields": [{"name": "page", "type": "Word"}]}
    stand.has(9, page, references=[{"name": "Word", "subject": "word", "version": 1}])
    by = decoder(stand, text_field="page.body")
    assert read(by, struct.pack(">bI", 0, 9) + b"\x06abc").text == "abc"


def test_an_unknown_id_is_a_dead_letter_and_not_asked_for_each_time(stand: Stand) -> None:
    by = decoder(stand)
    for _ in range(3):
        found = refused(by, framed(3, PAGE, FIRST))
        assert (found.stage, found.error_class) == ("decode", "UnknownSchema")
    assert len(stand.asked) == 1


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_a_registry_that_is_away_is_no_fault_of_the_record(stand: Stand, status: int) -> None:
    stand.has(7, PAGE)
    by = decoder(stand)
    stand.status = status
    with pytest.raises(RegistryAwayError, match="the records wait"):
        by.decode(message(framed(7, PAGE, FIRST)))
    stand.status = None
    assert read(by, framed(7, PAGE, FIRST)).text == "one text"


def test_a_registry_that_is_not_there_is_away() -> None:
    settings = load_settings({"value_format": "avro", "registry_url": "http://127.0.0.1:9"}, environ={})
    with pytest.raises(RegistryAwayError):
        Decoder(settings).decode(message(framed(7, PAGE, FIRST)))


def test_basic_authentication(stand: Stand, tmp_path: Path) -> None:
    stand.has(7, PAGE)
    stand.login = "crawler:secret"
    (tmp_path / "login").write_text("crawler:secret\n", "utf-8")
    assert read(decoder(stand, registry_credentials_file=str(tmp_path / "login")), framed(7, PAGE, FIRST)).text == "one text"


@pytest.mark.parametrize(
    ("schema", "body", "error_class"),
    [
        (RECURSIVE, b"\x02" * 1_000_000, "RecursionError"),
        (EMPTY_ITEMS, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00", "BadSchema"),
        (json.dumps(PAGE) + " " * (1 << 20), b"", "BadSchema"),
        ("[" * 5_000, b"", "BadSchema"),
        ('{"type":"array","items":' * 200 + '"int"' + "}" * 200, b"", "BadSchema"),
        ("not a schema", b"", "BadSchema"),
        (PAGE, b"\xfe\xff\xff\xff\x0f", "EOFError"),
    ],
    ids=["recursive", "items of no bytes", "long", "brackets", "deep", "no schema", "a length that lies"],
)
def test_bad_schemas_and_values_are_dead_letters(stand: Stand, schema: Any, body: bytes, error_class: str) -> None:
    stand.has(7, schema)
    found = refused(decoder(stand), struct.pack(">bI", 0, 7) + body)
    assert (found.stage, found.error_class) == ("decode", error_class), found


def test_without_a_frame_or_of_another_type(stand: Stand) -> None:
    stand.has(7, 'syntax = "proto3";', schemaType="PROTOBUF")
    by = decoder(stand)
    assert refused(by, b'{"body": "a"}').error_class == "NotFramed"
    assert refused(by, framed(7, PAGE, FIRST)).error_class == "NotAvro"


def test_the_address_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="STREAM_DEDUP_REGISTRY_URL"):
        Decoder(load_settings({"value_format": "avro"}, environ={}))
