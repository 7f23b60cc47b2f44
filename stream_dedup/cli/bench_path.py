"""`bench path` and `bench scaling`: the whole path beside a plain copy, and its curves."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from stream_dedup.cli.options import (
    FiguresOption,
    OwnBrokerOption,
    command,
)
from stream_dedup.ground.tables import FittedTable
from stream_dedup.ground.terminal import note

if TYPE_CHECKING:
    from stream_dedup.bench.path_report import PathOptions, PathReport
    from stream_dedup.bench.scaling import Curve
from stream_dedup.cli.bench import check_writable, megabytes, number, out_of, table_of, write_figures


@command("bench path", example="stream-dedup bench path --documents 200000 --rounds 3")
def bench_path_command(
    documents: Annotated[int, typer.Option("--documents", min=2000, help="How many; below 20,000 it is only a try.")] = 200_000,
    size_bytes: Annotated[int, typer.Option("--size", help="Bytes of text in each, about; 250 to 1,000,000.")] = 1000,
    duplicate_share: Annotated[float, typer.Option("--duplicates", help="Share of near or exact copies, 0 to below 1.")] = 0.3,
    languages: Annotated[str, typer.Option("--languages", metavar="EN,..", help="Languages that take turns.")] = "en",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measurements of each variant; medians are shown.")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generated documents.")] = 1,
    brokers: OwnBrokerOption = None,
    latency: Annotated[bool, typer.Option(help="Then measure latency too, at the rates.")] = True,
    rates: Annotated[
        list[float] | None,
        typer.Option("--rate", metavar="N", min=1, help="Documents/s at which; may be repeated.  [default: 1000 and 12000]"),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Measure other programs copying, too: without transactions, Quix Streams, Faust; needs `make peers`.",
        ),
    ] = False,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that share the partitions, in each variant.")] = 1,
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Partitions of the documents and outputs.")] = 4,
    index_entries: Annotated[
        int, typer.Option("--index-entries", min=0, help="Representatives that the index holds before the first document.")
    ] = 0,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", metavar="DIR", help="Run the roles once more under py-spy and keep the stacks there."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw ratios and latencies there as bars.")
    ] = None,
    target: FiguresOption = None,
) -> int:
    """Measure the whole path with the plans bands, wide and classic beside a plain exactly-once copy of the same documents.

    Ratios are what can be compared; figures per second are the machine's as much as the filter's.
    """
    from stream_dedup.bench.path_report import RATES, PathOptions

    options = PathOptions(
        documents=documents,
        size_bytes=size_bytes,
        duplicate_share=duplicate_share,
        languages=tuple(code.strip() for code in languages.split(",")),
        rounds=rounds,
        seed=seed,
        broker=brokers,
        rates=tuple(rates or RATES) if latency else (),
        with_peers=peers,
        workers=workers,
        partitions=partitions,
        profile=profile,
        index_entries=index_entries,
    )
    return show_path(options, plot=plot, target=target)


@command("bench scaling", example="stream-dedup bench scaling --axis workers --axis size=1000,100000 --json scaling.json")
def bench_scaling_command(
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME[=N,..]",
            help="workers, partitions, entries (of the index) or size, with its usual values or these; may be repeated.  "
            "[default: all four]",
        ),
    ] = None,
    documents: Annotated[
        int, typer.Option("--documents", min=2000, help="How many at each point; fewer of more than 2 kB.")
    ] = 200_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measurements of each point; medians are shown.")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generated documents.")] = 1,
    brokers: OwnBrokerOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the curves there as bars.")] = None,
    target: FiguresOption = None,
) -> int:
    """Measure the whole path along one axis at a time: more workers, partitions, entries of the index, larger documents.

    Each point is measured as by `bench path`, beside a plain copy under the same conditions. Takes an hour by default.
    """
    from stream_dedup.bench.path_report import PathOptions

    options = PathOptions(documents=documents, rounds=rounds, seed=seed, broker=brokers, rates=())
    return show_scaling(options, axes or [], plot=plot, target=target)


def show_path(options: PathOptions, *, plot: Path | None, target: str | None) -> int:
    """Measure and print the tables; return the exit code, 1 if documents are missing or came out twice.

    JSON goes to the file `target`, or to standard output for `-`, and then the tables go to standard error. `plot` is where a
    picture goes.

    Raises:
        InputError: a file cannot be written, which is found out before anything is measured; or such documents cannot
            be made; or some workers would have nothing to do.
        StreamDedupError: the measurement failed.
    """
    from stream_dedup.bench.path import run_path
    from stream_dedup.bench.path_plot import draw
    from stream_dedup.service import logs

    options.check()
    logs.kafka_logger().setLevel(logging.ERROR)  # what will be tried again is no news here
    out = out_of(target)
    if plot is not None:
        check_writable(plot, "picture", "--plot")
    report = run_path(options, note)
    _show(report, out)
    write_figures(report.as_json(), target)
    if plot is not None:
        plot.write_text(draw(report), encoding="utf-8")
    for complaint in report.complaints:
        note(complaint)
    return 1 if report.complaints else 0


def show_scaling(options: PathOptions, axes: Sequence[str], *, plot: Path | None, target: str | None) -> int:
    """Measure and print a table for each axis as soon as it is done; return the exit code, 1 if there is a complaint.

    JSON and picture go where `show_path` has them, and have what is measured so far if the rest fails.

    Raises:
        InputError: a file cannot be written or a point cannot be measured, which is found out before anything is.
        StreamDedupError: the measurement failed.
    """
    from stream_dedup.bench.path_plot import draw_curves
    from stream_dedup.bench.scaling import parse, points, run_scaling
    from stream_dedup.service import logs

    chosen = points(options, parse(axes))
    logs.kafka_logger().setLevel(logging.ERROR)  # what will be tried again is no news here
    out = out_of(target)
    if plot is not None:
        check_writable(plot, "picture", "--plot")
    curves: list[Curve] = []
    try:
        for curve in run_scaling(options, chosen, note):
            curves.append(curve)
            out.print()
            _curve(curve).print_to(out)
            if plot is not None:
                plot.write_text(draw_curves(curves), encoding="utf-8")
    finally:
        write_figures({"curves": [curve.as_json() for curve in curves]}, target)
    complaints = [
        f"{curve.axis}={value}: {complaint}"
        for curve in curves
        for value, report in curve.points.items()
        for complaint in report.complaints
    ]
    for complaint in complaints:
        note(complaint)
    return 1 if complaints else 0


def _show(report: PathReport, out: Console) -> None:
    from stream_dedup.bench.path_report import PLANS, medians

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
    throughput_table(report).print_to(out)
    out.print()
    _times("CPU per document, us", [(one, _medians_of_cpu(report, one)) for one in report.variants]).print_to(out)
    out.print()
    stages = [(plan, medians([one.per_document_us(one.stage_seconds) for one in report.of(plan)])) for plan in PLANS]
    _times("Loop time per document, us", stages).print_to(out)
    sizes = [(one, medians([sample.bytes_per_document for sample in report.of(one)])) for one in report.variants]
    out.print()
    out.print(
        _times("Bytes per document", sizes)
        if any(found for _, found in sizes)
        else f"Bytes are known of a broker of our own only; {options.broker} may tell by kafka-log-dirs."
    )
    if report.latencies:
        out.print()
        latency_table(report).print_to(out)
    for plan, roles in report.profiles.items():
        for role, shares in roles.items():
            out.print()
            table = table_of(f"{plan}, {role}: innermost function", "of the samples")
            for name, share in shares:
                table.add_row(name, f"{share:.1%}")
            table.print_to(out)


def throughput_table(report: PathReport) -> FittedTable:
    """Return the documents per second of every variant, with its share of the copy."""
    from stream_dedup.bench.path_peers import QUIX
    from stream_dedup.bench.path_report import COPY, median, medians

    beside = ["of Quix's copy"] if QUIX in report.peers else []
    headings = ["documents/s", "of the copy", *beside, "first commit, s", "duplicates", "memory, MB"]
    table = table_of("", *headings, "documents/s of each round")
    for variant in report.variants:
        samples = report.of(variant)
        rate = report.documents_per_second(variant)
        memory = medians([one.memory_bytes_max for one in samples])
        first = median([one.first_commit_seconds for one in samples])
        duplicates = sorted({one.balance["duplicates"] for one in samples if "duplicates" in one.balance})
        table.add_row(
            variant,
            number(rate),
            "" if variant == COPY else number(median(report.ratios(variant)), 3),
            *("" if variant == QUIX else number(median(report.ratios(variant, QUIX)), 3) for _ in beside),
            number(first, 1),
            " to ".join(f"{count:,}" for count in {duplicates[0]: 0, duplicates[-1]: 0}) if duplicates else "",
            ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in memory.items()),
            ", ".join(number(one.documents_per_second) for one in samples),
        )
    return table


def _curve(curve: Curve) -> FittedTable:
    from stream_dedup.bench.path_report import COPY, median, medians

    roles = ("copy", "broker", "index", "worker")
    times = (f"{role}, us" for role in roles)
    table = table_of(curve.axis, "", "documents/s", "MB/s", "of the copy", "first commit, s", *times, "worker, MB")
    for value, report in curve.points.items():
        for variant in report.variants:
            samples, rate = report.of(variant), report.documents_per_second(variant)
            cpu, memory = _medians_of_cpu(report, variant), medians([one.memory_bytes_max for one in samples])
            table.add_row(
                f"{value:,}" if variant == COPY else "",
                variant,
                number(rate),
                number(None if rate is None else rate * report.mean_value_bytes / 1e6, 1),
                "" if variant == COPY else number(median(report.ratios(variant)), 3),
                number(median([one.first_commit_seconds for one in samples]), 1),
                *("" if role not in cpu else number(cpu[role], 1) for role in roles),
                megabytes(int(memory.get("worker", memory.get("copy", 0)))),
            )
    return table


def _medians_of_cpu(report: PathReport, variant: str) -> Mapping[str, float]:
    from stream_dedup.bench.path_report import medians

    return medians([one.per_document_us(one.cpu_seconds) for one in report.of(variant)])


def _times(title: str, found: Sequence[tuple[str, Mapping[str, float]]]) -> FittedTable:
    names = list(dict.fromkeys(name for _, times in found for name in times))
    table = table_of(title, *names)
    for variant, times in found:
        table.add_row(variant, *(number(times.get(name), 1) for name in names))
    return table


def latency_table(report: PathReport) -> FittedTable:
    """Return the latencies, from record to committed verdict."""
    from stream_dedup.bench.latency import PERCENTILES

    headings = (name.removesuffix("_ms").replace("_", ".") for name in PERCENTILES)
    table = table_of("Record to committed output, ms", "filter", "documents/s", *headings)
    for plan, found in report.latencies.items():
        for one in found:
            figures = one.as_json()
            percentiles = (number(figures[name]) for name in PERCENTILES)
            table.add_row(plan, number(one.documents_per_second), *percentiles)
    return table
