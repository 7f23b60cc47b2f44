"""`run`: run one role in this process, or all roles as child processes."""

from __future__ import annotations

import enum
from typing import Annotated, Final, Literal, cast

import typer

from stream_dedup.cli.options import (
    CommandLine,
    LogFormat,
    LogFormatOption,
    StopWithParentOption,
    WithSearchOption,
    command,
)

Role = Literal["worker", "index", "insights", "search", "console"]
MODULES: Final[dict[Role, str]] = {
    "worker": "stream_dedup.worker.role",
    "index": "stream_dedup.indexer.role",
    "insights": "stream_dedup.insights.app",
    "search": "stream_dedup.search.role",
    "console": "stream_dedup.console.role",
}
AnyRole = enum.StrEnum("AnyRole", [(name.upper(), name) for name in (*MODULES, "all")])  # type: ignore[misc]


@command("run", example="stream-dedup run worker --set value_format=json")
def run_command(
    command_line: CommandLine,
    role: Annotated[
        AnyRole,
        typer.Argument(metavar="ROLE", help=f"{', '.join(MODULES)}, or all.", show_choices=False),
    ],
    insights: Annotated[
        bool,
        typer.Option(
            "--insights",
            help="If ROLE is all: also run insights, on HTTP_PORT + 2.",
        ),
    ] = False,
    search: WithSearchOption = None,
    log_format: LogFormatOption = LogFormat.AUTO,
    stop_with_parent: StopWithParentOption = False,
) -> int:
    """Run a role until SIGTERM or Ctrl-C; `all` runs index, worker and search as processes.

    `all` exits when index or worker exits, and restarts the other roles.

    `worker` fingerprints documents, and writes each to `unique` or `duplicates`.

    `index` applies the log, and answers each record with verdicts.

    `insights` counts documents by host, and writes `host-signals`.

    `search` serves full-text search, groups of copies and the console; `console` only the console.
    """
    if role.value != "all":
        from stream_dedup.serving.single_role import run_alone

        return run_alone(
            role.value,
            MODULES[cast("Role", role.value)],
            command_line.settings(),
            log_format=log_format,
            stop_with_parent=stop_with_parent,
        )
    from stream_dedup.serving.supervise import supervise

    return supervise(
        command_line.settings(),
        command_line.arguments(),
        log_format=log_format,
        with_insights=insights,
        with_search=search,
    )
