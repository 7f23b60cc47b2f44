"""Avro: values of a schema's own form, or of another's that renames, adds and leaves out. Needs `stream-dedup[registry]`.

Invariant: what is read is bounded, in memory and time, by the number of its bytes: a schema under which few bytes could stand
for any number of items is refused.
Source: Apache Avro 1.11 specification.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_DEPTH_MAX = 64


class AvroSchema(NamedTuple):
    """A parsed schema, and all named types that it uses."""

    schema: Any
    known: dict[str, Any]


class AvroSchemas:
    """Avro as a `SchemaLanguage`."""

    name = "Avro"

    def __init__(self) -> None:
        """Look whether the library is there.

        Raises:
            ImportError: it is not.
        """
        from fastavro import _read_py  # noqa: F401, PLC0415 - an extra

    def parsed(self, text: str, references: Mapping[str, str]) -> AvroSchema:
        """Return a schema; its references are known by their types' names, so their own do not matter."""
        import fastavro  # noqa: PLC0415 - an extra

        known: dict[str, Any] = {}
        for referred in references.values():
            fastavro.parse_schema(_checked(referred), named_schemas=known)
        schema = fastavro.parse_schema(_checked(text), named_schemas=known)
        _refuse_unbounded(schema, known)
        return AvroSchema(schema, known)

    def reader(self, written: AvroSchema, asked: AvroSchema | None) -> Callable[[bytes], Any]:
        """Return what reads values."""
        import fastavro  # noqa: PLC0415 - an extra
        from fastavro import _read_py  # noqa: PLC0415 - an extra

        # The compiled reader ends the process on a value nested a million deep; the other one raises RecursionError.
        read = _read_py.schemaless_reader if _is_recursive(written.known) else fastavro.schemaless_reader
        target = None if asked is None else asked.schema
        return lambda body: read(io.BytesIO(body), written.schema, target)


def _checked(text: str) -> Any:
    schema = json.loads(text)
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > 2 * _DEPTH_MAX:
            raise ValueError("it is nested too deep")
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
        ]
    return schema


def _parts(schema: Any) -> list[Any]:
    """Return the schemas that stand directly in a parsed one."""
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, dict):
        return []
    if "fields" in schema:
        return [field["type"] for field in schema["fields"]]
    return [schema[name] for name in ("items", "values") if name in schema] + (
        [schema["type"]] if isinstance(schema.get("type"), dict | list) else []
    )


def _is_recursive(known: dict[str, Any]) -> bool:
    """Whether a named type can hold itself."""

    def names_in(schema: Any, found: set[str]) -> set[str]:
        name = schema if isinstance(schema, str) else schema.get("name") if isinstance(schema, dict) else None
        if name in known:
            if name in found:
                return found
            found.add(name)
            schema = known[name]
        for part in _parts(schema):
            names_in(part, found)
        return found

    return any(
        name in names_in_part
        for name, schema in known.items()
        for names_in_part in [set().union(*(names_in(part, set()) for part in _parts(schema)))]
    )


def _refuse_unbounded(schema: Any, known: dict[str, Any]) -> None:
    """Raise `ValueError` if an array's items may take no bytes: a few bytes could then stand for any number of them."""

    def is_empty(one: Any, above: frozenset[str]) -> bool:
        if isinstance(one, str) and one in known:
            return one not in above and is_empty(known[one], above | {one})
        if isinstance(one, str):
            return one == "null"
        if not isinstance(one, dict):
            return False  # a union begins with its branch
        if one.get("type") == "fixed":
            return not one.get("size")
        if "fields" in one:
            inside = above | {one["name"]}
            return all(is_empty(part["type"], inside) for part in one["fields"])
        return one.get("type") not in ("array", "map", "enum") and is_empty(one.get("type"), above)

    waiting = [schema, *known.values()]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict) and one.get("type") == "array" and is_empty(one["items"], frozenset()):
            raise ValueError("the items of an array take no bytes")
        waiting.extend(_parts(one))
