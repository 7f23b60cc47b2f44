"""Check a worker's recipe (key, dictionary, fingerprints of the canary texts) and the log's
declaration.

The declaration's recipe, group and form of ids must be those of this worker. The worker must also
read documents as the log's other workers do: if two workers take a document's text, id or scope from
different fields, they see different texts for a page, and miss exact copies without an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.topics import TopicNames
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.log.controls import Window
from stream_dedup.log.records import Control, LogRecord
from stream_dedup.preflight.finding import CheckFinding, ok, refused, warning
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings
from stream_dedup.settings.units import parse_duration


def window_of(settings: Settings) -> Window | None:
    """Return the window of the settings."""
    if settings.window is None:
        return None
    length, _, refresh = settings.window.partition(",")
    return Window(round(parse_duration(length).total_seconds() * 1000), bool(refresh))


def declared_fields(first: LogRecord | None, names: TopicNames) -> dict[str, Any]:
    """Return the fields of the log's first record.

    Raises:
        ConfigurationError: it is not a declaration.
    """
    if not isinstance(first, Control) or first.type != "declare":
        raise ConfigurationError(
            f"The first record of {names.fingerprints} does not declare recipe and plan, so it is "
            "not a log of stream_dedup; choose another STREAM_DEDUP_TOPIC_PREFIX."
        )
    return first.fields


def check_declaration(
    settings: Settings, recipe: Recipe, declared: Mapping[str, Any]
) -> list[CheckFinding]:
    """Check whether this worker may write to a log with this declaration, and which of its settings
    are not in force.
    """
    plan = Plan.from_fields(declared.get("plan"))
    findings = [*_refusals(settings, recipe, declared), *_not_in_force(settings, declared, plan)]
    return findings or [
        ok(
            "declaration",
            f"The log was started with this recipe, plan {plan.id} and group {settings.group}.",
        )
    ]


def _refusals(
    settings: Settings, recipe: Recipe, declared: Mapping[str, Any]
) -> Iterator[CheckFinding]:
    if declared.get("recipe") != recipe.id:
        yield refused(
            "declaration",
            f"The log was started with recipe {declared.get('recipe')!r}, but this worker's is "
            f"{recipe.id!r}: their fingerprints cannot be compared. Restore STREAM_DEDUP_RECIPE "
            "and STREAM_DEDUP_KEY_FILE, or start a new log with another "
            "STREAM_DEDUP_TOPIC_PREFIX.",
        )
    if declared.get("group") != settings.group:
        yield refused(
            "declaration",
            f"The log belongs to group {declared.get('group')!r}, but this worker's is "
            f"{settings.group!r}: two groups would read every document twice. Restore "
            "STREAM_DEDUP_GROUP.",
        )
    log_ids = declared.get("log_ids", "plain")
    if log_ids != settings.log_ids:
        yield refused(
            "declaration",
            f"The log was started with STREAM_DEDUP_LOG_IDS={log_ids}, but the setting is "
            f"{settings.log_ids}: one document would have two ids. Set it to {log_ids}, or start "
            "a new log with another STREAM_DEDUP_TOPIC_PREFIX.",
        )


def _not_in_force(
    settings: Settings, declared: Mapping[str, Any], plan: Plan
) -> Iterator[CheckFinding]:
    """Yield a warning for each setting that the log decides and that differs from it."""
    wanted = settings.judging_plan
    if plan != wanted:
        yield warning(
            "plan",
            f"The log was started with the plan {plan.id}, and the settings name {wanted.id}; the "
            "log's plan is in force. To change the log, use `stream-dedup declare` with `--plan` "
            "or `--similarity`; otherwise set STREAM_DEDUP_PLAN and the STREAM_DEDUP_SIMILARITY "
            "settings to the log's values.",
        )
    window, configured = declared.get("window"), window_of(settings)
    configured_fields = None if configured is None else configured.to_fields()
    if window != configured_fields:
        yield warning(
            "window",
            f"The log was started with {_window_text(window)}, and the settings name "
            f"{_window_text(configured_fields)}; the log's window is in force. `stream-dedup declare --window` "
            "changes it.",
        )
    better = declared.get("better", BetterRule.LONGEST.label)
    if better != settings.better:
        yield warning(
            "better",
            f"The log was started with STREAM_DEDUP_BETTER={better}, and the setting is "
            f"{settings.better}; the log's rule is in force. `stream-dedup declare --better` changes it.",
        )
    if declared.get("count_copies", False) != settings.count_copies:
        does = "counts" if declared.get("count_copies", False) else "does not count"
        yield warning(
            "copies",
            f"The log {does} copies, and STREAM_DEDUP_COUNT_COPIES is "
            f"{str(settings.count_copies).lower()}; the log's value is in force and cannot change. Set "
            "STREAM_DEDUP_COUNT_COPIES to the log's value, or start a new log with another "
            "STREAM_DEDUP_TOPIC_PREFIX.",
        )


def _window_text(fields: Mapping[str, Any] | None) -> str:
    if fields is None:
        return "no window"
    return f"a window of {fields['length_ms'] / 1000:,.0f} s{' with refresh' if fields['refresh'] else ''}"


def check_recipe(settings: Settings) -> tuple[Recipe | None, list[CheckFinding]]:
    """Return the recipe, or None if it cannot be loaded, and the findings. Takes a second, because
    the dictionary is read.
    """
    try:
        recipe = recipe_of(settings)
    except ConfigurationError as error:
        return None, [refused("recipe", str(error))]
    return recipe, [*check_key(recipe), *_check_fingerprints(recipe)]


def check_key(recipe: Recipe) -> Iterator[CheckFinding]:
    """Check that the key is not the public one of the demonstration."""
    if recipe.uses_demo_key:
        yield warning(
            "key",
            "The fingerprints use the public demonstration key, so anyone can craft colliding "
            "documents. Set STREAM_DEDUP_KEY_FILE before the log is started.",
        )
    else:
        yield ok("key", "The fingerprints use a secret key.")


def _check_fingerprints(recipe: Recipe) -> Iterator[CheckFinding]:
    try:
        Fingerprinter(recipe)  # reads the dictionary, and compares the canary texts' fingerprints
    except ConfigurationError as error:
        yield refused("prints", str(error))
    else:
        yield ok(
            "prints",
            "The dictionary and the fingerprints of the canary texts match the recipe "
            f"{recipe.id}.",
        )


_FIELDS = (
    "value_format",
    "text_field",
    "text_is",
    "text_encoding",
    "id_field",
    "scope_field",
    "site_field",
    "title_field",
)


def reading_of(settings: Settings) -> dict[str, str | None]:
    """Return the settings that define a document's text, id, scope, site and title."""
    reading = {name: getattr(settings, name) for name in _FIELDS}
    if settings.value_format == "raw":
        reading["text_field"] = reading["title_field"] = None
    # `text_at` is omitted if unset: older logs do not contain it.
    if settings.text_at is not None:
        reading["text_at"] = settings.text_at
    return reading


