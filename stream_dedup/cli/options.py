"""Declare commands, and the options that several commands share.

A command is a function: its parameters are the options, its docstring is the help, and the decorator
`command` adds an example. `app` imports its file when the command is called.
"""

from __future__ import annotations

import enum
import inspect
import logging
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from stream_dedup.cli.exit_codes import run_and_flush
from stream_dedup.cli.setting_options import SETTING_OPTIONS
from stream_dedup.domain.document import Stage
from stream_dedup.domain.printable import printable
from stream_dedup.serving import logs
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.settings import Settings


def local_folder(text: str) -> Path:
    """Return the folder on this machine that an option names as a path or as `file://`.

    Raises:
        BadParameter: `text` is empty, a URL of another kind, or names a file.
    """
    path = text.removeprefix("file://")
    if not path:
        raise typer.BadParameter("the path is empty; name a folder.")
    if "://" in path:
        raise typer.BadParameter(
            f"{printable(text)} is a URL; this option needs a folder on this machine."
        )
    if os.path.lexists(path) and not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir can raise
        raise typer.BadParameter(f"{printable(text)} exists and is not a folder.")
    return Path(path)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The values of `--config`, `--set`, `-b` and of the command's `flags`; None for an option that is
    not set.
    """

    config: Path | None = None
    assignments: Sequence[str] = ()
    brokers: str | None = None
    flags: Mapping[str, object] = field(default_factory=dict)

    def overrides(self, **flags: object) -> dict[str, object]:
        """Return the settings on the command line by name. Values of `flags` that are not None have
        precedence over `--set`.
        """
        values = {"bootstrap_servers": self.brokers, **self.flags, **flags}
        if (vector_field := values.pop("vector_field", None)) is not None:
            values |= {"text_field": vector_field, "recipe": values.get("recipe") or "vector"}
        by_option = {
            f"--{name.replace('_', '-')}": value
            for name, value in values.items()
            if value is not None
        }
        return {**parse_assignments(self.assignments), **by_option}

    def arguments(self) -> list[str]:
        """Return the options as arguments of a command line."""
        config = [] if self.config is None else ["--config", str(self.config)]
        brokers = [] if self.brokers is None else ["--bootstrap-servers", self.brokers]
        return [*config, *(part for text in self.assignments for part in ("--set", text)), *brokers]

    def settings(self, **flags: object) -> Settings:
        """Return the settings. Flags override the environment, which overrides the file."""
        return load_settings(self.overrides(**flags), self.config)

    def quiet_settings(self, **flags: object) -> Settings:
        """Return the settings, and configure logging for a command: only warnings and errors."""
        settings = self.settings(**flags)
        is_debug = settings.log_level == "debug"
        logs.configure("debug" if is_debug else "warning")
        # librdkafka warns of each call that it retries, but a command only needs the result.
        logging.getLogger(logs.KAFKA_LOGGER).setLevel(logging.DEBUG if is_debug else logging.ERROR)
        return settings


@dataclass(frozen=True, slots=True)
class Command:
    """The declaration of a command: its whole name, an example, and the function with its options
    and help.

    If the first parameter of `action` is `settings` or `command_line`, the command has the options
    `--config`, `--set` and, if it `asks_kafka`, `-b`; the parameter receives the resulting
    `Settings`, or the `CommandLine`. `flags`: the names of its options in `SETTING_OPTIONS`.
    """

    name: str
    example: str
    action: Callable[..., int]
    asks_kafka: bool = True
    flags: Sequence[str] = ()

    def to_click(self) -> Any:
        """Return the command for click. Its exit code is the return value of `action`."""
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        self.add_to(app)
        return typer.main.get_command(app)

    def add_to(self, app: typer.Typer) -> None:
        """Add the command to a typer app."""
        hints = typing.get_type_hints(self.action, include_extras=True)
        parameters = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(self.action).parameters.values()
        ]
        first = parameters[0].name if parameters else ""
        has_settings = first in ("settings", "command_line")
        if has_settings:
            shared = {name: SETTING_OPTIONS[name] for name in self.flags}
            shared |= {"config": ConfigOption, "assignments": SetOption}
            if self.asks_kafka:
                shared["brokers"] = BrokersOption
            end = len(parameters) - (parameters[-1].name == "as_json")
            parameters[end:end] = [
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind
                )
                for name, kind in shared.items()
            ]
            del parameters[0]

        def run(**options: Any) -> None:
            if has_settings:
                command_line = CommandLine(
                    options.pop("config"),
                    options.pop("assignments") or [],
                    options.pop("brokers", None),
                    {name: options.pop(name) for name in self.flags},
                )
                options[first] = (
                    command_line if first == "command_line" else command_line.quiet_settings()
                )
            raise typer.Exit(run_and_flush(partial(self.action, **options)))

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        )
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        # Each paragraph is one line, which is wrapped at the width of the terminal.
        paragraphs = (self.action.__doc__ or "").split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        app.command(self.name.split()[-1], help=text, epilog=f"Example: {self.example}")(run)


def command(
    name: str, *, example: str, asks_kafka: bool = True, flags: Sequence[str] = ()
) -> Callable[[Callable[..., int]], Command]:
    """Return a decorator that declares a function as a command."""
    return lambda action: Command(name, example, action, asks_kafka, flags)


# typer takes choices as an enum.
DocumentFormat = enum.StrEnum(
    "DocumentFormat", ["AUTO", "JSONL", "TEXT", "LINES", "WARC", "COLUMNS"]
)
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings file (TOML); default STREAM_DEDUP_CONFIG.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting, such as --set group=crawl; overrides environment and file. Repeatable.",
    ),
]
BrokersOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT",
        help="Bootstrap servers of the Kafka cluster.",
    ),
]
OwnBrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker",
        envvar="BROKER",
        metavar="HOST:PORT",
        help="Use this Kafka.  [default: a local one]",
    ),
]
FormatOption = Annotated[
    DocumentFormat,
    typer.Option(
        "--format", help="Format of the files; auto: by the name (standard input: jsonl)."
    ),
]
RowsOption = Annotated[
    int,
    typer.Option(
        "--rows",
        min=0,
        help="List at most N duplicates, and N kinds of problems in unreadable rows; 0 lists all.",
    ),
]
IndexOption = Annotated[
    Path | None,
    typer.Option(
        "--index",
        parser=local_folder,
        metavar="FOLDER",
        help="Store fingerprints there, and compare with earlier runs.",
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option("--strict", help="Exit with 1 if anything could not be read."),
]
ScopeOption = Annotated[
    str | None, typer.Option("--scope", help="Only documents with this value of SCOPE_FIELD.")
]
TitleOption = Annotated[
    str | None, typer.Option("--title", help="Title of the text.  [default: the file's]")
]
TextArgument = Annotated[
    str,
    typer.Argument(metavar="TEXT|FILE|-", help="Text, file, row (a.jsonl:9), or - for stdin."),
]
AsTextOption = Annotated[
    bool, typer.Option("--text", help="Use the argument as text even if a file has that name.")
]
SearchOption = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="URL",
        help="URL of a running search.  [default: on this machine]",
    ),
]
PageOption = Annotated[int, typer.Option("--page", min=1, max=10_000, help="Page of results.")]
WithSearchOption = Annotated[
    bool | None,
    typer.Option(
        "--search/--no-search",
        help="If ROLE is all: also run a search with the console, on HTTP_PORT + 3.  "
        "[default: if its extra is installed]",
        show_default=False,
    ),
]
LogFormat = enum.StrEnum("LogFormat", ["AUTO", "CONSOLE", "JSON"])
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        metavar="FORMAT",
        help="Format of log lines: console, json, or auto (console on a terminal, else JSON).",
    ),
]
IndexUrlOption = Annotated[
    str | None,
    typer.Option(
        "--index", metavar="URL", help="URL of a running index.  [default: on this machine]"
    ),
]
OpenVolumeOption = Annotated[
    Path | None,
    typer.Option(
        "--volume",
        metavar="DIR",
        help="Read an index's volume, even of a running index, or the folder of `check --index`.",
    ),
]
SiteOption = Annotated[
    str | None,
    typer.Option("--site", help="Web site of the text: a host or a URL.  [default: the file's]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
FitOption = Annotated[
    bool,
    typer.Option(
        "--fit-brokers",
        help="Lower replicas and min.insync.replicas to the number of brokers, for a test broker.",
    ),
]
PartitionsOption = Annotated[
    int | None,
    typer.Option("--partitions", min=1, max=10_000, help="Number of partitions of new topics."),
]
TopicFilesOption = Annotated[
    Path | None,
    typer.Option("--from", metavar="FOLDER", help="Folder with your topic files."),
]
StopWithParentOption = Annotated[bool, typer.Option("--stop-with-parent", hidden=True)]


def _known_stages(stages: list[str] | None) -> list[str] | None:
    known = typing.get_args(Stage)
    unknown = next((stage for stage in stages or () if stage not in known), None)
    if unknown is not None:
        raise typer.BadParameter(f"{unknown!r} is not one of {', '.join(map(repr, known))}.")
    return stages


StagesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stage",
        help=f"Only dead letters of this stage: {', '.join(typing.get_args(Stage))}.",
        callback=_known_stages,
    ),
]
ClassesOption = Annotated[
    list[str] | None, typer.Option("--class", help="Only dead letters of this class.")
]
ContainsOption = Annotated[
    str,
    typer.Option(
        "--contains", metavar="TEXT", help="Only dead letters whose reason contains this text."
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the changes without making them.")
]
WorkOption = Annotated[
    Path | None,
    typer.Option("--work", metavar="FOLDER", help="Folder for temporary files.  [default: TMPDIR]"),
]
VolumeArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR",
        help="Directory of the index.  [default: index in STATE_DIR]",
        show_default=False,
    ),
]
VolumeOption = Annotated[
    Path | None,
    typer.Option(
        "--volume", metavar="DIR", help="Directory of the index.  [default: index in STATE_DIR]"
    ),
]


def parse_assignments(assignments: Sequence[str]) -> dict[str, object]:
    """Return the values of `--set NAME=VALUE` options by setting. Names may also be written as in the
    environment, or with hyphens.
    """
    values: dict[str, object] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(
                f"write NAME=VALUE, not {printable(text)!r}", param_hint="--set"
            )
        name = name.strip()
        if not name.startswith("kafka."):
            name = name.removeprefix("STREAM_DEDUP_").lower().replace("-", "_")
        values[name] = value
    return values
