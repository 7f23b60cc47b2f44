"""An index on RocksDB in a process of its own, so that a test can kill it with SIGKILL and open
what it left.

The children are forked by a server, `python -m tests.index.child`, which has compiled the kernels
once and has no threads: a start costs milliseconds. A child carries out (method of `Volume`,
arguments) and sends back what it returned.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage import table_files
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.index.tables import entry_columns, neighbours
from tests.index.logs import APPEND_MS, Doc, batch, declare

_ANSWER_SECONDS = 60


class DyingStore(RocksStore):
    """A store whose process dies before or after its next write, if a test asks for it."""

    dies: str | None = None

    def write(self, *given: Any) -> None:
        if self.dies == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(*given)
        if self.dies == "after":
            os.kill(os.getpid(), signal.SIGKILL)


class Volume:
    """The methods that a child executes; arguments and results are plain values."""

    def __init__(self, path: Path) -> None:
        self._store = DyingStore(path)
        self._index = LogIndex(self._store, table_folder=path / "tables")

    def apply(
        self, records: list[tuple[int, int, bytes]], dies: str | None = None
    ) -> list[tuple[int, bytes]]:
        self._store.dies = dies
        return self._index.apply(records)

    def applied(self) -> int:
        return self._index.applied

    def answers_since(self, offset: int) -> list[tuple[int, bytes]]:
        return list(self._index.answers_since(offset))

    def neighbours(
        self, limbs: list[int], scope: int, features: int, sketch: bytes = b""
    ) -> list[tuple[int, int]]:
        """Return (distance, source offset) of everything within reach; nothing of a text below the
        floor."""
        found = self._index.similar(
            limbs, b"text of nobody..", features, scope, 1 << 20, sketch
        ).found
        return [(distance, entry.position.offset) for distance, entry in found]

    def statistics(self) -> dict[str, Any]:
        return dict(self._index.statistics())

    def close(self) -> None:
        self._index.close()


class Child:
    """The volume in `path`, open in a child process."""

    def __init__(self, path: Path) -> None:
        ours = socket.socket(socket.AF_UNIX)
        ours.connect(_server())
        self._connection = Connection(ours.detach())
        self._pid: int = self._connection.recv()
        self._connection.send(path)

    def opened(self) -> None:
        """Wait until the index is open."""
        assert self._connection.recv() == "open"

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what the method of `Volume` returned; EOFError if the child died over it."""
        try:
            self._connection.send((method, arguments))
            if self._connection.poll(_ANSWER_SECONDS):
                return self._connection.recv()
        except OSError as error:
            raise EOFError from error
        raise TimeoutError(
            f"The index in a child process did not answer within {_ANSWER_SECONDS} s."
        )

    def close(self) -> None:
        """Close the index and end the process."""
        self.ask("close")
        self._wait()

    def kill(self, after: float = 0.0) -> None:
        """Kill the process after `after` seconds; the moment of the kill is what the test is
        about."""
        time.sleep(after)
        with contextlib.suppress(ProcessLookupError):  # it died over what it was asked
            os.kill(self._pid, signal.SIGKILL)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _ANSWER_SECONDS
        while Path(f"/proc/{self._pid}").exists():  # its lock on the volume goes with it
            assert time.monotonic() < deadline, "a child process does not end"
            time.sleep(0.0005)
        self._connection.close()


@functools.cache
def _server() -> str:
    """Start the server of children, and return its address; it ends with this process."""
    folder = tempfile.TemporaryDirectory()
    address = str(Path(folder.name) / "children")
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    assert server.stdin is not None
    assert server.stdout.readline() == b"ready\n", "the server of child processes did not start"

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    return address


def _serve_children(address: str) -> None:
    """Fork a child for each connection, until standard input ends."""
    table_files.GROUP_ROWS = entry_columns.GROUP_ROWS = (
        8  # so that there are files beside small volumes
    )
    neighbours._ACTIVE_MIN = 12
    index = LogIndex(MemoryStore())  # compiles what the children will need
    index.apply(
        [
            (0, APPEND_MS, declare(PLANS["blocks"])),
            (1, APPEND_MS, batch([Doc(0, 0, 0, bytes(16), 0)])),
        ]
    )
    index.similar([0, 0], bytes(16), 100)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them, so the system does
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    print("ready", flush=True)
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        theirs, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _serve(Connection(theirs.detach()))
            os._exit(0)
        theirs.close()


def _serve(connection: Connection) -> None:
    """Execute requests until `close` or the end of the connection."""
    connection.send(os.getpid())
    volume = Volume(connection.recv())
    connection.send("open")
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        connection.send(getattr(volume, method)(*arguments))
        if method == "close":
            return


if __name__ == "__main__":
    _serve_children(sys.argv[1])
