"""A proxy in front of a server of 127.0.0.1, whatever it speaks, that breaks answers in the middle."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Fault = Literal["cut", "half-closed", "stalled"]
_RESET = struct.pack("ii", 1, 0)


class FaultyProxy:
    """The next answers longer than so many bytes are broken there, each by one of `faults`; `struck` are those that were.

    A shorter one takes no fault, so that whoever asks for something else at this port does not change what a test sees.
    `cut`: the connection is reset. `half-closed`: nothing more comes, and what the client sends is still taken. `stalled`:
    nothing more comes, and the connection stays open.
    """

    def __init__(self, port: int, after_bytes: int) -> None:
        self._port = port
        self._after_bytes = after_bytes
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.faults: list[Fault] = []
        self.struck: list[Fault] = []
        self._start(self._listen)

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            ends = [self._listener, *self._open]
        for one in ends:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _start(self, target: object, *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                with self._lock:
                    self._open |= {client, server}
                asked = threading.Event()
                self._start(self._requests, client, server, asked)
                self._start(self._answers, client, server, asked)

    def _requests(self, client: socket.socket, server: socket.socket, asked: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while part := client.recv(1 << 16):
                asked.set()
                server.sendall(part)
            server.shutdown(socket.SHUT_WR)

    def _answers(self, client: socket.socket, server: socket.socket, asked: threading.Event) -> None:
        room = self._after_bytes
        with contextlib.suppress(OSError):
            while part := server.recv(1 << 16):
                if asked.is_set():  # an answer begins
                    asked.clear()
                    room = self._after_bytes
                fault = self._next_fault() if 0 <= room < len(part) else None
                if fault is None:
                    client.sendall(part)
                    room -= len(part)
                    continue
                client.sendall(part[:room])
                self.struck.append(fault)
                if fault == "cut":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    client.shutdown(socket.SHUT_RD)
                    client.close()
                elif fault == "half-closed":
                    client.shutdown(socket.SHUT_WR)
                server.shutdown(socket.SHUT_RDWR)
                return

    def _next_fault(self) -> Fault | None:
        with self._lock:
            return self.faults.pop(0) if self.faults else None


@contextmanager
def breaking(port: int, after_bytes: int) -> Iterator[FaultyProxy]:
    """Stand in front of a port until the block ends."""
    proxy = FaultyProxy(port, after_bytes)
    try:
        yield proxy
    finally:
        proxy.close()
