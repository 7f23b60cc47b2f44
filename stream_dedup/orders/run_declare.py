"""Change plan, thresholds, window, rule for the best copy, format and input settings of a running
filter, for `declare`. A change is in force from the end of the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlencode

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.errors import ConfigurationError, InvariantError
from stream_dedup.domain.plan import Plan, parse_similarity
from stream_dedup.domain.plan import parse as parse_plan
from stream_dedup.domain.terminal import note, progress
from stream_dedup.index.rules.window import RulesInForce
from stream_dedup.index.tables.blocks import compile_plan, table_count
from stream_dedup.kafka import Admin, read_whole_log
from stream_dedup.log.begun_partitions import BegunPartitions, encode_reading
from stream_dedup.log.controls import Window, format_of
from stream_dedup.log.records import Control, encode_control
from stream_dedup.orders import declaration
from stream_dedup.orders.beginnings import append_begun
from stream_dedup.orders.common import append, check_log_topics
from stream_dedup.orders.in_force import InForce, change_fields
from stream_dedup.preflight.declaration import reading_of, reading_text
from stream_dedup.serving.http_client import ask_role
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings
from stream_dedup.settings.units import as_text, parse_window

Reading = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Change:
    """A change as the command's options name it; None and empty: no change."""

    plan: str | None = None
    thresholds: Mapping[str, str | None] = field(default_factory=dict)
    window: str | None = None
    refresh: bool | None = None
    better: str | None = None
    form: int | None = None
    changes_inputs: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """The result of a change.

    `rows` are (name, value at the log's beginning, value in force, new value); `readings` are the
    input settings at these three times. `log_offset` is that of the order, None if none was written.
    """

    rows: list[list[str]]
    readings: tuple[Reading | None, Reading | None, Reading | None]
    log_offset: int | None
    has_new_rules: bool

    @property
    def has_new_reading(self) -> bool:
        """Whether the input settings change."""
        return self.readings[2] != self.readings[1]


def declare(
    settings: Settings,
    change: Change,
    indexes: Sequence[Sequence[str]],
    *,
    dry_run: bool,
) -> Declared:
    """Write the order of a change to the log, unless it is a `dry_run`.

    `indexes`: the addresses of each index, which is first asked whether it has enough memory and
    reads the format.

    Raises:
        ConfigurationError: the log, an index or the settings do not allow the change.
        InputError: an index does not answer.
        ValueError: the window is not a time, such as 30d.
    """
    new_plan = None if change.plan is None else parse_plan(change.plan)
    rule = None if change.better is None else BetterRule.named(change.better)
    current = _read_rules(settings, new_plan)
    if current.plan is None or current.declared is None:
        raise InvariantError(
            "The log has a declaration without a plan; its first record is damaged."
        )
    new_plan = (new_plan or current.plan).with_similarity(
        **{
            name: parse_similarity(text)
            for name, text in change.thresholds.items()
            if text is not None
        }
    )
    new_rules = RulesInForce(
        new_plan,
        _window(current.window, change.window, change.refresh),
        rule or current.better,
        current.format if change.form is None else format_of(change.form),
    )
    fields = change_fields(current, new_rules)
    if "plan" in fields and table_count(compile_plan(new_plan)) != table_count(
        compile_plan(current.plan)
    ):
        for index_addresses in indexes:
            _ask_for_memory(index_addresses, new_plan)
    if "format" in fields:
        for index_addresses in indexes:
            _ask_for_format(index_addresses, new_rules.format)
    names = settings.topic_names
    log_offset = (
        append(settings, names, encode_control(Control("plan", fields)))
        if fields and not dry_run
        else None
    )
    readings = _change_reading(settings, is_changed=change.changes_inputs, dry_run=dry_run)
    plans = (current.declared.plan, current.plan, new_rules.plan)
    windows = (current.declared.window, current.window, new_rules.window)
    rows = [
        ["plan", *(_plan_text(plan) for plan in plans)],
        ["window", *(_window_text(window) for window in windows)],
        ["better", current.declared.better.label, current.better.label, new_rules.better.label],
        ["reading", *("" if reading is None else reading_text(reading) for reading in readings)],
        ["format", str(current.declared.format), str(current.format), str(new_rules.format)],
    ]
    return Declared(
        rows=rows,
        readings=readings,
        log_offset=log_offset,
        has_new_rules=bool(fields),
    )


