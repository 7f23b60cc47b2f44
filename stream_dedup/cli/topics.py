"""`topics plan|apply`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.text import Text

from stream_dedup.cli.options import (
    FitOption,
    JsonOption,
    PartitionsOption,
    TopicFilesOption,
    command,
)
from stream_dedup.domain.errors import ConfigurationError, TopicExistsError
from stream_dedup.domain.terminal import print_json, print_table
from stream_dedup.domain.topics import (
    RECORD_BYTES,
    Action,
    Topic,
    TopicChange,
    apply,
    as_rows,
    fit_to_brokers,
    plan,
    read_topics,
    refusals,
    replicas_problem,
    with_partitions,
)
from stream_dedup.kafka import Admin
from stream_dedup.settings.settings import Settings

# What was made just now may not be in every list yet.
_AGAIN_SECONDS = 0.1
_DONE = {"create": "created", "grow": "grown"}
_COLOURS = {
    "create": "green",
    "grow": "green",
    "set": "yellow",
    "refuse": "bold red",
    "none": "dim",
}


@command("topics plan", example="stream-dedup topics plan --json")
def topics_plan_command(
    settings: Settings,
    fit_brokers: FitOption = False,
    partitions: PartitionsOption = None,
    folder: TopicFilesOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print what the cluster's topics lack. Exits with 78 if something cannot be corrected."""
    found = _compare(settings, folder, partitions, fit_brokers=fit_brokers)
    _print(found, as_json=as_json)
    return ConfigurationError.exit_code if refusals(found.changes) else 0


@command("topics apply", example="stream-dedup topics apply --partitions 24")
def topics_apply_command(
    settings: Settings,
    fit_brokers: FitOption = False,
    partitions: PartitionsOption = None,
    folder: TopicFilesOption = None,
    as_json: JsonOption = False,
) -> int:
    """Create missing topics, add partitions, correct settings. Deletes nothing."""
    _print(
        _carry_out(settings, folder, partitions, fit_brokers=fit_brokers),
        as_json=as_json,
        is_done=True,
    )
    return 0


def apply_topics(
    settings: Settings, *, partitions: int | None = None, fit_brokers: bool = True
) -> list[TopicChange]:
    """Bring a cluster to the declared topics without printing, as `broker` and `demo` do; return
    what was changed.
    """
    return _carry_out(settings, None, partitions, fit_brokers=fit_brokers).changes


class _Compared(NamedTuple):
    """The declared topics, what must change, and how many bytes a record of each that is there may
    have.
    """

    admin: Admin
    desired: Sequence[Topic]
    changes: list[TopicChange]
    record_bytes: Mapping[str, str]


def _carry_out(
    settings: Settings, folder: Path | None, partitions: int | None, *, fit_brokers: bool
) -> _Compared:
    """Plan and apply; where somebody else does the same at the same moment (`broker` makes the
    topics too), plan anew.

    Each new plan finds one topic more, so there are no more of them than topics.
    """
    found = _compare(settings, folder, partitions, fit_brokers=fit_brokers)
    for left in reversed(range(len(found.desired))):
        try:
            apply(found.changes, found.admin)
        except TopicExistsError:
            if not left:
                raise
            time.sleep(_AGAIN_SECONDS)
            found = _compare(settings, folder, partitions, fit_brokers=fit_brokers)
        else:
            break
    return found


def _compare(
    settings: Settings, folder: Path | None, partitions: int | None, *, fit_brokers: bool
) -> _Compared:
    desired: Sequence[Topic] = read_topics(settings.topic_names, folder)
    if partitions is not None:
        desired = with_partitions(desired, partitions)
    admin = Admin(settings)
    brokers = admin.broker_count()
    if fit_brokers:
        desired = fit_to_brokers(desired, brokers)
    existing = admin.describe([topic.name for topic in desired])
    changes = plan(desired, existing)
    if problem := replicas_problem(changes, brokers):
        raise ConfigurationError(problem)
    record_bytes_max = {
        name: topic.config[RECORD_BYTES]
        for name, topic in existing.items()
        if RECORD_BYTES in topic.config
    }
    return _Compared(admin, desired, changes, record_bytes_max)


def _print(found: _Compared, *, as_json: bool, is_done: bool = False) -> None:
    """Show each step, or what came of it, and how large a record of each topic may be then."""
    changed = {change.topic.name: change.topic for change in found.changes}
    table: list[list[str | Text]] = []
    rows = as_rows(found.desired, found.changes)
    for row in rows:
        name, action, sentence = (str(row[key]) for key in ("topic", "action", "sentence"))
        limit = (
            changed[name].config.get(RECORD_BYTES, "")
            if name in changed
            else found.record_bytes.get(name, "")
        )
        if limit.isdigit():
            row["record_bytes"] = int(limit)
        if is_done and action == Action.CREATE:
            row["sentence"] = sentence = sentence.replace(
                "does not exist: create it with", "was created with"
            )
        shown = Text(_DONE.get(action, action) if is_done else action, _COLOURS[action])
        table.append([name, shown, f"{int(limit):,} bytes" if limit.isdigit() else "", sentence])
    if as_json:
        print_json(rows)
    else:
        print_table(["topic", "", "a record may have", "what"], table)
