"""Avro values with schemas of a registry: any schema is read, or its records become dead letters;
none takes long."""

from __future__ import annotations

import gc
import io
import json
import random
import struct
import sys
from functools import partial
from typing import Any

import fastavro
import pytest

from stream_dedup.domain.errors import ConfigurationError, RegistryAwayError
from stream_dedup.inputs.avro import TYPES_MAX, parse_avro_schema
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.settings.layers import load_settings
from tests.inputs.registry_server import SchemaServer, decode_dead_letter, decode_document, message


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": key, "type": kind} for key, kind in fields.items()],
    }


PAGE = record(
    "Page", url="string", body="string", at={"type": "long", "logicalType": "timestamp-millis"}
)
RECURSIVE = record("Node", next=["null", "Node"])
EMPTY_ITEMS = record("Lie", body={"type": "array", "items": "null"})


def decoder(schema_server: SchemaServer, **more: str) -> Decoder:
    given = {
        "value_format": "avro",
        "registry_url": schema_server.url,
        "text_field": "body",
        "id_field": "url",
        **more,
    }
    return Decoder(load_settings(given, environ={}))


def framed(number: int, schema: Any, fields: Any) -> bytes:
    out = io.BytesIO(struct.pack(">bI", 0, number))
    out.seek(5)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), fields)
    return out.getvalue()


FIRST = {"url": "u1", "body": "one text", "at": 1_700_000_000_123}


def test_values_are_read_by_their_schema_which_is_requested_once(
    schema_server: SchemaServer,
) -> None:
    schema_server.has(7, PAGE)
    record_decoder = decoder(schema_server, time_field="at")
    for _ in range(3):
        assert decode_document(record_decoder, framed(7, PAGE, FIRST))[:3] == (
            "one text",
            b"u1",
            1_700_000_000_123,
        )
    assert schema_server.asked == ["/schemas/ids/7"]


def test_an_unknown_id_is_a_dead_letter_and_not_asked_for_each_time(
    schema_server: SchemaServer,
) -> None:
    record_decoder = decoder(schema_server)
    for _ in range(3):
        found = decode_dead_letter(record_decoder, framed(3, PAGE, FIRST))
        assert (found.stage, found.error_class) == ("decode", "UnknownSchema")
    assert len(schema_server.asked) == 1


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_an_unavailable_registry_is_no_fault_of_the_record(
    schema_server: SchemaServer, status: int
) -> None:
    schema_server.has(7, PAGE)
    record_decoder = decoder(schema_server)
    schema_server.status = status
    with pytest.raises(RegistryAwayError, match="the records wait"):
        record_decoder.decode(message(framed(7, PAGE, FIRST)))
    schema_server.status = None
    assert decode_document(record_decoder, framed(7, PAGE, FIRST)).text == "one text"


@pytest.mark.parametrize("status", [400, 404, 422])
def test_an_id_or_a_version_that_the_registry_refuses_is_the_records_fault(
    schema_server: SchemaServer, status: int
) -> None:
    """Otherwise a value with a wrong id would stop the worker for ever."""
    schema_server.has(7, PAGE)
    schema_server.has(8, record("Doc"), references=[{"name": "W", "subject": "w", "version": 0}])
    schema_server.refused = {"/schemas/ids/4294967295": status, "/subjects/w/versions/0": status}
    record_decoder = decoder(schema_server)
    assert decode_dead_letter(record_decoder, b"\0\xff\xff\xff\xff").error_class == "UnknownSchema"
    found = decode_dead_letter(record_decoder, struct.pack(">bI", 0, 8))
    assert (
        found.error_class,
        "version 0 of 'w', which the registry does not have" in found.message,
    ) == ("BadSchema", True)
    assert decode_document(record_decoder, framed(7, PAGE, FIRST)).text == "one text"


