"""Audit the topics of a filter, or replay its log, also while the filter runs.

The result is exact on a running filter because of the order of reading: first the committed offsets of
the group, then the ends of the outputs, of the log and of the source. So the outputs up to these ends
contain every committed document, and the log and the source contain every document of the outputs.
The audit waits for transactions that are open below these ends.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream_dedup.audit import content_digests, replay
from stream_dedup.audit.answers import WrittenAnswers
from stream_dedup.audit.findings import (
    EARLIER_TOPIC,
    OUTPUTS_TRIMMED,
    REDELIVERED,
    RELEASED,
    SOURCE_TRIMMED,
    Findings,
    Kind,
    Waiting,
)
from stream_dedup.audit.judgements import Fold
from stream_dedup.audit.ledger import AuditLedger, Span
from stream_dedup.audit.log_contents import LogOutline
from stream_dedup.audit.scan import PlainScan
from stream_dedup.audit.verdicts import AuditedOutputs
from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.topics import TopicState
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.kafka import (
    Admin,
    Bounds,
    BoundsReader,
    CommittedOffset,
    group_offsets,
    read_log,
    topic_bounds,
)
from stream_dedup.log import epochs
from stream_dedup.log.record_frame import decode_unless_damaged
from stream_dedup.log.records import Batch, Control, LogRecord, decode
from stream_dedup.log.schema import Judgement
from stream_dedup.settings.settings import Settings

SCAN_MAX = 10_000
# Reports progress: called with the numbers of records and bytes read since the last call.
Advance = Callable[[int, int], None]


_REMARKS = {
    SOURCE_TRIMMED: "Outputs of records that the source topic no longer contains",
    EARLIER_TOPIC: "Outputs of an earlier topic with the source's name",
    REDELIVERED: "Records delivered again because of a rewind",
    OUTPUTS_TRIMMED: "Records whose outputs retention or compaction may have removed",
    RELEASED: "Released documents",
}


@dataclass(slots=True)
class AuditReport:
    """The result of an audit: violations (`findings`), and figures that are not violations."""

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
    answers_compared: int = 0
    now_ms: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether no guarantee was violated."""
        return not self.findings.counts

    def to_fields(self) -> dict[str, Any]:
        """Return the report as the JSON object of the command."""
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
            "representatives_in_flight": self._waiting_fields(self.in_flight),
            "unemitted_representatives": self._waiting_fields(self.unemitted),
            "answers_compared": self.answers_compared,
            "remarks": dict(self.remarks),
            "violations": {str(kind): count for kind, count in self.findings.counts.items()},
            "findings": [
                {
                    "kind": str(finding.kind),
                    "position": finding.position,
                    "sentence": finding.sentence,
                }
                for finding in self.findings.shown
            ],
        }

    def rows(self) -> list[list[str]]:
        """Return the figures as the rows (name, text) of a table."""
        judges = {"plain": "a plain scan", "index": "an index that judged the log a second time"}
        judge = judges.get(
            self.scan, "nothing (too many for a plain scan; run stream-dedup audit --verify)"
        )
        rows = [[name, f"{count:,} records"] for name, count in self.records.items()]
        rows += [
            [
                "log",
                (
                    f"{self.log_documents:,} documents in {self.log_records:,} records, "
                    f"{self.log_refused:,} of them refused"
                ),
            ],
            ["verdicts", f"{self.compared:,} compared with {judge}"],
            ["waiting", f"{self.waiting:,} source records that the group has not committed"],
            ["in flight", f"{self._waiting_text(self.in_flight)}, not committed yet"],
            ["unemitted", f"{self._waiting_text(self.unemitted)}, although committed"],
        ]
        if self.scan == "index":
            rows.append(["answers", f"{self.answers_compared:,} compared with those of that index"])
        return rows

    def remark_sentences(self) -> list[str]:
        """Return a sentence for each figure that is not a violation."""
        return [f"{_REMARKS[name]}: {count:,}." for name, count in sorted(self.remarks.items())]

    def _waiting_text(self, waiting: Waiting) -> str:
        age = self.age_seconds(waiting)
        oldest = "" if age is None else f", the oldest for {age:,.1f} s"
        return f"{waiting.count:,} representatives in the log but not on unique{oldest}"

    def _waiting_fields(self, waiting: Waiting) -> dict[str, Any]:
        return {"count": waiting.count, "oldest_seconds": self.age_seconds(waiting)}

    def age_seconds(self, waiting: Waiting) -> float | None:
        """Return the age in seconds of the oldest waiting representative; None if none waits."""
        return (
            None
            if waiting.oldest_ms is None
            else max(0.0, (self.now_ms - waiting.oldest_ms) / 1000)
        )


