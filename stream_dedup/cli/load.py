"""`load`: documents from files into `documents`, and a journal of how far that came.

Invariants: a line of JSONL is sent byte for byte, also when it is broken: what the filter cannot
decode is its business and becomes a dead letter, which is how one sees that decoding works; every
broken line is counted, the first few named. The totals say what was acknowledged by Kafka, not what
was handed to the client.

Stopped in any way, the same command goes on behind what its journal says was acknowledged. Ctrl-C
loses and repeats nothing; a kill repeats what was sent in the last second or so, which the filter
then sees as the same page again (`unchanged`).

The journal has lines of JSON that are only ever appended, one a file: how many of its documents
Kafka has acknowledged, and whether that was all. A line is written only after everything that it
counts was acknowledged, and is on the disk before more is sent than the next one counts. A file
that changed since (size or time of writing) counts as another one. A line cut off by a kill is no
line.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from filelock import FileLock, Timeout

from stream_dedup.cli.options import DocumentFormat, FormatOption, JsonOption, StrictOption, command
from stream_dedup.ground.errors import BrokerError, ConfigurationError, InputError
from stream_dedup.ground.paths import make_folder
from stream_dedup.ground.terminal import note, print_counts, progress
from stream_dedup.inputs.charset import decode_page
from stream_dedup.inputs.sources import (
    DAMAGED_FILE,
    RawDocument,
    SourceFile,
    find_files,
    hold_objects,
    key_of,
    read_documents,
    whole_name,
)
from stream_dedup.kafka import Admin, LoadProducer
from stream_dedup.local.remarks import Losses, say_passed_over
from stream_dedup.settings.settings import Settings

_PROBLEMS_NAMED = 5
_INTERRUPTED = 130
CHECKPOINT_SECONDS = 1.0
_HURRIED_SECONDS = 60.0


@command("load", example="stream-dedup load pages.jsonl.gz --key-field url")
def load_command(
    settings: Settings,
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DIR|-", help="JSONL, Parquet, WARC, text or pages; - is standard input."
        ),
    ],
    topic: Annotated[
        str | None, typer.Option("--topic", help="Topic to write to.  [default: documents]")
    ] = None,
    document_format: FormatOption = DocumentFormat.AUTO,
    key_field: Annotated[
        str | None,
        typer.Option(
            "--key-field",
            metavar="PATH",
            help="Field with the record's key.  [default: ID_FIELD, else id, else url]",
        ),
    ] = None,
    strict: StrictOption = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Start from the beginning, instead of continuing an earlier run."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Write documents from files to `documents`. If stopped, run it again to continue."""
    topic = topic or settings.topic_names.documents
    if settings.value_format in ("confluent-json", "avro"):
        raise ConfigurationError(
            "load cannot frame values for a schema registry, because it knows no schema id; load "
            "plain JSON into a filter with "
            "STREAM_DEDUP_VALUE_FORMAT=json, or let the producer with the schema send the "
            "documents."
        )
    others: list[str] = []
    files = find_files(target, document_format.value, others)
    found = Admin(settings).topic_ids([topic])
    if topic not in found:
        raise ConfigurationError(
            f"The topic {topic} does not exist; create it with: stream-dedup topics apply"
        )
    _hint(settings, files)
    # Not the addresses of the brokers: one cluster has many, and the topic's id is its own.
    # Standard input cannot be gone back to, and several may be loaded at once.
    where = [
        f"-{os.getpid()}" if file.path is None else str(Path(target).resolve())
        for file in files[:1]
    ]
    how = [document_format.value, key_field or settings.id_field or "", settings.value_format]
    try:
        journal = Journal(
            settings.state_dir / "load", [*where, topic, found[topic][0].hex(), *how], again=again
        )
    except OSError as error:
        raise InputError(
            f"The folder {settings.state_dir}, which keeps how far a load came, cannot be written: "
            f"{error.strerror}. Name "
            "another one with STREAM_DEDUP_STATE_DIR."
        ) from error
    loading = Loading(
        settings, topic, key_field, LoadProducer(settings, told=note), journal, strict
    )
    loading.lost.pass_over(others)
    return loading.run(files, as_json=as_json)


