"""`bench find`: how fast, and how surely, texts that hold a clue are found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream_dedup.cli.bench import out_of, stamped, write_figures
from stream_dedup.cli.options import FiguresOption, KeptOption, PagesOption, command
from stream_dedup.ground.terminal import note

if TYPE_CHECKING:
    from stream_dedup.bench import find


@command("bench find", example="stream-dedup bench find --documents 1000000 --json figures.json")
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
    kept: KeptOption = False,
    pages: PagesOption = None,
    target: FiguresOption = None,
) -> int:
    """Measure the search: loading, bytes of a document, and how fast and surely clues are found, beside a plain scan.

    Clues of 8, 20 and 60 words, whole, with one changed and with one missing, in English, Chinese and Japanese. Exit code 1 if
    the scan found other documents than the engine.
    """
    from stream_dedup.bench import find_pages
    from stream_dedup.bench.capacity_pages import put_tables
    from stream_dedup.bench.find import FindOptions

    if kept:
        out, figures, complaints = out_of(target), find_pages.read(), list[str]()
        out.print(find_pages.tables(figures), soft_wrap=True)
        write_figures(figures, target)
    else:
        figures, complaints = show_find(FindOptions(documents, size_bytes, clues, scans, seed, corpus, folder), target=target)
    if pages is not None:
        put_tables(pages, find_pages.PAGES, lambda text, name: find_pages.put(text, name, figures))
    for complaint in complaints:
        note(complaint)
    return 1 if complaints else 0


def show_find(options: find.FindOptions, *, target: str | None) -> tuple[dict[str, object], list[str]]:
    """Measure and print the tables; return the figures, and what must not be, in sentences.

    Raises:
        InputError: the texts cannot be had, or are too short; or the figures cannot be written.
        StreamDedupError: the engine failed.
    """
    from stream_dedup.bench import find, find_pages

    out = out_of(target)
    out.print(f"seed {options.seed}")
    report = find.run_find(options, note)
    figures = stamped(report.as_json())
    out.print()
    out.print(find_pages.tables(figures), soft_wrap=True)
    write_figures(figures, target)
    return figures, report.complaints