@dataclass(frozen=True, slots=True)
class _ClusterState:
    """Topics, committed offsets and ends at the start of the audit."""

    topics: dict[str, TopicState]
    committed: dict[int, CommittedOffset]
    bounds: dict[str, dict[int, Bounds]]

    @property
    def committed_offsets(self) -> dict[int, int]:
        """The committed offset of the group by source partition, 0 without one."""
        return {part: committed.offset or 0 for part, committed in self.committed.items()}


def examine(
    settings: Settings,
    *,
    is_finished: bool = False,
    shown_max: int = 20,
    scan_max: int = SCAN_MAX,
    verify: bool = False,
    work: Path | None = None,
    advance: Advance = lambda _documents, _bytes: None,
) -> AuditReport:
    """Check the guarantees of a filter on its topics.

    `is_finished`: the group must have committed all source records. `shown_max`: the number of
    violations of each kind to store. `scan_max`: the largest log, in documents, that the second
    implementation judges again. `verify`: judge the log with an index instead, in a folder in `work`.

    Raises:
        ConfigurationError: a topic is missing, or records of the log were removed.
        BrokerError: Kafka failed.
        OtherFormatError: the log was written by a newer version.
    """
    delivers = settings.judging_mode.delivers
    if not delivers and not verify:
        raise ConfigurationError(
            "In shadow mode there are no outputs to audit. Compare the answers of the index with: "
            "stream-dedup audit --verify"
        )
    names = settings.topic_names
    report = AuditReport(Findings(shown_max), now_ms=int(time.time() * 1000))
    state = _read_state(
        settings, names.outputs if delivers else (), (names.verdicts,) if verify else ()
    )
    judgements = _judge_by_index(settings, state, report, work, advance) if verify else None
    if not delivers:
        return report
    outline = _read_log(settings, state, judgements, scan_max, report, advance)
    spans = {
        part: Span(*bounds, state.committed_offsets.get(part, 0))
        for part, bounds in state.bounds[names.documents].items()
    }
    ledger = _read_source(settings, state, outline, spans, report, advance, is_finished=is_finished)
    _read_outputs(settings, state, outline, ledger, report, advance)
    _check_committed(settings, state, spans, outline, report.findings)
    report.remarks = ledger.counts
    return report


def _read_source(
    settings: Settings,
    state: _ClusterState,
    outline: LogOutline,
    spans: dict[int, Span],
    report: AuditReport,
    advance: Advance,
    *,
    is_finished: bool,
) -> AuditLedger:
    """Return a ledger that contains all source records."""
    names = settings.topic_names
    lows = {
        (name, part): bounds.low
        for name in names.outputs
        for part, bounds in state.bounds[name].items()
    }
    compacted = [name for name in names.outputs if state.topics[name].is_compacted]
    topic_id = state.topics[names.documents].topic_id
    ledger = AuditLedger(
        outline, names.documents, topic_id, spans, lows, report.findings, compacted
    )
    for message in _read(settings, state, names.documents, report, advance):
        ledger.add_source(message, content_digests.digest_source(message))
        is_waiting = message.offset >= spans[message.partition].committed
        report.waiting += is_waiting
        if is_finished and is_waiting:
            report.findings.add_finding(
                Kind.COMMITTED, message.position, "is not committed by the group."
            )
    return ledger


