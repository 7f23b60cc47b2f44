"""`doctor`: every check there is, as a table; nothing is changed, joined or begun by it.

Invariants: each check ends in a line, also where Kafka does not answer; what the roles refuse at
start, this refuses too, because the checks are the same ones (`stream_dedup.preflight`).
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import asdict

from rich.text import Text

from stream_dedup.cli.options import JsonOption, command
from stream_dedup.domain.errors import BrokerError, ConfigurationError, OtherFormatError
from stream_dedup.domain.terminal import print_json, print_table
from stream_dedup.fingerprinting import Recipe
from stream_dedup.kafka import Admin, read_partition, read_whole
from stream_dedup.orders.declaration import declaration
from stream_dedup.preflight.clients import check_clients
from stream_dedup.preflight.cluster import Facts, check_cluster
from stream_dedup.preflight.declaration import check_declaration, check_recipe
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
from stream_dedup.serving import asking
from stream_dedup.serving.ports import addresses
from stream_dedup.settings.settings import Settings

_ANSWER_SECONDS = 5.0
_ANSWER_BYTES_MAX = 1 << 20
_COLOURS = {
    CheckState.OK: "green",
    CheckState.WARNING: "yellow",
    CheckState.REFUSED: "bold red",
    CheckState.NOT_CHECKED: "dim",
}
_OF_THE_CLUSTER = (
    "topics",
    "log",
    "replicas",
    "log sizes",
    "output sizes",
    "retention",
    "offsets",
    "reading",
    "clock",
    "declaration",
    "sites",
    "roles",
)


@command(
    "doctor",
    example="stream-dedup doctor --bootstrap-servers kafka:9093 --set kafka.security.protocol=ssl",
)
def doctor_command(settings: Settings, as_json: JsonOption = False) -> int:
    """Check all requirements: settings, clients, this machine, topics, offsets, recipe, volume.
    Changes nothing.

    Exits with 78 if anything is refused.
    """
    findings = examine(settings)
    counts = {state: sum(finding.state is state for finding in findings) for state in CheckState}
    if as_json:
        rows = [{**asdict(finding), "state": finding.state.value} for finding in findings]
        print_json({"ok": not counts[CheckState.REFUSED], "checks": rows})
    else:
        table: list[list[str | Text]] = [
            [finding.check, Text(finding.state.value, _COLOURS[finding.state]), finding.sentence]
            for finding in findings
        ]
        print_table(["check", "state", "what"], table)
        print()
        print(", ".join(f"{count} {state.value}" for state, count in counts.items()))
    return ConfigurationError.exit_code if counts[CheckState.REFUSED] else 0


def examine(settings: Settings) -> list[CheckFinding]:
    """Return what every check finds, in the order in which they are shown."""
    recipe, findings = check_recipe(settings)
    findings += check_machine(settings, None)
    return [*findings, *_of_kafka(settings, recipe), *_search(settings)]


def _of_kafka(settings: Settings, recipe: Recipe | None) -> Iterator[CheckFinding]:
    names = settings.topic_names
    asked = needed_topics("worker", names)
    clients = check_clients(settings, names, None)
    if any(finding.state is CheckState.REFUSED for finding in clients):
        yield from clients
        yield from _unasked("The clients' properties are refused, so Kafka was not asked.")
        yield from check_volume(settings, None, lambda: None)
        return
    try:
        admin = Admin(settings)
        facts, topics = read_facts(admin, settings, names, asked, with_offsets=True)
        cluster = admin.cluster_id()
    except (BrokerError, ConfigurationError) as error:
        yield from clients
        yield refused("brokers", str(error))
        yield from _unasked("Kafka could not be asked.")
        yield from check_volume(settings, None, lambda: None)
        return
    yield from check_clients(settings, names, topics)
    yield ok("brokers", f"The cluster {cluster} answers at {settings.kafka_bootstrap_servers}.")
    found = check_cluster(settings, names, facts)
    yield from found
    extra = [
        name
        for name in (names.host_signals, names.insights_changelog)
        if name not in admin.topic_ids([name])
    ]
    if extra:
        yield warning(
            "topics",
            f"{' and '.join(extra)} do not exist: nothing but insights needs them. Create them "
            "with: stream-dedup topics apply",
        )
    log = topics.get(names.fingerprints)
    if log is None or recipe is None:
        yield not_checked(
            "declaration", "There is no log, or no recipe to compare with what it declares."
        )
        yield not_checked("sites", "There is no log, or it cannot be read.")
    elif not any(
        finding.check == "log" and finding.state is CheckState.REFUSED for finding in found
    ):
        yield from _declaration(settings, recipe)
        yield from _sites(admin, settings)
    if {names.fingerprints, names.verdicts, names.documents} <= topics.keys():
        yield from _roles(admin, settings, facts)
    else:
        yield not_checked("roles", "What they read and write is not there.")
    seen = {finding.check for finding in found}
    yield from (
        not_checked(check, "What it looks at is not there.")
        for check in _OF_THE_CLUSTER
        if check not in seen and check not in ("declaration", "sites", "roles")
    )
    name = None if log is None else f"{cluster}/{log.topic_id.hex()}"
    key = (names.fingerprints, 0)
    yield from check_volume(
        settings, name, lambda: None if log is None else admin.ends([key])[key][1]
    )


def _search(settings: Settings) -> Iterator[CheckFinding]:
    """Whether a search of this machine is ready; nothing needs one, so none is nothing to complain
    of.
    """
    asked = addresses(settings)
    for base in asked:
        try:
            _, raw = asking.ask(base, "/v1/groups?limit=1", _ANSWER_SECONDS, _ANSWER_BYTES_MAX)
            fields = json.loads(raw)
            if (
                not isinstance(fields, dict)
                or "paths" in fields
                or not {"groups", "detail"} & fields.keys()
            ):
                continue  # another role
            status, raw = asking.ask(base, "/readyz", _ANSWER_SECONDS, _ANSWER_BYTES_MAX)
            says = f"The search at {base} says: {json.loads(raw)['text']}"
        except (*asking.NO_ANSWER, KeyError, TypeError):
            continue
        yield ok("search", says) if status == http.client.OK else warning("search", says)
        return
    yield not_checked(
        "search",
        f"None answers on this machine ({asked[0]} and the next ports); no document waits for one.",
    )


def _roles(admin: Admin, settings: Settings, facts: Facts) -> Iterator[CheckFinding]:
    committed = facts.committed or {}
    waiting = sum(
        max(0, end - committed.get(part, (low, None))[0])
        for part, (low, end) in facts.source.items()
    )
    try:
        yield from check_roles(settings, settings.topic_names, read_roles(admin, settings, waiting))
    except OtherFormatError as error:
        yield refused("roles", str(error))
    except BrokerError as error:
        yield not_checked("roles", str(error))


def _declaration(settings: Settings, recipe: Recipe) -> Iterator[CheckFinding]:
    name = settings.topic_names.fingerprints
    try:
        first = list(read_whole(settings, name, most=1))
        if first:
            yield from check_declaration(
                settings, recipe, declaration(first[0][1], settings.topic_names)
            )
        else:
            yield not_checked("declaration", "The log is empty; the first worker will begin it.")
    except (BrokerError, ConfigurationError, OtherFormatError) as error:
        yield refused("declaration", str(error))


def _sites(admin: Admin, settings: Settings) -> Iterator[CheckFinding]:
    key = (settings.topic_names.fingerprints, 0)
    try:
        first = max(0, admin.ends([key])[key][1] - LOG_RECORDS)
        tail = read_partition(settings, *key, first)
        yield check_sites(settings, (message.value for message in tail))
    except (BrokerError, OtherFormatError) as error:
        yield not_checked("sites", str(error))


def _unasked(why: str) -> Iterator[CheckFinding]:
    yield from (not_checked(check, why) for check in _OF_THE_CLUSTER)
