"""`stats`: what the filter has saved, by day, from the outputs and the log.

How it reads: where each day begins in each partition is asked of Kafka by timestamp (one question a day); of each day's
records a run in the middle of each partition is read, and the day's figures are its number of offsets times what the run
shows: records per offset (transactions leave markers), bytes, verdicts, reasons. What is no longer than a run is read whole.
So it costs a few thousand records however much was filtered. `exact` reads every record instead.

Days are the records' own timestamps: the crawler's, or the time of writing where it sends none. `judged` counts the documents
in the log by the time they came there, whatever their timestamps say.

Invariant: a figure that was estimated is called so; nothing is committed, joined or written.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_dedup.cli.options import (
    BrokersOption,
    ConfigOption,
    JsonOption,
    SetOption,
    command,
    quiet_settings,
)
from stream_dedup.ground.document import Message, TopicPartitionKey, Verdict
from stream_dedup.ground.errors import ConfigurationError, FormatError
from stream_dedup.ground.terminal import note, print_json, print_table, progress

if TYPE_CHECKING:
    from stream_dedup.settings.settings import Settings

_RUN_RECORDS = 50
_LOG_RUN_RECORDS = 20
_DAY_MS = 86_400_000


@command("stats", example="stream-dedup stats --since 7d")
def stats_command(
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="How far back: 12h, 7d, 4w.")] = "7d",
    exact: Annotated[
        bool, typer.Option("--exact", help="Read every record of the period instead of a few thousand: whole documents.")
    ] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say what was saved: documents, duplicates by reason and bytes, by day. Cheap: it reads a sample, and says how much.

    Days are those of the records' timestamps, as far back as the outputs still hold them.
    """
    from stream_dedup.settings.units import parse_duration

    settings = quiet_settings(config, assignments, brokers)
    try:
        seconds = parse_duration(since).total_seconds()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from error
    if not 0 < seconds <= 366 * 86_400:
        raise typer.BadParameter("must be more than nothing and at most 366d", param_hint="--since")
    return show_stats(settings, seconds, exact=exact, as_json=as_json)


