"""`audit`: the promises of a filter held against its topics, from Kafka alone, also while it runs.

The order in which ends are noted is what makes it right on a live system: the group's committed
offsets first, then the ends of the outputs, of the log and
of the source. So all that was committed is in what is read of the outputs, and all else is derived
from what is read of the log and of the source. What is still open below a noted end is waited for.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from stream_dedup.audit import content
from stream_dedup.audit.findings import (
    AGAIN,
    EARLIER,
    RELEASED,
    TRIMMED,
    UNTOLD,
    Findings,
    Kind,
    Waiting,
)
from stream_dedup.audit.fold import Fold
from stream_dedup.audit.ledger import AuditLedger, Span
from stream_dedup.audit.outline import Outline
from stream_dedup.audit.replayed import ReplayedAnswers
from stream_dedup.audit.scan import KeyedScan, PlainScan
from stream_dedup.audit.verdicts import AuditedOutputs
from stream_dedup.cli.options import JsonOption, command
from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.terminal import console, note, print_json, print_table, progress
from stream_dedup.domain.topics import TopicState
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.store import RocksStore
from stream_dedup.kafka import (
    Admin,
    Bounds,
    OwnedOffset,
    SpanReader,
    group_offsets,
    read_log,
    topic_bounds,
)
from stream_dedup.log import epochs
from stream_dedup.log.frame import unless_damaged
from stream_dedup.log.records import Batch, Control, LogRecord, decode
from stream_dedup.settings.settings import Settings

PLAIN_MAX = 10_000
SCAN_MAX = 1_000_000
_REMARKS = {
    TRIMMED: "came from source records that the source topic does not hold any more",
    EARLIER: "came from an earlier topic of the source's name",
    AGAIN: "left again because of a rewind",
    UNTOLD: "source records may have left in what retention or compaction has removed from the outputs",
    RELEASED: "were released",
}
Advance = Callable[[int, int], None]


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
    most: Annotated[
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
    ] = 1_000_000,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Judge the log again with an index, and compare outputs and answers.",
        ),
    ] = False,
    work: Annotated[
        Path | None,
        typer.Option("--work", metavar="FOLDER", help="Temporary folder of --verify."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Check all topics, also while the filter runs: each record left once, in order, unchanged.

    Exits with 1 and prints a sentence for each violation.
    """
    started = time.monotonic()
    with progress("reading", None) as advance:
        report = examine(
            settings,
            finished=finished,
            most=most,
            scan_max=scan_max,
            verify=verify,
            work=work,
            advance=advance,
        )
    if as_json:
        print_json(report.to_fields() | {"seconds": round(time.monotonic() - started, 3)})
    else:
        _print(report, time.monotonic() - started)
    return 0 if report.is_clean else 1


