"""Every table of every command, at the widths people have, and on a pipe."""

from __future__ import annotations

import ast
import functools
import io
from pathlib import Path

import pytest
from rich.console import Console

import stream_dedup
from stream_dedup.cli import top
from stream_dedup.ground.tables import FittedTable

ROOT = Path(stream_dedup.__file__).parent
WIDTHS = [80, 100, 130, None]
POSITION = "news.documents-113@98765432"


def printed(table: FittedTable, width: int | None) -> str:
    """Return what a terminal of that width is sent, or a pipe."""
    out = Console(file=io.StringIO(), width=width or 200, force_terminal=width is not None, color_system=None)
    table.print_to(out)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


@functools.cache
def tables() -> dict[str, list[str]]:
    """Return the headings of each table that is printed anywhere; a heading that is computed is called `computed`."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", "")
            if name not in ("print_table", "table_of", "FittedTable"):
                continue
            values = node.args if name == "table_of" else getattr(node.args[0], "elts", None)
            headings = [str(getattr(one, "value", "computed")) for one in values] if values else ["name", "value", "origin"]
            found[f"{path.relative_to(ROOT)}:{node.lineno}"] = headings
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("where", tables())
def test_each_table_fits_and_breaks_nothing(where: str, width: int | None) -> None:
    """No line is wider than the terminal; positions, ids, prints and sentences are all there, no word of them broken."""
    headings = tables()[where]
    kinds = [POSITION, "1,234,567,890", "0123456789abcdef0123456789abcdef", "duplicate", "https://news.example/2026/11/24/page"]
    row = [kinds[place % len(kinds)] for place in range(len(headings) - 1)]
    row.append("a sentence of several words, at the end of the row")
    table = FittedTable(headings)
    table.add_row(*row)
    table.add_row(*reversed(row))

    text = printed(table, width)

    lines = text.splitlines()
    for word in {word for cell in row for word in cell.split()}:
        assert sum(line.split().count(word) for line in lines) >= 2
    if width is None:
        assert len(lines) == 3
    else:
        assert max(map(len, lines)) <= width


def test_no_command_draws_a_table_of_another_kind() -> None:
    """Rich's own tables break words to fit."""
    assert [str(path) for path in ROOT.rglob("*.py") if "rich.table" in path.read_text(encoding="utf-8")] == []


FULL = {
    "documents_rate": 12_345.0,
    "bytes_rate": 123.4e6,
    "dead_letters_rate": 0.5,
    "duplicate_ratio": 0.333,
    "lag_records": 1.2e6,
    "latency_p50_seconds": 0.033,
    "latency_p99_seconds": 119.0,
    "in_flight_documents": 12_000.0,
    "aborted_ratio": 1.0,
    "log_records_rate": 80.0,
    "applied_offset": 123_456_789.0,
    "representatives": 1_234_567_890.0,
    "index_bytes": 40e9,
    "candidates_mean": 4.5,
    "insights_records_rate": 3.0,
    "insights_lag_records": 5.0,
    "hosts": 1_000_000.0,
}


@pytest.mark.parametrize("width", WIDTHS)
def test_top_has_a_table_of_each_kind_of_role(width: int | None) -> None:
    """Each role is a line among its own kind, with all its figures, and a silent one says why; at 80 columns too."""
    rows = [top.TopRow(f"http://worker-{place}:8080", "worker", figures=FULL) for place in range(3)]
    rows += [top.TopRow("http://127.0.0.1:8081", role, figures=FULL) for role in ("index", "insights")]
    rows.append(top.TopRow("http://worker-3:8080", None, problem="Connection refused"))
    out = Console(file=io.StringIO(), width=width or 200, force_terminal=width is not None, color_system=None)

    out.print(top.drawn(rows), crop=False)

    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    worker = next(line for line in lines if line.startswith("worker-0:8080"))
    index = next(line for line in lines if "1,234,567,890" in line)
    assert " ".join(worker.split()) == "worker-0:8080 12,345 123.4 33.3 % 0.5 1.2M 33 ms 119.0 s 12,000 100 %"
    assert " ".join(index.split()) == "127.0.0.1:8081 80 123,456,789 1,234,567,890 4.5 40,000 MB"
    assert any(line.split() == ["worker-3:8080", "Connection", "refused"] for line in lines)
    assert width is None or max(map(len, lines)) <= width
    assert len(lines) <= 3 + 3 + 3 * 3 + 3
