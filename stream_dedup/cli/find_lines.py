"""Format a document that `find` found for a terminal, with all its text made printable."""

from __future__ import annotations

import re
from typing import Any

from rich.text import Text

from stream_dedup.domain.printable import printable, utc_text


def line_of(document: dict[str, Any]) -> Text:
    """Return the two lines of a document: what it is, and where it contains the text."""
    line = Text(f"{document['share']:4.0%}  ", "bold")
    line.append(printable(str(document["id"] or document["at"]), 200), "cyan")
    line.append(f"  {utc_text(document['time_ms']) or '-'}", "dim")
    line.append(f"  {document['at']}  {printable(str(document['verdict']), 40)}")
    line.append(f"  group {document['group']}\n" if document["group"] else "\n", "dim")
    line.append("      ")
    if not document["snippet"]:
        line.append("(its text was deleted, or cannot be read now)", "dim")
    for piece, matches in document["snippet"]:
        line.append(
            printable(re.sub(r"\s+", " ", str(piece)), 2000), "bold yellow" if matches else ""
        )
    return line
