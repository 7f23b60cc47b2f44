"""The filter reads what Confluent's serializers write, with the stand-in registry and a real
one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from stream_dedup.domain.errors import RegistryAwayError
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.settings.layers import load_settings
from tests.broker.certificates import Authority
from tests.inputs import registries, registry_server
from tests.inputs.registry_server import decode_dead_letter, decode_document


@pytest.fixture(scope="module", params=registries.KINDS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with registries.running(request.param) as address:
        yield address


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    """Return a subject that no other test uses."""
    return request.node.name.split("[")[0]


def decoder(url: str, form: str, text_field: str, **more: str) -> Decoder:
    given = {
        "value_format": form,
        "registry_url": url,
        "text_field": text_field,
        "id_field": "url",
        **more,
    }
    return Decoder(load_settings(given, environ={}))


def avro(
    url: str,
    subject: str,
    schema: Any,
    fields: Any,
    references: list[SchemaReference] | None = None,
) -> bytes:
    """Register the schema; return the fields as Confluent's serializer writes them."""
    client = SchemaRegistryClient({"url": url, "timeout": 10})
    context = SerializationContext(subject, MessageField.VALUE)
    raw = AvroSerializer(client, Schema(json.dumps(schema), "AVRO", references or []))(
        fields, context
    )
    assert raw is not None
    return raw


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Page",
        "fields": [{"name": "url", "type": "string"}, *fields],
    }


def test_avro_values_are_read_after_the_schema_evolves(url: str, subject: str) -> None:
    body = {"name": "body", "type": "string"}
    host = {"name": "host", "type": "string", "default": ""}
    renamed = record({"name": "text", "aliases": ["body"], "type": "string"}, host)
    first = avro(url, subject, record(body), {"url": "u1", "body": "one"})
    added = avro(url, subject, record(body, host), {"url": "u2", "body": "two", "host": "h"})
    new = avro(url, subject, renamed, {"url": "u3", "text": "three", "host": "h"})
    removed = avro(url, subject, record(host), {"url": "u4", "host": "h"})
    record_decoder = decoder(url, "avro", "body")
    assert [decode_document(record_decoder, raw)[:2] for raw in (first, added)] == [
        ("one", b"u1"),
        ("two", b"u2"),
    ]
    assert [decode_dead_letter(record_decoder, raw).error_class for raw in (new, removed)] == [
        "MissingField"
    ] * 2
    assert decode_document(decoder(url, "avro", "text"), new).text == "three"


def test_an_avro_schema_with_a_reference_is_read(url: str, subject: str) -> None:
    word = {"type": "record", "name": "Word", "fields": [{"name": "body", "type": "string"}]}
    client = SchemaRegistryClient({"url": url, "timeout": 10})
    client.register_schema(f"{subject}-word", Schema(json.dumps(word), "AVRO"))
    reference = SchemaReference("Word", f"{subject}-word", 1)
    raw = avro(
        url,
        subject,
        record({"name": "page", "type": "Word"}),
        {"url": "u", "page": {"body": "abc"}},
        [reference],
    )
    assert decode_document(decoder(url, "avro", "page.body"), raw).text == "abc"


def test_framed_json_is_read(url: str, subject: str) -> None:
    schema = {
        "title": "Page",
        "type": "object",
        "properties": {"url": {"type": "string"}, "body": {"type": "string"}},
    }
    client = SchemaRegistryClient({"url": url, "timeout": 10})
    raw = JSONSerializer(json.dumps(schema), client)(
        {"url": "u", "body": "abc"}, SerializationContext(subject, MessageField.VALUE)
    )
    assert raw is not None
    assert decode_document(decoder(url, "confluent-json", "body"), raw)[:2] == ("abc", b"u")


def test_the_registry_is_read_by_tls_with_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, strangers = Authority(tmp_path, "ours"), Authority(tmp_path, "strangers")
    schema = {"type": "record", "name": "Page", "fields": [{"name": "body", "type": "string"}]}
    with registry_server.serving(ours.sign("registry", "127.0.0.1")) as schema_server:
        schema_server.login = "crawler:secret"
        schema_server.has(7, schema, schemaType="AVRO")
        raw = b"\0\0\0\0\x07\x06abc"

        def decode(authority: Authority, login: str) -> Any:
            monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
            url = schema_server.url.replace("//", f"//{login}@")
            return decode_document(decoder(url, "avro", "body"), raw).text

        assert decode(ours, "crawler:secret") == "abc"
        for authority, login in ((strangers, "crawler:secret"), (ours, "crawler:wrong")):
            with pytest.raises(RegistryAwayError, match="the records wait"):
                decode(authority, login)


def test_an_unknown_schema_id_is_a_dead_letter(url: str) -> None:
    found = decode_dead_letter(decoder(url, "avro", "body"), b"\0\0\x0f\xff\xff\0")
    assert (found.stage, found.error_class) == ("decode", "UnknownSchema")
