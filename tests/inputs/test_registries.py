"""The same values by our stand-in for a registry and by a real one: Confluent's clients write them,
the filter reads them."""

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

from stream_dedup.ground.errors import RegistryAwayError
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.settings.layers import load_settings
from tests.broker.certificates import Authority
from tests.inputs import registries, registry_server
from tests.inputs.registry_server import classes_of, message, read, refused, written


@pytest.fixture(scope="module", params=registries.KINDS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with registries.running(request.param) as address:
        yield address


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    """Return a subject of the test's own."""
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
    """Return what Confluent's serializer makes; the schema is registered."""
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


def test_avro_whose_schema_evolves(url: str, subject: str) -> None:
    body, host = (
        {"name": "body", "type": "string"},
        {"name": "host", "type": "string", "default": ""},
    )
    renamed = record({"name": "text", "aliases": ["body"], "type": "string"}, host)
    first = avro(url, subject, record(body), {"url": "u1", "body": "one"})
    added = avro(url, subject, record(body, host), {"url": "u2", "body": "two", "host": "h"})
    new = avro(url, subject, renamed, {"url": "u3", "text": "three", "host": "h"})
    removed = avro(url, subject, record(host), {"url": "u4", "host": "h"})
    by = decoder(url, "avro", "body")
    assert [read(by, raw)[:2] for raw in (first, added)] == [("one", b"u1"), ("two", b"u2")]
    assert [refused(by, raw).error_class for raw in (new, removed)] == ["MissingField"] * 2
    by = decoder(url, "avro", "text", reader_schema=str(int.from_bytes(new[1:5], "big")))
    assert [read(by, raw).text for raw in (first, added, new)] == ["one", "two", "three"]
    assert refused(by, removed).stage == "decode"


def test_avro_that_refers_to_another(url: str, subject: str) -> None:
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
    assert read(decoder(url, "avro", "page.body"), raw).text == "abc"


@pytest.mark.parametrize("is_text", [True, False], ids=["as text", "as compiled"])
def test_protobuf_whose_schema_evolves(
    url: str, subject: str, tmp_path: Path, is_text: bool
) -> None:
    fields = {
        "first": "string body = 2;",
        "added": "string body = 2; string host = 3;",
        "renamed": "string text = 2; string host = 3;",
        "removed": "string host = 3;",
    }
    raws = {}
    for name, inside in fields.items():
        text = f'syntax = "proto3"; package c; message Other {{}} message Page {{ string url = 1; {inside} }}'
        (tmp_path / name).mkdir()
        page = classes_of(tmp_path / name, text)["c.Page"]
        value = page(url=name)
        if name != "removed":
            setattr(value, "text" if name == "renamed" else "body", f"text of {name}")
        if is_text:
            client = SchemaRegistryClient({"url": url, "timeout": 10})
            number = client.register_schema(f"{subject}-{name}-value", Schema(text, "PROTOBUF"))
            raws[name] = b"\0" + number.to_bytes(4, "big") + b"\x02\x02" + value.SerializeToString()
        else:
            raws[name] = written(url, f"{subject}-{name}-compiled", value)
    by = decoder(url, "protobuf", "body")
    assert [read(by, raws[name])[:2] for name in ("first", "added")] == [
        ("text of first", b"first"),
        ("text of added", b"added"),
    ]
    assert [refused(by, raws[name]).error_class for name in ("renamed", "removed")] == [
        "MissingField"
    ] * 2
    by = decoder(
        url, "protobuf", "text", reader_schema=str(int.from_bytes(raws["renamed"][1:5], "big"))
    )
    assert [read(by, raws[name]).text for name in fields] == [
        "text of first",
        "text of added",
        "text of renamed",
        "",
    ]


def test_protobuf_that_imports_another(url: str, subject: str, tmp_path: Path) -> None:
    word = 'syntax = "proto3"; package w; message Word { string body = 1; }'
    both = (
        'syntax = "proto3"; import "word.proto"; message Doc { string url = 1; w.Word page = 2; }'
    )
    value = classes_of(tmp_path, both, word=word)["Doc"](url="u", page={"body": "abc"})
    assert read(decoder(url, "protobuf", "page.body"), written(url, subject, value))[:2] == (
        "abc",
        b"u",
    )


def test_json_with_a_frame(url: str, subject: str) -> None:
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
    assert read(decoder(url, "confluent-json", "body"), raw)[:2] == ("abc", b"u")


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_by_tls_with_a_password(tmp_path: Path, form: str) -> None:
    ours, strangers = Authority(tmp_path, "ours"), Authority(tmp_path, "strangers")
    (tmp_path / "login").write_text("crawler:secret\n", "utf-8")
    (tmp_path / "wrong").write_text("crawler:wrong\n", "utf-8")
    text = 'syntax = "proto3"; message Page { string body = 1; }'
    schema = {"type": "record", "name": "Page", "fields": [{"name": "body", "type": "string"}]}
    bodies = {"avro": b"\x06abc", "protobuf": b"\0\x0a\x03abc"}
    with registry_server.serving(ours.sign("registry", "127.0.0.1")) as stand:
        stand.login = "crawler:secret"
        stand.has(7, schema if form == "avro" else text, schemaType=form.upper())
        raw = b"\0\0\0\0\x07" + bodies[form]
        more = {
            "registry_ca_file": str(ours.path),
            "registry_credentials_file": str(tmp_path / "login"),
        }
        assert read(decoder(stand.url, form, "body", **more), raw).text == "abc"
        for setting, path in {
            "registry_ca_file": strangers.path,
            "registry_credentials_file": tmp_path / "wrong",
        }.items():
            with pytest.raises(RegistryAwayError, match="the records wait"):
                decoder(stand.url, form, "body", **{**more, setting: str(path)}).decode(
                    message(raw)
                )


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_an_id_that_is_not_there(url: str, form: str) -> None:
    found = refused(decoder(url, form, "body"), b"\0\0\x0f\xff\xff\0")
    assert (found.stage, found.error_class) == ("decode", "UnknownSchema")
