"""Schemas of Avro that are anybody's text: each is read, or is the dead letter of its records; none takes long."""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from stream_dedup.inputs.avro import TYPES_MAX, AvroSchemas
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.settings.layers import load_settings
from tests.inputs.registry_server import SchemaServer, message, read, refused, serving

TEXT = b"\x0asmall"


@pytest.fixture
def stand() -> Iterator[SchemaServer]:
    with serving() as stand:
        yield stand


def decoder(stand: SchemaServer) -> Decoder:
    return Decoder(load_settings({"value_format": "avro", "registry_url": stand.url, "text_field": "text"}, environ={}))


def framed(stand: SchemaServer, schema: Any, body: bytes, **others: Any) -> bytes:
    stand.has(7, schema, **others)
    return struct.pack(">bI", 0, 7) + body


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def page(*kinds: Any, **more: Any) -> dict[str, Any]:
    """Return a record of a text, and of a field that may hold one of some types."""
    return record("Page", text="string", x=["null", *kinds], **more)


def chained(count: int, *, by_union: bool = False) -> list[Any]:
    """Return types each of which holds the one before it."""
    wrap = (lambda name: ["null", name]) if by_union else (lambda name: name)
    return [record("A0", n="int"), *(record(f"A{number}", a=wrap(f"A{number - 1}")) for number in range(1, count))]


def hub(count: int) -> list[Any]:
    """Return types that all refer to one, which refers to as many others."""
    inner = {f"b{number}": f"B{number}" for number in range(count)}
    return [
        *(record(f"B{number}", n="int") for number in range(count)),
        record("H", **inner),
        *(record(f"X{number}", h="H") for number in range(count)),
    ]


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
def test_a_schema_of_many_types_is_read(stand: SchemaServer, kinds: list[Any]) -> None:
    assert read(decoder(stand), framed(stand, page(*kinds), TEXT + b"\0")).text == "small"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (page(*chained(TYPES_MAX)), f"{TYPES_MAX + 1} named types"),
        (page(*doubled(25)), "records and nulls in 0 bytes"),
        (page(record("Nulls", n="int", **{f"f{n}": "null" for n in range(40)})), "41 records and nulls in 1 bytes"),
        (page({"type": "array", "items": record("Nulls", n="int", **{f"f{n}": "null" for n in range(40)})}), "41 records"),
        (
            page(
                *doubled(25, n="int"), {"type": "map", "values": record("M", n="null", **{f"a{n}": "null" for n in range(17)})}
            ),
            "19 records and nulls in 0 bytes",
        ),
        (page({"type": "array", "items": record("Empty", n="null")}), "the items of an array take no bytes"),
        (page({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), "the items of an array take no bytes"),
        (page({"type": "array", "items": {"type": "fixed", "name": "F", "size": -1}}), "'F' has fewer than no bytes"),
        (page(record("Endless", a="int", b="Endless")), "'Endless' holds itself without end"),
        (page(record("One", b=record("Other", a="One"))), "holds itself without end"),
        ({**page("Page"), "__fastavro_parsed": True, "__named_schemas": {}, "fields": 7}, "cannot be used"),
        ([], "cannot be used"),
        (7, "cannot be used"),
    ],
    ids=lambda found: found[:30] if isinstance(found, str) else "",
)
def test_a_schema_without_bounds_is_refused(stand: SchemaServer, schema: Any, why: str) -> None:
    found = refused(decoder(stand), framed(stand, schema, TEXT + b"\0"))
    assert found.stage == "decode"
    assert why in found.message or (not schema and found.stage == "decode")


def test_a_value_that_is_nested_deep_costs_nobody_but_itself(stand: SchemaServer) -> None:
    by = decoder(stand)
    value = framed(stand, page(*chained(TYPES_MAX - 1, by_union=True)), TEXT)
    deep = (
        value + struct.pack("<H", 0x80 | (2 * (TYPES_MAX - 1)) & 0x7F | (2 * (TYPES_MAX - 1)) >> 7 << 8) + b"\x02" * TYPES_MAX
    )
    assert refused(by, deep).error_class == "RecursionError"
    assert read(by, value + b"\0").text == "small"


