"""Protobuf: values as messages of classes that are made of the registry's own schemas. Needs
`crawl-dedup[registry]`.

A registry gives the text of a `.proto` file, or what a compiler made of it, in base64: Confluent's
turns the second into the first, others keep what a client sent, and their answers to
`format=serialized` differ. So every text is compiled here, by protoc, in a process of its own,
because a schema is anybody's text.

Behind the frame stand the indexes of the message in its file: how many, then each of them, as
zigzag varints; a zero alone means the first message. Map fields count as messages where they stand,
as in the descriptors of all clients.

Of a value is read what its caller names and nothing else: a field without presence that is not set
has its default, and a schema may have any number of those. So what is read has about the size of
the value under any schema. Source: Confluent Schema Registry, "Wire format"; Protocol Buffers,
"Encoding" and "Well-known types".
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime as dt
import importlib
import importlib.util
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, Final, NamedTuple

from stream_dedup.ground.errors import RegistryAwayError
from stream_dedup.ground.printable import printable
from stream_dedup.inputs.children import start_child

COMPILE_SECONDS: Final = 20.0
_MEMORY_BYTES: Final = 1 << 30
_MAIN: Final = "the-schema.proto"
_INDEXES_MAX: Final = 64
_NAME_MAX: Final = 1_000
# What clients take for granted: no schema says where these come from.
_CONFLUENT: Final = ("meta_pb2", "type.decimal_pb2", "type.variant_pb2", "types.decimal_pb2")
# Messages that stand for what one of their fields holds.
_STANDS_FOR: Final = {
    "google.protobuf.Struct": "fields",
    "google.protobuf.ListValue": "values",
    **{
        f"google.protobuf.{kind}Value": "value"
        for kind in (
            "Bool",
            "Bytes",
            "Double",
            "Float",
            "Int32",
            "Int64",
            "String",
            "UInt32",
            "UInt64",
        )
    },
}


class ProtobufSchema(NamedTuple):
    """The pool that holds a file and all that it imports, and the file's descriptor."""

    pool: Any
    file: Any


class ProtobufSchemas:
    """Protobuf as a `SchemaLanguage`. `names` are those that may stand in the paths that are asked
    of a value.
    """

    name = "Protobuf"

    def __init__(self, names: Set[str]) -> None:
        """Look whether the libraries are there.

        Raises:
            ImportError: one is not.
        """
        for library in ("google.protobuf.message_factory", "grpc_tools"):
            importlib.import_module(library)
        self._names = names

    def parsed(self, text: str, references: Mapping[str, str]) -> ProtobufSchema:
        """Return a schema; what it imports is known by the names of its references."""
        from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415 - an extra

        files = _compiled({**references, _MAIN: text})
        pool = DescriptorPool()
        for file in files.file:
            pool.Add(file)
        return ProtobufSchema(pool, pool.FindFileByName(_MAIN))

    def reader(
        self, written: ProtobufSchema, asked: ProtobufSchema | None
    ) -> Callable[[bytes], Any]:
        """Return what reads values; by another schema its message of the same name, in which a
        field has the same number.
        """
        from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - an extra

        classes: dict[tuple[int, ...], Any] = {}

        def read(body: bytes) -> Any:
            indexes, start = _indexes_of(body)
            if indexes not in classes:
                message = _message_at(written.file, indexes)
                if asked is not None:
                    message = asked.pool.FindMessageTypeByName(message.full_name)
                classes[indexes] = GetMessageClass(message)
            message = classes[indexes]()
            message.ParseFromString(memoryview(body)[start:])
            return self._plain(message)

        return read

    def _plain(self, message: Any) -> Any:
        """Return a message as a dictionary of its fields, or as what it stands for.

        Raises:
            ValueError: a field came in another form than the schema says, which the library passes
            over.
        """
        from google.protobuf.unknown_fields import UnknownFieldSet  # noqa: PLC0415 - an extra

        kind = message.DESCRIPTOR
        if kind.full_name in _STANDS_FOR:
            name = _STANDS_FOR[kind.full_name]
            return self._value(kind.fields_by_name[name], getattr(message, name))
        if kind.full_name == "google.protobuf.Value":
            name = message.WhichOneof("kind")
            return (
                None
                if name in (None, "null_value")
                else self._value(kind.fields_by_name[name], getattr(message, name))
            )
        if kind.full_name == "google.protobuf.Timestamp":
            with contextlib.suppress(ValueError, OverflowError):  # the year has too many digits
                return message.ToDatetime(dt.UTC)
            return None
        for unknown in UnknownFieldSet(message):
            field = kind.fields_by_number.get(unknown.field_number)
            if (
                field is not None and field.enum_type is None
            ):  # of an enum it is a number that the schema has no name for
                raise ValueError(
                    f"the field {field.name!r} came in another form than the schema says"
                )
        found = {}
        for name in self._names:
            field = kind.fields_by_name.get(name)
            if field is not None and (not field.has_presence or message.HasField(name)):
                found[name] = self._value(field, getattr(message, name))
        return found

    def _value(self, field: Any, value: Any) -> Any:
        """Return what a field holds, as Python's own."""
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            inner = kind.fields_by_name["value"]
            return {
                str(key): self._one(inner, value[key]) for key in value if str(key) in self._names
            }
        return (
            [self._one(field, one) for one in value]
            if field.is_repeated
            else self._one(field, value)
        )

    def _one(self, field: Any, value: Any) -> Any:
        if field.message_type is not None:
            return self._plain(value)
        if field.enum_type is not None:
            named = field.enum_type.values_by_number.get(value)
            return value if named is None else named.name
        return value


