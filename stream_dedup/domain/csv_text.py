"""Tables as CSV for people who open them in a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Final

# Where a spreadsheet may begin a cell, at the beginning or behind what its locale cuts at, and what
# it calculates there, behind blanks and quotes too (OWASP, CSV injection).
_CALCULATED: Final = re.compile(r"(?:^|(?<=[;,|\t\r\n]))(?=[\s\"']*[=+\-@＝＋－＠])|^(?=[\t\r\n])")


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV with a heading, None as nothing. A text that a spreadsheet would calculate
    begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, int | float):
        return value
    return "" if value is None else _CALCULATED.sub("'", str(value))
