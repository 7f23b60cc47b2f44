"""The page of all commands, made from their own help, so that it cannot say anything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stream_dedup.cli.options import Command

_HEAD = """\
# Commands

Made by `stream-dedup commands`; do not edit by hand.

`stream-dedup COMMAND --help` says the same. Many commands take `--config FILE`, `--set NAME=VALUE` for any of the
[settings](configuration.md), `-b HOST:PORT` for the brokers, and `--json` for programs; they stand in each command's table.
Exit codes: 0 done, 1 failure, 2 usage, 78 something must be changed before it can work, 130 interrupted.
"""


def commands_page(root: Any, panels: Mapping[str, Sequence[tuple[str, str, Sequence[Command]]]]) -> str:
    """Return the page of a program: each panel has groups of (name, purpose, commands); without a name they stand alone."""
    parts = [_HEAD]
    for panel, groups in panels.items():
        parts.append(f"\n## {panel}\n")
        for name, purpose, commands in groups:
            if name:
                parts.append(f"\n**`{name}`** {purpose}\n")
            for one in commands:
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
