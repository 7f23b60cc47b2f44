"""Admission control of a role's HTTP port: connections, time-outs, request rate and host names.

Invariants: at most `CONNECTIONS_MAX` connections stay open. A further one closes the idlest
connection, so a probe always gets in. A client has `PATIENCE_SECONDS` for the head of its request,
as long for the body, and as long to read the response. Probes and metrics are answered at once; of
other requests at most `REQUESTS_MAX` wait, and they start `PACE_SECONDS` apart, because their
handlers take the interpreter from the role's loop. A request counts among them from the end of its
body until its response is created, so a slow client cannot occupy a place. Except for probes and
metrics, the `Host` header must name this role (DNS rebinding): a page of another site cannot read
responses through a user's browser.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import socket
import struct
import time
from contextlib import ExitStack
from typing import Any, Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from stream_dedup.domain.problem_details import PROBLEM_TYPE, problem_bytes
from stream_dedup.settings.units import split_hosts

CONNECTIONS_MAX: Final = 128
REQUESTS_MAX: Final = 64
PATIENCE_SECONDS = 5.0
PACE_SECONDS: Final = 0.01
BODY_BYTES_MAX: Final = 1 << 20  # more than any route of a role accepts

_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]*)?")

# uvicorn logs every invalid request as a warning, which would let a client fill the disk.
_logger = logging.getLogger("stream_dedup.http.clients")
_logger.setLevel(logging.ERROR)


class Connection(H11Protocol):
    """A connection with a timer, which closes the connection if it expires while the role waits for
    the client. The timer starts again when the client has a new task: a body, the response, or the
    next request.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.logger = _logger
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a client, and close another connection if there are too many."""
        super().connection_made(transport)
        self._start_timer()
        others: set[Any] = self.connections - {self}
        if len(others) >= CONNECTIONS_MAX:
            min(others, key=Connection._close_order).abort()

    def handle_events(self) -> None:
        """Process received data; start the timer for the body once the head is complete."""
        last_cycle = self.cycle
        super().handle_events()
        if self.cycle is not last_cycle:
            self._start_timer()

    def on_response_complete(self) -> None:
        """Start the timer for the next request and the unread part of the response."""
        self._start_timer()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the timer, because the client reads its response too slowly."""
        super().pause_writing()
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close the connection at once and drop unsent data."""
        self._stop_timer()
        self.connections.discard(self)  # `connection_lost` is called later, but it no longer counts
        if self.transport.get_write_buffer_size():  # make the kernel drop unread data too
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        """Whether the client waits for the role."""
        cycle = self.cycle
        return (
            cycle is not None
            and not cycle.more_body
            and not cycle.response_complete
            and not self.flow.write_paused
        )

    def _close_order(self) -> tuple[bool, float]:
        """Return the sort key of connections to close: those whose client the role waits for
        come first, the longest wait first.
        """
        return self._is_answering, self._since

    def _start_timer(self) -> None:
        self._stop_timer()
        self._since = time.monotonic()
        self._timer = self.loop.call_later(PATIENCE_SECONDS, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        if self._is_answering:
            self._start_timer()
        else:
            self.abort()


class AllowedHosts:
    """The allowed names in `Host` headers: those of a setting, this machine's, `localhost`, and any
    IP address.

    An IP address is safe: a page loaded from it is this role's, whereas the owner of a host name can
    make the name resolve to this machine.
    """

    def __init__(self, host_names: str) -> None:
        """Parse names separated by commas; `*.example.org` means all names below it, `*` any."""
        names = [name.lower() for name, _ in split_hosts(host_names)]
        self._names = frozenset({*names, "localhost", os.uname().nodename.lower()})
        self._ends = (".localhost", *(name[1:] for name in names if name.startswith("*.")))

    def allows(self, host: str) -> bool:
        """Return whether a `Host` header, with or without a port, is allowed."""
        match = _HOST.fullmatch(host.strip().lower())
        if "*" in self._names:
            return True
        if match is None:
            return False
        name = match["name"].removesuffix(".")
        return name in self._names or name.endswith(self._ends) or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class RequestPacer:
    """The application with a limited rate and queue; requests to the paths `unpaced_paths` pass directly,
    others must name one of `hosts`.
    """

    def __init__(self, app: ASGIApp, unpaced_paths: frozenset[str], hosts: AllowedHosts) -> None:
        self._app = app
        self._unpaced_paths = unpaced_paths
        self._hosts = hosts
        self._next = 0.0
        self.waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its turn, or refuse it if too many wait."""
        if scope["type"] != "http" or scope["path"] in self._unpaced_paths:
            await self._app(scope, receive, send)
            return
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode(
            "latin-1"
        )
        if not self._hosts.allows(host):
            text = (
                f"The host name {host!r:.200} is not allowed. If it is a name of this service, "
                "add it to STREAM_DEDUP_HTTP_ALLOWED_HOSTS."
            )
            await Response(problem_bytes(421, text), 421, None, PROBLEM_TYPE)(scope, receive, send)
            return
        body = await _body_of(receive)
        if body is None:
            return  # the client has gone
        if len(body) > BODY_BYTES_MAX:
            text = f"The request has more than {BODY_BYTES_MAX:,} bytes, which no path accepts."
            await Response(problem_bytes(413, text), 413, None, PROBLEM_TYPE)(scope, receive, send)
            return
        if self.waiting >= REQUESTS_MAX:
            text = f"{REQUESTS_MAX} requests are already waiting; try again in a second."
            await Response(problem_bytes(503, text), 503, {"Retry-After": "1"}, PROBLEM_TYPE)(
                scope, receive, send
            )
            return
        with ExitStack() as slot:
            self.waiting += 1
            slot.callback(self._leave)
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + PACE_SECONDS
            await asyncio.sleep(turn - now)
            messages: list[Message] = [
                {"type": "http.request", "body": bytes(body), "more_body": False}
            ]

            async def receive_again() -> Message:
                return messages.pop() if messages else await receive()

            async def send_and_free_slot(message: Message) -> None:
                slot.close()
                await send(message)

            await self._app(scope, receive_again, send_and_free_slot)

    def _leave(self) -> None:
        self.waiting -= 1


async def _body_of(receive: Receive) -> bytearray | None:
    """Return the whole body, or the beginning of one that is too large; None if the client
    disconnected.
    """
    body = bytearray()
    while len(body) <= BODY_BYTES_MAX:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return body
