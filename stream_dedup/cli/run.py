"""`run worker`, `run index` and their like: one role in this process, with logs, signals and exit
codes.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import Annotated, Final, Literal

import typer

from stream_dedup.cli.options import FirstStartOption, Given, StopWithParentOption, command
from stream_dedup.ground.compiling import StoppedError
from stream_dedup.ground.errors import (
    ConfigurationError,
    GoneError,
    NoAnswerError,
    StreamDedupError,
)
from stream_dedup.ground.extras import lacking
from stream_dedup.service.process import stop_on_signals
from stream_dedup.settings.settings import Settings

Role = Literal["worker", "index", "insights", "search", "console"]
MODULES: Final[dict[Role, str]] = {
    "worker": "stream_dedup.worker.role",
    "index": "stream_dedup.indexer.role",
    "insights": "stream_dedup.insights.app",
    "search": "stream_dedup.search.role",
    "console": "stream_dedup.console.role",
}


@command(
    "run worker",
    example="stream-dedup run worker --set value_format=json --set text_field=page.body",
)
def run_worker_command(
    given: Given,
    first_start: FirstStartOption = None,
    stop_with_parent: StopWithParentOption = False,
) -> int:
    """Fingerprint documents, and write each to `unique` or `duplicates` in a transaction."""
    return run_role(
        "worker", given.settings(first_start=first_start), stop_with_parent=stop_with_parent
    )


@command("run index", example="stream-dedup run index --set index_dir=/data/index")
def run_index_command(given: Given, stop_with_parent: StopWithParentOption = False) -> int:
    """Apply the log to an index, and answer each record with verdicts."""
    return run_role("index", given.settings(), stop_with_parent=stop_with_parent)


@command("run insights", example="stream-dedup run insights --set insights_window=7d")
def run_insights_command(given: Given, stop_with_parent: StopWithParentOption = False) -> int:
    """Count documents by host, and write `host-signals`."""
    return run_role("insights", given.settings(), stop_with_parent=stop_with_parent)


@command("run search", example="stream-dedup run search --set search_dir=/data/search")
def run_search_command(given: Given, stop_with_parent: StopWithParentOption = False) -> int:
    """Serve full-text search, groups of copies, and the console."""
    return run_role("search", given.settings(), stop_with_parent=stop_with_parent)


@command(
    "run console",
    example="stream-dedup run console --set console_index=http://127.0.0.1:8081 --set "
    "http_port=8090",
)
def run_console_command(given: Given, stop_with_parent: StopWithParentOption = False) -> int:
    """Serve the console without full-text search."""
    return run_role("console", given.settings(), stop_with_parent=stop_with_parent)


@command("run all", example="stream-dedup run all --bootstrap-servers localhost:9092")
def run_all_command(
    given: Given,
    first_start: FirstStartOption = None,
    insights: Annotated[
        bool,
        typer.Option("--insights", help="Also run insights, on the second port after HTTP_PORT."),
    ] = False,
    search: Annotated[
        bool | None,
        typer.Option(
            "--search/--no-search",
            help="Also run a search with the console, on the third port after HTTP_PORT.  "
            "[default: with its extra]",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Run an index, a worker and a search with the console, each a process, on a laptop.

    The worker uses HTTP_PORT, the index the next port.
    """
    from stream_dedup.cli.supervise import supervise

    worker_only = ["--first-start"] if first_start else []
    settings = given.settings(first_start=first_start)
    return supervise(
        settings, given.arguments(), worker_only, with_insights=insights, with_search=search
    )


def run_role(role: Role, settings: Settings, *, stop_with_parent: bool = False) -> int:
    """Run a role until it is told to stop; return its exit code. What ends it is one log line,
    traceback if unexpected.
    """
    import structlog

    from stream_dedup.service import logs
    from stream_dedup.service.process import allow_many_files

    logs.configure(settings.log_level, settings.log_format, role=role)
    log = structlog.get_logger("stream_dedup.run")
    allow_many_files()
    os.umask(0o077)  # RocksDB, the full-text engine and Faust make files with the rights it leaves
    with stop_on_signals() as stop:
        if stop_with_parent:
            threading.Thread(
                target=_stop_at_end_of_input, args=(stop,), name="parent", daemon=True
            ).start()
        try:
            _run(role, settings, stop)
        except StreamDedupError as error:
            if stop.is_set() and isinstance(error, GoneError | NoAnswerError):
                log.warning("stopped while it waited", reason=str(error))
                return 0
            is_debug = logging.getLogger("stream_dedup").isEnabledFor(logging.DEBUG)
            log.critical(str(error), exit_code=error.exit_code, exc_info=is_debug)
            return error.exit_code
        except StoppedError:
            log.warning("stopped while it compiled kernels")
        except Exception as error:
            log.critical(
                f"The {role} ends because of a fault of the program: {type(error).__name__}: "
                f"{error}",
                exc_info=True,
            )
            return 1
    return 0


def _run(role: Role, settings: Settings, stop: threading.Event) -> None:
    if lack := lacking(role):
        raise ConfigurationError(lack)
    importlib.import_module(MODULES[role]).run(settings, stop)


def _stop_at_end_of_input(stop: threading.Event) -> None:
    """Wait until standard input ends, which it does when the supervising process dies, however it
    dies.
    """
    # Not sys.stdin: a thread blocked in its lock would keep the interpreter from ending.
    while os.read(0, 4096):
        pass
    stop.set()
