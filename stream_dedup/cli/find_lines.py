"""Format a document that `find` found for a terminal; control characters are escaped."""

from __future__ import annotations

import re
from typing import Any

from rich.text import Text

from stream_dedup.domain.printable import printable, utc_text


def fetches_text(document: dict[str, Any]) -> str:
    """Return how often a page was fetched, and from when to when; empty for one fetch."""
    if document["fetches"] == 1:
        return ""
    first, newest = utc_text(document["first_ms"]) or "-", utc_text(document["newest_ms"]) or "-"
    return f"  {document['fetches']:,} fetches, {first} to {newest}"


def line_of(document: dict[str, Any]) -> Text:
    """Return two lines about a document: its id, time and position; its snippet."""
    line = Text(f"{document['share']:4.0%}  ", "bold")
    line.append(printable(str(document["id"] or document["output_position"]), 200), "cyan")
    line.append(f"  {utc_text(document['time_ms']) or '-'}", "dim")
    line.append(f"  {document['output_position']}  {printable(str(document['verdict']), 40)}")
    line.append(fetches_text(document), "dim")
    line.append(
        f"  group {document['group_position']}\n" if document["group_position"] else "\n", "dim"
    )
    line.append("      ")
    if not document["snippet"]:
        line.append("(the text was deleted, or cannot be read now)", "dim")
    for piece, matches in document["snippet"]:
        line.append(
            printable(re.sub(r"\s+", " ", str(piece)), 2000), "bold yellow" if matches else ""
        )
    return line