@dataclass(slots=True)
class Loading:
    """One run over files. `documents` were handed to the client, `resumed` were sent by an earlier
    run.

    `is_strict`: end with 1 if anything cannot be read.
    """

    settings: Settings
    topic: str
    key_field: str | None
    producer: LoadProducer
    journal: Journal
    is_strict: bool = False
    documents: int = 0
    resumed: int = 0
    size: int = 0
    broken: int = 0
    without_key: int = 0
    passed_over: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    lost: Losses = field(default_factory=lambda: Losses(_PROBLEMS_NAMED))
    _is_unfinished: bool = False
    _reached: dict[str, tuple[SourceFile, Reached]] = field(default_factory=dict)
    _checkpoint: float = 0.0

    def run(self, files: Sequence[SourceFile], *, as_json: bool) -> int:
        """Send what is left of the files, print the totals and return the exit code."""
        if self.journal.documents:
            note(
                f"Going on after {self.journal.documents:,} documents of an earlier run; --again "
                "begins anew."
            )
        is_interrupted = is_complete = False
        began = self._checkpoint = time.monotonic()
        try:
            with progress(
                f"loading into {self.topic}", sum(file.size_bytes for file in files)
            ) as advance:
                for file in files:
                    self._send(file, advance)
                    if self.producer.is_given_up:
                        break
            self._note_down()
            is_complete = not self.failed
        except KeyboardInterrupt:
            is_interrupted = True
            note("Interrupted; waiting for what was sent. The same command goes on from there.")
        finally:
            if not is_complete:
                self._note_down(_HURRIED_SECONDS)
            is_stream = any(file.path is None for file in files)
            self.journal.close(
                is_complete=is_stream
                or (is_complete and not self.failed and not self._is_unfinished)
            )
        self._print(len(files), time.monotonic() - began, as_json=as_json)
        if self.failed:
            raise BrokerError(
                f"{self.failed} of {self.documents} documents were not written to {self.topic}. "
                f"{self.producer.first_failure} "
                "Run the same command again: it goes on after those that were, as far as none "
                "before them is missing."
            )
        if is_interrupted:
            return _INTERRUPTED
        is_lossy = self.lost.exit_code(self.documents + self.resumed, is_strict=self.is_strict)
        return 1 if self.producer.too_large else is_lossy

    def _send(self, file: SourceFile, advance: Callable[[int, int], None]) -> None:
        reached = Reached() if file.path is None else self.journal.of(file)
        self.resumed += reached.documents - reached.lost
        if reached.is_done:
            advance(0, file.size_bytes)
            return
        count, lost = reached.documents, reached.lost
        # what is lost behind the last document, and told again by the next run if it is for want of
        # the file
        behind = 0
        is_unfinished = False
        for document in read_documents([file], advance, self.passed_over, first=count):
            if document.lost is not None:
                self.lost.tell(document.name, document.lost)
                behind += 1
                is_unfinished = document.lost.error_class == DAMAGED_FILE
                continue
            count, lost, behind, is_unfinished = count + behind, lost + behind, 0, False
            if document.problem:
                self.broken += 1
                if self.broken <= _PROBLEMS_NAMED:
                    note(f"{document.problem} It is sent as it is.")
            key, value = record_of(self.settings, document, self.key_field)
            self.producer.send(self.topic, key, value, name=(document.name, len(value)))
            count += 1
            self.documents += 1
            self.size += len(value)
            self.without_key += key is None
            self._reached[file.name] = (file, Reached(count, lost=lost))
            if self.producer.is_given_up:
                return
            if time.monotonic() - self._checkpoint >= CHECKPOINT_SECONDS:
                self._note_down()
        self._is_unfinished |= is_unfinished
        more = 0 if is_unfinished else behind
        self._reached[file.name] = (
            file,
            Reached(count + more, is_done=not is_unfinished, lost=lost + more),
        )

    def _note_down(self, seconds: float = math.inf) -> None:
        """Wait for what was sent, and write into the journal how far that is, if all of it was
        acknowledged.
        """
        self.failed = self.producer.flush(seconds)
        if not self.failed and self._reached:
            self.journal.write(
                [line for line in self._reached.values() if line[0].path is not None]
            )
            self._reached.clear()
        self._checkpoint = time.monotonic()

    def _print(self, files: int, seconds: float, *, as_json: bool) -> None:
        if self.broken > _PROBLEMS_NAMED:
            note(f"... and {self.broken - _PROBLEMS_NAMED} more lines that are not JSON objects.")
        say_passed_over(self.passed_over)
        self.lost.close()
        for name, size in self.producer.too_large[:_PROBLEMS_NAMED]:
            note(
                f"{name} is larger than Kafka takes ({size:,} bytes) and was passed over. The "
                "topic's max.message.bytes and "
                "the client's message.max.bytes say how much that is."
            )
        too_large = len(self.producer.too_large)
        if too_large > _PROBLEMS_NAMED:
            note(f"... and {too_large - _PROBLEMS_NAMED:,} more documents that are too large.")
        written = self.documents - self.failed - too_large
        counts = {
            "files": files,
            "documents": written,
            "documents_before": self.resumed,
            "failed": self.failed,
            "too_large": too_large,
            "broken_lines": self.broken,
            "unreadable": self.lost.count,
            "without_key": self.without_key,
            "bytes": self.size,
        }
        rest = {
            "topic": self.topic,
            "passed_over": dict(self.passed_over),
            "seconds": round(seconds, 3),
        }
        print_counts(counts, heading=self.topic, as_json=as_json, **rest)
        if seconds and not as_json:
            note(f"{written / seconds:,.0f} documents/s.")


