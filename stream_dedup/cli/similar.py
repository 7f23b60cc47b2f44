"""`similar`: print the kept documents that are similar to a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stream_dedup.cli.options import AsTextOption, CommandLine, JsonOption, command
from stream_dedup.domain.errors import FormatError, InputError
from stream_dedup.domain.hosts import named_site
from stream_dedup.domain.plan import parse_similarity
from stream_dedup.domain.printable import counted
from stream_dedup.domain.sketch import as_text as similarity_text
from stream_dedup.domain.terminal import note, print_json, print_table
from stream_dedup.files.one_text import read_text
from stream_dedup.files.similar import LookUp
from stream_dedup.inputs.fields import scope_number
from stream_dedup.serving import asking
from stream_dedup.serving.ports import addresses
from stream_dedup.settings.settings import Settings

_COLUMNS = ["similarity", "distance", "id", "position", "time", "log"]


@command(
    "similar",
    example="stream-dedup similar page.txt --index http://localhost:8081 --limit 5",
    asks_kafka=False,
    flags=("similarity",),
)
def similar_command(
    command_line: CommandLine,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TEXT|FILE|-", help="A text, a file with one, or - for standard input."
        ),
    ],
    as_text: AsTextOption = False,
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            metavar="URL",
            help="Address of a running index.  [default: on this machine]",
        ),
    ] = None,
    volume: Annotated[
        Path | None,
        typer.Option(
            "--volume",
            metavar="DIR",
            help="Read the volume of an index, running or not, or of `check --index`.",
        ),
    ] = None,
    scope: Annotated[
        str | None, typer.Option("--scope", help="Only documents with this value of SCOPE_FIELD.")
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            "--site", help="Web site of the text: a host or an address.  [default: the file's]"
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", help="Title of the text.  [default: the file's]")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="Show at most N.")
    ] = 100,
    as_json: JsonOption = False,
) -> int:
    """Find the kept documents that are similar to a text as a whole, nearest first.

    All that reach SIMILARITY are shown. To find documents that contain a sentence, use `find`.
    """
    if index is not None and volume is not None:
        raise typer.BadParameter("give one of --index and --volume")
    if index is not None and Path(index).is_dir():
        raise InputError(f"{index} is a folder; read the index in it with --volume {index}.")
    settings = command_line.quiet_settings()
    least = command_line.flags["similarity"]
    similarity = None if least is None else parse_similarity(str(least))
    document = read_text(settings, target, as_text=as_text)
    if scope is not None:
        document = document._replace(scope=scope_number(scope))
    if site is not None:
        document = document._replace(site=named_site(site))
    if title is not None:
        document = document._replace(title=title)
    look_up = LookUp.of(settings, document, limit, similarity)
    answer = look_up.read_volume(volume) if volume else _ask_index(look_up, settings, index)
    _print(look_up, answer, as_json=as_json)
    return 0


def _ask_index(look_up: LookUp, settings: Settings, url: str | None) -> dict[str, Any]:
    """Return the answer of the index at `url`, or of the one on this machine.

    Raises:
        InputError: no index answers, or it refuses the request.
        ConfigurationError: the index has another recipe.
        StreamDedupError: it cannot answer now.
    """
    least = (
        {} if look_up.similarity is None else {"similarity": similarity_text(look_up.similarity)}
    )
    path = asking.similar_path(
        look_up.recipe.id,
        look_up.limbs,
        look_up.query.digest,
        look_up.features,
        look_up.scope,
        look_up.query.sketch,
        look_up.query.origin,
        limit=look_up.limit,
        **least,
    )
    remedy = "Name one with --index http://HOST:PORT, or read its volume with --volume DIR."
    bases = [url] if url is not None else addresses(settings)
    return asking.ask_role("index", bases, path, remedy)[1]


def _print(look_up: LookUp, answer: dict[str, Any], *, as_json: bool) -> None:
    """Print an answer.

    Raises:
        FormatError: it is not that of an index of this version.
    """
    try:
        found, total, floor = answer["found"], answer["total"], answer["floor"]
        by_digest_only = answer["by_digest_only"]
        rows = [
            [
                "" if document["similarity"] is None else f"{document['similarity']:.2f}",
                str(document["distance"]),
                document["id"],
                document["position"] or "",
                document["time"] or "",
                document.get("log") or "",
            ]
            for document in found
        ]
    except (KeyError, TypeError) as error:
        raise FormatError(
            f"The answer is not that of an index of this version (it lacks {error}); see its "
            "/v1/stats."
        ) from error
    if as_json:
        fingerprint = f"{look_up.number:0{look_up.recipe.width // 4}x}"
        print_json({"features": look_up.features, "fingerprint": fingerprint, **answer})
        return
    if rows:
        has_positions = any(document["position"] for document in found)
        columns = len(_COLUMNS) if has_positions else _COLUMNS.index("position")
        print_table(_COLUMNS[:columns], [row[:columns] for row in rows])
    kind = "with an equal text" if by_digest_only else "similar to the text"
    more = f", {len(rows)} of them shown (--limit)" if total > len(rows) else ""
    note(f"{counted(total, 'document')} {kind}{more}.")
    if rows and (why := found[0].get("why")):
        note(f"The nearest: {why}")
    if by_digest_only:
        note(
            f"The text has {counted(look_up.features, 'feature')} (such as words). Below {floor} "
            "features a fingerprint is unreliable, so only documents with exactly this text are "
            "found. Give a longer text."
        )
