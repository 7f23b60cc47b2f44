"""`config check|show`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stream_dedup.cli.options import Given, JsonOption, command
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.terminal import console, note, print_json, print_table
from stream_dedup.domain.topics import ALL
from stream_dedup.kafka.client import each_property, property_problems
from stream_dedup.settings.layers import CheckedSettings, check_settings
from stream_dedup.settings.page import reference_page
from stream_dedup.settings.recipe import recipe_of


@command("config check", example="stream-dedup config check --config stream-dedup.toml")
def config_check_command(given: Given, as_json: JsonOption = False) -> int:
    """Check all settings, the key and the Kafka properties, without connecting. Exits with 78 on
    any problem.
    """
    checked = check_settings(given.overrides(), given.config)
    problems = checked.problems + _problems_of_use(checked)
    if as_json:
        print_json({"ok": not problems, "problems": problems})
    elif problems:
        for problem in problems:
            note(f"- {problem}")
    else:
        print("The configuration can be used.")
    return ConfigurationError.exit_code if problems else 0


@command("config show", example="stream-dedup config show --origin")
def config_show_command(
    given: Given,
    origin: Annotated[
        bool, typer.Option("--origin", help="Also print the source of each value.")
    ] = False,
    reference: Annotated[
        bool,
        typer.Option("--reference", help="Print the reference of all settings as Markdown."),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Print all settings, with masked secrets, and the resulting plan, thresholds and topics."""
    if reference:
        sys.stdout.write(reference_page())
        return 0
    settings = given.settings()
    shown = list(settings.shown())
    plan = settings.judging_plan
    similarity = plan.similarity / 100 or None
    topics = {kind: settings.topic_names.named(kind) for kind in ALL}
    if as_json:
        found: dict[str, object] = {
            setting.name: {
                "value": setting.value,
                "source": setting.origin.source,
                "where": setting.origin.where,
            }
            if origin
            else setting.value
            for setting in shown
        }
        print_json(
            found | {"in_force": {"plan": plan.id, "similarity": similarity, "topics": topics}}
        )
        return 0
    headings = ["setting", "value", "origin"] if origin else ["setting", "value"]
    print_table(
        headings,
        [
            [setting.name, setting.value, *([str(setting.origin)] if origin else [])]
            for setting in shown
        ],
    )
    console().print()
    alike = "" if similarity is None else f"{similarity:.2f}"
    rows = [
        ["plan", plan.id],
        ["similarity", alike],
        *([f"topic {kind}", name] for kind, name in topics.items()),
    ]
    print_table(["in force", "value"], rows)
    return 0


def _problems_of_use(checked: CheckedSettings) -> list[str]:
    """Return what only shows when a value is used: no key, a bad line of a list, a property
    librdkafka does not know.
    """
    if checked.settings is None:
        return each_property(checked.kafka, checked.origins)
    problems: list[str] = []
    try:
        recipe_of(checked.settings)
    except ConfigurationError as error:
        problems.append(str(error))
    return problems + property_problems(checked.settings)