def test_an_unreachable_registry_raises() -> None:
    settings = load_settings(
        {"value_format": "avro", "registry_url": "http://127.0.0.1:9"}, environ={}
    )
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
    ids=["recursive", "no bytes", "long", "brackets", "deep", "no schema", "a wrong length"],
)
def test_bad_schemas_and_values_are_dead_letters(
    schema_server: SchemaServer, schema: Any, body: bytes, error_class: str
) -> None:
    gc.collect()  # finalizers of other tests' objects would fail where this one recurses deeply
    schema_server.has(7, schema)
    found = decode_dead_letter(decoder(schema_server), struct.pack(">bI", 0, 7) + body)
    assert (found.stage, found.error_class) == ("decode", error_class), found


def test_the_schema_cache_is_bounded(schema_server: SchemaServer) -> None:
    """Each schema has a megabyte; one that was evicted is requested again."""
    long = {**PAGE, "doc": "x" * 1_000_000}
    record_decoder = decoder(schema_server)
    for number in [*range(1, 7), 6, 1]:
        schema_server.has(number, long)
        assert decode_document(record_decoder, framed(number, long, FIRST)).text == "one text"
    asked = [path.rsplit("/", 1)[1] for path in schema_server.asked]
    assert asked == ["1", "2", "3", "4", "5", "6", "1"]
    assert len(record_decoder._registry._readers) < 6  # type: ignore[union-attr]
    assert record_decoder._registry._cached_bytes < 6 << 20  # type: ignore[union-attr]


def test_referenced_schemas_count_towards_the_size_limit(schema_server: SchemaServer) -> None:
    word, page = record("Word", body="string"), record("Doc", page="Word")
    word["doc"] = page["doc"] = "x" * 600_000
    schema_server.has(90, word, "word")
    schema_server.has(9, page, references=[{"name": "Word", "subject": "word", "version": 1}])
    found = decode_dead_letter(decoder(schema_server), struct.pack(">bI", 0, 9) + b"\x06abc")
    assert (found.error_class, "including the schemas it references" in found.message) == (
        "BadSchema",
        True,
    )


def test_values_without_a_frame_or_of_another_type_are_refused(schema_server: SchemaServer) -> None:
    schema_server.has(7, 'syntax = "proto3";', schemaType="PROTOBUF")
    record_decoder = decoder(schema_server)
    assert decode_dead_letter(record_decoder, b'{"body": "a"}').error_class == "NotFramed"
    assert decode_dead_letter(record_decoder, framed(7, PAGE, FIRST)).error_class == "NotAvro"


def test_the_registry_address_is_required() -> None:
    with pytest.raises(ConfigurationError, match="STREAM_DEDUP_REGISTRY_URL"):
        Decoder(load_settings({"value_format": "avro"}, environ={}))


# -- untrusted schemas

TEXT = b"\x0asmall"


def add_schema_and_frame(
    schema_server: SchemaServer, schema: Any, body: bytes, **others: Any
) -> bytes:
    schema_server.has(7, schema, **others)
    return struct.pack(">bI", 0, 7) + body


def page_of(*kinds: Any, **more: Any) -> dict[str, Any]:
    """Return a record of a text, and of a field that may hold one of some types."""
    return record("Page", text="string", x=["null", *kinds], **more)


def chained(count: int, *, by_union: bool = False) -> list[Any]:
    """Return types each of which holds the one before it."""
    wrap = (lambda name: ["null", name]) if by_union else (lambda name: name)
    return [
        record("A0", n="int"),
        *(record(f"A{number}", a=wrap(f"A{number - 1}")) for number in range(1, count)),
    ]


def hub(count: int) -> list[Any]:
    """Return types that all refer to one, which refers to as many others."""
    inner = {f"b{number}": f"B{number}" for number in range(count)}
    return [
        *(record(f"B{number}", n="int") for number in range(count)),
        record("H", **inner),
        *(record(f"X{number}", h="H") for number in range(count)),
    ]


