"""`run`: run a role in this process, with logs, signals and exit codes, or all as child processes."""

from __future__ import annotations

import enum
import importlib
import logging
import os
import threading
from typing import Annotated, Final, Literal, cast

import typer

from stream_dedup.cli.options import CommandLine, StopWithParentOption, command
from stream_dedup.domain.compiling import StoppedError
from stream_dedup.domain.errors import (
    ConfigurationError,
    GoneError,
    NoAnswerError,
    StreamDedupError,
)
from stream_dedup.domain.extras import lacking
from stream_dedup.serving.process import stop_on_signals
from stream_dedup.settings.settings import Settings

Role = Literal["worker", "index", "insights", "search", "console"]
MODULES: Final[dict[Role, str]] = {
    "worker": "stream_dedup.worker.role",
    "index": "stream_dedup.indexer.role",
    "insights": "stream_dedup.insights.app",
    "search": "stream_dedup.search.role",
    "console": "stream_dedup.console.role",
}
AnyRole = enum.StrEnum("AnyRole", [(name.upper(), name) for name in (*MODULES, "all")])  # type: ignore[misc]


LogFormat = enum.StrEnum("LogFormat", ["AUTO", "CONSOLE", "JSON"])


@command("run", example="stream-dedup run worker --set value_format=json")
def run_command(
    command_line: CommandLine,
    role: Annotated[
        AnyRole,
        typer.Argument(
            metavar="ROLE",
            help="worker, index, insights, search, console, or all.",
            show_choices=False,
        ),
    ],
    insights: Annotated[
        bool,
        typer.Option(
            "--insights", help="With all: also run insights, on the second port after HTTP_PORT."
        ),
    ] = False,
    search: Annotated[
        bool | None,
        typer.Option(
            "--search/--no-search",
            help="With all: also run a search with the console, on the third port after "
            "HTTP_PORT.  [default: with its extra]",
            show_default=False,
        ),
    ] = None,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format",
            metavar="FORMAT",
            help="Format of log lines: console, json, or auto (console on a terminal, else JSON).",
        ),
    ] = LogFormat.AUTO,
    stop_with_parent: StopWithParentOption = False,
) -> int:
    """Run a role until SIGTERM or Ctrl-C; `all` runs index, worker and search, each a process.

    `all` ends with index or worker, and restarts the others.

    `worker` fingerprints documents, and writes each to `unique` or `duplicates`.

    `index` applies the log, and answers each record with verdicts.

    `insights` counts documents by host, and writes `host-signals`.

    `search` serves full-text search, groups of copies and the console; `console` only the console.
    """
    if role.value != "all":
        return run_role(
            cast("Role", role.value),
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


def run_role(
    role: Role,
    settings: Settings,
    *,
    log_format: LogFormat = LogFormat.AUTO,
    stop_with_parent: bool = False,
) -> int:
    """Run a role until a signal stops it; return its exit code. An error that ends it is one log line,
    with a traceback if it is a fault of the program.
    """
    import structlog

    from stream_dedup.serving import logs
    from stream_dedup.serving.process import allow_many_files

    logs.configure(settings.log_level, log_format, role=role)
    log = structlog.get_logger("stream_dedup.run")
    allow_many_files()
    os.umask(0o077)  # RocksDB, the full-text engine and Faust use the default permissions
    with stop_on_signals() as stop:
        if stop_with_parent:
            threading.Thread(
                target=_stop_at_end_of_input, args=(stop,), name="parent", daemon=True
            ).start()
        try:
            _run(role, settings, stop)
        except StreamDedupError as error:
            if stop.is_set() and isinstance(error, GoneError | NoAnswerError):
                log.warning("stopped while waiting", reason=str(error))
                return 0
            is_debug = logging.getLogger("stream_dedup").isEnabledFor(logging.DEBUG)
            log.critical(str(error), exit_code=error.exit_code, exc_info=is_debug)
            return error.exit_code
        except StoppedError:
            log.warning("stopped while compiling kernels")
        except Exception as error:
            log.critical(
                f"The {role} ends because of a fault of the program: {type(error).__name__}: "
                f"{error}",
                exc_info=True,
            )
            return 1
    return 0


def _run(role: Role, settings: Settings, stop: threading.Event) -> None:
    if problem := lacking(role):
        raise ConfigurationError(problem)
    importlib.import_module(MODULES[role]).run(settings, stop)


def _stop_at_end_of_input(stop: threading.Event) -> None:
    """Set `stop` when standard input ends, as it does when the supervising process ends or is killed."""
    # Not sys.stdin: a thread that blocks in its lock would keep the interpreter from ending.
    while os.read(0, 4096):
        pass
    stop.set()
