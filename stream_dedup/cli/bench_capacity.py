"""`bench capacity`: the figures that sizing rests on, and the tables of the pages that quote them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Annotated

import typer

from stream_dedup.cli.bench import out_of, write_figures
from stream_dedup.cli.options import FiguresOption, KeptOption, PagesOption, command
from stream_dedup.ground.terminal import note


@command("bench capacity", example="stream-dedup bench capacity --json figures.json")
def bench_capacity_command(
    documents: Annotated[int, typer.Option("--documents", min=2000, help="How many go through both roles.")] = 200_000,
    representatives: Annotated[
        int, typer.Option("--representatives", min=2000, help="How many the index alone gets.")
    ] = 1_000_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measurements through both roles; medians are shown.")] = 3,
    kept: KeptOption = False,
    pages: PagesOption = None,
    target: FiguresOption = None,
) -> int:
    """Measure what sizing rests on: CPU and bytes of a document by role, of a representative, of the log.

    The figures that a version keeps stand in `stream_dedup/index/measured.json`; `plan`, the handbook and the page on capacity
    take them from there.
    """
    from stream_dedup.bench import capacity_pages
    from stream_dedup.bench.capacity import run_capacity
    from stream_dedup.bench.path_report import PathOptions
    from stream_dedup.index.measured import MEASURED
    from stream_dedup.service import logs

    out, found, complaints = out_of(target), MEASURED, list[str]()
    if not kept:
        logs.kafka_logger().setLevel(logging.ERROR)  # what will be tried again is no news here
        options = PathOptions(documents=documents, rounds=rounds)
        found, complaints = run_capacity(options, representatives, f"{datetime.now(UTC):%Y-%m-%d}", note)
    for name, value in found.as_json().items():
        out.print(f"{name}: {value}")
    write_figures(found.as_json(), target)
    if pages is not None:
        capacity_pages.put_tables(pages, capacity_pages.PAGES, lambda text, name: capacity_pages.put(text, name, found))
    for complaint in complaints:
        note(complaint)
    return 1 if complaints else 0
