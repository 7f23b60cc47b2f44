"""The checks that a role holds at its start: what they refuse ends it with code 78, what they warn of is a log line.

A topic that is not there ends nobody: it is waited for, because roles and topics are often made by one command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import structlog

from stream_dedup.checks.clients import check_clients
from stream_dedup.checks.cluster import check_cluster, topics_exist
from stream_dedup.checks.facts import read_facts
from stream_dedup.checks.finding import CheckFinding, CheckState, raise_refusals
from stream_dedup.checks.machine import check_machine
from stream_dedup.ground.errors import GoneError
from stream_dedup.ground.topics import TopicNames, TopicState
from stream_dedup.kafka import Admin
from stream_dedup.settings.settings import Settings

_logger = structlog.get_logger("stream_dedup.checks")


def needed_topics(role: Literal["worker", "index"], names: TopicNames) -> tuple[str, ...]:
    """Return the topics that a role cannot do without."""
    logs = (names.fingerprints, names.verdicts)
    return logs if role == "index" else (names.documents, *names.outputs, *logs, names.begun)


def hold(role: Literal["worker", "index"], settings: Settings, names: TopicNames, admin: Admin) -> Mapping[str, TopicState]:
    """Check what a role needs, and return the state of its topics.

    Raises:
        GoneError: a topic is not there, which may only be not yet.
        ConfigurationError: something endangers documents, or would stop the role for good; all of it in one message.
        BrokerError: Kafka does not answer.
    """
    report([*check_machine(settings, role)])
    facts, topics = read_facts(admin, settings, names, needed_topics(role, names), with_offsets=False)
    if missing := [one.sentence for one in topics_exist(settings, names, facts) if one.state is CheckState.REFUSED]:
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
