"""Write documents from files to the source topic, for `load`.

Invariants: a line of JSONL is sent unchanged, also if it is invalid: the filter makes a dead letter
of a value that it cannot decode. Invalid lines are counted, and the first few are named. The totals
count documents that Kafka acknowledged, not those given to the client.

A run that ends early prints the number of documents, in the order of the files, that Kafka has
acknowledged; `--skip` skips that number. Documents that are sent again after a kill get the reason
`unchanged`.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stream_dedup.domain.errors import BrokerError, ConfigurationError
from stream_dedup.domain.terminal import note, print_counts, progress
from stream_dedup.files.checking import require_single_columns
from stream_dedup.files.remarks import UnreadableDocuments, report_non_page_records
from stream_dedup.inputs.charset import decode_page
from stream_dedup.inputs.sources import (
    RawDocument,
    SourceFile,
    contain_objects,
    key_of,
    read_documents,
)
from stream_dedup.kafka import LoadProducer
from stream_dedup.settings.settings import Settings

_PROBLEMS_SHOWN = 5
_INTERRUPTED = 130
CHECKPOINT_SECONDS = 1.0
_INTERRUPTED_FLUSH_SECONDS = 60.0


@dataclass(slots=True)
class Loading:
    """One run over files.

    `documents`: the number passed to the client in this run, without the `skip` first of the files.
    `acknowledged`: how many documents from the start of the files need not be sent again, including
    `skip`. `non_page_records`: the numbers of WARC records that are not pages, by type.
    `is_strict`: exit with 1 if anything cannot be read.
    """

    settings: Settings
    topic: str
    key_field: str | None
    producer: LoadProducer
    skip: int = 0
    is_strict: bool = False
    documents: int = 0
    acknowledged: int = 0
    sent_bytes: int = 0
    broken: int = 0
    without_key: int = 0
    non_page_records: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    lost: UnreadableDocuments = field(default_factory=lambda: UnreadableDocuments(_PROBLEMS_SHOWN))
    _checkpoint: float = 0.0

    def run(self, files: Sequence[SourceFile], *, as_json: bool) -> int:
        """Send the documents of the files, print the totals and return the exit code."""
        require_single_columns(files, self.settings, self.key_field)
        is_interrupted = False
        self.acknowledged = self.skip
        began = self._checkpoint = time.monotonic()
        total_bytes = sum(file.size_bytes for file in files)
        try:
            with progress(f"loading into {self.topic}", total_bytes) as advance:
                self._send(read_documents(files, advance, self.non_page_records))
            self._flush()
        except KeyboardInterrupt:
            is_interrupted = True
            note("Interrupted; waiting until Kafka acknowledges the documents that were sent.")
            self._flush(_INTERRUPTED_FLUSH_SECONDS)
        self._print(len(files), time.monotonic() - began, as_json=as_json)
        twice = self.skip + self.documents - self.acknowledged
        hint = (
            f"To continue, add --skip {self.acknowledged}; at most {twice:,} documents are "
            "then sent twice."
        )
        if self.failed:
            raise BrokerError(
                f"{self.failed} of {self.documents} documents were not written to {self.topic}. "
                f"{self.producer.first_failure} {hint}"
            )
        if is_interrupted:
            note(hint)
            return _INTERRUPTED
        lost_exit_code = self.lost.exit_code(self.documents + self.skip, is_strict=self.is_strict)
        return 1 if self.producer.too_large else lost_exit_code

    def _send(self, documents: Iterator[RawDocument]) -> None:
        to_skip = self.skip
        for document in documents:
            if document.lost is not None:
                self.lost.report(document.name, document.lost)
                continue
            if to_skip:
                to_skip -= 1
                continue
            if document.problem:
                self.broken += 1
                if self.broken <= _PROBLEMS_SHOWN:
                    note(f"{document.problem} It is sent unchanged.")
            key, value = record_of(self.settings, document, self.key_field)
            self.producer.send(self.topic, key, value, labelled_size=(document.name, len(value)))
            self.documents += 1
            self.sent_bytes += len(value)
            self.without_key += key is None
            if self.producer.has_given_up:
                return
            if time.monotonic() - self._checkpoint >= CHECKPOINT_SECONDS:
                self._flush()

    def _flush(self, seconds: float = math.inf) -> None:
        """Wait until Kafka acknowledges the documents that were sent; update `acknowledged`."""
        self.failed = self.producer.flush(seconds)
        if not self.failed:
            self.acknowledged = self.skip + self.documents
        self._checkpoint = time.monotonic()

    def _print(self, files: int, seconds: float, *, as_json: bool) -> None:
        if self.broken > _PROBLEMS_SHOWN:
            note(f"... and {self.broken - _PROBLEMS_SHOWN} more lines that are not JSON objects.")
        report_non_page_records(self.non_page_records)
        self.lost.close()
        for name, size in self.producer.too_large[:_PROBLEMS_SHOWN]:
            note(
                f"{name} was not sent: it has {size:,} bytes, more than the topic's "
                "max.message.bytes or the client's message.max.bytes."
            )
        too_large = len(self.producer.too_large)
        if too_large > _PROBLEMS_SHOWN:
            note(f"... and {too_large - _PROBLEMS_SHOWN:,} more documents that are too large.")
        written = self.documents - self.failed - too_large
        counts = {
            "files": files,
            "documents": written,
            "skipped": self.skip,
            "failed": self.failed,
            "too_large": too_large,
            "broken_lines": self.broken,
            "unreadable": self.lost.count,
            "without_key": self.without_key,
            "bytes": self.sent_bytes,
        }
        rest = {
            "topic": self.topic,
            "passed_over": dict(self.non_page_records),
            "seconds": round(seconds, 3),
        }
        print_counts(counts, heading=self.topic, as_json=as_json, **rest)
        if seconds and not as_json:
            note(f"{written / seconds:,.0f} documents/s.")


def print_hints(settings: Settings, files: Sequence[SourceFile]) -> None:
    """Print a note if more than the texts would be judged, as the settings do not fit the files."""
    if settings.value_format == "raw" and contain_objects(files):
        note(
            "The values are JSON, but the filter judges whole values as texts "
            "(STREAM_DEDUP_VALUE_FORMAT=raw). To judge only the field with the text, set it to "
            "json, here and for the worker."
        )
    print_hint_of_pages(settings, files)


def print_hint_of_pages(settings: Settings, files: Sequence[SourceFile]) -> None:
    """Print a note if the files contain web pages, and the filter judges texts with tags."""
    pages = (file for file in files if file.form == "warc" or file.is_page)
    if settings.text_is == "text" and any(".wet" not in file.name.lower() for file in pages):
        note(
            "These are web pages, but the filter judges them with their tags "
            "(STREAM_DEDUP_TEXT_IS=text), which pages of one site share. Set it to html, here "
            "and for the worker."
        )


def record_of(
    settings: Settings, document: RawDocument, key_field: str | None
) -> tuple[bytes | None, bytes]:
    """Return (key, value) of the record that a crawler with these settings would send."""
    if document.form == "jsonl":
        key = key_of(document.fields, key_field or settings.id_field)
        return (None if key is None else key.encode("utf-8", "surrogatepass")), document.raw
    name = document.name.encode("utf-8", "surrogateescape")
    raw = base64.b64encode(document.raw) if settings.text_encoding == "base64" else document.raw
    if settings.value_format == "raw":
        return name, raw
    fields: dict[str, object] = {}
    _put(fields, settings.id_field or "id", document.name.encode("utf-8", "replace").decode())
    is_page = (document.form == "warc" or document.is_page) and settings.text_encoding == "plain"
    text = (
        decode_page(document.raw, document.charset) if is_page else raw.decode("utf-8", "replace")
    )
    _put(fields, settings.text_field, text)
    if settings.time_field and document.time:
        _put(fields, settings.time_field, document.time)
    return name, json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")


def _put(fields: dict[str, object], path: str, value: str) -> None:
    """Put a value at a dotted path."""
    *parents, name = path.split(".")
    inner = fields
    for parent in parents:
        child = inner.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigurationError(
                f"The paths of text and id conflict: {parent!r} would be both a text and an "
                "object. Set STREAM_DEDUP_TEXT_FIELD and STREAM_DEDUP_ID_FIELD to separate paths."
            )
        inner = child
    inner[name] = value
