"""The options of `declare`."""

from __future__ import annotations

from typing import Annotated

import typer

from stream_dedup.settings.units import parse_window


def _checked_window(text: str | None) -> str | None:
    try:
        parse_window(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return text


PlanOption = Annotated[
    str | None, typer.Option("--plan", help="New plan: bands, blocks, classic, or numbers.")
]
SimilarityOption = Annotated[
    str | None,
    typer.Option("--similarity", metavar="SHARE", help="New minimum similarity of copies: 0.7."),
]
UnsureOption = Annotated[
    str | None,
    typer.Option(
        "--unsure",
        metavar="SHARE",
        help="The same for pages of one site with equal titles, or if a site is unknown.",
    ),
]
SameSiteOption = Annotated[
    str | None,
    typer.Option(
        "--same-site", metavar="SHARE", help="The same for pages of one site if a title is unknown."
    ),
]
OtherTitleOption = Annotated[
    str | None,
    typer.Option(
        "--other-title",
        metavar="SHARE",
        help="The same for pages of one site with different titles.",
    ),
]
WindowOption = Annotated[
    str | None,
    typer.Option(
        "--window", metavar="TIME|none", help="New window, such as 30d.", callback=_checked_window
    ),
]
RefreshOption = Annotated[
    bool | None,
    typer.Option(
        "--refresh/--no-refresh",
        help="Whether a duplicate restarts the window of its kept document.",
        show_default=False,
    ),
]
BetterOption = Annotated[
    str | None,
    typer.Option("--better", metavar="RULE", help="Which copy is better: longest or newest."),
]
LogFormatOption = Annotated[
    int | None,
    typer.Option(
        "--format",
        metavar="N",
        help="New format of the log, after you upgraded every role. It cannot be lowered.",
    ),
]
ReadingOption = Annotated[
    bool,
    typer.Option(
        "--reading",
        help="Declare the input settings of this command. Then restart every worker with them.",
    ),
]
IndexOption = Annotated[
    list[str] | None,
    typer.Option(
        "--index",
        metavar="URL",
        help=(
            "Index whose memory and format are checked first; repeat it for each replica. Default: on "
            "this machine."
        ),
    ),
]
UncheckedOption = Annotated[
    bool,
    typer.Option(
        "--unchecked",
        help="Do not check memory and format of an index first. An index that cannot apply the "
        "order exits with 78.",
    ),
]
