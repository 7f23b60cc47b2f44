"""Run one role in this process, with logs, signals and exit codes."""

from __future__ import annotations

import importlib
import logging
import os
import threading

import structlog

from stream_dedup.domain.compile_interrupts import StoppedError
from stream_dedup.domain.errors import (
    ConfigurationError,
    GoneError,
    NoAnswerError,
    StreamDedupError,
)
from stream_dedup.domain.extras import missing_packages
from stream_dedup.serving import logs
from stream_dedup.serving.process import allow_many_files, stop_on_signals
from stream_dedup.settings.settings import Settings


def run_alone(
    role: str,
    module: str,
    settings: Settings,
    *,
    log_format: str,
    stop_with_parent: bool = False,
) -> int:
    """Run the role of a module until a signal stops it; return its exit code.

    An error that ends it is one log line, with a traceback if it is an internal error.
    """
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
            _run(role, module, settings, stop)
        except StreamDedupError as error:
            if stop.is_set() and isinstance(error, GoneError | NoAnswerError):
                log.warning("stopped while waiting", reason=str(error))
                return 0
            is_debug = logging.getLogger("stream_dedup").isEnabledFor(logging.DEBUG)
            log.critical(str(error), exit_code=error.exit_code, exc_info=is_debug)
            return error.exit_code
        except StoppedError:
            log.warning("stopped during the compilation of kernels")
        except Exception as error:
            log.critical(
                f"The {role} exits because of an internal error: {type(error).__name__}: {error}",
                exc_info=True,
            )
            return 1
    return 0


def _run(role: str, module: str, settings: Settings, stop: threading.Event) -> None:
    if problem := missing_packages(role):
        raise ConfigurationError(problem)
    importlib.import_module(module).run(settings, stop)


def _stop_at_end_of_input(stop: threading.Event) -> None:
    """Set `stop` when standard input ends, as it does when the supervising process ends or is killed."""
    # Not sys.stdin: a thread that blocks in its lock would keep the interpreter from ending.
    while os.read(0, 4096):
        pass
    stop.set()