def _read_outputs(
    settings: Settings,
    state: _ClusterState,
    outline: LogOutline,
    ledger: AuditLedger,
    report: AuditReport,
    advance: Advance,
) -> None:
    """Match the outputs with the source records, and check their headers."""
    names = settings.topic_names
    outputs = AuditedOutputs(
        outline,
        ledger,
        names.outputs,
        (names.documents, state.topics[names.documents].topic_id),
        state.committed_offsets,
        {part: bounds.low for part, bounds in state.bounds[names.unique].items()},
        report.findings,
        report.now_ms,
    )
    for name in names.outputs:
        for message in _read(settings, state, name, report, advance):
            outputs.add_message(message)
    ledger.close()
    outputs.close()
    report.reasons, report.compared = outputs.reasons, outputs.compared
    report.in_flight, report.unemitted = outputs.in_flight, outputs.unemitted


def _read_state(
    settings: Settings, outputs: Sequence[str], answers: Sequence[str]
) -> _ClusterState:
    """Read committed offsets, then the ends of `outputs`, of the topics `answers`, of the log and of
    the source, in this order.
    """
    names = settings.topic_names
    topics = _describe(settings, (*outputs, *answers, names.fingerprints, names.documents))
    committed = group_offsets(
        settings, settings.group, names.documents, topics[names.documents].partitions
    )
    bounds = {
        name: _log_bounds(settings)
        if name == names.fingerprints
        else topic_bounds(settings, name, topic.partitions)
        for name, topic in topics.items()
    }
    return _ClusterState(topics, committed, bounds)


def _describe(settings: Settings, names: Sequence[str]) -> dict[str, TopicState]:
    topics = Admin(settings).describe(names)
    if missing := [name for name in names if name not in topics]:
        raise ConfigurationError(
            f"{', '.join(missing)} cannot be found. Set STREAM_DEDUP_TOPIC_PREFIX to the prefix of "
            "the roles."
        )
    return {name: topics[name] for name in names}


def _log_bounds(settings: Settings) -> dict[int, Bounds]:
    """Return the bounds of the log.

    Raises:
        ConfigurationError: records of it were removed.
    """
    log = settings.topic_names.fingerprints
    bounds = topic_bounds(settings, log, 1)
    if bounds[0].low > 0:
        raise ConfigurationError(
            f"The log {log} begins at offset {bounds[0].low}: records of it were removed, so it "
            "cannot be judged again. Restore it from a backup."
        )
    return bounds


def replay_log(
    settings: Settings,
    alternative: replay.Alternative,
    difference: replay.Difference,
    work: Path | None,
    advance: Advance,
) -> Plan | None:
    """Judge the log twice in indexes below `work`, unchanged and with `alternative`; add the results
    to `difference`, and return the alternative's plan.

    Raises:
        ConfigurationError: the log is missing, or records of it were removed; or the plan does not
        fit its fingerprints.
        BrokerError: Kafka failed.
    """
    _describe(settings, [settings.topic_names.fingerprints])
    bounds = _log_bounds(settings)[0]
    with (
        tempfile.TemporaryDirectory(prefix="stream-dedup-replay-", dir=work) as folder,
        closing(LogIndex(RocksStore(Path(folder) / "log"))) as recorded,
        closing(LogIndex(RocksStore(Path(folder) / "changed"))) as changed,
    ):
        log = read_log(settings, bounds, advance)
        replay.compare(log, recorded, changed, alternative, difference)
        return changed.plan


