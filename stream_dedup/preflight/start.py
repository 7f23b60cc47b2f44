"""Checks of a role at its start: a refused finding ends it with exit code 78, a warning is logged.

A missing topic does not end a role, which waits for it instead: roles and topics are often created by
one command.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import structlog

from stream_dedup.domain.document import TopicPartitionKey
from stream_dedup.domain.errors import BrokerError, GoneError
from stream_dedup.domain.topics import TopicNames, TopicState
from stream_dedup.kafka import Admin, Bounds, count_records, read_whole_log, unread_spans
from stream_dedup.log.begun_partitions import BegunPartitions
from stream_dedup.preflight.clients import check_clients
from stream_dedup.preflight.cluster import Facts, check_cluster, check_topics_exist
from stream_dedup.preflight.finding import CheckFinding, CheckState, raise_refusals
from stream_dedup.preflight.machine import check_machine
from stream_dedup.settings.settings import Settings


def read_facts(
    admin: Admin,
    settings: Settings,
    names: TopicNames,
    requested_topics: Sequence[str],
    *,
    with_offsets: bool,
) -> tuple[Facts, Mapping[str, TopicState]]:
    """Return the facts about the topics in `requested_topics`, and the states of these topics.

    With `with_offsets` also read the group's offsets and the age of the input.

    Raises:
        BrokerError: Kafka does not answer, or an ACL is missing.
    """
    topics = admin.describe(requested_topics)
    logs = [(names.fingerprints, 0)] if names.fingerprints in topics else []
    log_bounds: dict[TopicPartitionKey, Bounds] = {}
    # During an election, or with a broker too old for the request, a role still starts, and later
    # requests the offsets that it needs.
    with contextlib.suppress(BrokerError):
        log_bounds = admin.bounds(logs)
    committed, source, oldest_ms, begun, known = None, {}, None, None, frozenset[int]()
    waiting = 0
    reading: Mapping[str, str | None] | None = None
    if with_offsets and names.documents in topics:
        partitions = [(names.documents, part) for part in range(topics[names.documents].partitions)]
        all_committed = admin.committed_or_last_known(settings.group)
        committed = {
            key[1]: value for key, value in all_committed.items() if key[0] == names.documents
        }
        known_begun = _begun(settings, names, topics)
        begun = (
            frozenset(known_begun.partitions)
            if known_begun is not None and known_begun.is_complete
            else None
        )
        reading = None if known_begun is None else known_begun.reading
        # Read after the begun partitions, because an offset is committed before its partition is
        # recorded as begun.
        known = admin.partitions_committed(settings.group, names.documents)
        # Read after the offsets, which a running group moves meanwhile.
        source_bounds = admin.bounds(partitions)
        source = {key[1]: span for key, span in source_bounds.items()}
        unread = unread_spans(source_bounds, all_committed)
        waiting = sum(count_records(settings, unread).values())
        oldest = [
            stamp for _, stamp in admin.offsets_at_time(partitions, 0).values() if stamp is not None
        ]
        oldest_ms = min(oldest, default=None)
    facts = Facts(
        requested_topics=tuple(requested_topics),
        topics=topics,
        brokers=admin.broker_count(),
        log=log_bounds.get((names.fingerprints, 0)),
        now_ms=int(time.time() * 1000),
        oldest_ms=oldest_ms,
        committed=committed,
        source=source,
        begun=begun,
        reading=reading,
        known=known,
        waiting=waiting,
    )
    return facts, topics


def _begun(
    settings: Settings, names: TopicNames, topics: Mapping[str, TopicState]
) -> BegunPartitions | None:
    if not {names.begun, names.fingerprints} <= topics.keys():
        return None
    begun = BegunPartitions(topics[names.fingerprints].topic_id, topics[names.documents].topic_id)
    return begun.fold_all(read_whole_log(settings, names.begun))


_logger = structlog.get_logger("stream_dedup.preflight")


def needed_topics(role: Literal["worker", "index"], names: TopicNames) -> tuple[str, ...]:
    """Return the topics that a role requires."""
    logs = (names.fingerprints, names.verdicts)
    return logs if role == "index" else (names.documents, *names.outputs, *logs, names.begun)


def check_topics(
    role: Literal["worker", "index"], settings: Settings, names: TopicNames, admin: Admin
) -> Mapping[str, TopicState]:
    """Check a role's machine, clients and topics, and return the states of its topics.

    Raises:
        GoneError: a topic is missing; it may be created later.
        ConfigurationError: findings that endanger documents or would stop the role for good, in one
        message.
        BrokerError: Kafka does not answer.
    """
    report([*check_machine(settings, role)])
    facts, topics = read_facts(
        admin, settings, names, needed_topics(role, names), with_offsets=False
    )
    if missing := [
        finding.sentence
        for finding in check_topics_exist(settings, names, facts)
        if finding.state is CheckState.REFUSED
    ]:
        raise GoneError("\n".join(missing))
    report([*check_clients(settings, names, topics), *check_cluster(settings, names, facts)])
    return topics


def report(findings: list[CheckFinding]) -> None:
    """Log the warnings, and raise an error for refused findings.

    Raises:
        ConfigurationError: there is a refused finding.
    """
    for finding in findings:
        if finding.state is CheckState.WARNING:
            _logger.warning(finding.sentence, check=finding.check)
    raise_refusals(findings)
