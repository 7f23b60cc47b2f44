"""Print the results of `bench files`: near-duplicates in one file, by this program and by others."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from bench.files import OURS, PEERS, measure, write_file
from bench.show import FiguresOption, stamped, write_figures
from stream_dedup.cli.options import command
from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.domain.terminal import note, print_table


@command("bench files", example="python -m bench files --documents 200000 --json figures.json")
def bench_files_command(
    documents: Annotated[
        int, typer.Option("--documents", min=1000, help="How many the file has.")
    ] = 20_000,
    size_bytes: Annotated[
        int, typer.Option("--size", min=200, help="Bytes of each, about.")
    ] = 1100,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the file.")] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", help="Only this program; can be given several times.  [default: all]"
        ),
    ] = None,
    target: FiguresOption = None,
) -> int:
    """Measure recall, false drops, CPU and memory of programs on one file of known copies. The
    others need `make peers`.

    Exit code 1 if one failed.
    """
    runs, failed = [], []
    with tempfile.TemporaryDirectory(prefix="stream-dedup-bench-") as folder:
        path = Path(folder) / "documents.jsonl"
        truth = write_file(path, documents, size_bytes, seed)
        for program in only or (OURS, *PEERS):
            try:
                runs.append(measure(program, path, truth))
            except StreamDedupError as error:
                failed.append(str(error))
    rows = [
        [
            run.program,
            f"{run.recall:.3f}",
            f"{run.false_drops:,}",
            f"{run.cpu_seconds:.1f}",
            f"{run.memory_mb:,.0f}",
        ]
        for run in runs
    ]
    print_table(
        ["program", f"recall of {len(truth.copies):,}", "false drops", "CPU, s", "memory, MB"], rows
    )
    for sentence in failed:
        note(sentence)
    figures = {
        "documents": documents,
        "size": size_bytes,
        "seed": seed,
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    write_figures(stamped(figures), target)
    return 1 if failed else 0
