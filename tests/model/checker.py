"""The promises that must hold once a world is at rest: by the product's audit, and byte for byte.

Invariant: the checker reads topics, committed offsets and volumes only, and asks no role.
"""

from __future__ import annotations

from collections import Counter

from stream_dedup.audit import content_digests
from stream_dedup.audit.findings import Findings
from stream_dedup.audit.judgements import Fold
from stream_dedup.audit.ledger import AuditLedger, Span
from stream_dedup.audit.log_contents import LogOutline
from stream_dedup.audit.scan import PlainScan
from stream_dedup.audit.verdicts import AuditedOutputs
from stream_dedup.domain.document import Message, Position, Reason, Verdict
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.log import epochs, headers, records
from stream_dedup.log.answers import Announce, LogAnswer, decode
from stream_dedup.log.controls import Partition, parse_retraction
from tests.index.stored_copies import read_copies, read_fold_copies
from tests.model.world import Violation, World


def check(world: World) -> Counter[str]:
    """Check every promise; return the number of outputs of each reason.

    Raises:
        Violation: one is broken; the text begins with its kind.
    """
    broker, names = world.broker, world.names
    log = [
        (record.offset, record.timestamp_ms, record.value or b"")
        for record in broker.read(names.fingerprints, 0)
    ]
    outline = LogOutline(Fold(PlainScan()))
    for offset, append_ms, raw in log:
        outline.add_record(offset, append_ms, records.decode(raw))
    _check_answers(world, log, outline)
    _check_retracted(outline, log)
    for record in _messages(world, world.names.dead_letters):
        if b"AWAY" in (record.value or b""):
            raise Violation(f"unread: {record.value!r} is a dead letter, and its store has it")
    return _check_outputs(world, outline, log)


def _check_answers(world: World, log: list[tuple[int, int, bytes]], outline: LogOutline) -> None:
    """Check that answers equal the audit's, and byte for byte those of a rebuilt index."""
    rebuilt_volume: dict[bytes, bytes] = {}
    rebuilt = LogIndex(MemoryStore(rebuilt_volume))
    expected = dict(rebuilt.apply(log))
    if log and (copies := read_copies(rebuilt_volume)) != read_fold_copies(outline.fold):
        raise Violation(
            f"copies: the log leads to {copies}, and by the proof's fold to {read_fold_copies(outline.fold)}"
        )
    for offset, judged in outline.judgements.items():
        answer = decode(expected[offset])
        if not isinstance(answer, LogAnswer) or answer.judgements != judged:
            raise Violation(
                f"verdict: the index answers log {offset} with {answer}, and the proof's fold with "
                f"{judged}"
            )
    for record in world.broker.read(world.names.verdicts, 0):
        found = decode(record.value)
        if not isinstance(found, Announce) and record.value != expected.get(found.log_offset):
            raise Violation(
                f"verdict: a replica answered log {found.log_offset} otherwise than the log says"
            )
    digest = rebuilt.state_digest().digest
    for slot, volume in world.volumes.items():
        replica = LogIndex(MemoryStore(dict(volume)))
        if replica.state_digest().digest != digest:
            raise Violation(
                f"state: the volume of {slot} holds another state than the log leads to"
            )


def _messages(world: World, topic: str) -> list[Message]:
    return [
        Message(
            topic,
            part,
            record.offset,
            record.key,
            record.value,
            record.timestamp_ms,
            record.headers,
        )
        for part in range(world.partitions)
        for record in world.broker.read(topic, part)
    ]


def _check_outputs(
    world: World, outline: LogOutline, log: list[tuple[int, int, bytes]]
) -> Counter[str]:
    broker, names = world.broker, world.names
    topic = broker.topics[names.documents]
    source = _messages(world, names.documents)
    committed: dict[int, int] = {}
    for part in range(world.partitions):
        end = broker.end(names.documents, part)
        offset, metadata = broker.group.offsets.get(
            (names.documents, part), (0, "stream-dedup epoch=0")
        )
        committed[part] = offset
        if offset != end:
            raise Violation(
                f"committed: {names.documents}-{part} is committed up to {offset} of {end}"
            )
        if epochs.from_metadata(metadata) is None:
            raise Violation(f"committed: {names.documents}-{part} carries no epoch: {metadata!r}")
        outline.committed_epochs[names.documents, topic.id, part] = (
            epochs.from_metadata(metadata) or 0
        )
    findings = Findings(5)
    spans = {
        part: Span(0, broker.end(names.documents, part), committed[part]) for part in committed
    }
    ledger = AuditLedger(outline, names.documents, topic.id, spans, {}, findings)
    outputs = _Outputs(
        outline,
        ledger,
        (names.unique, names.duplicates, names.dead_letters),
        (names.documents, topic.id),
        committed,
        dict.fromkeys(spans, 0),
        findings,
        1 << 60,
    )
    for message in source:
        ledger.add_source(message, content_digests.digest_source(message))
    reasons: Counter[str] = Counter()
    for name in (names.unique, names.duplicates, names.dead_letters):
        for message in _messages(world, name):
            if message.offset < world.earlier.get((name, message.partition), 0):
                # of the topic before this one, which only judged documents name
                continue
            reasons[headers.text_of(message.headers, headers.REASON) or "dead"] += 1
            outputs.add_message(message)
    ledger.close()
    outputs.close()
    if findings.shown:
        raise Violation(
            "\n    ".join(f"{finding.kind}: {finding.sentence}" for finding in findings.shown)
        )
    if outputs.in_flight.count:
        raise Violation(f"unemitted: {outputs.in_flight.count} representatives are in no output")
    _check_exactly_once(world, ledger, topic.id)
    _check_dead(outline, log, outputs)
    if reasons[Reason.STALE.label] or reasons[Reason.RETRACTED.label]:
        raise Violation("verdict: what is no outcome left as one")
    return reasons


