"""The page of all commands, made from their own help, so that it cannot say anything else.

python -m tests.cli.commands_page > docs/reference/commands.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from stream_dedup.cli.app import GROUPS, PANELS, command_named
from stream_dedup.cli.options import Command

_HEAD = """\
# Commands

Made by `python -m tests.cli.commands_page`; do not edit by hand.

`stream-dedup COMMAND --help` says the same. Exit codes: 0 done, 1 failure, 2 usage, 78 something must be changed before it
can work, 130 interrupted. What several commands take is told here, for all that name it; `--config` and `--set` are taken by
all but {settings}, `--json` by all but {figures}:

"""
# By the first name of each: what many commands take, and what it is for.
_COMMON = {
    "--config": "A settings file (TOML or YAML); else `STREAM_DEDUP_CONFIG`.",
    "--set": "`NAME=VALUE`: any of the [settings](configuration.md), above environment and file; can be given several times.",
    "-b": "or `--bootstrap-servers HOST:PORT`: the first brokers to ask.",
    "--json": "Print JSON instead of a table.",
}


_MANY = 2


def commands_page() -> str:
    """Return it as Markdown."""
    records = {name: _records(command_named(name)) for names in PANELS.values() for name in names}
    counts = Counter(
        record for told in records.values() for record in told if _common(record) is None
    )
    many = {record: _name(record) for record, count in counts.items() if count >= _MANY}
    settings, figures = (
        ", ".join(f"`{name}`" for name, told in records.items() if option not in map(_name, told))
        for option in ("--set", "--json")
    )
    head = _HEAD.format(settings=settings, figures=figures)
    parts = [
        head,
        *(f"- `{name}`: {purpose}\n" for name, purpose in _COMMON.items()),
        *map(_item, many),
    ]
    for panel, names in PANELS.items():
        parts.append(f"\n## {panel}\n")
        for first, members in groupby(names, lambda name: name.split()[0]):
            if first in GROUPS:
                parts.append(f"\n**`{first}`** {GROUPS[first]}\n")
            for name in members:
                parts += _section(command_named(name), records[name], many)
    return "".join(parts)


def _records(one: Command) -> list[tuple[str, str]]:
    """Return its arguments and options as `--help` tells them, (name and value, help), without
    hidden ones."""
    found = one.loaded()
    context = found.context_class(found)
    return [record for param in found.params if (record := param.get_help_record(context))]


def _section(
    one: Command, told: Sequence[tuple[str, str]], many: Mapping[tuple[str, str], str]
) -> Iterator[str]:
    yield f"\n### `{one.name}`\n\n{one.loaded().help}\n\n```console\n$ {one.example}\n```\n\n"
    others = {record: name for record in told if (name := _common(record) or many.get(record))}
    yield from (_item(record) for record in told if record not in others)
    named = [f"`{name}`" for name in others.values() if name not in {"--config", "--set", "--json"}]
    if named:
        yield f"- also {', '.join(named)}\n"


def _item(record: tuple[str, str]) -> str:
    names, text = (" ".join(part.split()).replace(" range>", ">") for part in record)
    return f"- `{names}`: {text}\n"


def _name(record: tuple[str, str]) -> str:
    return record[0].split()[0].rstrip(",")


def _common(record: tuple[str, str]) -> str | None:
    """Return by which name of `_COMMON` an option is told for all commands, if it does there what
    it does everywhere."""
    name, text = _name(record), record[1]
    starts = {
        "--config": "Settings file",
        "--set": "Any setting",
        "-b": "First brokers",
        "--json": "Print JSON instead",
    }
    return name if name in _COMMON and text.startswith(starts[name]) else None


if __name__ == "__main__":
    print(commands_page(), end="")
