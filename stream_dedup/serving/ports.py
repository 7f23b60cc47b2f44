"""The addresses of the roles of `run all`, which use HTTP_PORT and the ports after it; free ports."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import TYPE_CHECKING, Final, Literal

from stream_dedup.domain.errors import StreamDedupError

if TYPE_CHECKING:
    from stream_dedup.settings.settings import Settings

AddressedRole = Literal["worker", "index", "insights", "search"]
# The offset of each role's port from HTTP_PORT.
PORT_OFFSETS: Final[dict[AddressedRole, int]] = {
    "worker": 0,
    "index": 1,
    "insights": 2,
    "search": 3,
}


def address_of(settings: Settings, role: AddressedRole) -> str:
    """Return the address of a role of `run all` for a client on this machine."""
    host = "127.0.0.1" if settings.http_host in ("0.0.0.0", "::", "") else settings.http_host  # noqa: S104 - compared, not bound
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{settings.http_port + PORT_OFFSETS[role]}"


def addresses(settings: Settings) -> list[str]:
    """Return the addresses of the roles on this machine, in the order of their ports."""
    return [address_of(settings, role) for role in PORT_OFFSETS]


def free_ports(count: int) -> range:
    """Return `count` consecutive free ports of 127.0.0.1.

    They are below the ephemeral ports (from 32768 on Linux, 49152 elsewhere), which any connection
    may take before the role listens.

    Raises:
        StreamDedupError: none were found.
    """
    for _ in range(100):
        first = random.randrange(20_000, 32_768 - count)  # noqa: S311 - no secret
        with contextlib.suppress(OSError), contextlib.ExitStack() as sockets:
            for port in range(first, first + count):
                sockets.enter_context(socket.create_server(("127.0.0.1", port)))
            return range(first, first + count)
    raise StreamDedupError(
        f"No {count} consecutive ports are free on 127.0.0.1; stop the programs that use them."
    )