def _read_rules(settings: Settings, new_plan: Plan | None) -> InForce:
    """Return the rules in force at the end of the log.

    Raises:
        ConfigurationError: the log is missing or empty, or is not of these settings; or `new_plan`
        does not fit its fingerprints.
    """
    names = check_log_topics(settings, [settings.topic_names.begun])
    recipe = recipe_of(settings)
    declaration.read_or_declare(settings, names, recipe, begins=False)
    if new_plan is not None and new_plan.needs_sketch and not recipe.sketch_bytes:
        raise ConfigurationError(
            f"The plan {new_plan.name} compares sketches, but the recipe {recipe.id} of this log "
            "computes none; choose a plan without sketches, such as blocks."
        )
    current = InForce()
    with progress("reading the log", None) as advance:
        for _, record in read_whole_log(settings, names.fingerprints, advance):
            current.fold(record)
    return current


def _ask_for_memory(addresses: Sequence[str], plan: Plan) -> None:
    """Ask an index how much memory it needs for a plan, and print that.

    Raises:
        ConfigurationError: it does not have enough.
        InputError: it does not answer.
    """
    remedy = (
        "Nothing was written: an index without enough memory for the plan of its log exits with "
        "code 78, so this command first asks each index. Name every replica with --index "
        "http://HOST:PORT, or skip the check with --unchecked."
    )
    base, memory = ask_role(
        "index", addresses, f"/v1/memory?{urlencode({'plan': plan.id})}", remedy
    )
    needed, allowed = (memory[name] >> 20 for name in ("needed_bytes", "allowed_bytes"))
    if not memory["is_enough"]:
        raise ConfigurationError(
            f"The index at {base} needs at least {needed + 1:,} MiB of memory for the plan "
            f"{plan.name} (documents kept: {memory['entries']:,}), and its STREAM_DEDUP_MEMORY is "
            f"{allowed:,} MiB. Nothing was written: raise it for every index, restart them, and "
            "declare the plan again."
        )
    limit = f"; its limit is {allowed:,} MiB" if allowed else ""
    note(
        f"The index at {base} needs {needed + 1:,} MiB of memory or more for the plan "
        f"{plan.name}{limit}."
    )


def _ask_for_format(addresses: Sequence[str], form: int) -> None:
    """Ask an index whether it can read a format.

    Raises:
        ConfigurationError: it cannot.
        InputError: it does not answer.
    """
    remedy = (
        "Nothing was written: a role that cannot read the format of its log exits with code 78, "
        "so this command first asks each index. Name every replica with --index "
        "http://HOST:PORT, or skip the check with --unchecked."
    )
    base, stats = ask_role("index", addresses, "/v1/stats", remedy)
    if form not in stats["formats"]:
        raise ConfigurationError(
            f"The index at {base} reads formats up to {max(stats['formats'])}, and would exit with "
            f"code 78 at format {form}. Nothing was written: upgrade every index, worker, search "
            "and console first."
        )


def _change_reading(
    settings: Settings, *, is_changed: bool, dry_run: bool
) -> tuple[Reading | None, Reading | None, Reading | None]:
    """Return the input settings at the log's beginning, those in force, and the new ones. Write the
    new ones if they differ, unless it is a `dry_run`.

    If `is_changed`, the new ones are those of `settings`, otherwise those in force.
    """
    names = settings.topic_names
    log_id = Admin(settings).topic_ids([names.fingerprints])[names.fingerprints].topic_id
    begun = BegunPartitions(log_id, b"").fold_all(read_whole_log(settings, names.begun))
    new_reading = reading_of(settings) if is_changed else begun.reading
    if new_reading is not None and new_reading != begun.reading and not dry_run:
        append_begun(settings, names, encode_reading(log_id, new_reading, changes=True))
    return begun.first_reading, begun.reading, new_reading


def _window(current: Window | None, text: str | None, refresh: bool | None) -> Window | None:
    """Return the window `current` with the given changes; None for no window."""
    if text is None and refresh is None:
        return current
    length = current.length_ms if current is not None else None
    if text is not None:
        parsed = parse_window(text)
        length = None if parsed is None else round(parsed.total_seconds() * 1000)
    if length is None:
        return None
    return Window(length, (current is not None and current.refresh) if refresh is None else refresh)


def _plan_text(plan: Plan) -> str:
    return plan.name if plan.name == plan.id else f"{plan.name} ({plan.id})"


def _window_text(window: Window | None) -> str:
    if window is None:
        return "forever"
    return as_text(timedelta(milliseconds=window.length_ms)) + (
        ", since the last duplicate" if window.refresh else ""
    )
