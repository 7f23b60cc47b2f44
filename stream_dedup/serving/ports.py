"""Where the roles answer that `run all` runs on one machine, each at HTTP_PORT or one of the ports
after it; which are free.
"""

from __future__ import annotations

import contextlib
import random
import socket
from typing import TYPE_CHECKING, Final, Literal

from stream_dedup.domain.errors import StreamDedupError

if TYPE_CHECKING:
    from stream_dedup.settings.settings import Settings

AddressedRole = Literal["worker", "index", "insights", "search"]
# How far each role's port is after HTTP_PORT.
AFTER: Final[dict[AddressedRole, int]] = {"worker": 0, "index": 1, "insights": 2, "search": 3}


def address_of(settings: Settings, role: AddressedRole) -> str:
    """Return where a role of `run all` answers, asked from this machine."""
    host = "127.0.0.1" if settings.http_host in ("0.0.0.0", "::", "") else settings.http_host  # noqa: S104 - asked, not bound
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{settings.http_port + AFTER[role]}"


def addresses(settings: Settings) -> list[str]:
    """Return where the roles answer on this machine, in the order of their ports."""
    return [address_of(settings, role) for role in AFTER]


def free_ports(count: int) -> range:
    """Return ports of 127.0.0.1 that follow each other and that nobody has now; raises
    StreamDedupError where none are.

    They lie below those that systems hand out by themselves (Linux from 32768 on, others from
    49152), where any connection may take one before its role listens.
    """
    for _ in range(100):
        first = random.randrange(20_000, 32_768 - count)  # noqa: S311 - no secret
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return range(first, first + count)
    raise StreamDedupError(
        f"No {count} ports in a row are free on 127.0.0.1; end what listens there."
    )
