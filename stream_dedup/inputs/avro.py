"""Avro: values of a schema's own form, or of another's that renames, adds and leaves out. Needs
`crawl-dedup[registry]`.

Invariants: what is read is bounded, in memory and time, by the number of its bytes: a schema under
which few bytes could stand for any number of items is refused. What is done with a schema takes
time linear in its text. Source: Apache Avro 1.11 specification.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NamedTuple

_DEPTH_MAX: Final = 64
TYPES_MAX: Final = 1_000
# Records and nulls take no bytes of their own: a fixed number of them for each byte of their
# container, and once more.
_FREE_MAX: Final = 16
_LEAST_BYTES: Final = {"null": 0, "float": 4, "double": 8}  # any other primitive takes 1
_VALUE: Final = "value"


class AvroSchema(NamedTuple):
    """A parsed schema as the only field of a record, and whether its values may be nested deep."""

    wrapped: dict[str, Any]
    is_deep: bool


class AvroSchemas:
    """Makes readers of Avro schemas."""

    def __init__(self) -> None:
        """Look whether the library is there.

        Raises:
            ImportError: it is not.
        """
        from fastavro import _read_py  # noqa: F401, PLC0415 - an extra

    def parsed(self, text: str, references: Mapping[str, str]) -> AvroSchema:
        """Return a schema; its references are known by their types' names, so their own do not
        matter.
        """
        import fastavro  # noqa: PLC0415 - an extra

        known: dict[str, Any] = {}
        for referred in references.values():
            fastavro.parse_schema(_checked(referred), named_schemas=known)
        schema = fastavro.parse_schema(_checked(text), named_schemas=known)
        if len(known) > TYPES_MAX:
            raise ValueError(f"it has {len(known)} named types, and {TYPES_MAX} are read at most")
        _refuse_unbounded(schema, known)
        # The library parses all but records anew for each value, without their references.
        hints = {"__fastavro_parsed": True, "__named_schemas": known}
        wrapped = {
            "type": "record",
            "name": "of.a.value",
            "fields": [{"name": _VALUE, "type": schema}],
            **hints,
        }
        return AvroSchema(wrapped, _is_deep(schema, known))

    def reader(self, written: AvroSchema) -> Callable[[bytes], Any]:
        """Return what reads values."""
        import fastavro  # noqa: PLC0415 - an extra
        from fastavro import _read_py  # noqa: PLC0415 - an extra

        # The compiled reader ends the process on a value nested a million deep; the other one
        # raises RecursionError.
        read: Any = _read_py.schemaless_reader if written.is_deep else fastavro.schemaless_reader
        return lambda body: read(io.BytesIO(body), written.wrapped, None)[_VALUE]


def _checked(text: str) -> Any:
    """Return what a schema's text holds, without what has the library take unbounded time, or leave
    it as it is.
    """
    schema = json.loads(text)
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > 2 * _DEPTH_MAX:
            raise ValueError("it is nested too deep")
        for one in level:
            if isinstance(one, dict):
                # A decimal of a megabyte takes minutes, and serves neither as text nor as id or
                # time: its bytes are read.
                if one.get("logicalType") == "decimal":
                    del one["logicalType"]
                one.pop("__fastavro_parsed", None)
        level = [
            inner
            for one in level
            for inner in (
                one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
            )
        ]
    return schema


def _name(one: Any) -> Any:
    return one.get("name") if isinstance(one, dict) else one if isinstance(one, str) else None


def _parts(schema: Any) -> list[Any]:
    """Return the schemas that stand directly in a parsed one."""
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, dict):
        return []
    if "fields" in schema:
        return [field["type"] for field in schema["fields"]]
    return [schema[name] for name in ("items", "values") if name in schema]


def _within(schema: Any, known: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what stands in a parsed schema at any depth; of named types only that they stand
    there.
    """
    waiting = list(_parts(schema))
    while waiting:
        one = waiting.pop()
        yield one
        if _name(one) not in known:
            waiting.extend(_parts(one))


def _is_deep(schema: Any, known: Mapping[str, Any]) -> bool:
    """Whether values may be nested deeper than the compiled reader is trusted with: at any depth,
    or at that of the types.
    """
    depths: dict[Any, int] = {}

    def depth(one: Any) -> int:
        name = _name(one)
        return depths[name] if name in depths else 1 + max(map(depth, _parts(one)), default=0)

    graph = {
        name: {_name(one) for one in _within(one, known)} & known.keys()
        for name, one in known.items()
    }
    try:
        for name in TopologicalSorter(graph).static_order():
            depths[name] = 1 + max(map(depth, _parts(known[name])), default=0)
    except CycleError:
        return True
    return depth(schema) > _DEPTH_MAX


class _Size(NamedTuple):
    """Of a type: the fewest bytes of a value, and how many records and nulls stand in it that take
    none themselves.
    """

    bytes: int
    free: int


def _refuse_unbounded(schema: Any, known: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a few bytes could stand for any number of items."""
    sizes: dict[Any, _Size] = {}

    def size(one: Any) -> _Size:
        name = _name(one)
        if name in sizes:
            return sizes[name]
        kind = one["type"] if isinstance(one, dict) else one
        least = 1 if isinstance(kind, list) else _LEAST_BYTES.get(kind, 1)
        return _Size(least, int(not least))

    # A field stands in its record even where it has no bytes; of a union, an array or a map a byte
    # says whether it is there.
    graph = {
        name: {_name(part) for part in _parts(one)} & known.keys() for name, one in known.items()
    }
    try:
        order = [*TopologicalSorter(graph).static_order()]
    except CycleError as error:
        raise ValueError(f"the type {error.args[1][0]!r} holds itself without end") from error
    for name in order:
        one = known[name]
        if one["type"] == "fixed" and one["size"] < 0:
            raise ValueError(f"the type {name!r} has fewer than no bytes")
        fixed = one["size"] if one["type"] == "fixed" else int(one["type"] == "enum")
        parts = [size(part) for part in _parts(one)]
        free = sum(part.free for part in parts)
        sizes[name] = _Size(fixed + sum(part.bytes for part in parts), free + int(not fixed))
    for root in ([schema], *known.values()):
        for one in _within(root, known):
            if (
                isinstance(one, dict)
                and one.get("type") == "array"
                and not size(one["items"]).bytes
            ):
                raise ValueError("the items of an array take no bytes")
            fewest, free = size(one)
            if free > _FREE_MAX * (fewest + 1):
                raise ValueError(
                    f"a value of it may hold {free} records and nulls in {fewest} bytes"
                )
