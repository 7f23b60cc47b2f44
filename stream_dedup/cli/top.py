"""`top`: what the roles do now, from their `/metrics`: rates, duplicates, lag, latency; a table for each kind of
role, because they have few figures in common, drawn anew.

Invariants: rates are differences between two readings of one process, so the first table comes after one interval, and a
role that was restarted in between shows none; a role that does not answer is a line that says so, and is asked again.
"""

from __future__ import annotations

import json
import math
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, NamedTuple

import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Group
from rich.live import Live
from rich.text import Text

from stream_dedup.cli.options import JsonOption, command
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.printable import printable
from stream_dedup.ground.tables import FittedTable
from stream_dedup.ground.terminal import console, print_json
from stream_dedup.service import asking
from stream_dedup.service.ports import addresses
from stream_dedup.settings.settings import Settings

_ANSWER_SECONDS = 5.0
_ANSWER_BYTES_MAX = 16 << 20
_Labels = frozenset[tuple[str, str]]
_KNOWN_BY = {"worker": "documents_total", "index": "index_entries", "insights": "insights_hosts", "search": "search_documents"}
# Of the roles of `run all`; not everybody runs insights and a search.
_ALWAYS = 2


@command("top", example="stream-dedup top http://worker-0:8080 http://index-0:8080 --interval 5", asks_kafka=False)
def top_command(
    settings: Settings,
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL...", help="Roles to watch, http://HOST:PORT.  [default: this machine's HTTP_PORT and the next three]"
        ),
    ] = None,
    interval: Annotated[float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between two readings.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table, of one interval, and end.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Watch the roles at work: documents a second, share of duplicates, lag, latency, aborts, the index. From their /metrics.

    Below stands what those wait for that are not ready. With --json a line per interval. With --once it ends with 1 if none
    answers.
    """
    urls = urls or []
    asked = [_checked(url) for url in urls] or addresses(settings)
    last = {address: read(address) for address in asked}
    if not urls:
        last = {
            address: found
            for place, (address, found) in enumerate(last.items())
            if place < _ALWAYS or not isinstance(found, str)
        }
    try:
        if once or as_json:
            while True:
                rows, last = _next(last, interval)
                if as_json:
                    print_json({"time": time.time(), "interval_seconds": interval, "roles": [asdict(row) for row in rows]})
                else:
                    console().print(drawn(rows), crop=False)
                if once:
                    return 0 if any(row.problem is None for row in rows) else 1
        with Live(Text(f"reading {', '.join(asked)} ..."), console=console(), auto_refresh=False, screen=False) as live:
            while True:
                rows, last = _next(last, interval)
                live.update(Group(drawn(rows), Text(f"every {interval:g} s; Ctrl-C ends", "dim")), refresh=True)
    except KeyboardInterrupt:
        return 0


class RoleReading(NamedTuple):
    """One role's metrics at one moment. `seconds` is of the monotonic clock; `values` by name without prefix, then labels.

    `ready` is None where the role was not asked, and `waits_for` why it is not.
    """

    seconds: float
    values: Mapping[str, Mapping[_Labels, float]]
    ready: bool | None = None
    waits_for: str = ""

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples of that name with these labels; None if there is none."""
        wanted = set(labels.items())
        found = [value for own, value in self.values.get(name, {}).items() if wanted <= own]
        return sum(found) if found else None


@dataclass(frozen=True, slots=True)
class TopRow:
    """What one role does. None: it has no such figure, or none yet. Rates are a second; latencies in seconds.

    `duplicate_ratio` and the quantiles are of the interval; `duplicate_ratio_ever` is since the role's start.
    """

    address: str
    role: str | None
    problem: str | None = None
    ready: bool | None = None
    waits_for: str = ""
    documents_rate: float | None = None
    bytes_rate: float | None = None
    dead_letters_rate: float | None = None
    duplicate_ratio: float | None = None
    duplicate_ratio_ever: float | None = None
    lag_records: float | None = None
    latency_p50_seconds: float | None = None
    latency_p99_seconds: float | None = None
    in_flight_documents: float | None = None
    aborted_ratio: float | None = None
    log_records_rate: float | None = None
    applied_offset: float | None = None
    representatives: float | None = None
    index_bytes: float | None = None
    full_blocks: float | None = None
    candidates_mean: float | None = None
    insights_records_rate: float | None = None
    insights_lag_records: float | None = None
    hosts: float | None = None
    search_records_rate: float | None = None
    search_lag_records: float | None = None
    search_documents: float | None = None
    search_bytes: float | None = None
    answer_p99_seconds: float | None = None


def read(address: str) -> RoleReading | str:
    """Return a role's metrics, or why there are none."""
    try:
        status, body = asking.ask(address, "/metrics", _ANSWER_SECONDS, _ANSWER_BYTES_MAX)
        if status != 200:
            return f"answers {status}; it serves no metrics"
        found = parse(body.decode("utf-8", "replace"), time.monotonic())
        status, body = asking.ask(address, "/readyz", _ANSWER_SECONDS, _ANSWER_BYTES_MAX)
        return found._replace(ready=status == 200, waits_for="" if status == 200 else _sentence(body))
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
    role = next((role for role, name in _KNOWN_BY.items() if name in now.values), None)
    if role is None:
        return TopRow(address, None, problem="is no role of stream-dedup")
    past = before if isinstance(before, RoleReading) and _same_process(before, now) else None
    seconds = 0.0 if past is None else now.seconds - past.seconds

    def moved(name: str, **labels: str) -> float | None:
        end = now.total(name, **labels)
        begin = None if past is None else past.total(name, **labels) or 0.0
        return None if end is None or begin is None or seconds <= 0 else end - begin

    def rate(name: str) -> float | None:
        change = moved(name)
        return None if change is None else change / seconds

    transactions = moved("transactions_total")
    committed = moved("transactions_total", result="committed")
    latency = _buckets_moved("verdict_latency_seconds_bucket", past, now)
    return TopRow(
        address,
        role,
        ready=now.ready,
        waits_for=now.waits_for,
        documents_rate=rate("documents_total"),
        bytes_rate=rate("bytes_total"),
        dead_letters_rate=rate("dead_letters_total"),
        duplicate_ratio=_ratio(moved("documents_total", verdict="duplicate"), moved("documents_total")),
        duplicate_ratio_ever=_ratio(now.total("documents_total", verdict="duplicate"), now.total("documents_total")),
        lag_records=now.total("consumer_lag_records"),
        latency_p50_seconds=quantile(latency, 0.5),
        latency_p99_seconds=quantile(latency, 0.99),
        in_flight_documents=now.total("documents_in_flight"),
        aborted_ratio=None if transactions is None else _ratio(transactions - (committed or 0.0), transactions),
        log_records_rate=rate("index_applied_offset"),
        applied_offset=now.total("index_applied_offset"),
        representatives=now.total("index_entries"),
        full_blocks=now.total("full_blocks"),
        index_bytes=now.total("index_size_bytes"),
        candidates_mean=_ratio(moved("candidates_sum"), moved("candidates_count")),
        insights_records_rate=rate("insights_records_total"),
        insights_lag_records=now.total("insights_lag_records"),
        hosts=now.total("insights_hosts"),
        search_records_rate=rate("search_records_total"),
        search_lag_records=now.total("search_lag_records"),
        search_documents=now.total("search_documents"),
        search_bytes=now.total("search_size_bytes"),
        answer_p99_seconds=quantile(_buckets_moved("search_answer_seconds_bucket", past, now), 0.99),
    )


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return a quantile from cumulative counts by upper edge, as Prometheus does: linear within a bucket."""
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
    for role, columns in _COLUMNS.items():
        own = [row for row in rows if row.role == role]
        if own:
            table = FittedTable((role, *columns), right=range(1, 1 + len(columns)))
            for row in own:
                table.add_row(_short(row.address), *(shown(row) for shown in columns.values()))
            parts += [table, Text()]
    parts += _why("not ready", {row.address: row.waits_for for row in rows if row.ready is False}, "yellow")
    parts += _why("no figures", {row.address: row.problem for row in rows if row.problem is not None}, "red")
    return Group(*parts[:-1])


def _why(title: str, sentences: Mapping[str, str], colour: str) -> list[FittedTable | Text]:
    table = FittedTable((title, "why"))
    for address, sentence in sentences.items():
        table.add_row(_short(address), Text(printable(sentence), colour))
    return [table, Text()] if sentences else []


_COLUMNS: Mapping[str, Mapping[str, Callable[[TopRow], str]]] = {
    "worker": {
        "docs/s": lambda row: _number(row.documents_rate),
        "MB/s": lambda row: "" if row.bytes_rate is None else f"{row.bytes_rate / 1e6:.1f}",
        "duplicates": lambda row: _percent(
            row.duplicate_ratio if row.duplicate_ratio is not None else row.duplicate_ratio_ever
        ),
        "dead /s": lambda row: _number(row.dead_letters_rate),
        "lag": lambda row: _number(row.lag_records),
        "p50": lambda row: _time(row.latency_p50_seconds),
        "p99": lambda row: _time(row.latency_p99_seconds),
        "in flight": lambda row: _number(row.in_flight_documents),
        "aborts": lambda row: _percent(row.aborted_ratio),
    },
    "index": {
        "log/s": lambda row: _number(row.log_records_rate),
        "applied": lambda row: _whole(row.applied_offset),
        "representatives": lambda row: _whole(row.representatives),
        "candidates": lambda row: _number(row.candidates_mean),
        "full blocks": lambda row: _whole(row.full_blocks),
        "size": lambda row: "" if row.index_bytes is None else f"{row.index_bytes / 1e6:,.0f} MB",
    },
    "insights": {
        "records/s": lambda row: _number(row.insights_records_rate),
        "lag": lambda row: _number(row.insights_lag_records),
        "hosts": lambda row: _whole(row.hosts),
    },
    "search": {
        "records/s": lambda row: _number(row.search_records_rate),
        "lag": lambda row: _number(row.search_lag_records),
        "held": lambda row: _whole(row.search_documents),
        "size": lambda row: "" if row.search_bytes is None else f"{row.search_bytes / 1e6:,.0f} MB",
        "answer p99": lambda row: _time(row.answer_p99_seconds),
    },
}


def _next(last: Mapping[str, RoleReading | str], interval: float) -> tuple[list[TopRow], dict[str, RoleReading | str]]:
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
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_good = False
    if not is_good:
        raise InputError(f"{url!r} is no address of a role; write it as http://HOST:PORT.")
    return whole.rstrip("/").removesuffix("/metrics")


def _same_process(before: RoleReading, now: RoleReading) -> bool:
    return before.total("process_start_time_seconds") == now.total("process_start_time_seconds")


def _buckets_moved(name: str, past: RoleReading | None, now: RoleReading) -> dict[float, float]:
    if past is None:
        return {}
    begin = past.values.get(name, {})
    return {float(dict(labels)["le"]): value - begin.get(labels, 0.0) for labels, value in now.values.get(name, {}).items()}


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _number(value: float | None) -> str:
    """Return a number in at most six characters."""
    if value is None:
        return ""
    for unit in ("", "k", "M", "G"):
        if abs(value) < (99_999.5 if not unit else 999.5):
            return f"{value:,.0f}{unit}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}{unit}"
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
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
