"""Who gets in at a role's HTTP port, how long a client is waited for, and how often it is answered.

Invariants: at most `CONNECTIONS_MAX` connections stay open. One more closes the one that we have
waited for longest, so a probe always gets in. A client has `PATIENCE_SECONDS` for the head of its
request, as long for the body, and as long to take the answer. Probes and metrics are answered at
once; of everything else at most `REQUESTS_MAX` requests wait, and they are begun `PACE_SECONDS`
apart, because what answers them takes the interpreter from the role's loop. A request takes a place
among those when its body is whole, and gives it back when its answer is made: no client holds one
by what it does not send or read. But for probes and metrics the host that a request names must be
one of ours: a page of another site, whose name its owner lets lead to this port, reads nothing here
through the browser of somebody who may.
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

from stream_dedup.domain.problem import PROBLEM_TYPE, problem_bytes
from stream_dedup.settings.units import split_hosts

CONNECTIONS_MAX: Final = 128
REQUESTS_MAX: Final = 64
PATIENCE_SECONDS = 5.0
PACE_SECONDS: Final = 0.01
BODY_BYTES_MAX: Final = 1 << 20  # what any route of a role takes is less

_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]*)?")

# uvicorn warns of every request that is no HTTP; a client that sends rubbish would fill the disk
# with that.
_logger = logging.getLogger("stream_dedup.http.clients")
_logger.setLevel(logging.ERROR)


class Connection(H11Protocol):
    """One client. It waits for us while its request is being answered; else we wait for it, and not
    for ever.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = _logger
        self._since = 0.0
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a client in, and another out if there are too many."""
        super().connection_made(transport)
        self._wait_for_client()
        others: set[Any] = self.connections - {self}
        if len(others) >= CONNECTIONS_MAX:
            min(others, key=Connection._staying).cut()

    def handle_events(self) -> None:
        """Read what has come; once that is a whole request, the client waits for us."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._wait_for_client()  # for the body, anew
        self._look_who_waits()

    def on_response_complete(self) -> None:
        """Wait for the next request, and for what is left of the answer to be taken."""
        self._wait_for_client()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait for the client, which does not take its answer as fast as we give it."""
        super().pause_writing()
        self._look_who_waits()

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        self._look_who_waits()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._wait_no_more()
        super().connection_lost(exc)

    def cut(self) -> None:
        """End the connection at once, with what has not been sent."""
        self._wait_no_more()
        self.connections.discard(
            self
        )  # it counts no longer, though the loop will only say later that it is lost
        if (
            self.transport.get_write_buffer_size()
        ):  # nor is the kernel to keep what the client does not take
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        self.transport.abort()

    def _look_who_waits(self) -> None:
        one = self.cycle
        is_ours = (
            one is not None
            and not one.more_body
            and not one.response_complete
            and not self.flow.write_paused
        )
        if is_ours:
            self._wait_no_more()
        elif self._waiting is None:
            self._wait_for_client()

    def _staying(self) -> tuple[bool, float]:
        """Return what is least for the connection that is closed first: we wait for it, and have
        for longest.
        """
        return self._waiting is None, self._since

    def _wait_for_client(self) -> None:
        self._wait_no_more()
        self._since = time.monotonic()
        self._waiting = self.loop.call_later(PATIENCE_SECONDS, self.cut)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class AllowedHosts:
    """The names under which a role may be asked: those of a setting, this machine's, `localhost`,
    and any address.

    An address is safe: a page that was read from it is ours, whereas the owner of a name can let it
    lead to us.
    """

    def __init__(self, written: str) -> None:
        """Take names with commas between them; `*.example.org` stands for all below it, `*` for
        any.
        """
        names = [name.lower() for name, _ in split_hosts(written)]
        self._names = frozenset({*names, "localhost", os.uname().nodename.lower()})
        self._ends = (".localhost", *(name[1:] for name in names if name.startswith("*.")))

    def takes(self, host: str) -> bool:
        """Return whether a `Host` header, with its port or without, names us."""
        found = _HOST.fullmatch(host.strip().lower())
        if "*" in self._names:
            return True
        if found is None:
            return False
        name = found["name"].removesuffix(".")
        return name in self._names or name.endswith(self._ends) or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Pace:
    """The application, but for what need not be answered at once: that is begun one after another,
    bounded, and for those alone who name one of `hosts`.
    """

    def __init__(self, app: ASGIApp, at_once: frozenset[str], hosts: AllowedHosts) -> None:
        self._app = app
        self._at_once = at_once
        self._hosts = hosts
        self._next = 0.0
        self.waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its turn, or say that too many wait."""
        if scope["type"] != "http" or scope["path"] in self._at_once:
            await self._app(scope, receive, send)
            return
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode(
            "latin-1"
        )
        if not self._hosts.takes(host):
            text = f"Nothing is told under the name {host!r:.200}; if it is yours, add it to STREAM_DEDUP_HTTP_ALLOWED_HOSTS."
            await Response(problem_bytes(421, text), 421, None, PROBLEM_TYPE)(scope, receive, send)
            return
        body = await _body_of(receive)
        if body is None:
            return  # the client has gone
        if len(body) > BODY_BYTES_MAX:
            text = f"The request has more than {BODY_BYTES_MAX:,} bytes, and nothing here takes as much."
            await Response(problem_bytes(413, text), 413, None, PROBLEM_TYPE)(scope, receive, send)
            return
        if self.waiting >= REQUESTS_MAX:
            text = (
                f"{REQUESTS_MAX} requests are waiting for an answer already; ask again in a second."
            )
            await Response(problem_bytes(503, text), 503, {"Retry-After": "1"}, PROBLEM_TYPE)(
                scope, receive, send
            )
            return
        with ExitStack() as place:
            self.waiting += 1
            place.callback(self._leave)
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + PACE_SECONDS
            await asyncio.sleep(turn - now)
            given: list[Message] = [
                {"type": "http.request", "body": bytes(body), "more_body": False}
            ]

            async def receive_again() -> Message:
                return given.pop() if given else await receive()

            async def send_made(message: Message) -> None:
                place.close()
                await send(message)

            await self._app(scope, receive_again, send_made)

    def _leave(self) -> None:
        self.waiting -= 1


async def _body_of(receive: Receive) -> bytearray | None:
    """Return the whole body, or the beginning of one that is too large; None if the client goes
    before.
    """
    found = bytearray()
    while len(found) <= BODY_BYTES_MAX:
        message = await receive()
        if message["type"] != "http.request":
            return None
        found += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return found