class _Outputs(AuditedOutputs):
    """The audit, but a duplicate may be older than the retraction of its representative."""

    def _check_named(self, partition: Partition, offset: int, where: str) -> None:
        if (partition, offset) not in self._dead_lettered:
            super()._check_named(partition, offset, where)


def _check_retracted(outline: LogOutline, log: list[tuple[int, int, bytes]]) -> None:
    """Check that no duplicate names a representative that was retracted before."""
    retracted: dict[tuple[Partition, int], int] = {}
    for offset, _, raw in log:
        record = records.decode(raw)
        if isinstance(record, records.Release):
            retracted.pop(_key(record.batch.position(0)), None)
        if isinstance(record, records.Control) and record.type == "retract":
            retracted.update(
                {
                    (source_partition, source_offset): offset
                    for source_partition, source_offset, _ in parse_retraction(record.fields)
                }
            )
        batch = outline.batches.get(offset)
        for place, judgement in enumerate(outline.judgements.get(offset, ())):
            if (
                batch is not None
                and judgement.decided == (offset, place)
                and judgement.reason.verdict is Verdict.UNIQUE
            ):
                retracted.pop(
                    _key(batch.position(place)), None
                )  # read and judged again after a rewind
            if judgement.of is not None:
                position = judgement.of.position
                key = _key(position)
                if judgement.decided.offset > retracted.get(key, 1 << 60):
                    raise Violation(
                        f"representative: log {offset} names {position}, which was retracted at "
                        f"{retracted[key]}"
                    )


def _check_dead(outline: LogOutline, log: list[tuple[int, int, bytes]], outputs: _Outputs) -> None:
    """Check that a dead letter that never left as unique represents no other document."""
    standing: dict[tuple[Partition, int], int] = {}
    for offset, _, raw in log:
        record = records.decode(raw)
        if isinstance(record, records.Control) and record.type == "retract":
            for source_partition, source_offset, _ in parse_retraction(record.fields):
                standing.pop((source_partition, source_offset), None)
        batch = outline.batches.get(offset)
        for place, judgement in enumerate(outline.judgements.get(offset, ())):
            if (
                batch is not None
                and judgement.decided == (offset, place)
                and judgement.reason.verdict is Verdict.UNIQUE
            ):
                standing[_key(batch.position(place))] = offset
    for (partition, source_offset), offset in standing.items():
        is_delivered = source_offset in outputs._delivered.get(partition, ())
        if (partition, source_offset) in outputs._dead_lettered and not is_delivered:
            raise Violation(
                f"dead: {partition[0]}-{partition[2]}@{source_offset} is a dead letter, and log "
                f"{offset} lets it represent others"
            )


def _key(position: Position) -> tuple[Partition, int]:
    return (position.topic, position.topic_id, position.partition), position.offset


def _check_exactly_once(world: World, ledger: AuditLedger, topic_id: bytes) -> None:
    """Check that each record left once, and once more for each rewind below it."""
    for part, partition in ledger._sources.items():
        claims = list(partition.claims) or [0] * len(partition.offsets)
        for offset, found in zip(partition.offsets, claims, strict=True):
            wanted = 1 + sum(
                topic_id == rewound_topic_id and part == rewound_part and new <= offset < before
                for rewound_topic_id, rewound_part, before, new in world.rewinds
            )
            if found != wanted:
                kind = "lost" if found < wanted else "twice"
                raise Violation(
                    f"{kind}: {world.names.documents}-{part}@{offset} left {found} times, and was "
                    f"to leave {wanted}"
                )
