"""Print the results of `bench path`: the whole path, compared with a plain copy."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console

from bench.path import run_path
from bench.path_peers import QUIX
from bench.path_report import COPY, PLANS, RATES, PathOptions, PathReport, median, medians
from bench.show import FiguresOption, number, out_of, table_of, write_figures
from stream_dedup.cli.options import OwnBrokerOption, command
from stream_dedup.domain.tables import FittedTable
from stream_dedup.domain.terminal import note
from stream_dedup.serving import logs


@command("bench path", example="python -m bench path --documents 200000 --rounds 3")
def bench_path_command(
    documents: Annotated[
        int, typer.Option("--documents", min=2000, help="How many; below 20,000 it is only a try.")
    ] = 200_000,
    size_bytes: Annotated[
        int, typer.Option("--size", help="Bytes of text in each, about; 250 to 1,000,000.")
    ] = 1000,
    duplicate_share: Annotated[
        float, typer.Option("--duplicates", help="Share of near or exact copies, 0 to below 1.")
    ] = 0.3,
    languages: Annotated[
        str, typer.Option("--languages", metavar="EN,..", help="Languages that take turns.")
    ] = "en",
    rounds: Annotated[
        int,
        typer.Option("--rounds", min=1, help="Measurements of each variant; medians are shown."),
    ] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generated documents.")] = 1,
    brokers: OwnBrokerOption = None,
    latency: Annotated[bool, typer.Option(help="Then measure latency too, at the rates.")] = True,
    rates: Annotated[
        list[float] | None,
        typer.Option(
            "--rate",
            metavar="N",
            min=1,
            help="Documents/s at which; may be repeated.  [default: 1000 and 12000]",
        ),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Measure other programs copying, too: without transactions, Quix Streams; needs "
            "`make peers`.",
        ),
    ] = False,
    workers: Annotated[
        int,
        typer.Option(
            "--workers", min=1, help="Processes that share the partitions, in each variant."
        ),
    ] = 1,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="Partitions of the documents and outputs.")
    ] = 4,
    index_entries: Annotated[
        int,
        typer.Option(
            "--index-entries",
            min=0,
            help="Representatives that the index holds before the first document.",
        ),
    ] = 0,
    target: FiguresOption = None,
) -> int:
    """Measure the whole path with the plans bands, blocks and classic beside a plain exactly-once
    copy of the same documents.

    Ratios are what can be compared; figures per second are the machine's as much as the filter's.
    """
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
        index_entries=index_entries,
    )
    return show_path(options, target=target)


def show_path(options: PathOptions, *, target: str | None) -> int:
    """Measure and print the tables; return the exit code, 1 if documents are missing or came out
    twice.

    JSON goes to the file `target`, or to standard output for `-`, and then the tables go to
    standard error. `plot` is where a picture goes.

    Raises:
        InputError: a file cannot be written, which is found out before anything is measured; or
        such documents cannot
            be made; or some workers would have nothing to do.
        StreamDedupError: the measurement failed.
    """
    options.check()
    logging.getLogger(logs.KAFKA_LOGGER).setLevel(
        logging.ERROR
    )  # what will be tried again is no news here
    out = out_of(target)
    report = run_path(options, note)
    _show(report, out)
    write_figures(report.as_json(), target)
    for complaint in report.complaints:
        note(complaint)
    return 1 if report.complaints else 0


def _show(report: PathReport, out: Console) -> None:
    options, machine = report.options, report.machine
    out.print()
    out.print(
        f"{options.documents:,} documents of {report.mean_value_bytes:,.0f} bytes "
        f"({', '.join(options.languages)}; "
        f"{options.duplicate_share:.0%} copies), transactions of at most "
        f"{options.transaction_documents:,}, "
        f"{options.partitions} partitions, {options.workers} "
        f"{'worker' if options.workers == 1 else 'workers'}, "
        f"{options.index_entries:,} entries before, "
        f"{options.rounds} rounds: medians, then each round"
    )
    libraries = machine["libraries"]
    names = (
        ", ".join(f"{name} {number}" for name, number in libraries.items())
        if isinstance(libraries, dict)
        else ""
    )
    out.print(
        f"{machine['cores']} cores of {machine['processor']}, {machine['platform']}; load before "
        f"{machine['load_before']}\n"
        f"Python {machine['python']}, {names}; broker {machine['broker']}"
    )
    for name, peer in report.peers.items():
        numbers = ", ".join(f"{package} {number}" for package, number in peer.versions.items())
        guarantee = "exactly once" if peer.is_exactly_once else "at least once"
        out.print(f"{name}: {peer.title} copying {guarantee} ({numbers})")
    for name, sentence in report.missing.items():
        out.print(f"without {name}: {sentence}")
    out.print()
    throughput_table(report).print_to(out)
    out.print()
    _times(
        "CPU per document, us",
        [(variant, _medians_of_cpu(report, variant)) for variant in report.variants],
    ).print_to(out)
    out.print()
    stages = [
        (
            plan,
            medians([sample.per_document_us(sample.stage_seconds) for sample in report.of(plan)]),
        )
        for plan in PLANS
    ]
    _times("Loop time per document, us", stages).print_to(out)
    sizes = [
        (variant, medians([sample.bytes_per_document for sample in report.of(variant)]))
        for variant in report.variants
    ]
    out.print()
    out.print(
        _times("Bytes per document", sizes)
        if any(found for _, found in sizes)
        else f"Bytes are known of a broker of our own only; {options.broker} may tell by kafka-log-dirs."
    )
    if report.latencies:
        out.print()
        latency_table(report).print_to(out)


def throughput_table(report: PathReport) -> FittedTable:
    """Return the documents per second of every variant, with its share of the copy."""
    beside = ["of Quix's copy"] if QUIX in report.peers else []
    headings = [
        "documents/s",
        "of the copy",
        *beside,
        "first commit, s",
        "duplicates",
        "memory, MB",
    ]
    table = table_of("", *headings, "documents/s of each round")
    for variant in report.variants:
        samples = report.of(variant)
        rate = report.documents_per_second(variant)
        memory = medians([sample.memory_bytes_max for sample in samples])
        first = median([sample.first_commit_seconds for sample in samples])
        duplicates = sorted(
            {sample.balance["duplicates"] for sample in samples if "duplicates" in sample.balance}
        )
        table.add_row(
            variant,
            number(rate),
            "" if variant == COPY else number(median(report.ratios(variant)), 3),
            *(
                "" if variant == QUIX else number(median(report.ratios(variant, QUIX)), 3)
                for _ in beside
            ),
            number(first, 1),
            " to ".join(f"{count:,}" for count in {duplicates[0]: 0, duplicates[-1]: 0})
            if duplicates
            else "",
            ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in memory.items()),
            ", ".join(number(sample.documents_per_second) for sample in samples),
        )
    return table


def _medians_of_cpu(report: PathReport, variant: str) -> Mapping[str, float]:
    return medians([sample.per_document_us(sample.cpu_seconds) for sample in report.of(variant)])


def _times(title: str, found: Sequence[tuple[str, Mapping[str, float]]]) -> FittedTable:
    names = list(dict.fromkeys(name for _, times in found for name in times))
    table = table_of(title, *names)
    for variant, times in found:
        table.add_row(variant, *(number(times.get(name), 1) for name in names))
    return table


def latency_table(report: PathReport) -> FittedTable:
    """Return the latencies, from record to committed verdict, and the median age at each of the
    worker's steps.
    """
    found = [
        (plan, sample.documents_per_second, sample.as_json())
        for plan, those in report.latencies.items()
        for sample in those
    ]
    names = list(
        dict.fromkeys(name for *_, figures in found for name in figures if name.endswith("_ms"))
    )
    headings = (name.removesuffix("_ms").replace("_", " ") for name in names)
    table = table_of("Record to committed output, ms", "filter", "documents/s", *headings)
    for plan, rate, figures in found:
        table.add_row(plan, number(rate), *(number(figures.get(name)) for name in names))
    return table
