"""`seed`: documents that were delivered elsewhere become representatives, by seed records in the
log.

The steps: read the log for its declaration and for how far a former run came; read the documents
from there on; fingerprint and append them in records as large as a worker's. What cannot be read is
counted and named, and passed over.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from stream_dedup.cli.load import hint_of_pages, record_of
from stream_dedup.cli.options import DocumentFormat, FormatOption, JsonOption, StrictOption, command
from stream_dedup.domain.document import NONCE_BYTES, DeadLetter, Message, Reason
from stream_dedup.domain.errors import ConfigurationError, InputError
from stream_dedup.domain.printable import printable
from stream_dedup.domain.terminal import note, print_counts, progress
from stream_dedup.files.remarks import Losses, report_passed_over
from stream_dedup.fingerprinting import Fingerprinter
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.inputs.sources import STANDARD_INPUT, find_files, read_documents
from stream_dedup.kafka import Admin, LogAppender, read_partition, read_whole
from stream_dedup.log.records import Source, encode_seed
from stream_dedup.orders import declaration
from stream_dedup.orders.inforce import InForce
from stream_dedup.orders.orders import log_names
from stream_dedup.orders.seed import SeedProgress, file_source
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings
from stream_dedup.worker.prepare import Preparer

_DOCUMENTS_AT_ONCE = 5000
_PROBLEMS_NAMED = 5
_INTERRUPTED = 130
Advance = Callable[[int, int], None]


@command("seed", example="stream-dedup seed delivered.jsonl.gz --key-field url")
def seed_command(
    settings: Settings,
    target: Annotated[
        str,
        typer.Argument(metavar="FILE|DIR|-|TOPIC", help="Documents as for `load`, or a topic."),
    ],
    document_format: FormatOption = DocumentFormat.AUTO,
    key_field: Annotated[
        str | None,
        typer.Option(
            "--key-field",
            metavar="PATH",
            help="Field with the key.  [default: ID_FIELD, else id, else url]",
        ),
    ] = None,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> int:
    """Add documents that were delivered elsewhere, so that their copies are duplicates. If
    stopped, run it again to continue.
    """
    is_file = target == STANDARD_INPUT or Path(target).exists()
    names = log_names(
        settings, [settings.topic_names.begun, *([] if is_file else _topic(settings, target))]
    )
    recipe = recipe_of(settings)
    declaration.follow(settings, names, recipe, begins=True)
    done, now = SeedProgress(recipe.id), InForce()
    with progress("reading the log", None) as advance:
        for _, record in read_whole(settings, names.fingerprints, advance):
            done.fold(record)
            now.fold(record)
    preparer = Preparer(
        Decoder(settings, takes_vectors=recipe.method.takes_vectors),
        Fingerprinter(recipe),
        os.urandom(NONCE_BYTES),
        1 << 40,
        settings.judging_mode,
        digests_ids=settings.log_ids == "digest",
        encode=partial(encode_seed, form=now.format),
    )
    appender = LogAppender(settings, names.fingerprints, "seed")
    totals = _Totals()
    is_interrupted = False
    with progress(f"seeding from {target}", None) as advance:
        sources = (
            _of_files(settings, target, document_format.value, key_field, totals)
            if is_file
            else _of_topic(settings, target)
        )
        try:
            for source, messages in sources:
                _append(source, messages, done.of(source), preparer, appender, totals, advance)
        except KeyboardInterrupt:
            is_interrupted = True
            note(
                "Interrupted; what is in the log stays there, and the same command goes on behind "
                "it."
            )
        finally:
            appender.flush()
    _print(totals, as_json=as_json)
    read = totals.seeded + totals.resumed + totals.empty
    return _INTERRUPTED if is_interrupted else totals.lost.exit_code(read, is_strict=strict)


@dataclass(slots=True)
class _Totals:
    seeded: int = 0
    resumed: int = 0
    empty: int = 0
    lost: Losses = field(default_factory=lambda: Losses(_PROBLEMS_NAMED))
    passed_over: Counter[str] = field(default_factory=Counter)
    records: int = 0


def _topic(settings: Settings, target: str) -> list[str]:
    names = settings.topic_names
    if target == names.documents:
        raise ConfigurationError(
            f"The topic {target} is what the workers read: its documents are judged anyway. Name a "
            "topic or file of documents "
            "that were delivered elsewhere."
        )
    if target not in Admin(settings).topic_ids([target]):
        raise InputError(
            f"There is neither a file nor a topic {printable(target)!r}; name one of them, or - "
            "for standard input."
        )
    return [target]


def _of_files(
    settings: Settings, target: str, form: str, key_field: str | None, totals: _Totals
) -> Iterator[tuple[Source, Iterator[Message]]]:
    others: list[str] = []
    files = find_files(target, form, others)
    totals.lost.pass_over(others)
    if settings.value_format == "raw" and any(file.form == "jsonl" for file in files):
        note(
            "Each line is taken whole as its text, since VALUE_FORMAT is raw; if a field holds it: "
            "--set value_format=json."
        )
    hint_of_pages(settings, files)
    for found in files:
        with found.here() as file:
            source = file_source(file.name, file.path)

            def messages(file=file, source=source) -> Iterator[Message]:  # type: ignore[no-untyped-def]
                for number, document in enumerate(
                    read_documents([file], passed_over=totals.passed_over)
                ):
                    if document.lost is not None:
                        totals.lost.report(document.name, document.lost)
                        continue
                    key, value = record_of(settings, document, key_field)
                    yield Message(source.topic, 0, number, key, value, None, [])

            yield source, messages()


def _of_topic(settings: Settings, target: str) -> Iterator[tuple[Source, Iterator[Message]]]:
    topic_id, partitions = Admin(settings).topic_ids([target])[target]
    for partition in range(partitions):
        yield Source(target, topic_id, partition, 0, 0), read_partition(settings, target, partition)


def _append(
    source: Source,
    messages: Iterator[Message],
    first: int,
    preparer: Preparer,
    appender: LogAppender,
    totals: _Totals,
    advance: Advance,
) -> None:
    """Append the documents of one source from an offset on, in the source's order."""
    while batch := list(islice(messages, _DOCUMENTS_AT_ONCE)):
        fresh = [message for message in batch if message.offset >= first]
        totals.resumed += len(batch) - len(fresh)
        while fresh:
            prepared = preparer.prepare(fresh, {(source.topic, source.partition): source}, b"")
            done = len(
                prepared.messages
            )  # not all, where the text behind them lies elsewhere and is away
            for message, decided in zip(fresh[:done], prepared.decided, strict=True):
                _count(message, decided, totals)
            fresh = fresh[done:]
            for part in prepared.parts:
                appender.send(part.raw, None, lambda _: None)
                totals.seeded += len(part.places)
                totals.records += 1
            appender.flush()
        advance(len(batch), sum(len(message.value or b"") for message in batch))


def _count(message: Message, decided: object, totals: _Totals) -> None:
    if isinstance(decided, DeadLetter):
        totals.lost.report(message.position, decided)
    elif isinstance(decided, Reason):
        totals.empty += 1


def _print(totals: _Totals, *, as_json: bool) -> None:
    unreadable = totals.lost.count
    report_passed_over(totals.passed_over)
    totals.lost.close()
    counts = {"seeded": totals.seeded, "seeded_before": totals.resumed, "empty": totals.empty}
    print_counts(
        counts | {"unreadable": unreadable, "log_records": totals.records}, as_json=as_json
    )
    note(
        "Each becomes a representative unless one within reach stands already; the index takes "
        "them in as it reads the log."
    )
