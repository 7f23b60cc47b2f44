"""The log's first record: what it must say for this filter, and how a log is begun.

Invariants: the log's first record declares recipe, plan, window and group, and whoever appends it reads it back, so that of
two first writers both follow the same one; a writer whose recipe, group or way of naming documents differs from the declared
one never sends a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from stream_dedup.errors import ConfigurationError
from stream_dedup.fingerprint import Recipe
from stream_dedup.index import plan as plans
from stream_dedup.index.plan import Plan
from stream_dedup.index.window import Window
from stream_dedup.log import records
from stream_dedup.log.kafka import LogAppender, read_whole
from stream_dedup.settings import Settings
from stream_dedup.topics import TopicNames

_log = structlog.get_logger("stream_dedup.worker")


def window_of(settings: Settings) -> Window | None:
    """Return the window that the settings name."""
    if settings.window is None:
        return None
    return Window(round(settings.window.total_seconds() * 1000), settings.window_refresh)


def fields_of(settings: Settings, recipe: Recipe) -> dict[str, Any]:
    """Return the fields of the declaration with which these settings begin a log.

    Raises:
        ConfigurationError: the plan is wider than the recipe's prints.
    """
    plan = plans.parse(settings.plan)
    if plan.width > recipe.width:
        raise ConfigurationError(
            f"The plan {plan.id} judges {plan.width} bits, and the recipe {recipe.id} makes {recipe.width}; choose a plan of "
            "at most that width with STREAM_DEDUP_PLAN."
        )
    fields: dict[str, Any] = {
        "recipe": recipe.id,
        "width": 64 * recipe.words,
        "floor": recipe.floor,
        "plan": plan.to_fields(),
        "group": settings.group,
        "mode": int(settings.judging_mode),
    }
    window = window_of(settings)
    if window is not None:
        fields["window"] = window.to_fields()
    if settings.log_ids != "plain":
        fields["log_ids"] = settings.log_ids
    return fields


def begin(settings: Settings, names: TopicNames, recipe: Recipe) -> None:
    """Append the declaration to an empty log."""
    fields = fields_of(settings, recipe)
    appender = LogAppender(settings, names.fingerprints, "declare")
    appender.send(records.encode_control(records.Control("declare", fields)), None, lambda _: None)
    appender.flush()
    _log.info("log begun", topic=names.fingerprints, recipe=recipe.id, plan=plans.parse(settings.plan).id, group=settings.group)


def follow(settings: Settings, names: TopicNames, recipe: Recipe, *, begins: bool) -> dict[str, Any]:
    """Return the log's declaration, checked against the settings; `begins` says whether an empty log may be begun.

    Raises:
        ConfigurationError: the log is empty, was not begun by this program, or is for another recipe or group.
        BrokerError: Kafka does not answer.
    """
    first = list(read_whole(settings, names.fingerprints, most=1))
    if not first and begins:
        begin(settings, names, recipe)
        first = list(read_whole(settings, names.fingerprints, most=1))
    if not first:
        raise ConfigurationError(
            f"The log {names.fingerprints} is empty, so there is nothing to change yet. Its first worker begins it as the "
            "settings say: stream-dedup run worker"
        )
    declared = declaration(first[0][1], names)
    check(settings, recipe, declared)
    return declared


def declaration(record: records.LogRecord | None, names: TopicNames) -> dict[str, Any]:
    """Return the fields of the log's first record.

    Raises:
        ConfigurationError: it is no declaration.
    """
    if not isinstance(record, records.Control) or record.type != "declare":
        raise ConfigurationError(
            f"The first record of {names.fingerprints} does not declare recipe and plan, so it is not a log of "
            "stream_dedup; choose another STREAM_DEDUP_TOPIC_PREFIX."
        )
    return record.fields


def check(settings: Settings, recipe: Recipe, declared: Mapping[str, Any]) -> None:
    """Refuse to write to a log whose declaration these settings do not fit.

    Raises:
        ConfigurationError: recipe, group or way of naming documents differ.
    """
    if declared.get("recipe") != recipe.id:
        raise ConfigurationError(
            f"The log was begun with recipe {declared.get('recipe')!r}, and this worker's is {recipe.id!r}: their "
            "fingerprints cannot be compared. Set STREAM_DEDUP_RECIPE and STREAM_DEDUP_KEY_FILE as they were, or begin "
            "a new log with another STREAM_DEDUP_TOPIC_PREFIX."
        )
    if declared.get("group") != settings.group:
        raise ConfigurationError(
            f"The log belongs to group {declared.get('group')!r}, and this worker's is {settings.group!r}: two groups "
            "would read every document twice. Set STREAM_DEDUP_GROUP as it was."
        )
    log_ids = declared.get("log_ids", "plain")
    if log_ids != settings.log_ids:
        raise ConfigurationError(
            f"The log was begun with STREAM_DEDUP_LOG_IDS={log_ids}, and the setting is {settings.log_ids}: one document would "
            f"have two names. Set it to {log_ids}, or begin a new log with another STREAM_DEDUP_TOPIC_PREFIX."
        )


def warn_of_differences(settings: Settings, declared: Mapping[str, Any]) -> None:
    """Say where the log was begun otherwise than the settings say; only `declare` changes it."""
    plan, window = Plan.from_fields(declared.get("plan")), declared.get("window")
    if plan != plans.parse(settings.plan):
        _log.warning(
            "the log's plan is in force, not the setting's; `stream-dedup declare --plan` changes it",
            begun_with=plan.id,
            setting=plans.parse(settings.plan).id,
        )
    wanted = window_of(settings)
    if window != (None if wanted is None else wanted.to_fields()):
        _log.warning(
            "the log's window is in force, not the setting's; `stream-dedup declare --window` changes it",
            begun_with=window,
            setting=None if wanted is None else wanted.to_fields(),
        )
