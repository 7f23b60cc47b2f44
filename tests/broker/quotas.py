"""Client quotas of a broker, which no client library sets: one request of Kafka's protocol
(AlterClientQuotas, version 0)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

_ALTER_CLIENT_QUOTAS, _VERSION = 49, 0
_SECONDS = 30.0


@contextmanager
def producer_quota(bootstrap: str, client_id: str, bytes_per_second: float) -> Iterator[None]:
    """Limit a producer to this many bytes a second."""
    alter_quota(bootstrap, client_id, bytes_per_second)
    try:
        yield
    finally:
        alter_quota(bootstrap, client_id, None)


def alter_quota(bootstrap: str, client_id: str, bytes_per_second: float | None) -> None:
    """Set how many bytes a second a producer may write, or remove its quota."""
    entity = struct.pack(">i", 1) + _text("client-id") + _text(client_id)
    change = _text("producer_byte_rate") + struct.pack(
        ">d?", bytes_per_second or 0.0, bytes_per_second is None
    )
    body = struct.pack(">i", 1) + entity + struct.pack(">i", 1) + change + b"\0"
    head = struct.pack(">hhi", _ALTER_CLIENT_QUOTAS, _VERSION, 1) + _text("tests")
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), _SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(head + body)) + head + body)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    _, _, entries, error = struct.unpack_from(">iiih", answer)
    assert (entries, error) == (1, 0), (
        f"the broker refused the quota of {client_id} with error {error}"
    )


def _text(text: str) -> bytes:
    written = text.encode()
    return struct.pack(">h", len(written)) + written
