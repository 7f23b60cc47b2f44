"""Roles as child processes, forked from one that has loaded everything: a start costs a fork, not
five seconds of CPU.

What is left out is what a role does before it reads its first argument (importing, loading kernels
and dictionary); the tests of the command line, of the image and of a fresh machine start roles the
long way. All that a role does is done in the child: it has its own environment, log, signals and
exit code, and is killed like any process.

It needs Linux (`pidfd_open`); elsewhere roles are started the long way.

Invariants: no thread and no client is started before a fork; children end with the nursery, and the
nursery with its owner.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONSTANTS_VARIABLE = "TESTS_CONSTANTS"
"""Variable with constants to replace in a role: a JSON object of dotted names and values."""


class Forked:
    """A forked process with the part of the interface of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, ended_path: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended_path = ended_path

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.returncode is None and self._ended_path.exists():
            self.returncode = int(self._ended_path.read_text())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("role", timeout or 0.0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended: its number may be another's by then."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks roles; it starts with the first role and ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._count = 0

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], log_path: Path
    ) -> Forked:
        """Fork a child that runs a command of stream-dedup, with both its outputs at the end of a
        file."""
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.broker.forked_roles"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                atexit.register(self._process.kill)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._count += 1
            log_path.touch()  # it may be read before the child has written
            ended_path = log_path.with_suffix(f".{os.getpid()}-{self._count}.ended")
            order = {
                "arguments": list(arguments),
                "environment": dict(environment),
                "log": str(log_path),
            }
            self._process.stdin.write(json.dumps(order | {"ended": str(ended_path)}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            assert answer, "the nursery ended; its output is above"
            return Forked(int(answer), ended_path)


NURSERY = Nursery()


def _load() -> None:
    """Load what every role loads, and the default recipe's dictionary."""
    from stream_dedup.cli import app, run
    from stream_dedup.fingerprinting import Recipe
    from stream_dedup.serving import compile_kernels
    from stream_dedup.worker import dependencies
    from tests.broker.harness import fingerprinter

    del app
    for module in run.MODULES.values():
        importlib.import_module(module)
    fingerprinter(Recipe()).fingerprint(["warm 研究 かな"])
    compile_kernels.use_index()
    dependencies.Fingerprinter = fingerprinter  # type: ignore[assignment, misc]


def _main() -> int:
    """Take orders, one JSON object a line, until standard input ends; return the exit code of the
    child that this became."""
    _load()
    orders, answers = sys.stdin.buffer, os.dup(1)
    os.dup2(2, 1)
    os.set_blocking(orders.fileno(), False)
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    children: dict[int, tuple[int, str]] = {}
    unread = b""
    while True:
        for key, _ in selector.select():
            if key.fileobj is not orders:
                pid, ended = children.pop(key.fd)
                selector.unregister(key.fileobj)
                os.close(key.fd)
                _note_end(pid, ended)
                continue
            chunk = orders.read()
            if not chunk:
                for pid, _ended in children.values():
                    os.kill(pid, signal.SIGKILL)
                return 0
            *lines, unread = (unread + chunk).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    for handle in (*children, answers):
                        os.close(handle)
                    return _become(order)
                handle = os.pidfd_open(pid)
                children[handle] = (pid, order["ended"])
                selector.register(handle, selectors.EVENT_READ)
                os.write(answers, b"%d\n" % pid)


def _note_end(pid: int, ended: str) -> None:
    _, status = os.waitpid(pid, 0)
    partial = Path(f"{ended}.partial")
    with contextlib.suppress(FileNotFoundError):  # the test has cleared its folder away
        partial.write_text(str(os.waitstatus_to_exitcode(status)))
        partial.replace(ended)


def run_patched() -> int:
    """Run the command line with the constants of `CONSTANTS_VARIABLE` in place of the product's."""
    from stream_dedup.__main__ import main

    for name, value in json.loads(os.environ.pop(CONSTANTS_VARIABLE, "{}")).items():
        module, _, constant = name.rpartition(".")
        owner = importlib.import_module(module)
        getattr(owner, constant)  # fails on an unknown name
        setattr(owner, constant, value)
    return main()


def _become(order: dict[str, Any]) -> int:
    """Run the ordered command in this process."""
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    null_device = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_device, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(null_device)
    sys.stdin = open(0)  # noqa: SIM115 - the process's own
    os.environ.clear()
    os.environ.update(order["environment"])
    random.seed()
    sys.argv = ["stream-dedup", *order["arguments"]]
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    return run_patched()


if __name__ == "__main__":
    sys.exit(_main())
