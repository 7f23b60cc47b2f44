"""`config check|show`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.ground.terminal import note, print_json, print_table
from stream_dedup.settings.settings import Settings, check_settings


def check(overrides: Mapping[str, object], file: Path | None, *, as_json: bool) -> int:
    """Say everything that is wrong with the configuration, without connecting anywhere; return the exit code."""
    settings, problems = check_settings(overrides, file)
    if settings is not None:
        problems += _problems_of_use(settings)
    if as_json:
        print_json({"ok": not problems, "problems": problems})
    elif problems:
        for problem in problems:
            note(f"- {problem}")
    else:
        print("The configuration can be used.")
    return ConfigurationError.exit_code if problems else 0


def show(settings: Settings, *, origin: bool, as_json: bool) -> None:
    """Print every setting in force."""
    shown = list(settings.shown())
    if as_json:
        print_json(
            {
                one.name: {"value": one.value, "source": one.origin.source, "where": one.origin.where} if origin else one.value
                for one in shown
            }
        )
        return
    headings = ["setting", "value", "origin"] if origin else ["setting", "value"]
    print_table(headings, [[one.name, one.value, *([str(one.origin)] if origin else [])] for one in shown])


def _problems_of_use(settings: Settings) -> list[str]:
    """Return what only shows when a value is used: no key, a bad line of a list, a property librdkafka does not know."""
    from stream_dedup.kafka.client import property_problems  # noqa: PLC0415 - not for `config show`
    from stream_dedup.settings.recipe import recipe_of  # noqa: PLC0415 - not for `config show`

    problems: list[str] = []
    try:
        recipe_of(settings)
    except ConfigurationError as error:
        problems.append(str(error))
    return problems + property_problems(settings)
