"""Read Avro values by their writer's schema. Needs `crawl-dedup[registry]`.

Invariants: memory and time of reading a value are bounded by its number of bytes: a schema that
could encode any number of items in a few bytes is refused. The time to check a schema is linear in
its text. Source: Apache Avro 1.11 specification.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NamedTuple

_DEPTH_MAX: Final = 64
TYPES_MAX: Final = 1_000
# Records and nulls are encoded in no bytes. A value of n bytes may contain at most
# (n + 1) * _FREE_MAX of them.
_FREE_MAX: Final = 16
_LEAST_BYTES: Final = {"null": 0, "float": 4, "double": 8}  # any other primitive takes 1
_VALUE: Final = "value"


class AvroSchema(NamedTuple):
    """A parsed schema, wrapped as the only field of a record; `is_deep`: its values can be nested too
    deep for the compiled reader.
    """

    wrapped: dict[str, Any]
    is_deep: bool


def require_library() -> None:
    """Raise `ImportError` if the library is not installed."""
    import fastavro  # noqa: F401, PLC0415 - an extra


def parse_avro_schema(text: str, references: Mapping[str, str]) -> AvroSchema:
    """Return a parsed schema. `references`: the texts of the schemas whose types it uses, each
    after its own references.

    Raises:
        ValueError: the schema is too large or too deep, or could encode any number of items in a
        few bytes; fastavro raises other errors.
    """
    import fastavro  # noqa: PLC0415 - an extra

    known: dict[str, Any] = {}
    for reference in references.values():
        fastavro.parse_schema(_check_schema(reference), named_schemas=known)
    schema = fastavro.parse_schema(_check_schema(text), named_schemas=known)
    if len(known) > TYPES_MAX:
        raise ValueError(f"it has {len(known)} named types; the limit is {TYPES_MAX}")
    _refuse_unbounded(schema, known)
    # A record, because the library parses any other schema again for each value, without its
    # references.
    hints = {"__fastavro_parsed": True, "__named_schemas": known}
    wrapped = {
        "type": "record",
        "name": "of.a.value",
        "fields": [{"name": _VALUE, "type": schema}],
        **hints,
    }
    return AvroSchema(wrapped, _is_deep(schema, known))


def reader_of(schema: AvroSchema) -> Callable[[bytes], Any]:
    """Return a function that reads a value of the schema."""
    import fastavro  # noqa: PLC0415 - an extra
    from fastavro import _read_py  # noqa: PLC0415 - an extra

    # The compiled reader crashes the process on a value nested a million deep; the other reader
    # raises RecursionError.
    read: Any = _read_py.schemaless_reader if schema.is_deep else fastavro.schemaless_reader
    return lambda body: read(io.BytesIO(body), schema.wrapped, None)[_VALUE]


def _check_schema(text: str) -> Any:
    """Return a schema's JSON without the parts that make the library slow, or make it skip parsing.

    Raises:
        ValueError: it is nested too deep.
    """
    schema = json.loads(text)
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > 2 * _DEPTH_MAX:
            raise ValueError("it is nested too deeply")
        for part in level:
            if isinstance(part, dict):
                # A decimal of a megabyte takes minutes to read, and is no text, id or time: it is
                # read as bytes.
                if part.get("logicalType") == "decimal":
                    del part["logicalType"]
                part.pop("__fastavro_parsed", None)
        level = [
            inner
            for part in level
            for inner in (
                part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
            )
        ]
    return schema


def _name(schema: Any) -> Any:
    name = schema.get("name") if isinstance(schema, dict) else schema
    return name if isinstance(name, str) else None


def _parts(schema: Any) -> list[Any]:
    """Return the direct parts of a parsed schema."""
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, dict):
        return []
    if "fields" in schema:
        return [field["type"] for field in schema["fields"]]
    return [schema[name] for name in ("items", "values") if name in schema]


def _iterate_parts(schema: Any, known: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the parts of a parsed schema at any depth, without the parts of named types."""
    waiting = list(_parts(schema))
    while waiting:
        part = waiting.pop()
        yield part
        if _name(part) not in known:
            waiting.extend(_parts(part))


def _is_deep(schema: Any, known: Mapping[str, Any]) -> bool:
    """Return whether values can be nested too deep for the compiled reader: by a type that contains
    itself, or by the depth of the types.
    """
    depths: dict[Any, int] = {}

    def depth(part: Any) -> int:
        name = _name(part)
        return depths[name] if name in depths else 1 + max(map(depth, _parts(part)), default=0)

    graph = {
        name: {_name(part) for part in _iterate_parts(named, known)} & known.keys()
        for name, named in known.items()
    }
    try:
        for name in TopologicalSorter(graph).static_order():
            depths[name] = 1 + max(map(depth, _parts(known[name])), default=0)
    except CycleError:
        return True
    return depth(schema) > _DEPTH_MAX


class _Size(NamedTuple):
    """The least number of bytes of a value of a type, and the number of records and nulls in it that
    are encoded in no bytes.
    """

    bytes: int
    free: int


def _refuse_unbounded(schema: Any, known: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a few bytes could encode any number of items."""
    sizes: dict[Any, _Size] = {}

    def size(part: Any) -> _Size:
        name = _name(part)
        if name in sizes:
            return sizes[name]
        kind = part["type"] if isinstance(part, dict) else part
        least = 1 if isinstance(kind, list) else _LEAST_BYTES.get(kind, 1)
        return _Size(least, int(not least))

    # A record always contains all its fields. The parts of a union, an array or a map are not followed:
    # each takes a byte if it is present.
    graph = {
        name: {_name(part) for part in _parts(named)} & known.keys()
        for name, named in known.items()
    }
    try:
        order = [*TopologicalSorter(graph).static_order()]
    except CycleError as error:
        raise ValueError(f"the type {error.args[1][0]!r} always contains itself") from error
    for name in order:
        named = known[name]
        if named["type"] == "fixed" and named["size"] < 0:
            raise ValueError(f"the type {name!r} has a negative size")
        fixed = named["size"] if named["type"] == "fixed" else int(named["type"] == "enum")
        parts = [size(part) for part in _parts(named)]
        free = sum(part.free for part in parts)
        sizes[name] = _Size(fixed + sum(part.bytes for part in parts), free + int(not fixed))
    for root in ([schema], *known.values()):
        for part in _iterate_parts(root, known):
            if (
                isinstance(part, dict)
                and part.get("type") == "array"
                and not size(part["items"]).bytes
            ):
                raise ValueError("the items of an array have no bytes")
            fewest, free = size(part)
            if free > _FREE_MAX * (fewest + 1):
                raise ValueError(
                    f"a value of it can contain {free} records and nulls in {fewest} bytes"
                )
