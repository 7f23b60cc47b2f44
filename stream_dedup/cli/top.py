"""`top`: what the roles do now, and `stats`: what they have saved, both from their `/metrics`.

Invariants of `top`: rates are differences between two readings of one process, so the first table
comes after one interval, and a role that was restarted in between shows none; a role that does not
answer is a line that says so, and is asked again.
"""

from __future__ import annotations

import json
import math
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Group
from rich.live import Live
from rich.text import Text

from stream_dedup.cli.options import JsonOption, command
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.printable import printable
from stream_dedup.ground.tables import FittedTable
from stream_dedup.ground.terminal import console, note, print_json, print_table
from stream_dedup.log.headers import rfc3339
from stream_dedup.service import asking
from stream_dedup.service.ports import addresses
from stream_dedup.settings.settings import Settings

_ANSWER_SECONDS = 5.0
_ANSWER_BYTES_MAX = 16 << 20
_Labels = frozenset[tuple[str, str]]
_KNOWN_BY = {
    "worker": "documents_total",
    "index": "index_entries",
    "insights": "insights_hosts",
    "search": "search_documents",
}
# Of the roles of `run all`; not everybody runs insights and a search.
_ALWAYS = 2

UrlsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="URL...",
        help="Roles to ask, http://HOST:PORT.  [default: this machine's HTTP_PORT and the next "
        "three]",
    ),
]


