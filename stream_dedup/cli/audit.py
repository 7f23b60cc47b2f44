"""`audit`: check the topics of a filter, and print the violations; see `audit.live`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from stream_dedup.audit.findings import (
    AGAIN,
    EARLIER,
    RELEASED,
    TRIMMED,
    UNTOLD,
    Waiting,
)
from stream_dedup.audit.live import SCAN_MAX, AuditReport, examine
from stream_dedup.cli.options import JsonOption, WorkOption, command
from stream_dedup.domain.terminal import console, note, print_json, print_table, progress
from stream_dedup.settings.settings import Settings

_REMARKS = {
    TRIMMED: "outputs have source records that the source topic does not contain any more",
    EARLIER: "outputs are of an earlier topic of the source's name",
    AGAIN: "records left again because of a rewind",
    UNTOLD: "source records may have outputs that retention or compaction has removed",
    RELEASED: "documents were released",
}


@command("audit", example="stream-dedup audit --json")
def audit_command(
    settings: Settings,
    finished: Annotated[
        bool,
        typer.Option(
            "--finished",
            help="Report waiting documents as violations, for a filter at rest.",
        ),
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            help="Number of violations of each kind to print; all are counted.",
        ),
    ] = 20,
    scan_max: Annotated[
        int,
        typer.Option(
            "--scan-max",
            min=0,
            metavar="DOCUMENTS",
            help="Do not judge a log of more documents again.",
        ),
    ] = SCAN_MAX,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Judge the log again with an index, and compare outputs and answers.",
        ),
    ] = False,
    work: WorkOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check all topics, also while the filter runs: each record left once, in order, unchanged.

    Exits with 1 and prints a sentence for each violation.
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
    scans = {"plain": "a plain scan", "keys": "a scan of whole keys"}
    scan = scans.get(report.scan, "nothing: too many for a scan; use stream-dedup audit --verify")
    rows = [[name, f"{count:,} records"] for name, count in report.records.items()]
    rows += [
        [
            "log",
            (
                f"{report.log_documents:,} documents in {report.log_records:,} records, "
                f"{report.log_refused:,} of them refused"
            ),
        ],
        ["verdicts", f"{report.compared:,} compared with {scan}"],
        ["waiting", f"{report.waiting:,} source records that the group has not committed"],
        ["in flight", _waiting(report, report.in_flight)],
        ["unemitted", _waiting(report, report.unemitted)],
    ]
    if (replayed := report.replayed) is not None:
        compared = f"{replayed.headers_compared:,} records, {replayed.answers_compared:,} answers"
        rows.append(["judged again", f"{compared} compared with those of an index"])
    print_table(["", "audit"], rows)
    for name, count in sorted(report.remarks.items()):
        note(f"{count:,} {_REMARKS[name]}.")
    if report.is_clean:
        out.print(f"No promise is violated ({seconds:.1f} s).")
    else:
        note(f"{report.findings.counts.total():,} violations ({seconds:.1f} s).")


def _waiting(report: AuditReport, waiting: Waiting) -> str:
    age = report.age_seconds(waiting)
    oldest = "" if age is None else f", the oldest for {age:,.1f} s"
    return f"{waiting.count:,} representatives of the log that unique does not contain{oldest}"
