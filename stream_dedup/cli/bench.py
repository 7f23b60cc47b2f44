"""The benches: their tables and their JSON; what is measured, and how, is in the benches' own room."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stream_dedup.bench import fingerprint, index, quality
from stream_dedup.bench.latency import PERCENTILES
from stream_dedup.bench.pages import measure, pages
from stream_dedup.bench.path import run_path
from stream_dedup.bench.path_peers import QUIX
from stream_dedup.bench.path_plot import draw, draw_curves
from stream_dedup.bench.path_report import COPY, PLANS, Options, Report, median, medians
from stream_dedup.bench.peers import Peers, peers_command
from stream_dedup.bench.scaling import Curve, parse, points, run_scaling
from stream_dedup.cli.version import versions
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.terminal import console, note, print_json, print_table
from stream_dedup.inputs.html import Extractor
from stream_dedup.inputs.html_child import main_text
from stream_dedup.service import logs

_STANDARD_OUTPUT = "-"


def show_path(options: Options, *, plot: Path | None, target: str | None) -> int:
    """Measure and print the tables; return the exit code, 1 if documents are missing or came out twice.

    JSON goes to the file `target`, or to standard output for `-`, and then the tables go to standard error. `plot` is where a
    picture goes.

    Raises:
        InputError: a file cannot be written, which is found out before anything is measured; or such documents cannot
            be made; or some workers would have nothing to do.
        StreamDedupError: the measurement failed.
    """
    options.check()
    logs.kafka_logger().setLevel(logging.ERROR)  # what will be tried again is no news here
    out = _out(target)
    if plot is not None:
        _check_writable(plot, "picture", "--plot")
    report = run_path(options, note)
    _show(report, out)
    _write(report.as_json(), target)
    if plot is not None:
        plot.write_text(draw(report), encoding="utf-8")
    for complaint in report.complaints:
        note(complaint)
    return 1 if report.complaints else 0


def show_scaling(options: Options, axes: Sequence[str], *, plot: Path | None, target: str | None) -> int:
    """Measure and print a table for each axis as soon as it is done; return the exit code, 1 if there is a complaint.

    JSON and picture go where `show_path` has them, and have what is measured so far if the rest fails.

    Raises:
        InputError: a file cannot be written or a point cannot be measured, which is found out before anything is.
        StreamDedupError: the measurement failed.
    """
    chosen = points(options, parse(axes))
    logs.kafka_logger().setLevel(logging.ERROR)  # what will be tried again is no news here
    out = _out(target)
    if plot is not None:
        _check_writable(plot, "picture", "--plot")
    curves: list[Curve] = []
    try:
        for curve in run_scaling(options, chosen, note):
            curves.append(curve)
            out.print()
            out.print(_curve(curve))
            if plot is not None:
                plot.write_text(draw_curves(curves), encoding="utf-8")
    finally:
        _write({"curves": [curve.as_json() for curve in curves]}, target)
    complaints = [f"{curve.axis}={value}: {complaint}" for curve in curves for value, report in curve.points.items()
                  for complaint in report.complaints]  # fmt: skip
    for complaint in complaints:
        note(complaint)
    return 1 if complaints else 0


def show_quality(options: quality.Options, *, with_peers: bool, target: str | None) -> int:
    """Measure and print the table; return the exit code. JSON goes to `target` as in `show_path`.

    Raises:
        InputError: the corpora cannot be read, the file cannot be written, or the peers are not set up.
        StreamDedupError: a peer failed.
    """
    out = _out(target)
    with _peers(with_peers=with_peers) as peers:
        report = quality.run_quality(options, peers, note)
    out.print()
    out.print(_about(report.peer_versions, report.peers_missing))
    out.print(f"hash keys: {options.keys}; seed of orders and pages: {options.seed}")
    for code, (count, cuts) in report.templates.items():
        out.print(
            f"template pages {code}: {count}, Jaccard with the nearest {'/'.join(f'{one:.2f}' for one in cuts)} (10/50/90 %)"
        )
    out.print()
    out.print(_quality(report))
    _write(_stamped(report.as_json()) | {"keys": options.keys, "seed": options.seed}, target)
    return 0


def show_fingerprint(options: fingerprint.Options, *, with_peers: bool, target: str | None) -> int:
    """Measure and print the table; return the exit code. JSON goes to `target` as in `show_path`.

    Raises:
        InputError: there are no texts in a language, the file cannot be written, or the peers are not set up.
        StreamDedupError: a peer failed.
    """
    out = _out(target)
    with _peers(with_peers=with_peers) as peers:
        report = fingerprint.run_fingerprint(options, peers, note)
    out.print()
    out.print(_about(report.peer_versions, report.peers_missing))
    out.print("text in, signature out; CPU time of one thread, medians, then the seconds of each round")
    out.print()
    table = _table("", "language", "MB/s", "documents/s", "ours to it", "ours of like features", "seconds of each round")
    for one in report.speeds:
        ours = one.program.startswith(fingerprint.OURS)
        ratios = [None if ours else ratio for ratio in report.ratios(one)]
        samples = ", ".join(f"{seconds:.4f}" for seconds in one.seconds)
        rates = _number(one.megabytes_per_second, 2), _number(one.documents_per_second)
        _row(table, one.program, one.language, *rates, *("" if ratio is None else f"{ratio:.1f}" for ratio in ratios), samples)
    out.print(table)
    _write(_stamped(report.as_json()), target)
    return 0


def show_index(options: index.Options, *, target: str | None) -> int:
    """Measure and print the tables; return the exit code, 1 if there is a complaint. JSON goes to `target` as in `show_path`.

    Raises:
        InputError: the file cannot be written, or the peers are not set up.
        StreamDedupError: a measured process or a peer failed.
    """
    out = _out(target)
    report = index.run_index(options, note)
    _show_index(report, out)
    _write(_stamped(report.as_json()), target)
    for complaint in report.complaints:
        note(complaint)
    return 1 if report.complaints else 0


def show_pages(count: int, seed: int, *, as_json: bool) -> int:
    """Measure extractors on generated pages and print what they keep; return 0.

    Raises:
        ConfigurationError: ours is not installed.
    """
    Extractor().close()  # says what to install
    found = {"resiliparse": measure(main_text, pages(seed, count))}
    if importlib.util.find_spec("trafilatura") is not None:
        other = importlib.import_module("trafilatura")
        found["trafilatura"] = measure(other.extract, pages(seed, count))
        found["trafilatura, fast"] = measure(functools.partial(other.extract, fast=True), pages(seed, count))
    if as_json:
        print_json({name: dataclasses.asdict(one) for name, one in found.items()})
        return 0
    rows = [
        [
            name,
            f"{one.main_kept:.3f}",
            f"{one.boilerplate_kept:.3f}",
            f"{one.boilerplate_share:.2f}",
            f"{one.cpu_ms_per_page:.2f}",
        ]
        for name, one in found.items()
    ]
    print_table(["extractor", "paragraphs kept", "boilerplate kept", "boilerplate of all text", "CPU ms a page"], rows)
    return 0


def _quality(report: quality.Report) -> Table:
    table = _table(
        "",
        "method",
        "plan",
        "recall",
        "least",
        "found",
        "false per million",
        "false",
        "J < 0.3",
        "grey",
        "drops",
        "per 100,000",
    )
    for line in report.summaries():
        counts = line.counts
        _row(
            table,
            line.name,
            line.method,
            line.plan,
            _number(counts.recall, 3),
            _number(line.recall_min, 3),
            f"{counts.found:,} of {counts.dup:,}",
            _number(counts.false_per_million, 2),
            _number(counts.false_pairs),
            _number(counts.far_pairs),
            f"{counts.grey_taken:,} of {counts.grey:,}",
            f"{counts.false_drops:,} of {counts.distinct:,}",
            _number(counts.drops_per_100_000),
        )
    return table


def _show_index(report: index.Report, out: Console) -> None:
    options, figures = report.options, report.as_json()
    out.print()
    out.print(
        f"{options.documents:,} documents, {options.duplicates:.0%} copies planted at {options.distance} bits, plan "
        f"{options.plan.name} ({options.plan.id})\n{figures['cores']} cores, load before {report.load_before:.1f}; threads: "
        f"{report.threads}\ndurable: {index.DURABLE}\n"
    )
    found, missed = figures["planted_found"], figures["planted_missed"]
    out.print(f"planted copies found with their original and distance: {found:,} of {found + missed:,}")
    expected = f"{report.by_chance_expected:,.1f} to be expected of random prints"
    out.print(f"near a stranger by chance, each seen to be: {report.by_chance:,} ({expected})\n")
    table = _table(
        "", "documents/s", "by CPU time", "bytes in memory", "resident MB", "documents/s of stretches, first to last"
    )
    filled, rebuilt = report.filled, report.rebuilt
    for name, wall, cpu, last, curve in (
        ("judged, second half", report.sustained, report.sustained_cpu, filled, report.curve),
        ("rebuilt", report.rebuild, report.rebuild_cpu, rebuilt, report.rebuild_curve),
    ):
        samples = [curve[place] for place in sorted({len(curve) * part // 5 for part in range(5)} | {len(curve) - 1})]
        rates = ", ".join(_number(one["documents"] / max(one["seconds"], 1e-9)) for one in samples)
        memory = last["statistics"]["bytes_in_memory"] / report.representatives
        _row(table, name, _number(wall), _number(cpu), f"{memory:.0f} a document", _megabytes(last["rss_bytes_max"]), rates)
    out.print(table)
    out.print()
    table = _table("opening", "seconds", "of CPU", "entries/s", "resident MB")
    for name, one in (("after SIGKILL", report.after_kill), ("after a clean stop", report.after_close)):
        rate = _number(report.representatives / one["open_seconds"])
        _row(
            table,
            name,
            _number(one["open_seconds"], 2),
            _number(one["open_cpu_seconds"], 2),
            rate,
            _megabytes(one["rss_bytes"]),
        )
    one = report.restored
    seconds = one["restore_seconds"] + one["open_seconds"]
    _row(table, "a snapshot, copied and proved", _number(seconds, 2), "", _number(report.restored_entries_per_second), "")
    out.print(table)
    out.print()
    table = _table("bytes on disk", "per representative")
    for name, size in report.disk.items():
        _row(table, name, _number(size, 1))
    out.print(table)
    if report.peers:
        out.print()
        table = _table("", "documents", "by CPU time/s", "found", "durable", "")
        for run in report.peers:
            found_text = f"{run.found:,}" + ("" if run.planted is None else f" of {run.planted:,}")
            durable = "yes" if run.durable else "no"
            _row(table, run.name, f"{run.documents:,}", _number(run.documents_per_cpu_second), found_text, durable, run.note)
        out.print(table)


def _megabytes(size: int | None) -> str:
    return _number(None if size is None else size / 1e6)


def _about(peer_versions: Mapping[str, str], missing: Mapping[str, str]) -> str:
    found = ", ".join(f"{name} {number}" for name, number in peer_versions.items())
    lines = [f"{datetime.now(UTC):%Y-%m-%d}, stream-dedup {versions()['stream-dedup']}" + (f"; {found}" if found else "")]
    return "\n".join([*lines, *(f"without {name}: {reason}" for name, reason in missing.items())])


def _stamped(figures: dict[str, object]) -> dict[str, object]:
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "versions": versions()} | figures


@contextlib.contextmanager
def _peers(*, with_peers: bool) -> Iterator[Peers | None]:
    if not with_peers:
        yield None
        return
    with Peers(peers_command()) as peers:
        yield peers


def _out(target: str | None) -> Console:
    """Return where tables go; raise InputError if the JSON cannot be written, before anything is measured."""
    if target is not None and target != _STANDARD_OUTPUT:
        _check_writable(Path(target))
    return _errors() if target == _STANDARD_OUTPUT else console()


def _write(figures: Mapping[str, object], target: str | None) -> None:
    if target == _STANDARD_OUTPUT:
        print_json(figures)
    elif target is not None:
        Path(target).write_text(json.dumps(figures, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _errors() -> Console:
    """Return a console on standard error, as wide as the other one."""
    return Console(file=sys.stderr, width=None if sys.stderr.isatty() else console().width, highlight=False, markup=False)


def _check_writable(path: Path, what: str = "results", option: str = "--json") -> None:
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise InputError(f"The {what} cannot be written to {path}: {error.strerror}. Give another file to {option}.") from error


def _show(report: Report, out: Console) -> None:
    options, machine = report.options, report.machine
    out.print()
    out.print(
        f"{options.documents:,} documents of {report.mean_value_bytes:,.0f} bytes ({', '.join(options.languages)}; "
        f"{options.duplicate_share:.0%} copies), transactions of at most {options.transaction_documents:,}, "
        f"{options.partitions} partitions, {options.workers} {'worker' if options.workers == 1 else 'workers'}, "
        f"{options.index_entries:,} entries before, "
        f"{options.rounds} rounds: medians, then each round"
    )
    libraries = machine["libraries"]
    names = ", ".join(f"{name} {number}" for name, number in libraries.items()) if isinstance(libraries, dict) else ""
    out.print(
        f"{machine['cores']} cores of {machine['processor']}, {machine['platform']}; load before {machine['load_before']}\n"
        f"Python {machine['python']}, {names}; broker {machine['broker']}"
    )
    for name, peer in report.peers.items():
        numbers = ", ".join(f"{package} {number}" for package, number in peer.versions.items())
        guarantee = "exactly once" if peer.is_exactly_once else "at least once"
        out.print(f"{name}: {peer.title} copying {guarantee}, {options.documents_for(peer):,} documents ({numbers})")
    for name, sentence in report.missing.items():
        out.print(f"without {name}: {sentence}")
    out.print()
    out.print(_throughput(report))
    out.print()
    out.print(_times("CPU per document, us", [(one, _medians_of_cpu(report, one)) for one in report.variants]))
    out.print()
    stages = [(plan, medians([one.per_document_us(one.stage_seconds) for one in report.of(plan)])) for plan in PLANS]
    out.print(_times("Loop time per document, us", stages))
    sizes = [(one, medians([sample.bytes_per_document for sample in report.of(one)])) for one in report.variants]
    out.print()
    out.print(
        _times("Bytes per document", sizes)
        if any(found for _, found in sizes)
        else f"Bytes are known of a broker of our own only; {options.broker} may tell by kafka-log-dirs."
    )
    if report.latencies:
        out.print()
        out.print(_latency(report))
    for plan, roles in report.profiles.items():
        for role, shares in roles.items():
            out.print()
            table = _table(f"{plan}, {role}: innermost function", "of the samples")
            for name, share in shares:
                _row(table, name, f"{share:.1%}")
            out.print(table)


def _throughput(report: Report) -> Table:
    beside = ["of Quix's copy"] if QUIX in report.peers else []
    headings = ["documents/s", "of the copy", *beside, "first commit, s", "duplicates", "memory, MB"]
    table = _table("", *headings, "documents/s of each round")
    for variant in report.variants:
        samples = report.of(variant)
        rate = report.documents_per_second(variant)
        memory = medians([one.memory_bytes_max for one in samples])
        first = median([one.first_commit_seconds for one in samples])
        duplicates = sorted({one.balance["duplicates"] for one in samples if "duplicates" in one.balance})
        _row(
            table,
            variant,
            _number(rate),
            "" if variant == COPY else _number(median(report.ratios(variant)), 3),
            *("" if variant == QUIX else _number(median(report.ratios(variant, QUIX)), 3) for _ in beside),
            _number(first, 1),
            " to ".join(f"{count:,}" for count in {duplicates[0]: 0, duplicates[-1]: 0}) if duplicates else "",
            ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in memory.items()),
            ", ".join(_number(one.documents_per_second) for one in samples),
        )
    return table


def _curve(curve: Curve) -> Table:
    roles = ("copy", "broker", "index", "worker")
    times = (f"{role}, us" for role in roles)
    table = _table(curve.axis, "", "documents/s", "MB/s", "of the copy", "first commit, s", *times, "worker, MB")
    for value, report in curve.points.items():
        for variant in report.variants:
            samples, rate = report.of(variant), report.documents_per_second(variant)
            cpu, memory = _medians_of_cpu(report, variant), medians([one.memory_bytes_max for one in samples])
            _row(
                table,
                f"{value:,}" if variant == COPY else "",
                variant,
                _number(rate),
                _number(None if rate is None else rate * report.mean_value_bytes / 1e6, 1),
                "" if variant == COPY else _number(median(report.ratios(variant)), 3),
                _number(median([one.first_commit_seconds for one in samples]), 1),
                *("" if role not in cpu else _number(cpu[role], 1) for role in roles),
                _megabytes(int(memory.get("worker", memory.get("copy", 0)))),
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
