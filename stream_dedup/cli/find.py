"""`find`: every document that holds a clue, from a running search."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.text import Text

from stream_dedup.cli.options import JsonOption, command
from stream_dedup.cli.similar import read_text
from stream_dedup.ground.errors import FormatError, InputError
from stream_dedup.ground.printable import printable
from stream_dedup.ground.terminal import console, note, print_json
from stream_dedup.service import asking
from stream_dedup.service.ports import addresses
from stream_dedup.settings.settings import Settings

SearchOption = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="URL",
        help="A running search.  [default: on this machine, HTTP_PORT or one of the next]",
    ),
]


@command(
    "find",
    example='stream-dedup find "two sentences of a text, as they stand" --limit 5',
    asks_kafka=False,
)
def find_command(
    settings: Settings,
    clue: Annotated[
        str,
        typer.Argument(
            metavar="CLUE|FILE|-",
            help="A piece of text, a file that holds one, or - for standard input.",
        ),
    ],
    as_text: Annotated[
        bool,
        typer.Option("--text", help="Take the argument as the clue even if a file has that name."),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100, help="Show at most N documents.")
    ] = 20,
    least: Annotated[
        float | None,
        typer.Option(
            "--least",
            metavar="SHARE",
            help="Only documents that hold so much of the clue, 0 to 1.  [default: 0.5; 0.4 of a "
            "clue of up to eleven words]",
        ),
    ] = None,
    search: SearchOption = None,
    as_json: JsonOption = False,
) -> int:
    """Find the documents that hold a clue, a sentence or two, or most of it: how much, where, and
    their group. Best first.
    """
    text = str(read_text(settings, clue, as_text=as_text).text)
    query = urllib.parse.urlencode({"limit": limit} | ({} if least is None else {"least": least}))
    answer = ask_search(settings, search, f"/v1/find?{query}", text.encode("utf-8", "replace"))
    with of_this_version():
        documents = answer["documents"]
        shown = [_shown(one) for one in documents]
    if as_json:
        print_json(answer)
        return 0
    for one in shown:
        console().print(one, soft_wrap=True)
    more = ", the best of them (--limit)" if len(documents) == limit else ""
    note(
        f"{len(documents)} {'document holds' if len(documents) == 1 else 'documents hold'} the "
        f"clue, or most of it{more}."
    )
    return 0


def _shown(one: dict[str, Any]) -> Text:
    line = Text(f"{one['share']:4.0%}  ", "bold")
    line.append(printable(str(one["id"] or one["at"]), 200), "cyan")
    line.append(f"  {one['at']}  {printable(str(one['verdict']), 40)}")
    line.append(f"  group {one['group']}\n" if one["group"] else "\n", "dim")
    line.append("      ")
    if not one["snippet"]:
        line.append("(its text is kept no longer, or cannot be read now)", "dim")
    for piece, matches in one["snippet"]:
        line.append(
            printable(re.sub(r"\s+", " ", str(piece)), 2000), "bold yellow" if matches else ""
        )
    return line


@contextmanager
def of_this_version() -> Iterator[None]:
    """Say it where an answer of a search cannot be understood."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"The answer is not that of a search of this version ({error!r:.100})."
        ) from error


def ask_search(
    settings: Settings, url: str | None, path: str, body: bytes | None = None
) -> dict[str, Any]:
    """Return what a search answers.

    Raises:
        InputError: no search answers, or it refuses the question.
        StreamDedupError: it cannot answer now.
    """
    token = settings.console_token_file
    headers = {}
    if token is not None:
        try:
            headers["Authorization"] = f"Bearer {token.read_text().strip()}"
        except OSError as error:
            raise InputError(
                f"The token of the console cannot be read: {error.strerror}; see "
                "CONSOLE_TOKEN_FILE."
            ) from error
    remedy = "Start one with: stream-dedup run search; or name one with --search http://HOST:PORT."
    return asking.ask_role(
        "search", [url] if url is not None else addresses(settings), path, remedy, body, headers
    )[1]