def _judge_by_index(
    settings: Settings,
    state: _ClusterState,
    report: AuditReport,
    work: Path | None,
    advance: Advance,
) -> dict[int, Sequence[Judgement]]:
    """Judge the log with an index, and compare its answers with those on `verdicts`; return its
    judgements by log offset, none in shadow mode.
    """
    names, judgements = settings.topic_names, dict[int, Sequence[Judgement]]()
    bounds = state.bounds[names.fingerprints][0]
    written = WrittenAnswers(report.findings, bounds.end)
    for message in _read(settings, state, names.verdicts, report, advance):
        written.add_answer(message)
    with (
        tempfile.TemporaryDirectory(prefix="stream-dedup-audit-", dir=work) as folder,
        closing(LogIndex(RocksStore(Path(folder) / "index"))) as index,
    ):
        for group in read_log(settings, bounds, advance):
            index_answers = replay.apply_group(index, group)
            written.compare(index_answers)
            if settings.judging_mode.delivers:
                judgements |= replay.judgements_of(index_answers)
    written.close()
    report.scan, report.answers_compared = "index", written.compared
    return judgements


def _read_log(
    settings: Settings,
    state: _ClusterState,
    judgements: Mapping[int, Sequence[Judgement]] | None,
    scan_max: int,
    report: AuditReport,
    advance: Advance,
) -> LogOutline:
    """Read the log. Use the judgements of an index; without them judge it with a plain scan, unless the
    log has more than `scan_max` documents.
    """
    names = settings.topic_names
    log: list[tuple[int, int, LogRecord | None]] = []
    documents = 0
    for message in _read(settings, state, names.fingerprints, report, advance):
        record = decode_unless_damaged(decode, message.value, f"The record {message.position}")
        if record is not None and not isinstance(record, Control):
            documents += len(record if isinstance(record, Batch) else record.batch)
        log.append((message.offset, message.timestamp_ms or 0, record))
    scan = None
    if judgements is None and documents <= scan_max:
        report.scan, scan = "plain", PlainScan()
    outline = LogOutline(Fold(scan))
    for offset, timestamp_ms, record in log:
        outline.add_record(offset, timestamp_ms, record)
    if judgements is not None:
        outline.judgements = {
            offset: judgements[offset] for offset in judgements if offset in outline.batches
        }
    report.log_records, report.log_documents, report.log_refused = (
        outline.records,
        outline.documents,
        outline.refused,
    )
    topic_id = state.topics[names.documents].topic_id
    outline.committed_epochs = {
        (names.documents, topic_id, part): epochs.from_metadata(committed.metadata) or 0
        for part, committed in state.committed.items()
    }
    return outline


def _read(
    settings: Settings, state: _ClusterState, topic: str, report: AuditReport, advance: Advance
) -> Iterable[Message]:
    reader = BoundsReader(settings, topic, state.bounds[topic])
    for messages in reader.read_messages():
        report.records[topic] += len(messages)
        yield from messages
        advance(len(messages), sum(len(message.value or b"") for message in messages))
    for (_, part), offset in reader.open_transactions.items():
        predicate = (
            "is the start of a transaction that stays open, so consumers with "
            "isolation.level=read_committed wait there. Find and abort it with "
            "kafka-transactions.sh."
        )
        report.findings.add_finding(Kind.OPEN, f"{topic}-{part}@{offset}", predicate)


def _check_committed(
    settings: Settings,
    state: _ClusterState,
    spans: dict[int, Span],
    outline: LogOutline,
    findings: Findings,
) -> None:
    topic = settings.topic_names.documents
    for part, span in spans.items():
        committed = state.committed.get(part)
        if committed is None or committed.offset is None:
            if outline.partitions_named(topic, part, (topic, state.topics[topic].topic_id, part)):
                predicate = (
                    f"has no committed offset of the group {settings.group}, although the log "
                    "contains documents from it."
                )
                findings.add_finding(Kind.COMMITTED, f"{topic}-{part}", predicate)
            continue
        position = f"{topic}-{part}@{committed.offset}"
        if epochs.from_metadata(committed.metadata) is None:
            predicate = "is a committed offset without an epoch, so no worker committed it."
            findings.add_finding(Kind.COMMITTED, position, predicate)
        if committed.offset > span.end:
            findings.add_finding(
                Kind.COMMITTED,
                position,
                f"is the group's committed offset, but the partition ends at {span.end}.",
            )