@command(
    "top",
    example="stream-dedup top http://worker-0:8080 http://index-0:8080 --interval 5",
    asks_kafka=False,
)
def top_command(
    settings: Settings,
    urls: UrlsArgument = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between two readings.")
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one table, of one interval, and end.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Watch the roles at work: documents a second, share of duplicates, lag, latency, aborts, the
    index. From their /metrics.

    With --json a line per interval. With --once it ends with 1 if none answers.
    """
    last = _read_all(settings, urls)
    try:
        if once or as_json:
            while True:
                rows, last = _next(last, interval)
                if as_json:
                    print_json(
                        {
                            "time": time.time(),
                            "interval_seconds": interval,
                            "roles": [row.to_fields() for row in rows],
                        }
                    )
                else:
                    console().print(drawn(rows), crop=False)
                if once:
                    return 0 if any(row.problem is None for row in rows) else 1
        with Live(
            Text(f"reading {', '.join(last)} ..."),
            console=console(),
            auto_refresh=False,
            screen=False,
        ) as live:
            while True:
                rows, last = _next(last, interval)
                live.update(
                    Group(drawn(rows), Text(f"every {interval:g} s; Ctrl-C ends", "dim")),
                    refresh=True,
                )
    except KeyboardInterrupt:
        return 0


@command(
    "stats",
    example="stream-dedup stats http://worker-0:8080 http://worker-1:8080",
    asks_kafka=False,
)
def stats_command(
    settings: Settings, urls: UrlsArgument = None, as_json: JsonOption = False
) -> int:
    """Say what was saved: documents, duplicates by reason, bytes. Exact, since each worker's start.
    From their /metrics.

    Figures by day Prometheus has.
    """
    found = _read_all(settings, urls)
    rows = [
        saved_by(address, one)
        for address, one in found.items()
        if isinstance(one, RoleReading) and one.role == "worker"
    ]
    if not rows:
        raise InputError(f"No worker answers at {' or '.join(found)}. Name one: http://HOST:PORT.")
    whole = saved_by_all(rows)
    if as_json:
        print_json({"total": whole, "workers": rows})
    else:
        saved = "saved" if settings.mode == "enforce" else "would have saved"
        print(
            f"{saved} {_number(whole['bytes_saved'])}B, {_percent(whole['share_saved']) or '0 %'}, "
            f"since {whole['since']}: "
            f"{whole['duplicates']:,} of {whole['documents']:,} documents were duplicates"
        )
        print()
        print_table(
            ["worker", "since", "documents", "duplicates", "saved", "share", "reasons"],
            [_saved_cells(row) for row in ([*rows, whole] if len(rows) > 1 else rows)],
        )
    for address, one in found.items():
        if isinstance(one, str) and urls:
            note(f"{address}: {one}; what it saved is not in these figures.")
    return 0


def saved_by(address: str, worker: RoleReading) -> dict[str, Any]:
    """Return what a worker has counted since its start, as JSON has it."""
    reasons: Counter[str] = Counter()
    for labels, count in worker.values.get("documents_total", {}).items():
        reasons[dict(labels)["reason"]] += int(count)
    started = worker.total("process_start_time_seconds") or 0.0
    return _with_share(
        {
            "worker": address,
            "since": rfc3339(int(started * 1000)),
            "documents": reasons.total(),
            "duplicates": int(worker.total("documents_total", verdict="duplicate") or 0),
            "bytes": int(worker.total("bytes_total") or 0),
            "bytes_saved": int(worker.total("bytes_total", verdict="duplicate") or 0),
            "reasons": {name: count for name, count in sorted(reasons.items()) if count},
        }
    )


def saved_by_all(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of some workers' figures, since the first of their starts."""
    counts = {
        name: sum(row[name] for row in rows)
        for name in ("documents", "duplicates", "bytes", "bytes_saved")
    }
    reasons = sum((Counter(row["reasons"]) for row in rows), Counter[str]())
    return _with_share(
        {
            "worker": "all",
            "since": min(row["since"] for row in rows),
            **counts,
            "reasons": dict(reasons),
        }
    )


def _with_share(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"share_saved": _ratio(row["bytes_saved"], row["bytes"])}


def _saved_cells(row: Mapping[str, Any]) -> list[str]:
    return [
        _short(row["worker"]),
        row["since"],
        f"{row['documents']:,}",
        f"{row['duplicates']:,}",
        f"{_number(row['bytes_saved'])}B",
        _percent(row["share_saved"]),
        ", ".join(f"{reason} {count:,}" for reason, count in row["reasons"].items()),
    ]


class RoleReading(NamedTuple):
    """One role's metrics at one moment. `seconds` is of the monotonic clock; `values` by name
    without prefix, then labels.

    `ready` is None where the role was not asked, and `waits_for` why it is not.
    """

    seconds: float
    values: Mapping[str, Mapping[_Labels, float]]
    ready: bool | None = None
    waits_for: str = ""

    @property
    def role(self) -> str | None:
        """Which role these are the metrics of; None if they are of another program."""
        return next((role for role, name in _KNOWN_BY.items() if name in self.values), None)

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples of that name with these labels; None if there is none."""
        wanted = set(labels.items())
        found = [value for own, value in self.values.get(name, {}).items() if wanted <= own]
        return sum(found) if found else None


class Interval:
    """What a role did between two readings of one process; without the first only what stands in
    the second is known.
    """

    def __init__(self, before: RoleReading | str, now: RoleReading) -> None:
        start = "process_start_time_seconds"
        is_same = isinstance(before, RoleReading) and before.total(start) == now.total(start)
        self._past = before if isinstance(before, RoleReading) and is_same else None
        self.now = now.total
        self._values = now.values
        self._seconds = 0.0 if self._past is None else now.seconds - self._past.seconds

    def moved(self, name: str, **labels: str) -> float | None:
        """Return by how much it has grown."""
        end = self.now(name, **labels)
        if end is None or self._past is None or self._seconds <= 0:
            return None
        return end - (self._past.total(name, **labels) or 0.0)

    def rate(self, name: str) -> float | None:
        """Return by how much it has grown a second."""
        change = self.moved(name)
        return None if change is None else change / self._seconds

    def quantile(self, name: str, share: float) -> float | None:
        """Return a quantile of what a histogram counted."""
        if self._past is None:
            return None
        begin, end = (one.get(f"{name}_bucket", {}) for one in (self._past.values, self._values))
        return quantile(
            {
                float(dict(labels)["le"]): value - begin.get(labels, 0.0)
                for labels, value in end.items()
            },
            share,
        )


class Figure(NamedTuple):
    """A figure of a role: its name as JSON has it, its column, how it is found, how it is shown;
    without a column not shown.

    Of two with the same column the first that is known is shown.
    """

    name: str
    column: str
    of: Callable[[Interval], float | None]
    shown: Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class TopRow:
    """What one role does. A figure is None that is not known yet; rates are a second, latencies in
    seconds.
    """

    address: str
    role: str | None
    problem: str | None = None
    ready: bool | None = None
    waits_for: str = ""
    figures: Mapping[str, float | None] = field(default_factory=dict)

    def to_fields(self) -> dict[str, object]:
        """Return it as a JSON object."""
        told = {"problem": self.problem, "ready": self.ready, "waits_for": self.waits_for}
        return {"address": self.address, "role": self.role, **told, **self.figures}

    def cells(self, role: str) -> list[str]:
        """Return what the columns of its role show."""
        shown: dict[str, str] = {}
        for one in FIGURES[role]:
            if one.column:
                shown[one.column] = shown.get(one.column) or one.shown(self.figures.get(one.name))
        return [_short(self.address), *shown.values()]


def read(address: str) -> RoleReading | str:
    """Return a role's metrics, or why there are none."""
    try:
        status, body = asking.ask(address, "/metrics", _ANSWER_SECONDS, _ANSWER_BYTES_MAX)
        if status != 200:
            return f"answers {status}; it serves no metrics"
        found = parse(body.decode("utf-8", "replace"), time.monotonic())
        status, body = asking.ask(address, "/readyz", _ANSWER_SECONDS, _ANSWER_BYTES_MAX)
        return found._replace(
            ready=status == 200, waits_for="" if status == 200 else _sentence(body)
        )
    except asking.NO_ANSWER as error:
        return asking.reason_of(error)


def parse(text: str, seconds: float) -> RoleReading:
    """Return the samples in Prometheus' text format.

    Raises:
        ValueError: it is not in that format.
    """
    values: dict[str, dict[_Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("stream_dedup_")
            values.setdefault(name, {})[frozenset(sample.labels.items())] = float(sample.value)
    return RoleReading(seconds, values)


def row_of(address: str, before: RoleReading | str, now: RoleReading | str) -> TopRow:
    """Return what a role did between two readings."""
    if isinstance(now, str):
        return TopRow(address, None, problem=now)
    if now.role is None:
        return TopRow(address, None, problem="is no role of stream-dedup")
    interval = Interval(before, now)
    figures = {one.name: one.of(interval) for one in FIGURES[now.role]}
    return TopRow(address, now.role, ready=now.ready, waits_for=now.waits_for, figures=figures)


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return a quantile from cumulative counts by upper edge, as Prometheus does: linear within a
    bucket.
    """
    edges = sorted(buckets)
    if not edges or buckets[edges[-1]] <= 0:
        return None
    wanted, low, below = share * buckets[edges[-1]], 0.0, 0.0
    for edge in edges:
        if buckets[edge] >= wanted:
            if math.isinf(edge):
                return low
            inside = buckets[edge] - below
            return low + (edge - low) * ((wanted - below) / inside if inside else 1.0)
        low, below = edge, buckets[edge]
    return low


def drawn(rows: Sequence[TopRow]) -> Group:
    """Return a table of each kind of role, and what does not answer."""
    parts: list[FittedTable | Text] = []
    for role, figures in FIGURES.items():
        own = [row for row in rows if row.role == role]
        if own:
            columns = dict.fromkeys(one.column for one in figures if one.column)
            table = FittedTable((role, *columns), right=range(1, 1 + len(columns)))
            for row in own:
                table.add_row(*row.cells(role))
            parts += [table, Text()]
    parts += _why(
        "not ready", {row.address: row.waits_for for row in rows if row.ready is False}, "yellow"
    )
    parts += _why(
        "no figures", {row.address: row.problem for row in rows if row.problem is not None}, "red"
    )
    return Group(*parts[:-1])


def _why(title: str, sentences: Mapping[str, str], colour: str) -> list[FittedTable | Text]:
    table = FittedTable((title, "why"))
    for address, sentence in sentences.items():
        table.add_row(_short(address), Text(printable(sentence), colour))
    return [table, Text()] if sentences else []


def _read_all(settings: Settings, urls: Iterable[str] | None) -> dict[str, RoleReading | str]:
    """Return the metrics of the roles named; of none named, of those that answer on this machine,
    and of the usual ones.
    """
    if urls:
        return {address: read(address) for address in map(_checked, urls)}
    found = [(address, read(address)) for address in addresses(settings)]
    return {
        address: one
        for place, (address, one) in enumerate(found)
        if place < _ALWAYS or not isinstance(one, str)
    }


def _next(
    last: Mapping[str, RoleReading | str], interval: float
) -> tuple[list[TopRow], dict[str, RoleReading | str]]:
    time.sleep(interval)
    now = {address: read(address) for address in last}
    return [row_of(address, last[address], now[address]) for address in last], now


def _sentence(body: bytes) -> str:
    """Return what a probe says of a role that is not ready."""
    try:
        return str(json.loads(body)["text"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace").strip()


def _checked(url: str) -> str:
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urllib.parse.urlsplit(whole)
        is_good = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        )
    except ValueError:
        is_good = False
    if not is_good:
        raise InputError(f"{url!r} is no address of a role; write it as http://HOST:PORT.")
    return whole.rstrip("/").removesuffix("/metrics")


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _number(value: float | None) -> str:
    """Return a number in at most six characters."""
    if value is None:
        return ""
    for unit in ("", "k", "M", "G"):
        if abs(value) < (99_999.5 if not unit else 999.5):
            return (
                f"{value:,.0f}{unit}"
                if abs(value) >= 10 or value == int(value)
                else f"{value:.1f}{unit}"
            )
        value /= 1000
    return f"{value:,.0f}T"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _short(address: str) -> str:
    return printable(address.removeprefix("http://"))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %" if value < 0.9995 else "100 %"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return (
        f"{1000 * seconds:.0f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
    )


def _megabytes(size: float | None) -> str:
    return "" if size is None else f"{size / 1e6:.1f}"


def _whole_megabytes(size: float | None) -> str:
    return "" if size is None else f"{size / 1e6:,.0f} MB"


def _aborted(of: Interval) -> float | None:
    ended = of.moved("transactions_total")
    return (
        None
        if ended is None
        else _ratio(ended - (of.moved("transactions_total", result="committed") or 0.0), ended)
    )


def _duplicates(found: Callable[..., float | None]) -> float | None:
    return _ratio(found("documents_total", verdict="duplicate"), found("documents_total"))


def _candidates(of: Interval) -> float | None:
    return _ratio(of.moved("candidates_sum"), of.moved("candidates_count"))


# Each figure of each role: `duplicate_ratio` and quantiles are of the interval,
# `duplicate_ratio_ever` since the role's start.
FIGURES: Final[Mapping[str, Sequence[Figure]]] = {
    "worker": (
        Figure("documents_rate", "docs/s", lambda of: of.rate("documents_total"), _number),
        Figure("bytes_rate", "MB/s", lambda of: of.rate("bytes_total"), _megabytes),
        Figure("duplicate_ratio", "duplicates", lambda of: _duplicates(of.moved), _percent),
        Figure("duplicate_ratio_ever", "duplicates", lambda of: _duplicates(of.now), _percent),
        Figure("dead_letters_rate", "dead /s", lambda of: of.rate("dead_letters_total"), _number),
        Figure("lag_records", "lag", lambda of: of.now("consumer_lag_records"), _number),
        Figure(
            "latency_p50_seconds",
            "p50",
            lambda of: of.quantile("verdict_latency_seconds", 0.5),
            _time,
        ),
        Figure(
            "latency_p99_seconds",
            "p99",
            lambda of: of.quantile("verdict_latency_seconds", 0.99),
            _time,
        ),
        Figure(
            "in_flight_documents", "in flight", lambda of: of.now("documents_in_flight"), _number
        ),
        Figure("aborted_ratio", "aborts", _aborted, _percent),
    ),
    "index": (
        Figure("log_records_rate", "log/s", lambda of: of.rate("index_applied_offset"), _number),
        Figure("applied_offset", "applied", lambda of: of.now("index_applied_offset"), _whole),
        Figure("representatives", "representatives", lambda of: of.now("index_entries"), _whole),
        Figure("candidates_mean", "candidates", _candidates, _number),
        Figure("full_blocks", "full blocks", lambda of: of.now("full_blocks"), _whole),
        Figure("index_bytes", "size", lambda of: of.now("index_size_bytes"), _whole_megabytes),
    ),
    "insights": (
        Figure(
            "insights_records_rate",
            "records/s",
            lambda of: of.rate("insights_records_total"),
            _number,
        ),
        Figure("insights_lag_records", "lag", lambda of: of.now("insights_lag_records"), _number),
        Figure("hosts", "hosts", lambda of: of.now("insights_hosts"), _whole),
    ),
    "search": (
        Figure(
            "search_records_rate", "records/s", lambda of: of.rate("search_records_total"), _number
        ),
        Figure("search_lag_records", "lag", lambda of: of.now("search_lag_records"), _number),
        Figure("search_documents", "held", lambda of: of.now("search_documents"), _whole),
        Figure("search_bytes", "size", lambda of: of.now("search_size_bytes"), _whole_megabytes),
        Figure(
            "answer_p99_seconds",
            "answer p99",
            lambda of: of.quantile("search_answer_seconds", 0.99),
            _time,
        ),
    ),
}
