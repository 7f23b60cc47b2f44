"""Print tables that fit the terminal.

In a pipe or file every row is one line. On a terminal, cells are wrapped at spaces. If the longest
words side by side are wider than the terminal, each row becomes a block: its first cell, then one
line for each other column.

Invariant: no word is ever broken, so that a position or an id can be copied and found with `grep`.
A word of the last column that is longer than the terminal runs over its edge.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from stream_dedup.domain.printable import printable

_GAPS = (2, 1)
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

    def lines(self, width: int | None) -> Iterator[Text]:
        """Yield the lines for a terminal of `width` characters; None means a pipe or file."""
        columns = list(zip(self._headings, *self._rows, strict=True))
        whole = [max(cell_len(cell.plain) for cell in column) for column in columns]
        if width is None:
            yield from self._table(whole, _GAPS[0])
            return
        least = [self._least(place, column) for place, column in enumerate(columns)]
        for gap in _GAPS:
            widths = _fitted(whole, least, width - gap * (len(columns) - 1))
            if widths is not None:
                yield from self._table(widths, gap)
                return
        for row in self._rows:
            yield from self._block(row, width)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines for the width of the console."""
        yield from self.lines(options.max_width if options.is_terminal else None)

    def _least(self, place: int, column: Sequence[Text]) -> int:
        """Return the minimum width of a column: numbers stay with their units, and words are not
        broken.
        """
        if place in self._right:
            return max(_longest_word(column[:1]), *(cell_len(cell.plain) for cell in column[1:]), 0)
        longest = _longest_word(column)
        return longest if place < len(self._headings) - 1 else min(longest, _LAST_WIDTH_MIN)

    def _table(self, widths: Sequence[int], gap: int) -> Iterator[Text]:
        for row in (self._headings, *self._rows):
            cells = [
                list(_wrap(cell.plain, width)) for cell, width in zip(row, widths, strict=True)
            ]
            for place in range(max(map(len, cells), default=0)):
                line = _line()
                for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
                    text = cells[column][place] if place < len(cells[column]) else ""
                    padding = " " * max(0, width - cell_len(text))
                    line.append(
                        padding + text if column in self._right else text + padding, cell.style
                    )
                    line.append(" " * gap)
                line.rstrip()
                yield line

    def _block(self, row: Sequence[Text], width: int) -> Iterator[Text]:
        yield _line().append(row[0].plain, row[0].style or "bold")
        named = [
            (heading, cell)
            for heading, cell in zip(self._headings[1:], row[1:], strict=True)
            if cell.plain
        ]
        label = (
            0
            if len(row) <= 2
            else max((cell_len(heading.plain) for heading, _ in named), default=0) + _GAPS[0]
        )
        for heading, cell in named:
            name = heading.plain if label else ""
            for part in _wrap(cell.plain, max(width - len(_INDENT) - label, 1)):
                yield (
                    _line()
                    .append(_INDENT + name + " " * (label - cell_len(name)))
                    .append(part, cell.style)
                )
                name = ""


def _line() -> Text:
    return Text(no_wrap=True, overflow="ignore", end="\n")


def _longest_word(column: Sequence[Text]) -> int:
    return max((cell_len(word) for cell in column for word in cell.plain.split(" ")), default=0)


def _fitted(whole: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Return the width of each column, between its minimum and its longest cell; None if the
    minimum widths exceed `room`.
    """
    widths = list(least)
    left = room - sum(widths)
    if left < 0:
        return None
    # Columns that need the least more are widened first, so that short columns are not wrapped.
    waiting = sorted(range(len(widths)), key=lambda column: whole[column] - widths[column])
    for number, column in enumerate(waiting):
        more = min(whole[column] - widths[column], left // (len(waiting) - number))
        widths[column] += more
        left -= more
    return widths


def _wrap(text: str, width: int) -> Iterator[str]:
    """Yield lines of whole words; a word that is longer than a line has a line to itself."""
    if cell_len(text) <= width:
        yield text
        return
    line = ""
    for word in text.split(" "):
        if line and cell_len(line) + 1 + cell_len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line