def nulls(name: str, count: int, **inner: Any) -> dict[str, Any]:
    return record(name, **inner, **{f"f{number}": "null" for number in range(count)})


def doubled(count: int, **inner: Any) -> list[Any]:
    """Return types each of which holds the one before it twice."""
    return [
        record("A0", **inner),
        *(record(f"A{n}", a=f"A{n - 1}", b=f"A{n - 1}") for n in range(1, count)),
    ]


@pytest.mark.parametrize(
    "kinds",
    [
        chained(TYPES_MAX - 1, by_union=True),
        hub(300),
        doubled(300, n="int"),
        [record("Many", **{f"f{n}": "int" for n in range(20_000)})],
    ],
    ids=["a chain", "a hub", "two of two of two", "many fields"],
)
def test_a_schema_of_many_types_is_read(schema_server: SchemaServer, kinds: list[Any]) -> None:
    assert (
        decode_document(
            decoder(schema_server, text_field="text"),
            add_schema_and_frame(schema_server, page_of(*kinds), TEXT + b"\0"),
        ).text
        == "small"
    )


def list_of(items: Any) -> Any:
    return page_of({"type": "array", "items": items})


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (page_of(*chained(TYPES_MAX)), f"{TYPES_MAX + 1} named types"),
        (page_of(*doubled(25)), "records and nulls in 0 bytes"),
        (page_of(nulls("Nulls", 40, n="int")), "41 records and nulls in 1 bytes"),
        (list_of(nulls("Nulls", 40, n="int")), "41 records"),
        (
            page_of(*doubled(25, n="int"), {"type": "map", "values": nulls("M", 18)}),
            "19 records and nulls in 0 bytes",
        ),
        (list_of(record("Empty", n="null")), "the items of an array have no bytes"),
        (list_of({"type": "fixed", "name": "F", "size": 0}), "the items of an array have no bytes"),
        (list_of({"type": "fixed", "name": "F", "size": -1}), "'F' has a negative size"),
        (page_of(record("Endless", a="int", b="Endless")), "'Endless' always contains itself"),
        (page_of(record("One", b=record("Other", a="One"))), "always contains itself"),
        (
            {**page_of("Page"), "__fastavro_parsed": True, "__named_schemas": {}, "fields": 7},
            "cannot be used",
        ),
        ([], "cannot be used"),
        (7, "cannot be used"),
    ],
    ids=lambda found: found[:30] if isinstance(found, str) else "",
)
def test_a_schema_without_bounds_is_refused(
    schema_server: SchemaServer, schema: Any, why: str
) -> None:
    found = decode_dead_letter(
        decoder(schema_server, text_field="text"),
        add_schema_and_frame(schema_server, schema, TEXT + b"\0"),
    )
    assert found.stage == "decode"
    assert why in found.message or (not schema and found.stage == "decode")


def test_a_deeply_nested_value_alone_is_a_dead_letter(schema_server: SchemaServer) -> None:
    record_decoder = decoder(schema_server, text_field="text")
    value = add_schema_and_frame(
        schema_server, page_of(*chained(TYPES_MAX - 1, by_union=True)), TEXT
    )
    deep = (
        value
        + struct.pack("<H", 0x80 | (2 * (TYPES_MAX - 1)) & 0x7F | (2 * (TYPES_MAX - 1)) >> 7 << 8)
        + b"\x02" * TYPES_MAX
    )
    assert decode_dead_letter(record_decoder, deep).error_class == "RecursionError"
    assert decode_document(record_decoder, value + b"\0").text == "small"