@dataclass(slots=True)
class DayTally:
    """Figures of one day; numbers that were estimated are whole only after rounding."""

    documents: dict[str, float] = field(default_factory=lambda: {verdict.value: 0.0 for verdict in Verdict})
    size_bytes: dict[str, float] = field(default_factory=lambda: {verdict.value: 0.0 for verdict in Verdict})
    reasons: dict[str, float] = field(default_factory=dict)
    judged: float = 0.0

    def add(self, other: DayTally) -> None:
        """Add another day's figures."""
        for verdict in Verdict:
            self.documents[verdict.value] += other.documents[verdict.value]
            self.size_bytes[verdict.value] += other.size_bytes[verdict.value]
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0.0) + count
        self.judged += other.judged

    def fields(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        unique, duplicate = (round(self.documents[verdict.value]) for verdict in Verdict)
        kept, saved = (round(self.size_bytes[verdict.value]) for verdict in Verdict)
        return {
            "documents": unique + duplicate,
            "unique": unique,
            "duplicates": duplicate,
            "judged": round(self.judged),
            "bytes": kept + saved,
            "bytes_saved": saved,
            "share_saved": round(saved / (kept + saved), 4) if kept + saved else None,
            "reasons": {reason: round(count) for reason, count in sorted(self.reasons.items())},
        }


@dataclass(slots=True)
class Cost:
    """What was read, and whether anything was not."""

    records: int = 0
    size_bytes: int = 0
    estimated: bool = False


def show_stats(settings: Settings, since_seconds: float, *, exact: bool, as_json: bool) -> int:
    """Print what was saved since then, by day (UTC); return 0.

    Raises:
        ConfigurationError: a topic is missing.
        BrokerError: Kafka does not answer.
    """
    from stream_dedup.log import headers

    now_ms = int(time.time() * 1000)
    edges = day_edges(now_ms - int(since_seconds * 1000), now_ms)
    cost = Cost()
    days = list(_days(settings, edges, cost, exact=exact))
    total = DayTally()
    for day in days:
        total.add(day)
    rows = [{"day": _day(edge), **day.fields()} for edge, day in zip(edges, days, strict=False)]
    whole = total.fields()
    reading = {"records": cost.records, "bytes": cost.size_bytes}
    if as_json:
        print_json(
            {"since": headers.rfc3339(edges[0]), "estimated": cost.estimated, "read": reading, "total": whole, "days": rows}
        )
        return 0
    print(headline(whole, since_seconds, delivers=settings.mode == "enforce", estimated=cost.estimated))
    print()
    print_table(
        ["day (UTC)", "documents", "duplicates", "saved", "share", "judged", "reasons"],
        [_cells(str(row["day"]), row) for row in rows] + ([_cells("all", whole)] if len(rows) > 1 else []),
    )
    note(
        f"Read {cost.records:,} records, {_size(cost.size_bytes)}, of {settings.topic_names.unique}, "
        f"{settings.topic_names.duplicates} and {settings.topic_names.fingerprints}"
        + ("; the figures are estimated from these. --exact reads all." if cost.estimated else "; that is all there were.")
    )
    return 0


def headline(whole: Mapping[str, Any], since_seconds: float, *, delivers: bool, estimated: bool) -> str:
    """Return the one line that is asked for: `saved 412 GB, 38 %, in 7 days`."""
    share = whole["share_saved"]
    days = since_seconds / 86_400
    period = f"{days:.0f} days" if days >= 1.5 else f"{since_seconds / 3600:.0f} hours"
    if share is None:
        return f"nothing was filtered in {period}"
    what = "saved" if delivers else "would have saved"
    about = "about " if estimated else ""
    return (
        f"{what} {about}{_size(whole['bytes_saved'])}, {100 * share:.0f} %, in {period}: {whole['duplicates']:,} of "
        f"{whole['documents']:,} documents were duplicates"
    )


def day_edges(first_ms: int, end_ms: int) -> list[int]:
    """Return where the days between two times begin, in UTC, with the two times as first and last edge."""
    midnight = (first_ms // _DAY_MS + 1) * _DAY_MS
    return [first_ms, *range(midnight, end_ms, _DAY_MS), end_ms]


def tally(
    spans: Mapping[TopicPartitionKey, tuple[int, int]], found: Iterable[Message], *, exact: bool
) -> tuple[DayTally, bool]:
    """Return the figures of the records in `spans` (from, to) given a run of each, and whether they were estimated."""
    from stream_dedup.log import headers

    runs: dict[TopicPartitionKey, list[Message]] = {}
    for message in found:
        runs.setdefault((message.topic, message.partition), []).append(message)
    whole, estimated = DayTally(), False
    for key, (begin, end) in spans.items():
        run = runs.get(key, [])
        if not run:
            continue  # markers of transactions alone, or records that retention has just removed
        factor = 1.0
        if not exact and end - begin > _RUN_RECORDS:
            factor = (end - begin) / (run[-1].offset - run[0].offset + 1)
            estimated = estimated or factor > 1
        for message in run:
            verdict = headers.text_of(message.headers, headers.VERDICT)
            if verdict not in whole.documents:
                continue  # somebody else's record
            whole.documents[verdict] += factor
            whole.size_bytes[verdict] += factor * len(message.value or b"")
            reason = headers.text_of(message.headers, headers.REASON) or "unknown"
            whole.reasons[reason] = whole.reasons.get(reason, 0.0) + factor
    return whole, estimated


def _days(settings: Settings, edges: Sequence[int], cost: Cost, *, exact: bool) -> Iterator[DayTally]:
    from stream_dedup.kafka import Admin

    admin, names = Admin(settings), settings.topic_names
    wanted = (names.unique, names.duplicates, names.fingerprints)
    known = admin.topic_ids(wanted)
    missing = [name for name in wanted if name not in known]
    if missing:
        raise ConfigurationError(f"The topic {missing[0]} does not exist; create it with: stream-dedup topics apply")
    outputs = [(name, part) for name in wanted[:2] for part in range(known[name][1])]
    log = (names.fingerprints, 0)
    starts = admin.at_time([*outputs, log], edges[0])
    ends = admin.ends([*outputs, log])
    with progress("reading", None) as advance:
        for place, edge in enumerate(edges[1:]):
            is_last = place == len(edges) - 2
            nexts = {key: (ends[key][1], None) for key in (*outputs, log)} if is_last else admin.at_time([*outputs, log], edge)
            # A timestamp out of order can make a day end before it begins.
            spans = {key: (starts[key][0], max(starts[key][0], nexts[key][0])) for key in (*outputs, log)}
            starts = {key: (spans[key][1], None) for key in spans}
            found = list(_read(settings, {key: spans[key] for key in outputs}, None if exact else _RUN_RECORDS, cost, advance))
            day, estimated = tally({key: spans[key] for key in outputs}, found, exact=exact)
            day.judged, guessed = _judged(settings, log, spans[log], cost, exact=exact)
            cost.estimated = cost.estimated or estimated or guessed
            yield day


def _judged(
    settings: Settings, log: TopicPartitionKey, span: tuple[int, int], cost: Cost, *, exact: bool
) -> tuple[float, bool]:
    """Return how many documents the log's records of a span hold, and whether that was estimated."""
    from stream_dedup.log import records

    run = list(_read(settings, {log: span}, None if exact else _LOG_RUN_RECORDS, cost, lambda _documents, _bytes: None))
    documents = 0
    for message in run:
        try:
            record = records.decode(message.value)
        except FormatError:
            continue
        documents += len(record) if isinstance(record, records.Batch) else 0
    count = span[1] - span[0]
    if exact or not run or len(run) >= count:
        return float(documents), False
    return documents * count / len(run), True


def _read(
    settings: Settings, spans: Mapping[TopicPartitionKey, tuple[int, int]], most: int | None, cost: Cost, advance: Any
) -> Iterator[Message]:
    from stream_dedup.kafka import sample

    runs = {}
    for key, (begin, end) in spans.items():
        if end > begin:
            first = begin if most is None or end - begin <= most else begin + (end - begin - most) // 2
            runs[key] = (first, end if most is None else min(end, first + most))
    for message in sample(settings, runs):
        size = len(message.value or b"")
        cost.records += 1
        cost.size_bytes += size
        advance(1, size)
        yield message


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
