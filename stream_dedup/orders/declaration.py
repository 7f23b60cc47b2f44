"""The declaration, which is the log's first record: check it, and write it to an empty log.

Invariants: the log's first record declares recipe, plan, window and group. A writer reads the first
record back, so that two that start at the same time follow the same declaration. A writer whose
recipe, group or form of ids differs from the declaration never sends a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import structlog

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.topics import TopicNames
from stream_dedup.fingerprinting import Recipe
from stream_dedup.kafka import LogAppender, read_whole_log
from stream_dedup.log import records
from stream_dedup.log.record_frame import FIRST_FORMAT
from stream_dedup.orders.beginnings import record_empty_log
from stream_dedup.preflight.declaration import check_declaration, declared_fields, window_of
from stream_dedup.preflight.finding import raise_refusals
from stream_dedup.settings.settings import Settings

_logger = structlog.get_logger("stream_dedup.worker")


def fields_of(settings: Settings, recipe: Recipe) -> dict[str, Any]:
    """Return the fields of the declaration of a new log with these settings.

    Raises:
        ConfigurationError: the plan is wider than the recipe's fingerprints, or needs sketches that
        the recipe does not make.
    """
    plan = settings.judging_plan
    if plan.width > recipe.width:
        raise ConfigurationError(
            f"The plan {plan.id} compares {plan.width} bits, but the recipe {recipe.id} computes "
            f"{recipe.width}; choose a plan of at most that width with STREAM_DEDUP_PLAN."
        )
    if plan.needs_sketch and not recipe.sketch_bytes:
        raise ConfigurationError(
            f"The plan {plan.name} compares sketches, but the recipe {recipe.id} computes none; "
            "choose a plan without sketches, such as blocks, with STREAM_DEDUP_PLAN."
        )
    fields: dict[str, Any] = {
        "recipe": recipe.id,
        "width": 64 * recipe.limbs,
        "floor": recipe.floor,
        "plan": plan.to_fields(),
        "group": settings.group,
        "mode": int(settings.judging_mode),
        "better": settings.better,
    }
    if recipe.sketch_bytes:
        fields["sketch_bytes"] = recipe.sketch_bytes
    window = window_of(settings)
    if window is not None:
        fields["window"] = window.to_fields()
    if settings.count_copies:
        fields["count_copies"] = True
    if settings.log_ids != "plain":
        fields["log_ids"] = settings.log_ids
    newest = max(records.FORMATS)
    if newest != FIRST_FORMAT:
        fields["format"] = newest
    return fields


def declare(settings: Settings, names: TopicNames, recipe: Recipe) -> None:
    """Append the declaration to an empty log, and record that no partition was begun with it."""
    fields = fields_of(settings, recipe)
    record_empty_log(settings, names)
    appender = LogAppender(settings, names.fingerprints, "declare")
    appender.send(records.encode_control(records.Control("declare", fields)), None, lambda _: None)
    appender.flush()
    plan = settings.judging_plan.id
    _logger.info(
        "log begun", topic=names.fingerprints, recipe=recipe.id, plan=plan, group=settings.group
    )


def read_or_declare(
    settings: Settings,
    names: TopicNames,
    recipe: Recipe,
    *,
    begins: bool,
    read: Callable[..., Iterable[tuple[int, records.LogRecord | None]]] = read_whole_log,
) -> dict[str, Any]:
    """Return the log's declaration, checked against the settings; write it to an empty log if
    `begins`.

    `read` has the interface of `read_whole_log`.

    Raises:
        ConfigurationError: the log is empty, was not begun by this program, or has another recipe or
        group.
        BrokerError: Kafka does not answer.
    """
    first_records = list(read(settings, names.fingerprints, records_max=1))
    if not first_records and begins:
        declare(settings, names, recipe)
        first_records = list(read(settings, names.fingerprints, records_max=1))
    if not first_records:
        raise ConfigurationError(
            f"The log {names.fingerprints} is empty, so there is nothing to change yet. The "
            "first worker declares it: stream-dedup run worker"
        )
    declared = declared_fields(first_records[0][1], names)
    raise_refusals(check_declaration(settings, recipe, declared))
    return declared
