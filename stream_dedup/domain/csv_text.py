"""Write tables as CSV that is safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Final

# Where a spreadsheet would start a formula: at the beginning of a cell, or after a character that
# is a separator in some locale, also after blanks and quotes (OWASP, CSV injection).
_FORMULA_START: Final = re.compile(r"(?:^|(?<=[;,|]))(?=[\s\"']*[=+\-@＝＋－＠])")


# Control characters with all line ends, so that each row is one line for any tool; and characters
# that change the direction of text.
_INVISIBLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a heading and rows as CSV; None becomes an empty cell. An apostrophe is put before
    each text that a spreadsheet would treat as a formula; control characters are written as escapes,
    as on pages and terminals.
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
