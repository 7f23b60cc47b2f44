"""Read one document: from an argument, standard input, a file or a record."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from stream_dedup.domain.document import DeadLetter, Message, Reason
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.terminal import note
from stream_dedup.files.decoding import is_row, read_row
from stream_dedup.files.remarks import is_utf8
from stream_dedup.inputs.charset import describe_wrong_encoding
from stream_dedup.inputs.decoder import PLAIN_TEXT, DecodedDocument, Decoder
from stream_dedup.inputs.sources import (
    STANDARD_INPUT,
    SourceFile,
    form_of,
    is_file,
    read_documents,
    require_one_text,
)
from stream_dedup.orders.common import OrderDependencies, record_at
from stream_dedup.orders.rewind import POSITION_PATTERN
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

_REMEDY = "Name a document that still exists, or a file with its text."


def read_text(settings: Settings, target: str, *, as_text: bool) -> DecodedDocument:
    """Return the document that `target` names: a file, a row of a file (`pages.jsonl:12`) or standard
    input (`-`); otherwise `target` itself is the text. Only rows and .json files have an id.

    Raises:
        InputError: the file cannot be read.
    """
    path = Path(target)
    takes_vectors = recipe_of(settings).method.takes_vectors
    text = target
    if not as_text and target == STANDARD_INPUT:
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    elif not as_text and is_file(target):
        require_one_text(path)
        if not takes_vectors:
            document = read_document(settings, path, takes_vectors=False)
            return document if path.suffix == ".json" else document._replace(id=b"")
        text = _read_bytes(path).decode("utf-8", "replace")
    elif not as_text and is_row(target):
        settings = settings.model_copy(update={"value_format": "json"})
        return read_row(settings, target, takes_vectors=takes_vectors)
    elif not as_text and _resembles_path(target):
        raise InputError(
            f"There is no file {target}; name one that exists, or search for this text with --text."
        )
    if problem := describe_wrong_encoding(text):
        raise InputError(f"{target:.200}: {problem}")
    return DecodedDocument(text, b"", 0, 0)


def _read_bytes(path: Path) -> bytes:
    """Return the bytes of a file that contains one text; print a note if some are not UTF-8.

    Raises:
        InputError: the file cannot be read, or has another encoding, such as UTF-16.
    """
    file = SourceFile(path, str(path), "text")
    raw = next(read_documents([file]))
    if raw.lost is not None:
        raise InputError(raw.lost.message)
    if not file.is_page and not is_utf8(raw.raw):
        note(f"Bytes of {path} that are not UTF-8 were read as U+FFFD.")
    return raw.raw


def _resembles_path(target: str) -> bool:
    """Return whether a text is probably a path: one word, not a URL, with a suffix or a folder."""
    is_word = len(target.split()) == 1 and "://" not in target
    return is_word and (
        re.fullmatch(r".*\w\.[A-Za-z]\w{0,5}(:\d+)?", target) is not None
        or target.startswith(("/", "./", "../", "~/"))
    )


def read_document(settings: Settings, path: Path, *, takes_vectors: bool) -> DecodedDocument:
    """Return the document in a file: a .json file is decoded as the value of a record, a web page
    is reduced to its main text, and any other file is a text.

    Raises:
        InputError: the file cannot be read, or a worker would not judge the record.
    """
    form: Mapping[str, str | None] = (
        {"value_format": "json"} if path.suffix == ".json" else PLAIN_TEXT
    )
    if SourceFile(path, path.name, "text").is_page:
        form = {**form, "text_is": "html"}
    message = Message(
        "file", 0, 0, str(path).encode("utf-8", "replace"), _read_bytes(path), None, []
    )
    return decode_one(
        settings.model_copy(update=form), message, str(path), takes_vectors=takes_vectors
    )


def decode_one(
    settings: Settings, message: Message, name: str, *, takes_vectors: bool
) -> DecodedDocument:
    """Return the document in a record. `name`: the record's name in errors.

    Raises:
        InputError: a worker would not judge the record.
    """
    if takes_vectors and settings.value_format != "json":
        raise InputError(
            f"{name} is a text, but the recipe expects vectors: name .json files, or set "
            "VALUE_FORMAT=json."
        )
    decoded = Decoder(settings, takes_vectors=takes_vectors).decode(message)
    if isinstance(decoded, DeadLetter):
        raise InputError(f"{name} would become a dead letter ({decoded.stage}): {decoded.message}")
    if isinstance(decoded, Reason):
        raise InputError(f"{name} would be delivered without being judged ({decoded.label}).")
    return decoded


def is_position(target: str) -> bool:
    """Return whether `target` is the position of a record, and not a file or a row of a file."""
    return not is_file(target) and not is_row(target) and POSITION_PATTERN.match(target) is not None


def read_compared(settings: Settings, target: str, *, takes_vectors: bool) -> DecodedDocument:
    """Return the document in a file, in a row of a file or at a position.

    Raises:
        InputError: the document does not exist, or cannot be read or judged.
    """
    path = Path(target)
    if is_file(target):
        require_one_text(path)
        return read_document(settings, path, takes_vectors=takes_vectors)
    if is_row(target):
        return read_row(settings, target, takes_vectors=takes_vectors)
    match = POSITION_PATTERN.match(target)
    if match is None:
        name, _, number = target.rpartition(":")
        if number.isdecimal() and form_of(Path(name)):
            raise InputError(f"There is no file {name}; name a row of an existing file.")
        raise InputError(
            f"{target!r:.200} is neither a file, nor a row of a file (pages.jsonl:12), nor the "
            "position of a record (documents-3@8812 or 3@8812)."
        )
    topic = match["topic"] or settings.topic_names.documents
    partition, offset = int(match["partition"]), int(match["offset"])
    message = record_at(OrderDependencies(), settings, topic, partition, offset, _REMEDY)
    return decode_one(settings, message, message.position, takes_vectors=takes_vectors)
