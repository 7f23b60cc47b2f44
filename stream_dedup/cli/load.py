"""`load`: documents from files into `documents`.

Invariants: a line of JSONL is sent byte for byte, also when it is broken: what the filter cannot decode is its business
and becomes a dead letter, which is how one sees that decoding works; every broken line is counted, the first few named.
The totals say what was acknowledged by Kafka, not what was handed to the client.
"""

from __future__ import annotations

import base64
import json
import time

from stream_dedup.cli.output import note, print_json, print_table, progress
from stream_dedup.cli.sources import RawDocument, find_files, key_of, read_documents
from stream_dedup.errors import BrokerError, ConfigurationError
from stream_dedup.log.kafka import Admin, LoadProducer
from stream_dedup.settings import Settings

_PROBLEMS_NAMED = 5
_INTERRUPTED = 130


def load_documents(
    settings: Settings, target: str, topic: str | None, form: str, key_field: str | None, *, as_json: bool
) -> int:
    """Send every document of `target` and return the exit code.

    Raises:
        InputError: there is nothing to read, or a file cannot be read; what was read before it has been sent.
        ConfigurationError: the topic does not exist (it is never created by accident).
        BrokerError: Kafka does not answer, or some documents were not acknowledged.
    """
    topic = topic or settings.topic_names.documents
    files = find_files(target, form)
    if topic not in Admin(settings).describe([topic]):
        raise ConfigurationError(f"The topic {topic} does not exist; create it with: stream-dedup topics apply")
    if settings.value_format == "raw" and any(file.form == "jsonl" for file in files):
        note(
            "The values are JSON, and the filter is set to take a whole value as text (STREAM_DEDUP_VALUE_FORMAT=raw); "
            "set it to json, here and for the worker, so that it judges the text alone."
        )
    producer = LoadProducer(settings)
    documents = size = broken = without_key = 0
    is_interrupted = False
    began = time.monotonic()
    try:
        with progress(f"loading into {topic}", sum(file.size_bytes for file in files)) as advance:
            for document in read_documents(files, advance):
                if document.problem:
                    broken += 1
                    if broken <= _PROBLEMS_NAMED:
                        note(f"{document.problem} It is sent as it is.")
                key, value = record_of(settings, document, key_field)
                producer.send(topic, key, value)
                documents += 1
                size += len(value)
                without_key += key is None
    except KeyboardInterrupt:
        is_interrupted = True
        note("Interrupted; waiting for what was sent.")
    finally:
        failed = producer.flush()
    seconds = time.monotonic() - began
    if broken > _PROBLEMS_NAMED:
        note(f"... and {broken - _PROBLEMS_NAMED} more lines that are not JSON objects.")
    totals = {
        "topic": topic,
        "files": len(files),
        "documents": documents - failed,
        "failed": failed,
        "broken_lines": broken,
        "without_key": without_key,
        "bytes": size,
        "seconds": round(seconds, 3),
    }
    if as_json:
        print_json(totals)
    else:
        rate = f"{(documents - failed) / seconds:,.0f} documents/s" if seconds else ""
        print_table(
            ["topic", "documents", "bytes", "broken lines", "without key", "failed", ""],
            [[topic, f"{documents - failed:,}", f"{size:,}", str(broken), str(without_key), str(failed), rate]],
        )
    if failed:
        raise BrokerError(f"{failed} of {documents} documents were not written to {topic}. {producer.first_failure}")
    return _INTERRUPTED if is_interrupted else 0


def record_of(settings: Settings, document: RawDocument, key_field: str | None) -> tuple[bytes | None, bytes]:
    """Return (key, value) as a crawler with these settings would have sent the document."""
    if document.form == "jsonl":
        key = key_of(document.fields, key_field)
        return (None if key is None else key.encode("utf-8", "replace")), document.raw
    name = document.name.encode("utf-8", "surrogateescape")
    raw = base64.b64encode(document.raw) if settings.text_encoding == "base64" else document.raw
    if settings.value_format == "raw":
        return name, raw
    fields: dict[str, object] = {}
    _put(fields, settings.id_field or "id", document.name.encode("utf-8", "replace").decode())
    _put(fields, settings.text_field, raw.decode("utf-8", "replace"))
    return name, json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")


def _put(fields: dict[str, object], path: str, value: str) -> None:
    """Put a value at a dotted path."""
    *parents, name = path.split(".")
    at = fields
    for parent in parents:
        inner = at.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigurationError(
                f"The fields of text and id cannot both be written: {parent!r} would be a text and an object at once. "
                "Set STREAM_DEDUP_TEXT_FIELD and STREAM_DEDUP_ID_FIELD to separate paths."
            )
        at = inner
    at[name] = value
