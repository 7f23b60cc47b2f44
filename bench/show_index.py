"""Print the results of `bench index`: the index alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import index
from bench.index import IndexOptions
from bench.show import FiguresOption, megabytes, number, out_of, stamped, table_of, write_figures
from bench.similarity_spread import candidates_per_text, generated_columns, real_columns
from stream_dedup.cli.options import command
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.plan import parse as parse_plan
from stream_dedup.domain.terminal import note
from stream_dedup.settings.units import parse_size


@command(
    "bench index",
    example="python -m bench index --documents 10000000 --plan classic --duplicates 0.1 --json "
    "figures.json",
)
def bench_index_command(
    documents: Annotated[
        int,
        typer.Option("--documents", min=2000, help="How many; below 1,000,000 it is only a try."),
    ] = 1_000_000,
    plans: Annotated[
        list[str] | None,
        typer.Option(
            "--plan",
            help="Plan to judge with, one after another if several are given.  [default: bands]",
        ),
    ] = None,
    duplicates: Annotated[
        float, typer.Option("--duplicates", min=0, max=0.9, help="Share of planted copies.")
    ] = 0.1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the prints.")] = 1,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Hold the measured process to it, as MEMORY does.",
        ),
    ] = None,
    reopen: Annotated[
        str | None,
        typer.Option(
            "--reopen-with",
            metavar="SIZE",
            help="After the kill, open the volume with so much memory and judge a fiftieth more, "
            "instead of the restarts.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Where the volumes go.  [default: the system's for such files]",
        ),
    ] = None,
    template: Annotated[
        bool, typer.Option("--template", help="All documents are pages of one site.")
    ] = False,
    judging_only: Annotated[
        bool, typer.Option("--judging-only", help="Leave out restarts, snapshot and rebuild.")
    ] = False,
    corpus: Annotated[
        Path | None,
        typer.Option(
            "--corpus",
            metavar="DIR",
            help="Only compare how near the documents are with the texts of these sets.",
        ),
    ] = None,
    target: FiguresOption = None,
) -> int:
    """Measure the index alone: judging, restarts, a kill, a snapshot, a rebuild, sizes; every
    planted copy is checked.

    Prints and sketches are as near as those of real pages, which `--corpus` compares. The planted
    copies differ in as many bits as the plan finds for sure. Exit code 1 if one was not found.
    """
    chosen = [parse_plan(plan) for plan in plans or ["bands"]]
    if corpus is not None:
        return _show_nearness(corpus, chosen, seed)
    try:
        room, other = (None if size is None else parse_size(size) for size in (memory, reopen))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--memory, --reopen-with") from error
    first = IndexOptions(
        documents,
        chosen[0],
        duplicates,
        seed,
        room,
        folder,
        template=template,
        judging_only=judging_only or other is not None,
        reopen_bytes=other,
    )
    return show_index([replace(first, plan=plan) for plan in chosen], target=target)


def show_index(runs: list[index.IndexOptions], *, target: str | None) -> int:
    """Measure and print the tables; return the exit code, 1 if there is a complaint. JSON goes to
    `target` as in `show_path`.

    Raises:
        InputError: the file cannot be written.
        StreamDedupError: a measured process failed.
    """
    out, reports = out_of(target), list[index.IndexReport]()
    for options in runs:
        reports.append(index.run_index(options, note))
        _show_index(reports[-1], out)
    if len(reports) > 1:
        _compare(reports, out)
    write_figures(stamped({"runs": [report.as_json() for report in reports]}), target)
    complaints = [complaint for report in reports for complaint in report.complaints]
    for complaint in complaints:
        note(complaint)
    return 1 if complaints else 0


def _show_nearness(corpus: Path, plans: list[Plan], seed: int) -> int:
    texts = real_columns(corpus)
    table = table_of(
        "entries looked up for a document",
        f"{len(texts.features):,} distinct texts",
        "as many generated",
    )
    for plan in plans:
        made = candidates_per_text(plan, generated_columns(plan, len(texts.features), seed))
        table.add_row(plan.name, number(candidates_per_text(plan, texts), 3), number(made, 3))
    table.print_to(out_of(None))
    return 0


def _compare(reports: list[index.IndexReport], out: Console) -> None:
    """Show plans beside each other; the last one is what the others are measured by."""
    by = reports[-1]
    last = by.options.plan.name
    table = table_of(
        "plan",
        "documents/s",
        f"of {last}",
        "by CPU time",
        f"of {last}",
        "candidates",
        "growth",
        "resident bytes",
    )
    for report in reports:
        table.add_row(
            report.options.plan.name,
            number(report.sustained),
            number(report.sustained / by.sustained, 2),
            number(report.sustained_cpu),
            number(report.sustained_cpu / by.sustained_cpu, 2),
            number(report.candidates, 1),
            number(report.growth, 2),
            number(report.resident_bytes),
        )
    out.print()
    table.print_to(out)
    out.print(
        "\nSecond half of the documents. Candidates: entries looked up for a document. Growth: CPU "
        "of a document in the last "
        "fifth over that in the second. Resident bytes: by which the process grew for a "
        "representative."
    )


def _show_index(report: index.IndexReport, out: Console) -> None:
    options, figures = report.options, report.as_json()
    out.print()
    out.print(
        f"{options.documents:,} documents, {options.duplicates:.0%} copies planted at "
        f"{options.distance} bits, plan "
        f"{options.plan.name} ({options.plan.id})\n{figures['cores']} cores, load before "
        f"{report.load_before:.1f}; threads: "
        f"{report.threads}\ndurable: {index.DURABLE}\n"
    )
    found, missed = figures["planted_found"], figures["planted_missed"]
    out.print(
        f"planted copies found with their original and distance: {found:,} of {found + missed:,}"
    )
    out.print(
        f"near a stranger, each seen to be: {report.by_chance:,}; entries looked up for a "
        f"document: {report.candidates:.1f}\n"
    )
    table = table_of(
        "",
        "documents/s",
        "by CPU time",
        "bytes in memory",
        "resident MB",
        "documents/s, by stretch",
    )
    for name, wall, cpu, last, curve in (
        (
            "judged, second half",
            report.sustained,
            report.sustained_cpu,
            report.filled,
            report.curve,
        ),
        *(
            ()
            if options.judging_only
            else (
                (
                    "rebuilt",
                    report.rebuild,
                    report.rebuild_cpu,
                    report.rebuilt,
                    report.rebuild_curve,
                ),
            )
        ),
    ):
        samples = [
            curve[place]
            for place in sorted({len(curve) * part // 5 for part in range(5)} | {len(curve) - 1})
        ]
        rates = ", ".join(
            number(sample["documents"] / max(sample["seconds"], 1e-9)) for sample in samples
        )
        memory = last["statistics"]["bytes_in_memory"] / report.representatives
        table.add_row(
            name,
            number(wall),
            number(cpu),
            f"{memory:.0f} a document",
            megabytes(last["rss_bytes_max"]),
            rates,
        )
    table.print_to(out)
    if not options.judging_only:
        _show_restarts(report, out)
    if options.reopen_bytes is not None:
        _show_reopened(report, out)


def _show_reopened(report: index.IndexReport, out: Console) -> None:
    figures = report.reopened
    entries = figures["statistics"]["entries"]
    out.print()
    table = table_of(
        "after SIGKILL, with",
        "opened in s",
        "of CPU",
        "judged on, documents/s",
        "by CPU time",
        "in memory",
        "MB at most",
    )
    table.add_row(
        f"{megabytes(report.options.reopen_bytes)} MB",
        number(figures["open_seconds"], 2),
        number(figures["open_cpu_seconds"], 2),
        number(report.judged_on),
        number(report.judged_on_cpu),
        f"{figures['statistics']['bytes_in_memory'] / entries:.0f} a document",
        megabytes(figures["rss_bytes_max"]),
    )
    table.print_to(out)


def _show_restarts(report: index.IndexReport, out: Console) -> None:
    out.print()
    table = table_of("opening", "seconds", "of CPU", "entries/s", "resident MB")
    for name, figures in (
        ("after SIGKILL", report.after_kill),
        ("after a clean stop", report.after_close),
    ):
        rate = number(report.representatives / figures["open_seconds"])
        table.add_row(
            name,
            number(figures["open_seconds"], 2),
            number(figures["open_cpu_seconds"], 2),
            rate,
            megabytes(figures["rss_bytes"]),
        )
    figures = report.restored
    seconds = figures["restore_seconds"] + figures["open_seconds"]
    table.add_row(
        "a snapshot, copied and proved",
        number(seconds, 2),
        "",
        number(report.restored_entries_per_second),
        "",
    )
    table.print_to(out)
    out.print()
    table = table_of("bytes on disk", "per representative")
    for name, size in report.disk.items():
        table.add_row(name, number(size, 1))
    table.print_to(out)
