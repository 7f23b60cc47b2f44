"""Protobuf values by a registry: Confluent's own serializer writes them, and the filter reads them
without its classes."""

from __future__ import annotations

import subprocess
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.ground.errors import RegistryAwayError
from stream_dedup.inputs import protobuf
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.settings.layers import load_settings
from tests.inputs import registry_server
from tests.inputs.registry_server import SchemaServer, classes_of, message, read, refused

PAGE = """
syntax = "proto3";
package crawl;
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
enum Kind { PLAIN = 0; NEWS = 1; }
message Other { string title = 1; }
message Page {
  string url = 1;
  string body = 2;
  google.protobuf.Timestamp at = 3;
  optional string summary = 4;
  Content content = 5;
  repeated string parts = 6;
  map<string, string> meta = 7;
  google.protobuf.StringValue maybe = 8;
  google.protobuf.Struct free = 9;
  bytes raw = 10;
  Kind kind = 11;
  int64 seconds = 12;
  repeated float vector = 13;
  message Content { string html = 1; Content inner = 2; }
}
"""


def decoder(stand: SchemaServer, text_field: str = "body", **more: str) -> Decoder:
    given = {
        "value_format": "protobuf",
        "registry_url": stand.url,
        "text_field": text_field,
        "id_field": "url",
        **more,
    }
    return Decoder(load_settings(given, environ={}))


@pytest.fixture
def page(tmp_path: Path) -> dict[str, Any]:
    return classes_of(tmp_path, PAGE)


def written(stand: SchemaServer, value: Any) -> bytes:
    return registry_server.written(stand.url, "documents", value)


def as_text(stand: SchemaServer, raw: bytes, text: str = PAGE) -> bytes:
    """Have the schema of a value as the text of its file, as most registries give it."""
    stand.schemas[int.from_bytes(raw[1:5], "big")]["schema"] = text
    return raw


def framed(stand: SchemaServer, schema: str, body: bytes, **others: Any) -> bytes:
    stand.has(7, schema, schemaType="PROTOBUF", **others)
    return b"\0\0\0\0\x07" + body


