"""`calibrate`: print how similar the documents of a sample are, and what each threshold drops."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Annotated, Any

import typer

from stream_dedup.cli.options import CommandLine, DocumentFormat, FormatOption, JsonOption, command
from stream_dedup.cli.setting_options import JUDGING_OPTIONS, READING_OPTIONS
from stream_dedup.domain.document import DeadLetter
from stream_dedup.domain.plan import PLANS
from stream_dedup.domain.terminal import console, note, print_json, print_table, progress
from stream_dedup.files.checking import settings_for
from stream_dedup.files.decoding import decode_documents
from stream_dedup.files.threshold import DOCUMENTS_MIN, THRESHOLDS, analyse_sample, histogram_rows
from stream_dedup.inputs.sources import find_all, not_read, read_documents, shorten_names
from stream_dedup.settings.recipe import recipe_of


@command(
    "calibrate",
    example="stream-dedup calibrate pages.jsonl",
    flags=(*READING_OPTIONS, *JUDGING_OPTIONS),
)
def calibrate_command(
    command_line: CommandLine,
    targets: Annotated[
        list[str], typer.Argument(metavar="FILE|DIR|-...", help="Documents as for `check`.")
    ],
    document_format: FormatOption = DocumentFormat.AUTO,
    documents: Annotated[
        int, typer.Option(min=DOCUMENTS_MIN, max=50_000, help="Number of documents to read.")
    ] = 20_000,
    as_json: JsonOption = False,
) -> int:
    """Show how similar documents are, and what each threshold drops, with pairs above and below it."""
    unread_names, results = list[str](), deque[tuple[str, DeadLetter | None]]()
    files = find_all(targets, document_format.value, unread_names)
    settings = settings_for(files, command_line.overrides(), command_line.config)
    plan = settings.judging_plan if settings.judging_plan.needs_sketch else PLANS["bands"]
    with progress(f"reading {shorten_names(targets)}", None):
        sample = list(islice(decode_documents(read_documents(files), settings, results), documents))
        report = analyse_sample(sample, recipe_of(settings), plan)
    if unread_names:
        note(not_read(unread_names))
    for sentence in [f"{name}: {letter.message}" for name, letter in results if letter][:3]:
        note(sentence)
    if as_json:
        print_json(report)
    else:
        _print(report)
    return 0


def _print(report: dict[str, Any]) -> None:
    out = console()
    sites = ("on other sites", "on the same site, or unknown")
    print_table(["similarity to the nearest earlier document", *sites], histogram_rows(report))
    for threshold in report["thresholds"]:
        drops, compared = threshold["drops"], report["compared"]
        words = (
            ". Pairs just above and below it, with the words that differ:"
            if threshold["dropped"] or threshold["kept"]
            else "."
        )
        out.print(
            f"\n{THRESHOLDS[threshold['name']]}: {threshold['similarity']:.2f} drops at most {drops:,} of "
            f"{compared:,} documents ({drops / compared:.2%}){words}"
        )
        for side in ("dropped", "kept"):
            for pair in threshold[side]:
                out.print(
                    f"  {side:7}  {pair['similarity']:.2f}  {pair['id']}: {pair['words'] or '-'}"
                )
                out.print(f"                 {pair['earlier_id']}: {pair['earlier_words'] or '-'}")
    out.print(f"\n{report['compared']:,} of {report['documents']:,} documents were compared.")
