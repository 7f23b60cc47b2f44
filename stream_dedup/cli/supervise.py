"""`run all`: an index, a worker, a search where its extra is installed and, if asked for, insights,
as child processes.

Invariants: the children live and die together: when one ends by itself all are stopped, and its
exit code is ours; they get SIGTERM once for any signal that we got; they also stop when this
process is killed, because their standard input is a pipe whose other end only we hold. Insights and
search are started again when they end by themselves: no document waits for them.
"""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.extras import lacking
from stream_dedup.serving import asking
from stream_dedup.serving.ports import AFTER, AddressedRole, address_of
from stream_dedup.serving.process import how_ended, stop_on_signals
from stream_dedup.settings.settings import Settings

_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 60.0
_LAST_LINES_SECONDS = 1.0
_CONFIGURATION = ConfigurationError.exit_code
_RESTART_SECONDS = 10.0
_ASK_SECONDS = 1.0
_READY_SECONDS = 2.0
_COLOURS = {"index": "\033[36m", "worker": "\033[35m", "insights": "\033[33m", "search": "\033[32m"}
# No document waits for these.
_ASIDE = frozenset({"insights", "search"})


@dataclass(slots=True)
class _Child:
    role: str
    process: subprocess.Popen[bytes]
    reader: threading.Thread
    arguments: Sequence[str]
    again_at: float | None = None


def supervise(
    settings: Settings,
    common: Sequence[str],
    *,
    log_format: str = "auto",
    with_insights: bool = False,
    with_search: bool | None = None,
) -> int:
    """Run the roles with the options `common` until a signal comes or one ends; return the exit
    code.

    `with_search` None: a search runs where its extra is installed; otherwise it is said once how to
    get it.

    Raises:
        ConfigurationError: a search is asked for, and its extra is not installed.
    """
    is_console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    lack = "" if with_search is False else lacking("search")
    if lack and with_search:
        raise ConfigurationError(lack)
    if lack:
        _say(f"There is no console, and nothing is found by a clue. {lack}")
    with_search = with_search is not False and not lack
    options = options_of(settings, common, with_insights=with_insights, with_search=with_search)
    with stop_on_signals() as stop:
        children: list[_Child] = []
        try:
            for role, arguments in options.items():
                children.append(_start(role, arguments, is_console=is_console))
            if with_search and is_console and settings.http_port:
                console = address_of(settings, "search")
                threading.Thread(
                    target=_tell_when_ready, args=(console, stop), name="console", daemon=True
                ).start()
            dead = _wait(children, stop, is_console=is_console)
            if dead is not None:
                dead.reader.join(_LAST_LINES_SECONDS)
                _say(
                    f"The {dead.role} ended by itself ({_how(dead)}), so everything is stopped; "
                    "its last lines above say why."
                )
        finally:
            _stop_all(children)
    for child in children:
        child.reader.join(5.0)
    if dead is not None:
        return _exit_code(dead) or 1
    return next(
        (code for child in children if child.role not in _ASIDE and (code := _exit_code(child))), 0
    )


def options_of(
    settings: Settings,
    common: Sequence[str],
    *,
    with_insights: bool,
    with_search: bool,
) -> dict[AddressedRole, list[str]]:
    """Return the options of each role that runs, in the order in which they are started."""
    roles: list[AddressedRole] = ["index", "worker"]
    roles += ["insights"] if with_insights else []
    roles += ["search"] if with_search else []
    ports = {role: settings.http_port + AFTER[role] if settings.http_port else 0 for role in roles}
    options = {role: [*common, "--set", f"http_port={port}"] for role, port in ports.items()}
    if with_search and settings.console_index is None and ports["index"]:
        options["search"] += ["--set", f"console_index={address_of(settings, 'index')}"]
    return options


def _tell_when_ready(console: str, stop: threading.Event) -> None:
    """Say where the console is, as soon as the search has read what left before."""
    while not stop.wait(_READY_SECONDS):
        with contextlib.suppress(*asking.NO_ANSWER):
            status, _ = asking.ask(console, "/readyz", _ASK_SECONDS, 65_536)
            if status == http.client.OK:
                _say(f"The console, with Find and Groups: {console}/")
                return


def _start(role: str, arguments: Sequence[str], *, is_console: bool) -> _Child:
    command = [sys.executable, "-m", "stream_dedup", "run", role, "--stop-with-parent", *arguments]
    command += ["--log-format", "console" if is_console else "json"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A Ctrl-C in the terminal goes to a whole session. The children are to get one signal only,
        # ours.
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101 - for the type checker
    # JSON lines stay whole; they carry the role themselves.
    prefix = _prefix(role) if is_console else b""
    reader = threading.Thread(
        target=_pass_on, args=(process.stdout, prefix), name=f"{role}-output", daemon=True
    )
    reader.start()
    return _Child(role, process, reader, arguments)


def _prefix(role: str) -> bytes:
    text = f"{role:<8} | "
    return (f"{_COLOURS[role]}{text}\033[0m" if sys.stderr.isatty() else text).encode()


def _pass_on(stream: IO[bytes], prefix: bytes) -> None:
    for line in stream:
        sys.stderr.buffer.write(prefix + line)
        sys.stderr.buffer.flush()


def _wait(children: list[_Child], stop: threading.Event, *, is_console: bool) -> _Child | None:
    """Return the child that ended by itself, or None when we were told to stop."""
    while not stop.wait(_LOOK_SECONDS):
        for place, child in enumerate(children):
            if child.process.poll() is None:
                continue
            if child.role not in _ASIDE:
                return child
            if child.again_at is None:
                # 78: only an operator can help.
                will_start = _exit_code(child) != _CONFIGURATION
                child.again_at = time.monotonic() + _RESTART_SECONDS if will_start else float("inf")
                then = (
                    f"it is started again in {_RESTART_SECONDS:.0f} s"
                    if will_start
                    else "it stays away"
                )
                _say(
                    f"The {child.role} ended by itself ({_how(child)}); the filter goes on without "
                    f"it, and {then}."
                )
            elif time.monotonic() >= child.again_at:
                children[place] = _start(child.role, child.arguments, is_console=is_console)
    return None


def _stop_all(children: Sequence[_Child]) -> None:
    """Ask all to end, and kill what has not after the time a drain may take."""
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    until = time.monotonic() + _GRACE_SECONDS
    for child in children:
        try:
            child.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _say(
                f"The {child.role} did not end within {_GRACE_SECONDS:.0f} s and is killed; a "
                "restart recovers."
            )
            child.process.kill()
            child.process.wait()
        if child.process.stdin is not None:
            with contextlib.suppress(OSError):
                child.process.stdin.close()


def _exit_code(child: _Child) -> int:
    code = child.process.returncode
    return code if code >= 0 else 128 - code


def _how(child: _Child) -> str:
    return how_ended(child.process.returncode)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