@pytest.mark.parametrize("is_text", [True, False], ids=["as text", "as compiled"])
def test_a_schema_is_asked_for_and_compiled_once(
    stand: SchemaServer, page: dict[str, Any], is_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = page["crawl.Page"](url="u1", body="one text")
    value.at.FromMilliseconds(1_700_000_000_123)
    raw = written(stand, value)
    raw = as_text(stand, raw) if is_text else raw
    by = decoder(stand, time_field="at")
    for _ in range(3):
        assert read(by, raw)[:3] == ("one text", b"u1", 1_700_000_000_123)
        monkeypatch.setattr(subprocess, "Popen", out_of_memory)
    assert [path for path in stand.asked if "/ids/" in path] == ["/schemas/ids/1000"]


@pytest.mark.parametrize(
    ("fields", "path", "text"),
    [
        ({"content": {"inner": {"html": "nested"}}}, "content.inner.html", "nested"),
        ({"parts": ["one", "two"]}, "parts", "one\ntwo"),
        ({"meta": {"body": "in a map", "other": "x"}}, "meta.body", "in a map"),
        ({"maybe": {"value": "wrapped"}}, "maybe", "wrapped"),
        (
            {"free": {"page": {"text": "in a struct", "n": 1}, "other": [None]}},
            "free.page.text",
            "in a struct",
        ),
        ({"raw": b"by bytes \xff"}, "raw", "by bytes \N{REPLACEMENT CHARACTER}"),
        ({"summary": ""}, "summary", ""),
        ({}, "body", ""),
        ({}, "parts", ""),
    ],
)
def test_the_text_is_at_a_dotted_path(
    stand: SchemaServer, page: dict[str, Any], fields: dict[str, Any], path: str, text: str
) -> None:
    """What is not set and tells so is not there; what cannot tell is empty."""
    assert read(decoder(stand, path), written(stand, page["crawl.Page"](**fields))).text == text


@pytest.mark.parametrize(
    "path",
    ["summary", "content.html", "content", "meta.body", "maybe", "free.page", "none", "Body"],
)
def test_a_field_that_is_not_set_is_not_there(
    stand: SchemaServer, page: dict[str, Any], path: str
) -> None:
    assert (
        refused(decoder(stand, path), written(stand, page["crawl.Page"](url="u"))).error_class
        == "MissingField"
    )


def test_nulls_ids_times_and_scopes_of_other_kinds(
    stand: SchemaServer, page: dict[str, Any]
) -> None:
    null = refused(
        decoder(stand, "free.body"), written(stand, page["crawl.Page"](free={"body": None}))
    )
    assert (null.error_class, "holds null" in null.message) == ("NotText", True)
    raw = written(stand, page["crawl.Page"](body="b", kind="NEWS", seconds=1_700_000_000, url="u"))
    found = read(decoder(stand, id_field="kind", time_field="seconds", scope_field="kind"), raw)
    assert found[1:3] == (b"NEWS", 1_700_000_000_000)
    assert found.scope == read(decoder(stand, scope_field="kind"), raw).scope != 0
    value = page["crawl.Page"](url="u", body="b", kind=9)
    value.at.seconds = 1 << 60
    assert read(decoder(stand, time_field="at", id_field="kind"), written(stand, value))[:3] == (
        "b",
        b"9",
        1,
    )


def test_a_vector_is_a_repeated_number(stand: SchemaServer, page: dict[str, Any]) -> None:
    raw = written(stand, page["crawl.Page"](vector=[0.5, -1.0]))
    given = {"value_format": "protobuf", "registry_url": stand.url, "text_field": "vector"}
    by = Decoder(load_settings(given, environ={}), takes_vectors=True)
    assert list(read(by, raw).text) == [0.5, -1.0]


def test_the_frame_says_which_message_it_is(stand: SchemaServer, page: dict[str, Any]) -> None:
    inner = page["crawl.Page.Content"](html="of an inner message")
    assert (
        read(decoder(stand, "html"), as_text(stand, written(stand, inner))).text
        == "of an inner message"
    )
    other = written(stand, page["crawl.Other"](title="of the first message"))
    assert other[5] == 0
    assert read(decoder(stand, "title"), other).text == "of the first message"


@pytest.mark.parametrize(
    "imported", ["confluent/meta.proto", "confluent/type/decimal.proto", "google/type/date.proto"]
)
def test_what_clients_take_for_granted_is_there(stand: SchemaServer, imported: str) -> None:
    text = f'syntax = "proto3"; import "{imported}"; message Page {{ string body = 1; }}'
    assert read(decoder(stand), framed(stand, text, b"\0\x0a\x03abc")).text == "abc"


BODIES = {
    "none": b"",
    "half": b"\x80",
    "negative": b"\x01",
    "many": b"\xff\xff\xff\xff\x0f",
    "broken off": b"\x02",
}
BODIES |= {"no such": b"\x02\x08", "the last": b"\x02\x01", "no such within": b"\x04\0\x02"}
BODIES |= {"a length that lies": b"\0\x0a\xff", "no UTF-8": b"\0\x0a\x01\xff"}


@pytest.mark.parametrize("what", BODIES)
def test_what_does_not_follow_the_schema_is_a_dead_letter(stand: SchemaServer, what: str) -> None:
    found = refused(decoder(stand), framed(stand, PAGE, BODIES[what]))
    assert (found.stage, found.error_class in {"ValueError", "DecodeError"}) == ("decode", True), (
        found
    )


def test_a_schema_that_lies_about_a_field_is_not_taken_for_an_empty_text(
    stand: SchemaServer,
) -> None:
    text = 'syntax = "proto3"; message Page { string url = 1; string body = 2; }'
    found = refused(decoder(stand), framed(stand, text, b"\0\x10\x05"))
    assert "the field 'body' came in another form than the schema says" in found.message
    assert read(decoder(stand), framed(stand, text, b"\0\x12\x01b\x48\x05")).text == "b"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("not a schema", "the-schema.proto:1:1"),
        ('syntax = "proto3"; message A {' + "string s = 1;" * 100_000 + "}", "at most"),
        ('syntax = "proto3";' + "message A {" * 5_000 + "}" * 5_000, "recursion"),
        ('syntax = "proto3"; import "../../etc/passwd";', "virtual path"),
        ('syntax = "proto3"; import "/etc/passwd";', "not found"),
        ('syntax = "proto3"; import "the-schema.proto";', "imports itself"),
        ('syntax = "proto3"; message A { string a = 1; int32 a = 2; }', "already defined"),
        ("\0", "control characters"),
        ("\ud800", "surrogates"),
    ],
    ids=["nonsense", "long", "deep", "above", "absolute", "itself", "twice", "zero", "no UTF-8"],
)
def test_bad_schemas_are_dead_letters(stand: SchemaServer, schema: str, why: str) -> None:
    found = refused(decoder(stand), framed(stand, schema, b"\0"))
    assert (found.stage, found.error_class) == ("decode", "BadSchema"), found
    assert why in found.message
    assert "/tmp" not in found.message