def _hint(settings: Settings, files: Sequence[SourceFile]) -> None:
    if settings.value_format == "raw" and hold_objects(files):
        note(
            "The values are JSON, and the filter is set to take a whole value as text "
            "(STREAM_DEDUP_VALUE_FORMAT=raw); "
            "set it to json, here and for the worker, so that it judges the text alone."
        )
    hint_of_pages(settings, files)


def hint_of_pages(settings: Settings, files: Sequence[SourceFile]) -> None:
    """Say it if these files hold web pages, and the filter is set to judge them as they are."""
    pages = (file for file in files if file.form == "warc" or file.is_page)
    if settings.text_is == "text" and any(".wet" not in file.name.lower() for file in pages):
        note(
            "These are web pages, and the filter is set to judge them with their tags "
            "(STREAM_DEDUP_TEXT_IS=text), which pages "
            "of one site share; set it to html, here and for the worker."
        )


def record_of(
    settings: Settings, document: RawDocument, key_field: str | None
) -> tuple[bytes | None, bytes]:
    """Return (key, value) as a crawler with these settings would have sent the document."""
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
    at = fields
    for parent in parents:
        inner = at.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigurationError(
                f"The fields of text and id cannot both be written: {parent!r} would be a text and "
                "an object at once. "
                "Set STREAM_DEDUP_TEXT_FIELD and STREAM_DEDUP_ID_FIELD to separate paths."
            )
        at = inner
    at[name] = value


class Reached(NamedTuple):
    """How many documents of a file were acknowledged or are `lost` for good, and whether these are
    all.
    """

    documents: int = 0
    is_done: bool = False
    lost: int = 0


class Journal:
    """The journal of one command: of its files, its topic and how it reads them, named by
    `identity`.
    """

    def __init__(self, folder: Path, identity: Sequence[str], *, again: bool) -> None:
        """Open it, or begin one; `again` forgets what a former run did.

        Raises:
            InputError: the same command is running.
            OSError: the folder cannot be written.
        """
        make_folder(folder)
        name = hashlib.blake2b(
            "\0".join(identity).encode("utf-8", "surrogateescape"), digest_size=12
        ).hexdigest()
        self._path = folder / f"{name}.jsonl"
        self._lock = FileLock(folder / f"{name}.lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise InputError(
                "The same files are being loaded into this topic; wait for that to end."
            ) from error
        if again:
            self._path.unlink(missing_ok=True)
        self._reached = self._read()
        self._stream = self._path.open("ab")
        # A line that a kill cut off must not swallow the next one.
        self._stream.write(b"\n")

    @property
    def documents(self) -> int:
        """How many documents former runs have sent of files as they were then."""
        return sum(reached.documents - reached.lost for reached in self._reached.values())

    def of(self, file: SourceFile) -> Reached:
        """Return how far a file is."""
        return self._reached.get(_key(file), Reached())

    def write(self, lines: Sequence[tuple[SourceFile, Reached]]) -> None:
        """Add how far files are, durable when it returns."""
        for file, reached in lines:
            name, size, time = _key(file)
            fields = {
                "file": name,
                "bytes": size,
                "mtime_ns": time,
                "documents": reached.documents,
                "done": reached.is_done,
                "lost": reached.lost,
            }
            self._stream.write(json.dumps(fields).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self, *, is_complete: bool) -> None:
        """Close it; when all is done it goes, and the same command loads everything once more."""
        self._stream.close()
        if is_complete:
            self._path.unlink(missing_ok=True)
        self._lock.release()

    def _read(self) -> dict[tuple[str, int, str], Reached]:
        found: dict[tuple[str, int, str], Reached] = {}
        if not self._path.exists():
            return found
        for line in self._path.read_bytes().splitlines():
            try:
                fields = json.loads(line)
                key = (str(fields["file"]), int(fields["bytes"]), str(fields["mtime_ns"]))
                found[key] = Reached(
                    int(fields["documents"]), bool(fields["done"]), int(fields.get("lost", 0))
                )
            except (ValueError, KeyError, TypeError):
                continue
        return found


def _key(file: SourceFile) -> tuple[str, int, str]:
    name = (
        whole_name(file).name
        if file.path is None or file.elsewhere is not None
        else str(file.path.resolve())
    )
    return name, file.size_bytes, str(file.stamp)
