"""`topics plan|apply`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from stream_dedup.cli.options import FitOption, JsonOption, PartitionsOption, Settings, TopicFilesOption, command
from stream_dedup.ground.errors import ConfigurationError, TopicExistsError
from stream_dedup.ground.terminal import print_json, print_table
from stream_dedup.ground.topics import (
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

if TYPE_CHECKING:
    from stream_dedup.kafka import Admin

# What was made just now may not be in every list yet.
_AGAIN_SECONDS = 0.1
_COLOURS = {"create": "green", "grow": "green", "set": "yellow", "refuse": "bold red", "none": "dim"}


@command("topics plan", example="stream-dedup topics plan --json")
def topics_plan_command(
    settings: Settings,
    fit_brokers: FitOption = False,
    partitions: PartitionsOption = None,
    folder: TopicFilesOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show what the cluster's topics lack, and change nothing. Ends with 78 if something cannot be corrected."""
    _, desired, changes = _compare(settings, folder, partitions, fit_brokers=fit_brokers)
    _print(desired, changes, as_json=as_json)
    return ConfigurationError.exit_code if refusals(changes) else 0


@command("topics apply", example="stream-dedup topics apply --partitions 24")
def topics_apply_command(
    settings: Settings,
    fit_brokers: FitOption = False,
    partitions: PartitionsOption = None,
    folder: TopicFilesOption = None,
    as_json: JsonOption = False,
) -> int:
    """Create missing topics, add partitions, correct settings. Nothing is ever deleted or shrunk."""
    desired, changes = _carry_out(settings, folder, partitions, fit_brokers=fit_brokers)
    _print(desired, changes, as_json=as_json)
    return 0


def apply_topics(settings: Settings, *, partitions: int | None = None, fit_brokers: bool = True) -> list[TopicChange]:
    """Bring a cluster to the declared topics without printing, as `broker` and `demo` do; return what was changed."""
    return _carry_out(settings, None, partitions, fit_brokers=fit_brokers)[1]


def _carry_out(
    settings: Settings, folder: Path | None, partitions: int | None, *, fit_brokers: bool
) -> tuple[Sequence[Topic], list[TopicChange]]:
    """Plan and apply; where somebody else does the same at the same moment (`broker` makes the topics too), plan anew.

    Each new plan finds one topic more, so there are no more of them than topics.
    """
    admin, desired, changes = _compare(settings, folder, partitions, fit_brokers=fit_brokers)
    for left in reversed(range(len(desired))):
        try:
            apply(changes, admin)
        except TopicExistsError:
            if not left:
                raise
            time.sleep(_AGAIN_SECONDS)
            admin, desired, changes = _compare(settings, folder, partitions, fit_brokers=fit_brokers)
        else:
            break
    return desired, changes


def _compare(
    settings: Settings, folder: Path | None, partitions: int | None, *, fit_brokers: bool
) -> tuple[Admin, Sequence[Topic], list[TopicChange]]:
    from stream_dedup.kafka import Admin

    desired: Sequence[Topic] = read_topics(settings.topic_names, folder)
    if partitions is not None:
        desired = with_partitions(desired, partitions)
    admin = Admin(settings)
    brokers = admin.broker_count()
    if fit_brokers:
        desired = fit_to_brokers(desired, brokers)
    changes = plan(desired, admin.describe([topic.name for topic in desired]))
    if problem := replicas_problem(changes, brokers):
        raise ConfigurationError(problem)
    return admin, desired, changes


def _print(desired: Sequence[Topic], changes: Sequence[TopicChange], *, as_json: bool) -> None:
    rows = as_rows(desired, changes)
    if as_json:
        print_json(rows)
        return
    print_table(
        ["topic", "", "what"],
        [[str(row["topic"]), Text(str(row["action"]), _COLOURS[str(row["action"])]), str(row["sentence"])] for row in rows],
    )
