"""Shared code of the commands `bench ...`: tables, JSON and other programs. The measurements are in
`bench/`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.peers import Peers, peers_command
from stream_dedup.cli.app import versions
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.tables import FittedTable
from stream_dedup.domain.terminal import console, print_json

_STANDARD_OUTPUT = "-"
FiguresOption = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE|-", help="Write all figures there as JSON; - is standard output."
    ),
]


def megabytes(size: int | None) -> str:
    """Return a size in megabytes, as a table shows it."""
    return number(None if size is None else size / 1e6)


def about_peers(peer_versions: Mapping[str, str], missing: Mapping[str, str]) -> str:
    """Return the lines that say what was measured, and which programs could not be."""
    found = ", ".join(f"{name} {number}" for name, number in peer_versions.items())
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, stream-dedup {versions()['stream-dedup']}"
        + (f"; {found}" if found else "")
    ]
    return "\n".join([*lines, *(f"without {name}: {reason}" for name, reason in missing.items())])


def stamped(figures: dict[str, object]) -> dict[str, object]:
    """Return figures with the day and the versions they belong to."""
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "versions": versions()} | figures


@contextlib.contextmanager
def peers_of(*, with_peers: bool) -> Iterator[Peers | None]:
    """Yield the other programs, if they are asked for."""
    if not with_peers:
        yield None
        return
    with Peers(peers_command()) as peers:
        yield peers


def out_of(target: str | None) -> Console:
    """Return where tables go; raise InputError if the JSON cannot be written, before anything is
    measured.
    """
    if target == _STANDARD_OUTPUT:  # standard error has the tables then, as wide as the other one
        width = None if sys.stderr.isatty() else console().width
        return Console(file=sys.stderr, width=width, highlight=False, markup=False)
    if target is not None:
        try:
            with Path(target).open("a", encoding="utf-8"):
                pass
        except OSError as error:
            raise InputError(
                f"The results cannot be written to {target}: {error.strerror}. Give another file "
                "to --json."
            ) from error
    return console()


def write_figures(figures: Mapping[str, object], target: str | None) -> None:
    """Write figures as JSON to a file, or to standard output for `-`."""
    if target == _STANDARD_OUTPUT:
        print_json(figures)
    elif target is not None:
        Path(target).write_text(
            json.dumps(figures, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )


def table_of(first: str, *headings: str) -> FittedTable:
    """Return an empty table of these columns, all but the first to the right."""
    return FittedTable((first, *headings), right=range(1, 1 + len(headings)))


def number(value: float | None, digits: int = 0) -> str:
    """Return a number as a table shows it; a dash for none."""
    return "-" if value is None else f"{value:,.{digits}f}"
