"""The page of all commands, made from their own help, so that it cannot say anything else.

python -m tests.cli.commands_page > docs/reference/commands.md
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from stream_dedup.cli.app import GROUPS, PANELS, command_named
from stream_dedup.cli.options import Command

_HEAD = """\
# Commands

Made by `python -m tests.cli.commands_page`; do not edit by hand.

`stream-dedup COMMAND --help` says the same. Exit codes: 0 done, 1 failure, 2 usage, 78 something must be changed before it
can work, 130 interrupted. Four options are told here for all commands that name them:

| option | |
|---|---|
"""
# By the first name of each: what many commands take, and what it is for.
_COMMON = {
    "--config": "A settings file (TOML or YAML); else `STREAM_DEDUP_CONFIG`.",
    "--set": "`NAME=VALUE`: any of the [settings](configuration.md), above environment and file; can be given several times.",
    "-b": "or `--bootstrap-servers HOST:PORT`: the first brokers to ask.",
    "--json": "Print JSON instead of a table.",
}


def commands_page() -> str:
    """Return it as Markdown."""
    parts = [_HEAD, *(f"| `{name}` | {purpose} |\n" for name, purpose in _COMMON.items())]
    for panel, names in PANELS.items():
        parts.append(f"\n## {panel}\n")
        for first, members in groupby(names, lambda name: name.split()[0]):
            if first in GROUPS:
                parts.append(f"\n**`{first}`** {GROUPS[first]}\n")
            for name in members:
                parts += _section(command_named(name))
    return "".join(parts)


def _section(one: Command) -> Iterator[str]:
    found = one.loaded()
    # As `--help` tells them: (name and value, help), None for a hidden option.
    context = found.context_class(found)
    told = [record for param in found.params if (record := param.get_help_record(context))]
    yield f"\n### `{one.name}`\n\n{found.help}\n\n```console\n$ {one.example}\n```\n"
    own = [record for record in told if _common(record) is None]
    if own:
        yield "\n| argument or option | |\n|---|---|\n"
    for names, text in own:
        yield f"| `{_cell(names)}` | {_cell(text)} |\n"
    if len(own) < len(told):
        yield f"\nAlso {', '.join(f'`{name}`' for record in told if (name := _common(record)))}.\n"


def _common(record: tuple[str, str]) -> str | None:
    """Return by which name of `_COMMON` an option is told for all commands, if it does there what it does everywhere."""
    names, text = record
    name = names.split()[0].rstrip(",")
    starts = {"--config": "Settings file", "--set": "Any setting", "-b": "First brokers", "--json": "Print JSON instead"}
    return name if name in _COMMON and text.startswith(starts[name]) else None


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(commands_page(), end="")
