"""`topics plan` and `topics apply`."""

from __future__ import annotations

from rich.text import Text

from stream_dedup.cli.options import (
    FitOption,
    JsonOption,
    PartitionsOption,
    TopicFilesOption,
    command,
)
from stream_dedup.domain import topics
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.terminal import print_json, print_table
from stream_dedup.kafka import Admin
from stream_dedup.settings.settings import Settings

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
    """Print missing topics and wrong settings. Exits with 78 if something cannot be corrected."""
    admin, names = Admin(settings), settings.topic_names
    found = topics.plan_cluster(admin, names, folder, partitions, fit_brokers=fit_brokers)
    _print(found, as_json=as_json)
    return ConfigurationError.exit_code if topics.refusals(found.changes) else 0


@command("topics apply", example="stream-dedup topics apply --partitions 24")
def topics_apply_command(
    settings: Settings,
    fit_brokers: FitOption = False,
    partitions: PartitionsOption = None,
    folder: TopicFilesOption = None,
    as_json: JsonOption = False,
) -> int:
    """Create missing topics, add partitions, correct settings. Deletes nothing."""
    admin, names = Admin(settings), settings.topic_names
    found = topics.apply_to_cluster(admin, names, folder, partitions, fit_brokers=fit_brokers)
    _print(found, as_json=as_json, is_done=True)
    return 0


def _print(found: topics.TopicPlan, *, as_json: bool, is_done: bool = False) -> None:
    """Print the changes to make, or (`is_done`) the changes that were made."""
    table: list[list[str | Text]] = []
    rows = topics.as_rows(found)
    for row in rows:
        name, action, sentence = (str(row[key]) for key in ("topic", "action", "sentence"))
        if is_done and action == topics.Action.CREATE:
            row["sentence"] = sentence = sentence.replace(
                "does not exist: create it with", "was created with"
            )
        state = Text(_DONE.get(action, action) if is_done else action, _COLOURS[action])
        table.append([name, state, sentence])
    if as_json:
        print_json(rows)
    else:
        print_table(["topic", "change", "result"], table)
