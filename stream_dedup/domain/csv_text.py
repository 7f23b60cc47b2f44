"""Write tables as CSV that is safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Final

# Where a spreadsheet would start a formula: at the beginning of a cell, or after a character that
# is a separator in some locale, also after blanks and quotes (OWASP, CSV injection).
_CALCULATED: Final = re.compile(r"(?:^|(?<=[;,|\t\r\n]))(?=[\s\"']*[=+\-@＝＋－＠])|^(?=[\t\r\n])")


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a heading and rows as CSV; None becomes an empty cell. An apostrophe is put before
    each text that a spreadsheet would treat as a formula.
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
