"""`bench index`: the index alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from stream_dedup.cli.options import (
    FiguresOption,
    command,
)
from stream_dedup.ground.terminal import note

if TYPE_CHECKING:
    from stream_dedup.bench import index
from stream_dedup.cli.bench import megabytes, number, out_of, stamped, table_of, write_figures


@command(
    "bench index", example="stream-dedup bench index --documents 10000000 --plan classic --duplicates 0.1 --json figures.json"
)
def bench_index_command(
    documents: Annotated[int, typer.Option("--documents", min=2000, help="How many; below 1,000,000 it is only a try.")],
    plan: Annotated[str, typer.Option("--plan", help="Plan to judge with: bands, wide, classic, or in numbers.")] = "bands",
    duplicates: Annotated[float, typer.Option("--duplicates", min=0, max=0.9, help="Share of planted copies.")] = 0.1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the prints.")] = 1,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Hold the measured process to it, as INDEX_MEMORY does.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Where the volumes go.  [default: the system's for such files]"),
    ] = None,
    peers: Annotated[bool, typer.Option("--peers", help="Measure other layouts and programs too; needs `make peers`.")] = False,
    target: FiguresOption = None,
) -> int:
    """Measure the index alone: judging, restarts, a kill, a snapshot, a rebuild, sizes; every planted copy is checked.

    The planted copies differ in as many bits as the plan finds for sure. Exit code 1 if one was not found.
    """
    from stream_dedup.bench.index import IndexOptions
    from stream_dedup.cli.plan import read_size
    from stream_dedup.ground.plan import parse as parse_plan

    room = None if memory is None else read_size(memory)
    options = IndexOptions(documents, parse_plan(plan), duplicates, seed, peers, room, folder)
    return show_index(options, target=target)


def show_index(options: index.IndexOptions, *, target: str | None) -> int:
    """Measure and print the tables; return the exit code, 1 if there is a complaint. JSON goes to `target` as in `show_path`.

    Raises:
        InputError: the file cannot be written, or the peers are not set up.
        StreamDedupError: a measured process or a peer failed.
    """
    from stream_dedup.bench import index

    out = out_of(target)
    report = index.run_index(options, note)
    _show_index(report, out)
    write_figures(stamped(report.as_json()), target)
    for complaint in report.complaints:
        note(complaint)
    return 1 if report.complaints else 0


def _show_index(report: index.IndexReport, out: Console) -> None:
    from stream_dedup.bench import index

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
    table = table_of("", "documents/s", "by CPU time", "bytes in memory", "resident MB", "documents/s, by stretch")
    filled, rebuilt = report.filled, report.rebuilt
    for name, wall, cpu, last, curve in (
        ("judged, second half", report.sustained, report.sustained_cpu, filled, report.curve),
        ("rebuilt", report.rebuild, report.rebuild_cpu, rebuilt, report.rebuild_curve),
    ):
        samples = [curve[place] for place in sorted({len(curve) * part // 5 for part in range(5)} | {len(curve) - 1})]
        rates = ", ".join(number(one["documents"] / max(one["seconds"], 1e-9)) for one in samples)
        memory = last["statistics"]["bytes_in_memory"] / report.representatives
        table.add_row(name, number(wall), number(cpu), f"{memory:.0f} a document", megabytes(last["rss_bytes_max"]), rates)
    table.print_to(out)
    out.print()
    table = table_of("opening", "seconds", "of CPU", "entries/s", "resident MB")
    for name, one in (("after SIGKILL", report.after_kill), ("after a clean stop", report.after_close)):
        rate = number(report.representatives / one["open_seconds"])
        table.add_row(
            name,
            number(one["open_seconds"], 2),
            number(one["open_cpu_seconds"], 2),
            rate,
            megabytes(one["rss_bytes"]),
        )
    one = report.restored
    seconds = one["restore_seconds"] + one["open_seconds"]
    table.add_row("a snapshot, copied and proved", number(seconds, 2), "", number(report.restored_entries_per_second), "")
    table.print_to(out)
    out.print()
    table = table_of("bytes on disk", "per representative")
    for name, size in report.disk.items():
        table.add_row(name, number(size, 1))
    table.print_to(out)
    if report.peers:
        out.print()
        table = table_of("", "documents", "by CPU time/s", "found", "durable", "")
        for run in report.peers:
            found_text = f"{run.found:,}" + ("" if run.planted is None else f" of {run.planted:,}")
            durable = "yes" if run.durable else "no"
            table.add_row(run.name, f"{run.documents:,}", number(run.documents_per_cpu_second), found_text, durable, run.note)
        table.print_to(out)
