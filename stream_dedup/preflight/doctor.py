"""Run all checks, for `doctor`.

Invariant: each check ends in a finding, also if Kafka does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from stream_dedup.domain.errors import BrokerError, ConfigurationError, OtherFormatError
from stream_dedup.fingerprinting import Recipe
from stream_dedup.index.index import name_log
from stream_dedup.kafka import Admin, read_partition, read_whole_log
from stream_dedup.preflight.clients import check_clients
from stream_dedup.preflight.cluster import Facts, check_cluster
from stream_dedup.preflight.declaration import check_declaration, check_recipe, declared_fields
from stream_dedup.preflight.finding import (
    CheckFinding,
    CheckState,
    not_checked,
    ok,
    refused,
    warning,
)
from stream_dedup.preflight.machine import check_machine
from stream_dedup.preflight.roles import check_roles, read_roles
from stream_dedup.preflight.sites import LOG_RECORDS, check_sites
from stream_dedup.preflight.start import needed_topics, read_facts
from stream_dedup.preflight.volume import check_volume
from stream_dedup.settings.settings import Settings

_OTHER_CHECKS = ("declaration", "sites", "roles")
_CLUSTER_CHECKS = (
    *("topics", "log", "replicas", "log sizes", "output sizes", "retention"),
    *("offsets", "reading"),
)


def examine(settings: Settings) -> list[CheckFinding]:
    """Return the findings of all checks in the order in which they are printed."""
    recipe, findings = check_recipe(settings)
    findings += check_machine(settings, None)
    return [*findings, *_check_kafka(settings, recipe)]


def _check_kafka(settings: Settings, recipe: Recipe | None) -> Iterator[CheckFinding]:
    names = settings.topic_names
    clients = check_clients(settings, names, None)
    if any(finding.state is CheckState.REFUSED for finding in clients):
        yield from clients
        yield from _not_asked("The clients' properties are refused, so Kafka was not asked.")
        yield from check_volume(settings, None, lambda: None)
        return
    try:
        admin = Admin(settings)
        needed = needed_topics("worker", names)
        facts, topics = read_facts(admin, settings, names, needed, with_offsets=True)
        cluster = admin.cluster_id()
    except (BrokerError, ConfigurationError) as error:
        yield from clients
        yield refused("brokers", str(error))
        yield from _not_asked("Kafka did not answer.")
        yield from check_volume(settings, None, lambda: None)
        return
    yield from check_clients(settings, names, topics)
    yield ok("brokers", f"The cluster {cluster} answers at {settings.kafka_bootstrap_servers}.")
    cluster_findings = check_cluster(settings, names, facts)
    yield from cluster_findings
    insights_topics = (names.host_signals, names.insights_changelog)
    missing = [name for name in insights_topics if name not in admin.topic_ids([name])]
    if missing:
        yield warning(
            "topics",
            f"{' and '.join(missing)} do not exist; only insights needs them. Create them with: "
            "stream-dedup topics apply",
        )
    log = topics.get(names.fingerprints)
    if log is None or recipe is None:
        yield not_checked(
            "declaration", "There is no log, or no recipe to compare with its declaration."
        )
        yield not_checked("sites", "There is no log, or it cannot be read.")
    elif not any(
        finding.check == "log" and finding.state is CheckState.REFUSED
        for finding in cluster_findings
    ):
        yield from _check_declaration(settings, recipe)
        yield from _check_sites(admin, settings)
    if {names.fingerprints, names.verdicts, names.documents} <= topics.keys():
        yield from _check_roles(admin, settings, facts)
    else:
        yield not_checked("roles", "A topic of the roles does not exist.")
    checked = {finding.check for finding in cluster_findings}
    yield from (
        not_checked(check, "The topics, offsets or records that it checks do not exist yet.")
        for check in _CLUSTER_CHECKS
        if check not in checked
    )
    log_name = None if log is None else name_log(cluster, log.topic_id)
    key = (names.fingerprints, 0)
    yield from check_volume(
        settings, log_name, lambda: None if log is None else admin.bounds([key])[key].end
    )


def _check_roles(admin: Admin, settings: Settings, facts: Facts) -> Iterator[CheckFinding]:
    try:
        role_facts = read_roles(admin, settings, facts.waiting)
        yield from check_roles(settings, settings.topic_names, role_facts)
    except OtherFormatError as error:
        yield refused("roles", str(error))
    except BrokerError as error:
        yield not_checked("roles", str(error))


def _check_declaration(settings: Settings, recipe: Recipe) -> Iterator[CheckFinding]:
    names = settings.topic_names
    try:
        first = list(read_whole_log(settings, names.fingerprints, records_max=1))
        if first:
            yield from check_declaration(settings, recipe, declared_fields(first[0][1], names))
        else:
            yield not_checked("declaration", "The log is empty; the first worker will start it.")
    except (BrokerError, ConfigurationError, OtherFormatError) as error:
        yield refused("declaration", str(error))


def _check_sites(admin: Admin, settings: Settings) -> Iterator[CheckFinding]:
    key = (settings.topic_names.fingerprints, 0)
    try:
        first = max(0, admin.bounds([key])[key].end - LOG_RECORDS)
        tail = read_partition(settings, *key, first)
        yield check_sites(settings, (message.value for message in tail))
    except (BrokerError, OtherFormatError) as error:
        yield not_checked("sites", str(error))


def _not_asked(why: str) -> Iterator[CheckFinding]:
    yield from (not_checked(check, why) for check in (*_CLUSTER_CHECKS, *_OTHER_CHECKS))
