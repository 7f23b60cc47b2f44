"""What a role serves, on a port of its own, for as long as a test asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute

from stream_dedup.serving.health import Health
from stream_dedup.serving.http import HttpServer


class Clock:
    """A clock that stands still."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@contextmanager
def serving(
    routes: Sequence[BaseRoute] = (),
    health: Health | None = None,
    registry: CollectorRegistry | None = None,
    **named: Any,
) -> Iterator[HttpServer]:
    """Give the server, which is ready; it ends with the block, however that ends."""
    server = HttpServer(
        "127.0.0.1", 0, health or Health(), registry or CollectorRegistry(), routes, **named
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()
