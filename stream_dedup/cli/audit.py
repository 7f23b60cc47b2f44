"""`audit`: check the topics of a filter and print the violations (by `audit.live`)."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from stream_dedup.audit.live import SCAN_MAX, AuditReport, examine
from stream_dedup.cli.options import JsonOption, WorkOption, command
from stream_dedup.domain.printable import counted
from stream_dedup.domain.terminal import console, note, print_json, print_table, progress
from stream_dedup.settings.settings import Settings


@command("audit", example="stream-dedup audit --json")
def audit_command(
    settings: Settings,
    finished: Annotated[
        bool, typer.Option("--finished", help="Report waiting documents as violations.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=1, help="Violations of each kind to print; all are counted."
        ),
    ] = 20,
    scan_max: Annotated[
        int,
        typer.Option(
            "--scan-max", min=0, metavar="N", help="Judge only logs of at most N documents again."
        ),
    ] = SCAN_MAX,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Judge a log of any size again, with an index."),
    ] = False,
    work: WorkOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check all topics, also while the filter runs: each record was delivered once, in order, unchanged.

    Prints a sentence for each violation; exits with 1 if there are any.
    """
    started = time.monotonic()
    with progress("reading", None) as advance:
        report = examine(
            settings,
            is_finished=finished,
            shown_max=limit,
            scan_max=scan_max,
            verify=verify,
            work=work,
            advance=advance,
        )
    seconds = time.monotonic() - started
    if as_json:
        print_json(report.to_fields() | {"seconds": round(seconds, 3)})
    else:
        _print(report, seconds)
    return 0 if report.is_clean else 1


def _print(report: AuditReport, seconds: float) -> None:
    out = console()
    for finding in report.findings.shown:
        out.print(f"{finding.kind}: {finding.sentence}", soft_wrap=True)
    for kind, count in report.findings.counts.items():
        printed = sum(finding.kind is kind for finding in report.findings.shown)
        if count > printed:
            out.print(f"{kind}: and {count - printed:,} more.")
    print_table(["", "audit"], report.rows())
    for sentence in report.remark_sentences():
        note(sentence)
    total = report.findings.counts.total()
    end = counted(total, "violation") if total else "No violation"
    (note if total else out.print)(f"{end} ({seconds:.1f} s).")
