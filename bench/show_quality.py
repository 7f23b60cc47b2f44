"""`bench quality`: what recipes and plans find among real texts, and what they drop falsely."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream_dedup.cli.options import (
    FiguresOption,
    command,
)
from stream_dedup.ground.tables import FittedTable
from stream_dedup.ground.terminal import note

if TYPE_CHECKING:
    from bench import quality
from bench.show import about_peers, number, out_of, peers_of, stamped, table_of, write_figures


@command("bench quality", example="python -m bench quality --corpus corpora --plan wide --plan classic")
def bench_quality_command(
    corpus: Annotated[Path, typer.Option("--corpus", metavar="DIR", help="Folder of NAME.jsonl and NAME.pairs.tsv files.")],
    presets: Annotated[list[str] | None, typer.Option("--preset", help="Recipes to measure.  [default: all]")] = None,
    plans: Annotated[list[str] | None, typer.Option("--plan", help="Plans to measure.  [default: all with a name]")] = None,
    keys: Annotated[int, typer.Option("--keys", min=1, help="Hash keys to measure with, the public one first.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the streams' order and of the template pages.")] = 1,
    peers: Annotated[bool, typer.Option("--peers", help="Measure other programs too; needs `make peers`.")] = False,
    target: FiguresOption = None,
) -> int:
    """Measure what recipes and plans find among real texts with known near-duplicates, and what they drop falsely."""
    from bench.quality import QualityOptions, presets_named
    from stream_dedup.ground.plan import PLANS
    from stream_dedup.ground.plan import parse as parse_plan

    chosen = tuple(map(parse_plan, plans or PLANS))
    options = QualityOptions(corpus, presets_named(presets or []), chosen, keys, seed)
    return show_quality(options, with_peers=peers, target=target)


def show_quality(options: quality.QualityOptions, *, with_peers: bool, target: str | None) -> int:
    """Measure and print the table; return the exit code. JSON goes to `target` as in `show_path`.

    Raises:
        InputError: the corpora cannot be read, the file cannot be written, or the peers are not set up.
        StreamDedupError: the peers did not start.
    """
    from bench import quality

    out = out_of(target)
    with peers_of(with_peers=with_peers) as peers:
        report = quality.run_quality(options, peers, note)
    out.print()
    out.print(about_peers(report.peer_versions, report.peers_missing))
    for name, reason in report.peers_failed.items():
        out.print(f"failed: {name} on {reason}")
    out.print(f"hash keys: {options.keys}; seed of orders and pages: {options.seed}")
    for code, (count, cuts) in report.templates.items():
        out.print(
            f"template pages {code}: {count}, Jaccard with the nearest {'/'.join(f'{one:.2f}' for one in cuts)} (10/50/90 %)"
        )
    out.print()
    _quality(report).print_to(out)
    write_figures(stamped(report.as_json()) | {"keys": options.keys, "seed": options.seed}, target)
    return 0


def _quality(report: quality.QualityReport) -> FittedTable:
    table = table_of(
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
        table.add_row(
            line.name,
            line.method,
            line.plan,
            number(counts.recall, 3),
            number(line.recall_min, 3),
            f"{counts.found:,} of {counts.dup:,}",
            number(counts.false_per_million, 2),
            number(counts.false_pairs),
            number(counts.far_pairs),
            f"{counts.grey_taken:,} of {counts.grey:,}",
            f"{counts.false_drops:,} of {counts.distinct:,}",
            number(counts.drops_per_100_000),
        )
    return table
