"""A child process that ends with this one, and a reserved port for it.

Invariants: on Linux a child never outlives this process; a port stays reserved from construction to
`release`, also while the child that listens on it is killed.

Child processes. On Linux a few lines of Python ask the kernel to kill the child with its parent
(`prctl(2)`, PR_SET_PDEATHSIG) and then `execv` Java, so that no code runs between fork and exec of a
process with threads. The parent is a *thread* for the kernel, so the thread that waits for the
broker also starts it. Other systems (macOS) lack this: an exit, an exception or Ctrl-C still stops
the broker, but after `kill -9` of this process it keeps running and must be ended by its process id,
which is in `broker.pid` in its folder.

Ports. On Linux a socket that is bound but never listens reserves each port: with SO_REUSEADDR on
both sides Java can still listen there, while the kernel assigns the port to no other process,
neither for `bind(0)` nor for an outgoing connection. Without it, a client that tries to connect to a
killed broker would eventually get that port as its own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from stream_dedup.domain.errors import LocalBrokerError

HOST = "127.0.0.1"

# Runs with -I -S. Its arguments are the id of the expected parent, to detect one that ended before
# prctl, and the command.
_BIND_TO_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent has gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class Port:
    """A port of 127.0.0.1 that this process reserves for a child; see the top of this module."""

    def __init__(self, number: int | None) -> None:
        self.number = 0 if number is None else number
        self._holder: weakref.finalize[[], Port] | None = None
        self.take()

    def take(self) -> None:
        """Reserve the port, or any free one if there is no number yet; do nothing if it is reserved.

        Raises:
            LocalBrokerError: the port is in use.
        """
        if self._holder is not None:
            return
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((HOST, self.number))
        except OSError as error:
            holder.close()
            raise LocalBrokerError(
                f"Port {self.number} of {HOST} cannot be used: {error}; end the program that uses "
                "it, or use another port."
            ) from error
        self.number = holder.getsockname()[1]
        self._holder = weakref.finalize(self, holder.close)
        if sys.platform != "linux":  # elsewhere a bound socket would keep Java out as well
            self._holder()

    def release(self) -> None:
        """Release the port; `take` reserves the same number again."""
        if self._holder is not None:
            self._holder()
            self._holder = None


class BoundChild:
    """A child process in a new session (Ctrl-C reaches only its parent) that ends with this process
    on Linux.
    """

    def __init__(self, command: Sequence[str], folder: Path, output: Path) -> None:
        self.ended = threading.Event()
        self.status: int | None = None
        self.pid: int = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._error: OSError | None = None
        if sys.platform == "linux":
            command = [
                sys.executable,
                "-I",
                "-S",
                "-c",
                _BIND_TO_PARENT,
                str(os.getpid()),
                *command,
            ]
        started = threading.Event()
        threading.Thread(
            target=self._keep,
            args=(command, folder, output, started),
            name="local-broker",
            daemon=True,
        ).start()
        started.wait()
        if self._process is None:
            raise LocalBrokerError(
                f"Java cannot be run: {self._error}; install the broker extra again."
            )
        self.pid = self._process.pid

    def is_alive(self) -> bool:
        """Return whether it has not ended yet."""
        return not self.ended.is_set()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self._process is not None and self.is_alive():
            self._process.send_signal(number)

    def end(self) -> None:
        """Kill the child and wait for its end."""
        self.send(signal.SIGKILL)
        self.ended.wait()

    def _keep(
        self, command: Sequence[str], folder: Path, output: Path, started: threading.Event
    ) -> None:
        # This thread is the child's parent for the kernel, so it must live as long as the child.
        try:
            with output.open("ab") as stream:
                self._process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    start_new_session=True,
                    umask=0o077,
                )
        except OSError as error:
            self._error = error
        finally:
            started.set()
        if self._process is not None:
            self.status = self._process.wait()
        self.ended.set()


def environment() -> dict[str, str]:
    """Return this process's environment with a UTF-8 locale, so that Java can read any path."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}
