"""Avro values behind Confluent's frame, read by the schema that a registry has under the id in the frame.

Invariants: a value is only read, never written again. A registry that does not answer is no fault of the record: `read` raises
`RegistryAwayError`, and the caller asks again later. What an id stands for never changes, so an answer is kept. Bytes are read
in memory and time bounded by their number: a schema under which few bytes could stand for any number of items is refused.
Source: Confluent Schema Registry, "Wire format" and "API reference"; Apache Avro 1.11 specification.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from stream_dedup.ground.document import DeadLetter
from stream_dedup.ground.errors import ConfigurationError, RegistryAwayError
from stream_dedup.inputs.framing import unframe
from stream_dedup.settings.settings import Settings

SCHEMA_BYTES_MAX = 1 << 20
_DEPTH_MAX = 64
_REFERENCES_MAX = 100
_SCHEMAS_MAX = 1_000
_UNKNOWN_SECONDS = 10.0
_TIMEOUT_SECONDS = 5

_Reader = Callable[[io.BytesIO], Any]


class AvroRegistry:
    """Reads framed Avro values. One thread at a time."""

    def __init__(self, settings: Settings) -> None:
        """Take the address of the registry and how to log in; nothing is asked yet.

        Raises:
            ConfigurationError: the extra is not installed, there is no address, or a file cannot be read.
        """
        if not settings.registry_url:
            raise ConfigurationError(
                "STREAM_DEDUP_VALUE_FORMAT=avro needs the schema registry's address: set STREAM_DEDUP_REGISTRY_URL."
            )
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 - an extra
            from fastavro import _read_py  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise ConfigurationError(
                "STREAM_DEDUP_VALUE_FORMAT=avro needs libraries that are not installed; run: "
                f"pip install 'stream-dedup[registry]' ({error})"
            ) from error
        form: dict[str, Any] = {"url": settings.registry_url, "timeout": _TIMEOUT_SECONDS, "max.retries": 0}
        if settings.registry_ca_file is not None:
            form["ssl.ca.location"] = str(settings.registry_ca_file)
        try:
            if settings.registry_credentials_file is not None:
                form["basic.auth.user.info"] = settings.registry_credentials_file.read_text("utf-8").strip()
            self._client = SchemaRegistryClient(form)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"The settings of the schema registry cannot be used: {error}; correct STREAM_DEDUP_REGISTRY_URL, "
                "STREAM_DEDUP_REGISTRY_CA_FILE and STREAM_DEDUP_REGISTRY_CREDENTIALS_FILE."
            ) from error
        self._url = settings.registry_url
        self._reader_schema_id = settings.reader_schema
        self._readers: dict[int, _Reader | DeadLetter] = {}
        self._unknown_until: dict[int, float] = {}

    def read(self, value: bytes) -> Any | DeadLetter:
        """Return what a framed value holds, as Python's dictionaries, lists and scalars, or why it cannot be read.

        Raises:
            RegistryAwayError: the registry gives no answer about its schema now.
        """
        body = unframe(value)
        if isinstance(body, str):
            return DeadLetter("decode", "NotFramed", body)
        number = int.from_bytes(value[1:5], "big")
        reader = self._reader(number)
        if isinstance(reader, DeadLetter):
            return reader
        try:
            return reader(io.BytesIO(body))
        except RegistryAwayError:
            raise
        except Exception as error:  # noqa: BLE001 - the library raises whatever the bytes lead it to
            return DeadLetter("decode", type(error).__name__, f"The value cannot be read by schema {number}: {error}.")

    def _reader(self, number: int) -> _Reader | DeadLetter:
        found = self._readers.get(number)
        if found is not None:
            return found
        if self._unknown_until.get(number, 0.0) <= time.monotonic():
            known: dict[str, Any] = {}
            loaded = self._load(number, known)
            if loaded is not None:
                found = self._reader_of(loaded, known)
                if len(self._readers) >= _SCHEMAS_MAX:
                    self._readers.clear()
                self._readers[number] = found
                return found
            if len(self._unknown_until) >= _SCHEMAS_MAX:
                self._unknown_until.clear()
            self._unknown_until[number] = time.monotonic() + _UNKNOWN_SECONDS
        return DeadLetter("decode", "UnknownSchema", f"The registry {self._url} has no schema with the id {number}.", True)

    def _reader_of(self, loaded: Any, known: dict[str, Any]) -> _Reader | DeadLetter:
        """Return what reads values of a schema; it takes what a reader's schema renames, adds and leaves out."""
        import fastavro  # noqa: PLC0415 - an extra
        from fastavro import _read_py  # noqa: PLC0415 - an extra

        if isinstance(loaded, DeadLetter):
            return loaded
        # The compiled reader ends the process on a value nested a million deep; the other one raises RecursionError.
        read = _read_py.schemaless_reader if _is_recursive(known) else fastavro.schemaless_reader
        target: Any = None
        if self._reader_schema_id is not None:
            names: dict[str, Any] = {}
            target = self._load(self._reader_schema_id, names)
            if target is None or isinstance(target, DeadLetter):
                why = "the registry does not have it" if target is None else target.message
                raise RegistryAwayError(f"STREAM_DEDUP_READER_SCHEMA={self._reader_schema_id} cannot be used: {why}")
        return lambda body: read(body, loaded, target)

    def _load(self, number: int, known: dict[str, Any]) -> Any | DeadLetter | None:
        """Return a parsed schema, None if the registry does not know it; `known` gets its named types."""
        import fastavro  # noqa: PLC0415 - an extra

        schema = self._ask(lambda: self._client.get_schema(number))
        if schema is None:
            return None
        if schema.schema_type not in (None, "AVRO"):
            return DeadLetter("decode", "NotAvro", f"Schema {number} is {schema.schema_type}, and the values are read as Avro.")
        try:
            self._add_references(schema, known, set())
            parsed = fastavro.parse_schema(_checked(schema.schema_str), named_schemas=known)
            _refuse_unbounded(parsed, known)
        except RegistryAwayError:
            raise
        except Exception as error:  # noqa: BLE001 - a schema is anybody's text
            return DeadLetter("decode", "BadSchema", f"Schema {number} of the registry cannot be used: {error}.")
        return parsed

    def _add_references(self, schema: Any, known: dict[str, Any], seen: set[tuple[str, int]]) -> None:
        import fastavro  # noqa: PLC0415 - an extra

        for reference in schema.references or ():
            place = (reference.subject, reference.version)
            if place in seen:
                continue
            seen.add(place)
            if len(seen) > _REFERENCES_MAX:
                raise ValueError(f"it refers to more than {_REFERENCES_MAX} others")
            referred = self._ask(partial(self._client.get_version, *place))
            if referred is None:
                raise ValueError(f"it refers to version {place[1]} of {place[0]!r}, which the registry does not have")
            self._add_references(referred.schema, known, seen)
            fastavro.parse_schema(_checked(referred.schema.schema_str), named_schemas=known)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return the registry's answer, None where it says that it has no such schema."""
        try:
            return question()
        except Exception as error:  # whatever the client raises, the record is not at fault
            if getattr(error, "http_status_code", None) == 404 and str(getattr(error, "error_code", ""))[:3] == "404":
                return None
            raise RegistryAwayError(
                f"The schema registry {self._url} gives no schema ({error or type(error).__name__}); the records wait. Start "
                "the registry, or correct the settings STREAM_DEDUP_REGISTRY_*."
            ) from error


def _checked(text: str) -> Any:
    if len(text) > SCHEMA_BYTES_MAX:
        raise ValueError(f"it has {len(text)} characters, and {SCHEMA_BYTES_MAX} are read at most")
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
