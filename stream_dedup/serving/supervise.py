"""`run all`: run an index, a worker, a search if its extra is installed and, on request, insights as
child processes.

Invariants: if the index or the worker ends without a signal, all children are stopped, and its exit
code is that of `run all`; each child gets one SIGTERM for any signal to this process; all children
also stop when this process is killed, because only it keeps their standard inputs open.
Insights and search are restarted when they end: no document waits for them.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import structlog

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.extras import missing_packages
from stream_dedup.serving import logs
from stream_dedup.serving.ports import PORT_OFFSETS, AddressedRole, address_of
from stream_dedup.serving.process import how_ended, stop_on_signals
from stream_dedup.settings.settings import Settings

_logger = structlog.get_logger("stream_dedup.run")

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 60.0
_RESTART_SECONDS = 10.0
_COLOURS = {"index": "\033[36m", "worker": "\033[35m", "insights": "\033[33m", "search": "\033[32m"}
# The roles that no document waits for.
_OPTIONAL_ROLES = frozenset({"insights", "search"})


@dataclass(slots=True)
class _Child:
    role: str
    process: subprocess.Popen[bytes]
    reader: threading.Thread
    arguments: Sequence[str]
    restart_at: float | None = None


def supervise(
    settings: Settings,
    common_options: Sequence[str],
    *,
    log_format: str = "auto",
    with_insights: bool = False,
    with_search: bool | None = None,
) -> int:
    """Run the roles with `common_options` until a signal arrives or one ends; return the exit code.

    `with_search` None: run a search if its extra is installed; otherwise print once how to install
    it.

    Raises:
        ConfigurationError: `with_search` is True, and the extra is not installed.
    """
    is_console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    logs.configure(settings.log_level, log_format, role="all")
    problem = "" if with_search is False else missing_packages("search")
    if problem and with_search:
        raise ConfigurationError(problem)
    if problem:
        _logger.warning(f"The console and `find` are not available. {problem}")
    with_search = with_search is not False and not problem
    options = options_of(
        settings, common_options, with_insights=with_insights, with_search=with_search
    )
    with stop_on_signals() as stop:
        children: list[_Child] = []
        try:
            for role, arguments in options.items():
                children.append(_start(role, arguments, is_console=is_console))
            ended = _wait(children, stop, is_console=is_console)
            if ended is not None:
                ended.reader.join(1.0)
                _logger.warning(
                    f"The {ended.role} ended unexpectedly ({how_ended(ended.process.returncode)}), so all roles are "
                    "stopped. After an error, its last log lines above report it."
                )
        finally:
            _stop_all(children)
    for child in children:
        child.reader.join(5.0)
    if ended is not None:
        return _exit_code(ended) or 1
    exit_codes = [_exit_code(child) for child in children if child.role not in _OPTIONAL_ROLES]
    return next(filter(None, exit_codes), 0)


def options_of(
    settings: Settings,
    common_options: Sequence[str],
    *,
    with_insights: bool,
    with_search: bool,
) -> dict[AddressedRole, list[str]]:
    """Return the command-line options of each role that runs, in the order in which they start.

    Raises:
        ConfigurationError: there is no port for each role after HTTP_PORT.
    """
    roles: list[AddressedRole] = ["index", "worker"]
    roles += ["insights"] if with_insights else []
    roles += ["search"] if with_search else []
    ports = {
        role: settings.http_port + PORT_OFFSETS[role] if settings.http_port else 0 for role in roles
    }
    if (last_port := max(ports.values())) > 65_535:
        raise ConfigurationError(
            f"The roles use HTTP_PORT and the ports after it, so STREAM_DEDUP_HTTP_PORT={settings.http_port} "
            f"needs port {last_port:,}; the highest is 65535."
        )
    options = {
        role: [*common_options, "--set", f"http_port={port}"] for role, port in ports.items()
    }
    if with_search and settings.console_index is None and ports["index"]:
        options["search"] += ["--set", f"console_index={address_of(settings, 'index')}"]
    return options


def _start(role: str, arguments: Sequence[str], *, is_console: bool) -> _Child:
    command = [sys.executable, "-m", "stream_dedup", "run", role, "--stop-with-parent", *arguments]
    command += ["--log-format", "console" if is_console else "json"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A terminal sends Ctrl-C to its whole session; the children must get one signal only.
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101 - for the type checker
    # JSON lines contain the role and must stay valid JSON.
    prefix = _prefix(role) if is_console else b""
    reader = threading.Thread(
        target=_copy_lines, args=(process.stdout, prefix), name=f"{role}-output", daemon=True
    )
    reader.start()
    return _Child(role, process, reader, arguments)


def _prefix(role: str) -> bytes:
    text = f"{role:<8} | "
    return (f"{_COLOURS[role]}{text}\033[0m" if sys.stderr.isatty() else text).encode()


def _copy_lines(stream: IO[bytes], prefix: bytes) -> None:
    for line in stream:
        sys.stderr.buffer.write(prefix + line)
        sys.stderr.buffer.flush()


def _wait(children: list[_Child], stop: threading.Event, *, is_console: bool) -> _Child | None:
    """Restart optional roles that end; return the first other child that ends, or None once `stop`
    is set.
    """
    while not stop.wait(_POLL_SECONDS):
        for index, child in enumerate(children):
            if child.process.poll() is None:
                continue
            if child.role not in _OPTIONAL_ROLES:
                return child
            if child.restart_at is None:
                # After 78 a restart fails again until an operator changes the configuration.
                will_restart = _exit_code(child) != ConfigurationError.exit_code
                child.restart_at = (
                    time.monotonic() + _RESTART_SECONDS if will_restart else float("inf")
                )
                then = (
                    f"it is restarted in {_RESTART_SECONDS:.0f} s"
                    if will_restart
                    else "it is not restarted"
                )
                _logger.warning(
                    f"The {child.role} ended unexpectedly ({how_ended(child.process.returncode)}); the other roles "
                    f"continue, and {then}."
                )
            elif time.monotonic() >= child.restart_at:
                children[index] = _start(child.role, child.arguments, is_console=is_console)
    return None


def _stop_all(children: Sequence[_Child]) -> None:
    """Stop all children, and kill those that have not ended after `_GRACE_SECONDS`."""
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    for child in children:
        try:
            child.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _logger.warning(
                f"The {child.role} did not exit within {_GRACE_SECONDS:.0f} s and is killed; its "
                "next start recovers."
            )
            child.process.kill()
            child.process.wait()
        if child.process.stdin is not None:
            with contextlib.suppress(OSError):
                child.process.stdin.close()


def _exit_code(child: _Child) -> int:
    code = child.process.returncode
    return code if code >= 0 else 128 - code
