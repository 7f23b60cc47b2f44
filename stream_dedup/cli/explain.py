"""`explain`: print why two documents are copies or not, by the recipe and plan of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream_dedup.cli.explain_lines import print_explanation
from stream_dedup.cli.options import CommandLine, JsonOption, command
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.terminal import print_json
from stream_dedup.files.explain import explain_pair
from stream_dedup.files.offline import check_widths
from stream_dedup.files.one_text import decode_one, read_document
from stream_dedup.inputs.decoder import DecodedDocument
from stream_dedup.inputs.sources import require_one_text
from stream_dedup.orders.orders import OrderDependencies, record_at
from stream_dedup.orders.rewind import POSITION_FORM
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

_REMEDY = "Name a document that still exists, or give a file with its text."


@command("explain", example="stream-dedup explain documents-3@8812 documents-0@17", flags=("plan",))
def explain_command(
    command_line: CommandLine,
    first: Annotated[str, typer.Argument(metavar="A", help="File or position: documents-3@8812.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other document.")],
    rows: Annotated[
        int, typer.Option("--rows", min=0, help="Number of differing features to show.")
    ] = 20,
    as_json: JsonOption = False,
) -> int:
    """Explain why two documents are copies or not, with the features that differ most."""
    settings = command_line.quiet_settings()
    recipe, plan = recipe_of(settings), settings.judging_plan
    check_widths(recipe, plan)
    takes_vectors, names = recipe.method.takes_vectors, (first, second)
    documents = [_read(settings, name, takes_vectors=takes_vectors) for name in names]
    found = explain_pair(names, documents, recipe, plan, settings.better, rows)
    if as_json:
        print_json(found)
    else:
        print_explanation(found)
    return 0


def _read(settings: Settings, target: str, *, takes_vectors: bool) -> DecodedDocument:
    """Return the document in a file or at a position.

    Raises:
        InputError: it does not exist, or cannot be read or judged.
    """
    path = Path(target)
    try:
        if path.is_file():
            require_one_text(path)
            return read_document(settings, path, takes_vectors=takes_vectors)
    except OSError as error:
        raise InputError(f"{target} cannot be read: {error.strerror or error}.") from error
    match = POSITION_FORM.match(target)
    if match is None:
        raise InputError(
            f"{target!r:.200} is neither a file nor the position of a record; write a position as "
            "documents-3@8812 or 3@8812."
        )
    topic = match["topic"] or settings.topic_names.documents
    partition, offset = int(match["partition"]), int(match["offset"])
    message = record_at(OrderDependencies(), settings, topic, partition, offset, _REMEDY)
    return decode_one(settings, message, message.position, takes_vectors=takes_vectors)