@pytest.mark.parametrize("name", ["", "a=b.proto", "a:b.proto", "\0", "a" * 2_000])
def test_what_a_schema_refers_to_has_the_name_of_a_file(stand: SchemaServer, name: str) -> None:
    stand.has(90, PAGE, "other", schemaType="PROTOBUF")
    references = [{"name": name, "subject": "other", "version": 1}]
    found = refused(decoder(stand), framed(stand, PAGE, b"\0", references=references))
    assert (found.error_class, "is no file's name" in found.message) == ("BadSchema", True)


def test_a_reference_named_like_a_path_is_written_nowhere(
    stand: SchemaServer, tmp_path: Path
) -> None:
    stand.has(90, 'syntax = "proto3"; message W {}', "other", schemaType="PROTOBUF")
    references = [{"name": str(tmp_path / "w.proto"), "subject": "other", "version": 1}]
    assert (
        read(decoder(stand), framed(stand, PAGE, b"\x02\x02\x12\x01b", references=references)).text
        == "b"
    )
    assert [*tmp_path.iterdir()] == []


def test_what_many_refer_to_is_read_once(stand: SchemaServer) -> None:
    """There are 2 ** 60 ways through these."""
    for number in range(60):
        below = (
            [
                {"name": f"{number}{side}", "subject": f"s{number - 1}", "version": 1}
                for side in "ab"
            ]
            if number
            else []
        )
        stand.has(
            100 + number,
            'syntax = "proto3";',
            f"s{number}",
            schemaType="PROTOBUF",
            references=below,
        )
    references = [{"name": "w.proto", "subject": "s59", "version": 1}]
    assert (
        read(decoder(stand), framed(stand, PAGE, b"\x02\x02\x12\x01b", references=references)).text
        == "b"
    )


def test_a_schema_that_holds_itself_and_a_value_nested_deep(stand: SchemaServer) -> None:
    text = 'syntax = "proto3"; message Node { Node body = 1; }'
    body = b""
    for _ in range(2_000):
        body = b"\x0a" + protobuf_varint(len(body)) + body
    assert refused(decoder(stand), framed(stand, text, b"\0" + body)).error_class == "DecodeError"


def protobuf_varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def test_a_schema_of_many_fields_makes_nothing_large_of_a_small_value(stand: SchemaServer) -> None:
    """Each of 10,000 messages of two bytes could have its 1,000 fields that are not set."""
    fields = "".join(f"string field{number} = {number};" for number in range(1, 1_001))
    text = f'syntax = "proto3"; message Item {{ {fields} }} message Page {{ repeated Item items = 1; string body = 2; }}'
    raw = framed(stand, text, b"\x02\x02" + b"\x0a\0" * 10_000 + b"\x12\x01b")
    by = decoder(stand)
    assert read(by, raw).text == "b"
    tracemalloc.start()
    assert refused(decoder(stand, "items.field1"), raw).error_class == "MissingField"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


def test_a_compiler_that_cannot_be_started_is_no_fault_of_the_record(
    stand: SchemaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = framed(stand, PAGE, b"\x02\x02\x12\x01b")
    by = decoder(stand)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", out_of_memory)
        with pytest.raises(RegistryAwayError, match="the records wait"):
            by.decode(message(raw))
    assert read(by, raw).text == "b"


def out_of_memory(*_: Any, **__: Any) -> None:
    raise OSError(12, "Cannot allocate memory")


def test_a_compiler_that_takes_too_long_is_ended_and_the_record_retracted(
    stand: SchemaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protobuf, "COMPILE_SECONDS", 0.0)
    found = refused(decoder(stand), framed(stand, PAGE, b"\0"))
    assert (found.error_class, found.is_timed) == ("BadSchema", True)


def test_without_a_frame_or_of_another_type(stand: SchemaServer) -> None:
    stand.has(3, "{}")
    assert refused(decoder(stand), b'{"body": "a"}').error_class == "NotFramed"
    assert refused(decoder(stand), b"\0\0\0\0\x03\0").error_class == "NotProtobuf"
    assert refused(decoder(stand), b"\0\0\0\0\x04\0").error_class == "UnknownSchema"