def test_the_work_for_a_schema_grows_no_faster_than_its_text() -> None:
    """Twice the types take at most 2.5 times the Python calls."""

    def calls(kinds: list[Any]) -> int:
        count = 0

        def note(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        text = json.dumps(page_of(*kinds))
        sys.setprofile(note)
        try:
            parse_avro_schema(text, {})
        finally:
            sys.setprofile(None)
        return count

    for kinds in (hub, partial(doubled, n="int"), partial(chained, by_union=True)):
        assert calls(kinds(400)) < 2.5 * calls(kinds(200))


def test_a_decimal_is_kept_as_bytes(schema_server: SchemaServer) -> None:
    """Converting a decimal of a megabyte takes minutes, and the filter does not read it."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    record_decoder = decoder(schema_server, text_field="text")
    value = add_schema_and_frame(
        schema_server, record("Page", text="string", price=price), TEXT + b"\x04\x01\x02"
    )
    assert record_decoder._registry is not None
    assert record_decoder._registry.read_value(value) == {"text": "small", "price": b"\x01\x02"}


def test_a_union_of_types_that_are_referred_to_is_read(schema_server: SchemaServer) -> None:
    schema_server.has(90, record("Page", text="string"), "page")
    schema_server.has(91, record("Note", text="string", n="int"), "note")
    references = [
        {"name": name, "subject": name.lower(), "version": 1} for name in ("Page", "Note")
    ]
    record_decoder = decoder(schema_server, text_field="text")
    value = add_schema_and_frame(
        schema_server, ["Page", "Note"], b"\0" + TEXT, references=references
    )
    assert decode_document(record_decoder, value).text == "small"
    assert decode_document(record_decoder, value[:5] + b"\x02" + TEXT + b"\x04").text == "small"


def random_type(rng: random.Random, names: list[str], depth: int = 0) -> Any:
    """Return a random type, valid or not; `names` contains the names of earlier types."""

    def name() -> str:
        names.append(f"N{len(names)}")
        return names[-1]

    primitives = ["null", "int", "long", "string", "bytes", "float", "double", "boolean"]
    match rng.randrange(12) if depth < 5 else 0:
        case 0 | 1:
            return rng.choice(primitives)
        case 2:
            return rng.choice(names or primitives)
        case 3:
            return {"type": "array", "items": random_type(rng, names, depth + 1)}
        case 4:
            return {"type": "map", "values": random_type(rng, names, depth + 1)}
        case 5:
            return [random_type(rng, names, depth + 1) for _ in range(rng.randrange(4))]
        case 6:
            return {
                "type": "fixed",
                "name": name(),
                "size": rng.choice([0, 1, 3, -1, 10**6, 10**30, 1.5, "x"]),
            }
        case 7:
            return {
                "type": "enum",
                "name": name(),
                "symbols": rng.choice([[], ["A"], ["A", "B"], ["A", "A"], 7]),
            }
        case 8:
            logical = rng.choice(
                ["decimal", "uuid", "date", "time-millis", "timestamp-micros", "nope", 7]
            )
            return {
                "type": rng.choice(primitives),
                "logicalType": logical,
                "precision": 4,
                "scale": 2,
            }
        case _:
            type_name = name()
            fields = {
                f"f{number}": random_type(rng, names, depth + 1)
                for number in range(rng.randrange(5))
            }
            return record(type_name, **fields) | {"type": rng.choice(["record", "error"])}


def test_any_schema_is_read_or_refused_and_so_is_any_value(
    schema_server: SchemaServer, caplog: pytest.LogCaptureFixture
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    record_decoder = decoder(schema_server, text_field="text")
    kinds = set()
    for number in range(300):
        schema_server.has(
            number, page_of(random_type(rng, [])) if rng.random() < 0.8 else random_type(rng, [])
        )
        for body in (
            rng.randbytes(rng.choice((1, 5, 40, 400))),
            TEXT + b"\2" * 300,
            TEXT + b"\xfe" + b"\xff" * 7 + b"\x7f",
        ):
            kinds.add(
                getattr(
                    record_decoder.decode(message(struct.pack(">bI", 0, number) + body)),
                    "error_class",
                    "read",
                )
            )
    assert {"read", "BadSchema"} < kinds
    assert caplog.records == [], "the decoder knows no such error, and should"
