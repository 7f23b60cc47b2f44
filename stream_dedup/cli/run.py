"""`run worker`, `run index`, `run insights`: one role in this process, with logs, signals and exit codes."""

from __future__ import annotations

import logging
import os
import threading
from typing import Literal

import structlog

from stream_dedup.ground.errors import ConfigurationError, StreamDedupError
from stream_dedup.service import logs
from stream_dedup.service.files import allow_many_files
from stream_dedup.service.signals import stop_on_signals
from stream_dedup.settings.settings import Settings

Role = Literal["worker", "index", "insights"]

_log = structlog.get_logger("stream_dedup.run")


def run_role(role: Role, settings: Settings, *, stop_with_parent: bool = False) -> int:
    """Run a role until it is told to stop; return its exit code. What ends it is one log line, traceback if unexpected."""
    logs.configure(settings.log_level, settings.log_format, role=role)
    allow_many_files()
    with stop_on_signals() as stop:
        if stop_with_parent:
            threading.Thread(target=_stop_at_end_of_input, args=(stop,), name="parent", daemon=True).start()
        try:
            _run(role, settings, stop)
        except StreamDedupError as error:
            is_debug = logging.getLogger("stream_dedup").isEnabledFor(logging.DEBUG)
            _log.critical(str(error), exit_code=error.exit_code, exc_info=is_debug)
            return error.exit_code
        except Exception as error:  # noqa: BLE001 - the last resort of a program; a log line is all that remains of it
            _log.critical(f"The {role} ends because of a fault of the program: {type(error).__name__}: {error}", exc_info=True)
            return 1
    return 0


def _run(role: Role, settings: Settings, stop: threading.Event) -> None:
    if role == "worker":
        from stream_dedup.worker.role import run as run_worker  # noqa: PLC0415 - a role loads only its own rooms

        run_worker(settings, stop)
    elif role == "insights":
        try:
            from stream_dedup.insights.role import run as run_insights  # noqa: PLC0415 - a role loads only its own rooms
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "faust":
                raise
            raise ConfigurationError(
                "The role insights needs Faust, which is not installed; install it with: pip install 'stream-dedup[insights]'"
            ) from error
        run_insights(settings, stop)
    else:
        from stream_dedup.indexer.role import run as run_index  # noqa: PLC0415 - a role loads only its own rooms

        run_index(settings, stop)


def _stop_at_end_of_input(stop: threading.Event) -> None:
    """Wait until standard input ends, which it does when the supervising process dies, however it dies."""
    # Not sys.stdin: a thread blocked in its lock would keep the interpreter from ending.
    while os.read(0, 4096):
        pass
    stop.set()
