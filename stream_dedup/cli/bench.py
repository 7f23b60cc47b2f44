"""`bench path`: its tables and its JSON; what is measured, and how, is in the bench's own room."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stream_dedup.bench.latency import PERCENTILES
from stream_dedup.bench.path import COPY, PLANS, VARIANTS, Options, Report, medians, run_path
from stream_dedup.cli.output import console, note, print_json
from stream_dedup.errors import InputError
from stream_dedup.service import logs

_STANDARD_OUTPUT = "-"


def show_path(
    *,
    documents: int,
    size_bytes: int,
    duplicate_share: float,
    languages: str,
    rounds: int,
    seed: int,
    broker: str | None,
    with_latency: bool,
    target: str | None,
) -> int:
    """Measure and print the tables; return the exit code, 1 if documents are missing or came out twice.

    JSON goes to the file `target`, or to standard output for `-`, and then the tables go to standard error. `languages`
    are separated by commas.

    Raises:
        InputError: the file cannot be written, which is found out before anything is measured; or such documents cannot
            be made.
        StreamDedupError: the measurement failed.
    """
    codes = tuple(code.strip() for code in languages.split(","))
    options = Options(documents, size_bytes, duplicate_share, codes, rounds, seed, broker, with_latency)
    options.pages(0)  # refuses what cannot be made
    logs.kafka_logger().setLevel(logging.ERROR)  # what will be tried again is no news here
    if target is not None and target != _STANDARD_OUTPUT:
        _check_writable(Path(target))
    report = run_path(options, note)
    _show(report, _errors() if target == _STANDARD_OUTPUT else console())
    if target == _STANDARD_OUTPUT:
        print_json(report.as_json())
    elif target is not None:
        Path(target).write_text(json.dumps(report.as_json(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    for complaint in report.complaints:
        note(complaint)
    return 1 if report.complaints else 0


def _errors() -> Console:
    """Return a console on standard error, as wide as the other one."""
    return Console(file=sys.stderr, width=None if sys.stderr.isatty() else console().width, highlight=False, markup=False)


def _check_writable(path: Path) -> None:
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise InputError(f"The results cannot be written to {path}: {error.strerror}. Give another file to --json.") from error


def _show(report: Report, out: Console) -> None:
    options, machine = report.options, report.machine
    out.print()
    out.print(
        f"{options.documents:,} documents of {report.mean_value_bytes:,.0f} bytes ({', '.join(options.languages)}; "
        f"{options.duplicate_share:.0%} copies), transactions of at most {options.transaction_documents:,}, "
        f"{options.rounds} rounds: medians, then each round"
    )
    libraries = machine["libraries"]
    names = ", ".join(f"{name} {number}" for name, number in libraries.items()) if isinstance(libraries, dict) else ""
    out.print(
        f"{machine['cores']} cores of {machine['processor']}, {machine['platform']}; load before {machine['load_before']}\n"
        f"Python {machine['python']}, {names}; broker {machine['broker']}"
    )
    out.print()
    out.print(_throughput(report))
    out.print()
    out.print(_times("CPU per document, us", [(one, _medians_of_cpu(report, one)) for one in VARIANTS]))
    out.print()
    stages = [(plan, medians([one.per_document_us(one.stage_seconds) for one in report.of(plan)])) for plan in PLANS]
    out.print(_times("Loop time per document, us", stages))
    if report.latencies:
        out.print()
        out.print(_latency(report))


def _throughput(report: Report) -> Table:
    table = _table("", "documents/s", "of the copy", "first commit, s", "duplicates", "memory, MB", "documents/s of each round")
    for variant in VARIANTS:
        samples = report.of(variant)
        rate = report.documents_per_second(variant)
        ratios = report.ratios(variant)
        memory = medians([one.memory_bytes_max for one in samples])
        first = medians([{"": one.first_commit_seconds} for one in samples])[""]
        duplicates = sorted({one.balance["duplicates"] for one in samples if "duplicates" in one.balance})
        _row(
            table,
            variant,
            _number(rate),
            "" if variant == COPY else _number(medians([{"": ratio} for ratio in ratios]).get(""), 3),
            _number(first, 1),
            " to ".join(f"{count:,}" for count in {duplicates[0]: 0, duplicates[-1]: 0}) if duplicates else "",
            ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in memory.items()),
            ", ".join(_number(one.documents_per_second) for one in samples),
        )
    return table


def _medians_of_cpu(report: Report, variant: str) -> Mapping[str, float]:
    return medians([one.per_document_us(one.cpu_seconds) for one in report.of(variant)])


def _times(title: str, found: Sequence[tuple[str, Mapping[str, float]]]) -> Table:
    names = list(dict.fromkeys(name for _, times in found for name in times))
    table = _table(title, *names)
    for variant, times in found:
        _row(table, variant, *(_number(times.get(name), 1) for name in names))
    return table


def _latency(report: Report) -> Table:
    headings = (name.removesuffix("_ms").replace("_", ".") for name in PERCENTILES)
    table = _table("Record to committed output, ms", "load", "documents/s", *headings)
    for plan, found in report.latencies.items():
        for one in found:
            figures = one.as_json()
            percentiles = (_number(figures[name]) for name in PERCENTILES)
            _row(table, plan, f"{one.load:.0%}", _number(one.documents_per_second), *percentiles)
    return table


def _table(first: str, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _row(table: Table, *cells: str) -> None:
    table.add_row(*map(Text, cells))


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
