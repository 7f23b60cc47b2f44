"""Print tables, JSON and the progress of commands."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from stream_dedup.domain.printable import counted, printable
from stream_dedup.domain.tables import FittedTable

_PIPED_WIDTH = 200
_BAR_SECONDS, LINE_SECONDS = 0.2, 30.0


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
    """Print a remark on standard error as one printable line, after the output so far.

    Raises:
        BrokenPipeError: the reader of the output has ended.
    """
    sys.stdout.flush()
    sys.stderr.write(printable(text, 2000) + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def progress(label: str, total_bytes: int | None) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error, or a line every `LINE_SECONDS` if it is not a terminal; yield a
    function (documents, bytes) that advances it. With a known size, the share and the time left are
    shown.
    """
    errors = Console(stderr=True)
    documents = size = 0
    with contextlib.ExitStack() as stack:
        if errors.is_terminal:
            # The bar fits 80 columns.
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(10),
                TextColumn("{task.fields[documents]:,} documents"),
                TimeElapsedColumn(),
                *(
                    (TaskProgressColumn(), TimeRemainingColumn(), TextColumn("left"))
                    if total_bytes
                    else ()
                ),
            )
            # The time left is estimated from the speed of the last five minutes.
            bar = Progress(*columns, console=errors, transient=True, speed_estimate_period=300)
            task = stack.enter_context(bar).add_task(
                printable(label, 20), total=total_bytes or None, documents=0
            )
            due, seconds = 0.0, _BAR_SECONDS
        else:
            due, seconds = time.monotonic() + LINE_SECONDS, LINE_SECONDS

        def advance(more_documents: int, more_bytes: int) -> None:
            nonlocal documents, size, due
            documents += more_documents
            size += more_bytes
            if (now := time.monotonic()) < due:
                return
            due = now + seconds
            if errors.is_terminal:
                bar.update(task, completed=size, documents=documents)
            else:
                share = f", {min(size / total_bytes, 1):.0%} of the bytes" if total_bytes else ""
                note(f"{printable(label)}: {counted(documents, 'document')}{share}")

        yield advance
