"""`config check|show`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from stream_dedup.cli.options import Given, JsonOption, command
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.ground.terminal import note, print_json, print_table

if TYPE_CHECKING:
    from stream_dedup.settings.layers import CheckedSettings


@command("config check", example="stream-dedup config check --config stream-dedup.toml")
def config_check_command(given: Given, as_json: JsonOption = False) -> int:
    """Check all settings, the key and the Kafka properties, without connecting. All problems at once; 78 if any."""
    from stream_dedup.settings.layers import check_settings

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
    origin: Annotated[bool, typer.Option("--origin", help="Also say where each value came from.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Show every setting in force, secrets masked."""
    shown = list(given.settings().shown())
    if as_json:
        print_json(
            {
                one.name: {"value": one.value, "source": one.origin.source, "where": one.origin.where} if origin else one.value
                for one in shown
            }
        )
        return 0
    headings = ["setting", "value", "origin"] if origin else ["setting", "value"]
    print_table(headings, [[one.name, one.value, *([str(one.origin)] if origin else [])] for one in shown])
    return 0


@command("config reference", example="stream-dedup config reference")
def config_reference_command() -> int:
    """Print the reference page of all settings, as Markdown."""
    from stream_dedup.settings.page import reference_page

    sys.stdout.write(reference_page())
    return 0


def _problems_of_use(checked: CheckedSettings) -> list[str]:
    """Return what only shows when a value is used: no key, a bad line of a list, a property librdkafka does not know."""
    from stream_dedup.kafka.client import each_property, property_problems
    from stream_dedup.settings.recipe import recipe_of

    if checked.settings is None:
        return each_property(checked.kafka, checked.origins)
    problems: list[str] = []
    try:
        recipe_of(checked.settings)
    except ConfigurationError as error:
        problems.append(str(error))
    return problems + property_problems(checked.settings)
