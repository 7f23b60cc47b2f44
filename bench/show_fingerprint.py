"""`bench fingerprint`: how fast texts become fingerprints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream_dedup.cli.options import (
    FiguresOption,
    command,
)
from stream_dedup.ground.terminal import note

if TYPE_CHECKING:
    from bench import fingerprint
from bench.show import about_peers, number, out_of, peers_of, stamped, table_of, write_figures


@command("bench fingerprint", example="python -m bench fingerprint --languages en,zh --json figures.json")
def bench_fingerprint_command(
    languages: Annotated[str, typer.Option("--languages", metavar="EN,..", help="Languages of the texts.")] = "en,zh,ja,ru",
    documents: Annotated[int, typer.Option("--documents", min=1, help="Texts in each language.")] = 300,
    size_bytes: Annotated[int, typer.Option("--size", help="Bytes of each, about; 250 to 1,000,000.")] = 4000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measurements of each program; medians are shown.")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generated texts.")] = 1,
    presets: Annotated[list[str] | None, typer.Option("--preset", help="Recipes to measure.  [default: all]")] = None,
    corpus: Annotated[
        Path | None, typer.Option("--corpus", metavar="DIR", help="Take texts of these sets instead of generated ones.")
    ] = None,
    peers: Annotated[bool, typer.Option("--peers", help="Measure other programs too; needs `make peers`.")] = False,
    target: FiguresOption = None,
) -> int:
    """Measure how fast texts become fingerprints, on one core, beside other programs on the same texts."""
    from bench.fingerprint import FingerprintOptions
    from bench.quality import presets_named

    codes = tuple(code.strip() for code in languages.split(","))
    options = FingerprintOptions(codes, documents, size_bytes, rounds, seed, presets_named(presets or []), corpus)
    return show_fingerprint(options, with_peers=peers, target=target)


def show_fingerprint(options: fingerprint.FingerprintOptions, *, with_peers: bool, target: str | None) -> int:
    """Measure and print the table; return the exit code. JSON goes to `target` as in `show_path`.

    Raises:
        InputError: there are no texts in a language, the file cannot be written, or the peers are not set up.
        StreamDedupError: a peer failed.
    """
    from bench import fingerprint

    out = out_of(target)
    with peers_of(with_peers=with_peers) as peers:
        report = fingerprint.run_fingerprint(options, peers, note)
    out.print()
    out.print(about_peers(report.peer_versions, report.peers_missing))
    out.print("text in, signature out; CPU time of one thread, medians, then the seconds of each round")
    out.print()
    table = table_of("", "language", "MB/s", "documents/s", "ours to it", "ours of like features", "seconds of each round")
    for one in report.speeds:
        ours = one.program.startswith(fingerprint.OURS)
        ratios = [None if ours else ratio for ratio in report.ratios(one)]
        samples = ", ".join(f"{seconds:.4f}" for seconds in one.seconds)
        rates = number(one.megabytes_per_second, 2), number(one.documents_per_second)
        table.add_row(
            one.program, one.language, *rates, *("" if ratio is None else f"{ratio:.1f}" for ratio in ratios), samples
        )
    table.print_to(out)
    write_figures(stamped(report.as_json()), target)
    return 0