def _indexes_of(body: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of the message, and where it begins.

    Raises:
        ValueError: there are none.
    """
    count, at = _varint(body, 0)
    if not 0 <= count <= _INDEXES_MAX:
        raise ValueError(f"it says that its message lies {count} deep")
    indexes = []
    for _ in range(count):
        index, at = _varint(body, at)
        indexes.append(index)
    return tuple(indexes) or (0,), at


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint, and what lies behind it."""
    number = 0
    for place, byte in enumerate(body[at : at + 5]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at + place + 1
    raise ValueError("the indexes of its message are broken off")


def _message_at(file: Any, indexes: tuple[int, ...]) -> Any:
    """Return the message of a file, or the one within a message, and so on.

    Raises:
        ValueError: there is none.
    """
    found, inside = None, list(file.message_types_by_name.values())
    for index in indexes:
        if not 0 <= index < len(inside):
            raise ValueError(f"the schema has no message at {'.'.join(map(str, indexes))}")
        found = inside[index]
        inside = list(found.nested_types)
    return found


def _compiled(texts: Mapping[str, str]) -> Any:
    """Return the descriptors of files, by their names, and of all that they import.

    Raises:
        ValueError: they are no Protobuf.
        TimeoutError: to find out takes too long.
        RegistryAwayError: the compiler cannot be started now.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - an extra

    given = FileDescriptorSet(file=_confluent())
    try:
        with tempfile.TemporaryDirectory(prefix="stream-dedup-") as name:
            folder = Path(name)
            paths = []
            for number, (called, text) in enumerate(texts.items()):
                if len(called) > _NAME_MAX or not called or set(called) & set("=:\0"):
                    raise ValueError(
                        f"it refers to {printable(called, 100)!r}, which is no file's name"
                    )
                descriptor = _descriptor(text)
                if descriptor is None:
                    (folder / str(number)).write_text(text, "utf-8")
                    paths.append(f"--proto_path={called}={number}")
                else:
                    descriptor.name = called
                    given.file.append(descriptor)
            (folder / "given").write_bytes(given.SerializeToString())
            _run_protoc(folder, paths, list(texts))
            return FileDescriptorSet.FromString((folder / "made").read_bytes())
    except TimeoutError:
        raise
    except OSError as error:
        raise RegistryAwayError(
            f"A schema cannot be compiled now ({error}); the records wait. Make room for {error}."
        ) from error


def _run_protoc(folder: Path, paths: list[str], names: list[str]) -> None:
    """Compile what lies in a folder, each file under its number, and `given`, into `made`."""
    types = importlib.util.find_spec("google.type")
    paths += [
        f"--proto_path=google/type={place}"
        for place in (types and types.submodule_search_locations) or ()
    ]
    options = ("--descriptor_set_in=given", "--descriptor_set_out=made", "--include_imports")
    with (folder / "said").open("w+b") as output:
        process = start_child(
            # -P: a file in the working directory must not take the place of a module.
            [sys.executable, "-P", "-m", "grpc_tools.protoc", *paths, *options, _MAIN],
            _MEMORY_BYTES,
            math.ceil(COMPILE_SECONDS),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
        )
        with process:
            try:
                code = process.wait(COMPILE_SECONDS)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise TimeoutError(
                    f"protoc takes more than {COMPILE_SECONDS:g} s for it"
                ) from error
        if code < 0:
            # Not the schema alone decides it: on another machine it might have been compiled.
            raise TimeoutError(
                f"it breaks protoc, or takes it more than {_MEMORY_BYTES >> 20} MB of memory"
            )
        if code:
            output.seek(0)
            lines = output.read(4_000).decode("utf-8", "replace").splitlines()
            # Before an error may stand lines of a log.
            line = next(
                (
                    line
                    for line in lines
                    if ":" in line and not line.startswith(("WARNING: ", "W0"))
                ),
                "no reason given",
            )
            why = re.sub(r"^\d+(?=:)", lambda found: names[int(found[0])], line)
            raise ValueError(f"protoc refuses it: {why}")


def _descriptor(text: str) -> Any:
    """Return what a compiler made, if this is such in base64; None for the text of a file, which is
    never base64.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - an extra

    try:
        return FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError):
        return None


def _confluent() -> list[Any]:
    """Return the descriptors of the files that Confluent's clients bring, as far as this one has
    them.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - an extra

    found = []
    for name in _CONFLUENT:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(f"confluent_kafka.schema_registry.confluent.{name}")
            found.append(FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))
    return found
