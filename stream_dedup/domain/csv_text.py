"""Write tables as CSV that is safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Final

# Where a spreadsheet would start a formula: at the beginning of a cell, or after a character that
# is a separator in some locale, also after blanks and quotes (OWASP, CSV injection).
_FORMULA_START: Final = re.compile(
    r"(?:^|(?<=[;,|\t\r\n]))(?=[\s\"']*[=+\-@＝＋－＠])|^(?=[\t\r\n])"
)


# Control characters but tab and line ends, and those that change the direction of text.
_INVISIBLE: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a heading and rows as CSV; None becomes an empty cell. An apostrophe is put before
    each text that a spreadsheet would treat as a formula; control characters are written as escapes.
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
    if value is None:
        return ""
    shown = _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(value))
    return _FORMULA_START.sub("'", shown)
