"""`load`: write documents from files to `documents` (by `loading.documents`)."""

from __future__ import annotations

from typing import Annotated

import typer

from stream_dedup.cli.options import DocumentFormat, FormatOption, JsonOption, StrictOption, command
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.terminal import note
from stream_dedup.inputs.sources import find_files
from stream_dedup.kafka import Admin, LoadProducer, require_topics
from stream_dedup.loading.documents import Loading, print_hints
from stream_dedup.settings.settings import Settings


@command("load", example="stream-dedup load pages.jsonl.gz --key-field url")
def load_command(
    settings: Settings,
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DIR|-",
            help="JSONL, Parquet, WARC, text or HTML files; - is standard input.",
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
    skip: Annotated[
        int,
        typer.Option(
            "--skip", min=0, help="Skip the first N documents, which an earlier run has sent."
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> int:
    """Write documents from files to `documents`. If it is stopped, it prints how to continue."""
    topic = topic or settings.topic_names.documents
    if settings.value_format in ("confluent-json", "avro"):
        raise ConfigurationError(
            "load cannot write records in a schema registry's format, because it has no schema id. Load "
            "plain JSON into a filter with STREAM_DEDUP_VALUE_FORMAT=json, or send the documents with the "
            "producer that has the schema."
        )
    unread_names: list[str] = []
    files = find_files(target, document_format.value, unread_names)
    require_topics(Admin(settings), [topic])
    print_hints(settings, files)
    loading = Loading(
        settings, topic, key_field, LoadProducer(settings, report=note), skip, is_strict=strict
    )
    loading.lost.count_unread(unread_names)
    return loading.run(files, as_json=as_json)
