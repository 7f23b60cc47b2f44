"""Print tables that fit the terminal.

In a pipe or file every row is one line. On a terminal, the last column is wrapped at spaces. If it
has too little room beside the others, each row becomes a block: its first cell, then one line for
each other column.

Invariant: no word is ever broken, so that a position or an id can be copied and found with `grep`.
A word of the last column that is longer than the terminal runs over its edge.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from stream_dedup.domain.printable import printable

_GAP = 2
_LAST_WIDTH_MIN = 40
_INDENT = "  "


class FittedTable:
    """Rows under headings. `right` contains the numbers of the right-aligned columns."""

    def __init__(self, headings: Sequence[str], right: Container[int] = ()) -> None:
        self._headings = [Text(heading, "bold") for heading in headings]
        self._right = right
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        """Add a row; plain strings are made printable."""
        row = [cell if isinstance(cell, Text) else Text(printable(cell, 2000)) for cell in cells]
        self._rows.append(row + [Text() for _ in self._headings[len(row) :]])

    def print_to(self, out: Console) -> None:
        """Print the table; text that is wider than the terminal is not cut."""
        out.print(self, crop=False)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines for the width of the console."""
        columns = zip(self._headings, *self._rows, strict=True)
        *widths, last = [max(cell.cell_len for cell in column) for column in columns]
        room = last
        if options.is_terminal:
            room = options.max_width - sum(widths) - _GAP * len(widths)
        if room >= min(last, _LAST_WIDTH_MIN):
            yield from self._table([*widths, min(last, room)])
        else:
            for row in self._rows:
                yield from self._block(row, options.max_width)

    def _table(self, widths: Sequence[int]) -> Iterator[Text]:
        has_headings = any(heading.plain for heading in self._headings)
        for row in (self._headings, *self._rows)[not has_headings :]:
            line = _line()
            for column, (cell, width) in enumerate(zip(row[:-1], widths, strict=False)):
                padding = " " * (width - cell.cell_len + _GAP)
                is_right = column in self._right
                line.append(padding[_GAP:] if is_right else "").append(cell)
                line.append(padding[:_GAP] if is_right else padding)
            indent = " " * line.cell_len
            is_right = len(row) - 1 in self._right
            for part in _wrap(row[-1], widths[-1]):
                line.append(" " * (widths[-1] - part.cell_len) if is_right else "").append(part)
                line.rstrip()
                yield line
                line = _line().append(indent)

    def _block(self, row: Sequence[Text], width: int) -> Iterator[Text]:
        yield _line().append(row[0].plain, row[0].style or "bold")
        labelled_cells = [
            (heading.plain if len(row) > 2 else "", cell)
            for heading, cell in zip(self._headings[1:], row[1:], strict=True)
            if cell.plain
        ]
        label_width = max(
            (cell_len(heading) + _GAP for heading, _ in labelled_cells if heading), default=0
        )
        for heading, cell in labelled_cells:
            line = _line().append(_INDENT + heading + " " * (label_width - cell_len(heading)))
            for part in _wrap(cell, width - line.cell_len):
                yield line.append(part)
                line = _line().append(_INDENT + " " * label_width)


def _line() -> Text:
    return Text(no_wrap=True, overflow="ignore", end="\n")


def _wrap(cell: Text, width: int) -> Iterator[Text]:
    """Yield lines of whole words; a word that is longer than a line has a line to itself."""
    line = ""
    for word in cell.plain.split(" "):
        if line and cell_len(line) + 1 + cell_len(word) > width:
            yield Text(line, cell.style)
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield Text(line, cell.style)
