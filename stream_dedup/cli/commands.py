"""`commands`: the page of all commands, made from their own help, so that it cannot say anything else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stream_dedup.cli.options import command

if TYPE_CHECKING:
    from stream_dedup.cli.options import Command

_HEAD = """\
# Commands

Made by `stream-dedup commands`; do not edit by hand.

`stream-dedup COMMAND --help` says the same. Many commands take `--config FILE`, `--set NAME=VALUE` for any of the
[settings](configuration.md), `-b HOST:PORT` for the brokers, and `--json` for programs; they stand in each command's table.
Exit codes: 0 done, 1 failure, 2 usage, 78 something must be changed before it can work, 130 interrupted.
"""


@command("commands", example="stream-dedup commands")
def commands_command() -> int:
    """Print the reference page of all commands, as Markdown."""
    sys.stdout.write(commands_page())
    return 0


def commands_page() -> str:
    """Return the page."""
    import typer

    from stream_dedup.cli.app import PANELS, Group, app

    root: Any = typer.main.get_command(app)
    parts = [_HEAD]
    for panel, members in PANELS.items():
        parts.append(f"\n## {panel}\n")
        for member in members:
            if isinstance(member, Group):
                parts.append(f"\n**`{member.name}`** {member.purpose}\n")
            for one in member.commands if isinstance(member, Group) else (member,):
                parts += _section(root, one)
    return "".join(parts)


def _section(root: Any, one: Command) -> Iterator[str]:
    found = root
    for word in one.name.split():
        found = found.commands[word]
    # As `--help` tells them: (name and value, help), None for a hidden option.
    context = found.context_class(found)
    told = [record for param in found.params if (record := param.get_help_record(context))]
    yield f"\n### `{one.name}`\n\n{found.help}\n\n```console\n$ {one.example}\n```\n"
    if told:
        yield "\n| argument or option | |\n|---|---|\n"
    for names, text in told:
        yield f"| `{_cell(names)}` | {_cell(text)} |\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
