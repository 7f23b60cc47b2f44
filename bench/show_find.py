"""`bench find`: how fast, and how surely, texts that hold a clue are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bench import find
from bench.find import FindOptions
from bench.show import out_of, stamped, write_figures
from stream_dedup.cli.options import FiguresOption, command
from stream_dedup.ground.terminal import note

_LANGUAGES: Final = {"en": "English", "zh": "Chinese", "ja": "Japanese"}


@command("bench find", example="python -m bench find --documents 1000000 --json figures.json")
def bench_find_command(
    documents: Annotated[int, typer.Option("--documents", min=30, help="How many are searched in.")] = 100_000,
    size_bytes: Annotated[int, typer.Option("--size", min=500, help="Bytes of each, about.")] = 1000,
    clues: Annotated[
        int, typer.Option("--clues", min=1, help="Clues of each language, length and change; there are 27 of these.")
    ] = 100,
    scans: Annotated[int, typer.Option("--scans", min=0, max=27, help="Of them, how many are asked of a plain scan too.")] = 9,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the texts and of the clues.")] = 1,
    corpus: Annotated[
        Path | None,
        typer.Option("--corpus", metavar="DIR", help="Walk through the texts of these sets instead of drawing words."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Where texts and engine go.  [default: the system's for such files]"),
    ] = None,
    target: FiguresOption = None,
) -> int:
    """Measure the search: loading, bytes of a document, and how fast and surely clues are found, beside a plain scan.

    Clues of 8, 20 and 60 words, whole, with one changed and with one missing, in English, Chinese and Japanese. Exit code 1 if
    the scan found other documents than the engine.
    """
    complaints = show_find(FindOptions(documents, size_bytes, clues, scans, seed, corpus, folder), target=target)
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
    out.print()
    out.print(_tables(figures), soft_wrap=True)
    write_figures(figures, target)
    return report.complaints


def _rows_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _tables(figures: Mapping[str, Any]) -> str:
    """Return all that was measured, as Markdown."""
    said = (
        f"{figures['date']}, {figures['machine']}; {figures['documents']:,} {figures['texts']} texts of "
        f"{figures['bytes_of_text']:,} bytes, seed {figures['seed']}.\n"
    )
    whole = _rows_of(
        ("of a document", ""),
        [
            ("loading", f"{figures['loaded_per_second']:,} a second, {figures['load_cpu_us']:,} us of CPU"),
            ("in the engine", f"{figures['bytes_in_engine']:,} bytes, in {figures['segments']} segments"),
            (
                "a clue, over all",
                f"median {figures['median_ms']} ms, 99 % within {figures['p99_ms']} ms; {figures['ask_cpu_ms']} ms of CPU",
            ),
        ],
    )
    rows = []
    for (code, tokens), cells in groupby(figures["cells"], lambda one: (one["language"], one["tokens"])):
        own = list(cells)
        rows.append(
            (
                f"{_LANGUAGES[code]}, {tokens} words",
                *(f"{one['recall']:.3f}, {one['listed']:.3f}" for one in own),
                " / ".join(f"{one['median_ms']:.1f}" for one in own),
                " / ".join(f"{one['p99_ms']:.1f}" for one in own),
            )
        )
    heads = ("clue", "whole: among the first 20, listed", "one word changed", "one missing", "median ms", "99 % within ms")
    found = _rows_of(heads, rows)
    beside = _rows_of(
        ("clue", "a plain scan, ms", "the engine, ms", "times as fast"),
        [
            (
                f"{one['tokens']} words ({one['asked']} asked)",
                f"{one['scan_ms']:,.0f}",
                f"{one['engine_ms']:.1f}",
                f"{one['scan_ms'] / one['engine_ms']:,.0f}",
            )
            for one in figures["scans"]
        ],
    )
    return "\n".join((said, whole, found, *([beside] if figures["scans"] else [])))
