"""The checks that a role holds at its start: what they refuse ends it with code 78, what they warn
of is a log line.

A topic that is not there ends nobody: it is waited for, because roles and topics are often made by
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
from stream_dedup.kafka import Admin, read_whole
from stream_dedup.log.begun import BegunTopic
from stream_dedup.preflight.clients import check_clients
from stream_dedup.preflight.cluster import Facts, check_cluster, topics_exist
from stream_dedup.preflight.finding import CheckFinding, CheckState, raise_refusals
from stream_dedup.preflight.machine import check_machine
from stream_dedup.settings.settings import Settings


def read_facts(
    admin: Admin, settings: Settings, names: TopicNames, asked: Sequence[str], *, with_offsets: bool
) -> tuple[Facts, Mapping[str, TopicState]]:
    """Return the facts about the topics in `asked`, and these topics' state as it was read.

    `with_offsets`: also where the group stands, and how old the input is.

    Raises:
        BrokerError: Kafka does not answer, or an ACL forbids the question.
    """
    topics = admin.describe(asked)
    logs = [(name, 0) for name in (names.fingerprints, names.verdicts) if name in topics]
    ends: dict[TopicPartitionKey, tuple[int, int]] = {}
    appended: list[int] = []
    # A leader that is just being elected, or a broker too old for the question, keeps no role from
    # starting: what it must know of the log it asks again itself.
    with contextlib.suppress(BrokerError):
        ends = admin.ends(logs)
        appended = [
            time_ms for key in logs if (time_ms := admin.last_timestamp_ms(key)) is not None
        ]
    committed, source, oldest_ms, begun, known = None, {}, None, None, frozenset[int]()
    reading: Mapping[str, str | None] | None = None
    if with_offsets and names.documents in topics:
        partitions = [(names.documents, part) for part in range(topics[names.documents].partitions)]
        found = admin.committed_or_last_known(settings.group)
        committed = {key[1]: value for key, value in found.items() if key[0] == names.documents}
        noted = _begun(settings, names, topics)
        begun = frozenset(noted.partitions) if noted is not None and noted.is_open else None
        reading = None if noted is None else noted.reading
        # After what was begun, because an offset is committed before that is written down.
        known = admin.partitions_committed(settings.group, names.documents)
        # After the offsets, which a running group moves on meanwhile.
        source = {key[1]: span for key, span in admin.ends(partitions).items()}
        first = [stamp for _, stamp in admin.at_time(partitions, 0).values() if stamp is not None]
        oldest_ms = min(first, default=None)
    facts = Facts(
        asked=tuple(asked),
        topics=topics,
        brokers=admin.broker_count(),
        log=ends.get((names.fingerprints, 0)),
        appended_ms=max(appended, default=None),
        now_ms=int(time.time() * 1000),
        oldest_ms=oldest_ms,
        committed=committed,
        source=source,
        begun=begun,
        reading=reading,
        known=known,
    )
    return facts, topics


def _begun(
    settings: Settings, names: TopicNames, topics: Mapping[str, TopicState]
) -> BegunTopic | None:
    if not {names.begun, names.fingerprints} <= topics.keys():
        return None
    found = BegunTopic(topics[names.fingerprints].topic_id, topics[names.documents].topic_id)
    return found.fold_all(read_whole(settings, names.begun))


_logger = structlog.get_logger("stream_dedup.preflight")


def needed_topics(role: Literal["worker", "index"], names: TopicNames) -> tuple[str, ...]:
    """Return the topics that a role cannot do without."""
    logs = (names.fingerprints, names.verdicts)
    return logs if role == "index" else (names.documents, *names.outputs, *logs, names.begun)


def hold(
    role: Literal["worker", "index"], settings: Settings, names: TopicNames, admin: Admin
) -> Mapping[str, TopicState]:
    """Check what a role needs, and return the state of its topics.

    Raises:
        GoneError: a topic is not there, which may only be not yet. ConfigurationError: something
        endangers documents, or would stop the role for good; all of it in one message. BrokerError:
        Kafka does not answer.
    """
    report([*check_machine(settings, role)])
    facts, topics = read_facts(
        admin, settings, names, needed_topics(role, names), with_offsets=False
    )
    if missing := [
        one.sentence
        for one in topics_exist(settings, names, facts)
        if one.state is CheckState.REFUSED
    ]:
        raise GoneError("\n".join(missing))
    report([*check_clients(settings, names, topics), *check_cluster(settings, names, facts)])
    return topics


def report(findings: list[CheckFinding]) -> None:
    """Log the warnings, and raise what is refused.

    Raises:
        ConfigurationError: something is.
    """
    for one in findings:
        if one.state is CheckState.WARNING:
            _logger.warning(one.sentence, check=one.check)
    raise_refusals(findings)