@dataclass(slots=True)
class AuditReport:
    """What an audit found: violations in `findings`; what else is remarkable is no violation."""

    findings: Findings
    scan: str = "none"
    records: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    remarks: Counter[str] = field(default_factory=Counter)
    log_records: int = 0
    log_documents: int = 0
    log_refused: int = 0
    compared: int = 0
    waiting: int = 0
    in_flight: Waiting = field(default_factory=Waiting)
    unemitted: Waiting = field(default_factory=Waiting)
    replayed: ReplayedAnswers | None = None
    now_ms: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether every promise held."""
        return not self.findings.counts

    def to_fields(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "clean": self.is_clean,
            "records": dict(self.records),
            "reasons": dict(sorted(self.reasons.items())),
            "log": {
                "records": self.log_records,
                "documents": self.log_documents,
                "refused": self.log_refused,
            },
            "scan": self.scan,
            "verdicts_compared": self.compared,
            "waiting": self.waiting,
            "representatives_in_flight": self._waiting(self.in_flight),
            "unemitted_representatives": self._waiting(self.unemitted),
            "judged_again": None
            if self.replayed is None
            else {
                "headers_compared": self.replayed.headers_compared,
                "answers_compared": self.replayed.answers_compared,
            },
            "remarks": dict(self.remarks),
            "violations": {str(kind): count for kind, count in self.findings.counts.items()},
            "findings": [
                {"kind": str(finding.kind), "where": finding.where, "sentence": finding.sentence}
                for finding in self.findings.shown
            ],
        }

    def _waiting(self, waiting: Waiting) -> dict[str, Any]:
        return {"count": waiting.count, "oldest_seconds": self.age_seconds(waiting)}

    def age_seconds(self, waiting: Waiting) -> float | None:
        """Return how long ago the oldest of some representatives was appended to the log."""
        return (
            None
            if waiting.oldest_ms is None
            else max(0.0, (self.now_ms - waiting.oldest_ms) / 1000)
        )


@dataclass(frozen=True, slots=True)
class _Noted:
    """The cluster as it was when the audit began."""

    topics: dict[str, TopicState]
    committed: dict[int, OwnedOffset]
    bounds: dict[str, dict[int, Bounds]]


def examine(
    settings: Settings,
    *,
    finished: bool = False,
    most: int = 20,
    scan_max: int = SCAN_MAX,
    verify: bool = False,
    work: Path | None = None,
    advance: Advance = lambda _documents, _bytes: None,
) -> AuditReport:
    """Hold a filter's topics against its promises.

    `finished`: the group should have read all that there is. `most`: how many violations of each
    kind are told. `scan_max`: verdicts of a log of more documents are not computed anew. `verify`:
    have an index judge the log too, in a folder below `work`.

    Raises:
        ConfigurationError: a topic is missing, or the log is not whole.
        BrokerError: Kafka failed.
        OtherFormatError: the log was written by a newer version.
    """
    delivers = settings.judging_mode.delivers
    if not delivers and not verify:
        raise ConfigurationError(
            "In shadow mode nothing leaves, so there are no outputs to audit; compare the answers "
            "with: stream-dedup audit --verify"
        )
    names = settings.topic_names
    findings = Findings(most)
    report = AuditReport(findings, now_ms=int(time.time() * 1000))
    noted = _note(settings, names.outputs if delivers else (), (names.verdicts,) if verify else ())
    if verify:
        report.replayed = _judge_again(settings, noted, report, work, advance)
    if not delivers:
        return report
    outline = _read_log(settings, noted.bounds[names.fingerprints][0], scan_max, report, advance)
    source = noted.topics[names.documents]
    committed = {part: group.offset or 0 for part, group in noted.committed.items()}
    outline.committed_epochs = {
        (names.documents, source.topic_id, part): epochs.from_metadata(group.metadata) or 0
        for part, group in noted.committed.items()
    }
    spans = {
        part: Span(*bounds, committed.get(part, 0))
        for part, bounds in noted.bounds[names.documents].items()
    }
    lows = {
        (name, part): bounds.low
        for name in names.outputs
        for part, bounds in noted.bounds[name].items()
    }
    compacted = [name for name in names.outputs if noted.topics[name].is_compacted]
    book = AuditLedger(outline, names.documents, source.topic_id, spans, lows, findings, compacted)
    for message in _read(settings, names.documents, noted.bounds[names.documents], report, advance):
        book.add_source(message, content.of_source(message))
        report.waiting += message.offset >= committed.get(message.partition, 0)
        if finished and message.offset >= committed.get(message.partition, 0):
            findings.add_finding(
                Kind.COMMITTED, message.at, "is there, and the group has not committed past it."
            )
    outputs = AuditedOutputs(
        outline,
        book,
        names.outputs,
        (names.documents, source.topic_id),
        committed,
        {part: bounds.low for part, bounds in noted.bounds[names.unique].items()},
        findings,
        report.now_ms,
    )
    for name in names.outputs:
        for message in _read(settings, name, noted.bounds[name], report, advance):
            outputs.add_message(message)
    book.close()
    outputs.close()
    _check_committed(settings, noted, spans, outline, findings)
    report.reasons, report.compared = outputs.reasons, outputs.compared
    report.in_flight, report.unemitted, report.remarks = (
        outputs.in_flight,
        outputs.unemitted,
        book.counts,
    )
    return report


def _note(settings: Settings, outputs: Sequence[str], answered: Sequence[str]) -> _Noted:
    """Note the ends of all topics, in the order that makes a live system comparable: `outputs`,
    the topics `answered`, the log and the source.
    """
    names = settings.topic_names
    wanted = (*outputs, *answered, names.fingerprints, names.documents)
    admin = Admin(settings)
    topics = admin.describe(wanted)
    missing = [name for name in wanted if name not in topics]
    if missing:
        raise ConfigurationError(
            f"There is nothing to audit: {', '.join(missing)} cannot be found. Set "
            "STREAM_DEDUP_TOPIC_PREFIX as the roles "
            "have it."
        )
    committed = group_offsets(
        settings, settings.group, names.documents, topics[names.documents].partitions
    )
    bounds = {name: topic_bounds(settings, name, topics[name].partitions) for name in wanted}
    if bounds[names.fingerprints][0].low > 0:
        raise ConfigurationError(
            f"The log {names.fingerprints} begins at offset {bounds[names.fingerprints][0].low}: "
            "records of it were removed, "
            "and nobody can say any more what the verdicts behind them must be. Restore it from a "
            "backup."
        )
    return _Noted(topics, committed, bounds)


def _judge_again(
    settings: Settings, noted: _Noted, report: AuditReport, work: Path | None, advance: Advance
) -> ReplayedAnswers:
    """Have an index judge the log, and compare what it gives with what was given."""
    names = settings.topic_names
    bounds = noted.bounds[names.fingerprints][0]
    replayed = ReplayedAnswers(report.findings, bounds.end)
    for name in names.outputs if settings.judging_mode.delivers else ():
        for messages in SpanReader(settings, name, noted.bounds[name]).read_messages():
            for message in messages:
                replayed.add_output(message)
    for message in _read(settings, names.verdicts, noted.bounds[names.verdicts], report, advance):
        replayed.add_answer(message)
    with (
        tempfile.TemporaryDirectory(prefix="stream-dedup-audit-", dir=work) as folder,
        closing(LogIndex(RocksStore(Path(folder) / "index"))) as index,
    ):
        for group in read_log(settings, bounds, advance):
            replayed.judge(group, index.apply(group))
            index.answered(index.applied)
    replayed.close()
    return replayed


def _read_log(
    settings: Settings,
    bounds: Bounds,
    scan_max: int,
    report: AuditReport,
    advance: Advance,
) -> Outline:
    """Read the log twice if need be: how many documents it has decides by what means it is
    judged.
    """
    topic = settings.topic_names.fingerprints
    kept: list[tuple[int, int, LogRecord | None]] = []
    documents = 0
    for message in _read(settings, topic, {0: bounds}, report, advance):
        record = unless_damaged(decode, message.value, f"The record {message.at}")
        if record is not None and not isinstance(record, Control):
            documents += len(record if isinstance(record, Batch) else record.batch)
        kept.append((message.offset, message.timestamp_ms or 0, record))
    scan: PlainScan | KeyedScan | None = None
    if documents <= PLAIN_MAX and documents <= scan_max:
        report.scan, scan = "plain", PlainScan()
    elif documents <= scan_max:
        report.scan, scan = "keys", KeyedScan()
    outline = Outline(Fold(scan))
    for folded in kept:
        outline.add_record(*folded)
    report.log_records, report.log_documents, report.log_refused = (
        outline.records,
        outline.documents,
        outline.refused,
    )
    return outline


def _read(
    settings: Settings, topic: str, bounds: dict[int, Bounds], report: AuditReport, advance: Advance
) -> Iterable[Message]:
    reader = SpanReader(settings, topic, bounds)
    for messages in reader.read_messages():
        report.records[topic] += len(messages)
        yield from messages
        advance(len(messages), sum(len(message.value or b"") for message in messages))
    for (_, part), offset in reader.open_at.items():
        sentence = (
            "is where a transaction begins that is open, and nobody ends it: readers of what was "
            "committed wait there. "
            "kafka-transactions.sh finds and aborts it."
        )
        report.findings.add_finding(Kind.OPEN, f"{topic}-{part}@{offset}", sentence)


def _check_committed(
    settings: Settings, noted: _Noted, spans: dict[int, Span], outline: Outline, findings: Findings
) -> None:
    topic = settings.topic_names.documents
    for part, span in spans.items():
        owned = noted.committed.get(part)
        if owned is None or owned.offset is None:
            if outline.partitions_named(topic, part, (topic, noted.topics[topic].topic_id, part)):
                sentence = f"has no committed offset of the group {settings.group}, though the log holds documents of it."
                findings.add_finding(Kind.COMMITTED, f"{topic}-{part}", sentence)
            continue
        where = f"{topic}-{part}@{owned.offset}"
        if epochs.from_metadata(owned.metadata) is None:
            sentence = "is a committed offset that carries no epoch: something else than a worker wrote it."
            findings.add_finding(Kind.COMMITTED, where, sentence)
        if owned.offset > span.end:
            findings.add_finding(
                Kind.COMMITTED,
                where,
                f"is committed and lies beyond {span.end}, where the partition ends.",
            )


def _print(report: AuditReport, seconds: float) -> None:
    out = console()
    for finding in report.findings.shown:
        out.print(f"{finding.kind}: {finding.sentence}", soft_wrap=True)
    for kind, count in report.findings.counts.items():
        printed = sum(finding.kind is kind for finding in report.findings.shown)
        if count > printed:
            out.print(f"{kind}: and {count - printed:,} more.")
    scans = {"plain": "a plain scan", "keys": "a scan of whole keys"}
    how = scans.get(report.scan, "nothing: too many for a scan; use stream-dedup audit --verify")
    rows = [[name, f"{count:,} records"] for name, count in report.records.items()]
    rows += [
        [
            "log",
            (
                f"{report.log_documents:,} documents in {report.log_records:,} records, "
                f"{report.log_refused:,} of them refused"
            ),
        ],
        ["verdicts", f"{report.compared:,} compared with {how}"],
        ["waiting", f"{report.waiting:,} source records that the group has not committed past"],
        ["in flight", _waiting(report, report.in_flight)],
        ["unemitted", _waiting(report, report.unemitted)],
    ]
    if (replayed := report.replayed) is not None:
        compared = f"{replayed.headers_compared:,} records, {replayed.answers_compared:,} answers"
        rows.append(["judged again", f"{compared} compared with what an index gives"])
    print_table(["", "audit"], rows)
    for name, count in sorted(report.remarks.items()):
        note(f"{count:,} {_REMARKS[name]}.")
    if report.is_clean:
        out.print(f"Every promise holds ({seconds:.1f} s).")
    else:
        note(f"{report.findings.counts.total():,} violations ({seconds:.1f} s).")


def _waiting(report: AuditReport, waiting: Waiting) -> str:
    age = report.age_seconds(waiting)
    since = "" if age is None else f", the oldest for {age:,.1f} s"
    return f"{waiting.count:,} representatives of the log that are not in unique{since}"
