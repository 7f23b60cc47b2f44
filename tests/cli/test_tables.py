"""All tables of all commands fit common terminal widths and a pipe."""

from __future__ import annotations

import ast
import functools
import io
from pathlib import Path

import pytest
from rich.console import Console

import stream_dedup
from stream_dedup.domain.tables import FittedTable

ROOT = Path(stream_dedup.__file__).parent
WIDTHS = [80, 100, 130, None]
POSITION = "news.documents-113@98765432"


def render_table(table: FittedTable, width: int | None) -> str:
    """Return the output for a terminal of that width, or for a pipe."""
    out = Console(
        file=io.StringIO(), width=width or 200, force_terminal=width is not None, color_system=None
    )
    table.print_to(out)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


@functools.cache
def tables() -> dict[str, list[str]]:
    """Return the headings of each table that is printed anywhere; a heading that is computed is
    called `computed`."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", "")
            if name not in ("print_table", "table_of", "FittedTable"):
                continue
            values = node.args if name == "table_of" else getattr(node.args[0], "elts", None)
            headings = (
                [str(getattr(element, "value", "computed")) for element in values]
                if values
                else ["name", "value", "origin"]
            )
            found[f"{path.relative_to(ROOT)}:{node.lineno}"] = headings
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("where", tables())
def test_each_table_fits_and_breaks_no_word(where: str, width: int | None) -> None:
    """No line is wider than the terminal; positions, ids, prints and sentences are all there, no
    word of them broken."""
    headings = tables()[where]
    kinds = [
        POSITION,
        "1,234,567,890",
        "0123456789abcdef0123456789abcdef",
        "duplicate",
        "https://news.example/2026/11/24/page",
    ]
    row = [kinds[place % len(kinds)] for place in range(len(headings) - 1)]
    row.append("a sentence of several words, at the end of the row")
    table = FittedTable(headings)
    table.add_row(*row)
    table.add_row(*reversed(row))

    text = render_table(table, width)

    lines = text.splitlines()
    for word in {word for cell in row for word in cell.split()}:
        assert sum(line.split().count(word) for line in lines) >= 2
    if width is None:
        assert len(lines) == 2 + any(headings)
    else:
        assert max(map(len, lines)) <= width


def test_no_command_draws_a_table_of_another_kind() -> None:
    """Rich's own tables break words to fit."""
    assert [
        str(path) for path in ROOT.rglob("*.py") if "rich.table" in path.read_text(encoding="utf-8")
    ] == []
