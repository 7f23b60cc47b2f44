"""Print the results of `bench find`: the speed and recall of searches for texts that contain a
query.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from bench import find
from bench.find import FindOptions
from bench.show import FiguresOption, number, out_of, stamped, table_of, write_figures
from stream_dedup.cli.options import command
from stream_dedup.domain.terminal import note

_LANGUAGES: Final = {"en": "English", "zh": "Chinese", "ja": "Japanese"}


@command("bench find", example="python -m bench find --documents 1000000 --json figures.json")
def bench_find_command(
    documents: Annotated[
        int, typer.Option("--documents", min=30, help="How many are searched in.")
    ] = 100_000,
    size_bytes: Annotated[
        int, typer.Option("--size", min=500, help="Bytes of each, about.")
    ] = 1000,
    clues: Annotated[
        int,
        typer.Option(
            "--clues",
            min=1,
            help="Clues of each language, length and change; there are 27 of these.",
        ),
    ] = 100,
    scans: Annotated[
        int,
        typer.Option(
            "--scans", min=0, max=27, help="Of them, how many are asked of a plain scan too."
        ),
    ] = 9,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the texts and of the clues.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Where texts and engine go.  [default: the system's for such files]",
        ),
    ] = None,
    target: FiguresOption = None,
) -> int:
    """Measure the search: loading, bytes of a document, and how fast and surely clues are found,
    beside a plain scan.

    Clues of 8, 20 and 60 words, whole, with one changed and with one missing, in English, Chinese
    and Japanese. Exit code 1 if the scan found other documents than the engine.
    """
    complaints = show_find(
        FindOptions(documents, size_bytes, clues, scans, seed, folder), target=target
    )
    for complaint in complaints:
        note(complaint)
    return 1 if complaints else 0


def show_find(options: find.FindOptions, *, target: str | None) -> list[str]:
    """Measure and print the tables; return what must not be, in sentences.

    Raises:
        InputError: the texts cannot be had, or are too short; or the figures cannot be written.
        StreamDedupError: the engine failed.
    """
    out = out_of(target)
    out.print(f"seed {options.seed}")
    report = find.run_find(options, note)
    figures = stamped(report.as_json())
    _show(figures, out)
    write_figures(figures, target)
    return report.complaints


def _show(figures: Mapping[str, Any], out: Console) -> None:
    """Print all that was measured."""
    out.print(
        f"\n{figures['date']}, {figures['machine']}; {figures['documents']:,} texts of "
        f"{figures['bytes_of_text']:,} bytes, "
        f"seed {figures['seed']}; loading {figures['loaded_per_second']:,} a second, "
        f"{figures['load_cpu_us']:,} us of CPU and "
        f"{figures['bytes_in_engine']:,} bytes in the engine for each, in {figures['segments']} "
        "segments; a clue takes "
        f"{figures['median_ms']} ms at the median, 99 % within {figures['p99_ms']} ms, "
        f"{figures['ask_cpu_ms']} ms of CPU\n",
        soft_wrap=True,
    )
    heads = (
        "whole: among the first 20, listed",
        "one word changed",
        "one missing",
        "median ms",
        "99 % within ms",
    )
    found = table_of("clue", *heads)
    for (code, tokens), cells in groupby(
        figures["cells"], lambda row: (row["language"], row["tokens"])
    ):
        cells_of_group = list(cells)
        found.add_row(
            f"{_LANGUAGES[code]}, {tokens} words",
            *(f"{row['recall']:.3f}, {row['listed']:.3f}" for row in cells_of_group),
            " / ".join(f"{row['median_ms']:.1f}" for row in cells_of_group),
            " / ".join(f"{row['p99_ms']:.1f}" for row in cells_of_group),
        )
    found.print_to(out)
    if figures["scans"]:
        out.print()
        beside = table_of("clue", "asked", "a plain scan, ms", "the engine, ms", "times as fast")
        for row in figures["scans"]:
            times = number(row["scan_ms"] / row["engine_ms"])
            beside.add_row(
                f"{row['tokens']} words",
                str(row["asked"]),
                number(row["scan_ms"]),
                number(row["engine_ms"], 1),
                times,
            )
        beside.print_to(out)
