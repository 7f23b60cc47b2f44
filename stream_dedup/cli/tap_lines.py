"""Format a decision of `tap` for a terminal; control characters are escaped."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from stream_dedup.domain.printable import printable
from stream_dedup.log.output_records import Tapped

_COLOURS = {"unique": "green", "duplicate": "yellow", "dead-letter": "red", "unknown": "magenta"}
_INDENT = " " * 4


def lines(tapped: Tapped, width: int | None) -> Iterator[Text]:
    """Yield the lines of one record for a terminal with `width` columns, or one line if `width` is
    None.

    A part that does not fit starts a new line. Parts are never broken, so that positions can be
    copied.
    """
    line = Text(no_wrap=True, overflow="ignore")
    # As in the console: in UTC, to the second.
    time = "-" if tapped.time is None else f"{tapped.time[:19]}Z".replace("T", " ")
    line.append(f"{time:<20} ", "dim")
    line.append(f"{printable(tapped.verdict, 12):<11} ", _COLOURS.get(tapped.verdict, "magenta"))
    line.append(f"{printable(tapped.reason or '-', 12):<10} ")
    similarity = tapped.similarity or (tapped.distance and f"{tapped.distance} bits")
    line.append(f"{printable(similarity or '', 8):>4} ", "cyan")
    for index, part in enumerate(_parts(tapped)):
        if (
            width is not None
            and line.cell_len + (2 if index else 0) + part.cell_len > width
            and line.plain.strip()
        ):
            line.rstrip()
            yield line
            line = Text(_INDENT, no_wrap=True, overflow="ignore")
        elif index:
            line.append("  ")
        line.append(part)
    yield line


def _parts(tapped: Tapped) -> Iterator[Text]:
    yield Text(printable(tapped.id) if tapped.id else "(no id)", "bold")
    if tapped.copies is not None:
        yield Text.assemble(("copy ", "dim"), printable(tapped.copies, 10))
    if tapped.better is not None:
        yield Text.assemble(("better: ", "dim"), (printable(tapped.better, 10), "green"))
    if tapped.of_id is not None:
        yield Text.assemble(("of ", "dim"), printable(tapped.of_id) or "(no id)")
    if tapped.of_position is not None:
        yield Text(printable(tapped.of_position), "dim")
    if tapped.sibling_id is not None:
        similarity = printable(tapped.sibling_similarity or "", 8)
        yield Text.assemble(
            (f"{similarity} like ", "dim"), printable(tapped.sibling_id) or "(no id)"
        )
        yield Text(printable(tapped.sibling_position or ""), "dim")
    if tapped.verdict == "duplicate":
        position = tapped.position or f"{tapped.topic}-{tapped.partition}@{tapped.offset}"
        yield Text(f"stream-dedup release {printable(position)}", "dim")
    if tapped.message is not None:
        yield Text(printable(tapped.message), "red")