def test_what_is_done_with_a_schema_grows_with_its_text_and_not_faster() -> None:
    """Python's calls are counted: twice the types, twice the work, and some."""

    def calls(kinds: list[Any]) -> int:
        count = 0

        def note(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        text = json.dumps(page(*kinds))
        sys.setprofile(note)
        try:
            AvroSchemas().parsed(text, {})
        finally:
            sys.setprofile(None)
        return count

    for kinds in (hub, doubled_with_a_number, lambda count: chained(count, by_union=True)):
        assert calls(kinds(400)) < 2.5 * calls(kinds(200))


def doubled_with_a_number(count: int) -> list[Any]:
    return doubled(count, n="int")


def test_a_decimal_is_not_worked_out(stand: SchemaServer) -> None:
    """To write one of a megabyte in digits takes minutes, and nothing of the filter reads it."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    by = decoder(stand)
    value = framed(stand, record("Page", text="string", price=price), TEXT + b"\x04\x01\x02")
    assert by._registry is not None
    assert by._registry.read_value(value) == {"text": "small", "price": b"\x01\x02"}


def test_a_union_of_types_that_are_referred_to_is_read(stand: SchemaServer) -> None:
    """As in topics that hold records of several kinds."""
    stand.has(90, record("Page", text="string"), "page")
    stand.has(91, record("Note", text="string", n="int"), "note")
    references = [{"name": name, "subject": name.lower(), "version": 1} for name in ("Page", "Note")]
    by = decoder(stand)
    value = framed(stand, ["Page", "Note"], b"\0" + TEXT, references=references)
    assert read(by, value).text == "small"
    assert read(by, value[:5] + b"\x02" + TEXT + b"\x04").text == "small"


def any_kind(rng: random.Random, names: list[str], depth: int = 0) -> Any:
    """Return a type, or what looks like one; `names` are those of the types before it."""

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
            return {"type": "array", "items": any_kind(rng, names, depth + 1)}
        case 4:
            return {"type": "map", "values": any_kind(rng, names, depth + 1)}
        case 5:
            return [any_kind(rng, names, depth + 1) for _ in range(rng.randrange(4))]
        case 6:
            return {"type": "fixed", "name": name(), "size": rng.choice([0, 1, 3, -1, 10**6, 10**30, 1.5, "x"])}
        case 7:
            return {"type": "enum", "name": name(), "symbols": rng.choice([[], ["A"], ["A", "B"], ["A", "A"], 7])}
        case 8:
            logical = rng.choice(["decimal", "uuid", "date", "time-millis", "timestamp-micros", "nope", 7])
            return {"type": rng.choice(primitives), "logicalType": logical, "precision": 4, "scale": 2}
        case _:
            own = name()
            fields = {f"f{number}": any_kind(rng, names, depth + 1) for number in range(rng.randrange(5))}
            return record(own, **fields) | {"type": rng.choice(["record", "error"])}


def test_any_schema_is_read_or_refused_and_so_is_any_value(stand: SchemaServer, caplog: pytest.LogCaptureFixture) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    by = decoder(stand)
    kinds = set()
    for number in range(300):
        stand.has(number, page(any_kind(rng, [])) if rng.random() < 0.8 else any_kind(rng, []))
        for body in (rng.randbytes(rng.choice((1, 5, 40, 400))), TEXT + b"\2" * 300, TEXT + b"\xfe" + b"\xff" * 7 + b"\x7f"):
            kinds.add(getattr(by.decode(message(struct.pack(">bI", 0, number) + body)), "error_class", "read"))
    assert {"read", "BadSchema"} < kinds
    assert caplog.records == [], "the decoder knows no such error, and should"
