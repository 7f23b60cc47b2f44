"""Read values with Confluent's frame, by the schema whose id is in the frame.

The registry is asked once for each schema and for those that it refers to; `avro` reads the values.

Invariants: values are only read, never written. If the registry does not answer, that is no fault of
the record: `read_value` raises `RegistryAwayError`, and the caller asks again later. The schema of an
id never changes, so answers are cached, with limits of their number and bytes. Source: Confluent
Schema Registry, "Wire format" and "API reference".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn, TypeAlias

from stream_dedup.domain.document import DeadLetter
from stream_dedup.domain.errors import ConfigurationError, RegistryAwayError
from stream_dedup.domain.extras import install_command
from stream_dedup.domain.printable import printable
from stream_dedup.inputs.avro import parse_avro_schema, reader_of, require_library
from stream_dedup.settings.properties import without_login
from stream_dedup.settings.settings import Settings

SCHEMA_BYTES_MAX = 1 << 20
# Of all cached schema texts; parsed schemas need up to 25 times as much.
_CACHED_BYTES_MAX = 4 << 20
_REFERENCES_MAX = 100
_SCHEMAS_MAX = 1_000
_UNKNOWN_SECONDS = 10.0
_TIMEOUT_SECONDS = 5
_FRAME, _FRAME_BYTES = 0, 5
_NO_SCHEMA = (400, 404, 422)  # some registries refuse an invalid id or version

# Parses the bytes after the frame into dictionaries, lists and scalars; may raise any exception.
Reader: TypeAlias = Callable[[bytes], Any]


def unframe(value: bytes) -> bytes | str:
    """Return the bytes after Confluent's frame (a zero byte, and the schema's id in 4 bytes,
    big-endian), or an error message.

    JSON is read without its schema: the registry is not asked whether a value follows it.
    """
    if len(value) < _FRAME_BYTES:
        return (
            f"The value has {len(value)} bytes, but Confluent's wire format has at least "
            f"{_FRAME_BYTES}."
        )
    if value[0] != _FRAME:
        return (
            f"The value begins with the byte {value[0]}, but Confluent's wire format begins with "
            "0; for plain JSON set STREAM_DEDUP_VALUE_FORMAT=json."
        )
    return value[_FRAME_BYTES:]


class SchemaRegistry:
    """Reader of framed values, for one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        """Create the client of the registry, without connecting.

        Raises:
            ConfigurationError: the extra is not installed, there is no address, or a file cannot be
            read.
        """
        if not settings.registry_url:
            raise ConfigurationError(
                "STREAM_DEDUP_VALUE_FORMAT=avro needs the schema registry's address: set "
                "STREAM_DEDUP_REGISTRY_URL."
            )
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 - an extra

            require_library()
        except ImportError as error:
            raise ConfigurationError(
                "STREAM_DEDUP_VALUE_FORMAT=avro needs libraries that are not installed; run: "
                f"{install_command('registry')} ({error})"
            ) from error
        options: dict[str, Any] = {
            "url": settings.registry_url,
            "timeout": _TIMEOUT_SECONDS,
            "max.retries": 0,
        }
        try:
            self._client = SchemaRegistryClient(options)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"The settings of the schema registry cannot be used: {error}; correct "
                "STREAM_DEDUP_REGISTRY_URL and SSL_CERT_FILE."
            ) from error
        self._url = without_login(settings.registry_url)
        self._readers: dict[int, Reader | DeadLetter] = {}
        self._cached_bytes = 0
        self._unknown_until: dict[int, float] = {}

    def read_value(self, value: bytes) -> Any | DeadLetter:
        """Return a framed value as dictionaries, lists and scalars, or the dead letter of one that
        cannot be read.

        Raises:
            RegistryAwayError: the registry does not answer now.
        """
        body = unframe(value)
        if isinstance(body, str):
            return DeadLetter("decode", "NotFramed", body)
        schema_id = int.from_bytes(value[1:5], "big")
        reader = self._reader(schema_id)
        if isinstance(reader, DeadLetter):
            return reader
        try:
            return reader(body)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the library may raise anything for hostile bytes
            why = printable(str(error).rstrip(".") or type(error).__name__)
            return DeadLetter(
                "decode",
                type(error).__name__,
                f"The value cannot be read by schema {schema_id}: {why}.",
            )

    def _reader(self, schema_id: int) -> Reader | DeadLetter:
        found = self._readers.get(schema_id)
        if found is not None:
            return found
        if self._unknown_until.get(schema_id, 0.0) <= time.monotonic():
            schema = self._load(schema_id)
            if schema is not None:
                if not isinstance(schema, DeadLetter):
                    schema = self._try_schema(schema_id, partial(reader_of, schema))
                self._readers[schema_id] = schema
                return schema
            if len(self._unknown_until) >= _SCHEMAS_MAX:
                self._unknown_until.clear()
            self._unknown_until[schema_id] = time.monotonic() + _UNKNOWN_SECONDS
        return DeadLetter(
            "decode",
            "UnknownSchema",
            f"The registry {self._url} has no schema with the id {schema_id}.",
            can_vary=True,
        )

    def _load(self, schema_id: int) -> Any | DeadLetter | None:
        """Return a parsed schema or the dead letter of its records; None if the registry does not have
        it.
        """
        if len(self._readers) >= _SCHEMAS_MAX or self._cached_bytes >= _CACHED_BYTES_MAX:
            self._readers.clear()
            self._client.clear_caches()  # type: ignore[no-untyped-call]
            self._cached_bytes = 0
        schema = self._ask(lambda: self._client.get_schema(schema_id))
        if schema is None:
            return None
        kind = schema.schema_type or "AVRO"
        if kind != "AVRO":
            return DeadLetter(
                "decode",
                "NotAvro",
                f"Schema {schema_id} is {kind}, but only Avro is supported.",
            )
        return self._try_schema(schema_id, partial(self._parsed, schema))

    def _parsed(self, schema: Any) -> Any:
        references: dict[str, str] = {}
        self._add_references(schema, references, set())
        return parse_avro_schema(self._count_text(schema, references), references)

    @staticmethod
    def _try_schema(schema_id: int, make: Callable[[], Any]) -> Any | DeadLetter:
        """Return the result of `make`, or the dead letter for a schema that cannot be used."""
        try:
            return make()
        except (RegistryAwayError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a schema is untrusted text
            why = printable(str(error).rstrip(".") or type(error).__name__)
            return DeadLetter(
                "decode",
                "BadSchema",
                f"Schema {schema_id} of the registry cannot be used: {why}.",
            )

    def _add_references(
        self, schema: Any, found: dict[str, str], seen: set[tuple[str, int]]
    ) -> None:
        """Add the texts of the schemas that a schema refers to, by name, each after its own
        references.
        """
        for reference in schema.references or ():
            subject_version = (reference.subject, reference.version)
            if subject_version in seen:
                continue
            seen.add(subject_version)
            if len(seen) > _REFERENCES_MAX:
                raise ValueError(f"it references more than {_REFERENCES_MAX} other schemas")
            reference_schema = self._ask(partial(self._client.get_version, *subject_version))
            if reference_schema is None:
                raise ValueError(
                    f"it references version {reference.version} of {reference.subject!r}, which "
                    "the registry does not have"
                )
            self._add_references(reference_schema.schema, found, seen)
            found[reference.name] = self._count_text(reference_schema.schema, found)

    def _count_text(self, schema: Any, others: Mapping[str, str]) -> str:
        """Return a schema's text, and count it as cached.

        Raises:
            ValueError: with `others`, its references, it is too long.
        """
        text: str = schema.schema_str
        self._cached_bytes += len(text)
        if (length := len(text) + sum(map(len, others.values()))) > SCHEMA_BYTES_MAX:
            raise ValueError(
                f"it has {length} characters, including the schemas it references; the limit is "
                f"{SCHEMA_BYTES_MAX}"
            )
        return text

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return the registry's answer; None if it answers that the schema does not exist.

        Only an answer with the registry's own error code counts: a 404 without it comes from a proxy,
        or from a wrong address.
        """
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - no error of the client is the record's fault
            status = getattr(error, "http_status_code", None)
            if status in _NO_SCHEMA and str(getattr(error, "error_code", "")).startswith(
                str(status)
            ):
                return None
            self._raise_away(error)

    def _raise_away(self, error: Exception) -> NoReturn:
        raise RegistryAwayError(
            f"The schema registry {self._url} returns no schema "
            f"({error or type(error).__name__}), so the records wait. Start the registry, or "
            "correct STREAM_DEDUP_REGISTRY_URL."
        ) from error
