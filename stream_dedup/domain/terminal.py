"""Print tables, JSON and the progress of commands."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from stream_dedup.domain.printable import printable
from stream_dedup.domain.tables import FittedTable

_PIPED_WIDTH = 200


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Let the command choose its exit code; rich would exit with 1."""
        raise BrokenPipeError


def console() -> Console:
    """Return a console on standard output; it is wide if this is not a terminal, so that files get
    whole lines.
    """
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return _Output(file=sys.stdout, width=width, highlight=False, markup=False, soft_wrap=False)


def print_json(value: object) -> None:
    """Print one JSON value on one line; as ASCII if it contains a character that a terminal could
    interpret.
    """
    text = json.dumps(value, ensure_ascii=False)
    sys.stdout.write((text if text.isprintable() else json.dumps(value)) + "\n")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
    """Print a table that fits the terminal; plain strings are made printable."""
    table = FittedTable(headings)
    for row in rows:
        table.add_row(*row)
    table.print_to(console())


def print_counts(
    counts: Mapping[str, int], *, heading: str = "", as_json: bool = False, **more: object
) -> None:
    """Print one count per line; or `more` and the counts as one JSON object."""
    if as_json:
        print_json({**more, **counts})
    else:
        print_table(
            ["", heading],
            [[name.replace("_", " "), f"{count:,}"] for name, count in counts.items()],
        )


def note(text: str) -> None:
    """Print a remark on standard error as one printable line."""
    sys.stderr.write(printable(text, 2000) + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def progress(label: str, total_bytes: int | None) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error if it is a terminal; yield a function (more documents,
    more bytes) that advances it. With `total_bytes` the bar shows the share done and the time left.
    """
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield lambda _documents, _bytes: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[documents]:,} documents"),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        *((TaskProgressColumn(), TimeRemainingColumn(), TextColumn("left")) if total_bytes else ()),
    )
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task(printable(label), total=total_bytes or None, documents=0)
        documents = 0

        def advance(more_documents: int, more_bytes: int) -> None:
            nonlocal documents
            documents += more_documents
            bar.update(task, advance=more_bytes, documents=documents)

        yield advance
