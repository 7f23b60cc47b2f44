"""`config check` and `config show`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stream_dedup.cli.options import CommandLine, JsonOption, command
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.terminal import console, note, print_json, print_table
from stream_dedup.domain.topics import ALL
from stream_dedup.preflight.clients import unusable_values
from stream_dedup.settings.layers import check_settings
from stream_dedup.settings.page import reference_page


@command("config check", example="stream-dedup config check --config stream-dedup.toml")
def config_check_command(command_line: CommandLine, as_json: JsonOption = False) -> int:
    """Check all settings, the key and the Kafka properties, without connecting. Exits with 78 on
    any problem.
    """
    checked = check_settings(command_line.overrides(), command_line.config)
    problems = checked.problems + unusable_values(checked)
    if as_json:
        print_json({"ok": not problems, "problems": problems})
    elif problems:
        for problem in problems:
            note(f"- {problem}")
    else:
        print("The configuration is valid.")
    return ConfigurationError.exit_code if problems else 0


@command("config show", example="stream-dedup config show --origin")
def config_show_command(
    command_line: CommandLine,
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
    settings = command_line.settings()
    plan = settings.judging_plan
    similarity = plan.similarity / 100 or None
    topics = {kind: settings.topic_names.named(kind) for kind in ALL}
    if as_json:
        values: dict[str, object] = {
            setting.name: setting.to_fields() if origin else setting.value
            for setting in settings.shown()
        }
        in_force = {"plan": plan.id, "similarity": similarity, "topics": topics}
        print_json(values | {"in_force": in_force})
        return 0
    columns = 3 if origin else 2
    rows = [[setting.name, setting.value, str(setting.origin)] for setting in settings.shown()]
    print_table(["setting", "value", "origin"][:columns], [row[:columns] for row in rows])
    console().print()
    in_force_rows = [
        ["plan", plan.id],
        ["similarity", "" if similarity is None else f"{similarity:.2f}"],
        *([f"topic {kind}", name] for kind, name in topics.items()),
    ]
    print_table(["in force", "value"], in_force_rows)
    return 0