def check_reading(settings: Settings, in_force: Mapping[str, str | None] | None) -> CheckFinding:
    """Check that the settings define the same reading of documents as `in_force`, which the log's
    workers recorded; None if it is not recorded yet.
    """
    reading = reading_of(settings)
    if in_force is None:
        return ok(
            "reading",
            "No worker has started with this log yet; the first one sets how documents are read.",
        )
    if in_force == reading:
        return ok("reading", "Documents are read as the log's first worker read them.")
    differing = [
        name
        for name in dict.fromkeys([*reading, *in_force])
        if reading.get(name) != in_force.get(name)
    ]
    return refused(
        "reading",
        "Documents of this log are read with "
        f"{reading_text({name: in_force.get(name) for name in differing})}, and this worker's "
        f"settings are {reading_text({name: reading.get(name) for name in differing})}: one page "
        "would have two texts or ids, and its copies would not be found. Restore the settings; "
        "or, to change them for all workers, run stream-dedup declare --reading with the new "
        "settings, and restart every worker.",
    )


def reading_text(reading: Mapping[str, str | None]) -> str:
    """Format the settings as environment variables; an unset one is empty."""
    return ", ".join(
        f"STREAM_DEDUP_{name.upper()}={value or ''}" for name, value in reading.items()
    )
