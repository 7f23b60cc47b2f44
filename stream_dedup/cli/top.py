"""`top`: what the roles do now, from their `/metrics`: rates, duplicates, lag, latency; a table that is drawn anew.

Invariants: rates are differences between two readings of one process, so the first table comes after one interval, and a
role that was restarted in between shows none; a role that does not answer is a line that says so, and is asked again.
"""

from __future__ import annotations

import http.client
import math
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stream_dedup.cli.options import (
    ConfigOption,
    JsonOption,
    SetOption,
    command,
    settings_of,
)
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.printable import printable
from stream_dedup.ground.terminal import console, print_json

if TYPE_CHECKING:
    from stream_dedup.settings.settings import Settings

_ANSWER_SECONDS = 5.0
_ANSWER_BYTES_MAX = 16 << 20
_Labels = frozenset[tuple[str, str]]


@command("top", example="stream-dedup top http://worker-0:8080 http://index-0:8080 --interval 5")
def top_command(
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL...", help="Roles to watch, http://HOST:PORT.  [default: this machine's HTTP_PORT and the next]"
        ),
    ] = None,
    interval: Annotated[float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between two readings.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table, of one interval, and end.")] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Watch the roles at work: documents a second, share of duplicates, lag, latency, aborts, the index. From their /metrics.

    With --json a line per interval. With --once it ends with 1 if no role answers.
    """
    settings = settings_of(config, assignments)
    return show_top(settings, urls or [], interval, once=once, as_json=as_json)


class RoleReading(NamedTuple):
    """One role's metrics at one moment. `seconds` is of the monotonic clock; `values` by name without prefix, then labels."""

    seconds: float
    values: Mapping[str, Mapping[_Labels, float]]

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
    candidates_mean: float | None = None


def show_top(settings: Settings, urls: Sequence[str], interval: float, *, once: bool, as_json: bool) -> int:
    """Show the roles at `urls` (or this machine's) until Ctrl-C, or once; return 1 if it was once and nobody answered."""
    addresses = [_checked(url) for url in urls] or _own(settings)
    last = {address: read(address) for address in addresses}
    try:
        if once or as_json:
            while True:
                rows, last = _next(last, interval)
                if as_json:
                    print_json({"time": time.time(), "interval_seconds": interval, "roles": [asdict(row) for row in rows]})
                else:
                    console().print(drawn(rows))
                if once:
                    return 0 if any(row.problem is None for row in rows) else 1
        with Live(Text(f"reading {', '.join(addresses)} ..."), console=console(), auto_refresh=False, screen=False) as live:
            while True:
                rows, last = _next(last, interval)
                live.update(Group(drawn(rows), Text(f"every {interval:g} s; Ctrl-C ends", "dim")), refresh=True)
    except KeyboardInterrupt:
        return 0


def read(address: str) -> RoleReading | str:
    """Return a role's metrics, or why there are none."""
    parts = urllib.parse.urlsplit(address)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", parts.path.rstrip("/") + "/metrics")
        answer = connection.getresponse()
        text = answer.read(_ANSWER_BYTES_MAX).decode("utf-8", "replace")
        if answer.status != 200:
            return f"answers {answer.status}; it serves no metrics"
        return parse(text, time.monotonic())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return str(getattr(error, "strerror", None) or error or type(error).__name__)
    finally:
        connection.close()


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
    role = "worker" if "documents_total" in now.values else "index" if "index_entries" in now.values else None
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
        index_bytes=now.total("index_size_bytes"),
        candidates_mean=_ratio(moved("candidates_sum"), moved("candidates_count")),
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


def drawn(rows: Sequence[TopRow]) -> Table:
    """Return the rows as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("role", "address"):
        table.add_column(heading, overflow="fold")
    for heading in ("documents/s", "MB/s", "duplicates", "dead/s", "lag", "p50", "p99", "in flight", "aborted",
                    "log/s", "applied", "representatives", "index"):  # fmt: skip
        table.add_column(heading, justify="right")
    for row in rows:
        if row.problem is not None:
            table.add_row(Text("?", "red"), printable(row.address), Text(printable(row.problem), "red"))
            continue
        table.add_row(
            row.role,
            printable(row.address),
            _number(row.documents_rate),
            "" if row.bytes_rate is None else f"{row.bytes_rate / 1e6:.1f}",
            _percent(row.duplicate_ratio if row.duplicate_ratio is not None else row.duplicate_ratio_ever),
            _number(row.dead_letters_rate),
            _number(row.lag_records),
            _time(row.latency_p50_seconds),
            _time(row.latency_p99_seconds),
            _number(row.in_flight_documents),
            _percent(row.aborted_ratio),
            _number(row.log_records_rate),
            _number(row.applied_offset),
            _number(row.representatives),
            "" if row.index_bytes is None else f"{row.index_bytes / 1e6:,.0f} MB",
        )
    return table


def _next(last: Mapping[str, RoleReading | str], interval: float) -> tuple[list[TopRow], dict[str, RoleReading | str]]:
    time.sleep(interval)
    now = {address: read(address) for address in last}
    return [row_of(address, last[address], now[address]) for address in last], now


def _own(settings: Settings) -> list[str]:
    """Return where this machine's roles answer: `run all` gives the index the next port."""
    host = "127.0.0.1" if settings.http_host in ("0.0.0.0", "::", "") else settings.http_host  # noqa: S104 - asked, not bound
    host = f"[{host}]" if ":" in host else host
    return [f"http://{host}:{port}" for port in (settings.http_port, settings.http_port + 1)]


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
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
