"""Define the program: its commands, in the order of `--help`.

The command `dlq show` is the function `dlq_show_command` in `dlq_show.py`; without such a file it
would be in `dlq.py`, like `config show` in `config.py`. A file is imported only when its command is
called. For the overview and completion, the help is parsed from the file, which is faster.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup

from stream_dedup.cli.exit_codes import exit_code_of
from stream_dedup.domain.version import __version__

if TYPE_CHECKING:
    from stream_dedup.cli.options import Command

PANELS: Final = {
    "Run the filter": ("run", "demo", "broker", "load"),
    "Watch, search and compare": (
        *("tap", "explain", "find", "group", "similar"),
        *("check", "prints", "judge"),
    ),
    "Change the filter": (
        "declare",
        "seed",
        "forget",
        "release",
        "rewind",
        "dlq show",
        "dlq redrive",
    ),
    "Set it up": (
        *("topics plan", "topics apply", "config check", "config show"),
        *("doctor", "calibrate", "compile"),
    ),
    "Audit and verify": (
        "audit",
        "replay",
        "index checkpoint",
        "index restore",
        "index verify",
    ),
}
GROUPS: Final = {
    "dlq": "List dead letters, and send them back.",
    "topics": "Create and correct topics.",
    "config": "Check and show settings.",
    "index": "Copy and verify an index's volume.",
}


class _Unloaded(TyperCommand):
    """A command in the overview, whose file is not imported."""

    def __init__(self, whole_name: str, panel: str | None) -> None:
        super().__init__(whole_name.rsplit(maxsplit=1)[-1], rich_help_panel=panel)
        self.whole_name = whole_name

    def read_help(self) -> None:
        """Read the first paragraph of the command's help without importing its file."""
        file, function = _location(self.whole_name)
        for node in ast.parse((Path(__file__).parent / f"{file}.py").read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and node.name == function:
                self.help = (ast.get_docstring(node) or "").split("\n\n")[0]


class _LazyGroup(TyperGroup):
    """A group whose commands are imported when they are called."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, for the overview."""
        found = super().get_command(ctx, cmd_name)
        if isinstance(found, _Unloaded):
            found.read_help()
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the imported command and the remaining arguments of a call."""
        name, found, remaining = super().resolve_command(ctx, args)
        if isinstance(found, _Unloaded):
            found = command_named(found.whole_name).to_click()
        return name, found, remaining

    def invoke(self, ctx: Any) -> Any:
        """Run the command; leave out the name of a Python error in front of a message of typer."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


def _location(whole_name: str) -> tuple[str, str]:
    """Return the name of a command's file and of its function."""
    name, first = whole_name.replace(" ", "_"), whole_name.split(maxsplit=1)[0]
    has_separate_file = (Path(__file__).parent / f"{name}.py").is_file()
    return name if has_separate_file else first, f"{name}_command"


def command_named(whole_name: str) -> Command:
    """Import the file of a command, and return the command."""
    file, function = _location(whole_name)
    found: Command = getattr(importlib.import_module(f"stream_dedup.cli.{file}"), function)
    return found


app = typer.Typer(
    name="stream-dedup",
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Near-duplicate filter for crawled documents on Apache Kafka: exactly once, over all "
    "partitions, with the reason on every record.",
    epilog="Try it without any set-up: stream-dedup demo. Your own documents without Kafka: "
    "stream-dedup check pages.jsonl. Check this installation: stream-dedup doctor. The --help of "
    "each command ends with an example.",
)


def versions() -> dict[str, str]:
    """Return the versions that a bug report needs, by name."""
    from stream_dedup.log.records import FORMATS

    formats = ", ".join(map(str, sorted(FORMATS)))
    libraries = {
        name: importlib.metadata.version(name)
        for name in ("confluent-kafka", "rocksdict", "numba", "jieba")
    }
    return {
        "stream-dedup": __version__,
        "log-formats": formats,
        "python": platform.python_version(),
    } | libraries


def _print_versions(*, is_requested: bool) -> None:
    if is_requested:
        print("\n".join(f"{name} {version}" for name, version in versions().items()))
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda value: _print_versions(is_requested=value),
            is_eager=True,
            help="Print the versions of program and libraries, and the formats of the log.",
        ),
    ] = False,
) -> None: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `exit_codes` converts errors to exit codes."""
    args = None if arguments is None else list(arguments)
    return exit_code_of(lambda: program()(args=args, prog_name="stream-dedup"))


@cache
def program() -> TyperGroup:
    """Return the program with all commands."""
    root = cast("TyperGroup", typer.main.get_command(app))
    for panel, names in PANELS.items():
        for name in names:
            first = name.split()[0]
            if first not in GROUPS:
                root.add_command(_Unloaded(name, panel))
                continue
            if first not in root.commands:
                purpose = GROUPS[first]
                root.add_command(
                    _LazyGroup(
                        name=first, help=purpose, rich_help_panel=panel, no_args_is_help=True
                    )
                )
            cast("TyperGroup", root.commands[first]).add_command(_Unloaded(name, None))
    return root
