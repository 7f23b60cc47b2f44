"""Print the results of `bench quality`: what recipes and plans find among real texts, and what they
drop falsely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import quality, sites
from bench.bands import BANDS, BandCounts
from bench.edits import measure_edits
from bench.quality import QualityOptions, presets_named
from bench.show import (
    FiguresOption,
    about_peers,
    number,
    out_of,
    peers_of,
    stamped,
    table_of,
    write_figures,
)
from stream_dedup.cli.options import command
from stream_dedup.domain.plan import PLANS, Plan
from stream_dedup.domain.plan import parse as parse_plan
from stream_dedup.domain.tables import FittedTable
from stream_dedup.domain.terminal import note


@command("bench quality", example="python -m bench quality --corpus corpora --plan classic")
def bench_quality_command(
    corpus: Annotated[
        Path | None,
        typer.Option(
            "--corpus", metavar="DIR", help="Folder of NAME.jsonl and NAME.pairs.tsv files."
        ),
    ] = None,
    sites: Annotated[
        bool, typer.Option("--sites", help="Measure large sites that are made up.")
    ] = False,
    real: Annotated[
        Path | None,
        typer.Option(
            "--real",
            metavar="DIR",
            help="Folder of NAME.jsonl files, each the pages of one real site.",
        ),
    ] = None,
    edits: Annotated[
        bool, typer.Option("--edits", help="With --corpus, measure what is missed of edited texts.")
    ] = False,
    presets: Annotated[
        list[str] | None, typer.Option("--preset", help="Recipes to measure.  [default: all]")
    ] = None,
    plans: Annotated[
        list[str] | None,
        typer.Option("--plan", help="Plans to measure.  [default: all with a name]"),
    ] = None,
    keys: Annotated[
        int, typer.Option("--keys", min=1, help="Hash keys to measure with, the public one first.")
    ] = 1,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the streams' order and of the pages made up.")
    ] = 1,
    peers: Annotated[
        bool, typer.Option("--peers", help="Measure other programs too; needs `make peers`.")
    ] = False,
    site_pages: Annotated[
        list[int] | None,
        typer.Option(
            "--site-pages",
            min=2,
            help="With --sites, pages of a site.  [default: 10, 100, 1000, 4000]",
        ),
    ] = None,
    templates: Annotated[
        list[int] | None,
        typer.Option(
            "--template",
            min=0,
            max=99,
            help="With --sites, percent of a page's words.  [default: 50 to 80]",
        ),
    ] = None,
    languages: Annotated[
        list[str] | None,
        typer.Option("--language", help="With --sites, of en, zh, ja and ar.  [default: all]"),
    ] = None,
    pages: Annotated[
        int,
        typer.Option(
            "--pages", min=1, help="With --sites, pages of each size, template and language."
        ),
    ] = 4000,
    target: FiguresOption = None,
) -> int:
    """Measure what recipes and plans find among real texts with known near-duplicates (--corpus),
    and what they drop falsely.

    With --sites, how many different pages of one site are dropped, and how many planted copies are
    found, by the size of the site and of its template.
    """
    if corpus is None and not sites and real is None:
        raise typer.BadParameter(
            "give a folder to --corpus or --real, or --sites, or several", param_hint="--corpus"
        )
    named, chosen = presets_named(presets or []), tuple(map(parse_plan, plans or PLANS))
    out = out_of(target)
    figures: dict[str, object] = {"keys": keys, "seed": seed}
    if corpus is not None and edits:
        figures |= show_edits(corpus, chosen[0], keys, seed, out)
    elif corpus is not None:
        figures |= show_corpora(
            QualityOptions(corpus, named, chosen, keys, seed), out, with_peers=peers
        )
    if sites:
        from bench.sites import LANGUAGES, SIZES, TEMPLATES, SiteOptions

        for language in languages or ():
            if language not in LANGUAGES:
                raise typer.BadParameter(
                    f"choose of {', '.join(LANGUAGES)}", param_hint="--language"
                )
        wanted = (
            tuple(languages or LANGUAGES),
            tuple(templates or TEMPLATES),
            tuple(site_pages or SIZES),
        )
        options = SiteOptions(
            *wanted, pages=pages, presets=named, plans=chosen, keys=keys, seed=seed
        )
        figures |= show_sites(options, out)
    if real is not None:
        figures |= show_real_sites(real, seed, out)
    write_figures(stamped(figures), target)
    return 0


def show_real_sites(folder: Path, seed: int, out: Console) -> dict[str, object]:
    """Measure real sites and made-up families of pages, and print the tables; return the
    figures.
    """
    from bench.real_sites import BANDS, measure_families, measure_real_sites

    findings = list(measure_real_sites(folder, seed, note))
    families = list(measure_families(seed))
    out.print()
    out.print(f"{datetime.now(UTC):%Y-%m-%d}; seed: {seed}; the public hash key")
    out.print("Pages dropped as a copy of another page, and copies found, by threshold:")
    table = table_of(
        "site",
        "thresholds",
        "lost",
        "",
        *(f"versions {band}" for band in BANDS),
        "edited, one site",
        "edited, two sites",
    )
    for finding in findings:
        versions = zip(finding.versions_found, finding.versions, strict=True)
        table.add_row(
            finding.name,
            ("titles " if finding.with_titles else "") + finding.thresholds,
            f"{finding.lost:,} of {finding.pages:,}",
            f"{finding.lost / finding.pages:.2%}",
            *(f"{found:,} of {count:,}" if count else "" for found, count in versions),
            f"{finding.edited_within / finding.edited:.3f}",
            f"{finding.edited_across / finding.edited:.3f}",
        )
    table.print_to(out)
    out.print()
    out.print("Made-up families of pages of one site beside one big template:")
    table = table_of("share", "pages", "lost with titles", "without", "copies, two sites")
    for family in families:
        table.add_row(
            f"{family.share} %",
            f"{family.pages:,}",
            number(family.lost_with_titles),
            number(family.lost_without),
            f"{family.copies_found:,} of {family.copies:,}",
        )
    table.print_to(out)
    return {
        "real_sites": [finding.as_json() for finding in findings],
        "families": [asdict(family) for family in families],
    }


def show_corpora(
    options: quality.QualityOptions, out: Console, *, with_peers: bool
) -> dict[str, object]:
    """Measure real texts and print the tables; return the figures.

    Raises:
        InputError: the corpora cannot be read, or the peers are not set up.
        StreamDedupError: the peers did not start.
    """
    with peers_of(with_peers=with_peers) as peers:
        report = quality.run_quality(options, peers, note)
    out.print()
    out.print(about_peers(report.peer_versions, report.peers_missing))
    for name, reason in report.peers_failed.items():
        out.print(f"failed: {name} on {reason}")
    out.print(f"hash keys: {options.keys}; seed of orders and pages: {options.seed}")
    for code, (count, cuts) in report.templates.items():
        out.print(
            f"template pages {code}: {count}, Jaccard with the nearest "
            f"{'/'.join(f'{cut:.2f}' for cut in cuts)} (10/50/90 %)"
        )
    out.print()
    _quality(report).print_to(out)
    out.print()
    out.print(
        "Documents of the sets that were dropped, of all, by the exact Jaccard with the nearest "
        "document kept before:"
    )
    _bands(report).print_to(out)
    return report.as_json()


def show_edits(corpus: Path, plan: Plan, keys: int, seed: int, out: Console) -> dict[str, object]:
    """Measure edited texts with one plan and print the tables; return the figures."""
    findings = list(measure_edits(corpus, plan, keys, seed))
    table = table_of("", "words", "texts", "exact Jaccard", f"found by {plan.name}")
    for finding in findings:
        span = f"{finding.words[0]} to {finding.words[1]}"
        table.add_row(
            finding.kind,
            span,
            number(finding.texts),
            number(finding.jaccard, 2),
            number(finding.found, 3),
        )
    table.print_to(out)
    return {"edits": [asdict(finding) for finding in findings]}


def show_sites(options: sites.SiteOptions, out: Console) -> dict[str, object]:
    """Measure made-up sites and print the tables; return the figures."""
    findings = list(sites.measure_sites(options, note))
    out.print()
    out.print(f"{datetime.now(UTC):%Y-%m-%d}; hash keys: {options.keys}; seed: {options.seed}")
    out.print(
        f"Made-up sites, {sites.WORDS} words a page; dropped of all, by the exact Jaccard with the "
        "nearest page kept before:"
    )
    _sites(sites.summarise_findings(findings)).print_to(out)
    for language in options.languages:
        out.print()
        out.print(f"{language}:")
        _sites(sites.summarise_findings(findings, language)).print_to(out)
    return {"sites": [finding.as_json() for finding in findings]}


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


def _bands(report: quality.QualityReport) -> FittedTable:
    table = table_of("", "method", "plan", *BANDS)
    for (name, method, plan), counts in report.bands().items():
        table.add_row(name, method, plan, *_of_bands(counts))
    return table


def _of_bands(counts: BandCounts) -> Iterator[str]:
    """Yield drops and documents of each band, nothing where there are none."""
    for documents, dropped in zip(counts.documents, counts.dropped, strict=True):
        yield f"{dropped:,} of {documents:,}" if documents else ""


def _sites(lines: Sequence[sites.SiteSummary]) -> FittedTable:
    table = table_of(
        "method",
        "template",
        "pages",
        "Jaccard",
        *BANDS[:-1],
        "of 100,000",
        "below .5, of 100,000",
        "worst site",
        "copies .95, .85, .75",
        "misnamed",
    )
    for line in lines:
        table.add_row(
            f"{line.method} {line.plan}",
            f"{line.template} %",
            f"{line.size:,}",
            f"{line.alike[0]:.2f} to {line.alike[1]:.2f}",
            *list(_of_bands(line.bands))[:-1],
            number(line.dropped_of_100_000),
            number(line.false_of_100_000),
            f"{line.worst:.1%}",
            ", ".join(f"{copies.found / copies.planted:.3f}" for copies in line.copies),
            number(sum(copies.misnamed for copies in line.copies)),
        )
    return table
