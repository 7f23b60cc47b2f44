"""Append seed records to the log, for `seed`: documents that were delivered elsewhere become
representatives.

The steps: read the log for its declaration and the progress of earlier runs; read the documents
after those; fingerprint and append them in records of a worker's size. Documents that cannot be read
are counted, reported and skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from stream_dedup.domain.document import NONCE_BYTES, DeadLetter, Message, Reason
from stream_dedup.domain.errors import ConfigurationError, InputError
from stream_dedup.domain.printable import printable
from stream_dedup.domain.terminal import note, print_counts, progress
from stream_dedup.files.checking import require_single_columns
from stream_dedup.files.remarks import UnreadableDocuments, report_non_page_records
from stream_dedup.fingerprinting import Fingerprinter
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.inputs.sources import STANDARD_INPUT, find_files, read_documents
from stream_dedup.kafka import Admin, LogAppender, read_partition, read_whole_log
from stream_dedup.loading.documents import print_hint_of_pages, record_of
from stream_dedup.log.records import Source, encode_seed
from stream_dedup.orders import declaration
from stream_dedup.orders.common import check_log_topics
from stream_dedup.orders.in_force import InForce
from stream_dedup.orders.seed import SeedProgress, file_source
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings
from stream_dedup.worker.prepare import Preparer

_BATCH_DOCUMENTS = 5000
_PROBLEMS_SHOWN = 5
Advance = Callable[[int, int], None]


@dataclass(slots=True)
class SeedTotals:
    """Counts of documents by result; `resumed` were seeded by an earlier run."""

    seeded: int = 0
    resumed: int = 0
    empty: int = 0
    lost: UnreadableDocuments = field(default_factory=lambda: UnreadableDocuments(_PROBLEMS_SHOWN))
    non_page_records: Counter[str] = field(default_factory=Counter)
    records: int = 0
    is_interrupted: bool = False


def seed(settings: Settings, target: str, form: str, key_field: str | None) -> SeedTotals:
    """Append the documents of `target`, files or a topic, to the log; return the totals.

    Raises:
        ConfigurationError: the workers read the topic, or the log has other settings.
        InputError: there is neither a file nor a topic `target`.
    """
    is_file = target == STANDARD_INPUT or Path(target).exists()
    names = check_log_topics(
        settings, [settings.topic_names.begun, *([] if is_file else _check_topic(settings, target))]
    )
    recipe = recipe_of(settings)
    declaration.read_or_declare(settings, names, recipe, begins=True)
    seed_progress, in_force = SeedProgress(recipe.id), InForce()
    with progress("reading the log", None) as advance:
        for _, record in read_whole_log(settings, names.fingerprints, advance):
            seed_progress.fold(record)
            in_force.fold(record)
    preparer = Preparer(
        Decoder(settings, takes_vectors=recipe.method.takes_vectors),
        Fingerprinter(recipe),
        os.urandom(NONCE_BYTES),
        1 << 40,
        settings.judging_mode,
        digests_ids=settings.log_ids == "digest",
        encode=partial(encode_seed, form=in_force.format),
    )
    appender = LogAppender(settings, names.fingerprints, "seed")
    totals = SeedTotals()
    with progress(f"seeding from {target}", None) as advance:
        sources = (
            _read_files(settings, target, form, key_field, totals)
            if is_file
            else _read_topic(settings, target)
        )
        try:
            for source, messages in sources:
                _append(
                    source,
                    messages,
                    seed_progress.of(source),
                    preparer,
                    appender,
                    totals,
                    advance,
                )
        except KeyboardInterrupt:
            totals.is_interrupted = True
            note(
                "Interrupted; the log keeps the documents written so far, and the same command "
                "continues after them."
            )
        finally:
            appender.flush()
    return totals


def _check_topic(settings: Settings, target: str) -> list[str]:
    names = settings.topic_names
    if target == names.documents:
        raise ConfigurationError(
            f"The workers read the topic {target}, so its documents are judged anyway. Name a topic "
            "or file of documents that were delivered elsewhere."
        )
    if target not in Admin(settings).topic_ids([target]):
        raise InputError(
            f"There is no file and no topic {printable(target)!r}; name an existing file or "
            "topic, or - for standard input."
        )
    return [target]


def _read_files(
    settings: Settings, target: str, form: str, key_field: str | None, totals: SeedTotals
) -> Iterator[tuple[Source, Iterator[Message]]]:
    unread_names: list[str] = []
    files = find_files(target, form, unread_names)
    require_single_columns(files, settings, key_field)
    totals.lost.count_unread(unread_names)
    if settings.value_format == "raw" and any(file.form == "jsonl" for file in files):
        note(
            "Each whole line is a text, because VALUE_FORMAT is raw; if a field contains the text, add "
            "--set value_format=json."
        )
    print_hint_of_pages(settings, files)
    for found in files:
        with found.local_copy() as file:
            source = file_source(file.name, file.path)

            def messages(file=file, source=source) -> Iterator[Message]:  # type: ignore[no-untyped-def]
                for number, document in enumerate(
                    read_documents([file], non_page_records=totals.non_page_records)
                ):
                    if document.lost is not None:
                        totals.lost.report(document.name, document.lost)
                        continue
                    key, value = record_of(settings, document, key_field)
                    yield Message(source.topic, 0, number, key, value, None, [])

            yield source, messages()


def _read_topic(settings: Settings, target: str) -> Iterator[tuple[Source, Iterator[Message]]]:
    topic_id, partitions = Admin(settings).topic_ids([target])[target]
    for partition in range(partitions):
        yield Source(target, topic_id, partition, 0, 0), read_partition(settings, target, partition)


def _append(
    source: Source,
    messages: Iterator[Message],
    first: int,
    preparer: Preparer,
    appender: LogAppender,
    totals: SeedTotals,
    advance: Advance,
) -> None:
    """Append the documents of a source from offset `first`, in the order of the source."""
    while batch := list(islice(messages, _BATCH_DOCUMENTS)):
        pending = [message for message in batch if message.offset >= first]
        totals.resumed += len(batch) - len(pending)
        while pending:
            prepared = preparer.prepare(pending, {(source.topic, source.partition): source}, b"")
            # Fewer than pending if a text that is stored elsewhere is unavailable now.
            done = len(prepared.messages)
            for message, outcome in zip(pending[:done], prepared.local_decisions, strict=True):
                if isinstance(outcome, DeadLetter):
                    totals.lost.report(message.position, outcome)
                totals.empty += isinstance(outcome, Reason)
            pending = pending[done:]
            for part in prepared.parts:
                appender.send(part.raw, None, lambda _: None)
                totals.seeded += len(part.rows)
                totals.records += 1
            appender.flush()
        advance(len(batch), sum(len(message.value or b"") for message in batch))


def print_seeded(totals: SeedTotals, *, as_json: bool) -> None:
    """Print the totals and what could not be read."""
    report_non_page_records(totals.non_page_records)
    totals.lost.close()
    counts = {"seeded": totals.seeded, "seeded_before": totals.resumed, "empty": totals.empty}
    counts |= {"unreadable": totals.lost.count, "log_records": totals.records}
    print_counts(counts, as_json=as_json)
    note(
        "When the index reads them from the log, each becomes a representative, unless an earlier "
        "one is similar."
    )
