"""`tap`: print decisions from the output topics as they are made.

Invariants: only committed records are printed; all text of a record is made printable first; a record
without the headers of this product has the verdict `unknown`.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.text import Text

from stream_dedup.cli.options import JsonOption, command
from stream_dedup.domain.document import OUTCOMES, Message
from stream_dedup.domain.printable import printable
from stream_dedup.domain.terminal import console, note, print_json
from stream_dedup.inputs.decoder import ids_of
from stream_dedup.kafka import Admin, read_partition, reader
from stream_dedup.log import headers
from stream_dedup.settings.settings import Settings

_COLOURS = {"unique": "green", "duplicate": "yellow", "dead-letter": "red", "unknown": "magenta"}
_SAME_TEXT = {label for label, reason in OUTCOMES.items() if reason.has_same_text}
_INDENT = " " * 4
_OUTPUTS = ("unique", "duplicates", "dead-letters")
OutputName = enum.StrEnum("OutputName", [(name.upper(), name) for name in _OUTPUTS])  # type: ignore[misc]


@command("tap", example="stream-dedup tap --only duplicates --limit 20")
def tap_command(
    settings: Settings,
    only: Annotated[
        list[OutputName] | None,
        typer.Option("--only", help="Show only these. Repeatable."),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option("--from-beginning", help="Start with the oldest decisions."),
    ] = False,
    until_now: Annotated[
        bool,
        typer.Option(
            "--until-now",
            help="Exit at the end of the topics.",
        ),
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Exit after N decisions.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Print decisions as they are made: time, verdict, reason, similarity, id, kept document and
    its position.

    After a duplicate it prints the command that releases it; after a page that was kept because of
    its site or title, the sibling of that page.
    """
    names = settings.topic_names
    by_output = dict(zip(_OUTPUTS, names.outputs, strict=True))
    topics = [topic for output, topic in by_output.items() if not only or output in only]
    out = console()
    shown = 0
    id_of = ids_of(settings)
    try:
        if not as_json and not until_now:
            note(f"Decisions from {', '.join(topics)}; end with Ctrl-C.")
        messages = (
            _read_stored(settings, topics)
            if until_now
            else reader(settings, topics, from_beginning=from_beginning)
        )
        for message in messages:
            if message is None:
                continue
            tapped = describe(message, names.dead_letters, id_of(message))
            if as_json:
                print_json(asdict(tapped))
                out.file.flush()
            else:
                for line in lines(tapped, out.width if out.is_terminal else None):
                    out.print(line, soft_wrap=True)
            shown += 1
            if shown == limit:
                break
    except KeyboardInterrupt:
        pass
    return 0


def _read_stored(settings: Settings, topics: Sequence[str]) -> Iterator[Message]:
    """Yield the records that topics contain now, by partition."""
    admin = Admin(settings)
    for topic in topics:
        _, partitions = admin.topic_ids([topic]).get(topic, ("", 0))
        for partition in range(partitions):
            end = admin.end_offset(topic, partition)
            yield from read_partition(settings, topic, partition, until=end)


@dataclass(frozen=True, slots=True)
class Tapped:
    """A record of an output topic as `--json` prints it; a missing header is None."""

    time: str | None
    topic: str
    partition: int
    offset: int
    verdict: str
    reason: str | None
    distance: str | None
    similarity: str | None
    copies: str | None
    better: str | None
    id: str | None
    of_id: str | None
    of_position: str | None
    position: str | None
    message: str | None
    sibling_id: str | None = None
    sibling_position: str | None = None
    sibling_similarity: str | None = None


def describe(message: Message, dead_letters: str, identifier: bytes | None) -> Tapped:
    """Return the verdict and other headers of a record of an output topic."""
    found = dict(message.headers or [])  # the last header of a name is ours
    is_dead = message.topic == dead_letters
    verdict = "dead-letter" if is_dead else _text(found, headers.VERDICT) or "unknown"
    reason = _text(found, headers.ERROR_STAGE if is_dead else headers.REASON)
    return Tapped(
        time=None
        if message.timestamp_ms is None
        else headers.rfc3339(message.timestamp_ms) or None,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        verdict=verdict,
        reason=reason,
        distance=_text(found, headers.DISTANCE),
        similarity="1.00" if reason in _SAME_TEXT else _text(found, headers.SIMILARITY),
        copies=_text(found, headers.COPIES),
        better=_text(found, headers.BETTER),
        id=None if identifier is None else identifier.decode("utf-8", "replace"),
        of_id=_text(found, headers.OF_ID),
        of_position=_text(found, headers.OF_POSITION),
        position=_text(found, headers.POSITION),
        message=_text(found, headers.DLQ_MESSAGE),
        sibling_id=_text(found, headers.SIBLING_ID),
        sibling_position=_text(found, headers.SIBLING_POSITION),
        sibling_similarity=_text(found, headers.SIBLING_SIMILARITY),
    )


def _text(found: Mapping[str, bytes | None], name: str) -> str | None:
    value = found.get(name)
    return None if value is None else value.decode("utf-8", "replace")


def lines(tapped: Tapped, width: int | None) -> Iterator[Text]:
    """Yield the lines of one record for a terminal with `width` columns, or one line if it is None.

    A part that does not fit begins a new line; parts are never broken, so that positions can be
    copied.
    """
    line = Text(no_wrap=True, overflow="ignore")
    line.append(f"{_clock(tapped.time):<12} ", "dim")
    line.append(f"{printable(tapped.verdict, 12):<11} ", _COLOURS.get(tapped.verdict, "magenta"))
    line.append(f"{printable(tapped.reason or '-', 12):<10} ")
    alike = tapped.similarity or (tapped.distance and f"{tapped.distance} bits")
    line.append(f"{printable(alike or '', 8):>4} ", "cyan")
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
        share = printable(tapped.sibling_similarity or "", 8)
        yield Text.assemble((f"{share} like ", "dim"), printable(tapped.sibling_id) or "(no id)")
        yield Text(printable(tapped.sibling_position or ""), "dim")
    if tapped.verdict == "duplicate":
        here = tapped.position or f"{tapped.topic}-{tapped.partition}@{tapped.offset}"
        yield Text(f"stream-dedup release {printable(here)}", "dim")
    if tapped.message is not None:
        yield Text(printable(tapped.message), "red")


def _clock(time: str | None) -> str:
    """Return the local time of a record of today, and the date of older ones."""
    if time is None:
        return "-"
    moment = dt.datetime.fromisoformat(time).astimezone()
    is_today = moment.date() == dt.datetime.now(tz=dt.UTC).astimezone().date()
    return moment.strftime("%H:%M:%S.%f")[:12] if is_today else moment.strftime("%Y-%m-%d")
