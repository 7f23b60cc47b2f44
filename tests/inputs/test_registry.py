"""Avro values by a registry: a small server speaks the documented HTTP, and the client is Confluent's own."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest

from stream_dedup.ground.errors import ConfigurationError, RegistryAwayError
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.settings.layers import load_settings
from tests.inputs.registry_server import SchemaServer, message, read, refused, serving

PAGE = {
    "type": "record",
    "name": "Page",
    "fields": [
        {"name": "url", "type": "string"},
        {"name": "body", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
RECURSIVE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
EMPTY_ITEMS = {"type": "record", "name": "Lie", "fields": [{"name": "body", "type": {"type": "array", "items": "null"}}]}


@pytest.fixture
def stand() -> Iterator[SchemaServer]:
    with serving() as stand:
        yield stand


def decoder(stand: SchemaServer, **more: str) -> Decoder:
    given = {"value_format": "avro", "registry_url": stand.url, "text_field": "body", "id_field": "url", **more}
    return Decoder(load_settings(given, environ={}))


def framed(number: int, schema: Any, fields: Any) -> bytes:
    out = io.BytesIO(struct.pack(">bI", 0, number))
    out.seek(5)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), fields)
    return out.getvalue()


FIRST = {"url": "u1", "body": "one text", "at": 1_700_000_000_123}


def test_reads_by_the_schema_and_asks_for_it_once(stand: SchemaServer) -> None:
    stand.has(7, PAGE)
    by = decoder(stand, time_field="at")
    for _ in range(3):
        assert read(by, framed(7, PAGE, FIRST))[:3] == ("one text", b"u1", 1_700_000_000_123)
    assert stand.asked == ["/schemas/ids/7"]


def test_an_unknown_id_is_a_dead_letter_and_not_asked_for_each_time(stand: SchemaServer) -> None:
    by = decoder(stand)
    for _ in range(3):
        found = refused(by, framed(3, PAGE, FIRST))
        assert (found.stage, found.error_class) == ("decode", "UnknownSchema")
    assert len(stand.asked) == 1


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_a_registry_that_is_away_is_no_fault_of_the_record(stand: SchemaServer, status: int) -> None:
    stand.has(7, PAGE)
    by = decoder(stand)
    stand.status = status
    with pytest.raises(RegistryAwayError, match="the records wait"):
        by.decode(message(framed(7, PAGE, FIRST)))
    stand.status = None
    assert read(by, framed(7, PAGE, FIRST)).text == "one text"


@pytest.mark.parametrize("status", [400, 404, 422])
def test_an_id_or_a_version_that_the_registry_refuses_is_the_records_fault(stand: SchemaServer, status: int) -> None:
    """The id comes with each value, and whoever writes one would stop the worker for ever."""
    stand.has(7, PAGE)
    stand.has(8, {"type": "record", "name": "Doc", "fields": []}, references=[{"name": "W", "subject": "w", "version": 0}])
    stand.refused = {"/schemas/ids/4294967295": status, "/subjects/w/versions/0": status}
    by = decoder(stand)
    assert refused(by, b"\0\xff\xff\xff\xff").error_class == "UnknownSchema"
    found = refused(by, struct.pack(">bI", 0, 8))
    assert (found.error_class, "version 0 of 'w', which the registry does not have" in found.message) == ("BadSchema", True)
    assert read(by, framed(7, PAGE, FIRST)).text == "one text"


def test_a_registry_that_is_not_there_is_away() -> None:
    settings = load_settings({"value_format": "avro", "registry_url": "http://127.0.0.1:9"}, environ={})
    with pytest.raises(RegistryAwayError):
        Decoder(settings).decode(message(framed(7, PAGE, FIRST)))


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
def test_bad_schemas_and_values_are_dead_letters(stand: SchemaServer, schema: Any, body: bytes, error_class: str) -> None:
    stand.has(7, schema)
    found = refused(decoder(stand), struct.pack(">bI", 0, 7) + body)
    assert (found.stage, found.error_class) == ("decode", error_class), found


def test_what_is_kept_of_schemas_is_bounded(stand: SchemaServer) -> None:
    """Each has a megabyte; the first is asked for anew when it comes again, and read all the same."""
    long = {**PAGE, "doc": "x" * 1_000_000}
    by = decoder(stand)
    for number in [*range(1, 7), 6, 1]:
        stand.has(number, long)
        assert read(by, framed(number, long, FIRST)).text == "one text"
    asked = [path.rsplit("/", 1)[1] for path in stand.asked]
    assert asked == ["1", "2", "3", "4", "5", "6", "1"]
    assert len(by._registry._readers) < 6  # type: ignore[union-attr]
    assert by._registry._kept_bytes < 6 << 20  # type: ignore[union-attr]


def test_what_a_schema_refers_to_counts_as_its_own(stand: SchemaServer) -> None:
    word = {"type": "record", "name": "Word", "doc": "x" * 600_000, "fields": [{"name": "body", "type": "string"}]}
    page = {"type": "record", "name": "Doc", "doc": "x" * 600_000, "fields": [{"name": "page", "type": "Word"}]}
    stand.has(90, word, "word")
    stand.has(9, page, references=[{"name": "Word", "subject": "word", "version": 1}])
    found = refused(decoder(stand), struct.pack(">bI", 0, 9) + b"\x06abc")
    assert (found.error_class, "with what it refers to" in found.message) == ("BadSchema", True)


def test_without_a_frame_or_of_another_type(stand: SchemaServer) -> None:
    stand.has(7, 'syntax = "proto3";', schemaType="PROTOBUF")
    by = decoder(stand)
    assert refused(by, b'{"body": "a"}').error_class == "NotFramed"
    assert refused(by, framed(7, PAGE, FIRST)).error_class == "NotAvro"


def test_the_address_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="STREAM_DEDUP_REGISTRY_URL"):
        Decoder(load_settings({"value_format": "avro"}, environ={}))
