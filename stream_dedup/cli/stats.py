"""`stats`: what the filter has saved, by day, from the outputs and the log.

How it reads: where each day begins in each partition is asked of Kafka by timestamp (one question a day); of each day's
records runs are read all over each partition (see `estimate`), so it costs some twenty thousand records however much was
filtered. What is short is read whole. `exact` reads every record instead.

Days are the records' own timestamps: the crawler's, or the time of writing where it sends none. `judged` counts the documents
in the log by the time they came there, not by their timestamps.

Invariant: a figure that was estimated says between what it lies; nothing is committed, joined or written.
"""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from stream_dedup.cli.estimate import Place, Runs, Span, places, share, total
from stream_dedup.cli.options import JsonOption, command
from stream_dedup.ground.document import Message, TopicPartitionKey, Verdict
from stream_dedup.ground.errors import ConfigurationError, FormatError, OtherFormatError
from stream_dedup.ground.terminal import note, print_json, print_table, progress
from stream_dedup.kafka import Admin, sample
from stream_dedup.log import headers, records
from stream_dedup.settings.settings import Settings
from stream_dedup.settings.units import parse_duration

_JUDGED = "judged"
_DAY_MS = 86_400_000


@command("stats", example="stream-dedup stats --since 7d")
def stats_command(
    settings: Settings,
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="How far back: 12h, 7d, 4w.")] = "7d",
    exact: Annotated[
        bool, typer.Option("--exact", help="Read every record of the period instead of a few thousand: whole documents.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Say what was saved: documents, duplicates by reason and bytes, by day. Cheap: it reads a sample, and says how much.

    Days are those of the records' timestamps, as far back as the outputs still hold them.
    """
    try:
        seconds = parse_duration(since).total_seconds()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from error
    if not 0 < seconds <= 366 * 86_400:
        raise typer.BadParameter("must be more than nothing and at most 366d", param_hint="--since")
    now_ms = int(time.time() * 1000)
    edges = day_edges(now_ms - int(seconds * 1000), now_ms)
    cost = Cost()
    days = _days(settings, edges, cost, exact=exact)
    every = DayFigures([runs for day in days for runs in day.runs])
    rows = [{"day": _day(edge), **day.fields()} for edge, day in zip(edges, days, strict=False)]
    whole = every.fields()
    reading = {"records": cost.records, "bytes": cost.size_bytes}
    if as_json:
        print_json(
            {"since": headers.rfc3339(edges[0]), "estimated": every.is_estimated, "read": reading, "total": whole, "days": rows}
        )
        return 0
    print(headline(whole, seconds, delivers=settings.mode == "enforce"))
    print()
    print_table(
        ["day (UTC)", "documents", "duplicates", "saved", "share", "judged", "reasons"],
        [_cells(str(row["day"]), row) for row in rows] + ([_cells("all", whole)] if len(rows) > 1 else []),
    )
    note(
        f"Read {cost.records:,} records, {_size(cost.size_bytes)}, of {settings.topic_names.unique}, "
        f"{settings.topic_names.duplicates} and {settings.topic_names.fingerprints}"
        + (
            f"; the figures are estimated from these, and a reason of fewer than {whole['unseen_below']:,} documents may be "
            "missing. --exact reads all."
            if every.is_estimated
            else "; that is all there were."
        )
    )
    return 0


@dataclass(frozen=True, slots=True)
class DayFigures:
    """What the runs of records of a day, or of several, say."""

    runs: Sequence[Runs]

    @property
    def is_estimated(self) -> bool:
        """Whether something was not read."""
        return not all(one.is_whole for one in self.runs)

    def fields(self) -> dict[str, Any]:
        """Return the figures as JSON has them, with the range of each that was estimated."""
        verdicts = [verdict.value for verdict in Verdict]
        sizes = [f"bytes of {verdict}" for verdict in verdicts]
        reasons = sorted({name for one in self.runs for sums in one.sums for name in sums if name.startswith("reason ")})
        found = {
            "documents": total(self.runs, dict.fromkeys(verdicts, 1.0)),
            "unique": total(self.runs, {verdicts[0]: 1.0}),
            "duplicates": total(self.runs, {verdicts[1]: 1.0}),
            "judged": total(self.runs, {_JUDGED: 1.0}),
            "bytes": total(self.runs, dict.fromkeys(sizes, 1.0)),
            "bytes_saved": total(self.runs, {sizes[1]: 1.0}),
        }
        part = share(self.runs, sizes[1], sizes)
        by_reason = {name.removeprefix("reason "): total(self.runs, {name: 1.0}) for name in reasons}
        ranges: dict[str, Any] = {name: [round(one.low), round(one.high)] for name, one in found.items() if one.low < one.high}
        if part and part.low < part.high:
            ranges["share_saved"] = [round(part.low, 4), round(part.high, 4)]
        ranged = {name: [round(one.low), round(one.high)] for name, one in by_reason.items() if one.low < one.high}
        return {
            **{name: round(one.value) for name, one in found.items()},
            "share_saved": round(part.value, 4) if part else None,
            "reasons": {name: round(one.value) for name, one in by_reason.items()},
            "ranges": {**ranges, **({"reasons": ranged} if ranged else {})},
            "unseen_below": self._unseen_below(),
        }

    def _unseen_below(self) -> int:
        """Return how many documents a reason may have of which none was read (19 in 20 of the times); 0 if all was read."""
        parts = [one for one in self.runs if not one.is_whole and not any(_JUDGED in sums for sums in one.sums)]
        count = sum(len(one.lengths) for one in parts)
        return round(3 * sum(sum(one.stretches) for one in parts) / count) if count else 0


@dataclass(slots=True)
class Cost:
    """What was read."""

    records: int = 0
    size_bytes: int = 0


def headline(whole: Mapping[str, Any], since_seconds: float, *, delivers: bool) -> str:
    """Return the one line that is asked for: `saved 412 GB, 38 %, in 7 days`; with ranges where it was estimated."""
    part = whole["share_saved"]
    days = since_seconds / 86_400
    period = f"{days:.0f} days" if days >= 1.5 else f"{since_seconds / 3600:.0f} hours"
    if part is None:
        return f"nothing was filtered in {period}"
    what = "saved" if delivers else "would have saved"
    ranges = whole["ranges"]
    saved, percent = _size(whole["bytes_saved"]), f"{100 * part:.0f} %"
    if "bytes_saved" in ranges:
        low, high = ranges["bytes_saved"]
        saved = f"about {saved} ({_size(low)} to {_size(high)})"
    if "share_saved" in ranges:
        low, high = ranges["share_saved"]
        percent = f"{percent} ({100 * low:.0f} to {100 * high:.0f} %)"
    return (
        f"{what} {saved}, {percent}, in {period}: {whole['duplicates']:,} of {whole['documents']:,} documents were duplicates"
    )


def day_edges(first_ms: int, end_ms: int) -> list[int]:
    """Return where the days between two times begin, in UTC, with the two times as first and last edge."""
    midnight = (first_ms // _DAY_MS + 1) * _DAY_MS
    return [first_ms, *range(midnight, end_ms, _DAY_MS), end_ms]


def read_runs(places_of: Mapping[TopicPartitionKey, Sequence[Place]], found: Iterable[Message]) -> list[Runs]:
    """Return the sums of each run of `places_of`, given the records in them."""
    sums: dict[TopicPartitionKey, list[dict[str, float]]] = {key: [{} for _ in places] for key, places in places_of.items()}
    at = dict.fromkeys(places_of, 0)
    for message in found:
        key = (message.topic, message.partition)
        while message.offset >= places_of[key][at[key]][1][1]:
            at[key] += 1
        own = sums[key][at[key]]
        for name, amount in _amounts(message):
            own[name] = own.get(name, 0.0) + amount
    return [
        Runs([stretch for stretch, _ in places], [end - begin for _, (begin, end) in places], sums[key])
        for key, places in places_of.items()
        if places
    ]


def _amounts(message: Message) -> Iterator[tuple[str, float]]:
    """Yield what a record adds to which figures; somebody else's record adds nothing.

    Raises:
        OtherFormatError: it is a record of the log that this version does not know.
    """
    verdict = headers.text_of(message.headers, headers.VERDICT)
    if verdict in {one.value for one in Verdict}:
        yield str(verdict), 1.0
        yield f"bytes of {verdict}", float(len(message.value or b""))
        yield f"reason {headers.text_of(message.headers, headers.REASON) or 'unknown'}", 1.0
        return
    try:
        record = records.decode(message.value)
    except OtherFormatError:
        raise
    except FormatError:
        return
    if isinstance(record, records.Batch):
        yield _JUDGED, float(len(record))


def _days(settings: Settings, edges: Sequence[int], cost: Cost, *, exact: bool) -> list[DayFigures]:
    admin, names = Admin(settings), settings.topic_names
    wanted = (names.unique, names.duplicates, names.fingerprints)
    known = admin.topic_ids(wanted)
    missing = [name for name in wanted if name not in known]
    if missing:
        raise ConfigurationError(f"The topic {missing[0]} does not exist; create it with: stream-dedup topics apply")
    keys = [*((name, part) for name in wanted[:2] for part in range(known[name][1])), (names.fingerprints, 0)]
    starts = {key: offset for key, (offset, _) in admin.at_time(keys, edges[0]).items()}
    ends = admin.ends(keys)
    days: list[DayFigures] = []
    with progress("reading", None) as advance:
        for place, edge in enumerate(edges[1:]):
            is_last = place == len(edges) - 2
            nexts = {key: ends[key][1] if is_last else offset for key, (offset, _) in admin.at_time(keys, edge).items()}
            # A timestamp out of order can make a day end before it begins.
            spans = {key: (starts[key], max(starts[key], nexts[key])) for key in keys}
            starts = {key: end for key, (_, end) in spans.items()}
            days.append(DayFigures(_read(settings, spans, cost, advance, exact=exact)))
    return days


def _read(
    settings: Settings, spans: Mapping[TopicPartitionKey, Span], cost: Cost, advance: Callable[[int, int], None], *, exact: bool
) -> list[Runs]:
    if exact:
        chosen = {key: [(end - begin, (begin, end))] if end > begin else [] for key, (begin, end) in spans.items()}
    else:
        chosen = places(spans, random.Random())  # noqa: S311 - where to look, not a secret

    def counted() -> Iterator[Message]:
        for message in sample(settings, {key: [run for _, run in own] for key, own in chosen.items()}):
            size = len(message.value or b"")
            cost.records += 1
            cost.size_bytes += size
            advance(1, size)
            yield message

    return read_runs(chosen, counted())


def _cells(day: str, row: Mapping[str, Any]) -> list[str]:
    share = row["share_saved"]
    return [
        day,
        f"{row['documents']:,}",
        f"{row['duplicates']:,}",
        _size(row["bytes_saved"]),
        "" if share is None else f"{100 * share:.1f} %",
        f"{row['judged']:,}",
        ", ".join(f"{reason} {count:,}" for reason, count in row["reasons"].items() if count),
    ]


def _day(time_ms: int) -> str:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).date().isoformat()


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
